#pragma once
// Stage: a part of the model in a pipeline, and the device on which it computes.
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/distributed/common/batch.h"
#include "tapestry/distributed/pipeline/call.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// A function of tensors that computes on one device. The tensors in its result are the arguments of the next
/// stage. The result may be anything that visit_tensors() looks into. The next stage may take the tensors one
/// by one, as a vector, or in tuples, pairs, arrays and structs. Values that are not tensors are not passed
/// on. Modules stay the user's and must outlive the stage.
class Stage {
 public:
  using Modules = std::vector<std::reference_wrapper<nn::Module>>;

  /// Makes a stage from a module whose forward takes tensors.
  template <std::derived_from<nn::Module> M>
  Stage(M& module, Device on) : Stage(tensor_call::ModuleCall<M>{&module}, on, {module}) {}
  /// Makes a stage from modules that are called one after another, with one tensor each. Throws ValueError if
  /// the list is empty.
  Stage(Modules modules, Device on);
  /// Makes a stage from any function of tensors. The list has the modules whose parameters the function uses:
  ///     {[&](const Tensor& x, const Tensor& mask) { return net.forward({x, mask}, 2); }, "cpu:1", {net}}
  /// If the list lacks one, Pipeline::forward_backward() throws ValueError with the parameter's path, before
  /// the stage's backward adds any gradient.
  template <class F>
  requires(!std::derived_from<F, nn::Module> && !std::convertible_to<F, Modules>)
      Stage(F function, Device on, Modules modules = {})
      : modules_(std::move(modules)), device_(on) {
    call_ = [function = std::move(function)](const std::vector<Tensor>& inputs) {
      std::vector<Tensor> outputs;
      tensor_call::TensorCall<F>::run(
          function, inputs, [&]<class R>(const R& result) { outputs = tensors_in(result).tensors; });
      return outputs;
    };
    name_ = modules_.empty() ? "function" : modules_[0].get().type_name();
  }

  /// Returns the same stage with the paths that its modules have in the unsplit model, one per module. By
  /// default a module's path is Module::path(), which is right for parts of a larger module. A module that
  /// was constructed alone has an empty path, so its tensors have no prefix.
  ///   Stage({part[0], part[1]}, device).named({"blocks.2", "blocks.3"})
  /// Throws ValueError unless there are as many paths as modules.
  Stage named(std::vector<std::string> paths) const;

  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) const { return call_(inputs); }
  const Modules& modules() const { return modules_; }
  Device device() const { return device_; }
  /// The type of the first module, or "function". Error messages use it.
  const std::string& name() const { return name_; }
  /// The slots of all modules with their names in the unsplit model. Each slot is listed once.
  std::vector<std::pair<std::string, nn::Parameter>> named_parameters() const;
  std::vector<std::pair<std::string, nn::Buffer>> named_buffers() const;
  /// The state of all modules under these names. A slot with several names is listed under each.
  nn::StateDict state_dict() const;
  /// The slots of state_dict() under the same names.
  std::vector<std::pair<std::string, nn::TensorSlot>> named_state() const;

 private:
  std::vector<std::string> paths() const;

  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> call_;
  Modules modules_;
  std::vector<std::string> paths_;  // set by named()
  Device device_;
  std::string name_;
};

}  // namespace tapestry::distributed
