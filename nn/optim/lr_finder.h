#pragma once
// The learning-rate range test.
#include <functional>
#include <vector>

#include "tapestry/nn/module.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

struct LRFinderOptions {
  double start_lr = 1e-7, end_lr = 10;
  std::int64_t num_iter = 100;
  double smoothing = 0.05;       ///< the weight of a new loss in the moving average
  double diverge_threshold = 5;  ///< the test ends when the average exceeds its minimum times this
};

struct LRFinderResult {
  std::vector<double> lrs, losses;  ///< the rate of each step, and the smoothed loss before it
  /// The rate at which the loss fell fastest over the logarithm of the rate. It is a good start for a
  /// constant rate, and the largest rate of a schedule may be some times larger.
  double suggestion = 0;
};

/// Trains with rates that grow exponentially from start_lr to end_lr, and records the loss (Smith, "Cyclical
/// learning rates for training neural networks", 2017, section 3.3). `loss_fn` returns the loss of the model
/// on the next batch; the function calls backward and the optimizer. The average is corrected for its start,
/// as in Adam. At the end, and after an exception, the model, its buffers and the optimizer are as before,
/// and there are no gradients. Throws ValueError for options out of range, or if the loss is not finite
/// within the first three steps.
LRFinderResult find_lr(nn::Module& model, Optimizer& optimizer, const std::function<Tensor()>& loss_fn,
                       const LRFinderOptions& options = {});

}  // namespace tapestry::optim
