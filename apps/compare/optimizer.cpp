#include "tapestry/apps/compare/optimizer.h"

#include "tapestry/core/error.h"
#include "tapestry/distributed/zero/make_optimizer.h"
#include "tapestry/nn/optim/adam.h"
#include "tapestry/nn/optim/sgd.h"

namespace apps::compare {

using namespace tapestry;

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = {"sgd", "adamw"};
  return names;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Workload& w, std::vector<nn::Parameter> parameters) {
  const distributed::Strategy one_process(distributed::StrategyPlan{}, {});
  return make_optimizer(w, one_process, std::move(parameters));
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Workload& w, const distributed::Strategy& strategy,
                                                 std::vector<nn::Parameter> parameters) {
  using distributed::make_optimizer;
  if (w.optimizer == "sgd")
    return make_optimizer<optim::SGD>(strategy, std::move(parameters),
                                      {.lr = w.learning_rate(), .momentum = w.momentum});
  if (w.optimizer == "adamw")
    return make_optimizer<optim::AdamW>(strategy, std::move(parameters), {.lr = w.learning_rate()});
  fail("[compare] unknown optimizer ", w.optimizer, "; choose sgd or adamw");
}

std::string optimizer_title(const Workload& w) {
  if (w.optimizer == "adamw") return "AdamW";
  return w.momentum == 0 ? "SGD" : concat({"SGD with momentum ", w.momentum});
}

}  // namespace apps::compare
