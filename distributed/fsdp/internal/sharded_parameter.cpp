#include "tapestry/distributed/fsdp/internal/sharded_parameter.h"

#include <algorithm>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/pinned.h"
#include "tapestry/distributed/fsdp/internal/sharded_unit.h"

namespace tapestry::distributed {
namespace {

// The source of storages whose ShardedParameter does not exist any more. Graphs may outlive it.
struct Destroyed final : StorageSource {
  void refill(Storage& storage) override { fail<AutogradError>("[fully_shard] ", why_released(storage)); }
  std::string why_released(const Storage&) const override {
    return "it is a sharded parameter whose module was destroyed; keep the module until backward has run";
  }
};
Destroyed& destroyed() {
  static Destroyed& source = *new Destroyed;  // never destroyed: storages may be static
  return source;
}

Tensor flat(const Tensor& t, std::int64_t numel) {
  return detail::raw_view(t, {numel}, {1}, t.storage_offset());
}

}  // namespace

class ShardedParameter::Ranks final : public nn::RankGroup {
 public:
  explicit Ranks(const ShardedParameter& parameter) : parameter_(parameter) {}
  int size() const override { return parameter_.shard_ranks(); }
  int rank(int replica) const override { return parameter_.group(replica).rank(); }
  void sum(int replica, const Tensor& values) const override { parameter_.sum_over_ranks(replica, values); }
  const void* id(int replica) const override { return &parameter_.group(replica); }

