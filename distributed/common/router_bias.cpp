#include "tapestry/distributed/common/router_bias.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/layers/router_balance.h"

namespace tapestry::distributed {
namespace {

std::vector<std::pair<std::string, nn::Module*>> biased_layers(const nn::Module& module) {
  std::vector<std::pair<std::string, nn::Module*>> all;
  for (const auto& [path, m] : module.named_modules()) {
    const auto* const layer = dynamic_cast<nn::BiasBalanced*>(m);
    if (!layer || !layer->has_router_bias()) continue;
    // Layouts name the stages on all ranks. So a stage without the layer throws too.
    const std::vector<nn::Parameter> parameters = m->parameters();
    check(std::none_of(parameters.begin(), parameters.end(), nn::is_of_several_stages),
          "[update_router_bias] ", m->type_name(), " ", path,
          " has parameters that several stages of a pipeline use, and each would move its bias by the tokens "
          "of its own calls; give each stage a layer of its own");
    all.emplace_back(path, m);
  }
  return all;
}

void update_biases(const nn::Module& module, ProcessGroup* group) {
  std::vector<nn::BiasBalanced*> layers;
  std::vector<Tensor> counts;
  for (const auto& [path, m] : biased_layers(module)) {
    const std::vector<nn::Parameter> parameters = m->parameters();
    if (std::any_of(parameters.begin(), parameters.end(), nn::is_of_other_stage)) continue;
    layers.push_back(dynamic_cast<nn::BiasBalanced*>(m));
    const Tensor own = layers.back()->tokens_per_expert();  // stages of one process may be on several devices
    counts.push_back(counts.empty() ? own : own.to(counts[0].device()));
  }
  if (layers.empty()) return;
  const NoGradGuard no_grad;
  const Tensor all = cat(counts, 0);
  if (group) group->all_reduce(all, ReduceOp::sum, "tokens of the experts").wait();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < layers.size(); begin += counts[i++].size(0))
    layers[i]->update_router_bias(all.narrow(0, begin, counts[i].size(0)));
}

}  // namespace

bool has_router_bias(const nn::Module& module) { return !biased_layers(module).empty(); }
void update_router_bias(const nn::Module& module, ProcessGroup& group) { update_biases(module, &group); }
void update_router_bias(const nn::Module& module) { update_biases(module, nullptr); }

}  // namespace tapestry::distributed
