#include "tapestry/distributed/fsdp/fsdp.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <random>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/rank_drift.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/common/kernel_choices.h"
#include "tapestry/distributed/fsdp/internal/shard_module.h"
#include "tapestry/distributed/fsdp/internal/sharded_model.h"
#include "tapestry/nn/internal/undivided.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kShardOp = "fully_shard";

using UnitRef = std::shared_ptr<ShardedUnit>;

// A parameter as one module of the subtree has it. A shared slot has several of these.
struct Place {
  std::string name;  // relative to the module that is sharded now
  nn::Parameter slot;
  std::vector<UnitRef> units;  // the units around it, the innermost last
};

// What the subtree of a module contains.
struct Contents {
  std::vector<Place> places;
  std::vector<UnitRef> units;                // inside the module
  std::vector<nn::Module*> with_parameters;  // modules that belong to no unit inside, the module excepted
  NamedTensors buffers;                      // of modules that belong to no unit inside
};

void collect(nn::Module& module, const std::string& prefix, std::vector<UnitRef> around, bool top,
             Contents& to) {
  if (const UnitRef unit = ShardedUnit::of(module); unit && !top) {
    around.push_back(unit);
    if (std::find(to.units.begin(), to.units.end(), unit) == to.units.end()) to.units.push_back(unit);
  }
  const auto is_own = [](const std::string& name) { return name.find('.') == std::string::npos; };
  bool any = false;
  for (const auto& [name, slot] : module.named_parameters())
    if (is_own(name)) to.places.push_back({prefix + name, slot, around}), any = true;
  if (around.empty()) {
    if (any && !top) to.with_parameters.push_back(&module);
    for (const auto& [name, slot] : module.named_buffers())
      if (is_own(name)) to.buffers.emplace_back(prefix + name, slot.tensor());
  }
  for (const auto& [name, child] : module.named_children())
    collect(*child, prefix + name + ".", around, false, to);
}

ShardedParameter* sharded(const nn::Parameter& slot) {
  return dynamic_cast<ShardedParameter*>(slot.layout().get());
}

bool is_inside(const nn::Module& module, const nn::Module* outer) {
  if (!outer) return false;
  const std::vector<nn::Module*> all = outer->modules();
  return std::find(all.begin(), all.end(), &module) != all.end();
}

// True if ranks of other axes divide all parameters of the unit.
bool is_divided_before(const ShardedUnit& unit) {
  return std::all_of(unit.members().begin(), unit.members().end(), [](const ShardedUnit::Member& m) {
    const nn::Layout& layout = *m.slot.layout();
    return layout.full_boxes(0) != nn::Boxes{{nn::Region::whole(layout.whole_sizes())}};
  });
}

