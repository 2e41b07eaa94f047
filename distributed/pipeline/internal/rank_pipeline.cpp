#include "tapestry/distributed/pipeline/internal/rank_pipeline.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/ddp/job.h"
#include "tapestry/distributed/pipeline/internal/state.h"

namespace tapestry::distributed {
namespace {

using Kind = Action::Kind;

// Messages of pipelines do not mix with those that a user sends under tags of a small number.
constexpr std::uint32_t kTag = 0x70697065;  // "pipe"

// What ranks have to agree on, as one number and as words.
std::int64_t packed(const PipelineOptions& o) {
  return (std::int64_t{o.micro_batches} << 16) | (std::int64_t{o.uneven} << 8) |
         static_cast<std::int64_t>(o.schedule);
}
std::string words(std::int64_t settings) {
  return concat({schedule_name(static_cast<Schedule>(settings & 0xff)), ", ", settings >> 16,
                 " micro-batches, ", (settings & 0x100) != 0 ? "uneven ones allowed" : "all of one size"});
}

std::vector<ParcelName> names_of(ParcelName::Kind kind, const std::vector<Action>& actions,
                                 std::uint64_t pass) {
  std::vector<ParcelName> names;
  const Kind wanted = kind == ParcelName::Kind::outputs ? Kind::forward : Kind::backward;
  for (const Action& a : actions)
    if (a.kind == wanted) names.push_back({kind, a.micro_batch, pass});
  return names;
}

}  // namespace

/// One call: this rank's part of the batch, and what becomes of it.
struct RankPipeline::Pass {
  const Pipeline::LossFunction* loss_fn = nullptr;   // null: forward only
  std::vector<std::int64_t> shares;                  // samples, by micro-batch
  std::vector<std::vector<Tensor>> inputs, targets;  // on the first rank, on the last
  std::vector<bool> wants_gradient;                  // of the inputs
  Tensor loss;                                       // comes from the last rank, with the last gradients
  std::vector<std::vector<Tensor>> results;          // by micro-batch: gradients of inputs, or outputs
  std::vector<std::size_t> sent;                     // tensors, by micro-batch

  // Stages draw from streams that follow from the first one's generator, as in one process.
  std::uint64_t seed = 0, offset = 0;
  std::uint64_t furthest = 0;  // that this stage or one behind it has come

