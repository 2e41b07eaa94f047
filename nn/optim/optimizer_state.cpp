// The state dicts of optimizers.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/nn/internal/masters.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {
namespace {

// Keys of local_state_dict() if its states are what one rank stores: its rank in each group that divides the
// parameters, and the sizes of these groups.
constexpr const char *kShardRank = "shard.rank", *kShardRanks = "shard.ranks";

// This rank's place among the ranks that divide the parameters: their values for kShardRank and kShardRanks.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> place_of(std::span<const Parameter> params) {
  std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> place;
  for (const nn::DividingGroup& g : nn::dividing_groups(params)) {
    place.first.push_back(g.group->rank(current_context().replica));
    place.second.push_back(g.group->size());
  }
  return place;
}

std::vector<std::int64_t> numbers_of(const Tensor* t) {
  return t ? t->reshape({-1}).to_vector<std::int64_t>() : std::vector<std::int64_t>();
}

std::string text_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text.empty() ? "none" : text;
}

Tensor f64_number(double value) { return scalar_tensor(value, {DType::f64, kCPU}); }

}  // namespace

template <class F>
void Optimizer::for_params(const F& fn) const {
  std::size_t number = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t i = 0; i < groups_[g].params.size(); ++i) fn(g, i, number++);
}

// `local`: with shards in place of whole states, and with the number of their rank.
StateDict Optimizer::copy_state(bool local) const {
  const NoGradGuard no_grad;
  const std::vector<Parameter> params = parameters();
  const int replica = current_context().replica;
  StateDict dict;
  bool divided = false;
  std::vector<std::map<std::string, Tensor>> of_replicas;
  for (const StateTensor& t : Optimizer::state_tensors(replica)) {
    const nn::Layout* const layout =
        t.like_param ? params[static_cast<std::size_t>(t.param)].layout().get() : nullptr;
    if (!layout) {
      dict.emplace_back(t.key, t.like_param ? clone(t.tensor) : t.tensor);
      continue;
    }
    const Parameter& p = params[static_cast<std::size_t>(t.param)];
    if (p.replicas() < layout->ranks()) {
      if (!local)
        fail("[state_dict] the state of a parameter of shape ", layout->whole_sizes(),
             nn::divided_text(*layout, replica),
             "; save with distributed::save_checkpoint() or save_sharded() on all ranks, "
             "or take local_state_dict(), which the same rank can load");
      divided = true;
      dict.emplace_back(t.key, clone(t.tensor));
      continue;
    }
    if (of_replicas.empty()) of_replicas.resize(static_cast<std::size_t>(p.replicas()));
    std::vector<Tensor> parts;
    for (int r = 0; r < p.replicas(); ++r) {
      auto& known = of_replicas.at(static_cast<std::size_t>(r));
      if (known.empty())
        for (const StateTensor& own : Optimizer::state_tensors(r)) known.emplace(own.key, own.tensor);
      const auto found = known.find(t.key);
      check(found != known.end(), "[state_dict] the optimizer has ", t.key, " for replica ", replica,
            " and not for replica ", r, "; call step() before the state is saved");
      parts.push_back(found->second);
    }
    dict.emplace_back(t.key, nn::join_parts(*layout, parts));
  }
  if (divided) {
    const auto [ranks, sizes] = place_of(params);
    dict.emplace_back(kShardRank, tensor(ranks, {DType::i64, kCPU}));
    dict.emplace_back(kShardRanks, tensor(sizes, {DType::i64, kCPU}));
  }
  return dict;
}

StateDict Optimizer::state_dict() const { return copy_state(false); }

StateDict Optimizer::local_state_dict() const {
  // Derived classes that do not override this function have states of their own in state_dict().
  for (const Parameter& p : parameters())
    if (p.layout()) return copy_state(true);
  return state_dict();
}

std::vector<StateTensor> Optimizer::state_tensors(int replica) const {
  const NoGradGuard no_grad;
  const std::vector<const char*> names = state_names();
  std::vector<StateTensor> all;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::string prefix = "groups." + std::to_string(g) + ".";
    for (const OptionRef& o : options_of(g)) all.push_back({prefix + o.name, -1, false, f64_number(o.get())});
    all.push_back({prefix + "num_params", -1, false,
                   scalar_tensor(static_cast<std::int64_t>(groups_[g].params.size()), {DType::i64, kCPU})});
  }
  for_params([&](std::size_t g, std::size_t i, std::size_t n) {
    const std::vector<State>& states = groups_[g].states[i];
    // All replicas have the same state, unless they are divided.
    const std::size_t at = groups_[g].params[i].layout() ? static_cast<std::size_t>(replica) : 0;
    if (states.size() <= at || !states[at].step.defined()) return;
    const std::string prefix = "state." + std::to_string(n) + ".";
    const auto param = static_cast<std::int64_t>(n);
    const Tensor& step = states[at].step;
    all.push_back({prefix + "step", param, false, clone(step.dim() == 0 ? step : step.select(0, 0))});
    if (number_name()) all.push_back({prefix + number_name(), param, false, clone(step.select(0, 1))});
    for (std::size_t k = 0; k < kMaxState; ++k)
      if (states[at].tensors[k].defined())
        all.push_back({prefix + names[k], param, true, states[at].tensors[k]});
    if (states[at].master.defined()) all.push_back({prefix + kMaster, param, true, states[at].master});
  });
  return all;
}

