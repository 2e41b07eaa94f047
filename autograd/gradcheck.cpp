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

// A tensor of this shape whose element `at` is 1, and all others 0.
Tensor unit(const Shape& sizes, std::int64_t at) {
  const Tensor v = zeros(sizes, {DType::f64, kCPU});
  v.data<double>()[at] = 1;
  return v;
}
// Numbers between 0.5 and 1.5 with alternating signs, as irregular as the golden ratio.
Tensor mixed(const Shape& sizes, std::int64_t start) {
  const Tensor v = empty(sizes, {DType::f64, kCPU});
  for (std::int64_t i = 0; i < v.numel(); ++i) {
    const double turns = static_cast<double>(start + i) * 0.6180339887498949,
                 part = turns - std::floor(turns);
    v.data<double>()[i] = part < 0.5 ? 0.5 + 2 * part : 0.5 - 2 * part;
  }
  return v;
}
Tensor normalized(const Tensor& v) {
  double squares = 0;
  for (std::int64_t i = 0; i < v.numel(); ++i) squares += v.data<double>()[i] * v.data<double>()[i];
  for (std::int64_t i = 0; i < v.numel(); ++i) v.data<double>()[i] /= std::sqrt(squares);
  return v;
}
double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

// Computes the derivatives of all outputs with respect to x in a direction by central differences. Returns
// one dense tensor per output, of the given shapes.
std::vector<Tensor> difference(const Fn& fn, const std::vector<Tensor>& inputs, const Tensor& x,
                               const Tensor& direction, double eps, const std::vector<Shape>& shapes) {
  NoGradGuard no_grad;
  const Tensor original = dense(x);
  struct Restore {
    const Tensor &to, &from;
    ~Restore() { to.copy_(from); }
  } restore{x, original};
  auto evaluate = [&](double at) {
    const Tensor moved = original.clone();
    double* const to = moved.data<double>();
    for (std::int64_t i = 0; i < moved.numel(); ++i) to[i] += at * direction.data<double>()[i];
    x.copy_(moved);
    std::vector<Tensor> values;
    const std::vector<Tensor> outputs = fn(inputs);
    check<AutogradError>(shapes_of(outputs) == shapes, "[gradcheck] the function returned ", shapes.size(),
                         " outputs at first and ", outputs.size(),
                         " in a later call, or outputs of other shapes; it must return the same each time");
    for (const Tensor& y : outputs) values.push_back(y.defined() ? dense(y) : y);
    return values;
  };
  std::vector<Tensor> above = evaluate(eps);
  const std::vector<Tensor> below = evaluate(-eps);
  for (std::size_t k = 0; k < above.size(); ++k) {
    if (!above[k].defined()) continue;
    double* up = above[k].data<double>();
    const double* down = below[k].data<double>();
    for (std::int64_t i = 0; i < above[k].numel(); ++i) up[i] = (up[i] - down[i]) / (2 * eps);
  }
  return above;
}

// The directions in which a tensor of this shape is checked: its elements one by one, or one mixed direction.
std::vector<Tensor> directions_of(const Shape& sizes, std::int64_t start, bool fast) {
  std::vector<Tensor> directions;
  if (fast && sizes.numel() > 0) return {normalized(mixed(sizes, start))};
  for (std::int64_t i = 0; i < sizes.numel(); ++i) directions.push_back(unit(sizes, i));
  return directions;
}

