#include "tapestry/distributed/data_parallel/steps.h"

#include <algorithm>
#include <numeric>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/timeline.h"
#include "tapestry/core/internal/worker.h"

namespace tapestry::distributed {
namespace {

void check_devices(const char* op, std::span<const Device> devices) {
  check(!devices.empty(), "[", op, "] there are no devices; name one or more");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    check_device(op, devices[i]);
    check(std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i), devices[i]) ==
              devices.begin() + static_cast<std::ptrdiff_t>(i),
          "[", op, "] ", devices[i], " is named twice; name each device once");
  }
}

// A leaf of its own on another device.
Tensor replica_of(const Tensor& first, Device device) {
  Tensor copy = first.detach().to(device);
  if (first.requires_grad()) copy.set_requires_grad();
  return copy;
}

bool is_split(const TensorList& batch, std::size_t k) {
  return !batch.whole[k] && batch.tensors[k].defined() && batch.tensors[k].dim() > 0;
}

template <class F>
void for_slots(nn::Module& model, const F& fn) {
  for (nn::Parameter& p : model.parameters()) fn(p);
  for (nn::Buffer& b : model.buffers()) fn(b);
}

}  // namespace

std::vector<std::int64_t> shares_of(std::int64_t samples, std::size_t devices) {
  check(samples >= 0 && devices > 0, "[scatter] ", samples, " samples for ", devices,
        " devices; name one device or more");
  const auto n = std::clamp<std::int64_t>(samples, 1, static_cast<std::int64_t>(devices));
  std::vector<std::int64_t> shares(static_cast<std::size_t>(n), samples / n);
  for (std::int64_t r = 0; r < samples % n; ++r) ++shares[static_cast<std::size_t>(r)];
  return shares;
}

double weight_of(std::span<const std::int64_t> shares, std::size_t part) {
  const std::int64_t samples = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  return samples ? static_cast<double>(shares[part]) / static_cast<double>(samples) : 1;
}

std::int64_t samples_in(const char* op, const TensorList& batch) {
  const Tensor* first = nullptr;
  for (std::size_t k = 0; k < batch.tensors.size(); ++k) {
    if (!is_split(batch, k)) continue;
    const Tensor& t = batch.tensors[k];
    if (!first) first = &t;
    check(t.size(0) == first->size(0), "[", op, "] a batch has tensors of ", first->size(0), " and ",
          t.size(0), " samples, of shapes ", first->sizes(), " and ", t.sizes(),
          "; make their first dimensions equal, or pass Whole{tensor} for one that belongs to no sample");
  }
  check(first != nullptr, "[", op,
        "] there is no tensor to deal out; pass one whose first dimension is that of the samples");
  return first->size(0);
}

std::vector<std::vector<Tensor>> split_tensors(const TensorList& batch,
                                               std::span<const std::int64_t> shares) {
  std::vector<std::vector<Tensor>> parts(shares.size());
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < shares.size(); begin += shares[r++])
    for (std::size_t k = 0; k < batch.tensors.size(); ++k) {
      const Tensor& t = batch.tensors[k];
      parts[r].push_back(is_split(batch, k) ? t.narrow(0, begin, shares[r]) : t);
    }
  return parts;
}

std::vector<std::vector<Tensor>> scatter_tensors(const TensorList& batch, std::span<const Device> devices) {
  check_devices("scatter", devices);
  auto parts = split_tensors(batch, shares_of(samples_in("scatter", batch), devices.size()));
  for (std::size_t r = 0; r < parts.size(); ++r)
    for (Tensor& t : parts[r])
      if (t.defined()) t = t.to(devices[r]);
  return parts;
}

