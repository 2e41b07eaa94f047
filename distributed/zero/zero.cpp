#include "tapestry/distributed/zero/zero.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/join_scope.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/zero/internal/state.h"
#include "tapestry/nn/internal/masters.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kOp = "ZeroRedundancyOptimizer";

MemoryFormat dense_format(const Tensor& t) {
  return t.is_contiguous() ? MemoryFormat::contiguous : MemoryFormat::channels_last;
}

}  // namespace

// ---- construction ----

ZeroBase::State::State(const ZeroOptions& options)
    : group(options.process_group),
      stage(options.stage),
      bucket_cap_mb(options.bucket_cap_mb),
      parts(options.parts) {
  shares.push_back({group});
  if (!parts.empty()) shares.push_back({.group = options.parts_group, .suffix = ".parts"});
}

ZeroBase::State::~State() {
  for (const Share& share : shares)
    if (share.reducer) share.reducer->undivide();
}

bool ZeroBase::State::is_trained() const {
  return std::any_of(shares.begin(), shares.end(), [](const Share& s) { return !s.item_of.empty(); });
}

void ZeroBase::State::add_items(const Groups& groups) {
  std::unordered_set<const Storage*> storages;
  bool trains = false;  // in any stage
  for (const std::vector<optim::Parameter>& list : groups) {
    for (const optim::Parameter& slot : list) {
      Item item;
      const std::string number = concat({"parameter ", items.size()});
      check(!slot.is_computed(), "[", kOp, "] ", number,
            " is computed from other parameters; pass module.parameters(), which has those");
      item.share = std::any_of(parts.begin(), parts.end(), [&](const auto& p) { return p.is_same(slot); });
      check(may_have_equal_parts(slot, *shares[item.share].group), "[", kOp, "] ", number,
            " is divided among ranks, and so is its optimizer's state already; use the optimizer itself");
      check(slot.replicas() == 1, "[", kOp, "] ", number, " has ", slot.replicas(),
            " replicas; use one rank per device instead of DataParallel");
      item.slot = slot;
      item.tensor = slot.replica(0);
      const Tensor& t = item.tensor;
      Reducer* const averages = reducer_of(t);
      item.label = concat({number, " of shape ", t.sizes()});
      if (averages)
        for (const auto& [path, tensor] : averages->parameters())
          if (tensor.is_same(t)) item.label = path;
      check(is_floating(t.dtype()), "[", kOp, "] ", item.label, " is ", t.dtype(),
            "; pass floating-point parameters only");
      check(t.is_contiguous(dense_format(t)), "[", kOp, "] ", item.label, " has strides ", t.strides(),
            " and is not dense; register it with contiguous()");
      check(t.numel() == 0 || storages.insert(t.storage().get()).second, "[", kOp, "] ", item.label,
            " shares memory with another parameter; tie weights by assigning one slot to the other");
      trains = trains || t.requires_grad();
      if (t.requires_grad() && !nn::is_of_other_stage(slot)) {
        std::vector<int>& item_of = shares[item.share].item_of;
        item.place = static_cast<int>(item_of.size());
        item_of.push_back(static_cast<int>(items.size()));
        on_cpu = on_cpu && t.device().is_cpu();
      }
      // `inner` numbers its parameters as the optimizer without ZeRO does.
      item.part = optim::Parameter(item.label, zeros({0}, {t.dtype(), t.device()}));
      items.push_back(std::move(item));
    }
  }
  check(trains, "[", kOp, "] no parameter requires gradients; there is nothing to train");
}

