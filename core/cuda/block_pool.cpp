#include "tapestry/core/cuda/internal/block_pool.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <tuple>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::cuda {
namespace {

// More memory than any GPU has. Sums of sizes up to this limit cannot overflow.
constexpr std::size_t kMostBytes = std::size_t{1} << 46;
constexpr std::size_t kLargeGranule = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// "1.50 GiB (1610612736 bytes)"
std::string in_words(std::size_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  if (unit == 0) return std::to_string(bytes) + " bytes";
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s (%zu bytes)", value, units[unit], bytes);
  return text;
}

}  // namespace

// A block is a part of a segment. It is in use (live), or free, or freed but still used by other streams.
struct BlockPool::Block {
  Segment* segment;
  char* data;
  std::size_t bytes;
  std::size_t asked = 0;
  bool free = false;
  Block *before = nullptr, *after = nullptr;  // the adjacent blocks in the segment
  std::vector<StreamId> users = {};           // streams that use the block besides the segment's own stream
  std::size_t awaited = 0;               // number of events in waiting_ that must be reached before reuse
  FreeBlocks::node_type when_free = {};  // container nodes, kept to avoid allocations
  LiveBlocks::node_type when_live = {};
};

struct BlockPool::Segment {
  StreamId stream;
  std::size_t bytes = 0;
  bool small = false;
  Block* first = nullptr;

  ~Segment() { delete_all(first); }
};

void BlockPool::delete_all(Block* block) {
  while (block) delete std::exchange(block, block->after);
}

bool BlockPool::BySize::operator()(const Block* a, const Block* b) const {
  return std::tie(a->segment->stream, a->bytes, a->data) < std::tie(b->segment->stream, b->bytes, b->data);
}
bool BlockPool::BySize::operator()(const Block* a, Wanted b) const {
  return std::tie(a->segment->stream, a->bytes) < std::tie(b.stream, b.bytes);
}

BlockPool::FreeBlocks& BlockPool::free_blocks(const Segment& segment) {
  return segment.small ? small_ : large_;
}

BlockPool::BlockPool(MemorySource& source) : source_(source) {}
BlockPool::~BlockPool() { delete_all(spare_); }

void* BlockPool::allocate(std::size_t bytes, StreamId stream) {
  if (bytes > kMostBytes) return nullptr;
  const std::size_t rounded = std::max(kGranule, round_up(bytes, kGranule));
  const std::lock_guard lock(mutex_);
  collect(false);
  Block* block = take_free(rounded, stream);
  if (!block) block = new_segment(rounded, stream);
  if (!block) return nullptr;
  split(block, rounded);
  make_live(block);
  block->asked = bytes;
  ++stats_.allocations;
  stats_.allocated += static_cast<std::int64_t>(bytes);
  stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
  return block->data;
}

void BlockPool::deallocate(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(data);
  if (found == live_.end()) return;
  Block* const block = found->second;
  block->when_live = live_.extract(found);
  stats_.allocated -= static_cast<std::int64_t>(block->asked);
  if (!paused_ || block->users.empty()) return after_users(block);
  try {
    postponed_.push_back(block);
  } catch (const std::bad_alloc&) {  // the block is never reused
  }
}

// Frees a block that is no longer live, as soon as its users have finished with it.
void BlockPool::after_users(Block* block) noexcept {
  try {
    for (const StreamId user : block->users) {
      waiting_[user].emplace_back(source_.mark(user), block);
      ++block->awaited;
    }
    block->users.clear();
    if (block->awaited == 0) put_free(block);
  } catch (...) {
    // The CUDA driver has failed, or has shut down because the program ends. Nobody can then tell when the
    // GPU has finished with the block, so the block is never reused.
    ++block->awaited;
  }
}

bool BlockPool::use(const void* address, StreamId stream) {
  const std::lock_guard lock(mutex_);
  Block* const block = find(address);
  if (!block) return false;
  auto& users = block->users;
  if (stream != block->segment->stream && std::find(users.begin(), users.end(), stream) == users.end())
    users.push_back(stream);
  return true;
}

bool BlockPool::contains(const void* address) const {
  const std::lock_guard lock(mutex_);
  return find(address) != nullptr;
}

MemoryStats BlockPool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void BlockPool::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_allocated = stats_.allocated;
}

void BlockPool::hold(StreamId stream) {
  const std::lock_guard lock(mutex_);
  held_.insert(stream);
}

void BlockPool::let_go(StreamId stream) noexcept {
  const std::lock_guard lock(mutex_);
  held_.erase(stream);
  if (!paused_) release_segments(&stream);
}

void BlockPool::pause_events(bool on) noexcept {
  const std::lock_guard lock(mutex_);
  paused_ = on;
  if (on) return;
  for (Block* const block : postponed_) after_users(block);
  postponed_.clear();
}

void BlockPool::empty_cache() {
  const std::lock_guard lock(mutex_);
  collect(true);
  release_segments();
}

void BlockPool::release_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [data, segment] : segments_) source_.release(segment->first->data);
  segments_.clear();
}

std::size_t BlockPool::largest_free(StreamId stream) const {
  const std::lock_guard lock(mutex_);
  std::size_t largest = 0;
  for (const FreeBlocks* blocks : {&small_, &large_})
    for (const Block* block : *blocks)
      if (block->segment->stream == stream) largest = std::max(largest, block->bytes);
  return largest;
}

// ---- The caller holds the mutex. ----

