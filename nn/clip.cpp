#include "tapestry/nn/clip.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/nn/internal/divided_gradients.h"
#include "tapestry/nn/internal/many_gradients.h"
#include "tapestry/nn/internal/replica_devices.h"

namespace tapestry::nn {

namespace {
// Calls fn(gradient, index of its parameter) for every gradient of this ReplicaDevice.
template <class F>
void for_gradients(const std::vector<Parameter>& params, const ReplicaDevice& replica_device, const F& fn) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!replica_device.has(params[i])) continue;
    const Tensor grad = stored_tensor(params[i], replica_device.replica).grad();
    if (!grad.defined()) continue;
    DividedGradients* const divided = divided_gradients(grad);
    fn(divided ? divided->part(*grad.storage()) : grad, i);
  }
}

// All gradients of this ReplicaDevice that have elements.
std::vector<Tensor> gradients_of(const std::vector<Parameter>& params, const ReplicaDevice& replica_device) {
  std::vector<Tensor> gradients;
  for_gradients(params, replica_device, [&](const Tensor& g, std::size_t) {
    if (g.numel() > 0) gradients.push_back(g);
  });
  return gradients;
}

// The norm of the gradients of a CUDA device that are not divided among ranks, from two
// launches for any number of them. `first` gets the index of the first of their parameters. Nothing if there
// are none or the kernels do not take them.
std::optional<ManyGradients::Norm> norm_of_device(const std::vector<Parameter>& params,
                                                  const ReplicaDevice& replica_device, double norm_type,
                                                  double max_norm, std::size_t& first) {
  if (!replica_device.device.is_cuda()) return {};
  std::vector<Tensor> gradients;
  for_gradients(params, replica_device, [&](const Tensor& g, std::size_t i) {
    if (params[i].layout() || g.numel() == 0 || divided_gradients(params[i].replica(0).grad())) return;
    if (gradients.empty()) first = i;
    gradients.push_back(g);
  });
  if (gradients.size() > 0)
    if (const auto many = ManyGradients::of(gradients)) return many->norm(norm_type, max_norm);
  return {};
}

// The norm of one gradient, of f16 and bf16 gradients in f32: a norm beyond 65504 is no f16.
Tensor norm_of(const Tensor& grad, double norm_type) {
  const bool low = grad.dtype() == DType::f16 || grad.dtype() == DType::bf16;
  return norm(low ? grad.to(DType::f32) : grad, norm_type);
}
DType norm_dtype(const Tensor& grad) { return grad.dtype() == DType::f64 ? DType::f64 : DType::f32; }

// `all` becomes the division of several gradients, which must be one.
void join_division(DividedGradients*& all, DividedGradients* own) {
  check(!all || all == own, "[clip_grad_norm_] the gradients are divided by several optimizers; ",
        "clip the parameters of each optimizer by themselves");
  all = own;
}
// Collective: the norm of the ranks' norms, in f64. All ranks get the same bits.
Tensor joined(DividedGradients& divided, const Tensor& own, double norm_type) {
  const Tensor of_ranks = zeros({divided.ranks()}, {DType::f64, own.device()});
  of_ranks.narrow(0, divided.rank(), 1).copy_(own);
  divided.sum_over_ranks(of_ranks);
  return norm(of_ranks, norm_type);
}

// The norms of gradients that are divided among ranks become one norm: each rank joins the norms of its
// parts, and then the norms of the ranks are joined.
void join_divided_norms(const std::vector<Parameter>& params, std::vector<Tensor>& norms, double norm_type) {
  DividedGradients* divided = nullptr;
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!norms[i].defined()) continue;
    DividedGradients* const own = divided_gradients(params[i].replica(0).grad());
    if (!own) continue;
    join_division(divided, own);
    parts.push_back(norms[i]);
    norms[i] = {};
  }
  if (!divided) return;
  const DType dtype = parts[0].dtype();
  for (Tensor& t : parts) t = t.to(parts[0].device(), DType::f64);
  norms.push_back(joined(*divided, norm(stack(parts), norm_type), norm_type).to(dtype));
}

/// The parameters whose gradients the same groups of ranks divide or copy, in the same order.
struct DividedSet {
  const Layout* layout;  // of one of them, for the collectives
  std::vector<std::size_t> params;
};

bool have_same_groups(const Layout& a, const Layout& b) {
  const auto of_a = a.divided(), of_b = b.divided();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const RankGroup* x, const RankGroup* y) { return x->id(0) == y->id(0); });
}

