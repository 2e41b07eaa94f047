#pragma once
// The connectionist temporal classification loss.
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

struct CtcParams {
  std::int64_t blank = 0;  ///< the class that stands for no label
  /// `mean` divides each loss by its number of labels, at least 1, and then averages over the batch.
  Reduction reduction = Reduction::mean;
  bool zero_infinity = false;  ///< replaces infinite losses and their gradients by 0
};

/// Computes the CTC loss (Graves et al., "Connectionist temporal classification", 2006): -log of the
/// probability that a path through the classes gives the labels after repeated classes are merged and blanks
/// removed. A loss is infinite if the labels do not fit into the steps.
///
/// Shapes: log_probs is (T, N, C) or (T, C), of dtype f32 or f64, usually a result of log_softmax(2). The
/// integer targets are (N, S) or, one after another, (sum of the target lengths). The integer lengths are
/// (N), or () with (T, C). The result is 0-d, or (N) with Reduction::none. Throws ValueError if a length does
/// not fit, and IndexError if a label is outside [0, C).
///
/// As in PyTorch, the gradient is that of the loss after a log_softmax: exp(log_probs) minus the probability
/// of the class at that step, given the labels. CUDA tensors are f32. Labels and lengths are checked on the
/// host, so pass CPU tensors: with CUDA tensors the host waits for them.
Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcParams& params = {});

}  // namespace tapestry
