#include "tapestry/autograd/gradcheck.h"

#include <cmath>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::autograd {
namespace {

using Fn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Returns a dense row-major f64 copy on the CPU. The tensor may have any device and layout.
Tensor dense(const Tensor& t) { return to(t.detach(), kCPU, DType::f64).contiguous().clone(); }

// The shapes of a function's outputs. An undefined output gets the shape [-1], which no tensor has.
std::vector<Shape> shapes_of(const std::vector<Tensor>& outputs) {
  std::vector<Shape> shapes;
  for (const Tensor& y : outputs) shapes.push_back(y.defined() ? y.sizes() : Shape(-1));
  return shapes;
}

// Computes the derivatives of all outputs with respect to one element of x by central differences. Returns
// one dense tensor per output, of the given shapes.
std::vector<Tensor> difference(const Fn& fn, const std::vector<Tensor>& inputs, const Tensor& x,
                               std::int64_t element, double eps, const std::vector<Shape>& shapes) {
  NoGradGuard no_grad;
  const Tensor original = dense(x);
  struct Restore {
    const Tensor &to, &from;
    ~Restore() { to.copy_(from); }
  } restore{x, original};
  auto evaluate = [&](double at) {
    const Tensor moved = original.clone();
    moved.data<double>()[element] = at;
    x.copy_(moved);
    std::vector<Tensor> values;
    const std::vector<Tensor> outputs = fn(inputs);
    check<AutogradError>(shapes_of(outputs) == shapes, "[gradcheck] the function returned ", shapes.size(),
                         " outputs at first and ", outputs.size(),
                         " in a later call, or outputs of other shapes; it must return the same each time");
    for (const Tensor& y : outputs) values.push_back(y.defined() ? dense(y) : y);
    return values;
  };
  const double at = original.data<double>()[element];
  std::vector<Tensor> above = evaluate(at + eps);
  const std::vector<Tensor> below = evaluate(at - eps);
  const double width = (at + eps) - (at - eps);  // the exact distance of the rounded arguments
  for (std::size_t k = 0; k < above.size(); ++k) {
    if (!above[k].defined()) continue;
    double* up = above[k].data<double>();
    const double* down = below[k].data<double>();
    for (std::int64_t i = 0; i < above[k].numel(); ++i) up[i] = (up[i] - down[i]) / width;
  }
  return above;
}

// Computes the Jacobian of `output` by backward. Entry [j][k] is the gradient of output[j] with respect to
// the tensor wanted[k]: a dense tensor, or undefined if it is zero.
std::vector<std::vector<Tensor>> jacobian_of(const Tensor& output, const std::vector<Tensor>& wanted) {
  std::vector<std::vector<Tensor>> rows(static_cast<std::size_t>(output.numel()),
                                        std::vector<Tensor>(wanted.size()));
  if (!output.requires_grad()) return rows;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const Tensor unit = zeros(output.sizes(), {DType::f64, kCPU});
    unit.data<double>()[j] = 1;
    rows[j] = grad({output}, wanted, {to(unit, output.device(), output.dtype())}, true, true);
    for (Tensor& row : rows[j])
      if (row.defined()) row = dense(row);
  }
  return rows;
}

}  // namespace

bool gradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<Tensor> wanted;
  std::vector<std::size_t> index;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    check<TypeError>(inputs[i].dtype() == DType::f64, "[gradcheck] input ", i, " is ", inputs[i].dtype(),
                     "; finite differences need float64");
    check<AutogradError>(inputs[i].is_leaf(), "[gradcheck] input ", i,
                         " is not a leaf; pass detach() of it with set_requires_grad()");
    for (int d = 0; d < inputs[i].dim(); ++d)
      check<AutogradError>(
          inputs[i].sizes()[d] <= 1 || inputs[i].strides()[d] != 0, "[gradcheck] input ", i, " of shape ",
          inputs[i].sizes(),
          " is expanded: its elements share memory and cannot change one by one; pass a clone() "
          "with set_requires_grad()");
    wanted.push_back(inputs[i]);
    index.push_back(i);
  }
  check<AutogradError>(!wanted.empty(),
                       "[gradcheck] no input requires gradients; call set_requires_grad() on what to check");

  EnableGradGuard grad_mode;
  // Compute all gradients by backward first: the differences change the inputs in place, which would
  // invalidate the saved tensors.
  std::vector<Shape> shapes;
  std::vector<std::size_t> checked;
  std::vector<std::vector<std::vector<Tensor>>> jacobians;
  {
    const std::vector<Tensor> outputs = fn(inputs);
    shapes = shapes_of(outputs);
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].defined() || !is_floating(outputs[k].dtype())) continue;
      checked.push_back(k);
      jacobians.push_back(jacobian_of(outputs[k], wanted));
    }
  }

  for (std::size_t w = 0; w < wanted.size(); ++w)
    for (std::int64_t e = 0; e < wanted[w].numel(); ++e) {
      const std::vector<Tensor> numeric = difference(fn, inputs, wanted[w], e, options.eps, shapes);
      for (std::size_t c = 0; c < checked.size(); ++c)
        for (std::size_t j = 0; j < jacobians[c].size(); ++j) {
          const Tensor& row = jacobians[c][j][w];
          const double mine = row.defined() ? row.data<double>()[e] : 0.0;
          const double theirs = numeric[checked[c]].data<double>()[j];
          if (!(std::abs(mine - theirs) <= options.atol + options.rtol * std::abs(theirs)))
            fail<AutogradError>("[gradcheck] d output ", checked[c], " [element ", j, "] / d input ",
                                index[w], " [element ", e, "]: backward gives ", mine,
                                ", finite differences give ", theirs);
        }
    }
  return true;
}

bool gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options) {
  return gradcheck(Fn([&fn](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in)}; }), inputs,
                   options);
}

}  // namespace tapestry::autograd