// Computes the Jacobian of `output` by backward. Entry [j][k] is the gradient of output[j], or of the
// output's sum weighted by directions[j], with respect to the tensor wanted[k]: a dense tensor, or undefined
// if it is zero.
std::vector<std::vector<Tensor>> jacobian_of(const Tensor& output, const std::vector<Tensor>& directions,
                                             const std::vector<Tensor>& wanted) {
  std::vector<std::vector<Tensor>> rows(directions.size(), std::vector<Tensor>(wanted.size()));
  if (!output.requires_grad()) return rows;
  for (std::size_t j = 0; j < rows.size(); ++j) {
    rows[j] = grad({output}, wanted, {to(directions[j], output.device(), output.dtype())}, true, true);
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
  std::vector<std::vector<Tensor>> directions;
  std::vector<std::vector<std::vector<Tensor>>> jacobians;
  {
    const std::vector<Tensor> outputs = fn(inputs);
    shapes = shapes_of(outputs);
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      if (!outputs[k].defined() || !is_floating(outputs[k].dtype())) continue;
      checked.push_back(k);
      directions.push_back(
          directions_of(outputs[k].sizes(), static_cast<std::int64_t>(k) + 1, options.fast_mode));
      jacobians.push_back(jacobian_of(outputs[k], directions.back(), wanted));
    }
  }

  const auto place = [&](std::size_t i) {
    return options.fast_mode ? std::string(" [mixed]") : " [element " + std::to_string(i) + "]";
  };
  for (std::size_t w = 0; w < wanted.size(); ++w) {
    const std::vector<Tensor> steps = directions_of(wanted[w].sizes(), 7, options.fast_mode);
    for (std::size_t e = 0; e < steps.size(); ++e) {
      const std::vector<Tensor> numeric = difference(fn, inputs, wanted[w], steps[e], options.eps, shapes);
      for (std::size_t c = 0; c < checked.size(); ++c)
        for (std::size_t j = 0; j < jacobians[c].size(); ++j) {
          const Tensor& row = jacobians[c][j][w];
          const double mine = row.defined() ? dot(row, steps[e]) : 0.0;
          const double theirs = dot(numeric[checked[c]], directions[c][j]);
          if (!(std::abs(mine - theirs) <= options.atol + options.rtol * std::abs(theirs)))
            fail<AutogradError>("[gradcheck] d output ", checked[c], place(j), " / d input ", index[w],
                                place(e), ": backward gives ", mine, ", finite differences give ", theirs);
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

bool gradgradcheck(const Fn& fn, const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs,
                   const GradcheckOptions& options) {
  std::vector<Tensor> wanted, all = inputs;
  for (const Tensor& x : inputs)
    if (x.requires_grad()) wanted.push_back(x);
  check<AutogradError>(
      !wanted.empty(),
      "[gradgradcheck] no input requires gradients; call set_requires_grad() on what to check");
  const auto recorded_of = [](const std::vector<Tensor>& outputs) {
    std::vector<Tensor> recorded;
    for (const Tensor& y : outputs)
      if (y.requires_grad()) recorded.push_back(y);
    return recorded;
  };
  {
    const EnableGradGuard grad_mode;
    const std::vector<Tensor> outputs = recorded_of(fn(inputs));
    check<AutogradError>(!outputs.empty(),
                         "[gradgradcheck] no output depends on an input that requires gradients");
    check<AutogradError>(grad_outputs.empty() || grad_outputs.size() == outputs.size(),
                         "[gradgradcheck] got ", outputs.size(), " recorded outputs but ",
                         grad_outputs.size(), " gradients; pass one for each, or none");
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const Tensor& y = outputs[k];
      const Tensor given = grad_outputs.empty() ? mixed(y.sizes(), static_cast<std::int64_t>(k) + 3)
                                                : grad_outputs[k].detach().clone();
      // Finite differences need f64. Gradients of other dtypes are constants.
      all.push_back(to(given, y.device(), y.dtype()).set_requires_grad(y.dtype() == DType::f64));
    }
  }
  // gradcheck() evaluates the function in no-grad mode for the differences. These are then differences of
  // ordinary first gradients, not of recorded ones.
  const Fn gradient = [&](const std::vector<Tensor>& in) {
    const bool create_graph = grad_enabled();
    const EnableGradGuard grad_mode;
    const auto n = static_cast<std::ptrdiff_t>(inputs.size());
    const std::vector<Tensor> outputs = recorded_of(fn({in.begin(), in.begin() + n}));
    std::vector<Tensor> found = grad(
        outputs, wanted,
        {.grad_outputs = {in.begin() + n, in.end()}, .create_graph = create_graph, .allow_unused = true});
    for (std::size_t i = 0; i < found.size(); ++i)
      if (!found[i].defined()) found[i] = zeros_like(wanted[i].detach());
    return found;
  };
  return gradcheck(gradient, all, options);
}

bool gradgradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                   const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs,
                   const GradcheckOptions& options) {
  return gradgradcheck(Fn([&fn](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in)}; }),
                       inputs, grad_outputs, options);
}

}  // namespace tapestry::autograd
