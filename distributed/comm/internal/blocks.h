#pragma once
// The blocks of several tensors, laid end to end, for transports that move them in pieces.
#include <algorithm>
#include <cstddef>
#include <vector>

namespace tapestry::distributed {

/// Blocks of different sizes in a row. Each begins at a multiple of kAlign bytes, so that a piece whose
/// length is a multiple of kAlign holds whole elements of every dtype, and they are aligned.
class BlockRow {
 public:
  static constexpr std::size_t kAlign = 64;

  /// `sizes` are in bytes.
  template <class Parts, class SizeOf>
  BlockRow(const Parts& parts, const SizeOf& size_of) {
    for (const auto& part : parts) {
      begins_.push_back(bytes_);
      ends_.push_back(bytes_ + size_of(part));
      bytes_ = (ends_.back() + kAlign - 1) / kAlign * kAlign;
    }
  }

  /// The length of the row.
  std::size_t bytes() const { return bytes_; }

  /// Calls f(block, offset in the block, offset in the piece, bytes) for each part of a block in the piece of
  /// `length` bytes at `begin`.
  template <class F>
  void for_each(std::size_t begin, std::size_t length, const F& f) const {
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (auto i = static_cast<std::size_t>(first); i < begins_.size() && begins_[i] < begin + length; ++i) {
      const std::size_t from = std::max(begin, begins_[i]), to = std::min(begin + length, ends_[i]);
      f(i, from - begins_[i], from - begin, to - from);
    }
  }

 private:
  std::vector<std::size_t> begins_, ends_;
  std::size_t bytes_ = 0;
};

}  // namespace tapestry::distributed