// Returns what is wrong with the arguments on this rank, or an empty text.
std::string problem(const nn::Module& module, const FsdpOptions& options, const Groups& groups,
                    const Contents& contents, const std::vector<Device>& devices) {
  if (ShardedUnit::of(module))
    return concat({module.type_name(), " is sharded already; shard each module once"});
  if (options.max_full_units < 1)
    return concat(
        {"max_full_units is ", options.max_full_units, "; at least 1 unit must be full to compute"});
  if (options.reduce != ReduceOp::mean && options.reduce != ReduceOp::sum)
    return "reduce must be ReduceOp::mean or ReduceOp::sum";
  const MixedPrecisionPolicy& mixed = options.mixed_precision;
  const std::pair<const char*, std::optional<DType>> dtypes[] = {{"param_dtype", mixed.param_dtype},
                                                                 {"reduce_dtype", mixed.reduce_dtype},
                                                                 {"output_dtype", mixed.output_dtype}};
  for (const auto& [name, dtype] : dtypes)
    if (dtype && !is_floating(*dtype))
      return concat({"mixed_precision.", name, " is ", *dtype, "; choose bf16, f16, f32 or f64"});
  for (const Place& p : contents.places) {
    if (const ShardedParameter* s = sharded(p.slot); s && s->unit) {
      if (is_inside(module, s->unit->module()))
        return concat({p.name, " belongs to ", s->unit->label(), ", which is sharded already and contains ",
                       module.type_name(), "; shard the modules inside first, and the model last"});
    } else if (s) {
      return concat({p.name, " is sharded already; shard each parameter once"});
    } else if (p.slot.layout() && (groups.size() > 1 || p.slot.tensor().device().is_meta())) {
      return concat(
          {p.name, " is divided already (", p.slot.layout()->boxes(0).str(), " of ",
           p.slot.layout()->whole_sizes(),
           "), which works for one replica a process and not on the meta device; shard it over ranks, "
           "after it has its values"});
    } else if (p.slot.replicas() != (devices.empty() ? static_cast<int>(groups.size()) : 1)) {
      return devices.empty() ? concat({p.name, " has ", p.slot.replicas(), " replicas, but there are ",
                                       groups.size(), " groups; shard a model without DataParallel"})
                             : concat({p.name, " has ", p.slot.replicas(),
                                       " replicas already; destroy the DataParallel of this model first"});
    } else if (std::string why = p.slot.tensor().device().is_meta()
                                     ? autograd::why_not_materialized(p.slot.tensor())
                                     : std::string();
               !why.empty()) {
      return concat({p.name, " is on the meta device, and ", why});
    } else if (has_reducer(p.slot.replica(0))) {
      return concat({p.name, " belongs to a DistributedDataParallel; shard the bare model"});
    }
  }
  for (const auto& [name, slot] : module.named_buffers())
    if (slot.tensor().device().is_meta())
      if (const std::string why = autograd::why_not_materialized(slot.tensor()); !why.empty())
        return concat({name, " is on the meta device, and ", why});
  if (groups[0]->size() > 1)
    if (std::string why = nn::why_not_divided(module); !why.empty()) return why;
  for (const UnitRef& u : contents.units) {
    if (u->groups() != groups)
      return concat(
          {u->label(), " was sharded over another process group; use the same group for the whole model"});
    if (u->options.replicate_group == options.replicate_group) continue;
    if (!u->options.own_replicate_group)
      return concat({u->label(),
                     " was sharded with another replicate_group; use the same one for the whole model, or "
                     "set own_replicate_group for experts that another axis divides"});
    if (!is_divided_before(*u))
      return concat({u->label(),
                     " has own_replicate_group and parameters that no other axis divides; make units of "
                     "those that one divides, and use the same replicate_group for the others"});
  }
  return {};
}

// What the ranks must agree on.
std::string describe(const nn::Module& module, const FsdpOptions& options, const Contents& contents) {
  std::string text =
      concat({"module ", module.path().empty() ? module.type_name() : module.path(), "\nmax_full_units ",
              options.max_full_units, "\nreshard_after_forward ",
              options.reshard_after_forward ? (*options.reshard_after_forward ? "true" : "false") : "default",
              "\nreduce ", options.reduce == ReduceOp::sum ? "sum" : "mean", "\nown_replicate_group ",
              options.own_replicate_group ? "true" : "false", "\n"});
  const auto dtype = [](const std::optional<DType>& t) { return t ? dtype_name(*t) : "default"; };
  const MixedPrecisionPolicy& mixed = options.mixed_precision;
  text += concat({"mixed_precision param_dtype ", dtype(mixed.param_dtype), " reduce_dtype ",
                  dtype(mixed.reduce_dtype), " output_dtype ", dtype(mixed.output_dtype),
                  " cast_forward_inputs ", mixed.cast_forward_inputs ? "true" : "false", "\n"});
  for (const UnitRef& u : contents.units) text += "unit " + u->label() + "\n";
  NamedTensors parameters;
  for (const Place& p : contents.places)
    if (sharded(p.slot)) {
      text += "sharded " + p.name + "\n";
    } else {
      parameters.emplace_back(p.name, p.slot.replica(0));
      // The ranks of the group must have the same box, which they divide.
      if (const auto& layout = p.slot.layout())
        text += concat({p.name, " has ", layout->boxes(0).str(), " of ", layout->whole_sizes(), "\n"});
    }
  return text + describe_tensors(parameters, "parameter") + describe_tensors(contents.buffers, "buffer");
}

RankGrid grid_of(const ShardedUnit& unit) { return {unit.groups()[0], unit.options.replicate_group}; }

