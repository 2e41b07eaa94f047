#pragma once
// Module: named parameters, buffers and children, in the order in which they were registered.
//
//   struct Net : nn::Module {
//     nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
//     nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = 10});
//     Tensor forward(const Tensor& x) override { return fc(conv(x).flatten(1)); }
//   };
#include <concepts>
#include <deque>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/nn/parameter.h"
#include "tapestry/nn/state_dict.h"

namespace tapestry::nn {

class Module;

/// Called before forward() with the tensors among its arguments; may replace them in place.
using ForwardPreHook = std::function<void(Module& module, std::vector<Tensor>& inputs)>;
/// Called after forward() with the tensors among its arguments and in its result; may replace the outputs.
using ForwardHook =
    std::function<void(Module& module, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs)>;

/// A T that T::Options says how to make.
template <class T>
concept HasOptions = requires {
  typename T::Options;
}
&&std::constructible_from<T, const typename T::Options&>;

class Module {
 public:
  Module();
  virtual ~Module();
  // Never copied: replicas live in the slots.
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Computes the result. A module whose forward takes or returns something else declares its own, with any
  /// signature, and is called through nn::call(module, ...), which runs hooks and names the module in errors.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"  // g++ 13 and later: any signature is meant
  virtual Tensor forward(const Tensor& x);
#pragma GCC diagnostic pop
  /// forward(x), with hooks; an error on the way says in which module: path, type and options.
  Tensor operator()(const Tensor& x);

  // ---- what it is made of ----
  /// All parameters of this module and those below, each slot once.
  std::vector<Parameter> parameters() const;
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;
  std::vector<Buffer> buffers() const;
  std::vector<std::pair<std::string, Buffer>> named_buffers() const;
  /// The modules directly below.
  std::vector<Module*> children() const;
  std::vector<std::pair<std::string, Module*>> named_children() const;
  /// This module and all below, parents first, each once.
  std::vector<Module*> modules() const;
  std::vector<std::pair<std::string, Module*>> named_modules() const;
  /// The module at a path such as "blocks.0.fc"; the empty path is this module. Throws ValueError.
  Module& at(std::string_view path) const;
  /// Calls fn with every module below, children before their parents, and last with this one.
  Module& apply(const std::function<void(Module&)>& fn);

  /// The name from the root down, "blocks.0.fc"; empty for a root.
  std::string path() const;
  /// "Linear"
  virtual std::string type_name() const;
  /// What is in the parentheses of "Linear(in_features=784, out_features=10, bias=true)".
  virtual std::string options_text() const { return {}; }
  /// The tree of modules, one a line.
  std::string str() const;

  // ---- what is done with it ----
  /// Training or evaluation, for this module and all below (dropout, batch norm).
  virtual void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Moves all parameters and buffers, and gradients with them; a dtype changes floating ones only. The slots
  /// stay, so optimizers do too. The tensors are new: hooks registered on the old ones are not moved.
  /// ValueError while there are several replicas.
  void to(Device device);
  void to(DType dtype);
  void to(Device device, DType dtype);
  /// Of all replicas.
  void zero_grad(bool set_to_none = true);
  /// Freezes (false) or thaws all parameters, in all replicas.
  void requires_grad_(bool on = true);

  /// Parameters and persistent buffers by name, PyTorch's names; they share the elements with the module. Of
  /// the context's replica.
  StateDict state_dict() const;
  /// Copies the values into all replicas; devices and dtypes are converted. Throws ValueError that lists
  /// everything that is wrong: shapes that differ, and if `strict` names that are missing or unexpected. Then
  /// nothing was loaded.
  LoadResult load_state_dict(const StateDict& dict, bool strict = true);

  /// A table of all modules: output shapes, parameters, memory. `run` calls the module in any way; it runs in
  /// evaluation mode without gradients.
  std::string summary(const std::function<void()>& run);
  /// The same for a module called with one tensor; without a shape, what is known without a call.
  std::string summary(const Tensor& input);
  std::string summary(const Shape& input_shape, DType dtype = DType::f32);
  std::string summary();

  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);

  // ---- registration, for constructors and member initialisers ----
  /// Makes a module below this one.
  template <HasOptions T>
  T& add(const std::string& name, const typename T::Options& options) {
    return add(name, std::make_shared<T>(options));
  }
  template <std::derived_from<Module> T, class... Args>
  requires std::constructible_from<T, Args...> T& add(const std::string& name, Args&&... args) {
    return add(name, std::make_shared<T>(std::forward<Args>(args)...));
  }
  /// Takes one that exists already: a std::unique_ptr, or a std::shared_ptr to one that others use too.
  template <class Pointer>
  requires std::derived_from<typename Pointer::element_type, Module>
  auto& add(const std::string& name, Pointer module) {
    auto* made = module.get();
    add_child(name, std::move(module));
    return *made;
  }
  /// A trained tensor. Undefined: a name without a tensor (a layer without bias).
  Parameter& param(const std::string& name, const Tensor& init);
  /// A slot that exists already: tied weights.
  Parameter& param(const std::string& name, const Parameter& shared);
  /// State that is not trained; `persistent`: part of state_dict().
  Buffer& buffer(const std::string& name, const Tensor& init, bool persistent = true);