void ZeroBase::State::make_division(Share& share) {
  std::vector<int>& item_of = share.item_of;
  if (stage == 1) {
    const ReducerOptions bytes = bucket_sizes(kOp, bucket_cap_mb, bucket_cap_mb);
    std::vector<BucketParameter> sizes;
    for (const int i : item_of) {
      const Tensor& t = items[static_cast<std::size_t>(i)].tensor;
      sizes.push_back({t.nbytes(), t.dtype(), t.device()});
    }
    share.order.resize(sizes.size());
    std::iota(share.order.begin(), share.order.end(), 0);
    share.division =
        Division(sizes, share.order, bytes.first_bucket_bytes, bytes.bucket_cap_bytes, share.group->size());
    return;
  }
  if (item_of.empty()) return;  // nothing of this share is trained
  Reducer* const found = reducer_of(items[static_cast<std::size_t>(item_of[0])].tensor);
  check(found != nullptr, "[", kOp, "] stage 2 divides the gradients of a DistributedDataParallel, but ",
        items[static_cast<std::size_t>(item_of[0])].label,
        " belongs to none; wrap the model in DistributedDataParallel first, or choose stage 1");
  check(found->group() == share.group, "[", kOp, "] ", &share == &shares[0] ? "process_group" : "parts_group",
        " is not the group of the DistributedDataParallel; pass the same group to both");
  std::unordered_map<const TensorImpl*, int> own;
  for (const int i : item_of) own[items[static_cast<std::size_t>(i)].tensor.impl()] = i;
  std::vector<int> by_place;
  for (const auto& [path, tensor] : found->parameters()) {
    const auto item = own.find(tensor.impl());
    check(item != own.end(), "[", kOp, "] ", path,
          " is trained by the DistributedDataParallel but is no parameter of this optimizer, so its gradient "
          "would be divided and never used; pass all parameters, in groups, or freeze it before the model is "
          "wrapped");
    items[static_cast<std::size_t>(item->second)].place = static_cast<int>(by_place.size());
    by_place.push_back(item->second);
    own.erase(item);
  }
  check(own.empty(), "[", kOp, "] ",
        own.empty() ? "" : items[static_cast<std::size_t>(own.begin()->second)].label,
        " is no trained parameter of the DistributedDataParallel; wrap the model again after it has changed");
  item_of = std::move(by_place);
  // The stages of a pipeline add their gradients of a tied weight, so all of them must divide it in the same
  // way.
  std::vector<bool> alone;
  for (const int i : share.item_of)
    alone.push_back(nn::is_of_several_stages(items[static_cast<std::size_t>(i)].slot));
  found->divide([&share] { share.reducer = nullptr; }, alone);
  share.reducer = found;
}

void ZeroBase::State::settle() {
  if (settled) return;
  for (Share& share : shares) {
    if (!share.reducer) continue;
    share.division = share.reducer->settle_division();
    share.order = share.reducer->order();
  }
  std::vector<std::int64_t> offsets;
  for (Item& item : items) {
    offsets.push_back(item.trained() ? range(item).begin : 0);
    if (item.trained()) item.part.set_replica(0, elements_of(item.tensor, range(item)));
  }
  inner->set_offsets(std::move(offsets));
  settled = true;
}

