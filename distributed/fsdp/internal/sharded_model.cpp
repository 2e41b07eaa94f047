#include "tapestry/distributed/fsdp/internal/sharded_model.h"

#include <algorithm>
#include <exception>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/node.h"
#include "tapestry/core/context.h"
#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

// Scopes whose graphs may still exist. Older ones are forgotten: their backward gathers without a plan.
constexpr std::size_t kKeptOccurrences = 1 << 14;

// Units whose shards may be in an all-reduce at one time. Two, so that the link between the copies of the
// model goes on while backward computes a unit.
constexpr std::size_t kAllReducesInFlight = 2;

// The models in whose scopes this thread is.
std::vector<const ShardedModel*>& scopes_of_thread() {
  static thread_local std::vector<const ShardedModel*> models;
  return models;
}

struct Inside {
  explicit Inside(const ShardedModel* model) { scopes_of_thread().push_back(model); }
  ~Inside() { scopes_of_thread().pop_back(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

bool contains(const std::vector<ShardedUnit*>& list, const ShardedUnit* unit) {
  return std::find(list.begin(), list.end(), unit) != list.end();
}

}  // namespace

bool ShardedModel::is_computing() const {
  const auto& models = scopes_of_thread();
  return std::find(models.begin(), models.end(), this) != models.end();
}

std::shared_ptr<void> ShardedModel::watch() { return std::make_shared<Inside>(this); }

void ShardedModel::remove(ShardedUnit& unit) {
  std::erase(units_, &unit);
  for (Lane& l : lanes_) {
    l.orders.clear();
    l.at = 0;
    std::erase(l.entered, &unit);
    std::erase_if(l.tape, [&](const Occurrence& o) { return o.unit == &unit; });
    for (const auto& pass : l.passes) {
      pass->steps.erase(pass->steps.begin() + static_cast<std::ptrdiff_t>(pass->next), pass->steps.end());
      for (auto* list :
           {&pass->open, &pass->closed, &pass->extra, &pass->unplanned_gradients, &pass->summing})
        std::erase(*list, &unit);
      if (pass->scattering == &unit) pass->scattering = nullptr;
    }
  }
}

const OffloadStreams& ShardedModel::offload_streams(int replica, Device device) {
  std::optional<OffloadStreams>& streams = lane(replica).offload;
  if (!streams || !(streams->to_gpu.device() == device))
    streams = OffloadStreams{new_stream(device, true), new_stream(device, true), new_stream(device, true)};
  return *streams;
}

void ShardedModel::reset_most_full_units() {
  for (Lane& l : lanes_) l.most_full = 0;
}

void ShardedModel::forget_orders() {
  for (Lane& l : lanes_) {
    l.orders.clear();
    l.at = 0;
  }
}

// The number of full units that the limit counts. The units around the computing one, and those that are kept
// full, are not counted.
int ShardedModel::count_full(const ShardedUnit* computing, int replica) {
  int count = 0;
  for (const ShardedUnit* u : units_) {
    if (!u->has_parameters() || (!u->is_full(replica) && !u->is_arriving(replica))) continue;
    if (u == computing) ++count;
    else if (u->users(replica) == 0 && !is_open(*u, replica) &&
             ((u->reshards && !keeps_full_) || u->is_arriving(replica)))
      ++count;
  }
  return count;
}

bool ShardedModel::is_open(const ShardedUnit& unit, int replica) {
  for (const auto& pass : lane(replica).passes)
    if (contains(pass->open, &unit)) return true;
  return false;
}

void ShardedModel::post(ShardedUnit& unit, const ShardedUnit* computing, int replica) {
  unit.post_gather(replica);
  lane(replica).most_full = std::max(lane(replica).most_full, count_full(computing, replica));
}

// What an unfinished step has left full is old.
void ShardedModel::keep_full() {
  let_go();
  keeps_full_ = true;
}

void ShardedModel::let_go() {
  keeps_full_ = false;
  for (int replica = 0; replica < static_cast<int>(lanes_.size()); ++replica)
    for (ShardedUnit* u : units_)
      if (u->users(replica) == 0 && !is_open(*u, replica)) u->release(replica);
}

// ---- forward ----

class ShardedModel::Scope {
 public:
  Scope(std::shared_ptr<ShardedModel> model, std::shared_ptr<ShardedUnit> unit, int replica)
      : model_(std::move(model)), unit_(std::move(unit)), inside_(model_.get()), replica_(replica) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void enter(bool by_hand) {
    if (autograd::pass_position().id != 0) {
      model_->request(*unit_, replica_);
      unit_->add_user(replica_);
      state_ = State::backward;
      return;
    }
    Lane& lane = model_->lane(replica_);
    if (lane.depth == 0) model_->begin_forward(*unit_, by_hand, lane);
    ++lane.depth;
    state_ = State::entering;
    recorded_ = grad_enabled();
    by_hand_ = by_hand;
    if (recorded_) {
      entered_ = autograd::next_sequence();
      lane.tape.push_back({unit_.get(), entered_, UINT64_MAX});
    }
    lane.entered.push_back(unit_.get());
    model_->enter_forward(*unit_, replica_);
    unit_->add_user(replica_);
    state_ = State::forward;
  }
  ~Scope() {
    const bool failed = std::uncaught_exceptions() > exceptions_ || state_ == State::entering;
    try {
      if (state_ == State::backward || state_ == State::forward) unit_->remove_user(replica_);
      if (state_ == State::backward) model_->leave_backward(*unit_, replica_);
      else if (state_ != State::outside)
        model_->leave_forward(*unit_, replica_, recorded_ ? entered_ : 0, !by_hand_, failed);
    } catch (const std::exception&) {  // out of memory; the next gather reports that again
    }
  }

 private:
  enum class State { outside, entering, forward, backward };
  const std::shared_ptr<ShardedModel> model_;
  const std::shared_ptr<ShardedUnit> unit_;
  const Inside inside_;
  const int replica_;
  const int exceptions_ = std::uncaught_exceptions();
  State state_ = State::outside;
  bool recorded_ = false, by_hand_ = false;
  std::uint64_t entered_ = 0;
};

std::shared_ptr<void> ShardedModel::enter(const std::shared_ptr<ShardedUnit>& unit, bool by_hand) {
  const int replica = current_context().replica;
  if (why_not_callable) [[unlikely]]
    fail(why_not_callable, " (", unit->label(), ")");
  if (replica < 0 || replica >= static_cast<int>(lanes_.size())) [[unlikely]]
    fail<IndexError>("[fully_shard] replica ", replica, " of ", unit->label(),
                     " was called, but the module was sharded with ", lanes_.size(),
                     "; call it on the devices that it was sharded over");
  auto scope = std::make_shared<Scope>(shared_from_this(), unit, replica);
  scope->enter(by_hand);
  return scope;
}

// A parameter that the model got after it was sharded has no unit, and nothing would reduce its gradient.
void ShardedModel::begin_forward(ShardedUnit& unit, bool by_hand, Lane& l) {
  const nn::Module* const module = unit.module();
  if (grad_enabled() && !by_hand && module)
    for (const nn::Parameter& slot : module->parameters()) {
      if (dynamic_cast<const ShardedParameter*>(slot.layout().get())) continue;
      for (const auto& [name, named] : module->named_parameters())
        check(!named.is_same(slot), "[fully_shard] ", unit.path_of(name),
              " was added or replaced after the module was sharded; make all changes of the model before "
              "fully_shard(), on all ranks");
    }
  l.outermost = {&unit, by_hand};
  l.entered.clear();
  l.at = 0;
}

void ShardedModel::enter_forward(ShardedUnit& unit, int replica) {
  Lane& l = lane(replica);
  const bool kept = keeps_full_ && unit.is_full(replica);
  if (kept) unit.check_current(replica);
  const bool needs_gather = unit.users(replica) == 0 && !kept;
  if (needs_gather) post(unit, &unit, replica);
  // The ranks must post the same gathers. So this depends on the order of calls alone, and not on whether the
  // shards have changed.
  const std::vector<ShardedUnit*>& order = l.orders[l.outermost];
  const auto found = std::find(order.begin() + static_cast<std::ptrdiff_t>(std::min(l.at, order.size())),
                               order.end(), &unit);
  if (found != order.end()) {
    l.at = static_cast<std::size_t>(found - order.begin()) + 1;
    for (auto ahead = found + 1; ahead != order.end() && count_full(&unit, replica) < max_full_units; ++ahead)
      if ((*ahead)->users(replica) == 0 && !(*ahead)->is_full(replica)) post(**ahead, &unit, replica);
  }
  if (needs_gather) unit.finish_gather(replica);
}

// `entered` is the number under which the tape recorded the scope; 0 if it did not.
void ShardedModel::leave_forward(ShardedUnit& unit, int replica, std::uint64_t entered, bool may_keep,
                                 bool failed) {
  Lane& l = lane(replica);
  if (entered != 0) {
    const auto own = std::find_if(l.tape.rbegin(), l.tape.rend(),
                                  [&](const Occurrence& o) { return o.entered == entered; });
    if (own != l.tape.rend()) own->left = autograd::next_sequence();
  }
  // Without a graph, no backward comes that would free the unit.
  const bool keep = entered != 0 && !failed && (keeps_full_ || (may_keep && !unit.reshards));
  if (unit.users(replica) == 0 && !keep) unit.release(replica);
  if (--l.depth > 0) return;
  if (failed) keeps_full_ = false;
  for (ShardedUnit* u : units_) {
    u->drop_gather(replica);  // gathered ahead for a call that did not come
    if (failed && u->users(replica) == 0) u->release(replica);
  }
  if (!failed) l.orders[l.outermost] = l.entered;
  while (l.tape.size() > kKeptOccurrences) l.tape.pop_front();
}

// ---- backward ----

// Ends a pass: finish() if the pass reached its end, else abandon().
class ShardedModel::PassGuard {
 public:
  PassGuard(std::shared_ptr<ShardedModel> model, std::uint64_t id, int replica)
      : model_(std::move(model)), id_(id), replica_(replica) {}
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;
  void finish() {
    model_->finish(id_, replica_);
    finished_ = true;
  }
  ~PassGuard() {
    if (!finished_) model_->abandon(id_, replica_);
  }

 private:
  const std::shared_ptr<ShardedModel> model_;
  const std::uint64_t id_;
  const int replica_;
  bool finished_ = false;
};

// The steps of the pass that begins now.
std::vector<ShardedModel::Step> ShardedModel::plan(const Lane& l) const {
  const std::vector<std::uint64_t> nodes = autograd::pass_sequences();
  std::vector<Step> steps;
  if (nodes.empty()) return steps;
  for (const Occurrence& o : l.tape) {
    if (!o.unit->has_parameters() || o.left < nodes.front()) continue;
    const auto first = std::upper_bound(nodes.begin(), nodes.end(), o.entered);
    if (first == nodes.end() || *first >= o.left) continue;
    steps.push_back({o.left, o.unit, true, false, *first});
    steps.push_back({o.entered, o.unit, false, false, *first});
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.at > b.at; });
  std::vector<ShardedUnit*> seen;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    if (!step->opens && !contains(seen, step->unit)) {
      step->last = true;
      seen.push_back(step->unit);
    }
  return steps;
}

ShardedModel::Pass& ShardedModel::current_pass(int replica, std::uint64_t id) {
  Lane& l = lane(replica);
  for (const auto& pass : l.passes)
    if (pass->id == id) return *pass;
  auto pass = std::make_unique<Pass>();
  pass->id = id;
  pass->accumulates = autograd::pass_position().accumulates;
  pass->synchronize = *synchronize;
  pass->all_reduce = *all_reduce;
  pass->steps = plan(l);
  for (const Step& step : pass->steps)
    if (step.last) pass->awaited[step.unit] = step.unit->count_reached(replica);
  autograd::on_backward_end(
      [guard = std::make_shared<PassGuard>(shared_from_this(), id, replica)] { guard->finish(); });
  l.passes.push_back(std::move(pass));
  return *l.passes.back();
}

void ShardedModel::advance(Pass& pass, int replica, std::uint64_t position) {
  while (pass.next < pass.steps.size() && position < pass.steps[pass.next].at) take_step(pass, replica);
}

void ShardedModel::take_step(Pass& pass, int replica) {
  const Step step = pass.steps[pass.next++];
  if (step.opens) open(pass, replica, *step.unit);
  else close(pass, replica, *step.unit, step.last);
}

void ShardedModel::open(Pass& pass, int replica, ShardedUnit& unit) {
  pass.open.push_back(&unit);
  std::erase(pass.extra, &unit);
  if (pass.ended) return;
  if (!unit.is_full(replica)) post(unit, &unit, replica);
  for (std::size_t i = pass.next; i < pass.steps.size() && count_full(&unit, replica) < max_full_units; ++i) {
    ShardedUnit& ahead = *pass.steps[i].unit;
    if (pass.steps[i].opens && !ahead.is_full(replica)) post(ahead, &unit, replica);
  }
}

void ShardedModel::close(Pass& pass, int replica, ShardedUnit& unit, bool last) {
  const auto opened = std::find(pass.open.rbegin(), pass.open.rend(), &unit);
  if (opened != pass.open.rend()) pass.open.erase(std::next(opened).base());
  if (last) pass.closed.push_back(&unit);
  if (unit.users(replica) == 0 && !is_open(unit, replica) && (last || unit.reshards) && !keeps(pass)) {
    unit.drop_gather(replica);
    unit.release(replica);
  }
  if (last && pass.accumulates) reduce(pass, replica, unit);
}

// Posts the reduce-scatter of a unit. The one before it must be done, so that at most two units have full
// gradients: this one, and the one whose gradients backward computes next.
void ShardedModel::reduce(Pass& pass, int replica, ShardedUnit& unit) {
  if (!unit.is_trained(replica)) return;
  if (!pass.synchronize) return unit.set_unreduced(replica);
  finish_scatter(pass, replica);
  finish_all_reduces(pass, replica, kAllReducesInFlight - 1);
  unit.post_scatter(replica, pass.all_reduce);
  pass.scattering = &unit;
}

void ShardedModel::finish_scatter(Pass& pass, int replica) {
  ShardedUnit* const unit = std::exchange(pass.scattering, nullptr);
  if (!unit) return;
  unit->finish_scatter(replica);
  if (unit->is_summing(replica)) pass.summing.push_back(unit);
}

// Waits until at most this number of units are in an all-reduce.
void ShardedModel::finish_all_reduces(Pass& pass, int replica, std::size_t most) {
  while (pass.summing.size() > most) {
    ShardedUnit* const oldest = pass.summing.front();
    pass.summing.erase(pass.summing.begin());
    oldest->finish_all_reduce(replica);
  }
}

// Whether the pass has come to nodes of the unit, and only delayed weight gradients of newer nodes keep it
// from opening the unit. Backward then reads the unit's parameters before the unit is open.
bool ShardedModel::is_due(const Pass& pass, const ShardedUnit& unit, std::uint64_t reached) const {
  for (std::size_t i = pass.next; i < pass.steps.size() && reached < pass.steps[i].at; ++i)
    if (pass.steps[i].opens && pass.steps[i].unit == &unit) return true;
  return false;
}

void ShardedModel::request(ShardedUnit& unit, int replica) {
  const autograd::PassPosition now = autograd::pass_position();
  Pass& pass = current_pass(replica, now.id);
  advance(pass, replica, now.position);
  if (unit.is_full(replica)) return;
  if (!is_open(unit, replica) && !is_due(pass, unit, now.reached)) {
    // Backward recomputes a call of several units, or differentiates a gradient, or the tape is too short.
    // Only the newest of these units stay full.
    std::erase(pass.extra, &unit);
    const std::vector<ShardedUnit*> older = pass.extra;
    for (ShardedUnit* u : older) {
      if (static_cast<int>(pass.extra.size()) < max_full_units) break;
      if (u->users(replica) > 0) continue;
      if (!is_open(*u, replica) && !keeps(pass)) u->release(replica);
      std::erase(pass.extra, u);
    }
    pass.extra.push_back(&unit);
  }
  if (!unit.is_arriving(replica)) post(unit, &unit, replica);
  unit.finish_gather(replica);
}

void ShardedModel::leave_backward(ShardedUnit& unit, int replica) {
  if (unit.users(replica) > 0 || is_open(unit, replica)) return;
  const autograd::PassPosition now = autograd::pass_position();
  const auto& passes = lane(replica).passes;
  if (std::any_of(passes.begin(), passes.end(),
                  [&](const auto& pass) { return pass->id == now.id && is_due(*pass, unit, now.reached); }))
    return;
  if (std::none_of(passes.begin(), passes.end(), [&](const auto& pass) { return keeps(*pass); }))
    unit.release(replica);
  for (const auto& pass : passes) std::erase(pass->extra, &unit);
}

void ShardedModel::on_gradient(ShardedUnit& unit, int replica) {
  const autograd::PassPosition now = autograd::pass_position();
  Pass& pass = current_pass(replica, now.id);
  advance(pass, replica, now.position);
  if (contains(pass.closed, &unit)) [[unlikely]]
    fail<AutogradError>("[fully_shard] a gradient of ", unit.label(),
                        " arrived after the gradients of this unit had been reduced: an operation outside of "
                        "forward used its parameters; use them in forward of the unit, or under unshard()");
  const bool planned =
      std::any_of(pass.steps.begin(), pass.steps.end(), [&](const Step& step) { return step.unit == &unit; });
  if (!planned && !contains(pass.unplanned_gradients, &unit)) pass.unplanned_gradients.push_back(&unit);
  if (!planned || --pass.awaited[&unit] > 0 || pass.next == pass.steps.size()) return;
  const Step& step = pass.steps[pass.next];
  if (step.unit == &unit && step.last && now.position <= step.oldest) take_step(pass, replica);
}

void ShardedModel::finish(std::uint64_t id, int replica) {
  Lane& l = lane(replica);
  Pass& pass = current_pass(replica, id);
  pass.ended = true;
  while (pass.next < pass.steps.size()) take_step(pass, replica);
  if (pass.accumulates)
    for (ShardedUnit* u : std::vector<ShardedUnit*>(units_))
      if (contains(pass.unplanned_gradients, u) ||
          (pass.synchronize && u->has_unreduced(replica, pass.all_reduce) && !contains(pass.closed, u)))
        reduce(pass, replica, *u);
  finish_scatter(pass, replica);
  finish_all_reduces(pass, replica, 0);
  for (ShardedUnit* u : units_) u->land(replica);
  const std::vector<ShardedUnit*> extra = std::move(pass.extra);
  const bool reduced = pass.accumulates && pass.synchronize && pass.all_reduce, kept = keeps(pass);
  std::erase_if(l.passes, [&](const auto& p) { return p->id == id; });
  for (ShardedUnit* u : extra)
    if (u->users(replica) == 0 && !is_open(*u, replica) && !kept) u->release(replica);
  if (reduced) after_pass();
}

void ShardedModel::reduce_rest(int replica) {
  bool any = false;
  for (ShardedUnit* u : units_) {
    if (!u->has_unreduced(replica, true) || !u->is_trained(replica)) continue;
    u->post_scatter(replica, true);
    u->finish_scatter(replica);
    u->finish_all_reduce(replica);
    u->land(replica);
    any = true;
  }
  if (any) after_pass();
}

// Frees what an exception left. The gradients of this pass are incomplete.
void ShardedModel::abandon(std::uint64_t id, int replica) noexcept {
  Lane& l = lane(replica);
  const auto found =
      std::find_if(l.passes.begin(), l.passes.end(), [&](const auto& p) { return p->id == id; });
  if (found == l.passes.end()) return;
  const std::unique_ptr<Pass> pass = std::move(*found);
  l.passes.erase(found);
  keeps_full_ = false;
  for (ShardedUnit* u : units_) {
    if (pass->accumulates) u->drop_gradients(replica);
    if (u->users(replica) > 0 || is_open(*u, replica)) continue;
    u->drop_gather(replica);
    try {
      u->release(replica);
    } catch (const std::exception&) {  // out of memory for a changed parameter; the next gather reports it
    }
  }
}

}  // namespace tapestry::distributed
