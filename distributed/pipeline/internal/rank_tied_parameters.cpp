#include "tapestry/distributed/pipeline/internal/rank_tied_parameters.h"

#include <algorithm>
#include <utility>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/nn/internal/divided_gradients.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kNone = "-";

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " = ") + name;
  return text.empty() ? "no names" : text;
}

// Describes what a rank has under the names of one tied weight.
std::string described(const std::vector<nn::Parameter>& found) {
  if (found.empty()) return kNone;
  if (found.size() > 1) return "two parameters: assign one of them to the other where they are constructed";
  const Tensor& tensor = found[0];
  return concat({tensor.dtype(), " ", tensor.sizes(), tensor.requires_grad() ? "" : ", frozen"});
}

// The elements of a gradient that this rank has: all of them, or its part under ZeRO's stage 2. A parameter
// without a gradient gets zeros.
Tensor elements_of_gradient(const Tensor& parameter) {
  if (!parameter.grad().defined()) {
    Reducer* const reducer = reducer_of(parameter);
    if (!reducer || !reducer->begin_part(parameter)) parameter.set_grad(zeros_like(parameter.detach()));
  }
  const Tensor gradient = parameter.grad();
  nn::DividedGradients* const divided = nn::divided_gradients(gradient);
  return divided ? divided->part(*gradient.storage()) : gradient;
}

}  // namespace

RankTiedParameters::RankTiedParameters(ProcessGroup& group, const Stage& stage,
                                       const std::vector<std::vector<std::string>>& names)
    : group_(group), names_(names) {
  const std::vector<std::pair<std::string, nn::Parameter>> own = stage.named_parameters();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::vector<std::string>& tied = names[i];
    std::vector<nn::Parameter> found;
    std::string mine = listed(tied);
    for (const auto& [name, parameter] : own)
      if (std::find(tied.begin(), tied.end(), name) != tied.end()) found.push_back(parameter);
    mine += "\n" + described(found);

    // Every rank gets the same descriptions, so all ranks throw or none does.
    const std::vector<std::string> all = all_gather_text(group, mine, "pipeline: tied weights");
    std::vector<int> ranks;
    std::string table;
    bool equal = true;
    const auto what = [&](std::size_t r) { return all[r].substr(all[r].find('\n') + 1); };
    for (std::size_t r = 0; r < all.size(); ++r) {
      table += concat({"\n  rank ", r, "  ", all[r].substr(0, all[r].find('\n')), ": ", what(r)});
      equal = equal && all[r].starts_with(listed(tied) + "\n");
      if (what(r) == kNone) continue;
      ranks.push_back(static_cast<int>(r));
      equal = equal && what(r) == what(static_cast<std::size_t>(ranks[0])) && !what(r).starts_with("two");
    }
    check(equal, "[Pipeline] a tied weight is not the same on all ranks:", table,
          "\npass the same names on all ranks, and tie parameters of the same dtype and shape");
    check(ranks.size() > 1, "[Pipeline] fewer than two ranks have a tied weight:", table,
          "\nuse the names of Stage::named_parameters(); within one stage assign one parameter to both "
          "modules");
    if (const auto members = group.new_group(ranks)) ties_.push_back({i, found[0], members});
  }
  broadcast_values();
}

void RankTiedParameters::begin_pass() {
  for (Tie& tie : ties_) {
    const Tensor& parameter = nn::stored_tensor(tie.parameter, 0);
    // A copy: grad() may be in a bucket of DistributedDataParallel, which this pass writes to.
    tie.earlier = parameter.grad().defined() ? elements_of_gradient(parameter).clone() : Tensor();
    parameter.set_grad({});
  }
}

// By tied weight: whether any rank has a gradient. Every rank gets the same states, so all ranks throw or
// none does.
std::vector<bool> RankTiedParameters::used_by_any() const {
  if (names_.empty()) return {};
  enum : std::int64_t { kAbsent, kFrozen, kUnused, kUsed };
  const std::size_t count = names_.size(), ranks = static_cast<std::size_t>(group_.size());
  std::vector<std::int64_t> own(count, kAbsent);
  for (const Tie& tie : ties_) {
    const Tensor& parameter = nn::stored_tensor(tie.parameter, 0);
    own[tie.index] = !parameter.requires_grad() ? kFrozen : parameter.grad().defined() ? kUsed : kUnused;
  }
  const std::vector<std::int64_t> all = all_gather_numbers(group_, own, "pipeline: use of tied weights");
  std::vector<bool> used(count);
  for (std::size_t i = 0; i < count; ++i) {
    bool frozen = false, trained = false;
    std::string table;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::int64_t state = all[r * count + i];
      if (state == kAbsent) continue;
      if (state == kUsed) used[i] = true;
      (state == kFrozen ? frozen : trained) = true;
      table += concat({"\n  rank ", r, "  ", state == kFrozen ? "frozen" : "trained"});
    }
    check(!frozen || !trained, "[Pipeline] the tied weight ", listed(names_[i]),
          " is frozen on some ranks but not on all:", table, "\nfreeze it on all of them or on none");
  }
  return used;
}

void RankTiedParameters::add_gradients() {
  const NoGradGuard no_grad;
  const std::vector<bool> used = used_by_any();
  for (Tie& tie : ties_) {
    const Tensor& parameter = nn::stored_tensor(tie.parameter, 0);
    const Tensor earlier = std::exchange(tie.earlier, {});
    if (!used[tie.index] && !earlier.defined()) continue;
    // A rank that did not use the weight contributes zeros, because the others wait for it.
    const Tensor gradient = elements_of_gradient(parameter);
    if (used[tie.index])
      tie.group->all_reduce(gradient, ReduceOp::sum, "pipeline: gradients of tied weights").wait();
    if (earlier.defined()) gradient.add_(earlier);
  }
}

void RankTiedParameters::broadcast_values() {
  const NoGradGuard no_grad;
  for (const Tie& tie : ties_)
    tie.group->broadcast(nn::stored_tensor(tie.parameter, 0).detach(), 0, "pipeline: tied weights").wait();
}

bool RankTiedParameters::is_counted_elsewhere(const nn::Parameter& parameter) const {
  return std::any_of(ties_.begin(), ties_.end(), [&](const Tie& tie) {
    return tie.group->rank() > 0 && tie.parameter.is_same(parameter);
  });
}

}  // namespace tapestry::distributed
