#include "tapestry/distributed/planner/internal/divided_axes.h"

#include <map>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/fake_group.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/context/context_parallel.h"
#include "tapestry/distributed/expert/expert_parallel.h"
#include "tapestry/distributed/tensor/tensor_parallel.h"
#include "tapestry/nn/layers/moe.h"

namespace tapestry::distributed::planner {

namespace {

class TensorAxis final : public DividedAxis {
 public:
  TensorAxis(nn::Module& whole, const Model& model, const Axis& axis, const AxisSpec& spec, Device device)
      : DividedAxis(axis),
        divided_(tensor_parallel(whole, axis,
                                 model.tensor_plan.rules.empty()
                                     ? distributed::tensor_plan(whole, axis.size())
                                     : model.tensor_plan,
                                 {.sequence = spec.option("sequence", "0") == "1", .device = device})) {}
  void begin() override { before_ = divided_.sent(); }
  SentByLayers sent(const nn::Module*, bool) override {
    using Kind = ConversionTraffic::Kind;
    const ConversionTraffic::Counts since = divided_.sent() - before_;
    // A collective sends its bytes in (size - 1) messages around a ring. An all-reduce goes around twice.
    const auto of = [&](Kind kind, double rounds) -> SentMessages {
      const ConversionTraffic::Sent& own = since.of(kind);
      return {static_cast<double>(own.calls) * rounds * (size - 1), static_cast<double>(own.bytes)};
    };
    const SentMessages gathered = of(Kind::all_gather, 1), exchanged = of(Kind::all_to_all, 1);
    return {of(Kind::all_reduce, 2),
            {gathered.count + exchanged.count, gathered.bytes + exchanged.bytes},
            of(Kind::reduce_scatter, 1),
            {}};
  }

 private:
  TensorParallel divided_;
  ConversionTraffic::Counts before_;
};

// attention.h says what each form of attention sends.
class ContextAxis final : public DividedAxis {
 public:
  ContextAxis(nn::Module& whole, const Model& model, const Axis& axis, const AxisSpec& spec, int head_ranks)
      : DividedAxis(axis),
        dim_(model.sequence_dim),
        divided_(context_parallel(whole, axis,
                                  {.attention = context_attention_of(spec.option("attention", "auto")),
                                   .head_ranks = head_ranks})) {
    check(dim_.has_value(),
          "[planner] the axis context divides sequences, but the model does not say which dimension of the "
          "batch they are; set sequence_dim");
  }
  Tensor own_part(const Tensor& whole) const override { return divided_.own_part(whole, *dim_); }
  void begin() override { before_ = {divided_.forward_bytes_sent(), divided_.bytes_sent()}; }
  // When forward runs, bytes_sent() counts those of backward too. They are kept until backward is asked for.
  SentByLayers sent(const nn::Module* block, bool backward) override {
    if (!block) return {};
    if (!backward) {
      const auto forward = static_cast<double>(divided_.forward_bytes_sent() - before_.first),
                 all = static_cast<double>(divided_.bytes_sent() - before_.second);
      of_backward_[block] = all - forward;
      return collectives(attentions_of(*block), forward, false);
    }
    return collectives(attentions_of(*block), of_backward_[block], true);
  }

 private:
  static double attentions_of(const nn::Module& block) {
    double count = 0;
    for (const auto& [path, m] : block.named_modules())
      if (const auto* const layer = dynamic_cast<const nn::SequenceModule*>(m))
        count += layer->heads().queries > 0 ? 1 : 0;
    return count;
  }
  SentByLayers collectives(double attentions, double bytes, bool backward) const {
    const double n = size;
    if (bytes == 0) return {};
    if (divided_.attention() == ContextAttention::all_to_all)
      return {{}, {4 * (n - 1) * attentions, bytes}, {}, {}};
    if (divided_.attention() == ContextAttention::gathered) {
      const SentMessages pair{2 * (n - 1) * attentions, bytes};
      return backward ? SentByLayers{{}, {}, pair, {}} : SentByLayers{{}, pair, {}, {}};
    }
    if (!backward) return {{}, {}, {}, {(n - 1) * attentions, bytes}};
    // A ring passes n - 1 messages of keys and values, and n of their gradients. Nothing hides the last one.
    const double last = bytes / (2 * n - 1);
    return {{}, {attentions, last}, {}, {(2 * n - 2) * attentions, bytes - last}};
  }

