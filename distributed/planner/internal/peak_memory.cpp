#include "tapestry/distributed/planner/internal/peak_memory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tapestry/distributed/planner/internal/ddp_buckets.h"

namespace tapestry::distributed::planner {

namespace {

using Kind = Action::Kind;

// The buckets of gradients that ranks divide. The first gradient of a bucket allocates it. A complete bucket
// is reduced while backward runs, and freed when two later buckets are complete.
class LiveBuckets {
 public:
  explicit LiveBuckets(DdpBuckets buckets = {}) : buckets_(std::move(buckets)) {}
  double bytes() const {
    double bytes = 0;
    for (std::size_t i = posted_ > 2 ? posted_ - 2 : 0; i < opened_; ++i) bytes += buckets_.bytes[i];
    return bytes;
  }
  // A gradient arrives.
  void open() {
    if (arrived_ < buckets_.of_gradient.size())
      opened_ = std::max(opened_, buckets_.of_gradient[arrived_++] + 1);
  }
  // The gradient that has arrived is in its bucket, which may be complete.
  void post() {
    const std::vector<std::size_t>& of = buckets_.of_gradient;
    if (arrived_ > 0 && (arrived_ == of.size() || of[arrived_] != of[arrived_ - 1]))
      posted_ = of[arrived_ - 1] + 1;
  }

 private:
  DdpBuckets buckets_;
  std::size_t arrived_ = 0, opened_ = 0, posted_ = 0;  // gradients, buckets with memory, complete buckets
};

class PeakTracker {
 public:
  PeakTracker(const CostModel& c, const DeviceSchedule& schedule)
      : c_(c), schedule_(schedule), held_(schedule.held) {
    now_.parameters = c.parameter_bytes(schedule.range) / schedule.sharded;
    now_.optimizer = c.profile.optimizer_state * c.parameter_bytes(schedule.range) * schedule.optimizer_share;
    now_.data = schedule.data;
    if (schedule.keeps_whole) now_.parameters += c.parameter_bytes(schedule.range);
    if (schedule.has_buckets) {
      const auto unsummed = [&](const BlockProfile& b) { return c.unsummed_bytes(b); };
      now_.buckets = schedule.divides_buckets
                         ? c.parameter_bytes(schedule.range) * schedule.optimizer_share
                         : c.parameter_bytes(schedule.range) - c.sum(schedule.range, unsummed);
    }
    const BlockTimes no_times{std::vector<double>(schedule.range.end - schedule.range.begin), 0};
    if (schedule.divides_buckets)
      for (const bool of_parts : {false, true})
        buckets_[of_parts] = LiveBuckets(ddp_buckets(c, schedule.range, no_times, 1, of_parts));
    update_peak(0);
    if (held_) held_->push_back({kBeforeActions, 0, now_, true});
  }
  MemoryItems run() {
    for (const Action& action : schedule_.actions) {
      elapsed_s_ = 0;
      const std::size_t first = held_ ? held_->size() : 0;
      n_ = schedule_.samples.at(static_cast<std::size_t>(action.micro_batch));
      is_last_ = &action == &schedule_.actions.back();
      if (action.kind == Kind::forward) forward();
      else if (!schedule_.zero_bubble) backward();
      else if (action.kind == Kind::backward) input_grad_pass();
      else weight_grad_pass();
      end_action(first);
    }
    return peak_;
  }

