#include "tapestry/nn/module.h"

#include <algorithm>
#include <ostream>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/core/type_name.h"
#include "tapestry/nn/internal/replica_devices.h"
#include "tapestry/nn/internal/stored.h"

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

constexpr auto nothing = [](const Module&) {};

// Destroying a child destroys its children in turn. Below this depth they are collected in a list, and the
// outermost destructor destroys them, so that deep modules do not overflow the stack.
constexpr int kMaxDestructorDepth = 64;

// train() is virtual, and an override may change its children after Module::train() has returned. So it must
// call itself for each level, and this limit keeps it from overflowing the stack.
constexpr int kMaxTrainDepth = 10'000;

// The tree of str() is indented, so its size is quadratic in the depth. Deeper modules are shown as "...".
constexpr int kMaxPrintedDepth = 1'000;

}  // namespace

Module::Module() = default;

Module::~Module() {
  struct Destruction {
    int depth = 0;
    std::vector<std::shared_ptr<Module>>* postponed = nullptr;
  };
  static thread_local constinit Destruction current;

  for (const ChildEntry& c : children_) {
    --c.module->parents_;
    if (c.module->parent_ == this) c.module->parent_ = nullptr;
  }
  if (children_.empty()) return;
  if (current.depth == kMaxDestructorDepth) {
    for (ChildEntry& c : children_) current.postponed->push_back(std::move(c.module));
    return;
  }
  std::vector<std::shared_ptr<Module>> postponed;
  if (current.depth++ == 0) current.postponed = &postponed;
  children_.clear();
  while (!postponed.empty()) {
    const std::shared_ptr<Module> next = std::move(postponed.back());
    postponed.pop_back();
  }
  if (--current.depth == 0) current.postponed = nullptr;
}

Tensor Module::forward(const Tensor&) {
  fail("[", type_name(),
       "] forward(const Tensor&) is not defined; override it, or pass the arguments that the module's own ",
       "forward takes: derive the module from nn::Callable, or call it through nn::call(module, ...)");
}
Tensor Module::operator()(const Tensor& x) const { return call(*this, x); }

// ---- registration ----

void Module::check_name(const char* op, const std::string& name) const {
  // type_name() is called only for errors: it is slow, and a derived class may not be constructed yet.
  if (name.empty() || name.find('.') != std::string::npos)
    fail("[", op, "] '", name, "' cannot be a name in ", type_name(),
         "; use a name that is not empty and contains no dot");
  if (names_.contains(name))
    fail("[", op, "] ", type_name(), " already has a '", name, "'; use another name");
}

// True if `other` is this module or a descendant. A module that was never added to another one is a
// descendant of none. So building a model from its leaves upwards visits no module twice, and building it
// from the root downwards visits only the added module.
bool Module::contains(const Module& other) const {
  if (&other == this) return true;
  if (other.parents_ == 0) return false;
  std::vector<const Module*> waiting{this};
  std::unordered_set<const Module*> seen{this};
  while (!waiting.empty()) {
    const Module* const m = waiting.back();
    waiting.pop_back();
    for (const ChildEntry& c : m->children_) {
      if (c.module.get() == &other) return true;
      if (seen.insert(c.module.get()).second) waiting.push_back(c.module.get());
    }
  }
  return false;
}

void Module::add_child(const std::string& name, std::shared_ptr<Module> module) {
  check_name("add", name);
  check(module != nullptr, "[add] the module '", name, "' is null; pass one that exists");
  check(!module->contains(*this), "[add] '", name,
        "' contains the module that it is added to; modules form a tree");
  children_.push_back({name, module});
  names_.insert(name);
  ++module->parents_;
  if (!module->parent_) {
    module->parent_ = this;
    module->name_ = name;
  }
}

Parameter& Module::param(const std::string& name, const Tensor& init) {
  return param(name, init.defined() ? Parameter(name, init) : Parameter());
}

Parameter& Module::param(const std::string& name, const Parameter& shared) {
  check_name("param", name);
  Parameter& slot = params_.emplace_back(ParamEntry{name, shared}).slot;
  names_.insert(name);
  return slot;
}

