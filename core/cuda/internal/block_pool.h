#pragma once
// A caching allocator for memory that streams use. It does not call CUDA itself: tests give it a MemorySource
// that hands out addresses without memory.
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

/// Identifies a stream to the pool and its source.
using StreamId = std::uint64_t;

/// The interface through which a BlockPool gets memory and events. Devices implement it by CUDA.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Null if there is not enough memory.
  virtual void* allocate(std::size_t bytes) = 0;
  /// Waits for all work that uses the memory, then releases it.
  virtual void release(void* data) noexcept = 0;
  /// Records a new event after the work that the stream has been given so far, and returns it.
  virtual void* mark(StreamId stream) = 0;
  virtual bool reached(void* mark) = 0;
  virtual void await(void* mark) = 0;
  /// Releases the event.
  virtual void drop(void* mark) noexcept = 0;
};

/// Allocates blocks from large segments. Each segment belongs to one stream. A freed block can be reused by
/// that stream at once, since the stream's later work runs after its earlier use of the block. If other
/// streams used the block too (see `use`), it is reused after they have finished the work that they had when
/// it was freed.
///
/// Sizes are rounded up to multiples of 512 bytes. There are three size classes, as in PyTorch's allocator:
/// blocks up to 1 MiB come from segments of 2 MiB, blocks below 10 MiB from segments of 20 MiB, and larger
/// blocks have a segment of their own, whose size is a multiple of 2 MiB. The smallest sufficient free block
/// is taken, and split if enough is left over. Freed neighbours are merged. Block records and their container
/// nodes are recycled, so repeated patterns of allocation do not call the host's allocator. Thread-safe.
class BlockPool {
 public:
  static constexpr std::size_t kGranule = 512;
  static constexpr std::size_t kSmall = std::size_t{1} << 20;
  static constexpr std::size_t kSmallSegment = std::size_t{2} << 20;
  static constexpr std::size_t kMedium = std::size_t{10} << 20;
  static constexpr std::size_t kMediumSegment = std::size_t{20} << 20;

  explicit BlockPool(MemorySource& source);
  /// Does not release the segments: see release_all().
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Null if there is not enough memory, even after the cached segments have been released.
  void* allocate(std::size_t bytes, StreamId stream);
  /// Frees a block that allocate() returned. Ignores other addresses.
  void deallocate(void* data) noexcept;
  /// Records that the stream uses the live block that contains `address`. False if there is no such block.
  bool use(const void* address, StreamId stream);
  bool contains(const void* address) const;

  MemoryStats stats() const;
  void reset_peak();
  /// Until let_go(), the stream's segments are not released, even without live blocks.
  void hold(StreamId stream);
  /// Releases the stream's segments without live blocks. The caller has waited for all work that uses them.
  void let_go(StreamId stream) noexcept;
  /// While paused, the pool makes no call about events and releases nothing. Blocks that other streams use
  /// too are freed when it continues.
  void pause_events(bool on) noexcept;
  /// Waits for streams that still use freed blocks, then releases all segments without live blocks.
  void empty_cache();
  /// Releases every segment, even with live blocks. The pool must not be used afterwards.
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
  void after_users(Block* block) noexcept;
  void collect(bool wait);
  void release_segments(const StreamId* only = nullptr);
  Block* find(const void* address) const;

  MemorySource& source_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  FreeBlocks small_, large_;
  LiveBlocks live_;
  Block* spare_ = nullptr;  // unused records, linked through `after`
  std::map<const char*, std::unique_ptr<Segment>> segments_;
  // For each stream: freed blocks that the stream still uses, oldest first. A block can be reused when the
  // event (mark) that is stored with it has been reached.
  std::map<StreamId, std::deque<std::pair<void*, Block*>>> waiting_;
  std::set<StreamId> held_;
  bool paused_ = false;
  std::vector<Block*> postponed_;  // freed while paused, used by other streams
};

/// "[allocate] no room for 3.00 GiB (3221225472 bytes) on cuda:0: ..."
std::string out_of_memory_text(const std::string& where, std::size_t bytes, const MemoryStats& stats,
                               std::size_t largest_free, std::size_t free, std::size_t total);

}  // namespace tapestry::cuda
