// Keeps the placements of tensors, and asks the rules for those of operations' outputs.
#include "tapestry/distributed/placement/check.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/node.h"
#include "tapestry/distributed/placement/rule.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed {
namespace {

using autograd::Node;
using autograd::Record;
using autograd::record_of;
using Kind = Placement::Kind;

// The placement of a tensor along one axis. Groups of axes are told apart by their addresses.
struct OnAxis {
  const void* group;
  std::string axis;
  Placement placement;
};
using Placements = std::vector<OnAxis>;

// The placements of a result of a backward pass, and of what is computed from it: nothing is known of it.
const Placements& unknown() {
  static const Placements* const one = new Placements{{nullptr, "", Placement::varying()}};
  return *one;
}
bool is_unknown(const Placements& p) { return p.size() == 1 && !p[0].group; }

const void* id_of(const Axis& axis) { return axis.group().get(); }

const OnAxis* find(const Placements& all, const void* group) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const OnAxis& p) { return p.group == group; });
  return found == all.end() ? nullptr : &*found;
}
void assign(Placements& all, const Axis& axis, Placement placement) {
  std::erase_if(all, [&](const OnAxis& p) { return p.group == id_of(axis); });
  all.push_back({id_of(axis), axis.name(), placement});
}

// The placements of the outputs of nodes, also of leaves. A node's end removes them.
class Table {
 public:
  Placements of(const Tensor& t) {
    const Record* const record = t.defined() ? record_of(t) : nullptr;
    if (!record) return {};
    const std::lock_guard lock(mutex_);
    const auto found = nodes_.find(record->fn.get());
    return found == nodes_.end() || record->output >= found->second.size() ? Placements()
                                                                           : found->second[record->output];
  }
  void set(const Node* node, std::size_t output, Placements placements) {
    const std::lock_guard lock(mutex_);
    std::vector<Placements>& outputs = nodes_[node];
    if (outputs.size() <= output) outputs.resize(output + 1);
    outputs[output] = std::move(placements);
    observe();
  }
  void forget(const Node* node) {
    const std::lock_guard lock(mutex_);
    nodes_.erase(node);
  }

 private:
  // A process in which nothing was ever placed has no observer. Once set, it stays: another thread may be
  // between two calls of it.
  static void observe();

  std::mutex mutex_;
  std::unordered_map<const Node*, std::vector<Placements>> nodes_;
};
Table& table() {
  static Table* const all = new Table;  // never destroyed, because threads may outlive static objects
  return *all;
}

struct Rules {
  std::mutex mutex;
  std::map<std::string, PlacementRule, std::less<>> by_op;
};
Rules& user_rules() {
  static Rules* const all = new Rules;
  return *all;
}

constexpr std::int16_t kAsProgram = -1;
// Two small ones, because static TLS is scarce.
thread_local constinit std::int16_t check_of_thread = kAsProgram;
thread_local constinit std::int16_t pauses = 0;
std::atomic<bool>& check_of_program() {
  static std::atomic<bool> on = [] {
    const char* const text = std::getenv("TAPESTRY_CHECK_PLACEMENT");
    return text && std::string_view(text) == "1";
  }();
  return on;
}

// ---- operations

// One input or constant of a call, with its placements along all axes.
struct Seen {
  const Tensor* tensor;
  Placements placements;
  bool needs_grad;
};

std::string ordinal(std::size_t i) { return "operand " + std::to_string(i); }

Placement apply_rule(const char* op, const PlacementCall& call) {
  PlacementRule users;
  {
    Rules& rules = user_rules();
    const std::lock_guard lock(rules.mutex);
    if (const auto found = rules.by_op.find(std::string_view(op)); found != rules.by_op.end())
      users = found->second;
  }
  if (users) return users(call);
  if (const impl::BuiltInRule rule = impl::built_in_rule(op)) return rule(call);
  fail<PlacementError>("[", op, "] has no rule of placement, and ", call.description(0),
                       "; give it one with set_placement_rule()");
}

