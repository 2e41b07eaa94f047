#pragma once
// A Module owns named parameters, buffers and child modules, in registration order.
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
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/hook_list.h"
#include "tapestry/core/structure.h"
#include "tapestry/core/tensor.h"
#include "tapestry/nn/parameter.h"
#include "tapestry/nn/state_dict.h"

namespace tapestry::nn {

class Module;

/// A hook that is called before forward() with the tensors among its arguments. It may replace them in place.
using ForwardPreHook = std::function<void(Module& module, std::vector<Tensor>& inputs)>;
/// A hook that is called after forward() with the tensors among its arguments and in its result. It may
/// replace the outputs.
using ForwardHook =
    std::function<void(Module& module, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs)>;

/// T has a nested struct T::Options and a constructor that takes it.
template <class T>
concept HasOptions = requires {
  typename T::Options;
}
&&std::constructible_from<T, const typename T::Options&>;

/// T's constructor takes the arguments, or the arguments are the first members of T::Options, in order.
template <class T, class... Args>
concept MadeFrom = std::constructible_from<T, Args...> || requires(Args&&... args) {
  T(typename T::Options{std::forward<Args>(args)...});
};

/// Creates a module from the arguments of its constructor, or from its first options in order:
/// make<Conv2d>(3, 8, 5) has 3 input channels, 8 output channels and a kernel of 5 x 5. Options beyond the
/// first ones have names, so write them as Conv2d::Options{...}.
template <class T, class... Args>
requires MadeFrom<T, Args...> std::shared_ptr<T> make(Args&&... args) {
  if constexpr (std::constructible_from<T, Args...>) return std::make_shared<T>(std::forward<Args>(args)...);
  else return std::make_shared<T>(typename T::Options{std::forward<Args>(args)...});
}

/// A hook that is called before anything else of a call of the module. The object that it returns is
/// destroyed when the call ends, by return or by an exception.
using ForwardScope = std::function<std::shared_ptr<void>(Module& module)>;

class Module {
 public:
  Module();
  virtual ~Module();
  // A module cannot be copied: its slots hold the tensors of all replicas.
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Computes the result. A derived class may instead declare a forward with any other signature. Derive such
  /// a class from nn::Callable, or call it through nn::call(module, ...).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"  // g++ 13 warns about another signature
  virtual Tensor forward(const Tensor& x);
#pragma GCC diagnostic pop
  /// Runs hooks and forward(x). Adds this module's path, type and options to an error that is thrown inside.
  /// A const module can be called, as a const Tensor can be written to: const protects the handle, and not
  /// the parameters and statistics behind it. Do not define a variable as const whose forward changes
  /// members.
  Tensor operator()(const Tensor& x) const;

  // ---- contents ----
  /// Returns all parameters of this module and its descendants. A shared slot appears once. After
  /// distributed::fully_shard(), a parameter is this rank's shard outside of the module's calls and backward.
  std::vector<Parameter> parameters() const;
  std::vector<std::pair<std::string, Parameter>> named_parameters() const;
  std::vector<Buffer> buffers() const;
  std::vector<std::pair<std::string, Buffer>> named_buffers() const;
  /// Returns the direct children.
  std::vector<Module*> children() const;
  std::vector<std::pair<std::string, Module*>> named_children() const;
  /// Returns this module and its descendants, parents before children. A shared module appears once.
  std::vector<Module*> modules() const;
  std::vector<std::pair<std::string, Module*>> named_modules() const;
  /// Returns the module at a path such as "blocks.0.fc". The empty path is this module. Throws ValueError if
  /// there is none.
  Module& at(std::string_view path) const;
  /// Calls fn with every descendant, children before their parents, and then with this module.
  Module& apply(const std::function<void(Module&)>& fn);

