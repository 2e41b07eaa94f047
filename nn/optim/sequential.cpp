#include "tapestry/nn/optim/sequential.h"

#include <algorithm>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::optim {

// Each schedule sets the rates of its step 0 when it is made, and OneCycleLR the momentum too. They are
// restored, so that the next schedule starts from the optimizer's own rates.
void SequentialLR::add(const std::function<std::unique_ptr<Scheduler>()>& make) {
  static constexpr const char* changed[] = {"lr", "momentum", "beta1"};
  Optimizer& o = optimizer();
  std::vector<double> before;
  for (std::size_t g = 0; g < num_groups(); ++g)
    for (const char* name : changed) before.push_back(o.has_option(name) ? o.option(g, name) : 0);
  schedules_.push_back(make());
  auto value = before.begin();
  for (std::size_t g = 0; g < num_groups(); ++g)
    for (const char* name : changed) {
      if (o.has_option(name)) o.set_option(g, name, *value);
      ++value;
    }
}

void SequentialLR::begin() {
  check(milestones_.size() + 1 == schedules_.size(), "[SequentialLR] got ", milestones_.size(),
        " milestones and ", schedules_.size(), " schedules; pass one milestone fewer than schedules");
  check(
      std::is_sorted(milestones_.begin(), milestones_.end()) && (milestones_.empty() || milestones_[0] >= 0),
      "[SequentialLR] milestones must not be negative and must ascend; sort them");
  start();
}

SequentialLR::Current SequentialLR::at(std::int64_t steps) const {
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), steps);
  const auto index = static_cast<std::size_t>(next - milestones_.begin());
  return {schedules_[index].get(), index == 0 ? steps : steps - milestones_[index - 1]};
}
double SequentialLR::lr_at(std::int64_t steps, std::size_t group) const {
  const Current now = at(steps);
  return now.schedule->lr_at(now.steps, group);
}
void SequentialLR::check_step(std::int64_t steps) const {
  const Current now = at(steps);
  now.schedule->check_step(now.steps);
}
void SequentialLR::set_others(std::int64_t steps) {
  const Current now = at(steps);
  now.schedule->set_others(now.steps);
}
void SequentialLR::load_state_dict(const StateDict& dict) {
  Scheduler::load_state_dict(dict);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < milestones_.size() && milestones_[i] <= this->steps(); ++i) {
    if (milestones_[i] > begin) schedules_[i]->set_others(milestones_[i] - 1 - begin);
    begin = milestones_[i];
  }
  set_others(this->steps());
}
void SequentialLR::set_base_lrs(std::vector<double> rates) {
  for (const auto& schedule : schedules_) schedule->set_base_lrs(rates);
  Scheduler::set_base_lrs(std::move(rates));
}

}  // namespace tapestry::optim
