#include "tapestry/distributed/common/internal/reducer.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/common/internal/same_model.h"

namespace tapestry::distributed {
namespace {

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

bool same_place(const Tensor& a, const Tensor& b) {
  return a.raw_data() == b.raw_data() && a.strides() == b.strides();
}

// Encodes a hash of `number` as bits, followed by the complements of these bits. The mean of the encodings
// over the ranks shows whether their numbers differ: if ranks differ in a bit, the means of the bit and of
// its complement are both above 0. That holds in every dtype and after every comm hook. Different numbers
// have equal hashes with probability 2^-kChangeBits.
constexpr int kChangeBits = 16;
Tensor bits_of(std::uint32_t number) {
  const std::uint32_t mixed = number * 0x9e3779b1u >> (32 - kChangeBits);
  std::vector<float> bits;
  for (const std::uint32_t from : {mixed, ~mixed})
    for (int i = 0; i < kChangeBits; ++i) bits.push_back(static_cast<float>(from >> i & 1));
  return tensor(bits, {2, kChangeBits});
}

// The parameters of all reducers in this process.
struct Claimed {
  std::mutex mutex;
  std::unordered_map<const TensorImpl*, Reducer*> parameters;
};
Claimed& claimed() {
  static Claimed& all = *new Claimed;  // never destroyed: reducers may be static
  return all;
}

}  // namespace

ReducerOptions bucket_sizes(const char* op, double bucket_cap_mb, double first_bucket_mb) {
  const auto bytes = [op](const char* name, double mebibytes) {
    check(mebibytes > 0 && mebibytes <= 1 << 20, "[", op, "] ", name, " is ", mebibytes,
          " MiB; give a size above 0, such as 25");
    return static_cast<std::size_t>(mebibytes * (1 << 20));
  };
  ReducerOptions options;
  options.bucket_cap_bytes = bytes("bucket_cap_mb", bucket_cap_mb);
  options.first_bucket_bytes = std::min(bytes("first_bucket_mb", first_bucket_mb), options.bucket_cap_bytes);
  return options;
}

Reducer* reducer_of(const Tensor& parameter) {
  Claimed& all = claimed();
  const std::lock_guard lock(all.mutex);
  const auto found = all.parameters.find(parameter.impl());
  return found == all.parameters.end() ? nullptr : found->second;
}

Reducer::Claim::Claim(const std::vector<std::pair<std::string, Tensor>>& parameters, Reducer* reducer) {
  Claimed& all = claimed();
  const std::lock_guard lock(all.mutex);
  for (const auto& [name, tensor] : parameters)
    check(!all.parameters.contains(tensor.impl()), "[DistributedDataParallel] the gradient of ", name,
          " is averaged already by another DistributedDataParallel; destroy that one first");
  for (const auto& [name, tensor] : parameters) {
    parameters_.push_back(tensor);
    all.parameters.emplace(tensor.impl(), reducer);
  }
}

Reducer::Claim::~Claim() {
  Claimed& all = claimed();
  const std::lock_guard lock(all.mutex);
  for (const Tensor& t : parameters_) all.parameters.erase(t.impl());
}

Reducer::Reducer(std::vector<std::pair<std::string, Tensor>> parameters, std::shared_ptr<ProcessGroup> group,
                 const ReducerOptions& options)
    : options_(options), group_(std::move(group)), claim_(parameters, this) {
  for (auto& [name, tensor] : parameters) {
    Parameter p;
    p.name = name;
    p.tensor = tensor;
    parameters_.push_back(std::move(p));
  }
  // The first buckets hold the last parameters, because backward reaches the last layers first.
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  build(order);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].hook = parameters_[i].tensor.register_post_accumulate_grad_hook(
        [this, i](const Tensor&) { on_gradient(static_cast<int>(i)); });
}

Reducer::~Reducer() {
  if (first_) first_->second_ = nullptr;
  if (second_) second_->first_ = nullptr;
  if (divided_) {
    end_division();
    if (ended_) ended_();
  }
  for (Parameter& p : parameters_) p.hook.remove(), p.before_sum.remove();
}

