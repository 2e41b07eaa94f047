#pragma once
// The base of all optimizers: parameter groups, state, and steps of each replica on its own device.
//
//   optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
#include <array>
#include <cstdint>
#include <set>
#include <string>
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
struct ReplicaDevice;
}

namespace tapestry::optim {

using nn::LoadResult;
using nn::Parameter;
using nn::StateDict;

/// A list of parameters that share options.
template <class Options>
struct ParamGroup {
  std::vector<Parameter> params;
  Options options;
};

/// A reference to one number or flag of a group's options, with its name.
struct OptionRef {
  const char* name;
  double* number = nullptr;
  bool* flag = nullptr;
  std::int64_t* integer = nullptr;

  OptionRef(const char* n, double& value) : name(n), number(&value) {}
  OptionRef(const char* n, bool& value) : name(n), flag(&value) {}
  OptionRef(const char* n, std::int64_t& value) : name(n), integer(&value) {}
  double get() const { return number ? *number : integer ? static_cast<double>(*integer) : (*flag ? 1 : 0); }
  /// An integer option rounds the value down. Values that it cannot hold, such as NaN, become -1.
  void set(double value) const;
};

/// How an optimizer updates f16 and bf16 parameters. An update that is smaller than half the distance between
/// two neighbouring values is lost if the new value is rounded to the nearest one: a bf16 parameter near 1
/// does not move by less than 2^-9. All other parameters are updated in their own dtype. In every case the
/// step is computed in f32, and the other states, such as momenta, are f32 too.
enum class LowPrecision : std::uint8_t {
  /// Keeps the parameter in f32, too, in the state "master_param" (Micikevicius et al., "Mixed precision
  /// training", 2018). A step updates this copy, and the parameter becomes its nearest value. Training is
  /// that
  /// of an f32 parameter whose values are rounded for forward. It needs 4 bytes per element.
  master,
  /// Rounds up or down at random so that the mean is the exact value (Gupta et al., "Deep learning with
  /// limited numerical precision", 2015). The random bits are a function of the parameter's number, the
  /// element and the step: they are the same on all devices and ranks, for shards, and after a restart. It
  /// needs no memory.
  stochastic,
  /// Rounds to nearest.
  none
};

/// A tensor of an optimizer's state. It shares memory with the optimizer, except for options and counts.
struct StateTensor {
  std::string key;          ///< its key in Optimizer::state_dict()
  std::int64_t param = -1;  ///< the number of its parameter, or -1
  bool like_param = false;  ///< whether it has an element for each element of the parameter
  Tensor tensor;
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual const char* name() const = 0;

  /// Updates every parameter that has a gradient, in all replicas. If there are several replicas or several
  /// CPU devices, each device's worker updates its parameters, and all workers run at the same time.
  /// Otherwise the calling thread does the work. While sharded parameters are whole (unshard()), it is
  /// collective, and gathers them again.
  void step() {
    step_all();
    ++steps_;
  }
  /// The step of a GradScaler without a read by the host, as that of PyTorch's fused optimizers. Divides the
  /// gradients by `loss_scale` in the same pass over memory; grad() keeps its values. If `found_inf` is not
  /// 0, the step changes nothing: no parameter, no state and no step count. Both hold one f32, which the
  /// device reads; `loss_scale` may be undefined, which stands for 1. Throws ValueError for other tensors,
  /// and unless supports_device_scaling().
  void step(const Tensor& loss_scale, const Tensor& found_inf);
  /// Whether step(loss_scale, found_inf) works. An optimizer that overrides update() and passes the StepItems
  /// on to a fused kernel of the library may return true.
  virtual bool supports_device_scaling() const { return false; }
  /// Clears the gradients of all replicas.
  void zero_grad(bool set_to_none = true);
  /// The number of calls of step() that returned, since construction.
  std::uint64_t steps() const { return steps_; }
  /// What must be equal on all ranks that train one model, one line each: steps(), the gradient scale, and
  /// the options of all groups, as "AdamW group 0 lr 0.1". `of` follows the name.
  std::string describe(const std::string& of = {}) const;

  std::size_t num_groups() const { return groups_.size(); }
  const std::vector<Parameter>& params(std::size_t group) const { return groups_.at(group).params; }
  std::vector<Parameter> parameters() const;
  double lr(std::size_t group = 0) const { return option(group, "lr"); }
  void set_lr(double lr);                     // sets all groups
  void set_lr(std::size_t group, double lr);  // sets one group
  /// Returns an option of a group by name ("momentum", "beta1"). Throws ValueError if there is no such
  /// option.
  double option(std::size_t group, std::string_view option_name) const;
  void set_option(std::size_t group, std::string_view option_name, double value);
  bool has_option(std::string_view option_name) const;

  /// Sets a factor for the gradients: 1 / loss scale. step() multiplies by it in the same pass over memory.
  /// The default is 1.
  void set_grad_scale(double scale) { grad_scale_ = scale; }

  /// Returns a copy of the options of all groups and the state of all parameters. Parameters are numbered in
  /// the order in which they were added. An f16 or bf16 parameter may have the state master_param
  /// (LowPrecision). The state is that of replica 0; all replicas have the same state. Every tensor is whole:
  /// of the parameters of a ShardedDataParallel the shards' states are put together in host memory. Throws
  /// ValueError if a parameter is sharded over other ranks and has state; use distributed::save_checkpoint(),
  /// or local_state_dict().
  virtual StateDict state_dict() const;
  /// Returns what load_state_dict() needs on this rank to restore the state: the part of this rank, and its
  /// number, if the state is divided among ranks, otherwise state_dict().
  virtual StateDict local_state_dict() const;
  /// Restores the options and the state. A sharded parameter takes its part of whole states. What
  /// local_state_dict() returned is accepted on the rank that it came from. A state without master_param
  /// begins with the parameters' values. Throws one ValueError that lists every
  /// mismatch. If it throws, nothing was loaded.
  virtual void load_state_dict(const StateDict& dict);
  /// Returns the entries of state_dict() for one replica without copying tensors that are like their
  /// parameters, for checkpoints of sharded parameters. Writing to those changes the state.
  virtual std::vector<StateTensor> state_tensors(int replica = 0) const;

