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
#include "tapestry/core/internal/part_memory.h"
#include "tapestry/distributed/comm/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/distributed/pipeline/internal/state_dict.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::distributed {
namespace {

using Kind = Action::Kind;

// The tag of the messages of pipelines. Users who choose small tags do not use it by accident.
constexpr std::uint32_t kTag = 0x70697065;  // "pipe" in ASCII

// The options on which ranks must agree, packed into one number and as text.
std::int64_t pack(const PipelineOptions& o) {
  return (std::int64_t{o.micro_batches} << 16) | (std::int64_t{o.check_steps} << 9) |
         (std::int64_t{o.uneven} << 8) | static_cast<std::int64_t>(o.schedule);
}
std::string settings_text(std::int64_t settings) {
  return concat({schedule_name(static_cast<Schedule>(settings & 0xff)), ", ", settings >> 16,
                 " micro-batches, ", (settings & 0x100) != 0 ? "uneven sizes allowed" : "all of one size",
                 (settings & 0x200) != 0 ? "" : ", steps not compared"});
}

std::vector<MessageId> message_ids(MessageId::Kind kind, const std::vector<Action>& actions,
                                   std::uint64_t pass) {
  std::vector<MessageId> ids;
  const Kind wanted = kind == MessageId::Kind::outputs ? Kind::forward : Kind::backward;
  for (const Action& a : actions)
    if (a.kind == wanted) ids.push_back({kind, a.micro_batch, pass});
  return ids;
}

nn::NamedSlots parameters_of(const Stage& stage) {
  const auto named = stage.named_parameters();
  return {named.begin(), named.end()};
}

}  // namespace

/// One call of forward_backward() or evaluate() on this rank.
struct RankPipeline::Pass {
  const Pipeline::LossFunction* loss_fn = nullptr;   // null: forward only
  std::vector<std::int64_t> sizes;                   // samples, by micro-batch
  std::vector<std::vector<Tensor>> inputs, targets;  // inputs on the first rank, targets on the last
  std::vector<bool> requires_grad;                   // by input
  Tensor loss;                                       // the last rank sends it with the last gradients
  std::vector<std::vector<Tensor>> results;  // by micro-batch: gradients of inputs if it trains, else outputs
  std::vector<std::size_t> sent;             // number of output tensors, by micro-batch

  // The state of the first rank's generator. The generators of all stages are derived from it, as in one
  // process.
  std::uint64_t seed = 0, offset = 0;
  // The largest generator position that this stage or a later one has reached.
  std::uint64_t max_rng_offset = 0;

  std::uint64_t number = 0;
  std::vector<Action> actions;
  int last_backward = -1;      // the micro-batch whose gradients are sent with the loss
  Action last_gradients = {};  // the last action that adds gradients to the parameters
  std::optional<StageExecutor> executor;
  std::optional<MessageReceiver> outputs, gradients;
  std::optional<MessageSender> to_next, to_previous;
};

RankPipeline::RankPipeline(std::shared_ptr<ProcessGroup> group, const std::vector<Stage>& stages,
                           const PipelineOptions& options)
    : group_(std::move(group)),
      stages_(stages),
      options_(options),
      devices_{stages.at(0).device()},
      drift_("Pipeline", group_, parameters_of(stages[0])) {
  check(group_ != nullptr, "[Pipeline] the process group is null; pass what init_process_group() returned");
  row_ = "rank " + std::to_string(group_->rank());
  const std::vector<CallArguments> all = all_gather_arguments("pipeline: options", [&]() -> CallArguments {
    check(options.micro_batches >= 1, "[Pipeline] ", options.micro_batches,
          " micro-batches; split a batch into one or more");
    with_error_context(stage_text(), [&] { check_device("Pipeline", devices_[0]); });
    placement_ = std::make_unique<TiedParameters>(stages_, devices_, device_of_,
                                                  static_cast<std::size_t>(group_->rank()));
    return {.first = pack(options), .last = static_cast<std::int64_t>(options.tied.size())};
  });
  check_same("[Pipeline] the ranks have different options:", all, [](const CallArguments& b) {
    return settings_text(b.first) + (b.last > 0 ? concat({", ", b.last, " tied weights"}) : std::string());
  });
  tied_parameters_ = std::make_unique<RankTiedParameters>(*group_, stages_[0], options.tied);
  mark_parameters();
}

