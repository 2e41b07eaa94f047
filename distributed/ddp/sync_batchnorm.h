#pragma once
// Batch normalisation whose batch is that of all ranks: training on N ranks is then training on the N-fold
// batch.
#include <memory>
#include <string>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/layers/norm.h"

namespace tapestry::distributed {

/// batch_norm() in training, with mean and variance over the batches of all ranks; x as there, (N, C) or (N,
/// C, ...), any N on each rank, also 0. One all_gather in forward and one all_reduce in backward, of 2 C + 1
/// and 2 C numbers. Statistics of ranks are joined in f64 by their means and squared deviations (Chan, Golub
/// and LeVeque 1979), so a large mean costs no digits. Gradients of weight and bias are this rank's sums, as
/// in PyTorch: DDP averages them with all others. Throws ValueError, on every rank, if there is only one
/// value a channel in all; ValueError and TypeError for shapes and dtypes as batch_norm() does.
Tensor sync_batch_norm(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                       const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                       const Tensor& bias, double momentum = 0.1, double eps = 1e-5,
                       const std::string& name = "SyncBatchNorm");

/// Makes every BatchNorm1d and BatchNorm2d of the model, itself included, a SyncBatchNorm: the modules stay
/// and so do their parameters, so it does not matter whether an optimizer or DDP has them already.
/// Evaluation, and a group of one rank, work as before. Returns how many there are. ValueError for no group.
int convert_sync_batchnorm(nn::Module& model, const std::shared_ptr<ProcessGroup>& group);

/// A layer that is one from the beginning: add<SyncBatchNorm2d>("bn", nn::BatchNorm2d::Options{.num_features
/// = 8}, group).
template <int kDims>
class SyncBatchNorm : public nn::BatchNorm<kDims> {
 public:
  SyncBatchNorm(const typename nn::BatchNorm<kDims>::Options& options,
                const std::shared_ptr<ProcessGroup>& group)
      : nn::BatchNorm<kDims>(options) {
    convert_sync_batchnorm(*this, group);
  }
};
using SyncBatchNorm1d = SyncBatchNorm<1>;
using SyncBatchNorm2d = SyncBatchNorm<2>;

}  // namespace tapestry::distributed