// Replaces the slot of a parameter and returns the old slot. Members that refer to the parameter refer to the
// new slot from now on.
Parameter Module::exchange_param(const std::string& name, const Parameter& slot) {
  for (ParamEntry& entry : params_) {
    if (entry.name != name) continue;
    Parameter old = std::exchange(entry.slot, slot);
    std::erase_if(computed_, [&](const Parameter& p) { return p.is_same(old); });
    if (slot.is_computed()) computed_.push_back(slot);
    return old;
  }
  fail("[parameter] ", type_name(), " has no parameter '", name, "'; named_parameters() lists them");
}

void Module::remove_child(const std::string& name) {
  const auto it =
      std::find_if(children_.begin(), children_.end(), [&](const ChildEntry& c) { return c.name == name; });
  if (it == children_.end()) return;
  const std::shared_ptr<Module> removed = it->module;
  children_.erase(it);
  names_.erase(name);
  --removed->parents_;
  if (removed->parent_ == this) removed->parent_ = nullptr;
}

Buffer& Module::buffer(const std::string& name, const Tensor& init, bool persistent) {
  check_name("buffer", name);
  Buffer own = init.defined() ? Buffer(name, init) : Buffer();
  Buffer& slot = buffers_.emplace_back(BufferEntry{name, std::move(own), persistent}).slot;
  names_.insert(name);
  return slot;
}

// ---- contents ----

// Calls enter(module, path) for this module and its descendants, parents before children, and leave(module)
// after the module's descendants. A shared module appears once, or once per path. Uses no recursion, and
// extends and shortens one path, so the time is linear in the number of modules.
template <class Enter, class Leave>
void Module::walk(Shared shared, const Enter& enter, const Leave& leave) const {
  struct Level {
    const Module* module;
    std::size_t next_child, path_size;
  };
  std::vector<Level> levels{{this, 0, 0}};
  std::unordered_set<const Module*> seen{this};
  std::string path;
  enter(*this, path);
  while (!levels.empty()) {
    Level& level = levels.back();
    path.resize(level.path_size);
    if (level.next_child == level.module->children_.size()) {
      leave(*level.module);
      levels.pop_back();
      continue;
    }
    const ChildEntry& child = level.module->children_[level.next_child++];
    if (shared == Shared::once && !seen.insert(child.module.get()).second) continue;
    if (!path.empty()) path += '.';
    path += child.name;
    enter(*child.module, path);
    levels.push_back({child.module.get(), 0, path.size()});
  }
}

// Calls fn(path of the module, entry) for every parameter, or every buffer, each slot once.
template <class Entry, class F>
void Module::for_each_slot(std::deque<Entry> Module::*entries, const F& fn) const {
  std::unordered_set<const void*> seen;
  walk(
      Shared::once,
      [&](const Module& m, const std::string& path) {
        for (const Entry& entry : m.*entries)
          if (entry.slot.defined() && !entry.slot.is_computed() && seen.insert(entry.slot.id()).second)
            fn(path, entry);
      },
      nothing);
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() const {
  std::vector<std::pair<std::string, Module*>> found;
  walk(
      Shared::once,
      [&](const Module& m, const std::string& path) { found.emplace_back(path, const_cast<Module*>(&m)); },
      nothing);
  return found;
}

std::vector<Module*> Module::modules() const {
  std::vector<Module*> found;
  walk(
      Shared::once, [&](const Module& m, const std::string&) { found.push_back(const_cast<Module*>(&m)); },
      nothing);
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
  for_each_slot(&Module::params_, [&](const std::string& path, const ParamEntry& p) {
    found.emplace_back(join(path, p.name), p.slot);
  });
  return found;
}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> found;
  for_each_slot(&Module::params_, [&](const std::string&, const ParamEntry& p) { found.push_back(p.slot); });
  return found;
}

