#include "tapestry/distributed/expert/expert_parallel.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/common/internal/cut_parameter.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/expert/internal/exchange.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/layers/moe.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kExpertParallel = "expert_parallel";

using Sent = ExpertParallel::Sent;

std::vector<std::pair<std::string, nn::MixtureOfExperts*>> mixtures_of(const nn::Module& module) {
  std::vector<std::pair<std::string, nn::MixtureOfExperts*>> all;
  for (const auto& [path, m] : module.named_modules())
    if (auto* const moe = dynamic_cast<nn::MixtureOfExperts*>(m)) all.emplace_back(path, moe);
  return all;
}

// What is wrong on this rank, or an empty text.
std::string expert_problem(const nn::Module& module, const Axis& axis) {
  const auto mixtures = mixtures_of(module);
  if (mixtures.empty())
    return concat({module.type_name(),
                   " has no MixtureOfExperts, whose experts could be divided; leave out the "
                   "axis ",
                   axis.name()});
  for (const auto& [path, moe] : mixtures) {
    const std::string where = path.empty() ? "the mixture" : path;
    const std::int64_t experts = moe->options.num_experts, each = (experts + axis.size() - 1) / axis.size();
    if (axis.size() > 1 && each * (axis.size() - 1) >= experts)
      return concat({where, " has ", experts, " experts, of which the last of ", axis.size(),
                     " ranks would have none; use fewer ranks"});
    if (moe->experts.divided_forward)
      return concat({where, " is divided already; call expert_parallel() once"});
    if (!moe->experts.children().empty())
      return concat({where, " has an adapter on its experts; merge it first"});
    for (const auto& [name, slot] : moe->experts.named_parameters())
      if (slot.layout())
        for (const nn::Cut& cut : slot.layout()->cuts())
          if (cut.dim >= 0 && cut.group->size() > 1)
            return concat({where, ".experts.", name,
                           " is divided along another axis already; divide experts along one axis, and call "
                           "expert_parallel() before fully_shard()"});
  }
  for (const auto& [name, slot] : module.named_parameters()) {
    if (slot.is_computed())
      return concat({"'", name, "' is computed from other parameters; divide a model of plain ones"});
    if (slot.replicas() != 1)
      return concat({"'", name, "' has ", slot.replicas(), " replicas; divide the model before"});
    if (slot.layout() && slot.layout()->full_boxes(0) != slot.layout()->boxes(0))
      return concat({"'", name, "' is sharded already; call expert_parallel() before fully_shard()"});
    if (!slot.layout() && slot.tensor().device().is_meta())
      if (std::string why = autograd::why_not_materialized(slot.tensor()); !why.empty())
        return concat({"'", name, "' is on the meta device, and ", why});
  }
  return {};
}

std::string describe_experts(const nn::Module& module) {
  std::string text;
  for (const auto& [path, moe] : mixtures_of(module))
    text += concat({"mixture ", path, " of ", moe->options.num_experts, " experts, top ", moe->options.top_k,
                    ", ", moe->options_text(), "\n"});
  for (const auto& [name, slot] : module.named_parameters())
    text += concat({"parameter ", name, " ", slot.dtype(), " ", nn::whole_sizes(slot),
                    slot.requires_grad() ? "" : " frozen", "\n"});
  for (const auto& [name, slot] : module.named_buffers())
    text += concat({"buffer ", name, " ", slot.dtype(), " ", slot.sizes(), "\n"});
  return text;
}

// What this rank sends to others, forward and, if it is recorded, backward.
void add_sent(Sent& sent, const Axis& axis, const ExpertCounts& counts, const Tensor& x, bool recorded) {
  const auto me = static_cast<std::size_t>(axis.coordinate());
  const std::int64_t row_bytes = x.size(1) * static_cast<std::int64_t>(dtype_size(x.dtype()));
  std::int64_t rows = 0;
  for (std::size_t r = 0; r < counts.sent.size(); ++r)
    if (r != me) rows += counts.sent[r] + counts.received[r];
  sent.bytes += rows * row_bytes * (recorded ? 2 : 1);
  sent.routed_bytes += x.size(0) * row_bytes;
}

void divide_experts(nn::GroupedExperts& experts, const Axis& axis, const std::shared_ptr<Sent>& sent) {
  experts.divided_forward = [&experts, axis, sent](const Tensor& x, const Tensor& counts,
                                                   const std::function<void()>& meanwhile) {
    const ExpertCounts all = exchange_counts(axis, counts);
    const Tensor own = empty({all.experts}, {DType::i64, kCPU});
    for (std::int64_t e = 0; e < all.experts; ++e) own.data<std::int64_t>()[e] = all.of_expert(e);
    const Tensor y = exchange_rows(
        axis, x, all, [&](const Tensor& rows) { return experts.products(rows, own); }, sent->waits, meanwhile);
    add_sent(*sent, axis, all, x, autograd::needs_grad(y));
    return y;
  };
}

}  // namespace

ExpertParallel expert_parallel(nn::Module& module, const Axis& axis, const ExpertParallelOptions& options) {
  check(!axis.over_devices(), "[", kExpertParallel, "] the axis ", axis.name(),
        " is over devices of one process; use one over ranks");
  std::string wrong;
  try {
    wrong = expert_problem(module, axis);
  } catch (const std::exception& e) {  // the other ranks wait in the comparison
    wrong = e.what();
  }
  check_same_model(*axis.group(), kExpertParallel,
                   wrong.empty() ? describe_experts(module) : "error: " + wrong + "\n");
  check(wrong.empty(), "[", kExpertParallel, "] ", wrong);
  auto sent = std::make_shared<Sent>();
  const Context& context = current_context();
  const Device device =
      options.device.value_or(context.device.is_meta() ? context.real_device : context.device);
  if (axis.size() == 1) {
    nn::materialize(module, device);
    return ExpertParallel(std::move(sent));
  }

  std::vector<nn::Parameter> divided;
  for (const auto& [path, moe] : mixtures_of(module)) {
    divided.push_back(moe->experts.gate_up_proj);
    divided.push_back(moe->experts.down_proj);
  }
  const auto ranks = std::make_shared<AxisRanks>(axis, kExpertParallel);
  for (auto [name, slot] : module.named_parameters()) {
    fill_from_first(name, slot, axis, device, kExpertParallel);
    const bool divides =
        std::any_of(divided.begin(), divided.end(), [&](const nn::Parameter& p) { return p.is_same(slot); });
    cut_parameter(slot, {{ranks, divides ? 0 : nn::Cut::kCopied}});
  }
  for (const auto& [name, slot] : module.named_buffers())
    fill_from_first(name, slot, axis, device, kExpertParallel);
  for (const auto& [path, moe] : mixtures_of(module)) divide_experts(moe->experts, axis, sent);
  return ExpertParallel(std::move(sent));
}

}  // namespace tapestry::distributed
