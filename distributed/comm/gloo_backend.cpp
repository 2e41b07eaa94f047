#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/gloo_transport.h"
#include "tapestry/distributed/comm/internal/host_exchange.h"

namespace tapestry::distributed {

#if defined(TAPESTRY_HAS_GLOO)
namespace {

using Operation = GlooOperation;
using Transfers = std::vector<GlooTransfer*>;

// Up to this size every rank sends all of its data to all ranks, which takes one step instead of two.
constexpr std::size_t kSmall = 16 << 10;
// The first collective of at least this size makes the shared memory of the ranks of one host. From then on
// all collectives use it, also smaller ones.
constexpr std::size_t kShared = 4 << 10;
// Large blocks are sent in pieces of this size, so that one piece is reduced while the next one arrives.
constexpr std::size_t kPiece = 512 << 10;
// How many received pieces of each peer may wait to be reduced.
constexpr std::size_t kDepth = 2;

constexpr std::uint64_t kCollective = std::uint64_t{1} << 62, kPointToPoint = std::uint64_t{1} << 61;

template <class T>
auto at(T* data, int i, std::size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(data) + static_cast<std::size_t>(i) * bytes;
}

/// Watches the connections of the ranks that share memory: a rank whose connection is lost has exited.
class ConnectionWatch final : public PeerWatch {
 public:
  ConnectionWatch(GlooTransport& transport, Deadline deadline) : transport_(transport), deadline_(deadline) {}
  bool hopeless(int peer) override { return Clock::now() >= deadline_ || transport_.gone(peer); }
  void fail(int peer) override { transport_.fail_for(peer, !transport_.gone(peer)); }

 private:
  GlooTransport& transport_;
  const Deadline deadline_;
};

/// Why a rank cannot use the shared segment; empty if it can.
struct Refusal {
  char why[256] = "";
};
/// Rank 0's address of the segment, and its own refusal.
struct Offer {
  SharedMemoryAddress address;
  Refusal refusal;
};

/// Every collective is direct: each rank communicates with every other rank, in at most two steps. Reductions
/// add in order of rank for all sizes, so the results have the same bits as those of the local backend.
class GlooBackend final : public Backend {
 public:
  GlooBackend(Store& store, int rank, int size, Deadline deadline, bool shared_memory,
              const GlooTransport* like)
      : transport_(store, rank, size, deadline, like),
        rank_(rank),
        size_(size),
        shared_memory_(shared_memory) {}

  const char* name() const override { return "gloo"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) override {
    reduce_to(kEveryone, data, count, dtype, op, deadline);
  }
  void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline) override {
    reduce_to(root, data, count, dtype, op, deadline);
  }
  void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, ReduceOp op,
                      Deadline deadline) override;
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
  void all_gather(const void* in, void* out, std::size_t bytes, Deadline deadline) override;
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override;
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override;
  void all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline) override;
  void barrier(Deadline deadline) override;
  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override;
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override;
  void abort(const std::string& why) noexcept override { transport_.abort(why); }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>& store,
                                 Deadline deadline) override;

 private:
  static constexpr int kEveryone = -1;

  /// A block of elements, in bytes, and its division into pieces.
  struct Block {
    std::size_t begin = 0, size = 0, piece = kPiece;
    std::size_t pieces() const { return (size + piece - 1) / piece; }
    std::size_t offset(std::size_t i) const { return i * piece; }
    std::size_t length(std::size_t i) const { return std::min(piece, size - offset(i)); }
    void post_to(GlooTransfer& transfer) const {
      for (std::size_t i = 0; i < pieces(); ++i) transfer.post(offset(i), length(i));
    }
  };
  Block block(std::int64_t count, DType dtype, int i, int parts) const {
    const std::size_t element = dtype_size(dtype);
    const auto edge = [&](int k) { return static_cast<std::size_t>(count * k / parts) * element; };
    return {.begin = edge(i), .size = edge(i + 1) - edge(i)};
  }

  /// The shared memory for a collective of `bytes` bytes, or null if the ranks exchange messages. The first
  /// large collective makes it.
  HostExchange* shared(std::size_t bytes, Deadline deadline) {
    if (!agreed_ && bytes >= kShared && transport_.one_host() && size_ > 1) agree(deadline);
    return exchange_.get();
  }
  void agree(Deadline deadline);

  Operation begin(Deadline deadline) {
    ++sequence_;
    return Operation(transport_, deadline);
  }
  /// The Gloo slot of this collective. `step` distinguishes the messages from one rank to another in the same
  /// collective.
  std::uint64_t slot(int step) const { return kCollective | sequence_ << 2 | static_cast<unsigned>(step); }
  std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return scratch_.data();
  }

  void reduce_to(int root, void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline);
  void reduce_small(Operation& operation, int root, std::byte* data, std::int64_t count, DType dtype,
                    ReduceOp op);
  template <class Ready>
  void reduce_block(Operation& operation, const std::byte* in, std::byte* out, std::int64_t count,
                    DType dtype, ReduceOp op, const Ready& ready);

  GlooTransport transport_;
  const int rank_, size_;
  const bool shared_memory_;
  bool agreed_ = false;  // true after all ranks have agreed to use `exchange_`, or not to use it
  std::unique_ptr<HostExchange> exchange_;
  std::uint64_t sequence_ = 0;
  std::vector<std::byte> scratch_;  // grows to a few pieces per rank, and is never shrunk
};

