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
    std::vector<nn::Parameter> parts_of_axes, others;
    for (const nn::Parameter& p : model.parameters())
      (context().is_part(p) ? parts_of_axes : others).push_back(p);
    const bool trains = is_trained(parts_of_axes) || is_trained(others) || !context().other("pipeline");
    add_copies(*context().axis, others, parts_of_axes, trains && !is_trained(parts_of_axes));
    if (const auto& copies = context().copies_of_parts)
      add_copies(*copies, parts_of_axes, others, /*must_train=*/false);
    if (!copies_[0].ddp) sync_buffers();
  }
  // Buffers are broadcast once a step, as PyTorch does under no_sync(): forward of a part depends on the
  // running statistics of no earlier part.
  void before_forward(const Part& part) override {
    if (part.index > 0) return;
    if (!copies_[0].ddp && model().is_training()) sync_buffers();  // no wrapper does it
    for (Copies& c : copies_)
      if (c.ddp) {
        c.ddp->before_forward();
        c.passes = c.ddp->passes();
      }
  }
  std::shared_ptr<void> before_backward(const Part& part) override {
    if (part.last) return nullptr;
    auto scopes = std::make_shared<std::vector<NoSync>>();
    for (Copies& c : copies_)
      if (c.ddp) scopes->push_back(c.ddp->no_sync());
    return scopes;
  }
  // The last backward of a stage may reach no parameter, although earlier ones did.
  void after_backward(const Part& part) override {
    for (Copies& c : copies_)
      if (part.last && c.ddp && c.ddp->passes() == c.passes) c.ddp->pass_without_gradients();
  }
  void before_evaluation() override { sync_buffers(); }
  LayerReport report() const override { return reports()[0]; }
  std::vector<LayerReport> reports() const override {
    const bool scatters = context().spec.option("zero", "0") == "2";
    std::vector<LayerReport> all;
    for (const Copies& c : copies_) {
      LayerReport& own = all.emplace_back(LayerReport{{c.axis.name()}});
      if (!c.ddp) continue;
      const DdpReport report = c.ddp->report();
      std::int64_t bytes = 0;
      for (const BucketReport& b : report.buckets) bytes += static_cast<std::int64_t>(b.bytes);
      own.exposed_s = report.exposed_s;
      const int n = c.axis.size();
      add_to_ring(own, c.axis, scatters ? gather_bytes(bytes, n) : all_reduce_bytes(bytes, n), "gradients",
                  "backward");
    }
    return all;
  }

 private:
  struct Wrapper : DdpBase {
    Wrapper(nn::Module& model, const DdpOptions& options) : DdpBase(model, options) {}
    using DdpBase::before_forward, DdpBase::passes, DdpBase::pass_without_gradients;
  };
  // The parameters whose copies are along one axis. Those that other axes divide have fewer copies.
  struct Copies {
    Axis axis;
    std::unique_ptr<Wrapper> ddp = {};  // null if nothing of them is trained, as in a frozen stage
    std::uint64_t passes = 0;           // when the step began
  };

  static bool is_trained(const std::vector<nn::Parameter>& parameters) {
    return std::any_of(parameters.begin(), parameters.end(), [](const nn::Parameter& p) {
      return p->requires_grad() && !nn::is_of_other_stage(p);
    });
  }
  void add_copies(const Axis& axis, const std::vector<nn::Parameter>& own,
                  const std::vector<nn::Parameter>& others, bool must_train) {
    Copies& c = copies_.emplace_back(Copies{axis});
    if (!must_train && !is_trained(own)) {
      // There are no gradients to add.
      NamedTensors tensors;
      for (const nn::Parameter& p : own) tensors.emplace_back("", p.tensor());
      return broadcast_values(*axis.group(), tensors, "frozen parameters");
    }
    // Divided gradients are rounded by their places in the buckets, for example in their norm. So that a job
    // that resumes continues bit for bit, the first pass must not change the places.
    const bool divides = context().spec.option("zero", "0") == "2";
    c.ddp = std::make_unique<Wrapper>(model(), DdpOptions{.process_group = axis.group(),
                                                          .broadcast_buffers = copies_.size() == 1,
                                                          .reduce = ReduceOp::sum,
                                                          .relearn_order = !divides,
                                                          .ignored_parameters = others,
                                                          .paired_with = copies_[0].ddp.get()});
    const std::string compress = context().spec.option("compress", "none");
    if (compress != "none") c.ddp->set_comm_hook(compress == "f16" ? f16_compress : bf16_compress);
  }
  void sync_buffers() const {
    NamedTensors tensors;
    for (const auto& [name, slot] : model().named_buffers()) tensors.emplace_back(name, slot.tensor());
    broadcast_values(*context().axis->group(), tensors, "buffers of rank 0");
  }
  std::vector<Copies> copies_;  // first along the axis of this row
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
