#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/internal/blocks.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/exchange_agreement.h"
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
// How much of the memory for packed tensors is kept for the next collective.
constexpr std::size_t kMostKept = 4 << 20;

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

/// True if a tensor is packed with others into one message. A tensor with short rows is packed too.
template <class Part>
bool is_packed(const Part& part, std::size_t bytes, std::size_t parts) {
  return part.rows > 1 ? bytes / part.rows <= kSmall : parts > 1 && bytes <= kSmall;
}

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
  using Backend::all_gather;
  using Backend::all_to_all;
  using Backend::reduce_scatter;
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, Deadline deadline) override;
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
  void all_gather(std::span<const GatherPart> parts, Deadline deadline) override;
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override;
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override;
  void all_to_all(std::span<const ExchangePart> parts, Deadline deadline) override;
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
  /// A tensor of which each rank reduces one block. The result of this rank's block goes to `out`.
  struct Divided {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    DType dtype = DType::u8;
    std::vector<Block> blocks{};  // by rank
  };
  Block block(std::int64_t count, DType dtype, int i, int parts) const {
    const std::size_t element = dtype_size(dtype);
    const auto edge = [&](int k) { return static_cast<std::size_t>(count * k / parts) * element; };
    return {.begin = edge(i), .size = edge(i + 1) - edge(i)};
  }

  /// The shared memory for a collective of `bytes` bytes, or null if the ranks exchange messages. The first
  /// large collective makes it.
  HostExchange* shared(std::size_t bytes, Deadline deadline) {
    if (!agreed_ && bytes >= kShared && transport_.one_host() && size_ > 1) {
      agreed_ = true;
      exchange_ = agree_on_exchange(*this, shared_memory_, deadline);
    }
    return exchange_.get();
  }

  Operation begin(Deadline deadline) {
    ++sequence_;
    return Operation(transport_, deadline);
  }
  /// The Gloo slot of this collective. `step` and the tensor's index `part` distinguish the messages from one
  /// rank to another in the same collective. end_parts() must follow if there are several parts.
  std::uint64_t slot(int step, std::size_t part = 0) const {
    return kCollective | (sequence_ + part) << 2 | static_cast<unsigned>(step);
  }
  void end_parts(std::size_t parts) { sequence_ += parts; }
  std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return scratch_.data();
  }
  std::byte* pack(std::size_t bytes) {
    if (packed_.size() < bytes) packed_.resize(bytes);
    return packed_.data();
  }
  void free_pack() {
    if (packed_.size() > kMostKept) packed_ = {};
  }

  void reduce_to(int root, void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline);
  void reduce_small(Operation& operation, int root, std::byte* data, std::int64_t count, DType dtype,
                    ReduceOp op);
  template <class Ready>
  void reduce_blocks(Operation& operation, const std::vector<Divided>& parts, ReduceOp op,
                     const Ready& ready);

  GlooTransport transport_;
  const int rank_, size_;
  const bool shared_memory_;
  bool agreed_ = false;  // true after all ranks have agreed to use `exchange_`, or not to use it
  std::unique_ptr<HostExchange> exchange_;
  std::uint64_t sequence_ = 0;
  std::vector<std::byte> scratch_;  // grows to a few pieces per rank, and is never shrunk
  std::vector<std::byte> packed_;   // small tensors of lists, and short rows, side by side
};

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

