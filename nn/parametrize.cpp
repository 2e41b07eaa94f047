#include "tapestry/nn/parametrize.h"

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/distance.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/product.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/internal/options_text.h"
#include "tapestry/nn/internal/remove_child.h"
#include "tapestry/nn/layers/container.h"

namespace tapestry::nn {

namespace {

// The originals of one parameter, and its parametrizations as the children "0", "1", ...
class ParametrizationList : public Module {
 public:
  ParametrizationList(std::shared_ptr<Parametrization> parametrization, const std::vector<Parameter>& slots) {
    append(std::move(parametrization));
    for (std::size_t i = 0; i < slots.size(); ++i)
      originals_.push_back(param(slots.size() == 1 ? "original" : "original" + std::to_string(i), slots[i]));
  }
  // Each parametrization after the first gets the result of the one before it.
  Tensor compute() const {
    std::vector<Tensor> tensors;
    for (const Parameter& p : originals_) tensors.push_back(p);
    for (Parametrization* p : parametrizations_) tensors = {p->compute(tensors)};
    return tensors[0];
  }
  // compute() without gradients and with the children in evaluation, so that state such as _u does not
  // change.
  Tensor value() {
    const NoGradGuard no_grad;
    const bool training = is_training();
    eval();
    Tensor result;
    try {
      result = compute().detach();
    } catch (...) {
      train(training);
      throw;
    }
    train(training);
    return result;
  }
  void append(std::shared_ptr<Parametrization> parametrization) {
    parametrizations_.push_back(&add(std::to_string(parametrizations_.size()), std::move(parametrization)));
  }
  const std::vector<Parameter>& originals() const { return originals_; }
  std::string type_name() const override { return "ParametrizationList"; }

 private:
  std::vector<Parametrization*> parametrizations_;
  std::vector<Parameter> originals_;
};

// The child "parametrizations" of a module. Its children are ParametrizationLists with the parameters' names.
class ParametrizationDict : public Module {
 public:
  std::string type_name() const override { return "ModuleDict"; }
};

Module* child_of(const Module& module, const std::string& name) {
  for (const auto& [key, child] : module.named_children())
    if (key == name) return child;
  return nullptr;
}
ParametrizationList* list_of(const Module& module, const std::string& name) {
  const Module* const all = child_of(module, "parametrizations");
  return all ? dynamic_cast<ParametrizationList*>(child_of(*all, name)) : nullptr;
}

Parameter own_parameter(const Module& module, const std::string& name) {
  for (const auto& [key, slot] : module.named_parameters())
    if (key == name && key.find('.') == std::string::npos) return slot;
  fail("[register_parametrization] ", module.type_name(), " has no parameter '", name,
       "'; named_parameters() lists them");
}

}  // namespace

class Parametrizations {
 public:
  static void add(Module& module, const std::string& name, std::shared_ptr<Parametrization> parametrization,
                  const std::vector<Parameter>& originals) {
    const auto list = std::make_shared<ParametrizationList>(std::move(parametrization), originals);
    list->train(module.is_training());
    Module* all = child_of(module, "parametrizations");
    if (!all) all = &module.add<ParametrizationDict>("parametrizations");
    all->add(name, list);
    // The slot owns the list, because copies of the slot may outlive the module.
    module.exchange_param(name, Parameter::computed(name, [list] { return list->compute(); }));
  }
  static void remove(Module& module, const std::string& name, const Parameter& slot) {
    module.exchange_param(name, slot);
    Module* const all = child_of(module, "parametrizations");
    all->remove_child(name);
    if (all->children().empty()) module.remove_child("parametrizations");
  }
  static void remove_child(Module& module, const std::string& name) { module.remove_child(name); }
};

void detail::remove_child(Module& module, const std::string& name) {
  Parametrizations::remove_child(module, name);
}

namespace {

// The present value of a parameter, which may be computed.
Tensor value_of(const Module& module, const std::string& name) {
  ParametrizationList* const list = list_of(module, name);
  return list ? list->value() : own_parameter(module, name).tensor().detach();
}

// Computes the parameter from the originals in evaluation, so that state such as _u does not change, and
// checks that it can replace `value`.
void check_result(const std::string& name, Parametrization& parametrization, const Tensor& value,
                  const std::vector<Tensor>& originals) {
  const char* const op = "register_parametrization";
  parametrization.eval();
  const Tensor result = parametrization.compute(originals);
  tapestry::detail::check_defined(op, result, "the computed parameter");
  check(
      result.sizes() == value.sizes() && result.dtype() == value.dtype() && result.device() == value.device(),
      "[", op, "] '", name, "' is a ", value.dtype(), " tensor of shape ", value.sizes(), " on ",
      value.device(), ", and ", parametrization.type_name(), " computes a ", result.dtype(),
      " tensor of shape ", result.sizes(), " on ", result.device(), "; they must agree");
}

void check_one_replica(const char* op, const std::string& name, const Parameter& slot) {
  check(slot.replicas() == 1, "[", op, "] '", name, "' has ", slot.replicas(),
        " replicas; destroy the DataParallel of this module first, or call unreplicate()");
}

}  // namespace

void register_parametrization(Module& module, const std::string& name,
                              std::shared_ptr<Parametrization> parametrization) {
  const char* const op = "register_parametrization";
  check(parametrization != nullptr, "[", op, "] the parametrization is null; pass one that exists");
  if (ParametrizationList* const list = list_of(module, name)) {
    for (const Parameter& p : list->originals()) check_one_replica(op, name, p);
    const Tensor value = list->value();
    const NoGradGuard no_grad;
    const std::size_t count = parametrization->right_inverse(value).size();
    check(count == 1, "[", op, "] '", name, "' of ", module.type_name(),
          " has a parametrization already, and ", parametrization->type_name(), " has ", count,
          " originals; only the first parametrization of a parameter may have several");
    check_result(name, *parametrization, value, {value});
    parametrization->train(list->is_training());
    list->append(std::move(parametrization));
    return;
  }
  const Parameter slot = own_parameter(module, name);
  check_one_replica(op, name, slot);
  check(!slot.layout(), "[", op, "] '", name, "' of ", module.type_name(),
        " is sharded; parametrize the module before fully_shard()");
  const Tensor value = slot.replica(0).detach();
  std::vector<Tensor> tensors;
  {
    const NoGradGuard no_grad;
    tensors = parametrization->right_inverse(value);
    check(!tensors.empty(), "[", op, "] right_inverse() of ", parametrization->type_name(),
          " gave no tensors; return one or more originals");
    for (const Tensor& t : tensors) tapestry::detail::check_defined(op, t, "an original");
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].device().is_meta() && !autograd::why_not_materialized(tensors[i]).empty())
        autograd::defer_values("right_inverse", tensors[i], {value},
                               [parametrization, i](const Tensor& t, const std::vector<Tensor>& values) {
                                 t.copy_(parametrization->right_inverse(values[0])[i]);
                               });
    check_result(name, *parametrization, value, tensors);
  }
  std::vector<Parameter> originals;
  bool kept = false;
  for (const Tensor& t : tensors) {
    if (t.is_same(value) && !kept) {
      originals.push_back(slot);
      kept = true;
      continue;
    }
    originals.emplace_back(name, t.clone());
    if (!slot.replica(0).requires_grad()) originals.back().replica(0).set_requires_grad(false);
  }
  Parametrizations::add(module, name, std::move(parametrization), originals);
}