 private:
  // Compares the peak with what is allocated now and the `bytes` that the action needs for itself.
  void update_peak(double bytes) {
    now_.workspace = bytes;
    if (now_.total() > peak_.total()) peak_ = now_;
    if (held_ && !held_->empty() && now_.total() > held_->back().items.total()) held_->back().items = now_;
  }
  // Now the device computes a block, which takes this long alone, with the waits of its layers.
  void begin_block(double seconds, const std::vector<LayerCollectives>& layers = {}) {
    if (!held_) return;
    seconds += c_.layers_s(layers, n_);
    now_.workspace = 0;
    held_->push_back({action_, elapsed_s_, now_});
    elapsed_s_ += seconds;
  }
  // Ends an action, whose samples begin at `first`: their times become parts of the time of the action.
  void end_action(std::size_t first) {
    if (!held_) return;
    for (std::size_t i = first; i < held_->size(); ++i)
      (*held_)[i].part = elapsed_s_ > 0 ? (*held_)[i].part / elapsed_s_ : 0;
    now_.workspace = 0;
    held_->push_back({action_++, 1, now_, true});
  }
  // Does so in the backward of a block. `bytes` counts above what was allocated before the block's forward,
  // so it includes what forward saved, which is reported as activations.
  void update_peak(const BlockProfile& b, double bytes) {
    const double saved = std::clamp(b.saved_bytes.at(n_), 0.0, std::max(0.0, bytes));
    now_.activations += saved;
    update_peak(bytes - saved);
    now_.activations -= saved;
  }
  const BlockProfile& block(std::size_t k) const { return c_.profile.blocks[k]; }
  const BlockProfile& last_block() const { return block(schedule_.range.end - 1); }
  // The bytes of a micro-batch's input that a stage keeps for backward.
  double input_bytes() const {
    if (!schedule_.keeps_input) return 0;
    const double input = c_.input_bytes(schedule_.range.begin, n_);
    return schedule_.is_stage ? input + block(schedule_.range.begin).freed_input_bytes.at(n_) : input;
  }
  // What the backward of a stage's last block needs beside its profile until its first gradient arrives,
  // because the gradient of its output comes from another device. It may be negative in a pass that makes
  // gradients, for which it was measured, but not in one that adds to existing gradients.
  double received_extra_bytes(const BlockProfile& b) const {
    if (schedule_.has_loss || &b != &last_block()) return 0;
    const double received = schedule_.is_stage ? b.received_extra_bytes.at(n_) : 0;
    return (has_gradients_ ? std::max(received, 0.0) : received) -
           (schedule_.has_gathered ? b.output_bytes.at(n_) : 0);
  }

  void forward() {
    now_.activations += input_bytes();
    for (std::size_t k = schedule_.range.begin; k < schedule_.range.end; ++k) {
      begin_block(block(k).forward_s.at(n_), block(k).layers_forward);
      hold_whole(k, k + 1);
      forward(block(k));
    }
    release_whole();
    if (!schedule_.has_loss) return;
    begin_block(c_.profile.loss.forward_s.at(n_), c_.profile.loss.layers_forward);
    forward(c_.profile.loss);
  }
  // Gathers block k, and the one that is computed next if it is another one, and frees the others.
  void hold_whole(std::size_t k, std::size_t next) {
    release_whole();
    if (schedule_.sharded == 1 || schedule_.keeps_whole) return;
    whole_ = static_cast<double>(block(k).all_parameter_bytes());
    if (next != k && next >= schedule_.range.begin && next < schedule_.range.end)
      whole_ += static_cast<double>(block(next).all_parameter_bytes());
    now_.parameters += whole_;
  }
  void release_whole() { now_.parameters -= std::exchange(whole_, 0); }
  void forward(const BlockProfile& b) {
    const double freed = b.freed_input_bytes.at(n_);
    now_.activations += b.saved_bytes.at(n_) + freed;
    update_peak(b.forward_extra_bytes.at(n_));
    now_.activations -= freed;
  }