// Reduces this rank's blocks of all ranks' `in`. Calls ready(offset, length) after each piece of a block. A
// rank sends every other rank the block of that rank and nothing else, so it sends and receives as many bytes
// as in a ring, (size - 1) blocks, but in one step instead of size - 1, and it can add in order of rank. A
// ring would begin the sum of each block at another rank.
template <class Ready>
void GlooBackend::reduce_blocks(Operation& operation, const std::vector<Divided>& parts, ReduceOp op,
                                const Ready& ready) {
  struct Piece {
    std::size_t part, offset, length;
  };
  std::vector<Piece> pieces;
  std::size_t stride = 0;  // a multiple of the width of all dtypes
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Block& mine = parts[p].blocks[static_cast<std::size_t>(rank_)];
    for (std::size_t i = 0; i < mine.pieces(); ++i) pieces.push_back({p, mine.offset(i), mine.length(i)});
    stride = std::max(stride, (std::min(mine.piece, mine.size) + 63) / 64 * 64);
  }
  std::byte* const space = scratch(static_cast<std::size_t>(size_) * kDepth * stride);
  const auto place = [&](int i, std::size_t piece) {
    return space + (static_cast<std::size_t>(i) * kDepth + piece % kDepth) * stride;
  };
  std::vector<Transfers> receives(parts.size());
  const auto post = [&](std::size_t piece) {
    if (piece >= pieces.size()) return;
    for (GlooTransfer* transfer : receives[pieces[piece].part])
      transfer->post(piece % kDepth * stride, pieces[piece].length);
  };
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (int i = 0; i < size_; ++i)
      if (i != rank_) receives[p].push_back(&operation.receive(place(i, 0), kDepth * stride, i, slot(0, p)));
  for (std::size_t piece = 0; piece < kDepth; ++piece) post(piece);
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (int i = 0; i < size_; ++i) {
      if (i == rank_) continue;
      const Block& theirs = parts[p].blocks[static_cast<std::size_t>(i)];
      theirs.post_to(operation.send(parts[p].in + theirs.begin, theirs.size, i, slot(0, p)));
    }
  std::vector<const void*> values(static_cast<std::size_t>(size_));
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    const auto& [p, offset, length] = pieces[k];
    for (GlooTransfer* transfer : receives[p]) transfer->wait();
    const Divided& part = parts[p];
    const std::size_t begin = part.blocks[static_cast<std::size_t>(rank_)].begin;
    for (int i = 0; i < size_; ++i)
      values[static_cast<std::size_t>(i)] = i == rank_ ? part.in + begin + offset : place(i, k);
    reduce_in_order(part.out + offset, values.data(), size_,
                    static_cast<std::int64_t>(length / dtype_size(part.dtype)), part.dtype, op);
    post(k + kDepth);
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
  Divided all{.in = bytes, .out = bytes + mine.begin, .dtype = dtype};
  for (int i = 0; i < size_; ++i) all.blocks.push_back(block(count, dtype, i, size_));
  reduce_blocks(operation, {std::move(all)}, op, [&](std::size_t offset, std::size_t length) {
    for (GlooTransfer* transfer : sends) transfer->post(offset, length);
  });
  operation.wait_all();
}

void GlooBackend::reduce_scatter(std::span<const ScatterPart> tensors, ReduceOp op, Deadline deadline) {
  std::size_t bytes = 0;
  for (const ScatterPart& part : tensors) bytes += part.bytes();
  HostExchange* const host = shared(bytes, deadline);
  Operation operation = begin(deadline);
  if (bytes == 0) return;
  if (size_ == 1) {
    for (const ScatterPart& part : tensors)
      if (part.out != part.in) Rows::of(part).read(part.out, part.in, 0, part.bytes());
    return;
  }
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->reduce_scatter(tensors, op, watch);
  }
  // The small tensors of a dtype are packed, so that each rank sends one message for all of them: the packed
  // tensor has the blocks of all of them for rank 0, then those for rank 1, and so on. The result comes last.
  const std::vector<ScatterPart> parts = with_rows_apart(tensors, kSmall);
  const auto is_small = [&](const ScatterPart& part) {
    return is_packed(part, part.bytes(), tensors.size());
  };
  std::vector<std::size_t> small(kNumDTypes);  // by dtype, in bytes of one block
  std::size_t all_small = 0;
  for (const ScatterPart& part : parts)
    if (is_small(part)) small[static_cast<std::size_t>(part.dtype)] += part.bytes();
  for (std::size_t& length : small)
    all_small += (length * static_cast<std::size_t>(size_ + 1) + 63) / 64 * 64;
  std::vector<Divided> divided;
  std::byte* next = pack(all_small);
  const auto for_small = [&](std::size_t dtype, const auto& f) {
    std::size_t offset = 0;
    for (const ScatterPart& part : parts)
      if (is_small(part) && static_cast<std::size_t>(part.dtype) == dtype) {
        f(part, offset);
        offset += part.bytes();
      }
  };
  const auto blocks = [&](std::size_t length, std::size_t pitch) {
    std::vector<Block> all;
    for (int i = 0; i < size_; ++i)
      all.push_back({.begin = static_cast<std::size_t>(i) * pitch, .size = length});
    return all;
  };
  for (std::size_t dtype = 0; dtype < small.size(); ++dtype) {
    const std::size_t length = small[dtype];
    if (length == 0) continue;
    for_small(dtype, [&](const ScatterPart& part, std::size_t offset) {
      for (int i = 0; i < size_; ++i)
        Rows::of(part).read(at(next, i, length) + offset, at(part.in, i, part.pitch), 0, part.bytes());
    });
    divided.push_back({next, at(next, size_, length), static_cast<DType>(dtype), blocks(length, length)});
    next += (length * static_cast<std::size_t>(size_ + 1) + 63) / 64 * 64;
  }
  const std::size_t packs = divided.size();
  for (const ScatterPart& part : parts)
    if (!is_small(part))
      divided.push_back({static_cast<const std::byte*>(part.in), static_cast<std::byte*>(part.out),
                         part.dtype, blocks(part.bytes(), part.pitch)});
  reduce_blocks(operation, divided, op, [](std::size_t, std::size_t) {});
  operation.wait_all();
  end_parts(divided.size());
  for (std::size_t i = 0; i < packs; ++i)
    for_small(static_cast<std::size_t>(divided[i].dtype), [&](const ScatterPart& part, std::size_t offset) {
      std::memcpy(part.out, divided[i].out + offset, part.bytes());
    });
  free_pack();
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