namespace {
// Functions that need the parameters of all stages refuse those of one stage by this mark. It is never
// destroyed, because tensors may outlive the pipeline.
tapestry::detail::PartMemory& stage_memory() {
  using tapestry::detail::PartMemory;
  static PartMemory& mark = *new PartMemory(PartMemory::Of::pipeline, [] { return "a stage of a pipeline"; });
  return mark;
}
}  // namespace

RankPipeline::~RankPipeline() {
  for (const nn::Parameter& p : marked_)
    if (Storage& memory = *nn::stored_tensor(p, 0).storage(); memory.source() == &stage_memory())
      memory.set_source(nullptr);
}

// Module::to() and other functions make new tensors, so each pass marks those that it finds.
void RankPipeline::mark_parameters() {
  marked_.clear();
  for (const auto& [name, slot] : stages_[0].named_parameters()) {
    if (group_->size() == 1 || slot.is_computed()) continue;
    if (Storage& memory = *nn::stored_tensor(slot, 0).storage(); !memory.source())
      memory.set_source(&stage_memory());
    marked_.push_back(slot);
  }
}

std::string RankPipeline::stage_text() const {
  return concat({"stage ", group_->rank(), ", ", stages_[0].name()});
}

// Collective: gathers what prepare() returns on each rank. If prepare() throws on one rank, all ranks throw.
// So no rank waits for one that does not take part, and the group stays usable.
std::vector<RankPipeline::CallArguments> RankPipeline::all_gather_arguments(
    const char* what, const std::function<CallArguments()>& prepare) const {
  struct Packet {
    CallArguments arguments;
    std::int64_t failed = 0;
  } mine;
  constexpr std::int64_t kNumbers = sizeof mine / sizeof(std::int64_t);
  std::exception_ptr thrown;
  std::string text;
  try {
    mine.arguments = prepare();
  } catch (const std::exception& e) {
    thrown = std::current_exception();
    text = e.what();
    mine.failed = 1;
  }
  const std::int64_t size = group_->size();
  std::vector<Packet> all(static_cast<std::size_t>(size));
  group_
      ->all_gather(from_blob(all.data(), {size * kNumbers}, DType::i64),
                   from_blob(&mine, {kNumbers}, DType::i64), what)
      .wait();
  const auto failed = std::find_if(all.begin(), all.end(), [](const Packet& a) { return a.failed != 0; });
  if (failed != all.end()) {
    const int rank = static_cast<int>(failed - all.begin());
    text = broadcast_text(*group_, text, rank, what);
    if (thrown) std::rethrow_exception(thrown);
    fail<DistributedError>("[Pipeline] rank ", rank, " could not take part in the call: ", text);
  }
  std::vector<CallArguments> arguments;
  for (const Packet& a : all) arguments.push_back(a.arguments);
  return arguments;
}

// Throws ValueError unless all ranks passed the same arguments. The text of the error contains describe() of
// each rank's arguments.
void RankPipeline::check_same(const char* problem, const std::vector<CallArguments>& all,
                              const std::function<std::string(const CallArguments&)>& describe) {
  if (std::all_of(all.begin(), all.end(), [&](const CallArguments& b) { return b == all[0]; })) return;
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r) text += concat({"\n  rank ", r, "  ", describe(all[r])});
  fail(problem, text, "\npass the same on all ranks");
}

// The steps of the stage's optimizer since the last pass that trained. Of several ones, which may take turns,
// the most steps. An optimizer may have stepped before the first pass, and may be replaced at any time.
std::int64_t RankPipeline::steps_of_stage() {
  if (!options_.check_steps) return kNotCounted;
  std::int64_t most = kNotCounted;
  std::map<const optim::Optimizer*, std::int64_t> counted;
  for (const optim::Optimizer* o : drift_.optimizers()) {
    const std::int64_t now = o->steps(), before = counted_steps_ ? (*counted_steps_)[o] : now;
    most = std::max(most, now < before ? now : now - before);
    counted[o] = now;
  }
  counted_steps_ = std::move(counted);
  return most;
}

void RankPipeline::check_steps(const std::vector<CallArguments>& all) {
  std::set<std::int64_t> counts;
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].steps == kNotCounted) continue;
    counts.insert(all[r].steps);
    text += concat({"\n  rank ", r, "  ", all[r].steps, all[r].steps == 1 ? " step" : " steps"});
  }
  check(counts.size() <= 1,
        "[Pipeline] the optimizers of the stages have taken different numbers of steps since the last "
        "forward_backward():",
        text,
        "\nstep the optimizer of every stage after each forward_backward(), or set check_steps = false");
}

