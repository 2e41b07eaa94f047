#pragma once
// Batch normalization with statistics over the batches of all ranks. Training on N ranks then equals training
// on one rank with the N-fold batch.
#include <memory>
#include <string>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/layers/norm.h"

namespace tapestry::distributed {

/// batch_norm() in training mode, with mean and variance over the batches of all ranks. x is (N, C) or (N, C,
/// ...); N may differ between ranks and may be 0. Forward calls all_gather with 2 C + 1 numbers, and backward
/// calls all_reduce with 2 C numbers.
///
/// The statistics of ranks are combined in f64 from their means and squared deviations (Chan, Golub and
/// LeVeque 1979), so a large mean costs no precision. Gradients of weight and bias are the sums of this rank,
/// as in PyTorch; DDP averages them like all others. Throws ValueError on every rank if all ranks together
/// have fewer than two values per channel. Throws ValueError and TypeError for shapes and dtypes as
/// batch_norm() does.
Tensor sync_batch_norm(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                       const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                       const Tensor& bias, double momentum = 0.1, double eps = 1e-5,
                       const std::string& name = "SyncBatchNorm");

/// Turns every BatchNorm1d and BatchNorm2d in the model, including the model itself, into a SyncBatchNorm and
/// returns their number. The modules and their parameters stay the same objects, so an optimizer or DDP may
/// have them already. Evaluation and groups of one rank work as before. Throws ValueError if `group` is null.
int convert_sync_batchnorm(nn::Module& model, const std::shared_ptr<ProcessGroup>& group);

/// A BatchNorm layer that is constructed as a SyncBatchNorm:
///   add<SyncBatchNorm2d>("bn", nn::BatchNorm2d::Options{.num_features = 8}, group)
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
using SyncBatchNorm3d = SyncBatchNorm<3>;

}  // namespace tapestry::distributed
