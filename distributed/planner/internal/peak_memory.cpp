#include "tapestry/distributed/planner/internal/peak_memory.h"

#include <algorithm>
#include <utility>

#include "tapestry/distributed/planner/internal/ddp_buckets.h"

namespace tapestry::distributed::planner {

namespace {

using Kind = Action::Kind;

class PeakTracker {
 public:
  PeakTracker(const CostModel& c, const DeviceSchedule& schedule) : c_(c), schedule_(schedule) {
    now_.parameters = c.parameter_bytes(schedule.range) / schedule.sharded;
    now_.optimizer = c.profile.optimizer_state * c.parameter_bytes(schedule.range) * schedule.optimizer_share;
    now_.data = schedule.data;
    if (schedule.has_buckets) now_.buckets = c.parameter_bytes(schedule.range) / schedule.divided_buckets;
    if (schedule.divided_buckets > 1) buckets_ = ddp_buckets(c, schedule.samples, 1);
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
    for (std::size_t k = schedule_.range.begin; k < schedule_.range.end; ++k) {
      hold_whole(k, k + 1);
      forward(block(k));
    }
    release_whole();
    if (schedule_.has_loss) forward(c_.profile.loss);
  }
  // Gathers block k, and the one that is computed next if there is one, and frees the others.
  void hold_whole(std::size_t k, std::size_t next) {
    release_whole();
    if (schedule_.sharded == 1) return;
    whole_ = static_cast<double>(block(k).all_parameter_bytes());
    if (next >= schedule_.range.begin && next < schedule_.range.end)
      whole_ += static_cast<double>(block(next).all_parameter_bytes());
    now_.parameters += whole_;
  }
  void release_whole() { now_.parameters -= std::exchange(whole_, 0); }
  void forward(const BlockProfile& b) {
    now_.activations += b.saved_bytes.at(schedule_.samples);
    update_peak(b.forward_extra_bytes.at(schedule_.samples));
  }

  void backward() {
    if (schedule_.has_loss) backward(c_.profile.loss);
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) {
      // The backward of the model's first block reads no parameters, since the batch needs no gradient. So
      // the block after it is freed, and its gradients are reduced, only when the gradients of the first
      // arrive.
      if (k == 0 && schedule_.range.end > 1) hold_whole(1, 0);
      else hold_whole(k, k - 1);  // k - 1 may be SIZE_MAX, which is no block
      backward(block(k));
    }
    release_whole();
    now_.gradients -= std::exchange(undivided_, 0);
    if (schedule_.keeps_input) now_.activations -= input_bytes();
    has_gradients_ = true;
  }
  void backward(const BlockProfile& b) {
    const double most = fill_buckets(b);
    now_.buckets += most;
    update_peak(b.output_bytes.at(schedule_.samples) + b.backward_extra_bytes.at(schedule_.samples));
    now_.buckets -= most;
    now_.activations -= b.saved_bytes.at(schedule_.samples);
    allocate_gradients(b);
  }
  // The gradients of a block arrive one by one, from its last parameter to its first. The first one of a
  // bucket allocates the bucket. A complete bucket is reduced while backward runs, and freed when two later
  // buckets are complete. Returns the largest sum of the buckets' bytes during the block.
  double fill_buckets(const BlockProfile& b) {
    if (schedule_.divided_buckets == 1 || &b == &c_.profile.loss) return 0;
    const auto live = [this] {
      double bytes = 0;
      for (std::size_t i = posted_ > 2 ? posted_ - 2 : 0; i < opened_; ++i) bytes += buckets_.bytes[i];
      return bytes;
    };
    double most = live();
    for (std::size_t i = 0; i < b.parameter_bytes.size(); ++i) {
      const std::size_t bucket = buckets_.of_gradient[arrived_++];
      opened_ = std::max(opened_, bucket + 1);
      most = std::max(most, live());
      const bool complete =
          arrived_ == buckets_.of_gradient.size() || buckets_.of_gradient[arrived_] != bucket;
      if (complete) posted_ = bucket + 1;
    }
    return most;
  }
  void allocate_gradients(const BlockProfile& b) {
    const bool is_first = &b == &c_.profile.blocks[0],
               is_second = c_.count() > 1 && &b == &c_.profile.blocks[1];
    const auto bytes = static_cast<double>(b.all_parameter_bytes());
    if (schedule_.sharded > 1) {
      // The gradients of the block before are divided by now. Those of this block are divided while the
      // next block computes.
      if (is_second) {
        now_.gradients += late_ = bytes;
      } else {
        if (is_first) {
          now_.gradients -= late_ - late_ / schedule_.sharded;
          late_ = 0;
        }
        now_.gradients += bytes - std::exchange(undivided_, bytes) + bytes / schedule_.sharded;
      }
    } else if (!schedule_.has_buckets && !has_gradients_) {
      now_.gradients += bytes;
    }
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
    // All new gradients exist at once, before they are added to the old ones. If there are old ones, products
    // that add in place make none.
    double computed = 0;
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) {
      const BlockProfile& b = block(k);
      const auto all = static_cast<double>(b.all_parameter_bytes());
      const double made = has_gradients_ ? b.accumulate_bytes : all;
      update_peak(computed + b.backward_extra_bytes.at(schedule_.samples) - all + made);
      computed += made;
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
  double whole_ = 0;      // the bytes of gathered blocks
  double late_ = 0;       // the bytes of the second block's gradients until the first block's arrive
  double undivided_ = 0;  // the bytes of gradients that wait for their reduce-scatter
  bool has_gradients_ = false;
  DdpBuckets buckets_;                                 // if they are divided
  std::size_t arrived_ = 0, opened_ = 0, posted_ = 0;  // gradients, buckets with memory, complete buckets
};

}  // namespace

MemoryItems peak_memory(const CostModel& c, const DeviceSchedule& schedule) {
  return PeakTracker(c, schedule).run();
}

}  // namespace tapestry::distributed::planner