  // ---- for nn::call ----
  bool has_hooks() const { return hooks_ && (!hooks_->before.empty() || !hooks_->after.empty()); }
  void run_pre_hooks(std::vector<Tensor>& inputs);
  void run_hooks(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  /// Adds this module's path, type and options to the error.
  void add_place(Error& error) const;

 private:
  struct ParamEntry {
    std::string name;
    Parameter slot;
  };
  struct BufferEntry {
    std::string name;
    Buffer slot;
    bool persistent;
  };
  struct ChildEntry {
    std::string name;
    std::shared_ptr<Module> module;
  };
  template <class F>
  struct HookList {
    std::uint64_t next_id = 0;
    std::vector<std::pair<std::uint64_t, F>> list;
    bool empty() const { return list.empty(); }
  };
  struct Hooks {
    HookList<ForwardPreHook> before;
    HookList<ForwardHook> after;
  };

  void add_child(const std::string& name, std::shared_ptr<Module> module);
  void check_name(const char* op, const std::string& name) const;
  template <class F>
  void visit(const std::string& prefix, const F& fn) const;
  template <class F>
  void replace_tensors(const char* op, const F& convert);
  template <class F>
  HookHandle add_hook(HookList<F> Hooks::*list, F hook);
  void append_tree(std::string& out, int depth) const;

  bool training_ = true;
  Module* parent_ = nullptr;       // the first one that took this module
  std::string name_;               // its name there
  std::deque<ParamEntry> params_;  // deques: members of modules refer to the slots
  std::deque<BufferEntry> buffers_;
  std::vector<ChildEntry> children_;
  std::shared_ptr<Hooks> hooks_;  // shared with handles
};

std::ostream& operator<<(std::ostream& out, const Module& module);

namespace detail {

/// What hooks see and may replace: tensors alone, in a vector, pair, tuple or array.
template <class T>
concept ShownToHooks = std::is_same_v<T, Tensor> || std::is_same_v<T, std::vector<Tensor>> || requires {
  std::tuple_size<T>::value;
};
/// How an argument is held while hooks run: a copy of what they may replace, anything else as it was given.
template <class Arg>
using Held = std::conditional_t<ShownToHooks<std::remove_cvref_t<Arg>>, std::remove_cvref_t<Arg>, Arg&&>;

// Moves tensors between arguments or results and the list that hooks see.
enum class Transfer { collect, assign };

template <Transfer way, class T>
void transfer(T& value, std::vector<Tensor>& list, std::size_t& at) {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<V, Tensor>) {
    if constexpr (way == Transfer::collect) list.push_back(value);
    else value = list[at++];
  } else if constexpr (std::is_same_v<V, std::vector<Tensor>>) {
    for (auto& t : value) transfer<way>(t, list, at);
  } else if constexpr (requires { std::tuple_size<V>::value; }) {
    std::apply([&](auto&... parts) { (transfer<way>(parts, list, at), ...); }, value);
  }
}

template <Transfer way, class T>
void transfer_all(T& value, std::vector<Tensor>& list) {
  std::size_t at = 0;
  transfer<way>(value, list, at);
}

void check_hook_count(const Module& module, std::size_t before, std::size_t after);

template <class M, class... Args>
auto call_with_hooks(M& module, Args&&... args) {
  std::tuple<Held<Args>...> held(std::forward<Args>(args)...);
  std::vector<Tensor> inputs, outputs;
  transfer_all<Transfer::collect>(held, inputs);
  const std::size_t num_inputs = inputs.size();
  module.run_pre_hooks(inputs);
  check_hook_count(module, num_inputs, inputs.size());
  transfer_all<Transfer::assign>(held, inputs);
  const auto forward = [&] {
    return std::apply([&](auto&... a) { return module.forward(static_cast<Args&&>(a)...); }, held);
  };
  if constexpr (std::is_void_v<decltype(forward())>) {
    forward();
    module.run_hooks(inputs, outputs);
    check_hook_count(module, 0, outputs.size());
  } else {
    auto result = forward();
    transfer_all<Transfer::collect>(result, outputs);
    const std::size_t num_outputs = outputs.size();
    module.run_hooks(inputs, outputs);
    check_hook_count(module, num_outputs, outputs.size());
    transfer_all<Transfer::assign>(result, outputs);
    return result;
  }
}

}  // namespace detail

/// module.forward(args...), whatever its signature, with hooks, and errors that say in which module. Hooks
/// see the tensors among the arguments and in the result: alone, in a vector, pair or tuple.
template <std::derived_from<Module> M, class... Args>
auto call(M& module, Args&&... args) {
  try {
    if (!module.has_hooks()) [[likely]]
      return module.forward(std::forward<Args>(args)...);
    return detail::call_with_hooks(module, std::forward<Args>(args)...);
  } catch (Error& error) {
    module.add_place(error);
    throw;
  }
}

inline Tensor Module::operator()(const Tensor& x) { return call(*this, x); }

}  // namespace tapestry::nn
