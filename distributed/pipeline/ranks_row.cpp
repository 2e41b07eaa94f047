// The row `pipeline` over ranks: each rank computes one stage, and keeps the parameters of this stage alone.
#include <algorithm>
#include <optional>
#include <utility>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/pipeline/internal/pipeline_layer.h"
#include "tapestry/distributed/pipeline/internal/rank_pipeline.h"
#include "tapestry/distributed/pipeline/internal/stage_parameters.h"

namespace tapestry::distributed {
namespace {

constexpr std::uint32_t kLossTag = 0x6c6f7373;  // "loss" in ASCII

class PipelineOverRanks final : public PipelineLayer {
 public:
  using PipelineLayer::PipelineLayer;
  bool builds_in_parts() const override { return true; }
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    attach(model, parts);
    const auto ranks = static_cast<std::size_t>(group().size());
    std::vector<Stage> stages;
    PipelineOptions options = pipeline_options();
    // The stages differ in size, so the memory of one rank alone may not suffice.
    on_all_ranks(group(), "strategy", [&] {
      stages = parts.stages(std::vector(ranks, device()));
      check(stages.size() == ranks, "[strategy] ModelParts::stages returned ", stages.size(), " stages for ",
            ranks, " ranks; return one for each of the devices that it gets");
      options.tied = keep_own_stage(model, stages, context().axis->group());
    });
    const Stage& own = stages[static_cast<std::size_t>(group().rank())];
    pipeline_.emplace(context().axis->group(), std::vector{own}, options);
    const auto part_of = [this](const Action& action, bool last) {
      return Part{action.micro_batch, context().parts, last};
    };
    const auto all = [](std::vector<std::shared_ptr<void>> scopes) -> std::shared_ptr<void> {
      return std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(scopes));
    };
    pipeline_->makes_all_micro_batches = context().axes.size() > 1;
    for (const Axis& axis : context().axes)
      if (axis.name() != context().axis->name()) pipeline_->placed_along.push_back(axis);
    check(pipeline_->placed_along.size() <= MessageHeader::kMaxAxes, "[strategy] stages are placed along ",
          pipeline_->placed_along.size(), " axes, and their messages have room for ", MessageHeader::kMaxAxes,
          "; use fewer axes");
    pipeline_->around.emplace(RankPipeline::Around{
        .before = [=, this](const Action& action, bool last) -> std::shared_ptr<void> {
          if (action.kind != Action::Kind::forward) return all(backward_begins(part_of(action, last)));
          forward_begins(part_of(action, last));
          return nullptr;
        },
        .after = [=, this](const Action& action, bool last) { backward_ended(part_of(action, last)); },
        .forward = [=, this] { return all(stage_begins()); }});
    keep_modules_of(own, local);
  }
  StepLoss gradients(const Part&, const Batch& batch, double count, optim::GradScaler* scaler) override {
    StepLoss step;
    std::vector<Tensor> all;
    with_error_context(place(), [&] {
      pipeline_->forward_backward(tensors_in(batch.inputs), tensors_in(batch.targets),
                                  loss_function(step, count, scaler, device()));
      all = std::move(step.sums);
      all.insert(all.begin(), step.loss);
      all = on_first(std::move(all));
    });
    return {all[0], {all.begin() + 1, all.end()}};
  }
  Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs) override {
    std::vector<Tensor> results, all;
    with_error_context(place(), [&] {
      results = pipeline_->evaluate(tensors_in(batch.inputs));
      if (is_last()) all = evaluated(results, batch);
      all = on_first(std::move(all));
    });
    if (outputs) *outputs = std::move(results);
    return {all[0], all[1].item(), LossKind::sum, {all.begin() + 2, all.end()}};
  }
  LayerReport report() const override {
    LayerReport report{{"pipeline"}};
    const int here = group().rank();
    if (!is_last())
      add_transfer(report, here, here + 1, pipeline_->bytes_to_next(), "activations", "forward");
    if (here > 0)
      add_transfer(report, here, here - 1, pipeline_->bytes_to_previous(), "gradients", "backward");
    return report;
  }

 private:
  ProcessGroup& group() const { return *context().axis->group(); }
  bool is_last() const { return group().rank() + 1 == group().size(); }
  // For errors: a rank of the group, which they name, is a stage.
  std::string place() const {
    return concat(
        {"stage ", group().rank(), " of ", group().size(), " along the axis ", context().axis->name()});
  }

  // Leaves the other layers the modules of the stage that are not inside another one of them, and the units
  // inside these.
  static void keep_modules_of(const Stage& stage, LocalModules& local) {
    local.roots.clear();
    for (nn::Module& module : stage.modules()) {
      const bool is_inside =
          std::any_of(stage.modules().begin(), stage.modules().end(),
                      [&](nn::Module& other) { return &other != &module && contains(other, module); });
      if (!is_inside && std::count(local.roots.begin(), local.roots.end(), &module) == 0)
        local.roots.push_back(&module);
    }
    std::erase_if(local.units, [&](const nn::Module* unit) {
      return std::none_of(local.roots.begin(), local.roots.end(),
                          [&](const nn::Module* root) { return root != unit && contains(*root, *unit); });
    });
  }
  static bool contains(const nn::Module& module, const nn::Module& inside) {
    const auto all = module.modules();
    return std::any_of(all.begin(), all.end(), [&](const nn::Module* m) { return m == &inside; });
  }

  // The sum of the losses of a batch, their count, and Loss::sums.
  std::vector<Tensor> evaluated(const std::vector<Tensor>& results, const Batch& batch) {
    try {
      Loss own = loss_of(results, tensors_on(batch.targets, device()));
      std::vector<Tensor> all = std::move(own.sums);
      all.insert(all.begin(), {own.kind == LossKind::sum ? own.value : own.value * own.count,
                               full({}, own.count, {DType::f64, kCPU})});
      return all;
    } catch (const std::exception& e) {
      group().abort(e.what());  // wakes the other ranks, which wait for the numbers
      throw;
    }
  }

  // Sends the numbers that the last rank has computed to the first rank, which logs. All other ranks return
  // zeros, because Strategy::sum() adds the numbers of all ranks.
  std::vector<Tensor> on_first(std::vector<Tensor> numbers) {
    const NoGradGuard no_grad;
    const int last = group().size() - 1;
    const MessageId id{MessageId::Kind::gradients, 0, ++messages_};
    if (is_last()) {
      try {
        numbers = tensors_on(numbers, kCPU);
        for (int rank = 0; rank < last; ++rank) {
          MessageSender sender(group(), rank, kLossTag);
          sender.send(id, {numbers}, 0);
          sender.finish();
        }
      } catch (const std::exception& e) {
        group().abort(e.what());  // wakes the other ranks, which wait for the numbers
        throw;
      }
    } else {
      numbers = MessageReceiver(group(), last, kLossTag, kCPU, {id}).take().tensors;
    }
    if (group().rank() > 0)
      for (Tensor& t : numbers) t = zeros_like(t);
    return numbers;
  }

  std::optional<RankPipeline> pipeline_;
  std::uint64_t messages_ = 0;
};

const RowRegistration pipeline_over_ranks{
    {.axis = "pipeline",
     .order = 10,
     .options = "schedule=gpipe|1f1b|zero-bubble",
     .computes = Computes::own_stage,
     .splits_model = true,
     .about = "Pipeline: one process per device, which keeps one stage of the model; micro-batches",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.schedule = axis.option("schedule", schedule_name(Schedule::one_f_one_b));
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<PipelineOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
