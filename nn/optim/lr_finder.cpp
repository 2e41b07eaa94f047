#include "tapestry/nn/optim/lr_finder.h"

#include <algorithm>
#include <cmath>

#include "tapestry/autograd/ops/copy.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::optim {
namespace {

// Restores a model and an optimizer.
class Restore {
 public:
  Restore(nn::Module& model, Optimizer& optimizer)
      : optimizer_(optimizer), optimizer_state_(optimizer.local_state_dict()) {
    const NoGradGuard no_grad;
    for (const auto& [name, slot] : model.named_state())
      for (int r = 0; r < slot.replicas(); ++r)
        values_.push_back({slot, r, clone(nn::stored_tensor(slot, r).detach())});
  }
  void run() {
    const NoGradGuard no_grad;
    optimizer_.zero_grad();
    for (const Value& v : values_) nn::stored_tensor(v.slot, v.replica).detach().copy_(v.value);
    for (const Value& v : values_) nn::refresh_full(v.slot);
    optimizer_.load_state_dict(optimizer_state_);
  }

 private:
  struct Value {
    nn::TensorSlot slot;
    int replica;
    Tensor value;  // of a sharded parameter, the shard
  };
  Optimizer& optimizer_;
  StateDict optimizer_state_;
  std::vector<Value> values_;
};

// The rate at the steepest fall between the start and the minimum of the losses.
double steepest(const std::vector<double>& lrs, const std::vector<double>& losses) {
  const auto minimum = std::min_element(losses.begin(), losses.end()) - losses.begin();
  double lowest = 0, rate = lrs.front();
  for (std::ptrdiff_t i = 1; i <= minimum; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double slope = losses[at] - losses[at - 1];
    if (slope < lowest) lowest = slope, rate = lrs[at];
  }
  return rate;
}

}  // namespace

LRFinderResult find_lr(nn::Module& model, Optimizer& optimizer, const std::function<Tensor()>& loss_fn,
                       const LRFinderOptions& o) {
  check(o.start_lr > 0 && o.end_lr > o.start_lr && std::isfinite(o.end_lr), "[find_lr] the rates go from ",
        o.start_lr, " to ", o.end_lr, "; start above 0 and end above the start");
  check(o.num_iter >= 3, "[find_lr] num_iter is ", o.num_iter, "; use 3 or more");
  check(o.smoothing > 0 && o.smoothing <= 1, "[find_lr] smoothing is ", o.smoothing,
        "; use a number in (0, 1]");
  check(o.diverge_threshold > 1, "[find_lr] diverge_threshold is ", o.diverge_threshold, "; use more than 1");
  Restore before(model, optimizer);
  LRFinderResult result;
  const auto test = [&] {
    double average = 0, best = 0;
    for (std::int64_t i = 0; i < o.num_iter; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(o.num_iter - 1);
      const double lr = o.start_lr * std::pow(o.end_lr / o.start_lr, part);
      optimizer.set_lr(lr);
      optimizer.zero_grad();
      const Tensor loss = loss_fn();
      const double value = loss.item();
      check(std::isfinite(value) || i >= 3, "[find_lr] the loss is ", value, " at step ", i,
            "; check the model, or use a smaller start_lr");
      if (!std::isfinite(value)) return;
      average = (1 - o.smoothing) * average + o.smoothing * value;
      const double smooth = average / (1 - std::pow(1 - o.smoothing, static_cast<double>(i + 1)));
      if (i == 0 || smooth < best) best = smooth;
      result.lrs.push_back(lr);
      result.losses.push_back(smooth);
      // A loss below 0 has no multiple that is larger.
      if (i > 0 && smooth > best + (o.diverge_threshold - 1) * std::abs(best)) return;
      loss.backward();
      optimizer.step();
    }
  };
  try {
    test();
  } catch (...) {
    before.run();
    throw;
  }
  before.run();
  result.suggestion = steepest(result.lrs, result.losses);
  return result;
}

}  // namespace tapestry::optim