ZeroBase::ZeroBase(const Groups& groups, const ZeroOptions& options, const char* refused,
                   const Factory& make) {
  check(options.process_group != nullptr, "[", kOp,
        "] process_group is null; pass what init_process_group() returned");
  check(
      refused == nullptr, "[", kOp, "] ", refused ? refused : "",
      " computes with whole tensors, and the elements of a tensor may lie on several ranks; use it without ",
      kOp, ", or choose an optimizer that updates each element by itself, such as AdamW");
  state_ = std::make_unique<State>(options);
  State& s = *state_;
  std::string text, of_parts;
  on_all_ranks(*s.group, kOp, [&] {
    check(options.stage == 1 || options.stage == 2, "[", kOp, "] stage is ", options.stage,
          "; choose 1 or 2, or fully_shard() to divide the parameters too");
    check(options.parts.empty() == (options.parts_group == nullptr), "[", kOp,
          "] parts and parts_group belong together; set both or none");
    for (const std::vector<optim::Parameter>& list : groups) add_params(list);
    s.add_items(groups);
    Groups parts;
    std::size_t at = 0;
    for (const std::vector<optim::Parameter>& list : groups) {
      parts.emplace_back();
      for (std::size_t i = 0; i < list.size(); ++i) parts.back().push_back(s.items[at++].part);
    }
    s.inner = make(std::move(parts));
    if (!s.is_trained()) s.stage = 1;  // a frozen stage of a pipeline, which has no gradients to divide
    for (State::Share& share : s.shares) s.make_division(share);
    if (s.stage == 1) s.settle();
    text =
        concat({s.inner->optimizer().name(), " stage ", s.stage, " bucket_cap_mb ", s.bucket_cap_mb, "\n"});
    // consolidate_state_dict() names one place in all of these groups.
    if (s.shares.size() > 1) text += concat({"parts_group of ", s.shares[1].group->size(), " ranks\n"});
    for (const State::Item& item : s.items) {
      const std::string own = concat({item.label, " ", item.tensor.dtype(), " ", item.tensor.sizes(), " ",
                                      item.tensor.strides(), item.trained() ? "\n" : " frozen\n"}) +
                              describe_part(item.label, item.slot);
      // Ranks of the first group have different parts of the parameters in the second share, so only the
      // whole sizes must agree there.
      text += item.share == 0 ? own : concat({nn::whole_sizes(item.slot), "\n"});
      if (item.share > 0) of_parts += own;
    }
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const optim::OptionRef& o : s.inner->options_of(g))
        text += concat({"group ", g, " ", o.name, " ", o.get(), "\n"});
  });
  check_same_lines(*s.group, kOp, "parameters and options", text, "pass the same to all ranks");
  if (s.shares.size() > 1)
    on_all_ranks(*s.group, kOp, [&] {
      check_same_lines(*s.shares[1].group, kOp, "divided parameters", of_parts,
                       "pass ranks that have the same parts as parts_group");
    });
}

ZeroBase::~ZeroBase() = default;

const char* ZeroBase::name() const {
  return state_ && state_->inner ? state_->inner->optimizer().name() : kOp;
}
bool ZeroBase::supports_device_scaling() const {
  return state_ && state_->inner && state_->inner->optimizer().supports_device_scaling();
}
int ZeroBase::stage() const { return state_->stage; }
ProcessGroup& ZeroBase::process_group() const { return *state_->group; }
const detail::DividedOptimizer& ZeroBase::divided() const { return *state_->inner; }
std::vector<optim::OptionRef> ZeroBase::options_of(std::size_t group) const {
  return state_->inner->options_of(group);
}
void ZeroBase::check_options(std::size_t group) const { state_->inner->check_options(group); }

std::vector<std::int64_t> ZeroBase::local_elements() const {
  std::vector<std::int64_t> counts;
  for (const State::Item& item : state_->items) counts.push_back(item.part.replica(0).numel());
  return counts;
}

// ---- step ----

bool ZeroBase::State::has_gradient(const Item& item) {
  if (!item.trained()) return false;
  if (stage == 1) return item.tensor.grad().defined();
  return shares[item.share].reducer->gradient_part(item.place).defined();
}

// The part of the parameter's gradient that this rank needs for its step. The parameter must have a gradient.
Tensor ZeroBase::State::gradient(const Item& item) const {
  if (stage == 2) return shares[item.share].reducer->gradient_part(item.place);
  Tensor grad = item.tensor.grad();
  const MemoryFormat format = dense_format(item.tensor);
  if (!grad.is_contiguous(format)) grad = grad.contiguous(format);
  return elements_of(grad, range(item));
}

