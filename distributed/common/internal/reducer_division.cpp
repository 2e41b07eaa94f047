// The part of Reducer that divides gradients among the ranks (stage 2 of ZeRO).
#include <algorithm>
#include <numeric>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/distributed/common/internal/reducer.h"

namespace tapestry::distributed {

void Reducer::divide(std::function<void()> ended, const std::vector<bool>& alone) {
  check(!divided_, "[ZeroRedundancyOptimizer] the gradients of this DistributedDataParallel are divided ",
        "already by another ZeroRedundancyOptimizer; destroy that one first, or give it all parameters as ",
        "groups");
  if (pass_ != 0) abandon_pass();
  const std::vector<int> order = learned_order_.empty() ? order_ : std::exchange(learned_order_, {});
  divided_ = true;
  ended_ = std::move(ended);
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].alone = alone[i];
  build(order);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    p.no_memory = Storage::releasable(p.tensor.device(), p.tensor.nbytes(), this);
    parameter_of_[p.no_memory.get()] = static_cast<int>(i);
    p.before = p.tensor.register_hook([this, i](const Tensor&) {
      before_gradient(static_cast<int>(i));
      return Tensor();
    });
  }
}

void Reducer::undivide() {
  if (!divided_) return;
  if (pass_ != 0) abandon_pass();
  end_division();
  build(order_);
}

void Reducer::end_division() {
  for (Parameter& p : parameters_) {
    p.before.remove();
    if (is_part(p, p.tensor.grad())) p.tensor.set_grad({});
    p.no_memory->set_source(nullptr);
    p.no_memory = {};
    p.has_part = p.adds = p.alone = false;
  }
  parameter_of_.clear();
  divided_ = false;
}

const Division& Reducer::settle_division() {
  if (divided_ && !learned_order_.empty()) {
    last_report_ = report();
    rebuild();
  }
  return division_;
}

void Reducer::fix_order(const std::vector<int>& order) {
  std::vector<int> sorted = order, all(parameters_.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  check(sorted == all, "[ZeroRedundancyOptimizer] the order of buckets in the state does not list each of ",
        parameters_.size(), " parameters once; pass what local_state_dict() returned");
  order_fixed_ = true;
  if (order == order_) return;
  check(passes_ == 0, "[ZeroRedundancyOptimizer] the state belongs to another order of buckets; load it ",
        "before the first backward pass");
  build(order);
}

std::vector<std::pair<std::string, Tensor>> Reducer::parameters() const {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const Parameter& p : parameters_) all.emplace_back(p.name, p.tensor);
  return all;
}

Tensor Reducer::gradient_part(int parameter) {
  const Parameter& p = parameters_[static_cast<std::size_t>(parameter)];
  return divided_ && is_part(p, p.tensor.grad()) ? part_view(parameter) : Tensor();
}

bool Reducer::begin_part(const Tensor& parameter) {
  if (!divided_) return false;
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    if (!p.tensor.is_same(parameter)) continue;
    Bucket& b = buckets_[static_cast<std::size_t>(p.bucket)];
    const DividedBucket& place = division_.buckets()[static_cast<std::size_t>(p.bucket)];
    if (!b.parts.defined()) b.parts = empty({place.chunk}, {place.dtype, place.device});
    tag_memory(b.parts, MemoryKind::gradients);
    part_view(static_cast<int>(i)).zero_();
    set_part_as_gradient(p);
    return true;
  }
  return false;
}

bool Reducer::is_part(const Parameter& p, const Tensor& grad) {
  return grad.defined() && p.no_memory && grad.storage().get() == p.no_memory.get();
}

// This rank's elements of the gradient of a parameter, in Bucket::parts.
Tensor Reducer::part_view(int index) {
  const int rank = group_->rank();
  Bucket& b = buckets_[static_cast<std::size_t>(parameters_[static_cast<std::size_t>(index)].bucket)];
  const std::int64_t chunk = division_.buckets()[static_cast<std::size_t>(b.grads.index)].chunk;
  const ElementRange range = division_.part(index, rank);
  if (range.count == 0) return part_of(b.parts, 0, {0}, {1});
  return part_of(b.parts, division_.offset(index) + range.begin - chunk * rank, {range.count}, {1});
}