// Collective: throws on all ranks unless the descriptions are equal and the groups are the rows and columns
// of a grid.
void check_grid(const RankGrid& grid, const std::string& description) {
  compare_in_grid(grid, [&](ProcessGroup& group) {
    std::string text = description;
    if (grid.replicas) {  // each group's ranks are at one place along the other axis
      const ProcessGroup& other = &group == grid.group.get() ? *grid.replicas : *grid.group;
      text += concat({"rank ", other.rank(), " of ", other.size(), " along the other group\n"});
    }
    check_same_model(group, kShardOp, text);
  });
  if (!grid.replicas) return;
  // The first copy has a random number, which each rank knows from its column. A row whose columns lead to
  // several copies has several numbers.
  const auto own = static_cast<std::int64_t>(std::random_device()());
  const std::int64_t row = all_gather_numbers(*grid.group, {&own, 1}, "number of the copy")[0];
  const std::int64_t first = all_gather_numbers(*grid.replicas, {&row, 1}, "number of the first copy")[0];
  compare_in_grid(grid, [&](ProcessGroup& group) {
    for (const std::int64_t other : all_gather_numbers(group, {&first, 1}, "numbers of the first copies"))
      check(other == first, "[", kShardOp,
            "] the ranks of group have other copies in their replicate_group than one another; pass the "
            "groups of two axes of one mesh");
  });
}

// Tells the unit when its module is destroyed. The module's scope owns it.
struct ModuleLife {
  explicit ModuleLife(UnitRef unit_) : unit(std::move(unit_)) { unit->enlist(); }
  ~ModuleLife() { unit->forget_module(); }
  ModuleLife(const ModuleLife&) = delete;
  ModuleLife& operator=(const ModuleLife&) = delete;
  const UnitRef unit;
};

void cast_floating(std::vector<Tensor>& tensors, DType dtype) {
  for (Tensor& t : tensors)
    if (t.defined() && is_floating(t.dtype()) && t.dtype() != dtype) t = t.to(dtype);
}

// Casts inputs and outputs of the module's forward. The casts are recorded for backward.
void register_casts(nn::Module& module, const MixedPrecisionPolicy& mixed) {
  if (mixed.param_dtype && mixed.cast_forward_inputs)
    module.register_forward_pre_hook([dtype = *mixed.param_dtype](nn::Module&, std::vector<Tensor>& inputs) {
      cast_floating(inputs, dtype);
    });
  if (mixed.output_dtype)
    module.register_forward_hook(
        [dtype = *mixed.output_dtype](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& outputs) {
          cast_floating(outputs, dtype);
        });
}

// Gives the parameters and buffers of the unit memory that are on the meta device.
void leave_meta(nn::Module& module, const FsdpOptions& options, Contents& contents) {
  nn::NamedSlots named;
  const auto put = [&](const std::string& name, const nn::TensorSlot& slot) {
    const auto is_slot = [&](const auto& other) { return other.second.is_same(slot); };
    if (!slot.layout() && slot.tensor().device().is_meta() &&
        std::none_of(named.begin(), named.end(), is_slot))
      named.emplace_back(name, slot);
  };
  for (const Place& p : contents.places) put(p.name, p.slot);
  for (const auto& [name, slot] : module.named_buffers()) put(name, slot);
  if (named.empty()) return;
  const Context& context = current_context();
  nn::materialize(named,
                  options.device.value_or(context.device.is_meta() ? context.real_device : context.device));
  contents = {};  // has the old buffers
  collect(module, "", {}, true, contents);
}

// Gives the unit the parameters that belong to no unit yet, and those that units inside share.
void take_parameters(ShardedUnit& unit, const Contents& contents, const std::vector<Device>& devices) {
  NamedTensors values;
  for (const Place& p : contents.places)
    if (!sharded(p.slot)) values.emplace_back(p.name, p.slot.tensor());
  if (unit.groups().size() == 1 && devices.empty()) {
    const ProcessGroup& group = *unit.groups()[0];
    NamedTensors own;
    for (const auto& [name, t] : values)
      own.emplace_back(name, nn::Region::whole(t.sizes()).part(0, group.rank(), group.size()).of(t.detach()));
    broadcast_in_grid(grid_of(unit), values, own, concat({"fsdp ", unit.label(), " broadcast"}));
  }
  for (const Place& p : contents.places)
    if (!sharded(p.slot)) unit.add(p.name, p.slot, devices);
  for (const Place& p : contents.places) {
    ShardedParameter* const s = sharded(p.slot);
    if (!s || s->unit == &unit || !s->unit) continue;
    const bool inside = std::any_of(contents.units.begin(), contents.units.end(),
                                    [&](const UnitRef& u) { return u.get() == s->unit; });
    const bool covered =
        std::any_of(p.units.begin(), p.units.end(), [&](const UnitRef& u) { return u.get() == s->unit; });
    if (!inside || covered) continue;
    const auto first = std::find_if(contents.places.begin(), contents.places.end(),
                                    [&](const Place& other) { return other.slot.is_same(p.slot); });
    unit.take_from(*s->unit, p.slot, first->name);
  }
}

}  // namespace