std::string ZeroBase::State::problem() {
  if (stage == 2 && std::any_of(shares.begin(), shares.end(),
                                [](const Share& s) { return !s.reducer && !s.item_of.empty(); }))
    return "the DistributedDataParallel that averages the gradients was destroyed; it must live as long as "
           "the optimizer is used";
  bool any = false;
  for (const Item& item : items) {
    if (!may_have_equal_parts(item.slot, *shares[item.share].group) || item.slot.replicas() != 1 ||
        !item.slot.replica(0).is_same(item.tensor))
      return item.label +
             " is not the tensor that it was when the optimizer was constructed; to(device), to(dtype) and "
             "fully_shard() replace tensors: construct the optimizer after them";
    const Tensor grad = item.tensor.grad();
    if (!grad.defined()) continue;
    if (!item.trained())
      return item.label + " has a gradient, but was frozen when the optimizer was constructed; construct " +
             "the optimizer again, on all ranks, after requires_grad_()";
    any = true;
    if (stage == 2 && !shares[item.share].reducer->gradient_part(item.place).defined())
      return "grad() of " + item.label +
             " is not what the last backward pass of DistributedDataParallel left: a pass under no_sync() "
             "came after it, or it was set by hand; let a pass that averages gradients come last";
  }
  return any || !is_trained() ? "" : "no parameter has a gradient; call backward() before step()";
}

// Throws on every rank if the ranks would do different steps. `options` is Optimizer::describe(), and
// `has_stepped` tells whether this is a later step than the first.
void ZeroBase::State::compare_ranks(const std::string& options, bool has_stepped) {
  std::string wrong = problem();
  if (!on_cpu && has_stepped) return check(wrong.empty(), "[", kOp, "] ", wrong);
  std::string gradients, of_parts;
  if (wrong.empty())
    for (const Item& item : items) (item.share == 0 ? gradients : of_parts) += has_gradient(item) ? '1' : '0';
  if (shares.size() > 1) {
    // A rank with a problem of its own has nothing to compare, and tells all ranks below.
    const std::vector<std::int64_t> own{wrong.empty() ? 0 : 1, std::bit_cast<std::int64_t>(fnv1a(of_parts))};
    const std::vector<std::int64_t> all = all_gather_numbers(*shares[1].group, own, "gradients of parts");
    bool differ = false;
    for (std::size_t i = 0; i < all.size(); i += 2) differ = differ || (all[i] == 0 && all[i + 1] != own[1]);
    if (wrong.empty() && differ)
      wrong =
          "the ranks that have the same parts of parameters have gradients of different ones; do the same on "
          "all of them before step()";
  }
  const std::string mine = concat({options, "numbers of the loaded state ", loaded, "\n"});
  const std::vector<std::int64_t> own{wrong.empty() ? 0 : 1,
                                      std::bit_cast<std::int64_t>(fnv1a(mine + gradients))};
  const std::vector<std::int64_t> all = all_gather_numbers(*group, own, "options before a step");
  bool fails = false, differ = false;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    fails = fails || all[i] != 0;
    differ = differ || all[i + 1] != all[1];
  }
  if (fails) {
    const std::vector<std::string> texts = all_gather_text(*group, wrong, "errors before a step");
    check(wrong.empty(), "[", kOp, "] ", wrong);
    for (std::size_t r = 0; r < texts.size(); ++r)
      check<DistributedError>(texts[r].empty(), "[", kOp, "] rank ", r, " cannot step: ", texts[r]);
  }
  if (!differ) return;
  std::string text = mine;
  for (const Item& item : items)
    if (item.share == 0)
      text += concat({item.label, has_gradient(item) ? " has a gradient\n" : " has no gradient\n"});
  check_same_lines(*group, kOp, "options and gradients", text, "do the same on all ranks before step()");
}

