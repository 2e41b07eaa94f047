#include "tapestry/distributed/comm/fake_group.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/internal/blocks.h"

namespace tapestry::distributed {
namespace {

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}
std::byte* at(void* p, std::size_t bytes) { return static_cast<std::byte*>(p) + bytes; }
const std::byte* at(const void* p, std::size_t bytes) { return static_cast<const std::byte*>(p) + bytes; }

class FakeBackend final : public Backend {
 public:
  FakeBackend(int rank, int size) : rank_(rank), size_(size) {}

  const char* name() const override { return kFakeBackend; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(void*, std::int64_t, DType, ReduceOp, Deadline) override {}
  void reduce(void*, std::int64_t, DType, ReduceOp, int, Deadline) override {}
  using Backend::all_gather;
  using Backend::reduce_scatter;
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp, Deadline) override {
    for (const ScatterPart& part : parts)
      Rows::of(part).read(part.out, at(part.in, static_cast<std::size_t>(rank_) * part.pitch), 0,
                          part.bytes());
  }
  void broadcast(void*, std::size_t, int, Deadline) override {}
  void all_gather(std::span<const GatherPart> parts, Deadline) override {
    for (const GatherPart& part : parts)
      for (int r = 0; r < size_; ++r)
        Rows::of(part).write(at(part.out, static_cast<std::size_t>(r) * part.pitch), part.in, 0, part.bytes);
  }
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline) override {
    for (int r = 0; r < size_ && root == rank_; ++r)
      copy(at(out, static_cast<std::size_t>(r) * bytes), in, bytes);
  }
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline) override {
    if (root == rank_) copy(out, at(in, static_cast<std::size_t>(rank_) * bytes), bytes);
    else if (bytes > 0) std::memset(out, 0, bytes);
  }
  // What a rank expects of another one is what it sends to it, as far as that goes, and zeros.
  using Backend::all_to_all;
  void all_to_all(std::span<const ExchangePart> parts, Deadline) override {
    for (const ExchangePart& part : parts) {
      std::vector<std::byte> bytes(std::max(part.in_bytes, part.out_bytes));
      in_rows(part).read(bytes.data(), part.in, 0, part.in_bytes);
      out_rows(part).write(part.out, bytes.data(), 0, part.out_bytes);
    }
  }
  void barrier(Deadline) override {}

  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline) override {
    std::vector<std::byte> message(bytes);
    copy(message.data(), data, bytes);
    const std::lock_guard lock(mutex_);
    Tagged& own = tags_[tag];
    check_peer("send", own.receiver, peer, tag);
    own.sent.push_back(std::move(message));
    changed_.notify_all();
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    check_peer("recv", tags_[tag].sender, peer, tag);
    std::deque<std::vector<std::byte>>& queue = tags_[tag].sent;
    changed_.wait_until(lock, deadline, [&] { return !queue.empty() || !why_.empty(); });
    check<DistributedError>(why_.empty(), why_);
    check<TimeoutError>(!queue.empty(), "[recv] nothing was sent with tag ", tag,
                        " before the deadline; a rank without peers receives what it sends itself");
    const std::vector<std::byte> message = std::move(queue.front());
    queue.pop_front();
    check<DistributedError>(message.size() == bytes, "[recv] ", message.size(), " bytes were sent with tag ",
                            tag, ", but ", bytes, " are expected; send and receive the same size");
    copy(data, message.data(), bytes);
  }

  void abort(const std::string& why) noexcept override {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "[abort] the group was aborted" : why;
    changed_.notify_all();
  }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>&,
                                 Deadline) override {
    const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
    return std::make_shared<FakeBackend>(static_cast<int>(mine - ranks.begin()),
                                         static_cast<int>(ranks.size()));
  }

 private:
  // What was sent with a tag and not received, and the only peers that messages with the tag may have, or -1.
  struct Tagged {
    std::deque<std::vector<std::byte>> sent;
    int receiver = -1, sender = -1;
  };

  // Each peer has its own thread, which sends a header and then data. Those of two peers would mix in one
  // queue, and nothing says which of them a peer that does not exist would have sent.
  static void check_peer(const char* op, int& only, int peer, std::uint32_t tag) {
    if (only < 0) only = peer;
    check<DistributedError>(only == peer, "[", op, "] messages of rank ", only, " and of rank ", peer,
                            " have the tag ", tag,
                            "; a rank without peers receives what it sends itself, and tells messages apart "
                            "by their tags alone: give each peer a tag of its own");
  }

  const int rank_, size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Tagged> tags_;
  std::string why_;  // the reason of an abort
};

}  // namespace

std::shared_ptr<ProcessGroup> fake_process_group(int rank, int size, const GroupOptions& options) {
  check(size >= 1 && rank >= 0 && rank < size, "[fake_process_group] rank ", rank, " of ", size,
        "; pass a rank of 0 to size - 1");
  return make_process_group(std::make_shared<FakeBackend>(rank, size), memory_store(), options, "fake world");
}

}  // namespace tapestry::distributed