BlockPool::Block* BlockPool::take_free(std::size_t bytes, StreamId stream) {
  FreeBlocks& blocks = bytes <= kSmall ? small_ : large_;
  const auto found = blocks.lower_bound(Wanted{stream, bytes});
  if (found == blocks.end() || (*found)->segment->stream != stream) return nullptr;
  Block* const block = *found;
  block->when_free = blocks.extract(found);
  block->free = false;
  return block;
}

BlockPool::Block* BlockPool::new_block(Segment* segment, char* data, std::size_t bytes) {
  if (!spare_) return new Block{segment, data, bytes};
  Block* const block = spare_;
  spare_ = block->after;
  block->segment = segment, block->data = data, block->bytes = bytes;
  block->before = block->after = nullptr;
  block->free = false;
  return block;
}

void BlockPool::forget_block(Block* block) {
  block->after = spare_;
  spare_ = block;
}

void BlockPool::make_live(Block* block) {
  if (block->when_live.empty()) {
    live_.emplace(block->data, block);
  } else {
    block->when_live.key() = block->data;
    live_.insert(std::move(block->when_live));
  }
}

// Allocates a new segment. Returns a block that fills it.
BlockPool::Block* BlockPool::new_segment(std::size_t bytes, StreamId stream) {
  const bool small = bytes <= kSmall;
  const std::size_t alone = round_up(bytes, kLargeGranule);
  std::size_t size = small ? kSmallSegment : bytes < kMedium ? kMediumSegment : alone;
  void* data = source_.allocate(size);
  if (!data && !paused_) {
    collect(true);
    release_segments();
    data = source_.allocate(size);
  }
  if (!data && alone < size) data = source_.allocate(size = alone);
  if (!data) return nullptr;
  Block* const block = new_block(nullptr, static_cast<char*>(data), size);
  auto segment = std::unique_ptr<Segment>(new Segment{stream, size, small, block});
  block->segment = segment.get();
  segments_.emplace(block->data, std::move(segment));
  stats_.reserved += static_cast<std::int64_t>(size);
  return block;
}

void BlockPool::split(Block* block, std::size_t bytes) {
  const std::size_t rest = block->bytes - bytes;
  if (rest < kGranule || (!block->segment->small && rest <= kSmall)) return;
  Block* const tail = new_block(block->segment, block->data + bytes, rest);
  block->bytes = bytes;
  tail->before = block;
  tail->after = block->after;
  if (tail->after) tail->after->before = tail;
  block->after = tail;
  put_free(tail);
}

void BlockPool::put_free(Block* block) {
  FreeBlocks& blocks = free_blocks(*block->segment);
  // Merges `second` into its neighbour `first`.
  const auto join = [&](Block* first, Block* second) {
    first->bytes += second->bytes;
    first->after = second->after;
    if (first->after) first->after->before = first;
    forget_block(second);
  };
  const auto take_out = [&](Block* other) { other->when_free = blocks.extract(other); };
  if (Block* const after = block->after; after && after->free) {
    take_out(after);
    join(block, after);
  }
  if (Block* const before = block->before; before && before->free) {
    take_out(before);
    join(before, block);
    block = before;
  }
  block->free = true;
  if (block->when_free.empty()) blocks.insert(block);
  else blocks.insert(std::move(block->when_free));
}

// Frees blocks whose streams have finished with them. If `wait`, waits for the streams first.
void BlockPool::collect(bool wait) {
  if (paused_) return;
  for (auto& [stream, blocks] : waiting_) {
    while (!blocks.empty()) {
      const auto [mark, block] = blocks.front();
      if (wait) source_.await(mark);
      else if (!source_.reached(mark)) break;
      blocks.pop_front();
      source_.drop(mark);
      if (--block->awaited == 0) put_free(block);
    }
  }
}

// Releases the segments without live blocks, or only those of one stream.
void BlockPool::release_segments(const StreamId* only) {
  if (paused_) return;
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = *it->second;
    Block* const block = segment.first;
    if (!block->free || block->bytes != segment.bytes || held_.contains(segment.stream) ||
        (only && segment.stream != *only)) {
      ++it;
      continue;
    }
    free_blocks(segment).erase(block);
    source_.release(block->data);
    stats_.reserved -= static_cast<std::int64_t>(segment.bytes);
    it = segments_.erase(it);
  }
}

// The live block that contains the address, or null.
BlockPool::Block* BlockPool::find(const void* address) const {
  const auto* const at = static_cast<const char*>(address);
  if (const auto found = live_.find(at); found != live_.end()) return found->second;
  auto segment = segments_.upper_bound(at);
  if (segment == segments_.begin()) return nullptr;
  --segment;
  for (Block* block = segment->second->first; block; block = block->after)
    if (at >= block->data && at < block->data + block->bytes)
      return live_.contains(block->data) ? block : nullptr;
  return nullptr;
}

std::string out_of_memory_text(const std::string& where, std::size_t bytes, const MemoryStats& stats,
                               std::size_t largest_free, std::size_t free, std::size_t total) {
  const auto words = [](std::int64_t n) { return in_words(static_cast<std::size_t>(n)); };
  return concat({"[allocate] no room for ", in_words(bytes), " on ", where, ": ", in_words(free), " of ",
                 in_words(total), " are free there; this process has reserved ", words(stats.reserved),
                 ", of which tensors hold ", words(stats.allocated), " and the largest free block is ",
                 in_words(largest_free),
                 "; free tensors, use a smaller batch or model, or check with nvidia-smi which other "
                 "processes use the GPU"});
}

}  // namespace tapestry::cuda