// Makes the shared segment, in the first collective that is large enough. Rank 0 offers a segment, the other
// ranks open it, and each rank tells all others whether it succeeded. The segment is used only if all ranks
// succeeded. Ranks that have it switched off take part too, because the others cannot know.
void GlooBackend::agree(Deadline deadline) {
  agreed_ = true;
  std::shared_ptr<SharedMemory> memory;
  Offer offer;
  Refusal refusal;
  const auto refuse = [&](const std::string& why) { why.copy(refusal.why, sizeof refusal.why - 1); };
  const auto attempt = [&](const auto& make) {
    try {
      if (shared_memory_) memory = make();
      else refuse("shared memory is switched off (TAPESTRY_SHARED_MEMORY)");
    } catch (const std::exception& e) {
      refuse(e.what());
    }
  };
  if (rank_ == 0) {
    attempt([&] {
      check<DistributedError>(size_ <= HostExchange::kMostRanks, "[shared_memory] ", size_,
                              " ranks are more than the supported ", HostExchange::kMostRanks);
      return std::make_shared<SharedMemory>(HostExchange::bytes_for(size_));
    });
    if (memory) offer.address = memory->address();
    offer.refusal = refusal;
  }
  broadcast(&offer, sizeof offer, 0, deadline);
  if (rank_ != 0 && !offer.refusal.why[0])
    attempt([&] { return std::make_shared<SharedMemory>(offer.address); });
  std::vector<Refusal> refusals(static_cast<std::size_t>(size_));
  all_gather(&refusal, refusals.data(), sizeof refusal, deadline);
  const auto refused =
      std::find_if(refusals.begin(), refusals.end(), [](const Refusal& r) { return r.why[0]; });
  if (refused == refusals.end()) {
    memory->close();
    exchange_ = std::make_unique<HostExchange>(std::move(memory), rank_, size_);
    return;
  }
  static std::atomic<bool> said = false;
  if (rank_ != 0 || !shared_memory_ || said.exchange(true)) return;
  std::fprintf(
      stderr,
      "tapestry: the ranks of this host communicate over sockets, which is slower than shared memory; "
      "rank %td: %s\n",
      refused - refusals.begin(), refused->why);
}

void GlooBackend::reduce_small(Operation& operation, int root, std::byte* data, std::int64_t count,
                               DType dtype, ReduceOp op) {
  const std::size_t bytes = static_cast<std::size_t>(count) * dtype_size(dtype);
  std::byte* const space = scratch(bytes * static_cast<std::size_t>(size_));
  const bool receives = root == kEveryone || root == rank_;
  std::vector<const void*> values(static_cast<std::size_t>(size_), data);
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    if (receives) {
      values[static_cast<std::size_t>(i)] = at(space, i, bytes);
      operation.receive(at(space, i, bytes), bytes, i, slot(0)).post_all();
    }
    if (root == kEveryone || root == i) operation.send(data, bytes, i, slot(0)).post_all();
  }
  operation.wait_all();
  if (receives) reduce_in_order(data, values.data(), size_, count, dtype, op);
}