std::vector<std::pair<std::string, Buffer>> Module::named_buffers() const {
  std::vector<std::pair<std::string, Buffer>> found;
  for_each_slot(&Module::buffers_, [&](const std::string& path, const BufferEntry& b) {
    found.emplace_back(join(path, b.name), b.slot);
  });
  return found;
}

std::vector<Buffer> Module::buffers() const {
  std::vector<Buffer> found;
  for_each_slot(&Module::buffers_,
                [&](const std::string&, const BufferEntry& b) { found.push_back(b.slot); });
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
  std::vector<Module*> order;
  walk(
      Shared::once, [](const Module&, const std::string&) {},
      [&](const Module& m) { order.push_back(const_cast<Module*>(&m)); });
  for (Module* m : order) fn(*m);
  return *this;
}

std::string Module::path() const {
  std::vector<const Module*> ancestors;  // this module and its ancestors below the root
  for (const Module* m = this; m->parent_; m = m->parent_) ancestors.push_back(m);
  std::string path;
  while (!ancestors.empty()) {
    if (!path.empty()) path += '.';
    path += ancestors.back()->name_;
    ancestors.pop_back();
  }
  return path;
}

const Module& Module::root() const {
  const Module* m = this;
  while (m->parent_) m = m->parent_;
  return *m;
}

std::string Module::type_name() const { return tapestry::type_name(typeid(*this)); }

void Module::append_tree(std::string& out, int depth) const {
  if (depth > kMaxPrintedDepth) {
    out += "...";
    return;
  }
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

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  check(static_cast<bool>(hook),
        "[register_forward_pre_hook] the hook is empty; pass a function that can be called");
  return pre_hooks_.add(std::move(hook));
}
HookHandle Module::register_forward_hook(ForwardHook hook) {
  check(static_cast<bool>(hook),
        "[register_forward_hook] the hook is empty; pass a function that can be called");
  return hooks_.add(std::move(hook));
}

HookHandle Module::register_forward_scope(ForwardScope scope) {
  check(static_cast<bool>(scope), "[register_forward_scope] the hook is empty; pass a function");
  return scopes_.add(std::move(scope));
}

std::vector<std::shared_ptr<void>> Module::enter_scopes() {
  detail::ScopesOfCall entered;  // if a scope throws, those before it end
  if (const auto hooks = scopes_.hooks())
    for (const auto& entry : *hooks) entered.scopes.push_back((*entry.hook)(*this));
  return std::move(entered.scopes);
}

void Module::run_pre_hooks(std::vector<Tensor>& inputs) {
  if (const auto hooks = pre_hooks_.hooks())
    for (const auto& [id, hook] : *hooks) (*hook)(*this, inputs);
}

void Module::run_hooks(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  if (const auto hooks = hooks_.hooks())
    for (const auto& [id, hook] : *hooks) (*hook)(*this, inputs, outputs);
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
  static thread_local constinit int depth = 0;
  struct Level {
    Level() { ++depth; }
    ~Level() { --depth; }
  } const level;
  check(depth <= kMaxTrainDepth, "[train] modules are nested more than ", kMaxTrainDepth,
        " deep, and train() and eval() call themselves for each level; nest the modules less");
  training_ = on;
  for (const ChildEntry& c : children_) c.module->train(on);
}

template <class F>
void Module::replace_tensors(const char* op, const F& convert) {
  const NoGradGuard no_grad;
  for (const auto& [name, p] : named_parameters()) check_not_full(op, name, p);
  const auto replace = [&](const std::string& path, const std::string& name, TensorSlot slot, bool trained) {
    if (slot.replicas() != 1)
      fail("[", op, "] '", join(path, name), "' has ", slot.replicas(),
           " replicas; move the module before it is replicated");
    const Tensor old = stored_tensor(slot, 0), values = old.detach(), moved = convert(values);
    if (moved.is_same(values)) return;
    if (trained) {
      moved.set_requires_grad(old.requires_grad());
      if (old.grad().defined()) moved.set_grad(convert(old.grad()));
    }
    slot.set_replica(0, moved);
  };
  for_each_slot(&Module::params_,
                [&](const std::string& path, const ParamEntry& p) { replace(path, p.name, p.slot, true); });
  for_each_slot(&Module::buffers_,
                [&](const std::string& path, const BufferEntry& b) { replace(path, b.name, b.slot, false); });
}