  void backward() {
    const double held = schedule_.keeps_output ? last_block().unsaved_output_bytes.at(n_) : 0;
    now_.activations += held;
    if (schedule_.has_loss) {
      begin_block(c_.profile.loss.backward_s.at(n_), c_.profile.loss.layers_backward);
      backward(c_.profile.loss);
    }
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) {
      begin_block(block(k).backward_s.at(n_), block(k).layers_backward);
      // The backward of the model's first block reads no parameters, since the batch needs no gradient. So
      // the block after it is freed, and its gradients are reduced, only when the gradients of the first
      // arrive.
      if (k == 0 && schedule_.range.end > 1) hold_whole(0, 1);
      else hold_whole(k, k - 1);  // k - 1 may be SIZE_MAX, which is no block
      backward(block(k));
    }
    release_whole();
    end_division();
    now_.activations -= held + input_bytes();
    has_gradients_ = true;
  }
  void backward(const BlockProfile& b) {
    now_.activations -= b.saved_bytes.at(n_);
    double received = received_extra_bytes(b);
    double arrived = 0;  // gradients of the block that exist besides those that the intervals count
    for (const BackwardInterval& i : b.backward) {
      const double live = live_bucket_bytes();
      now_.buckets += live;
      if (undivided_ > 0 && divided_after_ * static_cast<double>(b.backward.size()) <=
                                static_cast<double>(&i - b.backward.data()) + 0.5)
        end_division();
      now_.gradients += arrived;
      update_peak(b, interval_bytes(i) + std::exchange(received, 0));
      const auto parameter = static_cast<std::size_t>(i.parameter);
      const double gradient = i.parameter >= 0 ? static_cast<double>(b.parameter_bytes[parameter]) : 0;
      if (i.parameter >= 0 && schedule_.divides_buckets && is_last_) {
        // The gradient is copied into its bucket, which gets its memory now if this is its first gradient.
        LiveBuckets& own = buckets_[b.is_part(parameter)];
        own.open();
        now_.buckets += live_bucket_bytes() - live;
        update_peak(b, i.end_bytes.at(n_));
        now_.buckets -= live_bucket_bytes();
        own.post();
      } else {
        now_.buckets -= live;
      }
      now_.gradients -= arrived;
      const bool moves = moves_to_buckets() && !(b.is_part(parameter) && c_.unsummed_bytes(b) > 0);
      if (!has_gradients_ && !moves) arrived += gradient;
      if (has_gradients_ && moves) arrived -= gradient;
      if (late_ && i.parameter >= 0 && is_first(b)) {
        hold_whole(0, c_.count());
        divide(*std::exchange(late_, nullptr));
      }
    }
    allocate_gradients(b);
  }
  // The planner measures a backward that adds products to existing gradients in place. The hooks that divide
  // gradients need each new gradient by itself, as if there was none to add to.
  double interval_bytes(const BackwardInterval& i) const {
    const double fresh = i.peak_bytes.at(n_);
    if (!has_gradients_) return fresh;
    const double added = i.accumulate_bytes.at(n_);
    return schedule_.sharded > 1 || schedule_.divides_buckets ? std::max(added, fresh) : added;
  }
  double live_bucket_bytes() const { return buckets_[0].bytes() + buckets_[1].bytes(); }
  // Gradients are added in buckets, or divided, in the last backward. Before it, each has its own memory.
  bool moves_to_buckets() const { return schedule_.has_buckets && is_last_; }
  void allocate_gradients(const BlockProfile& b) {
    if (b.parameter_bytes.empty()) return;  // the loss
    const auto bytes = static_cast<double>(b.all_parameter_bytes());
    const double moved = moves_to_buckets() ? bytes - c_.unsummed_bytes(b) : 0;
    if (!has_gradients_) now_.gradients += bytes - moved;
    else now_.gradients -= moved;
    if (schedule_.sharded > 1) {
      const auto k = static_cast<std::size_t>(&b - c_.profile.blocks.data());
      if (k == 1 && schedule_.range.begin == 0) {
        late_ = &b;
      } else {  // the block is freed, and the next one is whole already
        if (k > schedule_.range.begin) hold_whole(k - 1, k - 1);
        else release_whole();
        divide(b);
      }
    }
    update_peak(0);
  }
  // Begins to divide the gradients of a block, when those of the block before are divided.
  void divide(const BlockProfile& b) {
    if (!is_last_) return;
    end_division();
    undivided_ = static_cast<double>(b.all_parameter_bytes());
    now_.gradients += undivided_ / schedule_.sharded;
    divided_after_ = schedule_.divided_after.at(static_cast<std::size_t>(&b - c_.profile.blocks.data()));
  }
  void end_division() { now_.gradients -= std::exchange(undivided_, 0); }
  bool is_first(const BlockProfile& b) const { return &b == &block(0); }