  std::uint64_t number = 0;
  std::vector<Action> actions;
  int last_backward = -1;  // of which micro-batch: the loss travels with its gradients
  std::optional<StageGraphs> graphs;
  std::optional<ParcelReceiver> values, gradients;
  std::optional<ParcelSender> onward, back;
};

RankPipeline::RankPipeline(std::shared_ptr<ProcessGroup> group, const std::vector<Stage>& stages,
                           const PipelineOptions& options)
    : group_(std::move(group)), stages_(stages), options_(options), devices_{stages.at(0).device()} {
  check(group_ != nullptr, "[Pipeline] the process group is null; pass what init_process_group() returned");
  row_ = "rank " + std::to_string(group_->rank());
  const std::vector<Brought> all = meet("pipeline: options", [&]() -> Brought {
    check(options.micro_batches >= 1, "[Pipeline] ", options.micro_batches,
          " micro-batches; cut a batch into one or more");
    named_in_errors(place(), [&] { check_device("Pipeline", devices_[0]); });
    places_ = std::make_unique<TiedParameters>(stages_, devices_, device_of_,
                                               static_cast<std::size_t>(group_->rank()));
    return {.first = packed(options), .last = static_cast<std::int64_t>(options.tied.size())};
  });
  check_same("[Pipeline] the ranks were given different options:", all, [](const Brought& b) {
    return words(b.first) + (b.last > 0 ? concat({", ", b.last, " tied weights"}) : std::string());
  });
  ties_ = std::make_unique<RankTies>(*group_, stages_[0], options.tied);
}

RankPipeline::~RankPipeline() = default;

std::string RankPipeline::place() const {
  return concat({"stage ", group_->rank(), ", ", stages_[0].name()});
}

// What every rank brings. A rank that cannot take part throws what it found, and all others with it: nobody
// waits for it, and the next call can be a better one.
std::vector<RankPipeline::Brought> RankPipeline::meet(const char* what,
                                                      const std::function<Brought()>& prepare) const {
  struct Arrival {
    Brought brought;
    std::int64_t failed = 0;
  } mine;
  constexpr std::int64_t kNumbers = sizeof mine / sizeof(std::int64_t);
  std::exception_ptr thrown;
  std::string text;
  try {
    mine.brought = prepare();
  } catch (const std::exception& e) {
    thrown = std::current_exception();
    text = e.what();
    mine.failed = 1;
  }
  const std::int64_t size = group_->size();
  std::vector<Arrival> all(static_cast<std::size_t>(size));
  group_
      ->all_gather(from_blob(all.data(), {size * kNumbers}, DType::i64),
                   from_blob(&mine, {kNumbers}, DType::i64), what)
      .wait();
  const auto failed = std::find_if(all.begin(), all.end(), [](const Arrival& a) { return a.failed != 0; });
  if (failed != all.end()) {
    const int rank = static_cast<int>(failed - all.begin());
    text = broadcast_text(*group_, text, rank, what);
    if (thrown) std::rethrow_exception(thrown);
    fail<DistributedError>("[Pipeline] rank ", rank, " could not take part: ", text);
  }
  std::vector<Brought> brought;
  for (const Arrival& a : all) brought.push_back(a.brought);
  return brought;
}

// What every rank brought must be the same; `in_words` says what it is.
void RankPipeline::check_same(const char* problem, const std::vector<Brought>& all,
                              const std::function<std::string(const Brought&)>& in_words) {
  if (std::all_of(all.begin(), all.end(), [&](const Brought& b) { return b == all[0]; })) return;
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r) text += concat({"\n  rank ", r, "  ", in_words(all[r])});
  fail(problem, text, "\npass the same on all of them");
}

// Cuts the first rank's inputs and the last one's targets into micro-batches.
void RankPipeline::prepare(Pass& pass, const TensorList& inputs, const TensorList& targets) const {
  const bool trains = pass.loss_fn != nullptr;
  const auto cut = [&](const TensorList& batch, std::vector<std::vector<Tensor>>& parts) {
    const NoGradGuard no_grad;
    const std::int64_t samples = samples_in("Pipeline", batch);
    parts =
        split_tensors(batch, micro_batch_shares(samples, options_.micro_batches, trains && !options_.uneven));
    return samples;
  };
  const std::vector<Brought> all = meet(trains ? "pipeline: training" : "pipeline: evaluation", [&] {
    if (trains) check_grad_mode();
    places_->check_places();
    Brought found;
    found.state = current_generator(devices_[0]).state();
    if (is_first()) found.first = cut(inputs, pass.inputs);
    if (is_last() && trains) {
      check_targets(targets);
      found.last = cut(targets, pass.targets);
    }
    return found;
  });
  const std::int64_t samples = all.front().first;
  check(!trains || all.back().last == samples, "[Pipeline] rank 0 has inputs of ", samples,
        " samples, and rank ", all.size() - 1, " targets of ", all.back().last,
        "; read the same batch on both");
  pass.seed = all.front().state[0];
  pass.offset = pass.furthest = all.front().state[1];
  pass.shares = micro_batch_shares(samples, options_.micro_batches, false);
  pass.results.resize(pass.shares.size());
  pass.sent.resize(pass.shares.size());
  for (const Tensor& t : inputs.tensors)
    pass.wants_gradient.push_back(trains && t.defined() && t.requires_grad());
}

