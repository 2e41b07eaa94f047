#include "tapestry/autograd/deferred.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/core/context.h"
#include "tapestry/core/error.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

// One change of the elements that a storage stands for.
struct Step {
  const char* op;
  DType dtype;
  Shape sizes, strides;
  std::int64_t offset;
  std::function<void(const Tensor& t)> run;  // empty: the change cannot be repeated
  int cost = 1;                              // the number of steps that it runs, those of its inputs included
};
using Steps = std::vector<std::shared_ptr<const Step>>;

// A step runs the steps of its inputs again, so a long chain of operations could take time and memory without
// bound. Initialisation is far below this limit.
constexpr int kMaxCost = 1'000;

struct Deferred : DeferredElements {
  Steps steps;
  std::uint64_t changes = 0;
};

const Deferred* deferred_of(const Tensor& t) { return static_cast<const Deferred*>(t.storage()->deferred()); }
Deferred& deferred_for(const Tensor& t) {
  if (!t.storage()->deferred()) t.storage()->set_deferred(std::make_unique<Deferred>());
  return *static_cast<Deferred*>(t.storage()->deferred());
}

bool covers_storage(const Tensor& t) { return t.nbytes() == t.storage()->bytes() && !elements_overlap(t); }

int cost_of(const Steps& steps) {
  int cost = 0;
  for (const auto& step : steps) cost = std::min(kMaxCost + 1, cost + step->cost);
  return cost;
}

// Appends a step. A step that sets all elements without reading any makes the earlier ones superfluous.
void append(const Tensor& target, std::shared_ptr<const Step> step, bool sets_all) {
  Deferred& d = deferred_for(target);
  ++d.changes;
  if (sets_all) d.steps.clear();
  d.steps.push_back(std::move(step));
}
std::shared_ptr<Step> step_on(const char* op, const Tensor& target) {
  auto step = std::make_shared<Step>();
  step->op = op;
  step->dtype = target.dtype();
  step->sizes = target.sizes();
  step->strides = target.strides();
  step->offset = target.storage_offset();
  return step;
}

std::string why_not(const Steps* steps) {
  if (!steps || steps->empty())
    return "holds the result of an operation that cannot be repeated, or was never set";
  for (const auto& step : *steps)
    if (!step->run) return concat({"was changed by ", step->op, " in a way that cannot be repeated"});
  return {};
}

// Runs the steps on the memory of `base`, which stands for the whole storage of the meta tensor.
void run(const Steps& steps, const StorageRef& memory, std::int64_t first) {
  const NoGradGuard no_grad;
  const DeviceGuard device(memory->device());
  for (const auto& step : steps)
    step->run(
        tapestry::detail::make_tensor(memory, step->dtype, step->sizes, step->strides, first + step->offset));
}

// The elements that a tensor has at one time.
struct Snapshot {
  Tensor real;  // defined if the tensor is on a real device
  Steps steps;
  DType dtype = DType::f32;
  Shape sizes, strides;
  std::int64_t offset = 0;
  std::size_t bytes = 0;

  explicit Snapshot(const Tensor& t) {
    dtype = t.dtype(), sizes = t.sizes(), strides = t.strides();
    if (!t.device().is_meta()) {
      real = t.detach();
      return;
    }
    offset = t.storage_offset();
    bytes = t.storage()->bytes();
    if (const Deferred* d = deferred_of(t)) steps = d->steps;
  }
  Tensor on(Device device) const {
    if (real.defined()) return real.to(device);
    const StorageRef memory = Storage::allocate(device, bytes);
    run(steps, memory, 0);
    return tapestry::detail::make_tensor(memory, dtype, sizes, strides, offset);
  }
};

void check_meta(const char* op, const Tensor& t) {
  tapestry::detail::check_defined(op, t);
  check<DeviceError>(t.device().is_meta(), "[", op, "] the tensor is on ", t.device(),
                     " and has its elements; pass a tensor of the meta device");
  const std::string why = why_not_materialized(t);
  check(why.empty(), "[", op, "] the tensor of shape ", t.sizes(), " ", why,
        "; set it by functions that autograd/deferred.h lists, or create it on a real device");
}

}  // namespace

std::string autograd::why_not_materialized(const Tensor& t) {
  if (t.numel() == 0) return {};
  const Deferred* const d = deferred_of(t);
  return why_not(d ? &d->steps : nullptr);
}