  // The first stage needs no input gradients, so it only keeps the incoming gradient for weight_grad_pass().
  void input_grad_pass() {
    if (schedule_.range.begin == 0) {
      now_.activations += incoming_gradient_bytes();
      return;
    }
    if (schedule_.has_loss) input_grad_pass(c_.profile.loss);
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) input_grad_pass(block(k));
    now_.activations -= freed_between_passes();
  }
  void input_grad_pass(const BlockProfile& b) {
    begin_block(b.input_grad_s, b.layers_backward);
    now_.activations -= b.saved_bytes.at(n_);
    update_peak(b, b.input_grad.peak + received_extra_bytes(b));
    now_.activations += b.input_grad.growth;
  }
  // What the stage frees between the two passes: its output, and the part of its input that only the caller
  // of its forward kept.
  double freed_between_passes() const {
    return (schedule_.has_loss ? 0 : last_block().unsaved_output_bytes.at(n_)) +
           block(schedule_.range.begin).freed_input_bytes.at(n_);
  }
  void weight_grad_pass() {
    if (schedule_.range.begin == 0) {
      now_.activations -= incoming_gradient_bytes();
      return backward();
    }
    // All new gradients exist at once, before they are added to the old ones.
    double grown = 0, kept = 0;
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) {
      const BlockProfile& b = block(k);
      const SplitPassMemory& pass = has_gradients_ ? b.weight_grad_accumulate : b.weight_grad;
      begin_block(b.weight_grad_s);
      update_peak(grown + pass.peak);
      grown += pass.growth;
      kept += b.input_grad.growth;
    }
    now_.activations -= kept + c_.profile.loss.input_grad.growth * schedule_.has_loss + input_bytes() -
                        freed_between_passes();
    for (std::size_t k = schedule_.range.end; k-- > schedule_.range.begin;) allocate_gradients(block(k));
    has_gradients_ = true;
  }
  double incoming_gradient_bytes() const { return schedule_.has_loss ? 0 : last_block().output_bytes.at(n_); }

  const CostModel& c_;
  const DeviceSchedule& schedule_;
  std::vector<HeldMemory>* const held_;
  std::size_t action_ = 0;  // its number
  double elapsed_s_ = 0;    // of the action
  MemoryItems now_, peak_;
  double n_ = 0;                        // the samples of the micro-batch
  double whole_ = 0;                    // the bytes of gathered blocks
  const BlockProfile* late_ = nullptr;  // the second block, until the gradients of the first arrive
  double undivided_ = 0;                // the bytes of gradients that wait for their reduce-scatter
  double divided_after_ = 0;            // the part of the next block's backward at whose end they are divided
  bool has_gradients_ = false;
  bool is_last_ = false;                // the action is the last one of the step
  std::array<LiveBuckets, 2> buckets_;  // if they are divided: of all but experts, and of experts
};

}  // namespace

MemoryItems peak_memory(const CostModel& c, const DeviceSchedule& schedule) {
  return PeakTracker(c, schedule).run();
}

std::vector<PredictedMemory> on_clock(const std::vector<HeldMemory>& held, const ActionTimes& actions) {
  std::vector<PredictedMemory> all;
  const HeldMemory* last = nullptr;
  for (const HeldMemory& h : held) {
    double now = 0;
    if (h.action != kBeforeActions) {
      const auto& [begin, end] = actions.at(h.action);
      now = begin + h.part * (end - begin);
    }
    if (!last || now > all.back().begin_s) all.push_back({now, h.items});
    // Of blocks that take no time, the one with the most bytes counts.
    else if (last->between || h.items.total() > last->items.total()) all.back().items = h.items;
    else continue;
    last = &h;
  }
  return all;
}

void keep_memory_over_time(Prediction& p, std::size_t device, std::vector<PredictedMemory> samples) {
  const auto kept = static_cast<std::size_t>(p.memory_device);
  if (!p.memory_over_time.empty() && p.memory[device].total() <= p.memory[kept].total()) return;
  p.memory_over_time = std::move(samples);
  p.memory_device = static_cast<int>(device);
}

}  // namespace tapestry::distributed::planner
