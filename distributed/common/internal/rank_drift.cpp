#include "tapestry/distributed/common/internal/rank_drift.h"

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/common/rank_check.h"
#include "tapestry/nn/internal/optimizers_of.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {
namespace {

constexpr std::int64_t kNotCounted = -1;  // a shard without elements, which optimizers may leave alone

}  // namespace

RankDrift::RankDrift(const char* op, RankGrid grid, nn::NamedSlots parameters, int every)
    : op_(op), grid_(std::move(grid)), parameters_(std::move(parameters)), every_(every) {
  check(every >= 0, "[", op, "] check_every is ", every, "; pass a number of passes, or 0 for never");
  seen_.resize(parameters_.size());
  if (every > 0) count_changes();
}

const Tensor& RankDrift::own(std::size_t i) const {
  const nn::TensorSlot& slot = parameters_[i].second;
  return slot.layout() ? slot.layout()->stored(0) : slot.replica(0);
}

bool RankDrift::is_equal(std::size_t i, const ProcessGroup& group) const {
  const nn::TensorSlot& slot = parameters_[i].second;
  return !slot.layout() || (same_stage && may_have_equal_parts(slot, group));
}

// How often each parameter was changed since the last call. 0 for a tensor that replaced another one.
std::vector<std::int64_t> RankDrift::count_changes() {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& now = own(i);
    const Seen before = std::exchange(seen_[i], Seen{now, now.version()});
    const bool same = before.tensor.defined() && before.tensor.is_same(now);
    counts.push_back(now.numel() == 0 ? kNotCounted : same ? now.version() - before.version : 0);
  }
  return counts;
}

const std::vector<optim::Optimizer*>& RankDrift::optimizers() {
  const std::uint64_t version = optim::optimizers_version();
  if (version == version_) return optimizers_;
  version_ = version;
  optimizers_ = optim::optimizers_of(parameters_);
  names_.clear();
  for (const optim::Optimizer* o : optimizers_) {
    std::unordered_set<const void*> own;
    for (const nn::Parameter& p : o->parameters()) own.insert(p.id());
    std::vector<std::string> names;
    for (const auto& [name, slot] : parameters_)
      if (own.contains(slot.id())) names.push_back(name);
    names_.push_back(" of " + listed(names, 1));
  }
  return optimizers_;
}

std::uint64_t RankDrift::steps() {
  std::uint64_t sum = 0;
  for (const optim::Optimizer* o : optimizers()) sum += o->steps();
  return sum;
}

std::string RankDrift::describe() {
  std::string text;
  for (std::size_t i = 0; i < optimizers().size(); ++i) text += optimizers_[i]->describe(names_[i]);
  return text;
}

std::uint64_t RankDrift::fingerprint() { return fnv1a(describe()); }

void RankDrift::compare_optimizers() {
  compare_in_grid(grid_, [&](ProcessGroup& group) { compare_optimizers(group); });
}
void RankDrift::compare_optimizers(ProcessGroup& group) {
  check_same_lines(group, op_, "optimizers", describe(),
                   "construct, schedule and step the optimizers on all ranks in the same way");
}

void RankDrift::compare_values() {
  compare_in_grid(grid_, [&](ProcessGroup& group) { compare_values(group); });
}
void RankDrift::compare_values(ProcessGroup& group) {
  NamedTensors equal;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (is_equal(i, group)) equal.emplace_back(parameters_[i].first, own(i));
  check_same_values(group, op_, equal);
}

void RankDrift::after_pass() {
  if (every_ == 0 || (++passes_ > 2 && passes_ % static_cast<std::uint64_t>(every_) != 0)) return;
  std::vector<std::int64_t> mine = count_changes();
  mine.push_back(std::bit_cast<std::int64_t>(fingerprint()));
  compare_in_grid(grid_, [&](ProcessGroup& group) { compare_changes(group, mine); });
}

// `mine` has the changes of each parameter, and then fingerprint().
void RankDrift::compare_changes(ProcessGroup& group, const std::vector<std::int64_t>& mine) {
  const std::vector<std::int64_t> all = all_gather_numbers(group, mine, "changes since the last check");
  const std::size_t stride = mine.size(), count = stride - 1;
  const auto of = [&](std::size_t rank, std::size_t i) { return all[rank * stride + i]; };
  const std::size_t ranks = static_cast<std::size_t>(group.size());
  for (std::size_t r = 1; r < ranks; ++r)
    if (of(r, count) != of(0, count)) return compare_optimizers(group);
  bool equal_differ = false;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t first = 0;  // a rank that has elements of the parameter
    while (first + 1 < ranks && of(first, i) == kNotCounted) ++first;
    for (std::size_t r = first + 1; r < ranks; ++r) {
      if (of(r, i) == kNotCounted || of(r, i) == of(first, i)) continue;
      equal_differ = equal_differ || is_equal(i, group);
      check(is_equal(i, group), "[", op_, "] the ranks changed ", parameters_[i].first,
            " differently since the last check: rank ", first, " ", of(first, i), " times, rank ", r, " ",
            of(r, i), " times\n  step, load and initialise it on all ranks");
    }
  }
  if (equal_differ) compare_values(group);
}

void check_ranks(const char* op, const std::shared_ptr<ProcessGroup>& group,
                 const nn::NamedSlots& parameters) {
  NamedTensors tensors;
  for (const auto& [name, slot] : parameters)
    if (!slot.layout()) tensors.emplace_back(name, slot.replica(0));
  check_same_model(*group, op, describe_tensors(tensors, "parameter"));
  RankDrift drift(op, group, parameters);
  drift.compare_optimizers();
  drift.compare_values();
}

void check_ranks(const std::shared_ptr<ProcessGroup>& group, const nn::Module& model) {
  check(group != nullptr, "[check_ranks] the group is null; pass what init_process_group() returned");
  const auto named = model.named_parameters();
  check_ranks("check_ranks", group, nn::NamedSlots(named.begin(), named.end()));
}

}  // namespace tapestry::distributed
