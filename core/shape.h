#pragma once
// Shape: a list of up to kMaxDims integers, for shapes, strides and lists of dimensions.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace tapestry {

/// The maximum number of dimensions of a tensor. A fixed maximum lets a Shape live without an allocation, and
/// lets a kernel take it by value.
inline constexpr int kMaxDims = 8;

/// Up to kMaxDims integers. Used for shapes, strides and lists of dimensions (`Dims`).
/// Throws ValueError when constructed with more than kMaxDims values.
class Shape {
 public:
  constexpr Shape() = default;
  /// Implicit, so that `sum(1)` and `reshape(-1)` compile.
  Shape(std::int64_t value) : size_(1) { values_[0] = value; }  // NOLINT
  Shape(std::initializer_list<std::int64_t> values) { assign(values.begin(), values.size()); }
  Shape(const std::vector<std::int64_t>& values) { assign(values.data(), values.size()); }  // NOLINT
  Shape(const std::int64_t* values, std::size_t count) { assign(values, count); }

  /// A list of `count` times `value`.
  static Shape filled(int count, std::int64_t value);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return values_[i]; }
  std::int64_t operator[](int i) const { return values_[i]; }
  std::int64_t& back() { return values_[size_ - 1]; }
  std::int64_t back() const { return values_[size_ - 1]; }
  std::int64_t* begin() { return values_; }
  std::int64_t* end() { return values_ + size_; }
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + size_; }

  void push_back(std::int64_t value);
  void insert(int position, std::int64_t value);
  void erase(int position);

  /// Product of the values: the number of elements of a tensor of this shape (1 for a 0-d shape).
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < size_; ++i) n *= values_[i];
    return n;
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }

  /// "[2, 3]"
  std::string str() const;

 private:
  void assign(const std::int64_t* values, std::size_t count) {
    if (count > kMaxDims) [[unlikely]]
      too_many(count);
    size_ = static_cast<int>(count);
    for (std::size_t i = 0; i < count; ++i) values_[i] = values[i];
  }
  [[noreturn]] static void too_many(std::size_t count);

  int size_ = 0;
  std::int64_t values_[kMaxDims] = {};  // copied as a whole: a fixed length is cheaper than a loop
};

using Dims = Shape;

/// The number of elements of a tensor of these sizes. Throws ValueError, which names `op`, if a size is
/// negative, or if the product of the sizes does not fit in 64 bits. In that product a size of 0 counts as 1,
/// because the strides are products of the other sizes and must fit too.
std::int64_t checked_numel(const char* op, const Shape& sizes);
/// Row-major strides, in elements, of a dense tensor of this shape.
Shape contiguous_strides(const Shape& sizes);
/// Strides of a dense channels-last tensor (N, C, H, W stored as N, H, W, C). `sizes` has four dimensions.
Shape channels_last_strides(const Shape& sizes);
/// The broadcast shape of two shapes, by NumPy's rules. Throws ValueError, which names `op` and both shapes.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);
/// Maps `dim` from [-ndim, ndim) to [0, ndim). Throws IndexError, which names `op`, for other values. A 0-d
/// tensor counts as 1-d here.
int wrap_dim(const char* op, std::int64_t dim, int ndim);

}  // namespace tapestry