// The samples of each micro-batch.
std::vector<std::int64_t> RankPipeline::sizes_of(std::int64_t samples, bool exactly) const {
  std::vector<std::int64_t> sizes = micro_batch_sizes(samples, options_.micro_batches, exactly);
  if (makes_all_micro_batches) sizes.resize(static_cast<std::size_t>(options_.micro_batches));
  return sizes;
}

// Splits the first rank's inputs and the last rank's targets into micro-batches.
void RankPipeline::prepare(Pass& pass, const TensorList& inputs, const TensorList& targets) {
  const bool trains = pass.loss_fn != nullptr;
  const auto split = [&](const TensorList& batch, std::vector<std::vector<Tensor>>& chunks) {
    const NoGradGuard no_grad;
    const std::int64_t samples = samples_in("Pipeline", batch);
    chunks = split_tensors(batch, sizes_of(samples, trains && !options_.uneven));
    return samples;
  };
  const std::vector<CallArguments> all =
      all_gather_arguments(trains ? "pipeline: training" : "pipeline: evaluation", [&] {
        CallArguments found;
        if (trains) {
          check_grad_mode();
          found.steps = steps_of_stage();
        }
        placement_->check_places(around.has_value());
        found.state = current_generator(devices_[0]).state();
        if (is_first()) found.first = split(inputs, pass.inputs);
        if (is_last() && trains) {
          check_targets(targets);
          found.last = split(targets, pass.targets);
        }
        return found;
      });
  const std::int64_t samples = all.front().first;
  check(!trains || all.back().last == samples, "[Pipeline] rank 0 has inputs of ", samples,
        " samples, and rank ", all.size() - 1, " targets of ", all.back().last,
        "; read the same batch on both");
  check_steps(all);
  pass.seed = all.front().state[0];
  pass.offset = pass.max_rng_offset = all.front().state[1];
  pass.sizes = sizes_of(samples, false);
  pass.results.resize(pass.sizes.size());
  pass.sent.resize(pass.sizes.size());
  for (const Tensor& t : inputs.tensors)
    pass.requires_grad.push_back(trains && t.defined() && t.requires_grad());
}

void RankPipeline::run(Pass& pass) {
  const int rank = group_->rank(), count = static_cast<int>(pass.sizes.size());
  const bool trains = pass.loss_fn != nullptr;
  const Device here = devices_[0];
  pass.number = ++passes_;
  pass.actions = (trains ? schedule_actions(options_.schedule, group_->size(), count)
                         : forward_actions(group_->size(), count))[static_cast<std::size_t>(rank)];
  for (const Action& a : pass.actions) {
    if (a.kind == Kind::backward) pass.last_backward = a.micro_batch;
    if (a.kind != Kind::forward) pass.last_gradients = a;
  }
  pass.executor.emplace(stages_[0], options_, count, trains, row_.c_str(), nullptr, placed_along);

  generator_.set_state({rank == 0 ? pass.seed : rank_seed(pass.seed, rank), pass.offset});
  Context context = current_context();
  context.device = here;
  context.generator = &generator_;
  context.grad_enabled = trains;
  const ContextGuard guard(context);

  const Clock::time_point began = Clock::now();
  const auto ids = [&](MessageId::Kind kind) { return message_ids(kind, pass.actions, pass.number); };
  try {
    if (!is_first()) {
      pass.outputs.emplace(*group_, rank - 1, kTag, here, ids(MessageId::Kind::outputs));
      pass.to_previous.emplace(*group_, rank - 1, kTag);
    }
    if (!is_last()) {
      pass.gradients.emplace(*group_, rank + 1, kTag, here, ids(MessageId::Kind::gradients));
      pass.to_next.emplace(*group_, rank + 1, kTag);
    }
    for (const Action& action : pass.actions) run_action(pass, action);
    if (pass.to_next) pass.to_next->finish();
    if (pass.to_previous) pass.to_previous->finish();
  } catch (const std::exception& e) {
    // Wakes the other ranks, which wait for this one, and this rank's receivers, which wait for them.
    group_->abort(e.what());
    throw;
  } catch (...) {
    group_->abort(concat({"stage ", rank, " threw an exception that is not a std::exception"}));
    throw;
  }
  pass.max_rng_offset = std::max(pass.max_rng_offset, generator_.state()[1]);
  last_.emplace(std::move(*pass.executor));
  bytes_received_ =
      (pass.outputs ? pass.outputs->bytes() : 0) + (pass.gradients ? pass.gradients->bytes() : 0);
  bytes_to_next_ = pass.to_next ? pass.to_next->bytes() : 0;
  bytes_to_previous_ = pass.to_previous ? pass.to_previous->bytes() : 0;
  micro_batches_ = count;
  wall_s_ = std::chrono::duration<double>(Clock::now() - began).count();
}

