#include "tapestry/autograd/functional.h"

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::autograd::functional {
namespace {

// A tensor with x's elements to differentiate with respect to. With create_graph it keeps x's history.
Tensor variable(const char* op, const Tensor& x, bool create_graph) {
  tapestry::detail::check_defined(op, x);
  if (create_graph && x.requires_grad()) return view(x, x.sizes());
  return x.detach().set_requires_grad();
}

// The gradients of y; zeros for inputs that it does not depend on.
std::vector<Tensor> gradients(const Tensor& y, const std::vector<Tensor>& inputs, const Tensor& weights,
                              bool retain_graph, bool create_graph) {
  std::vector<Tensor> found(inputs.size());
  if (y.requires_grad())
    found = grad({y}, inputs,
                 {.grad_outputs = {weights},
                  .retain_graph = retain_graph,
                  .create_graph = create_graph,
                  .allow_unused = true});
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!found[i].defined()) found[i] = zeros_like(inputs[i].detach());
  return found;
}

Tensor one_element(const char* op, const Tensor& y) {
  tapestry::detail::check_defined(op, y, "the result of the function");
  check(y.numel() == 1, "[", op, "] the function returned a tensor of shape ", y.sizes(),
        "; it must return one element, for example by sum()");
  return y;
}

}  // namespace

Tensor jacobian(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x, bool create_graph) {
  const EnableGradGuard grad_mode;
  const Tensor in = variable("jacobian", x, create_graph), y = fn(in);
  tapestry::detail::check_defined("jacobian", y, "the result of the function");
  check(y.dim() + x.dim() <= kMaxDims, "[jacobian] a result of shape ", y.sizes(), " and an input of shape ",
        x.sizes(), " have more than ", kMaxDims, " dimensions together; flatten them");
  Shape sizes = y.sizes();
  for (const std::int64_t size : x.sizes()) sizes.push_back(size);
  if (sizes.numel() == 0) return zeros(sizes, {x.dtype(), x.device()});
  std::vector<Tensor> rows;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const Tensor unit = zeros({y.numel()}, {y.dtype(), y.device()});
    unit[i].fill_(1);
    rows.push_back(gradients(y, {in}, view(unit, y.sizes()), true, create_graph)[0]);
  }
  return reshape(stack(rows), sizes);
}

Tensor hessian(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x, bool create_graph) {
  const auto gradient = [&](const Tensor& in) {
    const Tensor y = one_element("hessian", fn(in));
    return gradients(y, {in}, ones_like(y.detach()), true, true)[0];
  };
  return jacobian(gradient, x, create_graph);
}

std::pair<Tensor, std::vector<Tensor>> hvp(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                                           const std::vector<Tensor>& inputs, const std::vector<Tensor>& v,
                                           bool create_graph) {
  check(!inputs.empty() && inputs.size() == v.size(), "[hvp] got ", inputs.size(), " inputs and ", v.size(),
        " tensors of the vector; pass one for each input");
  const EnableGradGuard grad_mode;
  std::vector<Tensor> in;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(variable("hvp", inputs[i], create_graph));
    tapestry::detail::check_defined("hvp", v[i], "a tensor of the vector");
    check(v[i].sizes() == inputs[i].sizes(), "[hvp] tensor ", i, " of the vector has shape ", v[i].sizes(),
          ", its input ", inputs[i].sizes(), "; they must be equal");
  }
  const Tensor y = one_element("hvp", fn(in));
  const std::vector<Tensor> first = gradients(y, in, ones_like(y.detach()), true, true);
  std::vector<Tensor> roots, weights, product(in.size());
  for (std::size_t i = 0; i < first.size(); ++i)
    if (first[i].requires_grad()) roots.push_back(first[i]), weights.push_back(v[i]);
  if (!roots.empty())
    product = grad(roots, in, {.grad_outputs = weights, .create_graph = create_graph, .allow_unused = true});
  for (std::size_t i = 0; i < in.size(); ++i)
    if (!product[i].defined()) product[i] = zeros_like(in[i].detach());
  return {create_graph ? y : y.detach(), product};
}

std::pair<Tensor, Tensor> hvp(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x,
                              const Tensor& v, bool create_graph) {
  const auto of_vector = [&](const std::vector<Tensor>& in) { return fn(in[0]); };
  const auto [y, product] =
      hvp(std::function<Tensor(const std::vector<Tensor>&)>(of_vector), {x}, {v}, create_graph);
  return {y, product[0]};
}

}  // namespace tapestry::autograd::functional
