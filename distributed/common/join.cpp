#include "tapestry/distributed/common/join.h"

#include <algorithm>
#include <sstream>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/join_scope.h"
#include "tapestry/nn/internal/optimizers_of.h"

namespace tapestry::distributed {
namespace {

constexpr std::int64_t kJoined = 0;  // the code of a rank without batches
constexpr std::int64_t kActions = 8;

std::string action_text(std::int64_t code) {
  if (code == kJoined) return "has joined";
  const char* const actions[] = {"", "a forward pass", "a backward pass", "a step", "mean_over_ranks()"};
  return concat({"begins ", actions[code % kActions], " of object ", code / kActions, " of the list"});
}

}  // namespace

JoinScope::JoinScope(const std::vector<Joinable*>& joinables, const JoinOptions& o)
    : options(o), group_(*joinables[0]->join_group()), joinables_(joinables), live_(group_.size()) {}

// Returns the code of the ranks that have batches; kJoined if there are none.
std::int64_t JoinScope::gather(std::int64_t code, std::int64_t number) {
  const std::int64_t own[] = {code, number};
  const std::vector<std::int64_t> all = all_gather_numbers(group_, own, "join");
  int live = 0, lead = -1;
  std::int64_t total = 0;
  std::string joined;
  for (int r = 0; r < group_.size(); ++r) {
    const std::int64_t theirs = all[static_cast<std::size_t>(2 * r)];
    if (theirs == kJoined) {
      joined += concat({joined.empty() ? "" : ", ", r});
      continue;
    }
    if (lead < 0) lead = r;
    check(theirs == all[static_cast<std::size_t>(2 * lead)], "[join] rank ", lead, " ",
          action_text(all[static_cast<std::size_t>(2 * lead)]), ", and rank ", r, " ", action_text(theirs),
          "; call the model, backward() and step() in the same order on all ranks");
    ++live;
    total += all[static_cast<std::size_t>(2 * r + 1)];
  }
  if (live == 0) return kJoined;
  check<DistributedError>(!options.throw_on_early_termination || joined.empty(),
                          "[join] these ranks have no more batches, and others do: ", joined,
                          "; give all ranks the same number, or leave throw_on_early_termination out");
  live_ = live;
  lead_ = lead;
  total_ = total;
  lead_number_ = all[static_cast<std::size_t>(2 * lead + 1)];
  ever_joined_ = ever_joined_ || !joined.empty();
  return all[static_cast<std::size_t>(2 * lead)];
}

bool JoinScope::contains(const Joinable* j) const {
  return std::find(joinables_.begin(), joinables_.end(), j) != joinables_.end();
}

void JoinScope::announce(const Joinable& who, Action action, std::int64_t number) {
  const auto at = std::find(joinables_.begin(), joinables_.end(), &who) - joinables_.begin();
  gather(static_cast<std::int64_t>(at) * kActions + action, number);
}

void JoinScope::take_part() {
  joined_ = true;
  while (const std::int64_t code = gather(kJoined, 0))
    joinables_[static_cast<std::size_t>(code / kActions)]->shadow(static_cast<int>(code % kActions));
}

void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options) {
  check(body != nullptr, "[join] the function is empty; pass the loop over this rank's batches");
  check(!joinables.empty(), "[join] the list is empty; pass the DistributedDataParallel");
  for (const Joinable* j : joinables) {
    check(j != nullptr, "[join] a pointer in the list is null");
    check(j->join_group() == joinables[0]->join_group(),
          "[join] the list has objects of several process groups; join those of one group");
  }
  if (!options.enable) return body();
  JoinScope scope(joinables, options);
  for (const Joinable* j : joinables) {
    const std::string why = j->why_not_joinable(scope);
    check(why.empty(), "[join] ", why);
  }
  struct Active {
    const std::vector<Joinable*>& list;
    Active(const std::vector<Joinable*>& l, JoinScope& scope) : list(l) {
      for (Joinable* j : list) j->set_join(&scope);
    }
    ~Active() {
      for (Joinable* j : list) j->set_join(nullptr);
    }
  };
  {
    const Active active(joinables, scope);
    body();
    scope.take_part();
  }
  if (!scope.ever_joined()) return;
  for (Joinable* j : joinables) j->end_join(scope.lead());
}

namespace {

Tensor share_of_mean(const Tensor& sum, double divisor, std::int64_t total) {
  return sum * (total > 0 ? divisor / static_cast<double>(total) : 0.0);
}
void check_count(std::int64_t count) {
  check(count >= 0, "[mean_over_ranks] count is ", count, "; it is the number of this rank's items");
}

}  // namespace

Tensor mean_over_ranks(ProcessGroup& group, const Tensor& sum, std::int64_t count) {
  check_count(count);
  std::int64_t total = 0;
  for (const std::int64_t n : all_gather_numbers(group, {&count, 1}, "items of all ranks")) total += n;
  return share_of_mean(sum, group.size(), total);
}

Tensor mean_over_ranks(JoinScope& scope, const Joinable& who, const Tensor& sum, std::int64_t count) {
  check_count(count);
  scope.announce(who, JoinScope::count, count);
  return share_of_mean(sum, scope.divisor(), scope.total());
}

void broadcast_optimizer(ProcessGroup& group, optim::Optimizer& optimizer, int lead) {
  const NoGradGuard no_grad;
  const bool leads = group.rank() == lead;
  optim::StateDict dict;
  std::string text;
  if (leads) {
    dict = optimizer.state_dict();
    text = std::to_string(optimizer.steps()) + "\n";
    for (const auto& [key, t] : dict) {
      text += concat({key, "\n", static_cast<int>(t.dtype()), " ", t.dim()});
      for (const std::int64_t n : t.sizes()) text += concat({" ", n});
      text += "\n";
    }
  }
  text = broadcast_text(group, text, lead, "state of the optimizer");
  std::istringstream in(text);
  std::uint64_t steps = 0;
  in >> steps >> std::ws;
  std::string key;
  for (std::size_t i = 0; std::getline(in, key); ++i) {
    int dtype = 0, dims = 0;
    in >> dtype >> dims;
    Shape sizes;
    for (int d = 0; d < dims; ++d) {
      std::int64_t n = 0;
      in >> n;
      sizes.push_back(n);
    }
    in >> std::ws;
    if (!leads) dict.emplace_back(key, empty(sizes, static_cast<DType>(dtype)));
    group.broadcast(dict[i].second, lead, "state of the optimizer");
  }
  if (leads) return;
  optimizer.load_state_dict(dict);
  optim::set_steps(optimizer, steps);
}

std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index) {
  const NoGradGuard no_grad;
  return ne(targets, Scalar(ignore_index)).sum().item<std::int64_t>();
}

}  // namespace tapestry::distributed
