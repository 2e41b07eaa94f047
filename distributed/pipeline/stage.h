#pragma once
// A stage of a pipeline: a part of the model, and the device on which it computes.
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/distributed/data_parallel/steps.h"
#include "tapestry/distributed/pipeline/call.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// Something over tensors that computes on one device. The tensors in what a stage returns (alone, or in
/// vectors, tuples, pairs, maps, structs, in the order of visit_tensors) are the arguments of the next one,
/// which may take them one by one, as one vector, or in tuples, pairs, arrays and structs. Nothing but
/// tensors travels. Modules stay the user's, who keeps them alive.
class Stage {
 public:
  using Modules = std::vector<std::reference_wrapper<nn::Module>>;

  /// Any module whose forward takes tensors.
  template <std::derived_from<nn::Module> M>
  Stage(M& module, Device on) : Stage(structure::ModuleCall<M>{&module}, on, {module}) {}
  /// Modules that are called one after another, with one tensor each. ValueError for none.
  Stage(Modules modules, Device on);
  /// A function of tensors, and the modules whose parameters it uses:
  ///   {[&](const Tensor& x, const Tensor& mask) { return net.forward({x, mask}, 2); }, "cpu:1", {net}}
  template <class F>
  requires(!std::derived_from<F, nn::Module> && !std::convertible_to<F, Modules>)
      Stage(F function, Device on, Modules modules = {})
      : modules_(std::move(modules)), device_(on) {
    call_ = [function = std::move(function)](const std::vector<Tensor>& inputs) {
      std::vector<Tensor> outputs;
      structure::TensorCall<F>::run(function, inputs,
                                    [&]<class R>(const R& result) { outputs = tensors_in(result).tensors; });
      return outputs;
    };
    name_ = modules_.empty() ? "function" : modules_[0].get().type_name();
  }

  /// The same stage; its modules are called so in the unsplit model, one path each. Without it they are what
  /// they are in the modules that hold them (Module::path), as parts of a whole model are; a part that was
  /// made alone has no path, and its names are as they are in itself.
  ///   Stage({part[0], part[1]}, device).named({"blocks.2", "blocks.3"})
  /// ValueError unless there are as many paths as modules.
  Stage named(std::vector<std::string> paths) const;

  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) const { return call_(inputs); }
  const Modules& modules() const { return modules_; }
  Device device() const { return device_; }
  /// The type of the first module: for messages.
  const std::string& name() const { return name_; }
  /// Of all modules, by the names that they have in the unsplit model; each slot once.
  std::vector<std::pair<std::string, nn::Parameter>> named_parameters() const;
  std::vector<std::pair<std::string, nn::Buffer>> named_buffers() const;
  /// Of all modules, by these names, every name.
  nn::StateDict state_dict() const;

 private:
  std::vector<std::string> paths() const;

  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> call_;
  Modules modules_;
  std::vector<std::string> paths_;  // given by named()
  Device device_;
  std::string name_;
};

}  // namespace tapestry::distributed