void RankPipeline::run(Pass& pass) {
  const int rank = group_->rank(), count = static_cast<int>(pass.shares.size());
  const bool trains = pass.loss_fn != nullptr;
  const Device here = devices_[0];
  pass.number = ++passes_;
  pass.actions = (trains ? schedule_actions(options_.schedule, group_->size(), count)
                         : forward_actions(group_->size(), count))[static_cast<std::size_t>(rank)];
  for (const Action& a : pass.actions)
    if (a.kind == Kind::backward) pass.last_backward = a.micro_batch;
  pass.graphs.emplace(stages_[0], options_, count, trains, row_.c_str());

  generator_.set_state({rank == 0 ? pass.seed : rank_seed(pass.seed, rank), pass.offset});
  Context context = current_context();
  context.device = here;
  context.generator = &generator_;
  context.grad_enabled = trains;
  const ContextGuard guard(context);

  const Clock::time_point began = Clock::now();
  const auto names = [&](ParcelName::Kind kind) { return names_of(kind, pass.actions, pass.number); };
  try {
    if (!is_first()) {
      pass.values.emplace(*group_, rank - 1, kTag, here, names(ParcelName::Kind::outputs));
      pass.back.emplace(*group_, rank - 1, kTag);
    }
    if (!is_last()) {
      pass.gradients.emplace(*group_, rank + 1, kTag, here, names(ParcelName::Kind::gradients));
      pass.onward.emplace(*group_, rank + 1, kTag);
    }
    for (const Action& action : pass.actions) act(pass, action);
    if (pass.onward) pass.onward->finish();
    if (pass.back) pass.back->finish();
  } catch (const std::exception& e) {
    group_->abort(e.what());  // others wait for this rank, and its own receivers for theirs
    throw;
  } catch (...) {
    group_->abort(concat({"stage ", rank, " threw something that says nothing"}));
    throw;
  }
  pass.furthest = std::max(pass.furthest, generator_.state()[1]);
  last_.emplace(std::move(*pass.graphs));
  bytes_received_ = (pass.values ? pass.values->bytes() : 0) + (pass.gradients ? pass.gradients->bytes() : 0);
  micro_batches_ = count;
  wall_s_ = std::chrono::duration<double>(Clock::now() - began).count();
}

void RankPipeline::act(Pass& pass, const Action& action) const {
  const Kind kind = action.kind;
  const int micro_batch = action.micro_batch;
  Parcel incoming, result;
  if (kind == Kind::forward) incoming = values_for(pass, micro_batch);
  else if (kind == Kind::backward) incoming = gradients_for(pass, micro_batch);
  named_in_errors(concat({place(), ", ", kind_name(kind), " of micro-batch ", micro_batch, ", rank ",
                          group_->rank(), " on ", devices_[0]}),
                  [&] {
                    switch (kind) {
                      case Kind::forward:
                        result = forward(pass, micro_batch, incoming);
                        if (!is_last())
                          ParcelLabel::check_room(ParcelName::Kind::outputs, result.tensors.size());
                        break;
                      case Kind::backward:
                        result = pass.graphs->backward(micro_batch, incoming);
                        break;
                      case Kind::weights:
                        pass.graphs->weights(micro_batch);
                        break;
                    }
                  });
  if (kind == Kind::weights) return;
  const auto m = static_cast<std::size_t>(micro_batch);
  if (kind == Kind::forward) {
    pass.sent[m] = result.tensors.size();
    if (!is_last())
      pass.onward->send({ParcelName::Kind::outputs, micro_batch, pass.number}, result, generator_.state()[1]);
    else if (!pass.loss_fn) pass.results[m] = std::move(result.tensors);
    return;
  }
  if (is_first()) {
    pass.results[m] = std::move(result.tensors);
    return;
  }
  if (micro_batch == pass.last_backward) result.tensors.push_back(pass.loss);
  pass.back->send({ParcelName::Kind::gradients, micro_batch, pass.number}, result,
                  std::max(pass.furthest, generator_.state()[1]));
}

