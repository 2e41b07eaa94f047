#include "tapestry/distributed/pipeline/internal/rank_messages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "tapestry/core/context.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/core/internal/sched_slice.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/error.h"

namespace tapestry::distributed {
namespace {

constexpr std::uint32_t kMagic = 0x54504750;  // "TPGP" in ASCII

// Channels-last tensors are sent in their memory order, with the channels as the last dimension.
Tensor as_stored(const Tensor& t, bool channels_last) { return channels_last ? t.permute({0, 2, 3, 1}) : t; }

// A placement as a byte. sharded(d) is kShardedByte + d, since sharded is the last kind.
constexpr std::uint8_t kShardedByte = static_cast<std::uint8_t>(Placement::Kind::sharded) + 1;
std::uint8_t byte_of(const std::optional<Placement>& p) {
  if (!p) return 0;
  return static_cast<std::uint8_t>(static_cast<int>(p->kind()) + 1 +
                                   (p->is(Placement::Kind::sharded) ? p->dim() : 0));
}
std::optional<Placement> placement_of_byte(std::uint8_t byte) {
  if (byte == 0) return {};
  if (byte >= kShardedByte) return Placement::sharded(byte - kShardedByte);
  for (const Placement p :
       {Placement::invariant(), Placement::replicated(), Placement::varying(), Placement::partial()})
    if (byte_of(p) == byte) return p;
  return {};
}

}  // namespace

static_assert(std::is_trivially_copyable_v<MessageHeader>);

std::string MessageId::str() const {
  return concat({"the ", kind == Kind::outputs ? "outputs" : "gradients", " of micro-batch ", micro_batch,
                 " in pass ", pass});
}

void MessageHeader::check_count(MessageId::Kind kind, std::size_t tensors) {
  const std::size_t most = kMaxMessageTensors - (kind == MessageId::Kind::outputs);
  check(tensors <= most, "[Pipeline] ", tensors,
        " tensors from one stage to the next, but ranks exchange at most ", most,
        "; join some with cat or stack");
}

MessageHeader::MessageHeader(const MessageId& id, const Message& message, std::uint64_t rng_offset)
    : magic_(kMagic),
      micro_batch_(id.micro_batch),
      pass_(id.pass),
      rng_offset_(rng_offset),
      kind_(static_cast<std::uint8_t>(id.kind)),
      count_(static_cast<std::uint8_t>(message.tensors.size())) {
  const std::vector<Tensor>& tensors = message.tensors;
  check_count(id.kind, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (!t.defined()) continue;
    Entry& entry = entries_[i];
    entry.defined = 1;
    entry.dtype = static_cast<std::uint8_t>(t.dtype());
    entry.ndim = static_cast<std::uint8_t>(t.dim());
    entry.requires_grad = !message.requires_grad.empty() && message.requires_grad[i];
    entry.channels_last = t.memory_format() == MemoryFormat::channels_last;
    std::copy(t.sizes().begin(), t.sizes().end(), entry.sizes);
    if (!message.placements.empty())
      std::transform(message.placements[i].begin(), message.placements[i].end(), entry.placements, byte_of);
  }
}

MessageHeader::MessageHeader(const Tensor& bytes) { std::memcpy(this, bytes.raw_data(), sizeof *this); }

Tensor MessageHeader::bytes() const {
  const Tensor copy = empty_bytes();
  std::memcpy(copy.raw_data(), this, sizeof *this);
  return copy;
}

Tensor MessageHeader::empty_bytes() {
  return empty({static_cast<std::int64_t>(sizeof(MessageHeader))}, {DType::u8, kCPU});
}

MessageId MessageHeader::id() const { return {static_cast<MessageId::Kind>(kind_), micro_batch_, pass_}; }

void MessageHeader::check_matches(const MessageId& expected, int peer) const {
  bool sound = magic_ == kMagic && count_ <= kMaxMessageTensors && kind_ <= 1;
  for (int i = 0; i < (sound ? count_ : 0); ++i) {
    const Entry& e = entries_[i];
    sound = sound && e.dtype < kNumDTypes && e.ndim <= kMaxDims && (!e.channels_last || e.ndim == 4) &&
            (!e.requires_grad || is_floating(static_cast<DType>(e.dtype)));
    for (const std::uint8_t byte : e.placements)
      sound = sound && byte < kShardedByte + std::max<int>(e.ndim, 1);
    // The number of elements that the remaining dimensions may have so that the size in bytes fits into
    // std::int64_t. Dtypes have at most 8 bytes.
    std::int64_t room = std::numeric_limits<std::int64_t>::max() / 8;
    for (int d = 0; sound && d < e.ndim; ++d) {
      sound = e.sizes[d] >= 0 && (e.sizes[d] == 0 || e.sizes[d] <= room);
      if (sound && e.sizes[d] > 0) room /= e.sizes[d];
    }
  }
  check<DistributedError>(sound, "[Pipeline] rank ", peer, " sent an invalid header instead of ",
                          expected.str(), "; run the same program on all ranks");
  check<DistributedError>(id() == expected, "[Pipeline] rank ", peer, " sent ", id().str(), " instead of ",
                          expected.str(), "; make the same calls on all ranks");
}

Message MessageHeader::allocate_message(Device device) const {
  Message message{std::vector<Tensor>(count_), std::vector<bool>(count_)};
  message.placements.assign(count_, std::vector<std::optional<Placement>>(kMaxAxes));
  for (std::size_t i = 0; i < count_; ++i) {
    const Entry& e = entries_[i];
    if (!e.defined) continue;
    message.tensors[i] = empty(Shape(e.sizes, e.ndim), {static_cast<DType>(e.dtype), device},
                               e.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
    message.requires_grad[i] = e.requires_grad;
    std::transform(std::begin(e.placements), std::end(e.placements), message.placements[i].begin(),
                   placement_of_byte);
  }
  return message;
}

void MessageSender::wait_for_first() {
  for (const Work& work : sent_.front()) work.wait();
  sent_.pop_front();
}

void MessageSender::send(const MessageId& id, const Message& message, std::uint64_t rng_offset) {
  const NoGradGuard no_grad;
  const Tensor header = MessageHeader(id, message, rng_offset).bytes();
  const std::string what = id.str();
  std::vector<Work> works{group_.send(header, peer_, tag_, "header of " + what)};
  for (const Tensor& t : message.tensors) {
    if (!t.defined()) continue;
    const bool channels_last = t.memory_format() == MemoryFormat::channels_last;
    works.push_back(group_.send(as_stored(t.detach(), channels_last), peer_, tag_, what));
    bytes_ += static_cast<std::int64_t>(t.nbytes());
  }
  sent_.push_back(std::move(works));
  while (sent_.size() > kMaxQueuedMessages + 1) wait_for_first();
}

void MessageSender::finish() {
  while (!sent_.empty()) wait_for_first();
}

MessageReceiver::MessageReceiver(ProcessGroup& group, int peer, std::uint32_t tag, Device device,
                                 std::vector<MessageId> expected)
    : group_(group), peer_(peer), tag_(tag), device_(device), expected_(std::move(expected)) {
  if (expected_.empty()) return;
  thread_ = detail::start_thread("pipeline", [this, context = current_context()] {
    const ContextGuard guard(context);
    const NoGradGuard no_grad;
    const ThreadShare share(1);
    const SchedSliceGuard short_slices;
    receive_all();
  });
}

MessageReceiver::~MessageReceiver() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MessageReceiver::receive_all() {
  try {
    for (const MessageId& id : expected_) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || messages_.size() < kMaxQueuedMessages; });
        if (closing_) return;
      }
      IncomingMessage next = receive(id);
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(next));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

