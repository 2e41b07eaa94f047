#pragma once
// Gradients of gradients. A pass with create_graph computes the formula of a gradient's row
// (kernels/ops/pointwise.h) by operations, which it records: C is a Term, and M is TermMath.
#include <initializer_list>

#include "tapestry/autograd/ops/internal/common.h"

namespace tapestry::autograd {

template <class F>
Tensor function(const Tensor& x, std::initializer_list<double> params = {});
template <class Row>
Tensor binary(const Tensor& a, const Tensor& b, const Op& op = row_op<Row>);

/// A tensor or a number in a formula. A comparison gives a bool tensor; its first operand is a tensor.
class Term {
 public:
  Term(const Tensor& t) : tensor_(t) {}              // NOLINT: formulas mix tensors and numbers
  Term(double number) : number_(number) {}           // NOLINT
  Term(const Scalar& s) : number_(s.to_double()) {}  // NOLINT
  bool is_number() const { return !tensor_.defined(); }
  const Tensor& tensor() const { return tensor_; }
  double number() const { return number_; }

 private:
  Tensor tensor_;
  double number_ = 0;
};
Term operator-(const Term& a);
Term operator+(const Term& a, const Term& b);
Term operator-(const Term& a, const Term& b);
Term operator*(const Term& a, const Term& b);
Term operator/(const Term& a, const Term& b);
Term operator<(const Term& a, const Term& b);
Term operator<=(const Term& a, const Term& b);
Term operator>(const Term& a, const Term& b);
Term operator>=(const Term& a, const Term& b);
Term operator==(const Term& a, const Term& b);
Term operator&&(const Term& a, const Term& b);
Term select(const Term& condition, const Term& a, const Term& b);

/// The elementary functions that formulas of gradients call.
struct TermMath {
  static Term abs(const Term& x);
  static Term cos(const Term& x);
  static Term cosh(const Term& x);
  static Term exact_log(const Term& x);
  static Term exp(const Term& x);
  static Term exp_of_negative(const Term& x);
  static Term log(const Term& x);
  static Term log1p(const Term& x);
  static Term normal_cdf(const Term& x);
  static Term pow(const Term& x, const Term& y);
  static Term rsqrt(const Term& x);
  static Term sigmoid(const Term& x);
  static Term sign(const Term& x);
  static Term sin(const Term& x);
  static Term sinh(const Term& x);
  static Term trunc(const Term& x);
  template <class Row>
  static Term value_of(const Term& x) {
    return function<Row>(x.tensor());
  }
  template <class Row>
  static Term value_of(const Term& a, const Term& b) {
    return binary<Row>(a.tensor(), b.tensor());
  }
};

/// The value of a gradient's row. The operands after dy are tensors or numbers.
template <class Row, class... T>
Tensor composed(const Tensor& dy, const T&... operands) {
  return Row::template value<TermMath>(Term(dy), Term(operands)...).tensor();
}

}  // namespace tapestry::autograd
