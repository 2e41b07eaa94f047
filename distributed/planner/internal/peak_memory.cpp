#include "tapestry/distributed/planner/internal/peak_memory.h"

namespace tapestry::distributed::planner {

namespace {

using Kind = Action::Kind;

class PeakTracker {
 public:
  PeakTracker(const CostModel& c, const DeviceSchedule& schedule) : c_(c), schedule_(schedule) {
    now_.parameters = c.parameter_bytes(schedule.range);
    now_.data = schedule.data;
    if (schedule.has_buckets) now_.buckets = c.parameter_bytes(schedule.range);
    update_peak(0);
  }
  MemoryItems run() {
    for (const Action& action : schedule_.actions)
      if (action.kind == Kind::forward) forward();
      else if (!schedule_.zero_bubble) backward();
      else if (action.kind == Kind::backward) input_grad_pass();
      else weight_grad_pass();
    return peak_;
  }

 private:
  void update_peak(double workspace) {
    now_.workspace = workspace;
    if (now_.total() > peak_.total()) peak_ = now_;
  }
  const BlockProfile& block(std::size_t k) const { return c_.profile.blocks[k]; }
  double input_bytes() const { return c_.input_bytes(schedule_.range.begin, schedule_.samples); }

  void forward() {
    if (schedule_.keeps_input) now_.activations += input_bytes();
    for (std::size_t k = schedule_.range.begin; k < schedule_.range.end; ++k) forward(block(k));
    if (schedule_.has_loss) forward(c_.profile.loss);
  }
  void forward(const BlockProfile& b) {
    now_.activations += b.saved_bytes.at(schedule_.samples);
    update_peak(b.forward_extra_bytes.at(schedule_.samples));
  }

  void backward() {
    if (schedule_.has_loss) backward(c_.profile.loss);
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) backward(block(k));
    if (schedule_.keeps_input) now_.activations -= input_bytes();
    has_gradients_ = true;
  }
  void backward(const BlockProfile& b) {
    update_peak(b.output_bytes.at(schedule_.samples) + b.backward_extra_bytes.at(schedule_.samples));
    now_.activations -= b.saved_bytes.at(schedule_.samples);
    allocate_gradients(b);
  }
  void allocate_gradients(const BlockProfile& b) {
    if (!schedule_.has_buckets && !has_gradients_)
      now_.gradients += static_cast<double>(b.all_parameter_bytes());
    update_peak(0);
  }

  // The first stage needs no input gradients, so it only keeps the incoming gradient for weight_grad_pass().
  void input_grad_pass() {
    if (schedule_.range.begin == 0) {
      now_.activations += incoming_gradient_bytes();
      return;
    }
    if (schedule_.has_loss) backward(c_.profile.loss);
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) {
      const BlockProfile& b = block(k);
      update_peak(b.output_bytes.at(schedule_.samples) + b.backward_extra_bytes.at(schedule_.samples) -
                  static_cast<double>(b.all_parameter_bytes()));
      now_.activations -= b.saved_bytes.at(schedule_.samples) - b.deferred_bytes;
    }
  }
  void weight_grad_pass() {
    if (schedule_.range.begin == 0) {
      now_.activations -= incoming_gradient_bytes();
      return backward();
    }
    double computed = 0;  // all new gradients exist at once, before they are added to the old ones
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) {
      const BlockProfile& b = block(k);
      update_peak(computed + b.backward_extra_bytes.at(schedule_.samples));
      computed += static_cast<double>(b.all_parameter_bytes());
      now_.activations -= b.deferred_bytes;
    }
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) allocate_gradients(block(k));
    now_.activations -= input_bytes();
    has_gradients_ = true;
  }
  double incoming_gradient_bytes() const {
    return schedule_.has_loss ? 0 : block(schedule_.range.end - 1).output_bytes.at(schedule_.samples);
  }

  const CostModel& c_;
  const DeviceSchedule& schedule_;
  MemoryItems now_, peak_;
  bool has_gradients_ = false;
};

}  // namespace

MemoryItems peak_memory(const CostModel& c, const DeviceSchedule& schedule) {
  return PeakTracker(c, schedule).run();
}

}  // namespace tapestry::distributed::planner
