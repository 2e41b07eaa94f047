#include "tapestry/nn/optim/scheduler.h"

#include <cmath>
#include <string>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"

namespace tapestry::optim {

Scheduler::Scheduler(Optimizer& optimizer) : optimizer_(optimizer) {
  for (std::size_t g = 0; g < optimizer.num_groups(); ++g) base_lrs_.push_back(optimizer.lr(g));
}

void Scheduler::set_rates(std::int64_t steps) {
  check(optimizer_.num_groups() == base_lrs_.size(), "[Scheduler] the optimizer has ",
        optimizer_.num_groups(), " groups now and had ", base_lrs_.size(),
        "; add groups before making the schedule");
  check_step(steps);
  std::vector<double> rates, old;
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) {
    rates.push_back(lr_at(steps, g));
    old.push_back(optimizer_.lr(g));
  }
  try {
    for (std::size_t g = 0; g < rates.size(); ++g) optimizer_.set_lr(g, rates[g]);
    set_others(steps);
  } catch (...) {  // the optimizer refused a rate after it had accepted others: restore them
    for (std::size_t g = 0; g < old.size(); ++g) optimizer_.set_lr(g, old[g]);
    throw;
  }
  last_lr_ = std::move(rates);
  steps_ = steps;
}

void Scheduler::step() { set_rates(steps_ + 1); }

StateDict Scheduler::state_dict() const {
  const TensorOptions on_cpu(DType::f64, kCPU);
  StateDict dict{{"steps", scalar_tensor(steps_, {DType::i64, kCPU})}};
  for (std::size_t g = 0; g < base_lrs_.size(); ++g)
    dict.emplace_back("base_lrs." + std::to_string(g), scalar_tensor(base_lrs_[g], on_cpu));
  return dict;
}

void Scheduler::load_state_dict(const StateDict& dict) {
  const nn::StateDictIndex index(dict);
  const auto number = [&](const std::string& key) {
    const Tensor* t = index.find(key);
    check(t && t->defined() && t->numel() == 1, "[load_state_dict] the schedule's state has no number '", key,
          "'; pass what state_dict() of such a schedule gave");
    return t;
  };
  const Tensor* const saved_steps = number("steps");
  check(saved_steps->dtype() == DType::i64, "[load_state_dict] the schedule's number of steps is ",
        saved_steps->dtype(), ", not int64; pass what state_dict() of such a schedule gave");
  const auto steps = saved_steps->item<std::int64_t>();
  check(steps >= 0, "[load_state_dict] the schedule's number of steps is ", steps, "; it cannot be negative");
  check(dict.size() == base_lrs_.size() + 1, "[load_state_dict] the schedule's state has ", dict.size() - 1,
        " groups and the optimizer ", base_lrs_.size(),
        "; pass the state of a schedule over the same groups");
  std::vector<double> rates;
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) {
    const std::string key = "base_lrs." + std::to_string(g);
    const Tensor* const rate = number(key);
    check(is_floating(rate->dtype()) && rate->item() >= 0 && std::isfinite(rate->item()),
          "[load_state_dict] the schedule's ", key, " is ", rate->item(), " of dtype ", rate->dtype(),
          ", not a floating-point number of at least 0; pass what state_dict() of such a schedule gave");
    rates.push_back(rate->item());
  }
  const std::vector<double> old = base_lrs_;
  set_base_lrs(std::move(rates));
  try {
    set_rates(steps);
  } catch (...) {
    set_base_lrs(old);
    throw;
  }
}

}  // namespace tapestry::optim