  /// Returns the path from the root, such as "blocks.0.fc". It is empty for a root.
  std::string path() const;
  /// Returns the topmost module that contains this one, or this module itself.
  const Module& root() const;
  /// Returns the class name, such as "Linear".
  virtual std::string type_name() const;
  /// Returns the text inside the parentheses of "Linear(in_features=784, out_features=10, bias=true)".
  virtual std::string options_text() const { return {}; }
  /// Returns why this module's own forward() would be wrong on several ranks or replicas, each with a part of
  /// the batch, or an empty text if it would not. DDP, DataParallel and fully_shard() refuse such a model.
  virtual std::string why_not_divided() const { return {}; }
  /// Returns the module tree, with one module per line. Modules below 1,000 levels are shown as "...".
  std::string str() const;

  // ---- use ----
  /// Sets training or evaluation mode for this module and its descendants. Dropout and batch norm depend on
  /// it. Calls train() of each child. Throws ValueError if modules are nested more than 10,000 deep; the
  /// upper modules have changed their mode by then.
  virtual void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Moves all parameters, buffers and gradients. A dtype converts only floating-point tensors. The slots
  /// stay the same, so optimizers remain valid. The tensors are new, so hooks on the old tensors are lost.
  /// Throws ValueError if the module has several replicas, or if a sharded parameter is whole now
  /// (unshard()).
  void to(Device device);
  void to(DType dtype);
  void to(Device device, DType dtype);
  /// Stores the 4-d parameters and buffers in this memory format. A convolution whose weight or input is
  /// channels-last computes a channels-last result, and pooling, normalisation and pointwise operations keep
  /// that format. So `net.to(MemoryFormat::channels_last)` is enough to run a CNN channels-last.
  void to(MemoryFormat format);
  /// Gives all parameters and buffers new, uninitialised memory on `device`, whatever their device was, as in
  /// PyTorch; see nn/materialize.h for a module of the meta device whose initial values are wanted. The slots
  /// stay the same. Gradients and hooks on the old tensors are lost. Throws ValueError if the module has
  /// several replicas.
  void to_empty(Device device);
  /// Clears the gradients of all replicas.
  void zero_grad(bool set_to_none = true);
  /// Freezes (false) or unfreezes (true) all parameters in all replicas. Throws ValueError if a sharded
  /// parameter is whole now (unshard()).
  void requires_grad_(bool on = true);

  /// Returns parameters and persistent buffers under PyTorch's names. The tensors share storage with the
  /// module. They are the tensors of the context's replica. Every tensor is whole: of the parameters of a
  /// ShardedDataParallel they are copies in host memory. Throws ValueError, with the name, if a parameter is
  /// sharded over other ranks; call it while FullyShard::unshard(true) lasts, or use
  /// distributed::save_checkpoint().
  StateDict state_dict() const;
  /// The slots whose values state_dict() returns, under the same names. A shared slot is listed under each of
  /// its names.
  std::vector<std::pair<std::string, TensorSlot>> named_state() const;
  /// Copies the values into all replicas, and converts devices and dtypes. A sharded parameter takes its part
  /// of the whole tensor, so all ranks must pass the same values. Throws one ValueError that lists
  /// every wrong shape and, if `strict`, every missing and unexpected key. If it throws, nothing was loaded.
  /// A parameter or buffer on the meta device is replaced by a copy of its value, on the value's device and
  /// in the module's dtype (PyTorch: assign=True). The copy keeps requires_grad.
  LoadResult load_state_dict(const StateDict& dict, bool strict = true);

  /// Returns a table of all modules with output shapes, parameters and memory. `run` calls
  /// the module, in evaluation mode and without gradients. Modules below 1,000 levels share a line.
  std::string summary(const std::function<void()>& run);
  /// Returns the same table for a call with one tensor of this shape. Without an argument, the table has no
  /// output shapes.
  std::string summary(const Tensor& input);
  std::string summary(const Shape& input_shape, DType dtype = DType::f32);
  std::string summary();

  /// Hooks run in the order of registration. They may be registered and removed while other threads run
  /// forward: a call that has already begun to run its hooks runs the hooks that it began with.
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  HookHandle register_forward_scope(ForwardScope scope);

