#include "tapestry/nn/convert_parameters.h"

#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::nn {

Tensor parameters_to_vector(const std::vector<Parameter>& params) {
  check(!params.empty(), "[parameters_to_vector] there are no parameters; pass one or more");
  std::vector<Tensor> parts;
  for (const Parameter& p : params) {
    check(gives_whole(p), "[parameters_to_vector] a parameter of shape ", whole_sizes(p),
          " is sharded, and this rank has a part of it; call it while FullyShard::unshard() lasts");
    parts.push_back(p->reshape({-1}));
  }
  return cat(parts);
}

void vector_to_parameters(const Tensor& vector, const std::vector<Parameter>& params) {
  tapestry::detail::check_defined("vector_to_parameters", vector);
  std::int64_t total = 0;
  for (const Parameter& p : params) {
    check(!p.layout(), "[vector_to_parameters] a parameter of shape ", whole_sizes(p),
          " is sharded, and the vector would be copied to a part of it; pass the tensors to "
          "Module::load_state_dict(), of which each rank takes its part");
    total += p->numel();
  }
  check(vector.dim() == 1 && vector.numel() == total, "[vector_to_parameters] the parameters have ", total,
        " elements, and the vector has shape ", vector.sizes(), "; pass what parameters_to_vector() gave");
  const NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (const Parameter& p : params) {
    const std::int64_t count = p->numel();
    const Tensor part = vector.detach().slice(0, begin, begin + count).reshape(p->sizes());
    for (int r = 0; r < p.replicas(); ++r) p.replica(r).detach().copy_(part);
    begin += count;
  }
}

}  // namespace tapestry::nn