void Reducer::build(const std::vector<int>& order) {
  order_ = order;
  std::vector<BucketParameter> sizes;
  for (const Parameter& p : parameters_)
    sizes.push_back({p.tensor.nbytes(), p.tensor.dtype(), p.tensor.device(), p.alone});
  // The memory of the old buckets is freed before the new ones are allocated.
  buckets_.clear();
  for (Parameter& p : parameters_) {
    p.view = p.used_flag = {};
    if (!is_reduced(p)) p.reduced = {};
  }
  division_ = Division(sizes, order, options_.first_bucket_bytes, options_.bucket_cap_bytes,
                       divided_ ? group_->size() : 1);
  for (const DividedBucket& place : division_.buckets()) {
    Bucket b;
    const std::int64_t elements = place.chunk * (divided_ ? group_->size() : 1);
    const auto flags = options_.static_graph ? 0 : static_cast<std::int64_t>(place.parameters.size());
    const std::int64_t bits = flags && buckets_.empty() && place.device.is_cpu() ? 2 * kChangeBits : 0;
    // The flags of a divided bucket are reduced by themselves, because every rank needs all of them.
    const Tensor memory = zeros({(divided_ ? 0 : elements) + flags + bits}, {place.dtype, place.device});
    tag_memory(memory, MemoryKind::gradients);
    const std::int64_t first_flag = divided_ ? 0 : elements;
    b.flags = part_of(memory, first_flag, {flags + bits}, {1});
    if (bits) b.changes = part_of(memory, first_flag + flags, {2, kChangeBits}, {kChangeBits, 1});
    if (!divided_) {
      b.buffer = memory;
      b.grads.gradients = part_of(memory, 0, {elements}, {1});
    }
    b.bytes = static_cast<std::size_t>(elements) * dtype_size(place.dtype);
    b.grads.index = static_cast<int>(buckets_.size());
    std::int64_t flag = first_flag;
    for (const int i : place.parameters) {
      Parameter& p = parameters_[static_cast<std::size_t>(i)];
      p.bucket = b.grads.index;
      if (!divided_)
        p.view = part_of(memory, division_.offset(i), p.tensor.sizes(), strides_in_bucket(p.tensor));
      if (flags) p.used_flag = part_of(memory, flag++, {1}, {1});
      b.grads.parameters.push_back(p.name);
    }
    b.grads.name = "bucket " + std::to_string(b.grads.index) + " (" + listed(b.grads.parameters, 2) + ")";
    b.parameters = place.parameters;
    buckets_.push_back(std::move(b));
  }
  for (Bucket& b : buckets_) b.grads.count = static_cast<int>(buckets_.size());
}

void Reducer::on_gradient(int index) {
  Parameter& p = parameters_[static_cast<std::size_t>(index)];
  // The sum over the ranks is not recorded.
  check<AutogradError>(!grad_enabled(), "[DistributedDataParallel] the gradient of ", p.name,
                       " arrived in a backward pass with create_graph, but sums over the ranks have no "
                       "gradients; use autograd::grad() with create_graph inside the loss, and backward() "
                       "without it for the loss");
  if (!*synchronize) {
    p.pending_sum = true;
    return;
  }
  if (pass_ != autograd::current_backward().id) begin_pass();
  check<AutogradError>(
      !p.ready, "[DistributedDataParallel] the gradient of ", p.name,
      " arrived after its bucket was ready: its layer ran again in a nested backward pass, or the graph "
      "differs from the first pass's although static_graph is set; do not nest passes, and leave "
      "static_graph out if the graph changes");
  p.used = true;
  arrival_.push_back(index);
  const Clock::time_point now = Clock::now();
  // On a GPU, the host's clock shows when kernels were launched and not when they ran, so no span is
  // recorded.
  if (Timeline::active() && device().is_cpu()) {
    const std::size_t dot = p.name.rfind('.');  // a parameter of the model itself has none
    add_span(device().str(), Activity::backward, "backward of " + p.name, last_gradient_, now,
             {.module = p.name.substr(0, dot == std::string::npos ? 0 : dot)});
  }
  last_gradient_ = now;
  mark_ready(index, true);
  post_full_buckets();
}

