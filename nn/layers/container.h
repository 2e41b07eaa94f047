#pragma once
// Modules that contain a list of modules.
#include <functional>
#include <string>
#include <type_traits>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Wraps a function as a module: `[](const Tensor& x) { return x.transpose(1, 2); }`. The function has no
/// parameters and must not change its captures.
class Function : public Module {
 public:
  explicit Function(std::function<Tensor(const Tensor&)> function);
  Tensor forward(const Tensor& x) override { return function_(x); }

 private:
  std::function<Tensor(const Tensor&)> function_;
};

/// Gives a child of a Sequential a name instead of its index.
template <class Part>
struct Named {
  std::string name;
  Part part;
};
template <class Part>
Named<std::decay_t<Part>> named(std::string name, Part&& part) {
  return {std::move(name), std::forward<Part>(part)};
}

namespace detail {
template <class P>
inline constexpr bool is_named = false;
template <class P>
inline constexpr bool is_named<Named<P>> = true;
}  // namespace detail

/// The common base of Sequential and ModuleList. Its children are named "0", "1", ... in order.
class ModuleListBase : public Module {
 public:
  std::size_t size() const { return modules_.size(); }
  bool empty() const { return modules_.empty(); }
  /// Returns a child. A negative index counts from the end. Throws IndexError.
  Module& operator[](std::int64_t index) const;
  /// Returns a child as its type T. Throws TypeError if it has another type.
  template <std::derived_from<Module> T>
  T& get(std::int64_t index) const {
    T* found = dynamic_cast<T*>(&(*this)[index]);
    check<TypeError>(found != nullptr, "[", type_name(), "] module ", index, " is a ",
                     (*this)[index].type_name(), ", not what get() asked for");
    return *found;
  }
  auto begin() const { return modules_.begin(); }  // iterates over Module*
  auto end() const { return modules_.end(); }

  /// Creates and appends a module of type T as Module::add does, and returns it.
  template <HasOptions T>
  T& append(typename T::Options options) {
    return append(std::make_shared<T>(std::move(options)));
  }
  template <std::derived_from<Module> T, class... Args>
  requires MadeFrom<T, Args...> T& append(Args&&... args) {
    return append(make<T>(std::forward<Args>(args)...));
  }
  template <class Pointer>
  requires std::derived_from<typename Pointer::element_type, Module>
  auto& append(Pointer module) { return append_named(std::to_string(size()), std::move(module)); }

 protected:
  template <class Pointer>
  auto& append_named(const std::string& name, Pointer module) {
    auto& added = Module::add(name, std::move(module));
    modules_.push_back(&added);
    return added;
  }

 private:
  std::vector<Module*> modules_;
};

/// Calls its modules in order. A Linear, Conv2d, BatchNorm1d or BatchNorm2d before a ReLU, and a Linear
/// before a GELU, is computed with it as one operation (fused.h), unless one of the two has hooks. Each
/// constructor argument is the options of a layer, a pointer to a module, or a function:
///
///   nn::Sequential net(nn::Conv2d::Options{.in_channels = 1, .out_channels = 32, .kernel_size = 5},
///                      nn::ReLU::Options{}, nn::MaxPool2d::Options{.kernel_size = 2},
///                      nn::named("head", nn::Linear::Options{.in_features = 4608, .out_features = 10}));
class Sequential : public ModuleListBase {
 public:
  template <class... Parts>
  explicit Sequential(Parts&&... parts) {
    (push_back(std::forward<Parts>(parts)), ...);
  }

  template <class Part>
  Sequential& push_back(Part&& part) {
    return push_named(std::to_string(size()), std::forward<Part>(part));
  }

  Tensor forward(const Tensor& x) override;

 private:
  template <class Part>
  Sequential& push_named(const std::string& name, Part&& part) {
    using P = std::remove_cvref_t<Part>;
    if constexpr (detail::is_named<P>) return push_named(part.name, std::forward<Part>(part).part);
    else if constexpr (requires { typename P::Layer; })
      append_named(name, std::make_shared<typename P::Layer>(part));
    else if constexpr (requires { requires std::derived_from<typename P::element_type, Module>; })
      append_named(name, std::forward<Part>(part));
    else {
      static_assert(!std::derived_from<P, Module>,
                    "modules cannot be copied or moved into a Sequential; write the options, "
                    "nn::Sequential(nn::ReLU::Options{}), or pass std::make_shared<nn::ReLU>()");
      append_named(name, std::make_shared<Function>(std::forward<Part>(part)));
    }
    return *this;
  }
};

