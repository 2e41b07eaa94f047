#pragma once
// What all optimizers share: groups of parameters, state, and stepping each replica on its own device.
//
//   optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/nn/parameter.h"
#include "tapestry/nn/state_dict.h"

namespace tapestry::kernels {
struct StepItems;
struct StepScalars;
}  // namespace tapestry::kernels
namespace tapestry::nn {
struct Place;
}

namespace tapestry::optim {

using nn::LoadResult;
using nn::Parameter;
using nn::StateDict;

/// Parameters that share options.
template <class Options>
struct ParamGroup {
  std::vector<Parameter> params;
  Options options;
};

/// One number (or switch) among a group's options, by name.
struct OptionRef {
  const char* name;
  double* number = nullptr;
  bool* flag = nullptr;

  OptionRef(const char* n, double& value) : name(n), number(&value) {}
  OptionRef(const char* n, bool& value) : name(n), flag(&value) {}
  double get() const { return number ? *number : (*flag ? 1 : 0); }
  void set(double value) const {
    if (number) *number = value;
    else *flag = value != 0;
  }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual const char* name() const = 0;

  /// Updates every parameter that has a gradient, in all replicas. Where those lie on several CPU devices, or
  /// there are several replicas, each device's worker updates what is there, all at once; otherwise the
  /// calling thread does.
  void step();
  /// Of all replicas.
  void zero_grad(bool set_to_none = true);

  std::size_t num_groups() const { return groups_.size(); }
  const std::vector<Parameter>& params(std::size_t group) const { return groups_.at(group).params; }
  std::vector<Parameter> parameters() const;
  double lr(std::size_t group = 0) const { return option(group, "lr"); }
  void set_lr(double lr);                     // of all groups
  void set_lr(std::size_t group, double lr);  // of one
  /// Any option of a group by its name ("momentum", "beta1"); ValueError when there is none of this name.
  double option(std::size_t group, std::string_view option_name) const;
  void set_option(std::size_t group, std::string_view option_name, double value);
  bool has_option(std::string_view option_name) const;

  /// Gradients are multiplied by this in step(), in the same pass: 1 / loss scale. 1 at first.
  void set_grad_scale(double scale) { grad_scale_ = scale; }

  /// All there is to know: options of the groups and state of the parameters (by number, in the order in
  /// which they were given). A copy. Of replica 0; those of the others are the same.
  StateDict state_dict() const;
  /// Throws ValueError that lists all that does not fit, and then nothing was loaded.
  void load_state_dict(const StateDict& dict);

 protected:
  Optimizer() = default;

  /// Adds a group of parameters; the derived class keeps the options. Throws ValueError: no parameters, one
  /// without a slot, or one that is there already.
  void add_params(std::vector<Parameter> params);
  /// The options of a group, in a fixed order.
  virtual std::vector<OptionRef> options_of(std::size_t group) const = 0;
  /// Throws ValueError if a group's options make no sense.
  virtual void check_options(std::size_t group) const = 0;
  /// Names of the tensors of state that a parameter may have (besides its step count). They are like the
  /// parameter, zero at first.
  virtual std::vector<const char*> state_names() const = 0;
  /// How many of them, from the front, a parameter of this group has; none: no step count either.
  virtual std::size_t num_state(std::size_t group) const = 0;
  /// Runs the fused kernel over these parameters of the group. Several threads may do so, for a device each.
  virtual void update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) = 0;

 private:
  static constexpr std::size_t kMaxState = 3;  // tensors of state per parameter
  struct State {
    Tensor step;  // 0-d, f64
    std::array<Tensor, kMaxState> tensors;
  };
  /// The numbers of a step in memory of a device: written only when they change, and where a captured step
  /// finds them.
  struct DeviceScalars {
    int replica;
    Device device;
    double lr = 0, grad_scale = 0;
    Tensor memory = {};
  };
  struct Group {
    std::vector<Parameter> params;
    std::vector<std::vector<State>> states;  // [parameter][replica]
    std::vector<DeviceScalars> scalars;      // one for each replica and device that is no CPU

    DeviceScalars* scalars_at(const nn::Place& place);
  };
  void prepare_state(std::size_t group, std::size_t index, int replica);
  void prepare(const nn::Place& place);
  void step_at(const nn::Place& place);
  static const kernels::StepScalars* on_device(const kernels::StepScalars& scalars, DeviceScalars& written);
  template <class F>
  void for_params(const F& fn) const;

  std::vector<Group> groups_;
  double grad_scale_ = 1;
};

/// Keeps the options of each group.
template <class O>
class OptimizerWith : public Optimizer {
 public:
  using Options = O;
  using Group = ParamGroup<O>;

  void add_param_group(Group group) {
    options_.push_back(group.options);
    try {
      check_options(options_.size() - 1);
      add_params(std::move(group.params));
    } catch (...) {
      options_.pop_back();
      throw;
    }
  }
  const O& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  std::vector<OptionRef> options_of(std::size_t group) const override {
    return const_cast<O&>(options_.at(group)).refs();
  }

 private:
  std::vector<O> options_;
};

}  // namespace tapestry::optim