std::string why_not_shardable(nn::Module& module, const FsdpOptions& options, const Groups& groups,
                              const std::vector<Device>& devices) {
  Contents contents;
  collect(module, "", {}, true, contents);
  return problem(module, options, groups, contents, devices);
}

std::shared_ptr<ShardedUnit> shard_module(nn::Module& module, const FsdpOptions& options,
                                          const Groups& groups, const std::vector<Device>& devices) {
  Contents contents;
  collect(module, "", {}, true, contents);
  const std::string wrong = problem(module, options, groups, contents, devices);
  // Compares the ranks first, so that a rank with wrong arguments does not leave the others waiting. The
  // replicas of one process need no comparison.
  if (groups.size() == 1 && devices.empty())
    check_grid({groups[0], options.replicate_group},
               wrong.empty() ? describe(module, options, contents) : "error: " + wrong + "\n");
  check(wrong.empty(), "[", devices.empty() ? kShardOp : "ShardedDataParallel", "] ", wrong);

  leave_meta(module, options, contents);
  const auto unit = std::make_shared<ShardedUnit>(module, options, groups);
  take_parameters(*unit, contents, devices);
  if (groups.size() == 1 && devices.empty())
    broadcast_in_grid(grid_of(*unit), contents.buffers, contents.buffers, "fsdp broadcast of buffers");

  // The units inside belong to this model now.
  const auto model = std::make_shared<ShardedModel>(groups.size());
  model->max_full_units = options.max_full_units;
  for (const UnitRef& u : contents.units) {
    u->set_model(model);
    if (!u->options.reshard_after_forward) u->reshards = true;
    model->add(*u);
  }
  unit->set_model(model);
  unit->reshards = options.reshard_after_forward.value_or(false);
  model->add(*unit);

  module.register_forward_scope([life = std::make_shared<ModuleLife>(unit)](nn::Module&) {
    return life->unit->model().enter(life->unit);
  });
  register_casts(module, options.mixed_precision);
  for (nn::Module* m : contents.with_parameters)
    m->register_forward_scope(
        [weak = std::weak_ptr<ShardedUnit>(unit)](nn::Module&) -> std::shared_ptr<void> {
          const UnitRef around = weak.lock();
          return around ? around->model().watch() : nullptr;
        });
  return unit;
}

namespace {

// Makes passes of the unit's model compare the ranks.
void compare_ranks(ShardedUnit& unit, const FsdpOptions& options) {
  const auto& units = unit.model().units();
  const bool on_gpu = std::any_of(units.begin(), units.end(), [](const ShardedUnit* u) {
    return u->has_parameters() && u->device(0).is_cuda();
  });
  nn::NamedSlots parameters;
  for (const ShardedUnit* u : units)
    for (const ShardedUnit::Member& m : u->members()) parameters.emplace_back(m.parameter->path(), m.slot);
  const RankGrid grid = grid_of(unit);
  const auto drift = std::make_shared<RankDrift>(kShardOp, grid, std::move(parameters), options.check_every);
  const auto share_choices = [grid] {
    share_kernel_choices(*grid.group);
    if (grid.replicas) share_kernel_choices(*grid.replicas);
  };
  if (on_gpu) share_choices();
  unit.model().after_pass = [share_choices, drift, on_gpu, passes = std::uint64_t{0}]() mutable {
    // Rank 0 measures the shapes that the first passes meet, and later ones when they occur.
    if (on_gpu && std::has_single_bit(++passes)) share_choices();
    drift->after_pass();
  };
}

FsdpOptions checked(FsdpOptions options) {
  check(options.group != nullptr, "[fully_shard] group is null; pass what init_process_group() returned");
  if (options.replicate_group && options.replicate_group->size() == 1) options.replicate_group = nullptr;
  check(options.replicate_group != options.group,
        "[fully_shard] group and replicate_group are one group, but ranks that divide the parameters have "
        "different shards; pass the groups of two axes of a mesh");
  return options;
}

}  // namespace

FullyShard fully_shard(nn::Module& module, const FsdpOptions& given) {
  const FsdpOptions options = checked(given);
  auto unit = shard_module(module, options, {options.group});
  compare_ranks(*unit, options);
  return FullyShard(std::move(unit));
}