void RankPipeline::run_action(Pass& pass, const Action& action) const {
  const Kind kind = action.kind;
  const int micro_batch = action.micro_batch;
  Message incoming, result;
  if (kind == Kind::forward) incoming = inputs_of(pass, micro_batch);
  else if (kind == Kind::backward) incoming = gradients_of(pass, micro_batch);
  const std::string of = group_->name() == "world" ? "" : " of " + group_->name();
  with_error_context(concat({stage_text(), ", ", kind_name(kind), " of micro-batch ", micro_batch, ", rank ",
                             group_->rank(), of, " on ", devices_[0]}),
                     [&] {
                       const bool trains = around && pass.loss_fn, last = action == pass.last_gradients;
                       std::shared_ptr<void> scope = trains ? around->before(action, last) : nullptr;
                       switch (kind) {
                         case Kind::forward: {
                           const std::shared_ptr<void> full = around ? around->forward() : nullptr;
                           result = forward(pass, micro_batch, incoming);
                           if (!is_last())
                             MessageHeader::check_count(MessageId::Kind::outputs, result.tensors.size());
                           return;
                         }
                         case Kind::backward:
                           result = pass.executor->backward(micro_batch, std::move(incoming));
                           break;
                         case Kind::weights:
                           pass.executor->weights(micro_batch);
                           break;
                       }
                       scope.reset();
                       if (trains) around->after(action, last);
                     });
  if (kind == Kind::weights) return;
  const auto m = static_cast<std::size_t>(micro_batch);
  if (kind == Kind::forward) {
    pass.sent[m] = result.tensors.size();
    if (!is_last())
      pass.to_next->send({MessageId::Kind::outputs, micro_batch, pass.number}, result, generator_.state()[1]);
    else if (!pass.loss_fn) pass.results[m] = std::move(result.tensors);
    return;
  }
  if (is_first()) {
    pass.results[m] = std::move(result.tensors);
    return;
  }
  if (micro_batch == pass.last_backward) result.tensors.push_back(pass.loss);
  pass.to_previous->send({MessageId::Kind::gradients, micro_batch, pass.number}, result,
                         std::max(pass.max_rng_offset, generator_.state()[1]));
}

Message RankPipeline::inputs_of(Pass& pass, int micro_batch) const {
  if (!is_first()) return pass.outputs->take();
  return {pass.inputs[static_cast<std::size_t>(micro_batch)], pass.requires_grad};
}

Message RankPipeline::gradients_of(Pass& pass, int micro_batch) const {
  if (is_last()) return {};
  Message message = pass.gradients->take();
  pass.max_rng_offset = std::max(pass.max_rng_offset, pass.gradients->rng_offset());
  const bool with_loss = micro_batch == pass.last_backward;
  const std::size_t expected = pass.sent[static_cast<std::size_t>(micro_batch)] + with_loss;
  check<DistributedError>(message.tensors.size() == expected, "[Pipeline] rank ", group_->rank() + 1,
                          " sent ", message.tensors.size(), " gradients instead of ", expected,
                          "; run the same program on all ranks");
  if (!with_loss) return message;
  pass.loss = std::move(message.tensors.back());
  message.tensors.pop_back();
  return message;
}

Message RankPipeline::forward(Pass& pass, int micro_batch, const Message& inputs) const {
  if (!is_last() || !pass.loss_fn) return pass.executor->forward(micro_batch, inputs);
  const auto m = static_cast<std::size_t>(micro_batch);
  MicroBatchLoss part{*pass.loss_fn, pass.targets[m], weight_of(options_, pass.sizes, m)};
  pass.executor->forward(micro_batch, inputs, &part);
  const NoGradGuard no_grad;
  pass.loss = pass.loss.defined() ? pass.loss + part.value : part.value;
  return {};
}

void RankPipeline::advance_generator(std::uint64_t to) const {
  if (!is_first()) return;
  Generator& generator = current_generator(devices_[0]);
  generator.take(to - generator.state()[1]);
}