 protected:
  Optimizer();
  /// For steps that do not go through step().
  void count_step() { ++steps_; }

  /// Adds a parameter group. The derived class keeps the options. Throws ValueError if the list is empty, or
  /// if a parameter has no slot or belongs to a group already.
  void add_params(std::vector<Parameter> params);
  /// Returns the options of a group in a fixed order.
  virtual std::vector<OptionRef> options_of(std::size_t group) const = 0;
  /// Throws ValueError if an option of the group is out of range.
  virtual void check_options(std::size_t group) const = 0;
  /// Throws ValueError if the optimizer cannot update this parameter. add_params() calls it.
  virtual void check_param(const Parameter&) const {}
  /// Returns the names of a parameter's state tensors, without its step count: at most kMaxState names. State
  /// tensors have the parameter's shape. They are f32 for f16 and bf16 parameters, and have the parameter's
  /// dtype otherwise.
  virtual std::vector<const char*> state_names() const = 0;
  /// True if parameters of this group use the state tensor state_names()[index]. If they use none, they have
  /// no step count either.
  virtual bool uses_state(std::size_t, std::size_t) const { return true; }
  /// Returns the value with which the elements of new state tensors start.
  virtual double initial_state(std::size_t) const { return 0; }
  /// How this group updates f16 and bf16 parameters.
  virtual LowPrecision low_precision(std::size_t) const { return LowPrecision::none; }
  /// Returns the name of a number that each parameter has besides its step count, or null. The number starts
  /// at 1. The kernel finds it behind the step count.
  virtual const char* number_name() const { return nullptr; }
  /// Runs the fused kernel on these parameters of the group. Several threads may call it at the same time for
  /// different devices. Optimizers without a fused kernel override update_tensors() instead.
  virtual void update(std::size_t, Device, DType, const kernels::StepItems&) {}

  static constexpr std::size_t kMaxState = 3;  // state tensors per parameter
  struct State {
    Tensor step;  // f64: 0-d, or 1-d with the step count and the number that number_name() names
    std::array<Tensor, kMaxState> tensors;
    Tensor master;  // f32; undefined unless the parameter is f16 or bf16 and the group uses masters
    // The parameter's memory and its version when the master was last written, to notice other writers.
    const Storage* written = nullptr;
    std::uint32_t version = 0;
  };
  /// A parameter of one replica that has a gradient. The gradient is dense in the parameter's memory format.
  /// `state` is null if the parameter has no state.
  struct Update {
    Tensor param, grad;
    State* state;
    std::int64_t number;  ///< of the parameter, in the order in which parameters were added
    std::int64_t offset;  ///< in elements: where the shard begins in the whole parameter
  };
  /// Updates parameters of a group that are on one device. The base class packs them for update(). Several
  /// threads may call it at the same time for different devices.
  virtual void update_tensors(std::size_t group, const nn::ReplicaDevice& replica_device,
                              const std::vector<Update>& updates);
  double grad_scale() const { return grad_scale_; }
  /// What step(loss_scale, found_inf) was called with, during that call; otherwise undefined.
  const Tensor& loss_scale() const { return loss_scale_; }
  const Tensor& found_inf() const { return found_inf_; }
  /// Does the work of step(). distributed::ZeroRedundancyOptimizer overrides it, because it divides the work
  /// among ranks.
  virtual void step_all();

 private:
  friend void set_steps(Optimizer& optimizer, std::uint64_t steps);
  /// The scalars of a step in device memory. They are written only when they change. A captured CUDA graph
  /// reads them there.
  struct DeviceScalars {
    int replica;
    Device device;
    double lr = 0, grad_scale = 0;
    Tensor memory = {};
  };
  struct Group {
    std::vector<Parameter> params;
    std::vector<std::vector<State>> states;  // [parameter][replica]
    std::vector<DeviceScalars> scalars;      // one per replica and GPU

    DeviceScalars* scalars_of(const nn::ReplicaDevice& replica_device);
  };
  bool has_state(std::size_t group) const;
  bool has_state(std::size_t group, const Tensor& param) const;
  static void refresh_master(State& state, const Tensor& param);
  StateDict copy_state(bool local) const;
  void prepare_state(std::size_t group, std::size_t index, int replica);
  void prepare(const nn::ReplicaDevice& replica_device);
  void step_on(const nn::ReplicaDevice& replica_device);
  static const kernels::StepScalars* on_device(const kernels::StepScalars& scalars, DeviceScalars& written);
  template <class F>
  void for_params(const F& fn) const;

  std::vector<Group> groups_;
  std::set<const void*> known_;  // the ids of the parameters of all groups
  double grad_scale_ = 1;
  std::uint64_t steps_ = 0;
  Tensor loss_scale_, found_inf_;  // of a step(loss_scale, found_inf) that runs
};

/// An Optimizer with an options struct of type O per group.
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
  LowPrecision low_precision(std::size_t group) const override {
    if constexpr (requires(O o) { o.low_precision; }) return options_.at(group).low_precision;
    return LowPrecision::none;
  }

 private:
  std::vector<O> options_;
};

}  // namespace tapestry::optim