  // ---- registration, in constructors and member initialisers ----
  /// Creates a child module: add<Linear>("fc", {.in_features = 4, .out_features = 2}). The options are taken
  /// by value: with a reference to the braced list, g++ 12 -O3 warns about a dangling pointer in the user's
  /// file.
  template <HasOptions T>
  T& add(const std::string& name, typename T::Options options) {
    return add(name, std::make_shared<T>(std::move(options)));
  }
  /// Creates a child module from the arguments of its constructor, or from its first options in order:
  /// add<Linear>("fc", 4, 2).
  template <std::derived_from<Module> T, class... Args>
  requires MadeFrom<T, Args...> T& add(const std::string& name, Args&&... args) {
    return add(name, make<T>(std::forward<Args>(args)...));
  }
  /// Adds an existing module: a std::unique_ptr, or a std::shared_ptr that others may share.
  template <class Pointer>
  requires std::derived_from<typename Pointer::element_type, Module>
  auto& add(const std::string& name, Pointer module) {
    auto* made = module.get();
    add_child(name, std::move(module));
    return *made;
  }
  /// Registers a trained tensor. An undefined tensor registers the name alone, such as the bias of a layer
  /// without bias.
  Parameter& param(const std::string& name, const Tensor& init);
  /// Registers an existing slot, to tie weights.
  Parameter& param(const std::string& name, const Parameter& shared);
  /// Registers a tensor that is not trained. It is part of state_dict() if `persistent`.
  Buffer& buffer(const std::string& name, const Tensor& init, bool persistent = true);