void Module::to(Device device) {
  check_device("to", device);
  replace_tensors("to", [&](const Tensor& t) { return t.to(device); });
}

namespace {
// Replaces the tensors of a slot that are on the meta device by uninitialised ones on `device`.
void give_memory(TensorSlot& slot, Device device) {
  if (device.is_meta()) return;
  for (int r = 0; r < slot.replicas(); ++r) {
    const Tensor old = stored_tensor(slot, r);
    if (!old.device().is_meta()) continue;
    const Tensor real = empty_like(old.detach(), device);
    if (is_floating(real.dtype())) real.set_requires_grad(old.requires_grad());
    slot.set_replica(r, real);
  }
}
}  // namespace

void Module::to_empty(Device device) {
  check_device("to_empty", device);
  zero_grad();
  replace_tensors("to_empty", [&](const Tensor& t) { return empty_like(t, device); });
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
  for (const auto& [name, p] : named_parameters()) check_not_full("requires_grad_", name, p);
  for (const Parameter& p : parameters())
    for (int r = 0; r < p.replicas(); ++r)
      if (is_floating(stored_tensor(p, r).dtype())) stored_tensor(p, r).set_requires_grad(on);
}

// Calls fn for every parameter and persistent buffer. If a module or a parameter is shared, fn is called once
// for each of its names.
template <class F>
void Module::for_each_state(const F& fn) const {
  walk(
      Shared::each_path,
      [&](const Module& m, const std::string& path) {
        for (const ParamEntry& p : m.params_)
          if (p.slot.defined() && !p.slot.is_computed()) fn(join(path, p.name), p.slot);
        for (const BufferEntry& b : m.buffers_)
          if (b.slot.defined() && b.persistent) fn(join(path, b.name), b.slot);
      },
      nothing);
}

std::vector<std::pair<std::string, TensorSlot>> Module::named_state() const {
  std::vector<std::pair<std::string, TensorSlot>> found;
  for_each_state([&](const std::string& name, const TensorSlot& slot) { found.emplace_back(name, slot); });
  return found;
}

StateDict Module::state_dict() const {
  StateDict dict;
  std::unordered_map<const void*, Tensor> copies;  // one of a slot with several names
  for_each_state([&](const std::string& name, const TensorSlot& slot) {
    check_has_whole("state_dict", name, slot);
    Tensor& whole = copies[slot.id()];
    if (!whole.defined()) whole = whole_tensor(slot, current_context().replica).detach();
    dict.emplace_back(name, whole);
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
  for_each_state([&](const std::string& name, const TensorSlot& slot) {
    known.insert(name);
    const auto it = given.find(name);
    if (it == given.end()) {
      result.missing.push_back(name);
    } else if (!it->second->defined()) {
      wrong += "\n  undefined tensor: " + name;
    } else if (it->second->sizes() != whole_sizes(slot)) {
      wrong += "\n  wrong shape: " + name + " expected " + whole_sizes(slot).str() +
               (slot.layout() ? " (the whole tensor, of which each rank takes its part)" : "") +
               " but got " + it->second->sizes().str();
    } else {
      matches.emplace_back(slot, it->second);
    }
  });
  for (const auto& [name, tensor] : dict)
    if (!known.contains(name)) result.unexpected.push_back(name);
  std::unordered_set<const Tensor*> without_elements;
  for (const auto& [slot, source] : matches)
    if (source->device().is_meta() && !stored_tensor(slot, 0).device().is_meta())
      without_elements.insert(source);
  for (const auto& [name, tensor] : dict)
    if (without_elements.contains(&tensor))
      wrong += "\n  a tensor of the meta device, which has no elements: " + name;
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
  for (auto& [slot, source] : matches) give_memory(slot, source->device());

  for (const auto& [slot, source] : matches) write_whole(slot, *source);
  return result;
}

}  // namespace tapestry::nn