// The placement of the outputs along one axis, or nothing if no operand has one.
std::optional<Placement> along(const autograd::RecordedCall& call, const std::vector<Seen>& seen,
                               const void* group, const std::string& axis) {
  std::vector<PlacedOperand> operands;
  bool all_constant = true;
  std::size_t unplaced = seen.size();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const Seen& s = seen[i];
    PlacedOperand& operand = operands.emplace_back(PlacedOperand{s.tensor, {}});
    const OnAxis* const p = find(s.placements, group);
    if (!p && s.needs_grad) unplaced = std::min(unplaced, i);
    // An equal tensor without a gradient is a constant: no gradient can be missing.
    const bool equal = p && (p->placement.is(Kind::invariant) || p->placement.is(Kind::replicated));
    if (p && (s.needs_grad || !equal)) operand.placement = p->placement, all_constant = false;
  }
  if (unplaced < seen.size()) {
    const Tensor& t = *seen[unplaced].tensor;
    fail<PlacementError>("[", call.op, "] ", ordinal(unplaced), " of shape ", t.sizes(),
                         " needs a gradient, but has no placement along axis ", axis,
                         ", and another operand has one; use place_parameters() or set_placement()");
  }
  if (all_constant) return {};
  return apply_rule(call.op, PlacementCall(call.op, axis, std::move(operands), call.inputs.size(),
                                           call.outputs, call.details));
}

void set_outputs(const autograd::RecordedCall& call, const Placements& placements) {
  for (std::size_t i = 0; i < call.outputs.size(); ++i) table().set(call.node, i, placements);
}

void recorded(const autograd::RecordedCall& call) {
  if (!checks_placement() || pauses > 0) return;
  if (call.in_backward) return set_outputs(call, unknown());
  std::vector<Seen> seen;
  std::map<const void*, std::string> axes;
  const auto see = [&](const Tensor* t) {
    Placements p = t && t->defined() ? table().of(*t) : Placements();
    for (const OnAxis& a : p) axes.emplace(a.group, a.axis);
    seen.push_back({t, std::move(p), t && t->defined() && autograd::needs_grad(*t)});
  };
  for (const Tensor* t : call.inputs) see(t);
  for (const Tensor* t : call.details.constants) see(t);
  if (std::any_of(seen.begin(), seen.end(), [](const Seen& s) { return is_unknown(s.placements); }))
    return set_outputs(call, unknown());
  Placements result;
  for (const auto& [group, axis] : axes)
    if (const auto placement = along(call, seen, group, axis)) result.push_back({group, axis, *placement});
  if (!result.empty()) set_outputs(call, result);
}

void destroyed(const Node* node) noexcept { table().forget(node); }

constexpr autograd::RecordObserver kObserver{.recorded = &recorded, .destroyed = &destroyed};

void Table::observe() { autograd::impl::record_observer.store(&kObserver, std::memory_order_release); }

// ---- tensors

// A leaf that needs no gradient gets a record too, which its placements belong to.
const Record* record_of_leaf(const Tensor& t) {
  if (const Record* const record = record_of(t)) return record;
  Ref<autograd::LeafNode> leaf = autograd::LeafNode::make(t);
  leaf->requires_grad = false;
  Record* const record = new Record;
  record->fn = autograd::NodeRef::adopt(leaf.detach());
  autograd::set_record(t, record);
  t.impl()->leaf = true;
  return record;
}

void check_axis(const char* op, const Tensor& t, const Axis& axis, Placement placement) {
  tapestry::detail::check_defined(op, t);
  check(!axis.over_devices(), "[", op, "] axis ", axis.name(),
        " is over devices of one process; use one over ranks");
  check<IndexError>(!placement.is(Kind::sharded) || (placement.dim() >= 0 && placement.dim() < t.dim()), "[",
                    op, "] ", placement.str(), " of a tensor of ", t.dim(),
                    " dimensions; choose one of its dimensions");
}

std::string name_of(const std::optional<Placement>& placement) {
  return placement ? placement->str() : "without a placement";
}

// What to do if a tensor is `is` and should be `wanted`.
std::string remedy(const std::optional<Placement>& is, Placement wanted, const std::string& axis) {
  if (!is) return "place what it is computed from with place_parameters() or set_placement()";
  if (is->is(Kind::invariant) && wanted.is(Kind::partial))
    return "the sum has been made already; leave out the conversion";
  return concat({"use convert(tensor, ", axis, ", ", is->str(), ", ", wanted.str(), ")"});
}

bool equal_on_all_ranks(Placement p) { return p.is(Kind::invariant) || p.is(Kind::replicated); }

// The placement of a parameter that the axis' ranks divide while it is used, or nullopt.
std::optional<Placement> division(const nn::Layout& layout, const Axis& axis) {
  for (std::size_t i = 0; i < layout.full_cuts(); ++i)
    if (const nn::Cut& cut = layout.cuts()[i]; cut.dim >= 0 && cut.group->id(0) == id_of(axis))
      return cut.blocks > 1 ? Placement::varying() : Placement::sharded(cut.dim);
  return {};
}

}  // namespace

