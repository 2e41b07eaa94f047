// The row `replicate` over ranks: DistributedDataParallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/distributed/ddp/ddp.h"

namespace tapestry::distributed {
namespace {

class ReplicateOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

  void wrap(nn::Module& model, const ModelParts& parts) override {
    StrategyLayer::wrap(model, parts);
    ddp_.emplace(model, DdpOptions{.process_group = context().axis->group(), .reduce = ReduceOp::sum});
    const std::string compress = context().spec.option("compress", "none");
    if (compress != "none") ddp_->set_comm_hook(compress == "f16" ? f16_compress : bf16_compress);
  }
  StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler) override {
    std::optional<NoSync> quiet;
    if (!part.last) quiet.emplace(ddp_->no_sync());
    ddp_->before_forward();
    return StrategyLayer::gradients(part, batch, count, scaler);
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