/// Holds modules. The parent module calls them.
class ModuleList : public ModuleListBase {};

/// Holds modules under names, in the order of insertion. The parent module calls them:
///
///   nn::ModuleDict& heads = add<nn::ModuleDict>("heads");
///   heads.insert<nn::Linear>("policy", {.in_features = 64, .out_features = 4});
///   Tensor logits = heads["policy"](x);
class ModuleDict : public Module {
 public:
  std::size_t size() const { return modules_.size(); }
  bool empty() const { return modules_.empty(); }
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  std::vector<std::string> keys() const;
  /// Returns a module. Throws IndexError if there is none of this name.
  Module& operator[](const std::string& name) const;
  /// Returns a module as its type T. Throws TypeError if it has another type.
  template <std::derived_from<Module> T>
  T& get(const std::string& name) const {
    T* found = dynamic_cast<T*>(&(*this)[name]);
    check<TypeError>(found != nullptr, "[ModuleDict] module '", name, "' is a ", (*this)[name].type_name(),
                     ", not what get() asked for");
    return *found;
  }
  auto begin() const { return modules_.begin(); }  // iterates over std::pair<std::string, Module*>
  auto end() const { return modules_.end(); }

  /// Creates a module of type T as Module::add does, adds it under this name and returns it. Throws
  /// ValueError if the name is taken, is empty or contains a dot: unlike in PyTorch, a module cannot be
  /// replaced, because others may refer to it.
  template <HasOptions T>
  T& insert(const std::string& name, typename T::Options options) {
    return insert(name, std::make_shared<T>(std::move(options)));
  }
  template <std::derived_from<Module> T, class... Args>
  requires MadeFrom<T, Args...> T& insert(const std::string& name, Args&&... args) {
    return insert(name, make<T>(std::forward<Args>(args)...));
  }
  template <class Pointer>
  requires std::derived_from<typename Pointer::element_type, Module>
  auto& insert(const std::string& name, Pointer module) {
    auto& added = Module::add(name, std::move(module));
    modules_.emplace_back(name, &added);
    return added;
  }

 private:
  Module* find(const std::string& name) const;

  std::vector<std::pair<std::string, Module*>> modules_;
};

/// Holds parameters, which are named "0", "1", ... in order. The parent module uses them.
class ParameterList : public Module {
 public:
  ParameterList() = default;
  explicit ParameterList(const std::vector<Tensor>& tensors) { extend(tensors); }

  std::size_t size() const { return slots_.size(); }
  bool empty() const { return slots_.empty(); }
  /// Returns a parameter. A negative index counts from the end. Throws IndexError.
  Parameter& operator[](std::int64_t index) const;
  auto begin() const { return slots_.begin(); }  // iterates over Parameter*
  auto end() const { return slots_.end(); }

  /// Appends a new parameter with this tensor, as Module::param does, and returns it. Throws ValueError if
  /// the tensor is undefined.
  Parameter& append(const Tensor& init);
  /// Appends an existing slot, to tie weights.
  Parameter& append(const Parameter& shared);
  void extend(const std::vector<Tensor>& tensors);
  std::string options_text() const override;

 private:
  std::vector<Parameter*> slots_;
};

/// Holds parameters under names, in the order of insertion. The parent module uses them.
class ParameterDict : public Module {
 public:
  std::size_t size() const { return slots_.size(); }
  bool empty() const { return slots_.empty(); }
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  std::vector<std::string> keys() const;
  /// Returns a parameter. Throws IndexError if there is none of this name.
  Parameter& operator[](const std::string& name) const;
  auto begin() const { return slots_.begin(); }  // iterates over std::pair<std::string, Parameter*>
  auto end() const { return slots_.end(); }

  /// Adds a new parameter with this tensor and returns it. Throws ValueError if the tensor is undefined, or
  /// if the name is taken, is empty or contains a dot.
  Parameter& insert(const std::string& name, const Tensor& init);
  /// Adds an existing slot, to tie weights.
  Parameter& insert(const std::string& name, const Parameter& shared);
  std::string options_text() const override;

 private:
  Parameter* find(const std::string& name) const;

  std::vector<std::pair<std::string, Parameter*>> slots_;
};

}  // namespace tapestry::nn