 private:
  const ShardedParameter& parameter_;  // has the cut that has this object
};

namespace {

// The cuts that the slot has, and then that of its rows.
std::vector<nn::Cut> with_rows(const nn::Parameter& slot, std::shared_ptr<const nn::RankGroup> ranks) {
  std::vector<nn::Cut> cuts = slot.layout() ? slot.layout()->cuts() : std::vector<nn::Cut>();
  cuts.push_back({std::move(ranks), 0});
  return cuts;
}

}  // namespace

ShardedParameter::ShardedParameter(std::string name_, const nn::Parameter& slot,
                                   const std::vector<std::shared_ptr<ProcessGroup>>& groups,
                                   const std::vector<Device>& devices, bool offload)
    : Layout(slot.layout() ? slot.layout()->whole_sizes() : slot.replica(0).sizes(),
             with_rows(slot, std::make_shared<Ranks>(*this)),
             slot.layout() ? slot.layout()->cuts().size() : 0),
      name(std::move(name_)),
      offload_(offload),
      groups_(groups) {
  const Tensor first = slot.replica(0);
  sizes_ = first.sizes();
  strides_ = first.memory_format() == MemoryFormat::channels_last ? channels_last_strides(sizes_)
                                                                  : contiguous_strides(sizes_);
  const std::int64_t num_rows = sizes_.empty() ? 1 : sizes_[0];
  row_numel_ = num_rows == 0 ? 0 : sizes_.numel() / num_rows;
  rows_per_rank_ = (num_rows + shard_ranks() - 1) / shard_ranks();

  const NoGradGuard no_grad;
  for (int i = 0; i < static_cast<int>(groups.size()); ++i) {
    const Tensor whole = slot.replica(devices.empty() ? i : 0);
    const Device device = devices.empty() ? whole.device() : devices[static_cast<std::size_t>(i)];
    const nn::Region mine = own_rows(i);
    Replica r;
    r.device = device;
    r.padded = empty_shard(device, whole.dtype());
    r.padded.zero_();
    r.shard = detail::raw_view(r.padded, mine.sizes, row_strides(), 0);
    if (r.shard.numel() > 0) r.shard.copy_(mine.of(whole.detach()));
    r.shard.set_requires_grad(whole.requires_grad());
    if (ranks() > 1) r.shard.storage()->set_source(&shard_memory_);
    if (whole.grad().defined()) r.shard.set_grad(mine.of(whole.grad()).clone().to(r.shard.device()));
    replicas_.push_back(std::move(r));
  }
}

ShardedParameter::~ShardedParameter() {
  for (const Replica& r : replicas_) {
    if (r.storage) r.storage->set_source(&destroyed());
    r.shard.storage()->set_source(nullptr);
  }
}

// The memory of a shard and its padding.
Tensor ShardedParameter::empty_shard(Device device, DType dtype) const {
  return offload_ && device.is_cuda() ? empty_pinned({padded_numel()}, dtype)
                                      : empty({padded_numel()}, {dtype, device});
}

nn::Region ShardedParameter::own_rows(int replica) const {
  return nn::Region::whole(sizes_).part(0, group(replica).rank(), shard_ranks());
}

std::vector<Tensor> ShardedParameter::leaves(int replica) const {
  const Replica& r = at(replica);
  return r.full.defined() ? std::vector<Tensor>{r.full, r.shard} : std::vector<Tensor>{r.shard};
}

std::string ShardedParameter::path() const { return unit ? unit->path_of(name) : name; }

std::size_t ShardedParameter::full_bytes(int replica) const {
  return static_cast<std::size_t>(sizes_.numel()) * dtype_size(full_dtype(replica));
}
std::size_t ShardedParameter::shard_bytes(int replica) const {
  return static_cast<std::size_t>(padded_numel()) * dtype_size(at(replica).shard.dtype());
}

DType ShardedParameter::full_dtype(int replica) const {
  const DType own = at(replica).shard.dtype();
  return unit && is_floating(own) ? unit->options.mixed_precision.param_dtype.value_or(own) : own;
}
DType ShardedParameter::reduce_dtype(int replica) const {
  const DType own = full_dtype(replica);
  return unit && is_floating(own) ? unit->options.mixed_precision.reduce_dtype.value_or(own) : own;
}

const Tensor& ShardedParameter::read(int replica) const {
  // A checkpoint may recompute a part of the unit's forward, without the scope of the unit's module.
  if (unit && autograd::recomputing()) {
    unit->refill(replica);
    return at(replica).full;
  }
  if (unit && unit->is_computing()) [[unlikely]]
    fail("[fully_shard] ", path(),
         " is sharded now, but forward needs the whole tensor, which exists only while its unit ",
         unit->label(),
         " computes; make the smallest module that contains all users of the parameter a unit, or keep this "
         "unit full with unshard()");
  return at(replica).shard;
}

void ShardedParameter::set_stored(int replica, const Tensor& tensor) {
  const Shape expected = own_rows(replica).sizes;
  check(tensor.sizes() == expected, "[fully_shard] the new tensor of ", path(), " has shape ", tensor.sizes(),
        "; rank ", group(replica).rank(), " stores a shard of shape ", expected);
  Replica& r = at(replica);
  r.shard.storage()->set_source(nullptr);
  r.shard = tensor;
  if (!r.padded.defined() || r.padded.storage() != tensor.storage()) r.padded = {};
  if (!is_offloaded(replica) || tensor.device().is_cuda()) r.device = tensor.device();
  if (is_offloaded(replica) &&
      tensor.device().is_cuda()) {  // moved to this GPU, so the shard stays in the host
    const NoGradGuard no_grad;
    r.padded = empty_shard(r.device, tensor.dtype());
    r.padded.zero_();
    r.shard = detail::raw_view(r.padded, expected, row_strides(), 0);
    if (tensor.numel() > 0) r.shard.copy_(tensor.detach());
    r.shard.set_requires_grad(tensor.requires_grad());
    if (tensor.grad().defined()) r.shard.set_grad(tensor.grad().cpu());
  }
  mark_shard(r);
}

// Makes every recorded operation on the shard throw, and what needs the whole tensor refuse it.
void ShardedParameter::mark_shard(Replica& r) {
  if (ranks() > 1) r.shard.storage()->set_source(&shard_memory_);
  if (!r.shard.requires_grad()) return;
  auto& leaf = static_cast<autograd::LeafNode&>(*autograd::record_of(r.shard)->fn);
  const std::string text =
      concat({path(),
              " is sharded now, and an operation on one rank's rows would be wrong: the whole tensor exists "
              "only in forward of its unit ",
              unit ? unit->label() : "", ". Call the module, or keep the unit full with unshard()"});
  if (!leaf.not_recordable || *leaf.not_recordable != text)
    leaf.not_recordable = std::make_shared<const std::string>(text);
}

void ShardedParameter::sum_over_ranks(int replica, const Tensor& values) const {
  const Tensor there = is_offloaded(replica) ? values.to(device(replica)) : values;
  groups_[static_cast<std::size_t>(replica)]
      ->all_reduce(there, ReduceOp::sum, "fsdp sum of " + path())
      .wait();
  if (!there.is_same(values)) values.detach().copy_(there);
}

void ShardedParameter::gather_full(int replica, const Tensor& to) {
  const NoGradGuard no_grad;
  keep_changes(replica);
  const Tensor& own = at(replica).shard;
  const Tensor gathered = empty({shard_ranks() * padded_numel()}, {own.dtype(), device(replica)});
  groups_[static_cast<std::size_t>(replica)]
      ->all_gather(gathered, padded_shard(replica).to(device(replica)), "fsdp gather of " + path())
      .wait();
  to.detach().copy_(detail::raw_view(gathered, sizes_, strides_, 0).reshape(to.sizes()));
}

void ShardedParameter::refill(Storage& storage) {
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i].storage.get() != &storage) continue;
    if (!unit) destroyed().refill(storage);
    return unit->refill(static_cast<int>(i));
  }
  fail<AutogradError>("[fully_shard] backward needs ", path(),
                      " as it was before the module moved to another device or dtype; run backward first");
}