  const std::optional<int> dim_;
  const ContextParallel divided_;
  std::pair<std::int64_t, std::int64_t> before_;
  std::map<const nn::Module*, double> of_backward_;
};

// The bytes are those of a router that uses all experts equally: a rank sends (n - 1) / n of its rows to
// others, and as many results back.
class ExpertAxis final : public DividedAxis {
 public:
  ExpertAxis(nn::Module& whole, const Axis& axis, Device device)
      : DividedAxis(axis), axis_(axis), divided_(expert_parallel(whole, axis, {.device = device})) {}
  const char* what() const override { return "tokens"; }
  bool is_part(const nn::Parameter& p) const override { return is_divided_along(p, axis_); }
  void begin() override { before_ = divided_.routed_bytes(); }
  SentByLayers sent(const nn::Module* block, bool backward) override {
    if (!block) return {};
    double& routed = of_block_[block];
    if (!backward) routed = static_cast<double>(divided_.routed_bytes() - before_);
    double mixtures = 0;
    for (const auto& [path, m] : block->named_modules())
      mixtures += dynamic_cast<const nn::MixtureOfExperts*>(m) ? 1 : 0;
    const double n = size, exchanges = backward ? 2 : 3;  // forward exchanges the counts too
    if (mixtures == 0) return {};
    return {{}, {exchanges * (n - 1) * mixtures, 2 * routed * (n - 1) / n}, {}, {}};
  }

 private:
  const Axis axis_;
  const ExpertParallel divided_;
  std::int64_t before_ = 0;
  std::map<const nn::Module*, double> of_block_;
};

}  // namespace

std::vector<std::unique_ptr<DividedAxis>> divide_layers(nn::Module& whole, const Model& model,
                                                        const std::string& layers, Device device) {
  const StrategyPlan plan = plan_strategy(layers, true);
  int rank = 0;
  std::vector<AxisSize> sizes;
  for (const AxisSpec& spec : plan.axes) {
    check(spec.size >= 2, "[measure_profile] MeasureOptions::layers has ", layers, "; 2 devices or more of ",
          spec.name, " divide a layer");
    rank = rank * spec.size + (spec.name == "context" ? spec.size - 1 : 0);
    sizes.push_back({spec.name, spec.size});
  }
  check(!sizes.empty(), "[measure_profile] MeasureOptions::layers has \"", layers, "\"; name an axis");
  Mesh mesh(fake_process_group(rank, plan.size), sizes, {.host = "planner"});
  std::vector<std::unique_ptr<DividedAxis>> axes;
  int head_ranks = 1;
  // In the order in which their rows wrap a model.
  for (std::size_t i = plan.axes.size(); i-- > 0;) {
    const AxisSpec& spec = plan.axes[i];
    const Axis axis = mesh[spec.name];
    if (spec.name == "tensor") {
      axes.push_back(std::make_unique<TensorAxis>(whole, model, axis, spec, device));
      head_ranks = spec.size;
    } else if (spec.name == "context") {
      axes.push_back(std::make_unique<ContextAxis>(whole, model, axis, spec, head_ranks));
    } else if (spec.name == "expert") {
      axes.push_back(std::make_unique<ExpertAxis>(whole, axis, device));
    } else {
      fail("[measure_profile] MeasureOptions::layers has ", layers, ", and the axis ", spec.name,
           " divides no layers; choose tensor, context or expert");
    }
  }
  const std::string known = layers_of(plan, plan.size);
  check(layers == known, "[measure_profile] MeasureOptions::layers has \"", layers,
        "\", and predictions look for \"", known, "\"; write it so");
  return axes;
}

}  // namespace tapestry::distributed::planner
