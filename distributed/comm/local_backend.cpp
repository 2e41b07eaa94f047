// The backend for ranks that are threads of one process. When the last rank arrives, all ranks continue, and
// each does a part of the work directly between the ranks' buffers.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/internal/blocks.h"

namespace tapestry::distributed {
namespace {

enum class Kind : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  gather,
  scatter,
  all_to_all,
  barrier
};

// The arguments of one rank's call.
struct Call {
  Kind kind = Kind::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::int64_t count = 0;  // elements, or bytes if nothing is reduced
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  // The tensors of all_gather, reduce_scatter and all_to_all, which have no `count`, `in` and `out`. They
  // belong to the caller, which stays in meet() until all ranks have finished.
  std::span<const GatherPart> gathers{};
  std::span<const ScatterPart> scatters{};
  std::span<const ExchangePart> exchanges{};

  bool matches(const Call& o) const {
    return kind == o.kind && dtype == o.dtype && op == o.op && root == o.root && count == o.count &&
           std::equal(gathers.begin(), gathers.end(), o.gathers.begin(), o.gathers.end(),
                      [](const GatherPart& a, const GatherPart& b) {
                        return a.bytes == b.bytes && a.rows == b.rows;
                      }) &&
           std::equal(scatters.begin(), scatters.end(), o.scatters.begin(), o.scatters.end(),
                      [](const ScatterPart& a, const ScatterPart& b) {
                        return a.count == b.count && a.dtype == b.dtype && a.rows == b.rows;
                      });
  }
};
using Calls = std::vector<Call>;

// Up to this size the last rank to arrive does all the work, because waking another thread would take longer.
constexpr std::size_t kAtOnce = 16 << 10;
constexpr std::int64_t kBlockBytes =
    8 << 10;  // the bytes of one step, which stay in the L1 cache while the values of all ranks are added

struct Range {
  std::int64_t begin, end;
};
// The part of [0, count) that a rank works on. Parts begin at multiples of 64, so that ranks do not share
// cache lines.
Range slice(std::int64_t count, int rank, int size) {
  const std::int64_t each = (count / size + 64) / 64 * 64;
  return {std::min(count, rank * each), std::min(count, (rank + 1) * each)};
}

// Reduces the elements of `range` of the `in` of all ranks, in order of rank. Calls store(p, begin, n) with
// each block of the result: `begin` and `n` are in bytes.
template <class Store>
void reduce_range(const Calls& calls, Range range, const Store& store) {
  const DType dtype = calls[0].dtype;
  const auto width = static_cast<std::int64_t>(dtype_size(dtype));
  std::vector<const void*> values(calls.size());
  alignas(64) std::byte block[kBlockBytes];
  for (std::int64_t begin = range.begin; begin < range.end; begin += kBlockBytes / width) {
    const std::int64_t n = std::min(kBlockBytes / width, range.end - begin), at = begin * width;
    for (std::size_t r = 0; r < calls.size(); ++r) values[r] = calls[r].in + at;
    reduce_in_order(block, values.data(), static_cast<int>(calls.size()), n, dtype, calls[0].op);
    store(block, at, static_cast<std::size_t>(n * width));
  }
}

// Adds straight from the tensors of all ranks into this rank's outputs. No other rank reads the places that
// are written, also if an output is this rank's block of its input. Short rows are packed first, kPacked
// bytes of each rank at a time, because each call of reduce_in_order() has a cost of its own. The pieces of
// three ranks stay in an L1 cache of 32 KiB with the result, and those of more ranks in the L2 cache.
void scatter_to(const Calls& calls, int rank) {
  constexpr std::size_t kPacked = kBlockBytes, kLong = kPacked / 8;
  const std::span<const ScatterPart> parts = calls[static_cast<std::size_t>(rank)].scatters;
  std::vector<const void*> values(calls.size());
  std::vector<std::byte> packed;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::size_t bytes = parts[p].bytes(), row = bytes / parts[p].rows;
    const bool packs = parts[p].rows > 1 && row < kLong;
    const std::size_t piece = packs ? kPacked : row;
    if (packs) packed.resize(calls.size() * piece);
    for (std::size_t begin = 0; begin < bytes; begin += piece) {
      const std::size_t n = std::min(piece, bytes - begin);
      for (std::size_t r = 0; r < calls.size(); ++r) {
        const ScatterPart& theirs = calls[r].scatters[p];
        const std::byte* const block =
            static_cast<const std::byte*>(theirs.in) + static_cast<std::size_t>(rank) * theirs.pitch;
        values[r] = packs ? packed.data() + r * piece : block + begin / row * theirs.row_pitch;
        if (packs) Rows::of(theirs).read(packed.data() + r * piece, block, begin, n);
      }
      reduce_in_order(static_cast<std::byte*>(parts[p].out) + begin, values.data(),
                      static_cast<int>(calls.size()),
                      static_cast<std::int64_t>(n / dtype_size(parts[p].dtype)), parts[p].dtype, calls[0].op);
    }
  }
}