PlacementCheck::PlacementCheck(bool on)
    : outer_(std::exchange(check_of_thread, static_cast<std::int16_t>(on ? 1 : 0))) {}
PlacementCheck::~PlacementCheck() { check_of_thread = static_cast<std::int16_t>(outer_); }

void set_placement_check(bool on) { check_of_program().store(on, std::memory_order_relaxed); }
bool checks_placement() {
  return check_of_thread == kAsProgram ? check_of_program().load(std::memory_order_relaxed)
                                       : check_of_thread == 1;
}

void set_placement(const Tensor& leaf, const Axis& axis, Placement placement) {
  check_axis("set_placement", leaf, axis, placement);
  if (!checks_placement() || axis.size() == 1) return;
  const Record* const record = record_of_leaf(leaf);
  check<PlacementError>(record->fn->is_leaf(), "[set_placement] the tensor of shape ", leaf.sizes(),
                        " is a result of ", record->fn->name(), ", so its placement along axis ", axis.name(),
                        " follows from its inputs; place those, or use convert()");
  Placements all = table().of(leaf);
  assign(all, axis, placement);
  table().set(record->fn.get(), record->output, std::move(all));
}

void place_parameters(const nn::Module& module, const Axis& axis, Placement copied) {
  for (const auto& [name, p] : module.named_parameters()) {
    const auto& layout = p.layout();
    if (!layout) {
      set_placement(p.tensor(), axis, copied);
      continue;
    }
    const Placement placement = division(*layout, axis).value_or(copied);
    for (const Tensor& leaf : layout->leaves(0))
      if (leaf.defined()) set_placement(leaf, axis, placement);
  }
}

std::optional<Placement> placement_of(const Tensor& tensor, const Axis& axis) {
  const Placements all = table().of(tensor);
  const OnAxis* const found = find(all, id_of(axis));
  return found ? std::optional(found->placement) : std::nullopt;
}

void require_placement(const Tensor& tensor, const Axis& axis, Placement placement) {
  check_axis("require_placement", tensor, axis, placement);
  if (!checks_placement() || axis.size() == 1) return;
  const std::optional<Placement> is = placement_of(tensor, axis);
  check<PlacementError>(is == placement, "[require_placement] the tensor of shape ", tensor.sizes(), " is ",
                        name_of(is), " along axis ", axis.name(), ", not ", placement.str(), "; ",
                        remedy(is, placement, axis.name()));
}

void set_placement_rule(const std::string& op, PlacementRule rule) {
  check(rule != nullptr, "[set_placement_rule] the rule of ", op, " is empty; pass a function");
  Rules& rules = user_rules();
  const std::lock_guard lock(rules.mutex);
  rules.by_op[op] = std::move(rule);
}

bool has_placement_rule(const std::string& op) {
  if (impl::built_in_rule(op)) return true;
  Rules& rules = user_rules();
  const std::lock_guard lock(rules.mutex);
  return rules.by_op.contains(op);
}

namespace impl {

CheckedConversion::CheckedConversion(const Tensor& x, const Axis& axis, Placement from, Placement to,
                                     bool if_placed)
    : on_(checks_placement() && axis.size() > 1 && grad_enabled()), x_(x), axis_(axis), to_(to) {
  if (!on_) return;
  const std::optional<Placement> is = placement_of(x, axis);
  places_ = is || !if_placed;
  const bool constant = !autograd::needs_grad(x) && is && equal_on_all_ranks(*is) && equal_on_all_ranks(from);
  if (is && *is != from && !constant)
    fail<PlacementError>(
        "[convert] a tensor of shape ", x.sizes(), " is ", is->str(), " along axis ", axis.name(),
        ", but is converted from ", from.str(), " to ", to.str(), "; ",
        *is == to ? "it is placed so already: leave out the conversion" : remedy(is, to, axis.name()));
  ++pauses;
}
CheckedConversion::~CheckedConversion() {
  if (on_) --pauses;
}

Tensor CheckedConversion::result(Tensor y) const {
  if (!on_) return y;
  if (y.is_same(x_)) y = y.detach();  // placements belong to one tensor
  Placements all = table().of(x_);
  if (places_ && !is_unknown(all)) assign(all, axis_, to_);
  const Record* const record = record_of_leaf(y);
  table().set(record->fn.get(), record->output, std::move(all));
  return y;
}

}  // namespace impl
}  // namespace tapestry::distributed
