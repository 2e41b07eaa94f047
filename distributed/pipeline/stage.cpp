#include "tapestry/distributed/pipeline/stage.h"

#include <set>

#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

// What `list` of each module returns, each slot once.
template <class Slot, class F>
std::vector<std::pair<std::string, Slot>> each_once(const Stage::Modules& modules, const F& list) {
  std::vector<std::pair<std::string, Slot>> found;
  std::set<const void*> seen;
  for (const nn::Module& module : modules)
    for (auto& [name, slot] : list(module))
      if (seen.insert(slot.id()).second) found.emplace_back(name, slot);
  return found;
}

}  // namespace

Stage::Stage(Modules modules, Device on) : modules_(std::move(modules)), device_(on) {
  check(!modules_.empty(), "[Pipeline] a stage on ", on, " has no modules; give it one, or a function");
  call_ = [list = modules_](const std::vector<Tensor>& inputs) {
    check(inputs.size() == 1, "[Pipeline] ", inputs.size(),
          " tensors arrive, but a list of modules takes 1; let one side fit the other");
    Tensor x = inputs[0];
    for (nn::Module& module : list) x = module(x);
    return std::vector{x};
  };
  name_ = modules_[0].get().type_name();
}

std::vector<std::pair<std::string, nn::Parameter>> Stage::named_parameters() const {
  return each_once<nn::Parameter>(modules_, [](const nn::Module& m) { return m.named_parameters(); });
}
std::vector<std::pair<std::string, nn::Buffer>> Stage::named_buffers() const {
  return each_once<nn::Buffer>(modules_, [](const nn::Module& m) { return m.named_buffers(); });
}

}  // namespace tapestry::distributed