void Reducer::reset_pass(std::uint64_t id, Clock::time_point began) {
  if (pass_ != 0) abandon_pass();  // an exception ended the previous pass
  if (!learned_order_.empty() || abandoned_) rebuild();
  last_report_.reset();
  pass_ = id;
  began_ = last_gradient_ = began;
  next_bucket_ = next_complete_ = 0;
  arrival_.clear();
  unused_.clear();
  count_changes();
  for (Parameter& p : parameters_) p.ready = p.used = p.filled = false;
  for (Bucket& b : buckets_) {
    b.missing = static_cast<int>(b.parameters.size());
    b.in_flight = {};
    b.flags_work = {};
  }
}

void Reducer::pair_with(Reducer& second) {
  check(
      this != &second && !first_ && !second_ && !second.first_ && !second.second_,
      "[DistributedDataParallel] one of two models to pair is in a pair already; pair two that are in none");
  second_ = &second;
  second.first_ = this;
}

// Returns this reducer and the other one of its pair, the first of the pair first. Leaves out the other one
// if that is under no_sync().
std::vector<Reducer*> Reducer::in_pass() {
  std::vector<Reducer*> all;
  if (first_ && *first_->synchronize) all.push_back(first_);
  all.push_back(this);
  if (second_ && *second_->synchronize) all.push_back(second_);
  return all;
}

void Reducer::begin_pass() {
  const std::vector<Reducer*> all = in_pass();
  const autograd::BackwardPass pass = autograd::current_backward();
  for (Reducer* const r : all) {
    if (r->before_pass) r->before_pass();
    r->reset_pass(pass.id, pass.began);
  }
  autograd::on_backward_end([all] { finish_passes(all); });

  for (Reducer* const r : all)
    for (std::size_t i = 0; i < r->parameters_.size(); ++i) {
      const bool known = r->options_.static_graph && r->passes_ > 0;
      const bool expected =
          known ? std::binary_search(r->used_at_first_.begin(), r->used_at_first_.end(), static_cast<int>(i))
                : !r->options_.find_unused || autograd::backward_reaches(r->parameters_[i].tensor);
      if (!expected) r->mark_ready(static_cast<int>(i), false);
    }
  post_full_buckets();
}

void Reducer::pass_without_gradients() {
  const std::vector<Reducer*> all = in_pass();
  for (Reducer* const r : all) {
    check<AutogradError>(
        !r->options_.static_graph || r->passes_ > 0 || !r->some_joined,
        "[join] this rank has no batch for the first pass, in which static_graph learns what the "
        "rank uses; leave static_graph out");
    r->reset_pass(UINT64_MAX, Clock::now());
    r->without_gradients_ = true;
  }
  struct Reset {
    const std::vector<Reducer*>& all;
    ~Reset() {
      for (Reducer* const r : all) r->without_gradients_ = false;
    }
  } const reset{all};
  finish_passes(all);
}

void Reducer::mark_ready(int index, bool used) {
  Parameter& p = parameters_[static_cast<std::size_t>(index)];
  p.ready = true;
  p.used = used || (p.pending_sum && p.tensor.grad().defined());  // zero_grad() may have dropped the sum
  p.pending_sum = false;
  copy_in(p);
  --buckets_[static_cast<std::size_t>(p.bucket)].missing;
}

// True if grad() is the sum that an earlier pass has left on all ranks.
bool Reducer::is_reduced(const Parameter& p) const {
  const Tensor grad = p.tensor.grad();
  return p.reduced.defined() && grad.defined() && same_place(grad, p.reduced);
}

// Called on all ranks but the first when a gradient is about to be added to grad(). The next sum over the
// ranks takes the sum of the last one from rank 0.
void Reducer::leave_sum_to_rank_0(int index) {
  Parameter& p = parameters_[static_cast<std::size_t>(index)];
  p.before_sum.remove();  // a hook would make every later addition a tensor of its own
  p.watches_sum = false;
  if (divided_ || !is_reduced(p)) return;
  p.tensor.set_grad({});
  // autograd::grad() runs the hooks of a leaf, but adds nothing to its grad().
  autograd::on_backward_end([&p] {
    if (!p.tensor.grad().defined()) p.tensor.set_grad(p.reduced);
  });
}