ZeroBase::State::Gathering ZeroBase::State::start_gathering(Share& share, int bucket,
                                                            const std::vector<bool>& updated) {
  const DividedBucket& b = share.division.buckets()[static_cast<std::size_t>(bucket)];
  ProcessGroup& among = *share.group;
  const std::int64_t begin = b.chunk * among.rank();
  Gathering g{&share,
              bucket,
              releasable_tensor(b.chunk, b.dtype, b.device, MemoryKind::other),
              releasable_tensor(b.chunk * among.size(), b.dtype, b.device, MemoryKind::other),
              {}};
  std::int64_t count = 0;
  for (const int place : b.parameters) {
    const auto at = static_cast<std::size_t>(share.item_of[static_cast<std::size_t>(place)]);
    if (updated[at]) count += range(items[at]).count;
  }
  if (count < b.chunk) g.own.zero_();  // padding, which is sent too
  for (const int place : b.parameters) {
    const auto at = static_cast<std::size_t>(share.item_of[static_cast<std::size_t>(place)]);
    const ElementRange own = range(items[at]);
    if (updated[at] && own.count > 0)
      part_of(g.own, share.division.offset(place) + own.begin - begin, {own.count}, {1})
          .copy_(items[at].part.replica(0));
  }
  g.work = among.all_gather(g.all, g.own, concat({"parameters of bucket ", bucket}));
  return g;
}

void ZeroBase::State::finish_gathering(const Gathering& g, const std::vector<bool>& updated) {
  g.work.wait();
  const Device device = g.all.device();
  if (Timeline::active() && device.is_cpu())
    add_span(device.str() + " communication", Activity::communication,
             concat({"parameters of bucket ", g.bucket}), g.work.started(), g.work.finished(),
             {.bucket = g.bucket,
              .bytes = static_cast<std::int64_t>(g.all.nbytes()),
              .axis = g.share->group->name()});
  g.own.storage()->release_memory();
  const Division& division = g.share->division;
  const DividedBucket& b = division.buckets()[static_cast<std::size_t>(g.bucket)];
  for (const int place : b.parameters) {
    const auto at = static_cast<std::size_t>(g.share->item_of[static_cast<std::size_t>(place)]);
    if (!updated[at]) continue;
    const Tensor& t = items[at].tensor;
    const ElementRange own = range(items[at]);
    const auto copy = [&](std::int64_t from, std::int64_t to) {
      if (to > from)
        elements_of(t, {from, to - from})
            .copy_(part_of(g.all, division.offset(place) + from, {to - from}, {1}));
    };
    copy(0, own.begin);
    copy(own.begin + own.count, t.numel());
  }
  g.all.storage()->release_memory();
}

// Updates the parts bucket by bucket. While one bucket is updated, the one before is gathered. So at most two
// buckets are in memory.
void ZeroBase::State::update(double grad_scale, const Tensor& loss_scale, const Tensor& found_inf) {
  std::vector<bool> updated;
  for (const Item& item : items) updated.push_back(has_gradient(item));
  optim::Optimizer& optimizer = inner->optimizer();
  optimizer.set_grad_scale(grad_scale);
  std::deque<Gathering> gatherings;
  const auto finish_first = [&] {
    const Gathering g = std::move(gatherings.front());
    gatherings.pop_front();
    finish_gathering(g, updated);
  };
  const auto update_bucket = [&](Share& share, std::size_t k) {
    bool any = false;
    const std::vector<int>& places = share.division.buckets()[k].parameters;
    for (const int place : places) {
      Item& item = item_at(share, place);
      if (!updated[static_cast<std::size_t>(&item - items.data())]) continue;
      const Tensor& part = item.part.replica(0);
      part.set_grad(gradient(item));
      // A part counts its own versions. It must show the optimizer that someone else wrote to the parameter.
      if (item.tensor.storage()->version() != item.version) part.storage()->bump_version();
      any = true;
    }
    if (!any) return;
    if (found_inf.defined()) optimizer.step(loss_scale, found_inf);
    else optimizer.step();
    for (const int place : places) item_at(share, place).part.replica(0).set_grad({});
    if (share.group->size() == 1) return;
    if (gatherings.size() == 2) finish_first();
    gatherings.push_back(start_gathering(share, static_cast<int>(k), updated));
  };
  for (Share& share : shares)
    for (std::size_t k = 0; k < share.division.buckets().size(); ++k) update_bucket(share, k);
  SpanScope exposed(items[0].tensor.device(), Activity::communication, "wait for parameters");
  exposed.set_subject({.axis = group->name()});
  while (!gatherings.empty()) finish_first();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!updated[i]) continue;
    items[i].tensor.storage()->bump_version();
    items[i].version = items[i].tensor.storage()->version();
  }
}