bool is_parametrized(const Module& module, const std::string& name) {
  return list_of(module, name) != nullptr;
}

void remove_parametrizations(Module& module, const std::string& name, bool leave_parametrized) {
  const char* const op = "remove_parametrizations";
  ParametrizationList* const list = list_of(module, name);
  check(list != nullptr, "[", op, "] '", name, "' of ", module.type_name(), " has no parametrization");
  const std::vector<Parameter> originals = list->originals();
  for (const Parameter& p : originals) {
    check(!p.layout(), "[", op, "] an original of '", name, "' of ", module.type_name(),
          " is sharded; save its state, and remove the parametrization of a model that is not sharded");
    check_one_replica(op, name, p);
  }
  check(leave_parametrized || originals.size() == 1, "[", op, "] '", name, "' is computed from ",
        originals.size(),
        " originals, so none of them can become the parameter; use leave_parametrized = true");
  Parameter slot = originals[0];
  if (leave_parametrized) {
    const NoGradGuard no_grad;
    const Tensor value = list->value();
    if (originals.size() == 1) {
      slot.replica(0).detach().copy_(value);
    } else {
      slot = Parameter(name, value.clone());
      if (!originals[0].replica(0).requires_grad()) slot.replica(0).set_requires_grad(false);
    }
  }
  Parametrizations::remove(module, name, slot);
}

namespace {

class WeightNorm : public Parametrization {
 public:
  explicit WeightNorm(std::optional<int> dim) : dim_(dim) {}
  Tensor compute(const std::vector<Tensor>& originals) override {
    check(originals.size() == 2, "[weight_norm] expected two originals, got ", originals.size());
    return originals[1] * (originals[0] / norms_of(originals[1]));
  }
  std::vector<Tensor> right_inverse(const Tensor& value) override {
    check<IndexError>(!dim_ || (*dim_ >= 0 && *dim_ < value.dim()), "[weight_norm] dim ", dim_.value_or(0),
                      " is not a dimension of the parameter of shape ", value.sizes(),
                      "; choose one, or no dim for the norm of the whole tensor");
    return {norms_of(value), value};
  }
  std::string options_text() const override {
    return detail::OptionsText().add("dim", dim_ ? std::to_string(*dim_) : "none").str();
  }

