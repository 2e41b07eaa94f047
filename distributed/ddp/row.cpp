// The row `replicate` over ranks: DistributedDataParallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/distributed/ddp/ddp.h"

namespace tapestry::distributed {
namespace {

class ReplicateOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    // Divided gradients are rounded by their places in the buckets, for example in their norm. So that a job
    // that resumes continues bit for bit, the first pass must not change the places.
    const bool divides = context().spec.option("zero", "0") == "2";
    ddp_.emplace(model, DdpOptions{.process_group = context().axis->group(),
                                   .reduce = ReduceOp::sum,
                                   .relearn_order = !divides});
    const std::string compress = context().spec.option("compress", "none");
    if (compress != "none") ddp_->set_comm_hook(compress == "f16" ? f16_compress : bf16_compress);
  }
  void before_forward(const Part&) override { ddp_->before_forward(); }
  std::shared_ptr<void> before_backward(const Part& part) override {
    return part.last ? nullptr : std::make_shared<NoSync>(ddp_->no_sync());
  }
  void before_evaluation() override { ddp_->sync_buffers(); }
  LayerReport report() const override {
    const DdpReport report = ddp_->report();
    std::int64_t bytes = 0;
    for (const BucketReport& b : report.buckets) bytes += static_cast<std::int64_t>(b.bytes);
    const bool scatters = context().spec.option("zero", "0") == "2";
    const int n = context().axis->size();
    LayerReport own{{"replicate"}};
    own.exposed_s = report.exposed_s;
    add_to_ring(own, *context().axis, scatters ? gather_bytes(bytes, n) : all_reduce_bytes(bytes, n),
                "gradients");
    return own;
  }

 private:
  struct Wrapper : DdpBase {
    Wrapper(nn::Module& model, const DdpOptions& options) : DdpBase(model, options) {}
    using DdpBase::before_forward;
  };
  std::optional<Wrapper> ddp_;
};

const RowRegistration replicate_over_ranks{
    {.axis = "replicate",
     .order = 70,
     .options = "compress=none|f16|bf16",
     .about = "DistributedDataParallel: one process per device, gradients added during backward",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.sum = StepDivision::Sum::buckets;
           return axis.option("compress", "none") == "none";
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ReplicateOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