std::vector<Tensor> gather_tensors(const std::vector<std::vector<Tensor>>& parts, Device device) {
  check(!parts.empty(), "[gather] there are no parts; pass one or more");
  for (const auto& part : parts)
    check(part.size() == parts[0].size(), "[gather] replicas returned ", parts[0].size(), " and ",
          part.size(), " tensors; return as many from each");
  std::vector<Tensor> joined;
  for (std::size_t i = 0; i < parts[0].size(); ++i) {
    std::vector<Tensor> rows;
    for (const auto& part : parts) {
      check(part[i].defined() == parts[0][i].defined(), "[gather] output ", i,
            " is a tensor on one replica and undefined on another; return the same from each");
      if (!part[i].defined()) continue;
      check(part[i].dim() == parts[0][i].dim() && part[i].dtype() == parts[0][i].dtype(), "[gather] output ",
            i, " is ", parts[0][i].dtype(), " ", parts[0][i].sizes(), " on one replica and ", part[i].dtype(),
            " ", part[i].sizes(), " on another; return the same kind from each");
      rows.push_back(part[i].to(device));
    }
    joined.push_back(rows.empty() ? Tensor() : rows[0].dim() == 0 ? stack(rows) : cat(rows));
  }
  return joined;
}

Tensor join_gradients(const std::vector<Tensor>& gradients, const std::vector<Tensor>& parts, bool whole,
                      Device device) {
  if (std::none_of(gradients.begin(), gradients.end(), [](const Tensor& t) { return t.defined(); }))
    return {};
  std::vector<Tensor> rows;
  for (std::size_t i = 0; i < parts.size(); ++i)
    rows.push_back((gradients[i].defined() ? gradients[i] : zeros_like(parts[i].detach())).to(device));
  if (!whole) return cat(rows);
  Tensor sum = rows[0];
  for (std::size_t i = 1; i < rows.size(); ++i) sum = sum + rows[i];
  return sum;
}

void replicate(nn::Module& model, std::span<const Device> devices) {
  check_devices("replicate", devices);
  const EnableGradGuard no_inference;  // what is made now is trained later
  bool there = true;
  for_slots(model, [&](const nn::TensorSlot& slot) {
    there = there && slot.replicas() == static_cast<int>(devices.size());
    for (int r = 0; r < slot.replicas() && there; ++r)
      there = slot.replica(r).device() == devices[static_cast<std::size_t>(r)];
  });
  if (!there) {
    unreplicate(model);
    model.to(devices[0]);
  }
  std::vector<nn::TensorSlot> slots;
  for_slots(model, [&](const nn::TensorSlot& slot) { slots.push_back(slot); });
  std::vector<std::vector<Tensor>> copies(slots.size(), std::vector<Tensor>(devices.size()));
  on_replicas(devices, [&](int r) {
    const NoGradGuard no_grad;
    const SpanScope span(devices[static_cast<std::size_t>(r)], Activity::communication, "replicate");
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const Tensor first = slots[s].replica(0);
      Tensor& copy = copies[s][static_cast<std::size_t>(r)];
      if (r == 0) copy = first;
      else if (!there) copy = replica_of(first, devices[static_cast<std::size_t>(r)]);
      else slots[s].replica(r).detach().copy_(first.detach());
    }
  });
  if (there) return;
  for (std::size_t s = 0; s < slots.size(); ++s) slots[s].set_replicas(std::move(copies[s]));
}

void unreplicate(nn::Module& model) {
  for_slots(model, [](nn::TensorSlot slot) {
    if (slot.replicas() > 1) slot.set_replicas({slot.replica(0)});
  });
}

void check_no_replica(std::span<const Device> devices) {
  for (const Device d : devices)
    check(!device_worker(d).is_current(), "[on_replicas] called by the worker of ", d,
          ", on which a replica runs; replicas have none of their own");
}

void on_replicas(std::span<const Device> devices, const std::function<void(int)>& task) {
  check_no_replica(devices);
  const bool anomaly = autograd::DetectAnomaly::active();
  on_workers(devices, [&](int r) {
    Context context = current_context();
    context.replica = static_cast<std::int16_t>(r);
    context.device = devices[static_cast<std::size_t>(r)];
    const ContextGuard guard(context);
    std::optional<autograd::DetectAnomaly> detect;
    if (anomaly) detect.emplace();
    task(r);
  });
}

}  // namespace tapestry::distributed
