#include "tapestry/distributed/pipeline/stage.h"

#include <set>

#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// Joins the results of list(module) for all modules, each slot once.
template <class Slot, class F>
std::vector<std::pair<std::string, Slot>> each_once(const Stage::Modules& modules,
                                                    const std::vector<std::string>& paths, const F& list) {
  std::vector<std::pair<std::string, Slot>> found;
  std::set<const void*> seen;
  for (std::size_t i = 0; i < modules.size(); ++i)
    for (auto& [name, slot] : list(modules[i].get()))
      if (seen.insert(slot.id()).second) found.emplace_back(join(paths[i], name), slot);
  return found;
}

}  // namespace

Stage::Stage(Modules modules, Device on) : modules_(std::move(modules)), device_(on) {
  check(!modules_.empty(), "[Pipeline] a stage on ", on,
        " has no modules; pass one module or more, or a function");
  call_ = [list = modules_](const std::vector<Tensor>& inputs) {
    check(inputs.size() == 1, "[Pipeline] ", inputs.size(),
          " tensors arrive, but a list of modules takes 1; change this stage or the previous one");
    Tensor x = inputs[0];
    for (nn::Module& module : list) x = module(x);
    return std::vector{x};
  };
  name_ = modules_[0].get().type_name();
}

Stage Stage::named(std::vector<std::string> paths) const {
  check(paths.size() == modules_.size(), "[Pipeline] ", paths.size(), " paths for the ", modules_.size(),
        " modules of a stage (", name_, "); pass one path per module");
  Stage same = *this;
  same.paths_ = std::move(paths);
  return same;
}

std::vector<std::string> Stage::paths() const {
  if (!paths_.empty()) return paths_;
  std::vector<std::string> found;
  for (const nn::Module& module : modules_) found.push_back(module.path());
  return found;
}

std::vector<std::pair<std::string, nn::Parameter>> Stage::named_parameters() const {
  return each_once<nn::Parameter>(modules_, paths(),
                                  [](const nn::Module& m) { return m.named_parameters(); });
}
std::vector<std::pair<std::string, nn::Buffer>> Stage::named_buffers() const {
  return each_once<nn::Buffer>(modules_, paths(), [](const nn::Module& m) { return m.named_buffers(); });
}

std::vector<std::pair<std::string, nn::TensorSlot>> Stage::named_state() const {
  std::vector<std::pair<std::string, nn::TensorSlot>> all;
  const std::vector<std::string> prefixes = paths();
  for (std::size_t i = 0; i < modules_.size(); ++i)
    for (auto& [name, slot] : modules_[i].get().named_state())
      all.emplace_back(join(prefixes[i], name), slot);
  return all;
}

nn::StateDict Stage::state_dict() const {
  nn::StateDict all;
  const std::vector<std::string> prefixes = paths();
  for (std::size_t i = 0; i < modules_.size(); ++i)
    for (auto& [name, tensor] : modules_[i].get().state_dict())
      all.emplace_back(join(prefixes[i], name), tensor);
  return all;
}

}  // namespace tapestry::distributed