// Copies grad() of `p` into its place in the bucket. If this pass computed no gradient on this rank, grad()
// is the sum of earlier passes, or it is undefined and counts as zeros.
void Reducer::copy_in(Parameter& p) {
  if (divided_) return copy_in_divided(p);
  const NoGradGuard no_grad;
  const Tensor grad = p.tensor.grad();
  if (!grad.defined() || (group_->rank() > 0 && is_reduced(p))) p.view.zero_();
  else if (!same_place(grad, p.view)) p.view.copy_(grad);
  if (p.used) p.tensor.set_grad(p.view);
}

// All ranks must post in one order, even if they get gradients in different orders or lack some. So the
// numbers of the buckets alone decide which of a pair of reducers posts next: bucket k of the second one's n
// buckets comes when (k + 1) / n of the first one's buckets are posted.
bool Reducer::is_next() const {
  const auto turn = [](const Reducer& first, const Reducer& second) {  // when its next bucket comes
    const std::size_t n = second.buckets_.size();
    return ((second.next_bucket_ + 1) * first.buckets_.size() + n - 1) / n;
  };
  const auto waits = [](const Reducer& r) { return r.next_bucket_ < r.buckets_.size(); };
  if (first_ && first_->pass_ == pass_) return first_->next_bucket_ >= turn(*first_, *this);
  if (second_ && second_->pass_ == pass_ && waits(*second_)) return next_bucket_ < turn(*this, *second_);
  return true;
}

bool Reducer::post_next() {
  if (pass_ == 0 || next_bucket_ == buckets_.size() || buckets_[next_bucket_].missing > 0 || !is_next())
    return false;
  post(buckets_[next_bucket_++]);
  while (divided_ && next_bucket_ - next_complete_ > kBucketsInFlight) complete(buckets_[next_complete_++]);
  return true;
}

void Reducer::post_full_buckets() {
  Reducer* const other = first_ ? first_ : second_;
  const bool pairs = other && other->pass_ == pass_;
  while (post_next() || (pairs && other->post_next())) {
  }
}

void Reducer::post(Bucket& bucket) {
  const NoGradGuard no_grad;
  if (bucket.flags.numel() > 0) {
    bucket.flags.fill_(1);
    for (const int i : bucket.parameters) {
      const Parameter& p = parameters_[static_cast<std::size_t>(i)];
      if (!p.used) p.used_flag.zero_();
    }
    if (bucket.changes.defined()) bucket.changes.copy_(bits_of(changes_));
  }
  bucket.posted = Clock::now();
  if (divided_) {
    post_divided(bucket);
  } else if (comm_hook) {
    start_hook(bucket);
    if (bucket.flags.numel() > 0)
      bucket.flags_work = group_->all_reduce(bucket.flags, ReduceOp::mean, bucket.grads.name + " flags");
  } else {
    bucket.in_flight = {group_->all_reduce(bucket.buffer, options_.reduce, bucket.grads.name)};
  }
}

// A hook computes the mean: that of gradients times the number of ranks is their sum.
void Reducer::start_hook(Bucket& bucket) {
  if (options_.reduce == ReduceOp::sum) bucket.grads.gradients.mul_(static_cast<double>(group_->size()));
  bucket.in_flight = comm_hook(*group_, bucket.grads);
}

// Waits for the reduction of a bucket, and gives its parameters their gradients.
void Reducer::complete(Bucket& b) {
  b.in_flight.work.wait();
  if (b.in_flight.finish) b.in_flight.finish();
  if (mean_factor != 1 && !divided_) b.grads.gradients.mul_(mean_factor);
  if ((comm_hook || divided_) && b.flags.numel() > 0) b.flags_work.wait();
  if (Timeline::active())
    add_span(device().str() + " communication", Activity::communication, b.grads.name,
             b.in_flight.work.started(), b.in_flight.work.finished(),
             {.bucket = b.grads.index, .bytes = static_cast<std::int64_t>(b.bytes), .axis = group_->name()});
  if (divided_) receive_parts(b);
  finish_unused(b);
}