std::string ShardedParameter::why_released(const Storage& storage) const {
  if (!unit) return destroyed().why_released(storage);
  return concat({path(), " is sharded now: the whole tensor exists only in forward and backward of its unit ",
                 unit->label(), "; use it there, or keep the unit full with unshard()"});
}

void ShardedParameter::make_full(Replica& r, DType dtype) {
  r.storage = Storage::releasable(
      r.device, static_cast<std::size_t>(shard_ranks() * padded_numel()) * dtype_size(dtype), this);
  r.full = detail::make_tensor(r.storage, dtype, sizes_, strides_, 0);
  r.hooked = false;
  r.gathered_from = nullptr;
}

void ShardedParameter::prepare(int replica) {
  Replica& r = at(replica);
  const DType dtype = full_dtype(replica);
  if (!r.storage || r.full.dtype() != dtype || !(r.full.device() == r.device)) make_full(r, dtype);
  const bool trained = r.shard.requires_grad();
  if (r.full.requires_grad() != trained) r.full.set_requires_grad(trained);
  mark_shard(r);
  if (!trained || r.hooked) return;
  r.hooked = true;
  const std::weak_ptr<ShardedParameter> self = weak_from_this();
  // The graph may outlive the module. Then nobody would reduce the gradient.
  r.full.register_hook([self, text = path()](const Tensor&) -> Tensor {
    const auto parameter = self.lock();
    check<AutogradError>(parameter && parameter->unit, "[fully_shard] the gradient of ", text,
                         " arrived after its module was destroyed; keep the module until backward has run");
    return {};
  });
  r.full.register_post_accumulate_grad_hook([self, replica](const Tensor&) {
    if (const auto parameter = self.lock(); parameter && parameter->unit)
      parameter->unit->on_gradient(replica, *parameter);
  });
}

// The shard with its padding, in one dimension.
Tensor ShardedParameter::padded_shard(int replica) const {
  const Replica& r = at(replica);
  const Tensor shard = r.shard.detach();
  const bool in_order =
      shard.sizes().size() == 0 || shard.numel() == 0 ||
      (strides_ == contiguous_strides(sizes_) ? shard.is_contiguous()
                                              : shard.is_contiguous(MemoryFormat::channels_last));
  if (in_order && r.padded.defined()) return r.padded;
  if (in_order && shard.numel() == padded_numel()) return flat(shard, padded_numel());
  const NoGradGuard no_grad;
  const Tensor padded = zeros({padded_numel()}, {shard.dtype(), shard.device()});
  if (shard.numel() > 0) detail::raw_view(padded, shard.sizes(), row_strides(), 0).copy_(shard);
  return padded;
}

Tensor ShardedParameter::gather_input(int replica) const {
  const NoGradGuard no_grad;
  return padded_shard(replica).to(full_dtype(replica));
}

Tensor ShardedParameter::upload(int replica, const Stream& copies) const {
  const Tensor host = padded_shard(replica);
  const StreamGuard guard(copies);
  const Tensor there = empty(host.sizes(), {host.dtype(), copies.device()});
  tag_memory(there, MemoryKind::parameters);
  if (host.numel() > 0) copy_async(there, host, copies);
  const NoGradGuard no_grad;
  return there.to(full_dtype(replica));
}

Tensor ShardedParameter::acquire(int replica) {
  Replica& r = at(replica);
  if (is_stale(replica)) r.storage->bump_version();
  r.gathered_from = r.shard.impl();
  r.gathered_version = r.shard.version();
  r.full_version = r.storage->version();
  r.storage->acquire();
  tag_memory(r.full, MemoryKind::parameters);
  return detail::make_tensor(Storage::part(r.storage, 0, r.storage->bytes()), r.full.dtype(),
                             {shard_ranks() * padded_numel()}, {1}, 0);
}

