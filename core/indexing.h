#pragma once
// The indices of x.index({...}) and x.index_put_({...}, values), which have the names of torch::indexing.
#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry::indexing {

/// `None` inserts a dimension of size 1. As a limit of a Slice, it means that there is no limit.
inline constexpr std::nullopt_t None = std::nullopt;

struct EllipsisType {};
/// Stands for as many whole dimensions as the other indices leave over. The text "..." means the same.
inline constexpr EllipsisType Ellipsis{};

/// start:stop:step as in Python. Negative limits count from the end. The default is the whole dimension.
struct Slice {
  std::optional<std::int64_t> start, stop, step;

  Slice(std::optional<std::int64_t> first = {}, std::optional<std::int64_t> end = {},
        std::optional<std::int64_t> stride = {})
      : start(first), stop(end), step(stride) {}
};

/// One index: an integer, a Slice, None, Ellipsis, "...", a bool, or a tensor of integers or bools. All of
/// them convert to it.
class TensorIndex {
 public:
  enum class Kind : std::uint8_t { none, ellipsis, integer, boolean, slice, tensor };

  TensorIndex(std::nullopt_t) : kind_(Kind::none) {}    // NOLINT: indices convert implicitly
  TensorIndex(EllipsisType) : kind_(Kind::ellipsis) {}  // NOLINT
  TensorIndex(const char* dots);                        // NOLINT: throws ValueError unless dots is "..."
  template <std::integral T>
  TensorIndex(T value)  // NOLINT
      : kind_(std::is_same_v<T, bool> ? Kind::boolean : Kind::integer),
        integer_(static_cast<std::int64_t>(value)) {}
  TensorIndex(Slice slice) : kind_(Kind::slice), slice_(slice) {}                  // NOLINT
  TensorIndex(Tensor tensor) : kind_(Kind::tensor), tensor_(std::move(tensor)) {}  // NOLINT

  Kind kind() const { return kind_; }
  std::int64_t integer() const { return integer_; }  ///< of an integer or a bool
  const Slice& slice() const { return slice_; }
  const Tensor& tensor() const { return tensor_; }

 private:
  Kind kind_;
  std::int64_t integer_ = 0;
  Slice slice_;
  Tensor tensor_;
};

}  // namespace tapestry::indexing