// All reducers post their last buckets before one of them waits. The collectives after a pass come in the
// order of the pair, too.
void Reducer::finish_passes(const std::vector<Reducer*>& reducers) {
  for (Reducer* const r : reducers) r->post_rest();
  for (Reducer* const r : reducers) r->finish_pass();
}

void Reducer::post_rest() {
  computed_ = Clock::now();
  if (Timeline::active() && device().is_cpu())
    add_span(device().str(), Activity::backward, "backward", began_, computed_);
  // Marks parameters that are in the graph but got no gradient.
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!parameters_[i].ready) mark_ready(static_cast<int>(i), false);
  post_full_buckets();
}

void Reducer::finish_pass() {
  std::optional<SpanScope> exposed(std::in_place, device(), Activity::communication, "wait for gradients");
  exposed->set_subject({.axis = group_->name()});
  while (next_complete_ < buckets_.size()) complete(buckets_[next_complete_++]);
  exposed.reset();
  finished_ = Clock::now();
  pass_ = 0;
  if (options_.static_graph) check_static_graph();
  const bool first = passes_++ == 0;
  if (first && options_.relearn_order && !order_fixed_) learn_order();
  if (compare_values && !some_joined && (first || ranks_changed_differently())) compare_values();
  if (after_pass) after_pass();
}

// Counts how often the parameters changed since the last pass. Normally all ranks have the same count: one
// change per optimizer step. Different counts are not an error yet, because a rank may have restored its old
// values. So compare_values() decides.
void Reducer::count_changes() {
  std::uint32_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.tensor.version();
  changes_ = sum - std::exchange(versions_, sum);
  if (fingerprint && buckets_[0].changes.defined()) changes_ ^= static_cast<std::uint32_t>(fingerprint());
}

bool Reducer::ranks_changed_differently() const {
  const Tensor& changes = buckets_[0].changes;
  if (!changes.defined()) return false;
  const Tensor means = changes.to(DType::f32).contiguous();
  const auto* const bits = means.data<float>();
  for (int i = 0; i < kChangeBits; ++i)
    if (bits[i] > 0 && bits[kChangeBits + i] > 0) return true;
  return false;
}

// True if this pass averaged a gradient of the parameter, from this rank or another. In the first pass of a
// static graph only this rank's use is known: see learn_graph().
bool Reducer::used_by_a_rank(const Parameter& p) const {
  return p.used || (options_.static_graph ? p.used_anywhere : p.used_flag.item() > 0);
}

// Handles the parameters that this rank did not use. If other ranks used a parameter, this rank takes the
// mean gradient too. If no rank used it, its grad() does not change.
void Reducer::finish_unused(Bucket& bucket) {
  for (const int i : bucket.parameters) {
    Parameter& p = parameters_[static_cast<std::size_t>(i)];
    if (p.used) continue;
    if (!used_by_a_rank(p)) {
      unused_.push_back(p.name);
      continue;
    }
    check(p.tensor.requires_grad(), "[DistributedDataParallel] ", p.name,
          " is frozen on this rank and trained on another; freeze it on all ranks or on none");
    if (divided_) set_part_as_gradient(p);
    else p.tensor.set_grad(p.view);
  }
  if (options_.reduce == ReduceOp::sum && !divided_) watch_sums(bucket);
}

// Stores where the pass has left sums over the ranks. A parameter that no rank used keeps the place of an
// earlier sum: its grad() is still there, and not in the bucket.
void Reducer::watch_sums(Bucket& bucket) {
  for (const int i : bucket.parameters) {
    Parameter& p = parameters_[static_cast<std::size_t>(i)];
    const Tensor grad = p.tensor.grad();
    if (!grad.defined() || !same_place(grad, p.view)) continue;
    p.reduced = p.view;
    if (group_->rank() == 0 || p.watches_sum) continue;
    p.watches_sum = true;
    p.before_sum = p.tensor.register_hook([this, i](const Tensor&) {
      leave_sum_to_rank_0(i);
      return Tensor();
    });
  }
}

