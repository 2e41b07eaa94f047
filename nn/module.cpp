#include "tapestry/nn/module.h"

#include <algorithm>
#include <ostream>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/core/error.h"
#include "tapestry/core/type_name.h"
#include "tapestry/nn/internal/replica_devices.h"

namespace tapestry::nn {

namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::string list_names(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
  return out;
}

}  // namespace

Module::Module() = default;

Module::~Module() {
  for (const ChildEntry& c : children_)
    if (c.module->parent_ == this) c.module->parent_ = nullptr;
}

Tensor Module::forward(const Tensor&) {
  fail("[", type_name(),
       "] forward(const Tensor&) is not defined; call the module through nn::call(module, ...) ",
       "with the arguments that its forward takes, or override forward");
}

// ---- registration ----

void Module::check_name(const char* op, const std::string& name) const {
  // type_name() is called only for errors: it is slow, and a derived class may not be constructed yet.
  if (name.empty() || name.find('.') != std::string::npos)
    fail("[", op, "] '", name, "' cannot be a name in ", type_name(),
         "; use a name that is not empty and contains no dot");
  const auto same = [&](const auto& entry) { return entry.name == name; };
  if (std::any_of(params_.begin(), params_.end(), same) ||
      std::any_of(buffers_.begin(), buffers_.end(), same) ||
      std::any_of(children_.begin(), children_.end(), same))
    fail("[", op, "] ", type_name(), " already has a '", name, "'; use another name");
}

void Module::add_child(const std::string& name, std::shared_ptr<Module> module) {
  check_name("add", name);
  check(module != nullptr, "[add] the module '", name, "' is null; pass one that exists");
  for (const Module* m : module->modules())
    check(m != this, "[add] '", name, "' contains the module that it is added to; modules form a tree");
  if (!module->parent_) {
    module->parent_ = this;
    module->name_ = name;
  }
  children_.push_back({name, std::move(module)});
}

Parameter& Module::param(const std::string& name, const Tensor& init) {
  check_name("param", name);
  return params_.emplace_back(ParamEntry{name, init.defined() ? Parameter(name, init) : Parameter()}).slot;
}

Parameter& Module::param(const std::string& name, const Parameter& shared) {
  check_name("param", name);
  return params_.emplace_back(ParamEntry{name, shared}).slot;
}

Buffer& Module::buffer(const std::string& name, const Tensor& init, bool persistent) {
  check_name("buffer", name);
  return buffers_.emplace_back(BufferEntry{name, init.defined() ? Buffer(name, init) : Buffer(), persistent})
      .slot;
}

// ---- contents ----

std::vector<std::pair<std::string, Module*>> Module::named_modules() const {
  std::vector<std::pair<std::string, Module*>> found;
  std::unordered_set<const Module*> seen;
  const auto walk = [&](const auto& self, const Module& m, const std::string& path) -> void {
    if (!seen.insert(&m).second) return;
    found.emplace_back(path, const_cast<Module*>(&m));
    for (const ChildEntry& c : m.children_) self(self, *c.module, join(path, c.name));
  };
  walk(walk, *this, "");
  return found;
}

std::vector<Module*> Module::modules() const {
  std::vector<Module*> found;
  for (auto& [path, module] : named_modules()) found.push_back(module);
  return found;
}

std::vector<std::pair<std::string, Module*>> Module::named_children() const {
  std::vector<std::pair<std::string, Module*>> found;
  for (const ChildEntry& c : children_) found.emplace_back(c.name, c.module.get());
  return found;
}

std::vector<Module*> Module::children() const {
  std::vector<Module*> found;
  for (const ChildEntry& c : children_) found.push_back(c.module.get());
  return found;
}

std::vector<std::pair<std::string, Parameter>> Module::named_parameters() const {
  std::vector<std::pair<std::string, Parameter>> found;
  std::unordered_set<const void*> seen;
  for (const auto& [path, module] : named_modules())
    for (const ParamEntry& p : module->params_)
      if (p.slot.defined() && seen.insert(p.slot.id()).second) found.emplace_back(join(path, p.name), p.slot);
  return found;
}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> found;
  for (auto& [name, slot] : named_parameters()) found.push_back(std::move(slot));
  return found;
}

