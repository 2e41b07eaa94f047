#include "tapestry/distributed/pipeline/internal/rank_parcels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "tapestry/core/context.h"
#include "tapestry/core/internal/sched_slice.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/error.h"

namespace tapestry::distributed {
namespace {

constexpr std::uint32_t kMagic = 0x54504750;  // "TPGP"

// Channels-last tensors travel as what they are in memory, with the channels as the last dimension.
Tensor as_stored(const Tensor& t, bool channels_last) { return channels_last ? t.permute({0, 2, 3, 1}) : t; }

}  // namespace

static_assert(std::is_trivially_copyable_v<ParcelLabel>);

std::string ParcelName::str() const {
  return concat({"the ", kind == Kind::outputs ? "outputs" : "gradients", " of micro-batch ", micro_batch,
                 " in pass ", pass});
}

void ParcelLabel::check_room(ParcelName::Kind kind, std::size_t tensors) {
  const std::size_t most = kParcelTensors - (kind == ParcelName::Kind::outputs);
  check(tensors <= most, "[Pipeline] ", tensors, " tensors from one stage to the next; at most ", most,
        " go from rank to rank: join some with cat or stack");
}

ParcelLabel::ParcelLabel(const ParcelName& name, const Parcel& parcel, std::uint64_t drawn)
    : magic_(kMagic),
      micro_batch_(name.micro_batch),
      pass_(name.pass),
      drawn_(drawn),
      kind_(static_cast<std::uint8_t>(name.kind)),
      count_(static_cast<std::uint8_t>(parcel.tensors.size())) {
  const std::vector<Tensor>& tensors = parcel.tensors;
  check_room(name.kind, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (!t.defined()) continue;
    Entry& entry = entries_[i];
    entry.defined = 1;
    entry.dtype = static_cast<std::uint8_t>(t.dtype());
    entry.ndim = static_cast<std::uint8_t>(t.dim());
    entry.wants_gradient = !parcel.wants_gradient.empty() && parcel.wants_gradient[i];
    entry.channels_last = t.memory_format() == MemoryFormat::channels_last;
    std::copy(t.sizes().begin(), t.sizes().end(), entry.sizes);
  }
}

ParcelLabel::ParcelLabel(const Tensor& bytes) { std::memcpy(this, bytes.raw_data(), sizeof *this); }

Tensor ParcelLabel::bytes() const {
  const Tensor copy = empty_bytes();
  std::memcpy(copy.raw_data(), this, sizeof *this);
  return copy;
}

Tensor ParcelLabel::empty_bytes() {
  return empty({static_cast<std::int64_t>(sizeof(ParcelLabel))}, {DType::u8, kCPU});
}

ParcelName ParcelLabel::name() const { return {static_cast<ParcelName::Kind>(kind_), micro_batch_, pass_}; }

void ParcelLabel::check_is(const ParcelName& expected, int peer) const {
  bool sound = magic_ == kMagic && count_ <= kParcelTensors && kind_ <= 1;
  for (int i = 0; i < (sound ? count_ : 0); ++i) {
    const Entry& e = entries_[i];
    sound = sound && e.dtype < kNumDTypes && e.ndim <= kMaxDims && (!e.channels_last || e.ndim == 4) &&
            (!e.wants_gradient || is_floating(static_cast<DType>(e.dtype)));
    std::int64_t room = std::numeric_limits<std::int64_t>::max() / 8;  // elements of at most 8 bytes
    for (int d = 0; sound && d < e.ndim; ++d) {
      sound = e.sizes[d] >= 0 && (e.sizes[d] == 0 || e.sizes[d] <= room);
      if (sound && e.sizes[d] > 0) room /= e.sizes[d];
    }
  }
  check<DistributedError>(sound, "[Pipeline] rank ", peer, " sent bytes that describe no tensors where ",
                          expected.str(), " should come; run the same program on all ranks");
  check<DistributedError>(name() == expected, "[Pipeline] rank ", peer, " sent ", name().str(), ", and here ",
                          expected.str(), " should come; make the same calls on all ranks");
}

Parcel ParcelLabel::make_parcel(Device device) const {
  Parcel parcel{std::vector<Tensor>(count_), std::vector<bool>(count_)};
  for (std::size_t i = 0; i < count_; ++i) {
    const Entry& e = entries_[i];
    if (!e.defined) continue;
    parcel.tensors[i] = empty(Shape(e.sizes, e.ndim), {static_cast<DType>(e.dtype), device},
                              e.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
    parcel.wants_gradient[i] = e.wants_gradient;
  }
  return parcel;
}

void ParcelSender::wait_for_first() {
  for (const Work& work : sent_.front()) work.wait();
  sent_.pop_front();
}

void ParcelSender::send(const ParcelName& name, const Parcel& parcel, std::uint64_t drawn) {
  const NoGradGuard no_grad;
  const Tensor label = ParcelLabel(name, parcel, drawn).bytes();
  const std::string what = name.str();
  std::vector<Work> works{group_.send(label, peer_, tag_, "label of " + what)};
  for (const Tensor& t : parcel.tensors) {
    if (!t.defined()) continue;
    const bool channels_last = t.memory_format() == MemoryFormat::channels_last;
    works.push_back(group_.send(as_stored(t.detach(), channels_last), peer_, tag_, what));
  }
  sent_.push_back(std::move(works));
  while (sent_.size() > kParcelsAhead + 1) wait_for_first();
}

void ParcelSender::finish() {
  while (!sent_.empty()) wait_for_first();
}

ParcelReceiver::ParcelReceiver(ProcessGroup& group, int peer, std::uint32_t tag, Device device,
                               std::vector<ParcelName> expected)
    : group_(group), peer_(peer), tag_(tag), device_(device), expected_(std::move(expected)) {
  if (expected_.empty()) return;
  thread_ = std::thread([this, context = current_context()] {
    const ContextGuard guard(context);
    const NoGradGuard no_grad;
    const ThreadShare share(1);
    const SchedSliceGuard at_once;
    receive_all();
  });
}

ParcelReceiver::~ParcelReceiver() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ParcelReceiver::receive_all() {
  try {
    for (const ParcelName& name : expected_) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || parcels_.size() < kParcelsAhead; });
        if (closing_) return;
      }
      OnTheWay next = receive(name);
      const std::lock_guard lock(mutex_);
      parcels_.push_back(std::move(next));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

ParcelReceiver::OnTheWay ParcelReceiver::receive(const ParcelName& name) {
  const std::string what = name.str();
  const Tensor bytes = ParcelLabel::empty_bytes();
  group_.recv(bytes, peer_, tag_, "label of " + what).wait();
  const ParcelLabel label(bytes);
  label.check_is(name, peer_);
  OnTheWay coming{label.make_parcel(device_), label.drawn(), {}};
  for (const Tensor& t : coming.parcel.tensors) {
    if (!t.defined()) continue;
    const bool channels_last = t.memory_format() == MemoryFormat::channels_last;
    coming.works.push_back(group_.recv(as_stored(t, channels_last), peer_, tag_, what));
  }
  return coming;
}

Parcel ParcelReceiver::take() {
  OnTheWay next;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !parcels_.empty() || error_; });
    if (parcels_.empty()) std::rethrow_exception(error_);
    next = std::move(parcels_.front());
    parcels_.pop_front();
  }
  changed_.notify_all();
  for (const Work& work : next.works) work.wait();
  for (const Tensor& t : next.parcel.tensors)
    if (t.defined()) bytes_ += static_cast<std::int64_t>(t.nbytes());
  drawn_ = next.drawn;
  return std::move(next.parcel);
}

}  // namespace tapestry::distributed