Parcel RankPipeline::values_for(Pass& pass, int micro_batch) const {
  if (!is_first()) return pass.values->take();
  return {pass.inputs[static_cast<std::size_t>(micro_batch)], pass.wants_gradient};
}

Parcel RankPipeline::gradients_for(Pass& pass, int micro_batch) const {
  if (is_last()) return {};
  Parcel parcel = pass.gradients->take();
  pass.furthest = std::max(pass.furthest, pass.gradients->drawn());
  const bool with_loss = micro_batch == pass.last_backward;
  const std::size_t expected = pass.sent[static_cast<std::size_t>(micro_batch)] + with_loss;
  check<DistributedError>(parcel.tensors.size() == expected, "[Pipeline] rank ", group_->rank() + 1, " sent ",
                          parcel.tensors.size(), " gradients where ", expected,
                          " should come; run the same program on all ranks");
  if (!with_loss) return parcel;
  pass.loss = std::move(parcel.tensors.back());
  parcel.tensors.pop_back();
  return parcel;
}

Parcel RankPipeline::forward(Pass& pass, int micro_batch, const Parcel& inputs) const {
  if (!is_last() || !pass.loss_fn) return pass.graphs->forward(micro_batch, inputs);
  const auto m = static_cast<std::size_t>(micro_batch);
  LossPart part{*pass.loss_fn, pass.targets[m], weight_of(pass.shares, m)};
  pass.graphs->forward(micro_batch, inputs, &part);
  const NoGradGuard no_grad;
  pass.loss = pass.loss.defined() ? pass.loss + part.value : part.value;
  return {};
}

void RankPipeline::move_generator_on(std::uint64_t to) const {
  if (!is_first()) return;
  Generator& generator = current_generator(devices_[0]);
  generator.take(to - generator.state()[1]);
}

Tensor RankPipeline::forward_backward(const TensorList& inputs, const TensorList& targets,
                                      const Pipeline::LossFunction& loss) {
  Pass pass;
  pass.loss_fn = &loss;
  prepare(pass, inputs, targets);
  ties_->begin();
  run(pass);
  ties_->add_gradients();
  move_generator_on(pass.furthest);
  if (is_first()) return_gradients(inputs, pass.wants_gradient, pass.inputs, pass.results);
  return pass.loss;
}

std::vector<Tensor> RankPipeline::evaluate(const TensorList& inputs) {
  Pass pass;
  prepare(pass, inputs, {});
  run(pass);
  // Nothing has come back to the first rank.
  for (const Brought& b :
       meet("pipeline: random numbers", [&] { return Brought{.state = generator_.state()}; }))
    pass.furthest = std::max(pass.furthest, b.state[1]);
  move_generator_on(pass.furthest);
  if (!is_last()) return {};
  const NoGradGuard no_grad;
  return gather_tensors(pass.results, devices_[0]);
}

PipelineReport RankPipeline::report() const {
  StageReport mine;
  if (last_) mine = last_->report();
  const std::vector<std::string> names =
      all_gather_text(*group_, stages_[0].name() + "\n" + devices_[0].str(), "pipeline: report");
  double numbers[] = {mine.forward_s, mine.backward_s,
                      mine.receive_s, static_cast<double>(bytes_received_),
                      wall_s_,        static_cast<double>(mine.peak_micro_batches),
                      mine.weights_s};
  constexpr std::int64_t kCount = std::size(numbers);
  const std::int64_t size = group_->size();
  std::vector<double> all(static_cast<std::size_t>(size * kCount));
  group_
      ->all_gather(from_blob(all.data(), {size * kCount}, DType::f64),
                   from_blob(numbers, {kCount}, DType::f64), "pipeline: report")
      .wait();
  PipelineReport report;
  report.micro_batches = micro_batches_;
  for (std::size_t r = 0; r < names.size(); ++r) {
    const double* const n = &all[r * kCount];
    const std::size_t end = names[r].find('\n');
    report.stages.push_back({.name = names[r].substr(0, end),
                             .device = Device(names[r].substr(end + 1)),
                             .forward_s = n[0],
                             .backward_s = n[1],
                             .weights_s = n[6],
                             .receive_s = n[2],
                             .bytes_received = static_cast<std::int64_t>(n[3]),
                             .peak_micro_batches = static_cast<int>(n[5])});
    report.wall_s = std::max(report.wall_s, n[4]);
  }
  for (StageReport& stage : report.stages) {
    stage.idle_s = std::max(0.0, report.wall_s - stage.forward_s - stage.backward_s - stage.receive_s);
    if (report.wall_s > 0) report.bubble += stage.idle_s / (report.wall_s * static_cast<double>(size));
  }
  return report;
}