// While this rank keeps a part of the gradient, grad() has the whole shape and no memory, and the engine
// could not add to it. So grad() begins anew in this pass, and `has_part` remembers that the part is valid.
void Reducer::before_gradient(int index) {
  Parameter& p = parameters_[static_cast<std::size_t>(index)];
  const Tensor grad = p.tensor.grad();
  if (!grad.defined()) p.has_part = false;
  if (!is_part(p, grad)) return;
  p.has_part = true;
  p.tensor.set_grad({});
  autograd::on_backward_end([this, index] { keep_part_if_no_sum(index); });
}

// autograd::grad() runs the hooks of a leaf, but adds nothing to its grad().
void Reducer::keep_part_if_no_sum(int index) {
  Parameter& p = parameters_[static_cast<std::size_t>(index)];
  if (!p.has_part || p.tensor.grad().defined()) return;
  p.has_part = false;
  set_part_as_gradient(p);
}

// Allocates a bucket. The gaps between parameters are zero.
void Reducer::open(Bucket& bucket) {
  if (bucket.buffer.defined()) return;
  const DividedBucket& place = division_.buckets()[static_cast<std::size_t>(bucket.grads.index)];
  const std::int64_t elements = place.chunk * group_->size();
  bucket.buffer = releasable_tensor(elements, place.dtype, place.device, MemoryKind::gradients);
  bucket.grads.gradients = bucket.buffer;
  std::int64_t at = 0;
  const auto fill_gap = [&](std::int64_t end) {
    if (end > at) bucket.buffer.narrow(0, at, end - at).zero_();
  };
  for (const int i : bucket.parameters) {
    Parameter& p = parameters_[static_cast<std::size_t>(i)];
    fill_gap(division_.offset(i));
    p.view = part_of(bucket.buffer, division_.offset(i), p.tensor.sizes(), strides_in_bucket(p.tensor));
    at = division_.offset(i) + p.tensor.numel();
  }
  fill_gap(elements);
}

// Moves grad() of `p` to its place in the bucket, and frees it. A parameter without a gradient counts as
// zeros, which are written when the bucket is posted: the bucket need not exist before.
void Reducer::copy_in_divided(Parameter& p) {
  const NoGradGuard no_grad;
  const Tensor grad = p.tensor.grad();
  const bool part = is_part(p, grad);
  p.adds = part || (p.has_part && grad.defined());
  p.has_part = false;
  if (!grad.defined() || part) return;
  open(buckets_[static_cast<std::size_t>(p.bucket)]);
  p.view.copy_(grad);
  p.filled = true;
  if (p.used) p.tensor.set_grad({});
}

void Reducer::post_divided(Bucket& bucket) {
  open(bucket);
  bool adds = false;
  for (const int i : bucket.parameters) {
    Parameter& p = parameters_[static_cast<std::size_t>(i)];
    if (!p.filled) p.view.zero_();
    p.view = {};
    adds = adds || p.adds;
  }
  const DividedBucket& place = division_.buckets()[static_cast<std::size_t>(bucket.grads.index)];
  if (!bucket.parts.defined()) bucket.parts = empty({place.chunk}, {place.dtype, place.device});
  bucket.received = adds ? empty({place.chunk}, {place.dtype, place.device}) : bucket.parts;
  tag_memory(bucket.parts, MemoryKind::gradients);
  tag_memory(bucket.received, MemoryKind::gradients);
  if (comm_hook) start_hook(bucket);
  else
    bucket.in_flight = {
        group_->reduce_scatter(bucket.received, bucket.buffer, options_.reduce, bucket.grads.name)};
  if (bucket.flags.numel() > 0)
    bucket.flags_work = group_->all_reduce(bucket.flags, ReduceOp::mean, bucket.grads.name + " flags");
}

