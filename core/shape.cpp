#include "tapestry/core/shape.h"

#include <algorithm>

#include "tapestry/core/error.h"

namespace tapestry {

void Shape::too_many(std::size_t count) {
  fail("[Shape] ", count, " values; a tensor has at most ", kMaxDims, " dimensions");
}

Shape Shape::filled(int count, std::int64_t value) {
  check(count >= 0 && count <= kMaxDims, "[Shape] ", count, " values; a tensor has 0 to ", kMaxDims,
        " dimensions");
  Shape s;
  s.size_ = count;
  std::fill(s.begin(), s.end(), value);
  return s;
}

void Shape::push_back(std::int64_t value) { insert(size_, value); }

void Shape::insert(int position, std::int64_t value) {
  check(size_ < kMaxDims, "[Shape] no room in ", *this, " for ", value, "; a tensor has at most ", kMaxDims,
        " dimensions");
  check<IndexError>(position >= 0 && position <= size_, "[Shape] insert at ", position, " of ", *this,
                    "; positions go from 0 to ", size_);
  std::copy_backward(values_ + position, values_ + size_, values_ + size_ + 1);
  values_[position] = value;
  ++size_;
}

void Shape::erase(int position) {
  check<IndexError>(position >= 0 && position < size_, "[Shape] erase at ", position, " of ", *this,
                    "; positions go from 0 to ", size_ - 1);
  std::copy(values_ + position + 1, values_ + size_, values_ + position);
  --size_;
}

std::string Shape::str() const {
  std::string out = "[";
  for (int i = 0; i < size_; ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(values_[i]);
  }
  return out + "]";
}

std::int64_t checked_numel(const char* op, const Shape& sizes) {
  std::int64_t numel = 1, product = 1;
  for (int i = 0; i < sizes.size(); ++i) {
    const std::int64_t n = sizes[i];
    check(n >= 0, "[", op, "] size ", n, " of dimension ", i, " in ", sizes,
          " is negative; sizes are 0 or more");
    check(!__builtin_mul_overflow(product, std::max<std::int64_t>(n, 1), &product), "[", op,
          "] a tensor of shape ", sizes, " has more elements than 64 bits can count; ask for smaller sizes");
    numel *= n;
  }
  return numel;
}

Shape contiguous_strides(const Shape& sizes) {
  Shape strides = sizes;
  std::int64_t step = 1;
  for (int i = sizes.size() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

Shape channels_last_strides(const Shape& sizes) {
  check(sizes.size() == 4, "[channels_last_strides] shape ", sizes, " has ", sizes.size(),
        " dimensions; channels-last is for four (N, C, H, W)");
  Shape strides = sizes;
  std::int64_t step = 1;
  for (const int i : {1, 3, 2, 0}) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  const int extra = longer.size() - shorter.size();
  Shape out = longer;
  for (int i = 0; i < shorter.size(); ++i) {
    const std::int64_t x = longer[i + extra], y = shorter[i];
    if (x == y || y == 1) continue;
    check(x == 1, "[", op, "] shapes ", a, " and ", b,
          " do not broadcast: ", a[i + a.size() - shorter.size()], " against ",
          b[i + b.size() - shorter.size()], " in dimension ", i - shorter.size(),
          "; aligned at the last dimension, two sizes must be equal or one of them must be 1");
    out[i + extra] = y;
  }
  return out;
}

int wrap_dim(const char* op, std::int64_t dim, int ndim) {
  const int n = std::max(ndim, 1);
  check<IndexError>(dim >= -n && dim < n, "[", op, "] dimension ", dim, " is out of range for a tensor with ",
                    ndim, ndim == 1 ? " dimension" : " dimensions", "; use ", -n, " to ", n - 1);
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

}  // namespace tapestry