void Reducer::check_static_graph() {
  std::vector<int> used;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].used) used.push_back(static_cast<int>(i));
  if (passes_ == 0) {
    used_at_first_ = std::move(used);
    learn_graph();
    return;
  }
  if (without_gradients_) return;
  std::vector<int> missing;
  std::set_difference(used_at_first_.begin(), used_at_first_.end(), used.begin(), used.end(),
                      std::back_inserter(missing));
  std::vector<std::string> names;
  for (const int i : missing) names.push_back(parameters_[static_cast<std::size_t>(i)].name);
  check<AutogradError>(missing.empty(),
                       "[DistributedDataParallel] static_graph requires that every pass uses the "
                       "same parameters, but this pass did not use ",
                       listed(names, 10), "; leave static_graph out");
}

// Collective: learns in the first pass of a static graph which parameters other ranks use. Every pass gives
// their mean gradients to this rank too. Without flags in the buckets, it could not know about them.
void Reducer::learn_graph() {
  const Tensor used = zeros({static_cast<std::int64_t>(parameters_.size())}, DType::u8);
  auto* const flags = used.data<std::uint8_t>();
  for (const int i : used_at_first_) flags[i] = 1;
  group_->all_reduce(used, ReduceOp::max, "parameters of the static graph");
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].used_anywhere = flags[i] != 0;
  unused_.clear();
  for (Bucket& bucket : buckets_) finish_unused(bucket);
}

// Stores the order in which gradients arrived on rank 0, for the buckets of the next passes. Parameters
// without a gradient come last.
void Reducer::learn_order() {
  std::vector<std::int64_t> order(arrival_.begin(), arrival_.end());
  for (std::size_t i = parameters_.size(); i-- > 0;)
    if (std::find(arrival_.begin(), arrival_.end(), static_cast<int>(i)) == arrival_.end())
      order.push_back(static_cast<std::int64_t>(i));
  const Tensor sent = from_blob(order.data(), {static_cast<std::int64_t>(order.size())}, DType::i64);
  group_->broadcast(sent, 0, "order of buckets").wait();
  learned_order_.assign(order.begin(), order.end());
}

// Gives up an unfinished pass. Collectives in flight keep their buffers alive, and the next pass builds new
// buckets.
void Reducer::abandon_pass() noexcept {
  pass_ = 0;
  abandoned_ = true;
}

// Makes new buckets: in the order that was learned, or, after an abandoned pass, in the same order.
void Reducer::rebuild() {
  const bool learned = !learned_order_.empty();
  const std::vector<int> new_order = learned ? std::exchange(learned_order_, {}) : order_;
  abandoned_ = false;
  if (!divided_) return build(new_order);
  std::vector<Bucket> old = std::move(buckets_);
  const Division old_division = std::move(division_);
  build(new_order);
  if (learned) return move_parts(std::move(old), old_division);
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i].parts = old[i].parts;
}

double Reducer::since_began(Clock::time_point t) const { return seconds(t - began_); }

DdpReport Reducer::report() const {
  if (last_report_) return *last_report_;
  DdpReport r;
  if (passes_ == 0) return r;
  r.backward_s = since_began(computed_);
  r.exposed_s = seconds(finished_ - computed_);
  for (const Bucket& b : buckets_) {
    BucketReport one;
    one.name = b.grads.name;
    one.bytes = b.bytes;
    one.posted = since_began(b.posted);
    one.started = since_began(b.in_flight.work.started());
    one.finished = since_began(b.in_flight.work.finished());
    r.communication_s += one.finished - one.started;
    r.hidden_s += std::max(0.0, std::min(one.finished, r.backward_s) - one.started);
    r.buckets.push_back(std::move(one));
  }
  return r;
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& b : buckets_) names.push_back(b.grads.parameters);
  return names;
}

}  // namespace tapestry::distributed