// Each rank joins the same norms in the same order, so all scale by one factor. On the host: a GPU has no
// arithmetic in f64.
Tensor RankPipeline::clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm,
                                     double norm_type, bool error_if_nonfinite) const {
  const NoGradGuard no_grad;
  Tensor own;
  const std::vector<Brought> arguments = meet("pipeline: clip_grad_norm_", [&] {
    check(max_norm >= 0, "[clip_grad_norm_] max_norm must not be negative but is ", max_norm);
    check(norm_type > 0, "[clip_grad_norm_] norm_type must be positive but is ", norm_type);
    std::vector<Tensor> norms{zeros({}, {DType::f64, devices_[0]})};
    for (const nn::Parameter& p : parameters)
      if (p->grad().defined() && !ties_->is_counted_elsewhere(p))
        norms.push_back(norm(p->grad(), norm_type).to(devices_[0], DType::f64));
    own = norm(stack(norms).cpu(), norm_type);
    return Brought{
        std::bit_cast<std::int64_t>(max_norm), std::bit_cast<std::int64_t>(norm_type), {error_if_nonfinite}};
  });
  check_same("[clip_grad_norm_] the ranks were given different arguments:", arguments, [](const Brought& b) {
    return concat({"max_norm ", std::bit_cast<double>(b.first), ", norm_type ", std::bit_cast<double>(b.last),
                   b.state[0] ? ", not finite is an error" : ""});
  });
  const Tensor all = empty({group_->size()}, {DType::f64, kCPU});
  group_->all_gather(all, own.reshape({1}), "pipeline: norms of gradients").wait();
  const Tensor total = norm(all, norm_type);
  if (error_if_nonfinite)
    check(std::isfinite(total.item()), "[clip_grad_norm_] the norm of the gradients is ", total.item(),
          ", so they cannot be clipped; look for the cause (autograd::DetectAnomaly), or skip this step");
  const Tensor factor = clamp(rdiv(max_norm, total + 1e-6), {}, 1.0);
  for (const nn::Parameter& p : parameters)
    if (p->grad().defined()) p->grad().mul_(factor.to(p->grad().device()));
  return total.to(devices_[0]);
}

nn::StateDict RankPipeline::whole_state_dict() const {
  nn::StateDict own;
  meet("pipeline: state", [&] {
    own = state_of(stages_);
    return Brought{};
  });
  std::set<std::string> shared;
  for (const std::vector<std::string>& names : options_.tied) shared.insert(names.begin(), names.end());
  return gather_state(*group_, own, shared, kTag);
}

nn::LoadResult RankPipeline::load_state_dict(const nn::StateDict& dict, bool strict) {
  nn::StateDict own;
  meet("pipeline: load_state_dict", [&] {
    own = state_of(stages_);
    return Brought{};
  });
  std::set<std::string> all;
  for (const std::vector<std::string>& names : names_by_rank(*group_, own))
    all.insert(names.begin(), names.end());
  std::optional<StateMatch> match;
  meet("pipeline: load_state_dict", [&] {
    match.emplace(own, all, dict, strict);
    return Brought{};
  });
  nn::LoadResult result = match->load();
  ties_->share_values();
  return result;
}

}  // namespace tapestry::distributed