std::vector<const char*> ZeroBase::State::state_names(DType parameter) const {
  std::vector<const char*> names = inner->state_names();
  if (optim::is_low(parameter)) names.push_back(optim::kMaster);
  return names;
}

// ---- join ----

void ZeroBase::State::broadcast_gradients(int lead) {
  if (stage != 1) return;  // each rank has its part of the mean already
  const bool leads = group->rank() == lead;
  const Tensor defined = zeros({static_cast<std::int64_t>(items.size())}, DType::u8);
  auto* const flags = defined.data<std::uint8_t>();
  for (std::size_t i = 0; i < items.size(); ++i) flags[i] = has_gradient(items[i]);
  group->broadcast(defined, lead, "gradients in join");
  NamedTensors gradients;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Tensor& t = items[i].tensor;
    if (!leads && flags[i] && !t.grad().defined()) t.set_grad(zeros_like(t.detach()));
    if (!leads && !flags[i]) t.set_grad({});
    if (flags[i]) gradients.emplace_back(items[i].label, t.grad());
  }
  broadcast_values(*group, gradients, "gradients in join", lead);
}

// The ranks that have joined take the options, the scales and the gradients of a rank that has batches.
void ZeroBase::follow_lead(Tensor& loss_scale, Tensor& found_inf) {
  State& s = *state_;
  const auto number_of = [](const Tensor& t) { return t.defined() ? t.item() : 0.0; };
  std::vector<double> numbers{grad_scale(), loss_scale.defined() ? 1.0 : 0.0, number_of(loss_scale),
                              found_inf.defined() ? 1.0 : 0.0, number_of(found_inf)};
  std::vector<optim::OptionRef> options;
  for (std::size_t g = 0; g < num_groups(); ++g)
    for (const optim::OptionRef& o : options_of(g)) options.push_back(o);
  for (const optim::OptionRef& o : options) numbers.push_back(o.get());
  const Tensor sent = from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, DType::f64);
  s.group->broadcast(sent, s.join->lead(), "options in join");
  s.broadcast_gradients(s.join->lead());
  if (!s.join->has_joined()) return;
  set_grad_scale(numbers[0]);
  const Device device = s.items[0].tensor.device();
  loss_scale = numbers[1] != 0 ? full({}, numbers[2], {DType::f32, device}) : Tensor();
  found_inf = numbers[3] != 0 ? full({}, numbers[4], {DType::f32, device}) : Tensor();
  for (std::size_t i = 0; i < options.size(); ++i) options[i].set(numbers[5 + i]);
}

const std::shared_ptr<ProcessGroup>& ZeroBase::join_group() const { return state_->group; }
std::string ZeroBase::why_not_joinable(const JoinScope&) const {
  if (state_->shares.size() == 1) return {};
  return "ranks divide some of its parameters (ZeroOptions::parts), so no rank has the gradients of all that "
         "a rank which has joined would need; give all ranks as many batches";
}
void ZeroBase::set_join(JoinScope* scope) { state_->join = scope; }
void ZeroBase::shadow(int) { step(); }
// Every rank has taken all steps, and DistributedDataParallel broadcasts the parameters.
void ZeroBase::end_join(int) {}

void ZeroBase::step_all() {
  State& s = *state_;
  Tensor scale = loss_scale(), inf = found_inf();
  if (s.join && !s.join->has_joined()) s.join->announce(*this, JoinScope::step);
  if (s.join && s.join->some_joined()) follow_lead(scale, inf);
  else s.compare_ranks(describe(), steps() > 0);
  s.settle();
  s.has_whole = s.has_parts = s.collected = false;
  s.whole.clear();
  s.update(grad_scale(), scale, inf);
}

}  // namespace tapestry::distributed
