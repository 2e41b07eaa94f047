#pragma once
// Gradients of gradients. A pass with create_graph computes the formula of a gradient's row
// (kernels/ops/pointwise.h) by operations, which it records: C is a FormulaTerm, and M is FormulaMath.
#include <initializer_list>

#include "tapestry/autograd/ops/internal/common.h"

namespace tapestry::kernels {
struct FloorDivide;
}

namespace tapestry::autograd {

template <class F>
Tensor function(const Tensor& x, std::initializer_list<double> params = {});
template <class Row>
Tensor binary(const Tensor& a, const Tensor& b, const Op& op = row_op<Row>);

/// A tensor or a number in a formula. A comparison gives a bool tensor; its first operand is a tensor.
class FormulaTerm {
 public:
  FormulaTerm(const Tensor& t) : tensor_(t) {}              // NOLINT: formulas mix tensors and numbers
  FormulaTerm(double number) : number_(number) {}           // NOLINT
  FormulaTerm(const Scalar& s) : number_(s.to_double()) {}  // NOLINT
  bool is_number() const { return !tensor_.defined(); }
  const Tensor& tensor() const { return tensor_; }
  double number() const { return number_; }

 private:
  Tensor tensor_;
  double number_ = 0;
};
FormulaTerm operator-(const FormulaTerm& a);
FormulaTerm operator+(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator-(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator*(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator/(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator<(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator<=(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator>(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator>=(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator==(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm operator&&(const FormulaTerm& a, const FormulaTerm& b);
FormulaTerm select(const FormulaTerm& condition, const FormulaTerm& a, const FormulaTerm& b);

/// The elementary functions that formulas of gradients call.
struct FormulaMath {
  static FormulaTerm abs(const FormulaTerm& x);
  static FormulaTerm cos(const FormulaTerm& x);
  static FormulaTerm cosh(const FormulaTerm& x);
  static FormulaTerm exact_log(const FormulaTerm& x);
  static FormulaTerm exp(const FormulaTerm& x);
  static FormulaTerm exp_of_negative(const FormulaTerm& x);
  static FormulaTerm log(const FormulaTerm& x);
  static FormulaTerm log1p(const FormulaTerm& x);
  static FormulaTerm normal_cdf(const FormulaTerm& x);
  static FormulaTerm pow(const FormulaTerm& x, const FormulaTerm& y);
  static FormulaTerm rsqrt(const FormulaTerm& x);
  static FormulaTerm sigmoid(const FormulaTerm& x);
  static FormulaTerm sign(const FormulaTerm& x);
  static FormulaTerm sin(const FormulaTerm& x);
  static FormulaTerm sinh(const FormulaTerm& x);
  static FormulaTerm trunc(const FormulaTerm& x);
  template <class Row>
  static FormulaTerm value_of(const FormulaTerm& x) {
    return function<Row>(x.tensor());
  }
  template <class Row>
  static FormulaTerm value_of(const FormulaTerm& a, const FormulaTerm& b) {
    return binary<Row>(a.tensor(), b.tensor());
  }
};

/// floor_divide() has an Op of its own, because its gradients are 0.
template <>
FormulaTerm FormulaMath::value_of<kernels::FloorDivide>(const FormulaTerm& a, const FormulaTerm& b);

/// The value of a gradient's row. The operands after dy are tensors or numbers.
template <class Row, class... T>
Tensor composed(const Tensor& dy, const T&... operands) {
  return Row::template value<FormulaMath>(FormulaTerm(dy), FormulaTerm(operands)...).tensor();
}

}  // namespace tapestry::autograd