bool ShardedParameter::has_changes(int replica) const {
  const Replica& r = at(replica);
  return r.storage && !r.storage->is_released() && r.storage->version() != r.full_version;
}

void ShardedParameter::keep_changes(int replica) {
  if (replicas_.size() == 1 || !has_changes(0)) return keep_own_changes(replica);
  const NoGradGuard no_grad;
  for (std::size_t r = 1; r < replicas_.size(); ++r)
    if (replicas_[r].storage && !replicas_[r].storage->is_released())
      replicas_[r].full.detach().copy_(replicas_[0].full.detach());
  for (std::size_t r = 0; r < replicas_.size(); ++r) keep_own_changes(static_cast<int>(r));
}

void ShardedParameter::keep_own_changes(int replica) {
  Replica& r = at(replica);
  if (!has_changes(replica)) return;
  const NoGradGuard no_grad;
  const nn::Region mine = own_rows(replica);
  const Tensor own = detail::raw_view(r.full, mine.sizes, row_strides(), mine.first[0] * row_numel_);
  if (mine.sizes[0] > 0 && own.dtype() == r.shard.dtype()) {
    r.shard.detach().copy_(own);
  } else if (mine.sizes[0] >
             0) {  // elements that did not change keep the digits that the full tensor has not
    const Tensor shard = r.shard.detach(), there = shard.to(own.device());
    shard.copy_(where(own.detach() == there.to(own.dtype()), there, own.detach().to(there.dtype())));
  }
  r.gathered_version = r.shard.version();
  r.full_version = r.storage->version();
}

void ShardedParameter::release(int replica) {
  keep_own_changes(replica);
  if (at(replica).storage) at(replica).storage->release_memory();
}

void ShardedParameter::discard(int replica) noexcept {
  if (at(replica).storage) at(replica).storage->release_memory();
}

void ShardedParameter::drop_gradient(int replica) noexcept {
  if (at(replica).full.defined()) at(replica).full.set_grad({});
  at(replica).unreduced = {};
}

void ShardedParameter::keep_unreduced(int replica) {
  Replica& r = at(replica);
  const Tensor gradient = r.full.grad();
  if (!gradient.defined() || gradient.dtype() == reduce_dtype(replica)) return;
  const NoGradGuard no_grad;
  if (r.unreduced.defined()) r.unreduced.add_(gradient);
  else r.unreduced = gradient.to(reduce_dtype(replica));
  tag_memory(r.unreduced, MemoryKind::gradients);
  r.full.set_grad({});
}

Tensor ShardedParameter::take_gradient(int replica) {
  Replica& r = at(replica);
  const NoGradGuard no_grad;
  const std::int64_t numel = shard_ranks() * padded_numel();
  const DType dtype = reduce_dtype(replica);
  if (r.unreduced.defined()) keep_unreduced(replica);
  const Tensor gradient = r.unreduced.defined() ? std::exchange(r.unreduced, {}) : r.full.grad();
  r.full.set_grad({});
  if (!gradient.defined()) return zeros({numel}, {dtype, r.full.device()});
  const bool in_order = strides_ == contiguous_strides(sizes_)
                            ? gradient.is_contiguous()
                            : gradient.is_contiguous(MemoryFormat::channels_last);
  if (in_order && gradient.numel() == numel && gradient.dtype() == dtype) return flat(gradient, numel);
  const Tensor padded = empty({numel}, {dtype, gradient.device()});
  tag_memory(padded, MemoryKind::gradients);
  detail::raw_view(padded, sizes_, strides_, 0).copy_(gradient);
  padded.narrow(0, sizes_.numel(), numel - sizes_.numel()).zero_();
  return padded;
}

void ShardedParameter::deliver(int replica, Tensor reduced) {
  const Replica& r = at(replica);
  Tensor gradient =
      detail::make_tensor(reduced.storage(), reduced.dtype(), r.shard.sizes(), row_strides(), 0);
  reduced = {};
  if (gradient.dtype() != r.shard.dtype()) {
    const NoGradGuard no_grad;
    gradient = gradient.to(r.shard.dtype());
    tag_memory(gradient, MemoryKind::gradients);
  }
  autograd::deliver_to_leaf(r.shard, std::move(gradient));
}

}  // namespace tapestry::distributed