// Copies straight from the tensors of all ranks into this rank's outputs.
void gather_to(const Calls& calls, int rank) {
  const std::span<const GatherPart> parts = calls[static_cast<std::size_t>(rank)].gathers;
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (std::size_t r = 0; r < calls.size(); ++r) {
      std::byte* const to = static_cast<std::byte*>(parts[p].out) + r * parts[p].pitch;
      const void* const from = calls[r].gathers[p].in;
      if (to != from) Rows::of(parts[p]).write(to, from, 0, parts[p].bytes);
    }
}

void exchange_to(const Calls& calls, int rank) {
  const auto me = static_cast<std::size_t>(rank);
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const ExchangePart &mine = calls[me].exchanges[r], &theirs = calls[r].exchanges[me];
    copy_block(out_rows(mine), mine.out, in_rows(theirs), theirs.in, mine.out_bytes);
  }
}

// Describes the first part of an all_to_all whose ends differ, or returns an empty text.
std::string unequal_ends(const Calls& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (std::size_t j = 0; j < calls[i].exchanges.size(); ++j) {
      const std::size_t sent = calls[i].exchanges[j].in_bytes, expected = calls[j].exchanges[i].out_bytes;
      if (sent != expected)
        return concat({"[local] rank ", i, " sends ", sent, " bytes to rank ", j, ", which expects ",
                       expected, "; exchange the sizes first"});
    }
  return {};
}

// Does the part of `rank` in a collective. The parts can run in any order.
void do_part(const Calls& calls, int rank) {
  const int size = static_cast<int>(calls.size());
  const Call& mine = calls[static_cast<std::size_t>(rank)];
  const Call& root = calls[static_cast<std::size_t>(mine.root)];
  const auto bytes = static_cast<std::size_t>(mine.count);
  if (mine.kind == Kind::all_gather) return gather_to(calls, rank);
  if (mine.kind == Kind::reduce_scatter) return scatter_to(calls, rank);
  if (mine.kind == Kind::all_to_all) return exchange_to(calls, rank);
  if (bytes == 0) return;
  const auto block = [bytes](auto* p, int i) { return p + bytes * static_cast<std::size_t>(i); };
  switch (mine.kind) {
    case Kind::all_reduce:  // no other rank accesses this slice of any buffer
      return reduce_range(calls, slice(mine.count, rank, size), [&](const std::byte* p, auto at, auto n) {
        for (const Call& call : calls) std::memcpy(call.out + at, p, n);
      });
    case Kind::reduce:
      return reduce_range(calls, slice(mine.count, rank, size),
                          [&](const std::byte* p, auto at, auto n) { std::memcpy(root.out + at, p, n); });
    case Kind::broadcast:
      if (rank != mine.root) std::memcpy(mine.out, root.in, bytes);
      return;
    case Kind::gather:
      return void(std::memcpy(block(root.out, rank), mine.in, bytes));
    case Kind::scatter:
      return void(std::memcpy(mine.out, block(root.in, rank), bytes));
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::all_to_all:
    case Kind::barrier:
      return;
  }
}