// In the order of the parameters, which is the same on all ranks.
std::vector<DividedSet> divided_sets(const std::vector<Parameter>& params) {
  std::vector<DividedSet> sets;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Layout* const layout = params[i].layout().get();
    if (!layout) continue;
    auto set = std::find_if(sets.begin(), sets.end(),
                            [&](const DividedSet& s) { return have_same_groups(*s.layout, *layout); });
    if (set == sets.end()) set = sets.insert(set, {layout, {}});
    set->params.push_back(i);
  }
  return sets;
}

/// Gradients that the same ranks divide by elements (ZeRO's stage 2), and whose layouts have copies along the
/// same cuts. The ranks that divide them may be ranks with copies. So all parts of the division are joined
/// first, and then counts_here() says which rank counts the result.
struct ElementSet {
  DividedGradients* divided;
  // Of each cut: its dim, or 0 if ranks divide the parameter, and its holders.
  std::vector<std::pair<int, std::vector<int>>> copied;
  bool counts_here;
  std::vector<Tensor> norms = {};
};

ElementSet& element_set(std::vector<ElementSet>& sets, DividedGradients* divided, const Layout& layout,
                        int replica) {
  std::vector<std::pair<int, std::vector<int>>> copied;
  for (const Cut& cut : layout.cuts()) copied.emplace_back(std::min(cut.dim, 0), cut.holders);
  for (ElementSet& s : sets)
    if (s.divided == divided && s.copied == copied) return s;
  return sets.emplace_back(ElementSet{divided, std::move(copied), layout.counts_here(replica)});
}

// The norm of the gradients that this rank stores, of shape [1], without copies that another rank counts. The
// dtype does not depend on which gradients a rank has. Collective over the ranks that divide the gradients by
// elements, if there are any.
Tensor norm_of_rank(const std::vector<Parameter>& params, const DividedSet& set, int replica,
                    double norm_type) {
  DType dtype = DType::f32;
  std::vector<ElementSet> of_elements;
  std::vector<Tensor> norms;
  for (const std::size_t i : set.params) {
    const Layout& layout = *params[i].layout();
    const Tensor& stored = layout.stored(replica);
    if (stored.dtype() == DType::f64) dtype = DType::f64;
    const Tensor grad = stored.grad();
    if (!grad.defined()) continue;
    if (DividedGradients* const divided = divided_gradients(grad)) {
      const Tensor part = divided->part(*grad.storage());
      std::vector<Tensor>& own = element_set(of_elements, divided, layout, replica).norms;
      if (part.numel() > 0) own.push_back(norm_of(part, norm_type));
    } else if (grad.numel() > 0 && layout.counts_here(replica)) {
      norms.push_back(norm_of(grad, norm_type));
    }
  }
  const Device device = set.layout->stored(replica).device();
  const auto norm_of_norms = [&](std::vector<Tensor>& all) {
    for (Tensor& t : all) t = t.to(device, dtype);
    return all.empty() ? zeros({1}, {dtype, device}) : norm(stack(all), norm_type).reshape({1});
  };
  for (ElementSet& s : of_elements) {
    const Tensor all = joined(*s.divided, norm_of_norms(s.norms), norm_type);
    if (s.counts_here) norms.push_back(all.reshape({}));
  }
  return norm_of_norms(norms);
}