// Reduces this rank's block of all ranks' `in` into `out`. Calls ready(offset, length) after each piece.
template <class Ready>
void GlooBackend::reduce_block(Operation& operation, const std::byte* in, std::byte* out, std::int64_t count,
                               DType dtype, ReduceOp op, const Ready& ready) {
  const Block mine = block(count, dtype, rank_, size_);
  const std::size_t stride = std::min(mine.piece, mine.size);
  std::byte* const space = scratch(static_cast<std::size_t>(size_) * kDepth * stride);
  const auto place = [&](int i, std::size_t piece) {
    return space + (static_cast<std::size_t>(i) * kDepth + piece % kDepth) * stride;
  };
  Transfers receives;
  const auto post = [&](std::size_t piece) {
    if (piece >= mine.pieces()) return;
    for (GlooTransfer* transfer : receives) transfer->post(piece % kDepth * stride, mine.length(piece));
  };
  for (int i = 0; i < size_; ++i) {
    if (i != rank_) receives.push_back(&operation.receive(place(i, 0), kDepth * stride, i, slot(0)));
  }
  for (std::size_t piece = 0; piece < kDepth; ++piece) post(piece);
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    const Block theirs = block(count, dtype, i, size_);
    theirs.post_to(operation.send(in + theirs.begin, theirs.size, i, slot(0)));
  }
  std::vector<const void*> values(static_cast<std::size_t>(size_));
  for (std::size_t piece = 0; piece < mine.pieces(); ++piece) {
    for (GlooTransfer* transfer : receives) transfer->wait();
    const std::size_t offset = mine.offset(piece), length = mine.length(piece);
    for (int i = 0; i < size_; ++i)
      values[static_cast<std::size_t>(i)] = i == rank_ ? in + mine.begin + offset : place(i, piece);
    reduce_in_order(out + offset, values.data(), size_, static_cast<std::int64_t>(length / dtype_size(dtype)),
                    dtype, op);
    post(piece + kDepth);
    ready(offset, length);
  }
}

void GlooBackend::reduce_to(int root, void* data, std::int64_t count, DType dtype, ReduceOp op,
                            Deadline deadline) {
  auto* const bytes = static_cast<std::byte*>(data);
  HostExchange* const host = shared(static_cast<std::size_t>(count) * dtype_size(dtype), deadline);
  Operation operation = begin(deadline);
  if (count == 0 || size_ == 1) return;
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->reduce(bytes, count, dtype, op, root, watch);
  }
  if (static_cast<std::size_t>(count) * dtype_size(dtype) <= kSmall)
    return reduce_small(operation, root, bytes, count, dtype, op);
  const Block mine = block(count, dtype, rank_, size_);
  Transfers sends;
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    if (root == kEveryone || root == i)
      sends.push_back(&operation.send(bytes + mine.begin, mine.size, i, slot(1)));
    if (root == kEveryone || root == rank_) {
      // Receives directly into `data`. This is safe, because rank i returns a piece only after it has
      // received the piece that was there.
      const Block theirs = block(count, dtype, i, size_);
      theirs.post_to(operation.receive(bytes + theirs.begin, theirs.size, i, slot(1)));
    }
  }
  reduce_block(operation, bytes, bytes + mine.begin, count, dtype, op,
               [&](std::size_t offset, std::size_t length) {
                 for (GlooTransfer* transfer : sends) transfer->post(offset, length);
               });
  operation.wait_all();
}

void GlooBackend::reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, ReduceOp op,
                                 Deadline deadline) {
  const std::size_t bytes = static_cast<std::size_t>(count) * dtype_size(dtype);
  HostExchange* const host = shared(bytes, deadline);
  Operation operation = begin(deadline);
  if (count == 0) return;
  if (size_ == 1) {
    std::memcpy(out, in, bytes);
    return;
  }
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->reduce_scatter(static_cast<const std::byte*>(in), static_cast<std::byte*>(out), count, dtype,
                                op, watch);
  }
  reduce_block(operation, static_cast<const std::byte*>(in), static_cast<std::byte*>(out), count * size_,
               dtype, op, [](std::size_t, std::size_t) {});
  operation.wait_all();
}

// The root of a large broadcast sends its data only once: each other rank receives a part, and forwards it to
// the rest.
void GlooBackend::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
  auto* const at = static_cast<std::byte*>(data);
  HostExchange* const host = shared(bytes, deadline);
  Operation operation = begin(deadline);
  if (bytes == 0 || size_ == 1) return;
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->broadcast(at, bytes, root, watch);
  }
  const bool in_parts = size_ > 2 && bytes > kSmall;
  // The part that rank i forwards.
  const auto part = [&](int i) {
    if (!in_parts) return Block{.begin = 0, .size = bytes};
    return block(static_cast<std::int64_t>(bytes), DType::u8, i < root ? i : i - 1, size_ - 1);
  };
  const auto receive = [&](const Block& block, int from, int step) -> GlooTransfer& {
    GlooTransfer& transfer = operation.receive(at + block.begin, block.size, from, slot(step));
    block.post_to(transfer);
    return transfer;
  };
  if (rank_ == root) {
    for (int i = 0; i < size_; ++i) {
      const Block theirs = part(i);
      if (i != root) theirs.post_to(operation.send(at + theirs.begin, theirs.size, i, slot(0)));
    }
  } else {
    const Block mine = part(rank_);
    GlooTransfer& from_root = receive(mine, root, 0);
    Transfers sends;
    for (int i = 0; in_parts && i < size_; ++i) {
      if (i == rank_ || i == root) continue;
      receive(part(i), i, 1);
      sends.push_back(&operation.send(at + mine.begin, mine.size, i, slot(1)));
    }
    for (std::size_t piece = 0; piece < mine.pieces(); ++piece) {
      from_root.wait();
      for (GlooTransfer* transfer : sends) transfer->post(mine.offset(piece), mine.length(piece));
    }
  }
  operation.wait_all();
}

