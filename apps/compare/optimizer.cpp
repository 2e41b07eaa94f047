#include "tapestry/apps/compare/optimizer.h"

#include "tapestry/core/error.h"
#include "tapestry/nn/optim/adam.h"
#include "tapestry/nn/optim/sgd.h"

namespace apps::compare {

using namespace tapestry;

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = {"sgd", "adamw"};
  return names;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Workload& w, std::vector<nn::Parameter> parameters) {
  if (w.optimizer == "sgd")
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        optim::SGD::Options{.lr = w.learning_rate(), .momentum = w.momentum});
  if (w.optimizer == "adamw")
    return std::make_unique<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions{.lr = w.learning_rate()});
  fail("[compare] unknown optimizer ", w.optimizer, "; choose sgd or adamw");
}

std::string optimizer_title(const Workload& w) {
  if (w.optimizer == "adamw") return "AdamW";
  return w.momentum == 0 ? "SGD" : concat({"SGD with momentum ", w.momentum});
}

}  // namespace apps::compare