void Optimizer::load_state_dict(const StateDict& dict) {
  const NoGradGuard no_grad;
  const std::vector<const char*> names = state_names();
  const nn::StateDictIndex index(dict);
  std::string wrong;
  std::unordered_set<std::string> used;
  const auto take = [&](const std::string& key) -> const Tensor* {
    const Tensor* t = index.find(key);
    if (t) used.insert(key);
    return t && t->defined() ? t : nullptr;
  };
  const auto take_number = [&](const std::string& key) {
    const Tensor* t = take(key);
    if (t && t->numel() == 1) return t->item();
    wrong += (t ? "\n  not a number: " : "\n  missing: ") + key;
    return 0.0;
  };
  // A part of another rank has the shape of this rank's part if the parameter divides evenly.
  const Tensor *const part_of = take(kShardRank), *const parts = take(kShardRanks);
  if (part_of || parts) {
    const auto [ranks, sizes] = place_of(parameters());
    const auto of = numbers_of(part_of), among = numbers_of(parts);
    if (!ranks.empty() && (of != ranks || among != sizes))
      wrong += "\n  the part of rank " + text_of(of) + " of " + text_of(among) + " ranks, but this is rank " +
               text_of(ranks) + " of " + text_of(sizes);
  }

  const auto take_real = [&](const std::string& key) {
    const Tensor* t = index.find(key);
    if (t && t->defined() && !is_floating(t->dtype()))
      wrong += concat({"\n  not a floating-point number: ", key, " is ", t->dtype()});
    return take_number(key);
  };

  // All values are read and checked before the first change.
  std::vector<std::vector<double>> options(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::string prefix = "groups." + std::to_string(g) + ".";
    for (const OptionRef& o : options_of(g)) options[g].push_back(take_real(prefix + o.name));
    const double count = take_number(prefix + "num_params");
    if (count != static_cast<double>(groups_[g].params.size()))
      wrong += concat({"\n  group ", g, " has ", count, " parameters in the state and ",
                       groups_[g].params.size(), " here"});
  }
  std::vector<std::vector<State>> states(parameters().size());  // of all replicas of a divided parameter
  for_params([&](std::size_t g, std::size_t i, std::size_t n) {
    const std::string prefix = "state." + std::to_string(n) + ".";
    if (!index.find(prefix + "step")) return;
    const Parameter& slot = groups_[g].params[i];
    const double steps = take_real(prefix + "step");
    if (!(steps >= 0 && std::isfinite(steps)))
      wrong += concat({"\n  not a number of steps: ", prefix, "step is ", steps});
    Tensor count = f64_number(steps);
    if (number_name())
      count = tensor(std::vector<double>{steps, take_real(prefix + number_name())}, {DType::f64, kCPU});
    // Replicas that are not shards copy the state of the first one in the next step.
    states[n].resize(slot.layout() ? static_cast<std::size_t>(slot.replicas()) : 1);
    for (State& state : states[n]) state.step = clone(count);
    const auto take_tensor = [&](const char* key, const auto& member) {
      const Tensor* t = take(prefix + key);
      if (!t) return;
      for (std::size_t r = 0; r < states[n].size(); ++r) {
        const Tensor& param = nn::stored_tensor(slot, static_cast<int>(r));
        const Tensor part = slot.layout() && part_of ? (t->sizes() == param.sizes() ? *t : Tensor())
                                                     : nn::stored_part(slot, static_cast<int>(r), *t);
        if (part.defined()) {
          member(states[n][r]) = clone(part.to(param.device(), state_dtype(param.dtype())));
          continue;
        }
        const bool part_given = slot.layout() && !part_of && t->sizes() == param.sizes();
        wrong += "\n  wrong shape: " + prefix + key + " expected " +
                 (slot.layout() && part_of ? param.sizes() : nn::whole_sizes(slot)).str() + " but got " +
                 t->sizes().str() + (part_given ? ", the shape of this rank's shard" : "");
        break;
      }
    };
    for (std::size_t k = 0; k < names.size(); ++k)
      take_tensor(names[k], [&](State& state) -> Tensor& { return state.tensors[k]; });
    if (is_low(nn::stored_tensor(slot, 0).dtype()) && low_precision(g) == LowPrecision::master)
      take_tensor(kMaster, [](State& state) -> Tensor& { return state.master; });
  });
  for (const auto& [key, t] : dict)
    if (!used.contains(key)) wrong += "\n  unexpected: " + key;
  check(wrong.empty(), "[load_state_dict] the state dict does not match this ", name(),
        ", and nothing was loaded:", wrong,
        "\npass the state of the same optimizer over the same parameters");

  // Set the new options first, because they determine which state tensors must exist.
  std::vector<std::vector<double>> old(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (const OptionRef& o : options_of(g)) old[g].push_back(o.get());
  const auto assign = [&](const std::vector<std::vector<double>>& values) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto value = values[g].begin();
      for (const OptionRef& o : options_of(g)) o.set(*value++);
    }
  };
  assign(options);
  try {
    for (std::size_t g = 0; g < groups_.size(); ++g) check_options(g);
    for_params([&](std::size_t g, std::size_t, std::size_t n) {
      for (std::size_t k = 0; k < names.size(); ++k)
        check(!uses_state(g, k) || states[n].empty() || states[n][0].tensors[k].defined(),
              "[load_state_dict] state.", n, ".", names[k],
              " is missing, and nothing was loaded; pass the state of the "
              "same optimizer");
    });
  } catch (...) {
    assign(old);
    throw;
  }
  for_params([&](std::size_t g, std::size_t i, std::size_t n) {
    std::vector<State>& now = groups_[g].states[i];
    if (states[n].empty() || !groups_[g].params[i].layout()) now.clear();
    now.resize(std::max(now.size(), states[n].size()));
    for (std::size_t r = 0; r < states[n].size(); ++r)
      if (states[n][r].step.defined()) now[r] = std::move(states[n][r]);
  });
}

}  // namespace tapestry::optim
