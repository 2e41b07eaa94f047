#include "tapestry/nn/layers/container.h"

#include <algorithm>
#include <typeinfo>

#include "tapestry/nn/layers/activation.h"
#include "tapestry/nn/layers/fused.h"

namespace tapestry::nn {

namespace {

// Returns relu(module(x)) as one operation, or an undefined tensor if there is none for the module. The
// functions of fused.h call the module themselves if it has hooks.
Tensor with_relu(Module& module, const Tensor& x) {
  const std::type_info& type = typeid(module);
  if (type == typeid(Linear)) return linear_relu(static_cast<Linear&>(module), x);
  if (type == typeid(Conv2d)) return conv2d_relu(static_cast<Conv2d&>(module), x);
  if (type == typeid(BatchNorm1d)) return batch_norm_relu(static_cast<BatchNorm1d&>(module), x);
  if (type == typeid(BatchNorm2d)) return batch_norm_relu(static_cast<BatchNorm2d&>(module), x);
  return {};
}
// Returns activation(module(x)) as one operation, or an undefined tensor if there is none for the two.
Tensor with_activation(Module& module, const Module& activation, const Tensor& x) {
  if (activation.has_hooks()) return {};
  if (typeid(activation) == typeid(ReLU)) return with_relu(module, x);
  if (typeid(activation) == typeid(GELU) && typeid(module) == typeid(Linear))
    return linear_gelu(static_cast<Linear&>(module), x,
                       static_cast<const GELU&>(activation).options.approximate == "tanh");
  return {};
}

}  // namespace

Function::Function(std::function<Tensor(const Tensor&)> function) : function_(std::move(function)) {
  check(static_cast<bool>(function_), "[Function] the function is empty; pass something that can be called");
}

Module& ModuleListBase::operator[](std::int64_t index) const {
  const auto count = static_cast<std::int64_t>(size());
  if (index < -count || index >= count)
    fail<IndexError>("[", type_name(), "] index ", index, " is out of range for ", count, " modules");
  return *modules_[static_cast<std::size_t>(index < 0 ? index + count : index)];
}

namespace {
template <class Entries>
auto* find_in(const Entries& entries, const std::string& name) {
  const auto it =
      std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.first == name; });
  return it == entries.end() ? nullptr : it->second;
}
template <class Entries>
std::vector<std::string> keys_of(const Entries& entries) {
  std::vector<std::string> keys;
  for (const auto& [name, value] : entries) keys.push_back(name);
  return keys;
}
template <class Entries>
[[noreturn]] void no_entry(const char* type, const char* what, const std::string& name,
                           const Entries& entries) {
  std::string known;
  for (const auto& [key, value] : entries) known += (known.empty() ? "" : ", ") + key;
  fail<IndexError>("[", type, "] there is no ", what, " '", name, "'; there are: ", known);
}
// The shapes of the parameters, as "0: [2, 3]".
void add_shape(std::string& text, const std::string& name, const Parameter& p) {
  text += (text.empty() ? "" : ", ") + name + ": " + p->sizes().str();
}
}  // namespace

Module* ModuleDict::find(const std::string& name) const { return find_in(modules_, name); }
std::vector<std::string> ModuleDict::keys() const { return keys_of(modules_); }
Module& ModuleDict::operator[](const std::string& name) const {
  Module* const found = find(name);
  if (!found) no_entry("ModuleDict", "module", name, modules_);
  return *found;
}

Parameter& ParameterList::operator[](std::int64_t index) const {
  const auto count = static_cast<std::int64_t>(size());
  if (index < -count || index >= count)
    fail<IndexError>("[ParameterList] index ", index, " is out of range for ", count, " parameters");
  return *slots_[static_cast<std::size_t>(index < 0 ? index + count : index)];
}
Parameter& ParameterList::append(const Tensor& init) {
  tapestry::detail::check_defined("ParameterList", init, "the new parameter");
  return *slots_.emplace_back(&param(std::to_string(size()), init));
}
Parameter& ParameterList::append(const Parameter& shared) {
  check(shared.defined(), "[ParameterList] the parameter has no slot; append a registered one, or a tensor");
  return *slots_.emplace_back(&param(std::to_string(size()), shared));
}
void ParameterList::extend(const std::vector<Tensor>& tensors) {
  for (const Tensor& t : tensors) tapestry::detail::check_defined("ParameterList", t, "a new parameter");
  for (const Tensor& t : tensors) append(t);
}
std::string ParameterList::options_text() const {
  std::string text;
  for (std::size_t i = 0; i < slots_.size(); ++i) add_shape(text, std::to_string(i), *slots_[i]);
  return text;
}

Parameter* ParameterDict::find(const std::string& name) const { return find_in(slots_, name); }
std::vector<std::string> ParameterDict::keys() const { return keys_of(slots_); }
Parameter& ParameterDict::operator[](const std::string& name) const {
  Parameter* const found = find(name);
  if (!found) no_entry("ParameterDict", "parameter", name, slots_);
  return *found;
}
Parameter& ParameterDict::insert(const std::string& name, const Tensor& init) {
  tapestry::detail::check_defined("ParameterDict", init, "the new parameter");
  return *slots_.emplace_back(name, &param(name, init)).second;
}
Parameter& ParameterDict::insert(const std::string& name, const Parameter& shared) {
  check(shared.defined(), "[ParameterDict] the parameter has no slot; insert a registered one, or a tensor");
  return *slots_.emplace_back(name, &param(name, shared)).second;
}
std::string ParameterDict::options_text() const {
  std::string text;
  for (const auto& [name, slot] : slots_) add_shape(text, name, *slot);
  return text;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (std::size_t i = 0; i < size(); ++i) {
    Module& module = *begin()[static_cast<std::ptrdiff_t>(i)];
    if (i + 1 < size())
      if (Tensor result = with_activation(module, *begin()[static_cast<std::ptrdiff_t>(i + 1)], y);
          result.defined()) {
        y = std::move(result);
        ++i;
        continue;
      }
    y = module(y);
  }
  return y;
}

}  // namespace tapestry::nn
