#pragma once
// Making tensors. A factory without a dtype makes f32, without a device the context's (see DeviceGuard). A
// negative size, or more elements than 64 bits can count, is a ValueError.
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

Tensor zeros(const Shape& sizes, const TensorOptions& options = {});
Tensor ones(const Shape& sizes, const TensorOptions& options = {});
/// Every element `value`; the dtype follows the value when none is given (f32, i64 or bool).
Tensor full(const Shape& sizes, const Scalar& value, const TensorOptions& options = {});
/// start, start + step, ... below end (above, for a negative step); i64 unless one of them is real.
/// ValueError for a zero step or one that leads away from end.
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step = 1,
              const TensorOptions& options = {});
Tensor arange(const Scalar& end, const TensorOptions& options = {});
/// `steps` values from start to end, both included.
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});
/// The n x n identity.
Tensor eye(std::int64_t n, const TensorOptions& options = {});
/// Uniform in [0, 1). Floating dtypes only, as for randn.
Tensor rand(const Shape& sizes, const TensorOptions& options = {});
/// Standard normal (Box-Muller on Philox).
Tensor randn(const Shape& sizes, const TensorOptions& options = {});
/// Integers uniform in [low, high); i64 unless told otherwise. ValueError unless low < high.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, const TensorOptions& options = {});
/// A random permutation of 0 .. n-1; i64.
Tensor randperm(std::int64_t n, const TensorOptions& options = {});

/// Like-forms: shape, layout, dtype and device of `t`, unless `options` say otherwise.
Tensor empty_like(const Tensor& t, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& t, const TensorOptions& options = {});
Tensor ones_like(const Tensor& t, const TensorOptions& options = {});
Tensor full_like(const Tensor& t, const Scalar& value, const TensorOptions& options = {});
Tensor rand_like(const Tensor& t, const TensorOptions& options = {});
Tensor randn_like(const Tensor& t, const TensorOptions& options = {});

/// A tensor with these values: bool gives bool, integers i64, anything real f32, unless `options` say
/// otherwise. ValueError when the number of values does not fit the sizes or nested lists are ragged.
template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& sizes, const TensorOptions& options = {});
template <class T>
Tensor tensor(const std::vector<T>& values, const TensorOptions& options = {}) {
  return tensor(values, Shape(static_cast<std::int64_t>(values.size())), options);
}
extern template Tensor tensor(const std::vector<float>&, const Shape&, const TensorOptions&);
extern template Tensor tensor(const std::vector<double>&, const Shape&, const TensorOptions&);
extern template Tensor tensor(const std::vector<std::int64_t>&, const Shape&, const TensorOptions&);
extern template Tensor tensor(const std::vector<std::int32_t>&, const Shape&, const TensorOptions&);
extern template Tensor tensor(const std::vector<std::uint8_t>&, const Shape&, const TensorOptions&);
extern template Tensor tensor(const std::vector<bool>&, const Shape&, const TensorOptions&);

/// A 0-d tensor.
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {});

/// What stands in the braces of `tensor({1, 2.5})`: a number, or a list of such.
class NumberOrList {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> NumberOrList(T number) : number_(number) {}  // NOLINT: braces hold numbers
  NumberOrList(std::initializer_list<NumberOrList> list) : list_(list), is_list_(true) {}
  bool is_list() const { return is_list_; }
  const Scalar& number() const { return number_; }
  const NumberOrList* begin() const { return list_.begin(); }
  const NumberOrList* end() const { return list_.end(); }
  std::size_t size() const { return list_.size(); }

 private:
  Scalar number_ = 0;
  std::initializer_list<NumberOrList> list_;  // lives as long as the expression with the braces
  bool is_list_ = false;
};

/// `tensor({1.0, 2.0})`, `tensor({{1, 2}, {3, 4.5}})`: numbers of any types, lists as deep as a tensor has
/// dimensions.
Tensor tensor(std::initializer_list<NumberOrList> values, const TensorOptions& options = {});
/// Of a list that has a name.
template <class List>
requires std::is_same_v<List, std::initializer_list<typename List::value_type>> Tensor
tensor(const List& values, const TensorOptions& options = {}) {
  return tensor(std::vector<typename List::value_type>(values), options);
}

}  // namespace tapestry