MessageReceiver::IncomingMessage MessageReceiver::receive(const MessageId& id) {
  const std::string what = id.str();
  const Tensor bytes = MessageHeader::empty_bytes();
  group_.recv(bytes, peer_, tag_, "header of " + what).wait();
  const MessageHeader header(bytes);
  header.check_matches(id, peer_);
  IncomingMessage incoming{header.allocate_message(device_), header.rng_offset(), {}};
  for (const Tensor& t : incoming.message.tensors) {
    if (!t.defined()) continue;
    const bool channels_last = t.memory_format() == MemoryFormat::channels_last;
    incoming.works.push_back(group_.recv(as_stored(t, channels_last), peer_, tag_, what));
  }
  return incoming;
}

Message MessageReceiver::take() {
  IncomingMessage next;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !messages_.empty() || error_; });
    if (messages_.empty()) std::rethrow_exception(error_);
    next = std::move(messages_.front());
    messages_.pop_front();
  }
  changed_.notify_all();
  for (const Work& work : next.works) work.wait();
  for (const Tensor& t : next.message.tensors)
    if (t.defined()) bytes_ += static_cast<std::int64_t>(t.nbytes());
  rng_offset_ = next.rng_offset;
  return std::move(next.message);
}

}  // namespace tapestry::distributed