  // ---- for nn::call ----
  bool has_hooks() const {
    return !pre_hooks_.empty() || !hooks_.empty() || !scopes_.empty() || !computed_.empty();
  }
  /// Calls the forward scopes. The returned objects are in the order of registration, and the caller destroys
  /// them in reverse order.
  std::vector<std::shared_ptr<void>> enter_scopes();
  /// The parameters that are computed once per call.
  const std::vector<Parameter>& computed_parameters() const { return computed_; }
  void run_pre_hooks(std::vector<Tensor>& inputs);
  void run_hooks(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  /// Adds this module's path, type and options to the error.
  void add_place(Error& error) const;

 private:
  friend class Parametrizations;
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

  void add_child(const std::string& name, std::shared_ptr<Module> module);
  void remove_child(const std::string& name);
  Parameter exchange_param(const std::string& name, const Parameter& slot);
  void check_name(const char* op, const std::string& name) const;
  bool contains(const Module& other) const;
  enum class Shared { once, each_path };
  template <class Enter, class Leave>
  void walk(Shared shared, const Enter& enter, const Leave& leave) const;
  template <class Entry, class F>
  void for_each_slot(std::deque<Entry> Module::*entries, const F& fn) const;
  template <class F>
  void for_each_state(const F& fn) const;
  template <class F>
  void replace_tensors(const char* op, const F& convert);
  void append_tree(std::string& out, int depth) const;

  bool training_ = true;
  Module* parent_ = nullptr;       // the first module that added this one as a child
  int parents_ = 0;                // how often living modules have this one as a child
  std::string name_;               // the name under which parent_ added it
  std::deque<ParamEntry> params_;  // deques keep addresses: members of derived classes refer to the slots
  std::deque<BufferEntry> buffers_;
  std::vector<ChildEntry> children_;
  std::set<std::string> names_;  // of parameters, buffers and children
  std::vector<Parameter> computed_;        // the slots among params_ that are computed
  HookList<ForwardPreHook> pre_hooks_;
  HookList<ForwardHook> hooks_;
  HookList<ForwardScope> scopes_;
};

std::ostream& operator<<(std::ostream& out, const Module& module);

namespace detail {

/// Types whose tensors hooks see and may replace: a tensor, or a vector, pair, tuple or array of tensors.
template <class T>
concept ShownToHooks = std::is_same_v<T, Tensor> || std::is_same_v<T, std::vector<Tensor>> || requires {
  std::tuple_size<T>::value;
};
/// The type that holds an argument while hooks run: a copy if hooks may replace its tensors, else a
/// reference.
template <class Arg>
using Held = std::conditional_t<ShownToHooks<std::remove_cvref_t<Arg>>, std::remove_cvref_t<Arg>, Arg&&>;

// Calls f(tensor) for each tensor that hooks see. Structs, maps and optionals inside a tuple are skipped.
// core/structure.h supports only a limited number of members, and a larger struct must not make a module fail
// to compile.
template <class T, class F>
void for_each_hook_tensor(T& value, const F& f) {
  using V = std::remove_const_t<T>;
  if constexpr (requires { std::tuple_size<V>::value; })
    std::apply([&](auto&... parts) { (for_each_hook_tensor(parts, f), ...); }, value);
  else if constexpr (ShownToHooks<V>) structure::for_each<Tensor>(value, f);
}
template <class T>
std::vector<Tensor> hook_tensors(T& value) {
  std::vector<Tensor> list;
  for_each_hook_tensor(value, [&](const Tensor& t) { list.push_back(t); });
  return list;
}
template <class T>
void assign_hook_tensors(T& value, const std::vector<Tensor>& list) {
  auto next = list.begin();
  for_each_hook_tensor(value, [&](Tensor& t) { t = *next++; });
}

void check_hook_count(const Module& module, std::size_t before, std::size_t after);

/// Ends the forward scopes of a call, the last one first.
struct ScopesOfCall {
  std::vector<std::shared_ptr<void>> scopes;
  ~ScopesOfCall() {
    while (!scopes.empty()) scopes.pop_back();
  }
};

template <class M, class... Args>
auto call_with_hooks(M& module, Args&&... args) {
  const ScopesOfCall scopes{module.enter_scopes()};
  const ComputedTensors computed(module.computed_parameters());
  std::tuple<Held<Args>...> held(std::forward<Args>(args)...);
  std::vector<Tensor> inputs = hook_tensors(held), outputs;
  const std::size_t num_inputs = inputs.size();
  module.run_pre_hooks(inputs);
  check_hook_count(module, num_inputs, inputs.size());
  assign_hook_tensors(held, inputs);
  const auto forward = [&] {
    return std::apply([&](auto&... a) { return module.forward(static_cast<Args&&>(a)...); }, held);
  };
  if constexpr (std::is_void_v<decltype(forward())>) {
    forward();
    module.run_hooks(inputs, outputs);
    check_hook_count(module, 0, outputs.size());
  } else {
    auto result = forward();
    outputs = hook_tensors(result);
    const std::size_t num_outputs = outputs.size();
    module.run_hooks(inputs, outputs);
    check_hook_count(module, num_outputs, outputs.size());
    assign_hook_tensors(result, outputs);
    return result;
  }
}

}  // namespace detail

/// Runs hooks and module.forward(args...), for any signature of forward. Adds the module's path to errors.
/// Hooks see the tensors among the arguments and in the result, also inside vectors, pairs and tuples.
/// `constant` may be const; see Module::operator().
template <std::derived_from<Module> M, class... Args>
auto call(M& constant, Args&&... args) {
  auto& module = const_cast<std::remove_const_t<M>&>(constant);
  try {
    if (!module.has_hooks()) [[likely]]
      return module.forward(std::forward<Args>(args)...);
    return detail::call_with_hooks(module, std::forward<Args>(args)...);
  } catch (Error& error) {
    module.add_place(error);
    throw;
  }
}

/// The base class of a module whose forward has another signature than Module::forward. Then m(a, b) is
/// call(m, a, b): it runs hooks, and errors name the module's path. Default arguments of forward apply.
///
///   struct Attend : nn::Callable<Attend> {
///     Tensor forward(const Tensor& query, const Tensor& key, double scale = 1);
///   };
///   Tensor y = attend(query, key);
///
/// A braced list has no type that operator() could pass on; name it, as in attend(query, Options{...}). clang
/// warns that forward hides Module::forward, unless the class also has `using Module::forward;`.
template <class Derived>
class Callable : public Module {
 public:
  template <class... Args>
  auto operator()(Args&&... args) const {
    return call(static_cast<const Derived&>(*this), std::forward<Args>(args)...);
  }
};

}  // namespace tapestry::nn
