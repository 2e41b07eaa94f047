#pragma once
// What the rows over devices of one process share.
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/distributed/strategy/internal/row.h"

namespace tapestry::distributed {

class DevicesLayer : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

 protected:
  /// StrategyLayer::gradients() for a DataParallel or ShardedDataParallel: each device computes the loss of
  /// its samples.
  template <class Parallel>
  StepLoss gradients_of(Parallel& parallel, const Batch& batch, double count, optim::GradScaler* scaler) {
    auto [loss, sums] = parallel.loss(
        std::tie(batch.inputs, batch.targets),
        [&](const std::vector<Tensor>& inputs, const std::vector<Tensor>& targets) {
          Loss own = compute({inputs, targets});
          return std::pair(part_of_mean(own, count), std::move(own.sums));
        },
        LossKind::sum);
    (scaler ? scaler->scale(loss) : loss).backward();
    for (Tensor& t : sums) t = t.sum();
    return {loss.detach(), std::move(sums)};
  }
};

}  // namespace tapestry::distributed
