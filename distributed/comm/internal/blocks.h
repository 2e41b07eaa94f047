#pragma once
// Blocks of memory that consist of rows, and the blocks of several tensors laid end to end, for transports
// that move them in pieces.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "tapestry/distributed/comm/backend.h"

namespace tapestry::distributed {

/// A block of which each row has `row` bytes. The rows begin `pitch` bytes apart.
struct Rows {
  std::size_t row, pitch;

  static Rows of(std::size_t bytes, std::size_t rows, std::size_t pitch) { return {bytes / rows, pitch}; }
  template <class Part>
  static Rows of(const Part& part) {  // GatherPart or ScatterPart
    if constexpr (requires { part.count; }) return of(part.bytes(), part.rows, part.row_pitch);
    else return of(part.bytes, part.rows, part.row_pitch);
  }

  /// Calls f(offset in memory, offset in the piece, bytes) for each run of the piece of `length` bytes at
  /// `begin`.
  template <class F>
  void for_each(std::size_t begin, std::size_t length, const F& f) const {
    if (length == 0) return;
    std::size_t at = begin / row * pitch, inside = begin % row;
    for (std::size_t done = 0; done < length; inside = 0, at += pitch) {
      const std::size_t n = std::min(row - inside, length - done);
      f(at + inside, done, n);
      done += n;
    }
  }
  /// Copies a piece of the block at `from` to `to`, or from there to a piece of the block at `to`.
  void read(void* to, const void* from, std::size_t begin, std::size_t length) const {
    for_each(begin, length, [&](std::size_t at, std::size_t offset, std::size_t n) {
      std::memcpy(static_cast<std::byte*>(to) + offset, static_cast<const std::byte*>(from) + at, n);
    });
  }
  void write(void* to, const void* from, std::size_t begin, std::size_t length) const {
    for_each(begin, length, [&](std::size_t at, std::size_t offset, std::size_t n) {
      std::memcpy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + offset, n);
    });
  }
};

/// Copies `bytes` bytes between two blocks whose rows may differ.
inline void copy_block(const Rows& to_rows, void* to, const Rows& from_rows, const void* from,
                       std::size_t bytes) {
  to_rows.for_each(0, bytes, [&](std::size_t at, std::size_t offset, std::size_t n) {
    from_rows.read(static_cast<std::byte*>(to) + at, from, offset, n);
  });
}
inline Rows in_rows(const ExchangePart& p) { return Rows::of(p.in_bytes, p.in_rows, p.in_pitch); }
inline Rows out_rows(const ExchangePart& p) { return Rows::of(p.out_bytes, p.out_rows, p.out_pitch); }
/// Copies what a rank sends to itself.
inline void copy_own(const ExchangePart& part) {
  copy_block(out_rows(part), part.out, in_rows(part), part.in, part.in_bytes);
}

/// Makes one part of each row that is longer than `longest` bytes. Part is GatherPart or ScatterPart.
template <class Part>
std::vector<Part> with_rows_apart(std::span<const Part> parts, std::size_t longest) {
  std::vector<Part> apart;
  for (const Part& part : parts) {
    const Rows rows = Rows::of(part);
    if (part.rows == 1 || rows.row <= longest) {
      apart.push_back(part);
      continue;
    }
    for (std::size_t r = 0; r < part.rows; ++r) {
      Part one = part;
      one.rows = 1;
      constexpr bool gathers = std::is_same_v<Part, GatherPart>;
      one.in = static_cast<const std::byte*>(part.in) + r * (gathers ? rows.row : rows.pitch);
      one.out = static_cast<std::byte*>(part.out) + r * (gathers ? rows.pitch : rows.row);
      if constexpr (gathers) one.bytes = rows.row;
      else one.count = part.count / static_cast<std::int64_t>(part.rows);
      apart.push_back(one);
    }
  }
  return apart;
}

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