// Takes this rank's part of a bucket that is reduced, and frees the bucket.
void Reducer::receive_parts(Bucket& bucket) {
  const NoGradGuard no_grad;
  const int rank = group_->rank();
  const std::int64_t chunk = bucket.parts.numel();
  if (comm_hook) bucket.received.copy_(bucket.grads.gradients.narrow(0, chunk * rank, chunk));
  if (mean_factor != 1) bucket.received.mul_(mean_factor);
  bucket.in_flight.finish = {};
  bucket.buffer.storage()->release_memory();
  bucket.grads.gradients = bucket.buffer = {};
  const bool in_place = bucket.received.is_same(bucket.parts);
  for (const int i : bucket.parameters) {
    Parameter& p = parameters_[static_cast<std::size_t>(i)];
    if (!used_by_a_rank(p)) continue;
    const ElementRange range = division_.part(i, rank);
    if (!in_place && range.count > 0) {
      const Tensor mean =
          part_of(bucket.received, division_.offset(i) + range.begin - chunk * rank, {range.count}, {1});
      if (p.adds) part_view(i).add_(mean);
      else part_view(i).copy_(mean);
    }
    if (p.used) set_part_as_gradient(p);
  }
  bucket.received = {};
}

void Reducer::set_part_as_gradient(Parameter& p) {
  p.tensor.set_grad(tapestry::detail::make_tensor(p.no_memory, p.tensor.dtype(), p.tensor.sizes(),
                                                  strides_in_bucket(p.tensor), 0));
}

// Moves the parts to the chunks of a new order, one bucket at a time. All ranks call it.
void Reducer::move_parts(std::vector<Bucket> old, const Division& old_division) {
  const NoGradGuard no_grad;
  const int rank = group_->rank();
  for (std::size_t k = 0; k < old.size(); ++k) {
    if (!old[k].parts.defined()) continue;
    const DividedBucket& from = old_division.buckets()[k];
    const Tensor all = empty({from.chunk * group_->size()}, {from.dtype, from.device});
    group_->all_gather(all, old[k].parts, "gradients in the learned order").wait();
    old[k].parts = {};
    for (const int i : from.parameters) {
      Bucket& to = buckets_[static_cast<std::size_t>(division_.bucket_of(i))];
      const DividedBucket& place = division_.buckets()[static_cast<std::size_t>(division_.bucket_of(i))];
      if (!to.parts.defined()) to.parts = empty({place.chunk}, {place.dtype, place.device});
      const ElementRange range = division_.part(i, rank);
      if (range.count > 0)
        part_view(i).copy_(part_of(all, old_division.offset(i) + range.begin, {range.count}, {1}));
    }
  }
}

Tensor Reducer::part(const Storage& storage) {
  const auto found = parameter_of_.find(&storage);
  check(found != parameter_of_.end(), "[ZeroRedundancyOptimizer] this gradient is not divided any more; ",
        "read grad() again");
  return part_view(found->second);
}

std::string Reducer::why_released(const Storage& storage) const {
  const auto found = parameter_of_.find(&storage);
  const std::string name = found == parameter_of_.end()
                               ? "a parameter"
                               : parameters_[static_cast<std::size_t>(found->second)].name;
  return "it is the gradient of " + name +
         ", which ZeroRedundancyOptimizer with stage 2 divides among the ranks. Clear it with zero_grad() "
         "without set_to_none = false, clip it with nn::clip_grad_norm_, and choose stage 1 to read it";
}

void Reducer::refill(Storage& storage) {
  fail<AutogradError>("[backward] a saved tensor cannot be read: ", why_released(storage));
}

void Reducer::sum_over_ranks(const Tensor& values) {
  check(!some_joined,
        "[join] the norm of gradients that ZeroRedundancyOptimizer with stage 2 divides is collective, and "
        "some ranks have joined, so they do not compute it; choose stage 1");
  group_->all_reduce(values, ReduceOp::sum, "norms of gradients").wait();
}

}  // namespace tapestry::distributed
