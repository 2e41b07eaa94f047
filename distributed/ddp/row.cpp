// The row `replicate` over ranks: DistributedDataParallel. It adds the gradients along all axes that copy
// parameters.
#include <algorithm>

#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/ddp/ddp.h"
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {
namespace {

class ReplicateOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    const auto& group = context().axis->group();
    const std::vector<nn::Parameter> all = model.parameters();
    if (std::none_of(
            all.begin(), all.end(),
            [](const nn::Parameter& p) { return p->requires_grad() && !nn::is_of_other_stage(p); }) &&
        context().other("pipeline")) {
      // A frozen stage of a pipeline has no gradients to add.
      broadcast_values(*group, parameters_of(model), "parameters of a frozen stage");
      return sync_buffers();
    }
    // Divided gradients are rounded by their places in the buckets, for example in their norm. So that a job
    // that resumes continues bit for bit, the first pass must not change the places.
    const bool divides = context().spec.option("zero", "0") == "2";
    ddp_.emplace(model,
                 DdpOptions{.process_group = group, .reduce = ReduceOp::sum, .relearn_order = !divides});
    const std::string compress = context().spec.option("compress", "none");
    if (compress != "none") ddp_->set_comm_hook(compress == "f16" ? f16_compress : bf16_compress);
  }
  // Buffers are broadcast once a step, as PyTorch does under no_sync(): forward of a part depends on the
  // running statistics of no earlier part.
  void before_forward(const Part& part) override {
    if (!ddp_ || part.index > 0) return;
    ddp_->before_forward();
    passes_ = ddp_->passes();
  }
  std::shared_ptr<void> before_backward(const Part& part) override {
    return part.last || !ddp_ ? nullptr : std::make_shared<NoSync>(ddp_->no_sync());
  }
  // The last backward of a stage may reach no parameter, although earlier ones did.
  void after_backward(const Part& part) override {
    if (part.last && ddp_ && ddp_->passes() == passes_) ddp_->pass_without_gradients();
  }
  void before_evaluation() override { sync_buffers(); }
  LayerReport report() const override {
    if (!ddp_) return {{context().axis->name()}};
    const DdpReport report = ddp_->report();
    std::int64_t bytes = 0;
    for (const BucketReport& b : report.buckets) bytes += static_cast<std::int64_t>(b.bytes);
    const bool scatters = context().spec.option("zero", "0") == "2";
    const int n = context().axis->size();
    LayerReport own{{context().axis->name()}};
    own.exposed_s = report.exposed_s;
    add_to_ring(own, *context().axis, scatters ? gather_bytes(bytes, n) : all_reduce_bytes(bytes, n),
                "gradients");
    return own;
  }

 private:
  struct Wrapper : DdpBase {
    Wrapper(nn::Module& model, const DdpOptions& options) : DdpBase(model, options) {}
    using DdpBase::before_forward, DdpBase::passes, DdpBase::pass_without_gradients;
  };
  static NamedTensors parameters_of(const nn::Module& model) {
    NamedTensors tensors;
    for (const auto& [name, slot] : model.named_parameters()) tensors.emplace_back(name, slot.tensor());
    return tensors;
  }
  void sync_buffers() const {
    NamedTensors tensors;
    for (const auto& [name, slot] : model().named_buffers()) tensors.emplace_back(name, slot.tensor());
    broadcast_values(*context().axis->group(), tensors, "buffers of rank 0");
  }
  std::optional<Wrapper> ddp_;  // empty in a frozen stage of a pipeline
  std::uint64_t passes_ = 0;    // when the step began
};

const RowRegistration replicate_over_ranks{
    {.axis = "replicate",
     .order = 70,
     .options = "compress=none|f16|bf16",
     .copies = true,
     .excludes = "shard",
     .excluding = "compress",
     .instead = "fully_shard adds the gradients of the copies; leave compress out",
     .about = "DistributedDataParallel: one process per device, gradients added during backward",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.sum = StepDivision::Sum::buckets;
           return axis.option("compress", "none") == "none";
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       // fully_shard adds the gradients of the copies of a sharded model, and reports what they send.
       if (context.other("shard")) return std::make_unique<StrategyLayer>(context);
       return std::make_unique<ReplicateOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
