// The row `context` over ranks: context_parallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/context/context_parallel.h"

namespace tapestry::distributed {
namespace {

class ContextOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    check(parts.sequence_dim.has_value(),
          "[strategy] the axis context divides sequences, but ModelParts does not say which dimension of the "
          "inputs and targets they are; set sequence_dim");
    const Axis* const tensor = context().other("tensor");
    divided_.emplace(
        context_parallel(model, *context().axis,
                         {.attention = context_attention_of(context().spec.option("attention", "auto")),
                          .head_ranks = tensor ? tensor->size() : 1,
                          .documents = parts.has_documents}));
  }
  Batch own_part(Batch batch) const override {
    for (std::vector<Tensor>* const tensors : {&batch.inputs, &batch.targets})
      for (Tensor& t : *tensors) t = divided_->own_part(t, *parts().sequence_dim);
    return batch;
  }
  void before_forward(const Part& part) override {
    if (part.index == 0) divided_->reset_report();
  }
  LayerReport report() const override {
    LayerReport report{{"context"}};
    report.choice = concat({"attention=", name_of(divided_->attention())});
    report.exposed_s = divided_->exposed_s();
    const std::int64_t forward = divided_->forward_bytes_sent();
    add_to_ring(report, *context().axis, forward, "activations", "forward");
    add_to_ring(report, *context().axis, divided_->bytes_sent() - forward, "activations", "backward");
    return report;
  }

 private:
  std::optional<ContextParallel> divided_;
};

// After tensor_parallel, which divides the heads, and before other ranks divide parameters or add gradients.
const RowRegistration context_over_ranks{
    {.axis = "context",
     .order = 40,
     .options = "attention=auto|gathered|ring|all-to-all",
     .computes = Computes::own_positions,
     .copies = true,
     .about = "context_parallel: one process per device, the sequences divided; attention communicates",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.layers = true;
           const std::string attention = axis.option("attention", "auto");
           if (attention != "auto") step.options = "attention=" + attention;
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ContextOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
