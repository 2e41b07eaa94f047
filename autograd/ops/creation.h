#pragma once
// Functions that create tensors. The default dtype is f32. The default device is the context's (see
// DeviceGuard). They throw ValueError for a negative size, or if the number of elements overflows 64 bits.
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

Tensor zeros(const Shape& sizes, const TensorOptions& options = {});
Tensor ones(const Shape& sizes, const TensorOptions& options = {});
/// Sets every element to `value`. The default dtype is that of the value: f32, i64 or bool.
Tensor full(const Shape& sizes, const Scalar& value, const TensorOptions& options = {});
/// Returns start, start + step, ..., up to but not including `end`. The default dtype is i64, or f32 if an
/// argument is real. Throws ValueError if the step is 0 or has the wrong sign.
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step = 1,
              const TensorOptions& options = {});
Tensor arange(const Scalar& end, const TensorOptions& options = {});
/// Returns `steps` evenly spaced values from start to end, both included.
Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options = {});
/// Returns base^e for `steps` evenly spaced exponents e from start to end, both included. Throws ValueError
/// unless base is positive.
Tensor logspace(double start, double end, std::int64_t steps, double base = 10,
                const TensorOptions& options = {});
/// Returns the n x n or n x m matrix with ones on the diagonal and zeros elsewhere.
Tensor eye(std::int64_t n, const TensorOptions& options = {});
Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options = {});
/// Returns uniform random numbers in [0, 1). rand and randn take floating dtypes only.
Tensor rand(const Shape& sizes, const TensorOptions& options = {});
/// Returns standard normal random numbers (Box-Muller method, Philox generator).
Tensor randn(const Shape& sizes, const TensorOptions& options = {});
/// Returns uniform random integers in [low, high). The default dtype is i64. Throws ValueError unless low <
/// high.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, const TensorOptions& options = {});
/// Returns a random permutation of 0 .. n - 1 as i64.
Tensor randperm(std::int64_t n, const TensorOptions& options = {});

/// The functions whose names end in _like use the shape, layout, dtype and device of `t`. `options` override
/// them.
Tensor empty_like(const Tensor& t, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& t, const TensorOptions& options = {});
Tensor ones_like(const Tensor& t, const TensorOptions& options = {});
Tensor full_like(const Tensor& t, const Scalar& value, const TensorOptions& options = {});
Tensor rand_like(const Tensor& t, const TensorOptions& options = {});
Tensor randn_like(const Tensor& t, const TensorOptions& options = {});
/// As randint(), in [low, high), or in [0, high).
Tensor randint_like(const Tensor& t, std::int64_t low, std::int64_t high, const TensorOptions& options = {});
Tensor randint_like(const Tensor& t, std::int64_t high, const TensorOptions& options = {});
/// Returns 1 with the probability that is the element of x, else 0, in x's shape and dtype, which is
/// floating. There is no gradient. Throws ValueError unless all elements lie in [0, 1]; on GPUs, where the
/// check would wait for the device, a probability below 0 counts as 0, and one above 1 as 1.
///
/// The methods in place fill a tensor with random numbers. bernoulli_(p) takes a probability, or a tensor of
/// probabilities that broadcasts, and any dtype. exponential_() draws from the density lambd exp(-lambd x),
/// in floating dtypes. random_(from, to) draws integers in [from, to), random_(to) in [0, to). Without
/// limits, integers range from 0 to the largest of their dtype (2^63 - 2 for i64), and floats to the largest
/// integer below which they represent all.
Tensor bernoulli(const Tensor& x);

/// Returns a tensor with these values. The default dtype is bool for bools, i64 for integers and f32 for real
/// numbers. Throws ValueError if the number of values does not fit the sizes, or if nested lists are ragged.
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

/// Returns a 0-d tensor with this value.
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {});

/// An element of the braces in `tensor({1, 2.5})`: a number, or a nested list.
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
  std::initializer_list<NumberOrList> list_;  // valid until the end of the full expression
  bool is_list_ = false;
};

/// Examples: `tensor({1.0, 2.0})`, `tensor({{1, 2}, {3, 4.5}})`. Numbers may have any types. The nesting
/// depth of the lists is the number of dimensions.
Tensor tensor(std::initializer_list<NumberOrList> values, const TensorOptions& options = {});
/// This overload takes a named std::initializer_list.
template <class List>
requires std::is_same_v<List, std::initializer_list<typename List::value_type>> Tensor
tensor(const List& values, const TensorOptions& options = {}) {
  return tensor(std::vector<typename List::value_type>(values), options);
}

}  // namespace tapestry