 private:
  Tensor norms_of(const Tensor& v) const {
    if (!dim_) return norm(v);
    if (v.dim() == 1) return abs(v);
    std::vector<std::int64_t> others;
    for (int d = 0; d < v.dim(); ++d)
      if (d != *dim_) others.push_back(d);
    return norm(v, 2, Dims(others), true);
  }

  const std::optional<int> dim_;
};

class SpectralNorm : public Parametrization {
 public:
  SpectralNorm(const Tensor& weight, const SpectralNormOptions& options, int dim)
      : options_(options), dim_(dim) {
    if (weight.dim() == 1) return;
    const NoGradGuard no_grad;
    const Tensor matrix = matrix_of(weight.detach());
    const TensorOptions like(weight.dtype(), weight.device());
    const std::vector<Tensor> from{randn({matrix.size(0)}, like), randn({matrix.size(1)}, like), matrix};
    u_ = buffer("_u", unit(from[0]));
    v_ = buffer("_v", unit(from[1]));
    if (!weight.device().is_meta()) {
      improve(u_, v_, matrix, 15, options.eps);
      return;
    }
    for (const Buffer& vector : {u_, v_})
      autograd::defer_values(
          "spectral_norm", vector, from,
          [eps = options.eps, left = vector.id() == u_.id()](const Tensor& t, const std::vector<Tensor>& f) {
            const Tensor u = normalize(f[0], 2, 0, eps), v = normalize(f[1], 2, 0, eps);
            improve(u, v, f[2], 15, eps);
            t.copy_(left ? u : v);
          });
  }
  Tensor compute(const std::vector<Tensor>& originals) override {
    const Tensor& weight = originals[0];
    if (weight.dim() == 1) return unit(weight);
    const Tensor matrix = matrix_of(weight);
    // The recomputation by checkpoint() must compute the same parameter.
    if (is_training() && !autograd::recomputing()) {
      const NoGradGuard no_grad;
      improve(u_, v_, matrix.detach(), options_.n_power_iterations, options_.eps);
    }
    // The next iterations change the buffers in place, so backward needs copies.
    return weight / dot(u_->clone(), mv(matrix, v_->clone()));
  }
  std::string options_text() const override {
    return detail::OptionsText()
        .add("n_power_iterations", options_.n_power_iterations)
        .add("eps", options_.eps)
        .add("dim", dim_)
        .str();
  }

 private:
  Tensor unit(const Tensor& x) const { return normalize(x, 2, 0, options_.eps); }
  Tensor matrix_of(const Tensor& weight) const {
    return (dim_ == 0 ? weight : weight.movedim(dim_, 0)).flatten(1);
  }
  static void improve(const Tensor& u, const Tensor& v, const Tensor& matrix, int iterations, double eps) {
    for (int i = 0; i < iterations; ++i) {
      u.copy_(normalize(mv(matrix, v), 2, 0, eps));
      v.copy_(normalize(mv(matrix.t(), u), 2, 0, eps));
    }
  }

  const SpectralNormOptions options_;
  const int dim_;
  Buffer u_, v_;  // the left and the right singular vector of the largest singular value
};

}  // namespace

Module& weight_norm(Module& module, const std::string& name, std::optional<int> dim) {
  register_parametrization(module, name, std::make_shared<WeightNorm>(dim));
  return module;
}

Module& spectral_norm(Module& module, const std::string& name, const SpectralNormOptions& options) {
  check(options.n_power_iterations > 0, "[spectral_norm] n_power_iterations must be positive but is ",
        options.n_power_iterations);
  check(options.eps >= 0, "[spectral_norm] eps must not be negative but is ", options.eps);
  check(is_parametrized(module, name) || !own_parameter(module, name).layout(), "[spectral_norm] '", name,
        "' of ", module.type_name(), " is sharded; parametrize the module before fully_shard()");
  const Tensor weight = value_of(module, name);
  check(weight.numel() > 0, "[spectral_norm] '", name, "' of shape ", weight.sizes(),
        " has no elements, so it has no norm");
  // The first dimension of a transposed convolution's weight is its input channels.
  const int dim = options.dim.value_or(module.type_name().starts_with("ConvTranspose") ? 1 : 0);
  check<IndexError>(dim >= 0 && dim < weight.dim(), "[spectral_norm] dim ", dim,
                    " is not a dimension of the parameter of shape ", weight.sizes(), "; choose one");
  register_parametrization(module, name, std::make_shared<SpectralNorm>(weight, options, dim));
  return module;
}

}  // namespace tapestry::nn
