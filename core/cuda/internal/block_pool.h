#pragma once
// The caching of memory that streams use. Knows no CUDA: it is tested on a source that counts.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/core/allocator.h"

namespace tapestry::cuda {

/// A stream, as the pool and its source name it.
using StreamId = std::uint64_t;

/// What a pool needs of the memory that it manages.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Null if there is no room.
  virtual void* allocate(std::size_t bytes) = 0;
  /// All work that uses the memory is waited for.
  virtual void release(void* data) noexcept = 0;
  /// An event behind all work that the stream has been given so far.
  virtual void* mark(StreamId stream) = 0;
  virtual bool reached(void* mark) = 0;
  virtual void await(void* mark) = 0;
  /// The mark is used no more.
  virtual void drop(void* mark) noexcept = 0;
};

/// Gives out blocks of large segments, each to one stream. A freed block serves that stream again at once,
/// since what the stream does next comes after what it did with the block; if other streams used it too (see
/// `use`), when they have done the work they had when it was freed.
///
/// Sizes are multiples of 512 bytes, in three classes: up to 1 MiB in segments of 2 MiB, below 10 MiB in
/// segments of 20 MiB, above in a segment of their own, of a multiple of 2 MiB. The smallest free block that
/// is large enough is taken and, if enough is left over, split; freed neighbours become one again. Records of
/// blocks, and their nodes in what finds them, serve again: giving and taking what was there before asks the
/// host's allocator for nothing. Thread-safe.
class BlockPool {
 public:
  static constexpr std::size_t kGranule = 512;
  static constexpr std::size_t kSmall = std::size_t{1} << 20;
  static constexpr std::size_t kSmallSegment = std::size_t{2} << 20;
  static constexpr std::size_t kMedium = std::size_t{10} << 20;
  static constexpr std::size_t kMediumSegment = std::size_t{20} << 20;

  explicit BlockPool(MemorySource& source);
  /// Gives nothing back.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Null if there is no room, also after all that is cached here has been given back.
  void* allocate(std::size_t bytes, StreamId stream);
  /// What allocate() returned; other addresses are ignored.
  void deallocate(void* data) noexcept;
  /// The stream uses the live block that `address` is in. False if there is none.
  bool use(const void* address, StreamId stream);
  bool contains(const void* address) const;

  MemoryStats stats() const;
  void reset_peak();
  /// Gives the segments back that nothing is in, after waiting for streams that still use them.
  void empty_cache();
  /// Gives every segment back, also those with live blocks. The pool must not be used afterwards.
  void release_all() noexcept;
  /// The size of the largest block that `stream` can be given without a new segment.
  std::size_t largest_free(StreamId stream) const;

 private:
  struct Segment;
  struct Block;
  struct Wanted {
    StreamId stream;
    std::size_t bytes;
  };
  struct BySize {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const;
    bool operator()(const Block* a, Wanted b) const;
  };
  using FreeBlocks = std::set<Block*, BySize>;
  using LiveBlocks = std::unordered_map<const void*, Block*>;

  static void delete_all(Block* first);
  FreeBlocks& free_blocks(const Segment& segment);
  Block* take_free(std::size_t bytes, StreamId stream);
  Block* new_segment(std::size_t bytes, StreamId stream);
  Block* new_block(Segment* segment, char* data, std::size_t bytes);
  void forget_block(Block* block);
  void split(Block* block, std::size_t bytes);
  void make_live(Block* block);
  void put_free(Block* block);
  void collect(bool wait);
  void release_segments();
  Block* find(const void* address) const;

  MemorySource& source_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  FreeBlocks small_, large_;
  LiveBlocks live_;
  Block* spare_ = nullptr;  // records of no block, linked through `after`
  std::map<const char*, std::unique_ptr<Segment>> segments_;
  // Blocks that wait for streams which used them, each stream's in the order of freeing.
  std::map<StreamId, std::deque<std::pair<void*, Block*>>> waiting_;
};

/// "[allocate] no room for 3.00 GiB (3221225472 bytes) on cuda:0: ..."
std::string out_of_memory_text(const std::string& where, std::size_t bytes, const MemoryStats& stats,
                               std::size_t largest_free, std::size_t free, std::size_t total);

}  // namespace tapestry::cuda