std::vector<std::pair<std::string, Buffer>> Module::named_buffers() const {
  std::vector<std::pair<std::string, Buffer>> found;
  std::unordered_set<const void*> seen;
  for (const auto& [path, module] : named_modules())
    for (const BufferEntry& b : module->buffers_)
      if (b.slot.defined() && seen.insert(b.slot.id()).second) found.emplace_back(join(path, b.name), b.slot);
  return found;
}

std::vector<Buffer> Module::buffers() const {
  std::vector<Buffer> found;
  for (auto& [name, slot] : named_buffers()) found.push_back(std::move(slot));
  return found;
}

Module& Module::at(std::string_view path) const {
  const Module* m = this;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    const auto it = std::find_if(m->children_.begin(), m->children_.end(),
                                 [&](const ChildEntry& c) { return c.name == name; });
    if (it == m->children_.end())
      fail("[at] ", m->type_name(), " has no module '", name, "' (of '", path,
           "'); named_modules() lists them");
    m = it->module.get();
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return *const_cast<Module*>(m);
}

Module& Module::apply(const std::function<void(Module&)>& fn) {
  std::unordered_set<const Module*> seen;
  const auto walk = [&](const auto& self, Module& m) -> void {
    if (!seen.insert(&m).second) return;
    for (const ChildEntry& c : m.children_) self(self, *c.module);
    fn(m);
  };
  walk(walk, *this);
  return *this;
}

std::string Module::path() const { return parent_ ? join(parent_->path(), name_) : std::string(); }

std::string Module::type_name() const { return tapestry::type_name(typeid(*this)); }

void Module::append_tree(std::string& out, int depth) const {
  out += type_name() + "(" + options_text();
  for (const ChildEntry& c : children_) {
    out += "\n" + std::string(static_cast<std::size_t>(depth) * 2 + 2, ' ') + "(" + c.name + "): ";
    c.module->append_tree(out, depth + 1);
  }
  if (!children_.empty()) out += "\n" + std::string(static_cast<std::size_t>(depth) * 2, ' ');
  out += ")";
}

std::string Module::str() const {
  std::string out;
  append_tree(out, 0);
  return out;
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << module.str(); }

// ---- hooks and errors ----

template <class F>
HookHandle Module::add_hook(HookList<F> Hooks::*list, F hook) {
  check(static_cast<bool>(hook), "[register_hook] the hook is empty; pass something that can be called");
  if (!hooks_) hooks_ = std::make_shared<Hooks>();
  HookList<F>& hooks = (*hooks_).*list;
  const std::uint64_t id = hooks.next_id++;
  hooks.list.emplace_back(id, std::move(hook));
  return HookHandle([weak = std::weak_ptr<Hooks>(hooks_), list, id] {
    if (const auto alive = weak.lock())
      std::erase_if(((*alive).*list).list, [id](const auto& entry) { return entry.first == id; });
  });
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  return add_hook(&Hooks::before, std::move(hook));
}
HookHandle Module::register_forward_hook(ForwardHook hook) {
  return add_hook(&Hooks::after, std::move(hook));
}

// run_pre_hooks() and run_hooks() iterate over a copy of the list of hooks, because a hook may remove itself
// or register another hook.
void Module::run_pre_hooks(std::vector<Tensor>& inputs) {
  const auto hooks = hooks_->before.list;
  for (const auto& [id, hook] : hooks) hook(*this, inputs);
}

void Module::run_hooks(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  const auto hooks = hooks_->after.list;
  for (const auto& [id, hook] : hooks) hook(*this, inputs, outputs);
}

void detail::check_hook_count(const Module& module, std::size_t before, std::size_t after) {
  check(before == after, "[", module.type_name(), "] a hook changed the number of tensors from ", before,
        " to ", after, "; replace tensors in the list, and neither add nor remove any");
}

void Module::add_place(Error& error) const {
  const std::string options = options_text();
  const std::string where = path();
  error.add_place((where.empty() ? "" : where + ": ") + type_name() +
                  (options.empty() ? "" : "(" + options + ")"));
}

// ---- use ----

void Module::train(bool on) {
  training_ = on;
  for (const ChildEntry& c : children_) c.module->train(on);
}