void GlooBackend::all_gather(const void* in, void* out, std::size_t bytes, Deadline deadline) {
  HostExchange* const host = shared(bytes, deadline);
  Operation operation = begin(deadline);
  if (bytes == 0) return;
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->all_gather(static_cast<const std::byte*>(in), static_cast<std::byte*>(out), bytes, watch);
  }
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    operation.receive(at(out, i, bytes), bytes, i, slot(0)).post_all();
    operation.send(in, bytes, i, slot(0)).post_all();
  }
  std::memcpy(at(out, rank_, bytes), in, bytes);
  operation.wait_all();
}

void GlooBackend::gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) {
  Operation operation = begin(deadline);
  if (bytes == 0) return;
  if (rank_ != root) operation.send(in, bytes, root, slot(0)).post_all();
  for (int i = 0; rank_ == root && i < size_; ++i) {
    if (i == rank_) std::memcpy(at(out, i, bytes), in, bytes);
    else operation.receive(at(out, i, bytes), bytes, i, slot(0)).post_all();
  }
  operation.wait_all();
}

void GlooBackend::scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) {
  Operation operation = begin(deadline);
  if (bytes == 0) return;
  if (rank_ != root) operation.receive(out, bytes, root, slot(0)).post_all();
  for (int i = 0; rank_ == root && i < size_; ++i) {
    if (i == rank_) std::memcpy(out, at(in, i, bytes), bytes);
    else operation.send(at(in, i, bytes), bytes, i, slot(0)).post_all();
  }
  operation.wait_all();
}

void GlooBackend::all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline) {
  Operation operation = begin(deadline);
  if (bytes == 0) return;
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    operation.receive(at(out, i, bytes), bytes, i, slot(0)).post_all();
    operation.send(at(in, i, bytes), bytes, i, slot(0)).post_all();
  }
  std::memcpy(at(out, rank_, bytes), at(in, rank_, bytes), bytes);
  operation.wait_all();
}

void GlooBackend::barrier(Deadline deadline) {
  const char here = 0;
  std::vector<char> all(static_cast<std::size_t>(size_));
  all_gather(&here, all.data(), 1, deadline);
}

void GlooBackend::send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) {
  Operation operation(transport_, deadline);
  if (bytes == 0) return;
  operation.send(data, bytes, peer, kPointToPoint | tag).post_all();
  operation.wait_all();
}

void GlooBackend::recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) {
  Operation operation(transport_, deadline);
  if (bytes == 0) return;
  operation.receive(data, bytes, peer, kPointToPoint | tag).post_all();
  operation.wait_all();
}

std::shared_ptr<Backend> GlooBackend::split(const std::vector<int>& ranks,
                                            const std::shared_ptr<Store>& store, Deadline deadline) {
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  check<IndexError>(self != ranks.end(), "[split] rank ", rank_,
                    " is not in the new group; only its members may call split()");
  return std::make_shared<GlooBackend>(*store, static_cast<int>(self - ranks.begin()),
                                       static_cast<int>(ranks.size()), deadline, shared_memory_, &transport_);
}

}  // namespace

std::shared_ptr<Backend> gloo_backend(const std::shared_ptr<Store>& store, int rank, int size,
                                      Milliseconds timeout, bool shared_memory) {
  check<ValueError>(size >= 1 && rank >= 0 && rank < size, "[gloo] rank ", rank, " of ", size,
                    " is invalid; ranks count from 0 to size - 1");
  return std::make_shared<GlooBackend>(*store, rank, size, deadline_after(timeout),
                                       shared_memory && shared_memory_enabled(), nullptr);
}

#else

std::shared_ptr<Backend> gloo_backend(const std::shared_ptr<Store>&, int, int, Milliseconds, bool) {
  fail<DistributedError>(
      "[gloo] this library was built without Gloo; install libgloo-dev and build again, or use threads of "
      "one process (run_local_ranks)");
}

#endif

}  // namespace tapestry::distributed
