#include "tapestry/autograd/gradcheck.h"

#include <cmath>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::autograd {
namespace {

using Fn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// A tensor on any device, in any layout, as a dense row-major copy on the CPU.
Tensor dense(const Tensor& t) { return to(t.detach(), kCPU, DType::f64).contiguous().clone(); }

bool takes_part(const Tensor& t) { return t.defined() && t.requires_grad(); }

// d outputs / d x[element], by central differences; one dense tensor an output.
std::vector<Tensor> difference(const Fn& fn, const std::vector<Tensor>& inputs, const Tensor& x,
                               std::int64_t element, double eps) {
  NoGradGuard no_grad;
  const Tensor original = dense(x);
  auto evaluate = [&](double at) {
    const Tensor moved = original.clone();
    moved.data<double>()[element] = at;
    x.copy_(moved);
    std::vector<Tensor> values;
    for (const Tensor& y : fn(inputs)) values.push_back(y.defined() ? dense(y) : y);
    return values;
  };
  const double at = original.data<double>()[element];
  std::vector<Tensor> above = evaluate(at + eps);
  const std::vector<Tensor> below = evaluate(at - eps);
  x.copy_(original);
  const double width = (at + eps) - (at - eps);  // what the rounded arguments really are apart
  for (std::size_t k = 0; k < above.size(); ++k) {
    if (!above[k].defined()) continue;
    double* up = above[k].data<double>();
    const double* down = below[k].data<double>();
    for (std::int64_t i = 0; i < above[k].numel(); ++i) up[i] = (up[i] - down[i]) / width;
  }
  return above;
}

}  // namespace

bool gradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  bool any = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!takes_part(inputs[i])) continue;
    any = true;
    check<TypeError>(inputs[i].dtype() == DType::f64, "[gradcheck] input ", i, " is ", inputs[i].dtype(),
                     "; finite differences need float64");
    check<AutogradError>(inputs[i].is_leaf(), "[gradcheck] input ", i,
                         " is not a leaf; pass detach() of it with "
                         "set_requires_grad()");
  }
  check<AutogradError>(any,
                       "[gradcheck] no input requires gradients; call set_requires_grad() on what to check");

  EnableGradGuard grad_mode;
  std::vector<Tensor> outputs = fn(inputs);
  // jacobian[k][j][i]: d outputs[k][j] / d inputs[i], from backward, row by row.
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!takes_part(outputs[k])) continue;
    std::vector<Tensor> wanted;
    std::vector<std::size_t> index;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (takes_part(inputs[i])) wanted.push_back(inputs[i]), index.push_back(i);
    const std::int64_t rows = outputs[k].numel();
    std::vector<std::vector<Tensor>> jacobian(static_cast<std::size_t>(rows));
    for (std::int64_t j = 0; j < rows; ++j) {
      const Tensor unit = zeros(outputs[k].sizes(), DType::f64);
      unit.data<double>()[j] = 1;
      jacobian[static_cast<std::size_t>(j)] =
          grad({outputs[k]}, wanted, {to(unit, outputs[k].device(), outputs[k].dtype())}, true, true);
    }
    for (std::size_t w = 0; w < wanted.size(); ++w) {
      std::vector<Tensor> columns;
      for (auto& row : jacobian) columns.push_back(row[w].defined() ? dense(row[w]) : Tensor());
      for (std::int64_t e = 0; e < wanted[w].numel(); ++e) {
        const Tensor numeric = difference(fn, inputs, wanted[w], e, options.eps)[k];
        for (std::int64_t j = 0; j < rows; ++j) {
          const Tensor& column = columns[static_cast<std::size_t>(j)];
          const double mine = column.defined() ? column.data<double>()[e] : 0.0;
          const double theirs = numeric.data<double>()[j];
          if (!(std::abs(mine - theirs) <= options.atol + options.rtol * std::abs(theirs)))
            fail<AutogradError>("[gradcheck] d output ", k, " [element ", j, "] / d input ", index[w],
                                " [element ", e, "]: backward gives ", mine, ", finite differences give ",
                                theirs);
        }
      }
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