Tensor RankPipeline::forward_backward(const TensorList& inputs, const TensorList& targets,
                                      const Pipeline::LossFunction& loss) {
  mark_parameters();
  Pass pass;
  pass.loss_fn = &loss;
  prepare(pass, inputs, targets);
  tied_parameters_->begin_pass();
  run(pass);
  tied_parameters_->add_gradients();
  advance_generator(pass.max_rng_offset);
  if (is_first()) backward_to_inputs(inputs, pass.requires_grad, pass.inputs, pass.results);
  return pass.loss;
}

std::vector<Tensor> RankPipeline::evaluate(const TensorList& inputs) {
  Pass pass;
  prepare(pass, inputs, {});
  run(pass);
  // In training, the gradients bring the generator positions of later stages to the first rank. Evaluation
  // sends no gradients, so the ranks gather the positions here.
  for (const CallArguments& b : all_gather_arguments(
           "pipeline: random numbers", [&] { return CallArguments{.state = generator_.state()}; }))
    pass.max_rng_offset = std::max(pass.max_rng_offset, b.state[1]);
  advance_generator(pass.max_rng_offset);
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

// Each rank combines the same norms in the same order, so all scale by the same factor. They are combined on
// the host, because our GPU kernels have no f64 arithmetic.
Tensor RankPipeline::clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm,
                                     double norm_type, bool error_if_nonfinite) const {
  const NoGradGuard no_grad;
  Tensor own;
  const std::vector<CallArguments> arguments = all_gather_arguments("pipeline: clip_grad_norm_", [&] {
    check(max_norm >= 0, "[clip_grad_norm_] max_norm must not be negative but is ", max_norm);
    check(norm_type > 0, "[clip_grad_norm_] norm_type must be positive but is ", norm_type);
    std::vector<Tensor> norms{zeros({}, {DType::f64, devices_[0]})};
    for (const nn::Parameter& p : parameters)
      if (p->grad().defined() && !tied_parameters_->is_counted_elsewhere(p))
        norms.push_back(norm(p->grad(), norm_type).to(devices_[0], DType::f64));
    own = norm(stack(norms).cpu(), norm_type);
    return CallArguments{
        std::bit_cast<std::int64_t>(max_norm), std::bit_cast<std::int64_t>(norm_type), {error_if_nonfinite}};
  });
  check_same("[clip_grad_norm_] the ranks passed different arguments:", arguments,
             [](const CallArguments& b) {
               return concat({"max_norm ", std::bit_cast<double>(b.first), ", norm_type ",
                              std::bit_cast<double>(b.last), b.state[0] ? ", error_if_nonfinite" : ""});
             });
  const Tensor all = empty({group_->size()}, {DType::f64, kCPU});
  group_->all_gather(all, own.reshape({1}), "pipeline: norms of gradients").wait();
  const Tensor total = norm(all, norm_type);
  if (error_if_nonfinite)
    check(std::isfinite(total.item()), "[clip_grad_norm_] the norm of the gradients is ", total.item(),
          ", so they cannot be clipped; find the cause with autograd::DetectAnomaly, or skip this step");
  const Tensor factor = clamp(rdiv(max_norm, total + 1e-6), {}, 1.0);
  for (const nn::Parameter& p : parameters)
    if (p->grad().defined()) p->grad().mul_(factor.to(p->grad().device()));
  return total.to(devices_[0]);
}

nn::StateDict RankPipeline::whole_state_dict() const {
  nn::StateDict own;
  all_gather_arguments("pipeline: state", [&] {
    own = state_dict_of(stages_);
    return CallArguments{};
  });
  std::set<std::string> shared;
  for (const std::vector<std::string>& names : options_.tied) shared.insert(names.begin(), names.end());
  return gather_state_dict(*group_, own, shared, kTag);
}

nn::LoadResult RankPipeline::load_state_dict(const nn::StateDict& dict, bool strict) {
  nn::StateDict own;
  all_gather_arguments("pipeline: load_state_dict", [&] {
    own = state_dict_of(stages_);
    return CallArguments{};
  });
  std::set<std::string> all;
  for (const std::vector<std::string>& names : names_by_rank(*group_, own))
    all.insert(names.begin(), names.end());
  std::optional<StateDictLoader> match;
  all_gather_arguments("pipeline: load_state_dict", [&] {
    match.emplace(own, all, dict, strict);
    return CallArguments{};
  });
  nn::LoadResult result = match->load();
  tied_parameters_->broadcast_values();
  return result;
}

}  // namespace tapestry::distributed