Tensor materialize(const Tensor& t, Device device) {
  check_meta("materialize", t);
  check_device("materialize", device);
  check<DeviceError>(
      !device.is_meta(),
      "[materialize] the meta device has no memory; pass the device that is to have the elements");
  const NoGradGuard no_grad;
  const StorageRef memory = Storage::allocate(device, t.storage()->bytes());
  if (const Deferred* const d = deferred_of(t)) run(d->steps, memory, 0);
  return tapestry::detail::make_tensor(memory, t.dtype(), t.sizes(), t.strides(), t.storage_offset());
}

void materialize_into(const Tensor& t, const Tensor& destination) {
  check_meta("materialize_into", t);
  tapestry::detail::check_defined("materialize_into", destination, "the destination");
  check<DeviceError>(!destination.device().is_meta(),
                     "[materialize_into] the destination is on the meta device; pass a tensor with memory");
  check(t.sizes() == destination.sizes(), "[materialize_into] the destination has shape ",
        destination.sizes(), ", expected ", t.sizes());
  if (t.numel() == 0) return;
  const NoGradGuard no_grad;
  const bool whole = t.is_contiguous() && t.storage_offset() == 0 && t.nbytes() == t.storage()->bytes();
  if (whole && destination.is_contiguous() && destination.dtype() == t.dtype()) {
    run(deferred_of(t)->steps, destination.storage(), destination.storage_offset());
    destination.storage()->bump_version();
  } else {
    destination.detach().copy_(materialize(t, destination.device()));
  }
}

void autograd::defer_fill(const char* op, const Tensor& target, std::function<void(const Tensor& t)> fill) {
  const std::shared_ptr<Step> step = step_on(op, target);
  step->run = std::move(fill);
  const bool all = covers_storage(target);
  // The other elements of a storage that was never set stay unknown.
  if (!all && !deferred_of(target)) return;
  append(target, step, all);
}

namespace {
// A step that reads other tensors. It cannot be repeated if the elements of one are unknown.
std::shared_ptr<Step> step_from(const char* op, const Tensor& target, const std::vector<Tensor>& inputs,
                                ElementsFrom change) {
  std::shared_ptr<Step> step = step_on(op, target);
  std::vector<Snapshot> values;
  bool known = true;
  for (const Tensor& t : inputs) {
    if (t.device().is_meta()) {
      known = known && why_not_materialized(t).empty();
      if (const Deferred* d = deferred_of(t))
        step->cost = std::min(kMaxCost + 1, step->cost + cost_of(d->steps));
    }
    values.emplace_back(t);
  }
  if (known && step->cost <= kMaxCost)
    step->run = [values = std::move(values), change = std::move(change)](const Tensor& t) {
      std::vector<Tensor> on_device;
      for (const Snapshot& v : values) on_device.push_back(v.on(t.device()));
      change(t, on_device);
    };
  return step;
}
}  // namespace

void autograd::defer_values(const char* op, const Tensor& target, const std::vector<Tensor>& inputs,
                            ElementsFrom set) {
  const bool all = covers_storage(target);
  const std::shared_ptr<const Step> step = step_from(op, target, inputs, std::move(set));
  // A new result whose elements are unknown needs no record.
  if (deferred_of(target) || (all && step->run)) append(target, step, all);
}
void autograd::defer_change(const char* op, const Tensor& target, const std::vector<Tensor>& inputs,
                            ElementsFrom change) {
  if (deferred_of(target)) append(target, step_from(op, target, inputs, std::move(change)), false);
}

void autograd::defer_result(const char* op, const Tensor& y, const Tensor& x, const Tensor& other,
                            Tensor (*fn)(const Tensor&, const Tensor&)) {
  defer_values(op, y, {x, other},
               [fn](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(fn(v[0], v[1])); });
}
void autograd::defer_result(const char* op, const Tensor& y, const Tensor& x, const Scalar& s,
                            Tensor (*fn)(const Tensor&, const Scalar&)) {
  defer_values(op, y, {x}, [fn, s](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(fn(v[0], s)); });
}

std::uint64_t autograd::deferred_changes(const Tensor& t) {
  const Deferred* const d = deferred_of(t);
  return d ? d->changes : 0;
}

void autograd::finish_meta_change(const char* op, const Tensor& target, std::uint64_t before) {
  // A storage without a record is unknown already.
  if (deferred_of(target) && deferred_changes(target) == before) append(target, step_on(op, target), false);
}

}  // namespace tapestry