// Joins the norms of a group's ranks. Each rank adds a vector of zeros with its norm in its own element: a
// sum of powers would overflow sooner, and the infinity norm needs a maximum.
Tensor join_norms(const RankGroup& group, int replica, const Tensor& own, double norm_type) {
  const Tensor all = zeros({group.size()}, {own.dtype(), own.device()});
  all.narrow(0, group.rank(replica), 1).copy_(own);
  group.sum(replica, all);
  return norm(all, norm_type).reshape({1});
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Parameter>& params, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  check(max_norm >= 0, "[clip_grad_norm_] max_norm must not be negative but is ", max_norm);
  check(norm_type > 0, "[clip_grad_norm_] norm_type must be positive but is ", norm_type);
  for (const Parameter& p : params)
    if (is_of_one_stage(p))
      fail("[clip_grad_norm_] a parameter of shape ", whole_sizes(p),
           " belongs to one stage of a pipeline over ranks, and the norm is that of all stages; call "
           "Pipeline::clip_grad_norm_()");
  const NoGradGuard no_grad;
  std::vector<ReplicaDevice> replica_devices, of_first_replica;
  add_replica_devices(params, replica_devices);
  std::copy_if(replica_devices.begin(), replica_devices.end(), std::back_inserter(of_first_replica),
               [](const ReplicaDevice& d) { return d.replica == 0; });
  const std::vector<DividedSet> sets = divided_sets(params);
  if (of_first_replica.empty() && sets.empty()) return zeros({});
  std::vector<Tensor> norms(params.size());
  Tensor factor;  // of a single device, whose kernels compute the factor too
  for_each_replica_device(of_first_replica, [&](const ReplicaDevice& replica_device) {
    std::size_t first = 0;
    const auto of_device = norm_of_device(params, replica_device, norm_type, max_norm, first);
    if (of_device) norms[first] = of_device->total;
    if (of_device && of_first_replica.size() == 1) factor = of_device->factor;
    for_gradients(params, replica_device, [&](const Tensor& g, std::size_t i) {
      if (of_device && !divided_gradients(params[i].replica(0).grad())) return;
      if (!params[i].layout())
        norms[i] = g.numel() > 0 ? norm_of(g, norm_type) : zeros({}, {norm_dtype(g), g.device()});
    });
  });
  join_divided_norms(params, norms, norm_type);
  // Collective, also on a rank whose boxes are empty or have no gradients. The replicas of one process are
  // ranks of a group and must call it at the same time.
  for (const DividedSet& set : sets) {
    const Parameter& first = params[set.params[0]];
    std::vector<ReplicaDevice> replicas;
    for (int r = 0; r < first.replicas(); ++r) replicas.push_back({r, set.layout->stored(r).device()});
    std::vector<Tensor> of_ranks(replicas.size());
    for_each_replica_device(replicas, [&](const ReplicaDevice& r) {
      of_ranks[static_cast<std::size_t>(r.replica)] = norm_of_rank(params, set, r.replica, norm_type);
    });
    for_each_rank(replicas, [&](const ReplicaDevice& r) {
      Tensor& joined = of_ranks[static_cast<std::size_t>(r.replica)];
      for (const RankGroup* const group : set.layout->divided())
        joined = join_norms(*group, r.replica, joined, norm_type);
    });
    norms[set.params[0]] = of_ranks[0].reshape({});
  }
  std::erase_if(norms, [](const Tensor& t) { return !t.defined(); });
  const Device device = of_first_replica.empty() ? norms[0].device() : of_first_replica[0].device;
  const bool wide =
      std::any_of(norms.begin(), norms.end(), [](const Tensor& t) { return t.dtype() == DType::f64; });
  for (Tensor& t : norms) t = sets.empty() ? t.to(device) : t.to(device, wide ? DType::f64 : DType::f32);
  if (norms.size() != 1) factor = {};
  const Tensor total = factor.defined() ? norms[0] : norm(stack(norms), norm_type);
  if (error_if_nonfinite) {
    tapestry::detail::check_host_reads("clip_grad_norm_", total);
    check(std::isfinite(total.item()), "[clip_grad_norm_] the norm of the gradients is ", total.item(),
          ", so they cannot be clipped; look for the cause (autograd::DetectAnomaly), or skip this step");
  }
  // The factor is computed without a branch on the norm, because a branch would make the host wait for the
  // device.
  if (!factor.defined()) factor = clamp(rdiv(max_norm, total + 1e-6), {}, 1.0);
  for_each_replica_device(replica_devices, [&](const ReplicaDevice& replica_device) {
    const Tensor here = factor.to(replica_device.device);
    if (const auto many = ManyGradients::of(gradients_of(params, replica_device)))
      return many->scale(here.to(DType::f32));
    for_gradients(params, replica_device, [&](const Tensor& g, std::size_t) { g.mul_(here); });
  });
  return total;
}

void clip_grad_value_(const std::vector<Parameter>& params, double clip_value) {
  check(clip_value >= 0, "[clip_grad_value_] clip_value must not be negative but is ", clip_value);
  const NoGradGuard no_grad;
  std::vector<ReplicaDevice> replica_devices;
  add_replica_devices(params, replica_devices);
  for_each_replica_device(replica_devices, [&](const ReplicaDevice& replica_device) {
    if (const auto many = ManyGradients::of(gradients_of(params, replica_device)))
      return many->clamp(clip_value);
    for_gradients(params, replica_device,
                  [&](const Tensor& g, std::size_t) { g.clamp_(-clip_value, clip_value); });
  });
}

}  // namespace tapestry::nn
