#pragma once
// Convolutions by cuDNN, for the slots of kernels/ops/conv.h. Each of the three is one operation graph; the
// bias and relu of the forward convolution are part of it. The arrays are described by their strides as the
// slots have them: cuDNN's engines for tensor cores want a channels-last weight, and transpose a row-major
// one in their workspace.
#include <span>
#include <string>

#include "tapestry/kernels/cuda/vendor/cudnn_graph.h"
#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels::cuda::cudnn {

/// One convolution or gradient. The arrays are those of the direction forward: in a gradient `y` is dy, and
/// the result is `x` or `weight`. Only the direction forward has a bias, which may be null, and relu.
struct ConvCall {
  Direction direction;
  Conv2dShape shape;
  DType dtype;
  const void *x, *weight, *bias, *y;
};
ConvCall call_of(const Conv2dArgs& args, DType dtype);
ConvCall call_of(const Conv2dBackwardInputArgs& args, DType dtype);
/// Leaves dbias out. `args.dweight` is not null.
ConvCall call_of(const Conv2dBackwardWeightArgs& args, DType dtype);

/// Empty if cuDNN computes this on the context's device, under these rules. Otherwise the reason. Makes the
/// plan that run() needs. Throws CudnnError if cuDNN fails for another reason than that it cannot do this.
std::string why_not(const LaunchContext& context, const ConvCall& call, const EngineRules& rules);
/// Enqueues the work on the context's stream. why_not() was empty for the same arguments.
void run(const LaunchContext& context, const ConvCall& call, const EngineRules& rules);

/// The operation graph of a convolution whose arrays are aligned to `alignment` bytes. Tensors in the order
/// of their addresses: x, weight, y, and the bias if there is one.
Graph conv_graph(const ConvCall& call, std::int64_t alignment);

}  // namespace tapestry::kernels::cuda::cudnn