// The state that the ranks of one group share.
class Room {
 public:
  explicit Room(int size)
      : calls_(static_cast<std::size_t>(size)),
        here_(static_cast<std::size_t>(size)),
        gone_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(calls_.size()); }

  void meet(int rank, const Call& call, std::size_t bytes, Deadline deadline) {
    const auto me = static_cast<std::size_t>(rank);
    std::unique_lock lock(mutex_);
    check_alive(lock);
    calls_[me] = call;
    here_[me] = Place::here;
    const std::uint64_t round = round_;
    if (std::count(here_.begin(), here_.end(), Place::here) == size()) {
      check_fit(lock);
      const bool at_once = bytes <= kAtOnce;
      if (at_once)
        for (int r = 0; r < size(); ++r) do_part(calls_, r);
      std::fill(here_.begin(), here_.end(), Place::away);
      busy_ = at_once ? 0 : size();
      ++round_;
      changed_.notify_all();
    } else {
      await_others(lock, me, round, deadline);
    }
    if (busy_ == 0) return;
    // From here on, ranks only copy and never wait for one another, so all of them finish. Each rank waits at
    // the end until all have finished, because they read one another's buffers.
    lock.unlock();
    do_part(calls_, rank);
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
    else changed_.wait(lock, [this] { return busy_ == 0; });
  }

  void send(int from, int to, std::uint32_t tag, const void* data, std::size_t bytes) {
    const auto* const p = static_cast<const std::byte*>(data);
    std::vector<std::byte> message(p, p + bytes);
    const std::lock_guard lock(mutex_);
    check<DistributedError>(why_.empty(), why_);
    check_here(to);
    messages_[{from, to, tag}].push_back(std::move(message));
    changed_.notify_all();
  }

  void recv(int from, int to, std::uint32_t tag, void* data, std::size_t bytes, Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto& queue = messages_[{from, to, tag}];
    const bool awake = changed_.wait_until(lock, deadline, [&] {
      return !queue.empty() || !why_.empty() || gone_[static_cast<std::size_t>(from)];
    });
    check<DistributedError>(why_.empty(), why_);
    if (queue.empty()) check_here(from);
    check<TimeoutError>(awake, "[local] no message came from rank ", from, " with tag ", tag,
                        " before the deadline; check that it sends one");
    const std::vector<std::byte> message = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    check<DistributedError>(message.size() == bytes, "[local] rank ", from, " sent ", message.size(),
                            " bytes, but rank ", to, " expects ", bytes, "; send and receive the same size");
    if (bytes > 0) std::memcpy(data, message.data(), bytes);
  }

  void abort(const std::string& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "[local] aborted" : why;
    changed_.notify_all();
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

  // Returns the shared state of a sub-group. The nth call of each member with the same ranks returns the same
  // object.
  std::shared_ptr<Room> part(int rank, const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex_);
    check<DistributedError>(why_.empty(), why_);
    const int nth = splits_[{rank, ranks}]++;
    auto& [room, takers] = parts_[{nth, ranks}];
    if (!room) room = std::make_shared<Room>(static_cast<int>(ranks.size()));
    std::shared_ptr<Room> found = room;
    if (++takers == found->size()) parts_.erase({nth, ranks});
    return found;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Place : char { away, here, gave_up };

  void check_alive(Lock&) const { check<DistributedError>(why_.empty(), why_); }
  void check_here(int rank) const {
    check<DistributedError>(!gone_[static_cast<std::size_t>(rank)], "[local] rank ", rank,
                            " has left: its process group was destroyed");
  }

  void check_fit(Lock&) {
    for (std::size_t r = 1; r < calls_.size(); ++r)
      if (!calls_[r].matches(calls_[0]) && why_.empty())
        why_ = concat(
            {"[local] rank ", r, " called a different collective than rank 0, or with different sizes"});
    if (why_.empty()) why_ = unequal_ends(calls_);
    if (why_.empty()) return;
    changed_.notify_all();
    fail<DistributedError>(why_);
  }

  // Waits until all ranks have made this call. If it throws, the other ranks do not access this rank's
  // buffers afterwards.
  void await_others(Lock& lock, std::size_t me, std::uint64_t round, Deadline deadline) {
    int missing = -1;
    const auto somebody_left = [&] {
      for (std::size_t r = 0; r < gone_.size(); ++r)
        if (gone_[r] && here_[r] != Place::here) return missing = static_cast<int>(r), true;
      return false;
    };
    const bool awake = changed_.wait_until(
        lock, deadline, [&] { return round_ != round || !why_.empty() || somebody_left(); });
    if (round_ != round) return;
    here_[me] = Place::gave_up;
    check<DistributedError>(why_.empty(), why_);
    if (awake) check_here(missing);
    std::string
        absent;  // this rank's timeout does not fail the others, because each rank has its own deadline
    for (std::size_t r = 0; r < here_.size(); ++r)
      if (here_[r] == Place::away) absent += (absent.empty() ? "" : ", ") + std::to_string(r);
    fail<TimeoutError>("[local] rank ", absent, " did not come before the deadline");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string why_;  // the reason of an abort; empty while the group works
  Calls calls_;
  std::vector<Place> here_;
  std::vector<char> gone_;
  std::uint64_t round_ = 0;
  int busy_ = 0;
  std::map<std::tuple<int, int, std::uint32_t>, std::deque<std::vector<std::byte>>> messages_;
  std::map<std::pair<int, std::vector<int>>, int> splits_;
  std::map<std::pair<int, std::vector<int>>, std::pair<std::shared_ptr<Room>, int>> parts_;
};

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}
  ~LocalBackend() override { room_->leave(rank_); }

  const char* name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return room_->size(); }

  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) override {
    reduction(Kind::all_reduce, data, count, dtype, op, 0, deadline);
  }
  void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline) override {
    reduction(Kind::reduce, data, count, dtype, op, root, deadline);
  }
  using Backend::all_gather;
  using Backend::all_to_all;
  using Backend::reduce_scatter;
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, Deadline deadline) override {
    std::size_t bytes = 0;
    for (const ScatterPart& part : parts) bytes += part.bytes();
    room_->meet(rank_, {.kind = Kind::reduce_scatter, .op = op, .scatters = parts}, bytes, deadline);
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
    move(Kind::broadcast, data, data, bytes, root, deadline);
  }
  void all_gather(std::span<const GatherPart> parts, Deadline deadline) override {
    std::size_t bytes = 0;
    for (const GatherPart& part : parts) bytes += part.bytes;
    room_->meet(rank_, {.kind = Kind::all_gather, .gathers = parts}, bytes, deadline);
  }
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    move(Kind::gather, in, out, bytes, root, deadline);
  }
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    move(Kind::scatter, in, out, bytes, root, deadline);
  }
  void all_to_all(std::span<const ExchangePart> parts, Deadline deadline) override {
    std::size_t bytes = 0;
    for (const ExchangePart& part : parts) bytes += part.out_bytes;
    room_->meet(rank_, {.kind = Kind::all_to_all, .exchanges = parts}, bytes, deadline);
  }
  void barrier(Deadline deadline) override { move(Kind::barrier, nullptr, nullptr, 0, 0, deadline); }

  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline) override {
    room_->send(rank_, peer, tag, data, bytes);
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    room_->recv(peer, rank_, tag, data, bytes, deadline);
  }

  void abort(const std::string& why) noexcept override { room_->abort(why); }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>&,
                                 Deadline) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank_);
    check(at != ranks.end(), "[local] rank ", rank_,
          " is not in the new group; only its members may call split()");
    return std::make_shared<LocalBackend>(room_->part(rank_, ranks), static_cast<int>(at - ranks.begin()));
  }

 private:
  void reduction(Kind kind, void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
                 Deadline deadline) {
    const Call call{.kind = kind,
                    .dtype = dtype,
                    .op = op,
                    .root = root,
                    .count = count,
                    .in = static_cast<std::byte*>(data),
                    .out = static_cast<std::byte*>(data)};
    room_->meet(rank_, call, static_cast<std::size_t>(count) * dtype_size(dtype), deadline);
  }
  void move(Kind kind, const void* in, void* out, std::size_t bytes, int root, Deadline deadline) {
    const Call call{.kind = kind,
                    .root = root,
                    .count = static_cast<std::int64_t>(bytes),
                    .in = static_cast<const std::byte*>(in),
                    .out = static_cast<std::byte*>(out)};
    room_->meet(rank_, call, bytes, deadline);
  }

  const std::shared_ptr<Room> room_;
  const int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Backend>> local_backends(int size) {
  check(size >= 1, "[local_backends] size is ", size, "; pass at least 1");
  const auto room = std::make_shared<Room>(size);
  std::vector<std::shared_ptr<Backend>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_shared<LocalBackend>(room, r));
  return ranks;
}

}  // namespace tapestry::distributed