std::vector<FullyShard> fully_shard_together(const std::vector<nn::Module*>& modules,
                                             const FsdpOptions& given) {
  const FsdpOptions options = checked(given);
  std::vector<FullyShard> all;
  std::shared_ptr<ShardedUnit> first;
  for (nn::Module* const module : modules) {
    const auto unit = shard_module(*module, options, {options.group});
    all.emplace_back(unit);
    if (!first) {
      first = unit;
      continue;
    }
    const std::shared_ptr<ShardedModel> model = first->model().shared_from_this();
    for (ShardedUnit* const u : std::vector<ShardedUnit*>(unit->model().units())) {
      u->set_model(model);
      model->add(*u);
    }
  }
  compare_ranks(*first, options);
  return all;
}

// ---- FullyShard ----

NoSync FullyShard::no_sync() const { return NoSync(unit_->model().synchronize); }
NoSync FullyShard::no_all_reduce() const { return NoSync(unit_->model().all_reduce); }

void FullyShard::keep_full(bool on) const {
  if (on) unit_->model().keep_full();
  else unit_->model().let_go();
}
void FullyShard::end_step() const {
  unit_->model().let_go();
  unit_->model().reduce_rest(current_context().replica);
}

FullyShard::Unsharded::Unsharded(std::vector<std::shared_ptr<ShardedUnit>> units) {
  try {
    for (const UnitRef& u : units) scopes_.push_back(u->model().enter(u, /*by_hand=*/true));
  } catch (...) {
    while (!scopes_.empty()) scopes_.pop_back();
    throw;
  }
}
FullyShard::Unsharded::~Unsharded() {
  while (!scopes_.empty()) scopes_.pop_back();
}

FullyShard::Unsharded FullyShard::unshard(bool units_inside) const {
  std::vector<UnitRef> units{unit_};
  if (units_inside && unit_->module())
    for (ShardedUnit* u : unit_->model().units())
      if (u != unit_.get() && u->module() && is_inside(*u->module(), unit_->module()))
        units.push_back(u->shared_from_this());
  return Unsharded(std::move(units));
}

void FullyShard::discard_unreduced() const {
  for (ShardedUnit* u : unit_->model().units())
    for (std::size_t r = 0; r < u->groups().size(); ++r) u->drop_gradients(static_cast<int>(r));
}

void FullyShard::sync_buffers() const {
  if (!unit_->module()) return;
  NamedTensors buffers;
  for (const auto& [name, slot] : unit_->module()->named_buffers()) buffers.emplace_back(name, slot.tensor());
  broadcast_in_grid(grid_of(*unit_), buffers, buffers, "fsdp broadcast of buffers");
}

FsdpReport FullyShard::report() const {
  const int replica = current_context().replica;
  FsdpReport r;
  for (const ShardedUnit* u : unit_->model().units()) r.units.push_back(u->report(replica));
  r.most_full_units = unit_->model().most_full_units(replica);
  return r;
}

void FullyShard::reset_report() const {
  for (ShardedUnit* u : unit_->model().units()) u->reset_report();
  unit_->model().reset_most_full_units();
}

std::vector<std::vector<std::string>> FullyShard::units() const {
  std::vector<std::vector<std::string>> names;
  for (const ShardedUnit* u : unit_->model().units()) {
    names.emplace_back();
    for (const ShardedUnit::Member& m : u->members()) names.back().push_back(m.parameter->path());
  }
  return names;
}

ProcessGroup& FullyShard::process_group() const { return *unit_->groups()[0]; }

std::string FsdpReport::str() const {
  const bool copies =
      std::any_of(units.begin(), units.end(), [](const FsdpUnitReport& u) { return u.all_reduces > 0; });
  std::string text = "unit                      full bytes   shard bytes  gathers  scatters  exposed ms";
  text += copies ? "  all-reduces  exposed ms\n" : "\n";
  char line[256];
  for (const FsdpUnitReport& u : units) {
    std::snprintf(line, sizeof line, "%-24.24s %12zu %13zu %8lld %9lld %11.3f", u.name.c_str(), u.full_bytes,
                  u.shard_bytes, static_cast<long long>(u.gathers), static_cast<long long>(u.scatters),
                  u.exposed_s * 1e3);
    text += line;
    std::snprintf(line, sizeof line, " %12lld %11.3f", static_cast<long long>(u.all_reduces),
                  u.all_reduce_exposed_s * 1e3);
    text += copies ? line : "";
    text += "\n";
  }
  return text + concat({"at most ", most_full_units, " units were full at one time\n"});
}

}  // namespace tapestry::distributed