void GlooBackend::all_gather(std::span<const GatherPart> tensors, Deadline deadline) {
  std::size_t bytes = 0;
  for (const GatherPart& part : tensors) bytes += part.bytes;
  HostExchange* const host = shared(bytes, deadline);
  Operation operation = begin(deadline);
  if (bytes == 0) return;
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->all_gather(tensors, watch);
  }
  // Small tensors are packed, so that each rank sends one message for all of them.
  const std::vector<GatherPart> parts = with_rows_apart(tensors, kSmall);
  const auto is_small = [&](const GatherPart& part) { return is_packed(part, part.bytes, tensors.size()); };
  std::size_t small = 0;
  for (const GatherPart& part : parts) small += is_small(part) ? part.bytes : 0;
  std::byte* const pack_of_all = pack(small * static_cast<std::size_t>(size_));
  const auto packed = [&](int i) { return at(pack_of_all, i, small); };
  const auto for_small = [&](const auto& f) {
    std::size_t offset = 0;
    for (const GatherPart& part : parts)
      if (is_small(part)) {
        f(part, offset);
        offset += part.bytes;
      }
  };
  const auto exchange = [&](const void* in, void* out, std::size_t length, std::size_t pitch,
                            std::size_t part) {
    for (int i = 0; i < size_; ++i) {
      if (i == rank_) continue;
      operation.receive(at(out, i, pitch), length, i, slot(0, part)).post_all();
      operation.send(in, length, i, slot(0, part)).post_all();
    }
  };
  for_small([&](const GatherPart& part, std::size_t offset) {
    std::memcpy(packed(rank_) + offset, part.in, part.bytes);
  });
  if (small > 0) exchange(packed(rank_), packed(0), small, small, 0);
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (!is_small(parts[p])) exchange(parts[p].in, parts[p].out, parts[p].bytes, parts[p].pitch, p + 1);
  for (const GatherPart& part : parts) {
    std::byte* const own = at(part.out, rank_, part.pitch);
    if (own != part.in) Rows::of(part).write(own, part.in, 0, part.bytes);
  }
  operation.wait_all();
  end_parts(parts.size());
  for_small([&](const GatherPart& part, std::size_t offset) {
    for (int i = 0; i < size_; ++i)
      if (i != rank_) Rows::of(part).write(at(part.out, i, part.pitch), packed(i) + offset, 0, part.bytes);
  });
  free_pack();
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

// Uses shared memory whatever the sizes are, because they differ from rank to rank. Over sockets, a part with
// rows is packed into one message.
void GlooBackend::all_to_all(std::span<const ExchangePart> parts, Deadline deadline) {
  HostExchange* const host = shared(kShared, deadline);
  Operation operation = begin(deadline);
  if (host) {
    ConnectionWatch watch(transport_, deadline);
    return host->all_to_all(parts, watch);
  }
  std::size_t rows = 0;  // the bytes of parts with rows
  for (const ExchangePart& part : parts)
    rows += (part.in_rows > 1 ? part.in_bytes : 0) + (part.out_rows > 1 ? part.out_bytes : 0);
  std::byte* next = pack(rows);
  const auto packed = [&](std::size_t bytes) { return std::exchange(next, next + bytes); };
  std::vector<std::pair<const ExchangePart*, const std::byte*>> packs;  // of what is received
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    const ExchangePart& part = parts[static_cast<std::size_t>(i)];
    if (part.out_bytes > 0) {
      void* to = part.out;
      if (part.out_rows > 1) packs.emplace_back(&part, static_cast<std::byte*>(to = packed(part.out_bytes)));
      operation.receive(to, part.out_bytes, i, slot(0)).post_all();
    }
    if (part.in_bytes > 0) {
      const void* from = part.in;
      if (part.in_rows > 1) {
        std::byte* const pack = packed(part.in_bytes);
        in_rows(part).read(pack, from, 0, part.in_bytes);
        from = pack;
      }
      operation.send(from, part.in_bytes, i, slot(0)).post_all();
    }
  }
  copy_own(parts[static_cast<std::size_t>(rank_)]);
  operation.wait_all();
  for (const auto& [part, pack] : packs) out_rows(*part).write(part->out, pack, 0, part->out_bytes);
  free_pack();
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