template <class F>
void Module::replace_tensors(const char* op, const F& convert) {
  const NoGradGuard no_grad;
  const auto replace = [&](const std::string& name, TensorSlot slot, bool trained) {
    check(slot.replicas() == 1, "[", op, "] '", name, "' has ", slot.replicas(),
          " replicas; move the module before it is replicated");
    const Tensor old = slot.replica(0), values = old.detach(), moved = convert(values);
    if (moved.is_same(values)) return;
    if (trained) {
      moved.set_requires_grad(old.requires_grad());
      if (old.grad().defined()) moved.set_grad(convert(old.grad()));
    }
    slot.set_replica(0, moved);
  };
  for (const auto& [name, slot] : named_parameters()) replace(name, slot, true);
  for (const auto& [name, slot] : named_buffers()) replace(name, slot, false);
}

void Module::to(Device device) {
  check_device("to", device);
  replace_tensors("to", [&](const Tensor& t) { return t.to(device); });
}

void Module::to(DType dtype) {
  check<TypeError>(is_floating(dtype), "[to] a module cannot be of dtype ", dtype,
                   "; only floating dtypes have gradients");
  replace_tensors("to", [&](const Tensor& t) { return is_floating(t.dtype()) ? t.to(dtype) : t; });
}

void Module::to(Device device, DType dtype) {
  to(dtype);
  to(device);
}

void Module::to(MemoryFormat format) {
  replace_tensors("to", [&](const Tensor& t) { return t.dim() == 4 ? t.contiguous(format) : t; });
}

void Module::zero_grad(bool set_to_none) { zero_gradients(parameters(), set_to_none); }

void Module::requires_grad_(bool on) {
  for (const Parameter& p : parameters())
    for (int r = 0; r < p.replicas(); ++r)
      if (is_floating(p.replica(r).dtype())) p.replica(r).set_requires_grad(on);
}

// Calls fn for every parameter and persistent buffer. If a module or a parameter is shared, fn is called once
// for each of its names.
template <class F>
void Module::visit(const std::string& prefix, const F& fn) const {
  for (const ParamEntry& p : params_)
    if (p.slot.defined()) fn(join(prefix, p.name), p.slot);
  for (const BufferEntry& b : buffers_)
    if (b.slot.defined() && b.persistent) fn(join(prefix, b.name), b.slot);
  for (const ChildEntry& c : children_) c.module->visit(join(prefix, c.name), fn);
}

StateDict Module::state_dict() const {
  StateDict dict;
  visit("", [&](const std::string& name, const TensorSlot& slot) {
    dict.emplace_back(name, slot.tensor().detach());
  });
  return dict;
}

LoadResult Module::load_state_dict(const StateDict& dict, bool strict) {
  const NoGradGuard no_grad;
  std::unordered_map<std::string_view, const Tensor*> given;
  LoadResult result;
  std::string wrong;
  for (const auto& [name, tensor] : dict)
    if (!given.emplace(name, &tensor).second) wrong += "\n  duplicate key: " + name;
  std::vector<std::pair<TensorSlot, const Tensor*>> matches;
  std::unordered_set<std::string> known;
  visit("", [&](const std::string& name, const TensorSlot& slot) {
    known.insert(name);
    const auto it = given.find(name);
    if (it == given.end()) {
      result.missing.push_back(name);
    } else if (!it->second->defined()) {
      wrong += "\n  undefined tensor: " + name;
    } else if (it->second->sizes() != slot.replica(0).sizes()) {
      wrong += "\n  wrong shape: " + name + " expected " + slot.replica(0).sizes().str() + " but got " +
               it->second->sizes().str();
    } else {
      matches.emplace_back(slot, it->second);
    }
  });
  for (const auto& [name, tensor] : dict)
    if (!known.contains(name)) result.unexpected.push_back(name);
  if (strict && !result.missing.empty()) wrong += "\n  missing: " + list_names(result.missing);
  if (strict && !result.unexpected.empty()) {
    wrong += "\n  unexpected: " + list_names(result.unexpected);
    const auto is_wrapped = [&](const std::string& name) {
      return name.starts_with("module.") && known.contains(name.substr(7));
    };
    if (std::all_of(result.unexpected.begin(), result.unexpected.end(), is_wrapped))
      wrong += "\n  the prefix \"module.\" comes from PyTorch's DataParallel wrappers; remove it";
  }
  check(wrong.empty(), "[load_state_dict] the state dict does not match ", type_name(),
        ", and nothing was loaded:", wrong, "\npass a state dict of the same model",
        strict ? ", or strict = false to skip names that are missing or unexpected" : "");

  for (const auto& [slot, source] : matches)
    for (int r = 0; r < slot.replicas(); ++r) slot.replica(r).detach().copy_(*source);
  return result;
}

}  // namespace tapestry::nn
