#include "tapestry/kernels/cuda/vendor/cudnn_conv.h"

#include <array>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"

namespace tapestry::kernels::cuda::cudnn {
namespace {

constexpr std::int64_t kOperation = 1;  // distinguishes the keys of convolutions from those of other files

/// The strides of a dense (N, C, H, W) array.
Sizes image_strides(const Sizes& sizes, bool channels_last) {
  if (!channels_last) return row_major(sizes);
  const std::int64_t c = sizes[1], w = sizes[3];
  return {c * sizes[2] * w, 1, w * c, c};
}

std::int64_t alignment_of(const ConvCall& call) {
  const std::array<const void*, 4> addresses{call.x, call.weight, call.bias, call.y};
  return common_alignment(addresses);
}

PlanKey key_of(const ConvCall& call, const EngineRules& rules) {
  const Conv2dShape& s = call.shape;
  return {kOperation,
          static_cast<std::int64_t>(call.direction),
          static_cast<std::int64_t>(call.dtype),
          alignment_of(call),
          call.bias ? 1 : 0,
          rules.deterministic,
          rules.tensor_cores,
          rules.most_workspace,
          s.n,
          s.c,
          s.h,
          s.w,
          s.k,
          s.r,
          s.s,
          s.p,
          s.q,
          s.stride_h,
          s.stride_w,
          s.padding_h,
          s.padding_w,
          s.dilation_h,
          s.dilation_w,
          s.groups,
          s.channels_last,
          s.relu};
}

const CachedPlan& plan_of(const BorrowedSession& session, const ConvCall& call, const EngineRules& rules) {
  return session->plan(key_of(call, rules), rules, [&] { return conv_graph(call, alignment_of(call)); });
}

}  // namespace

ConvCall call_of(const Conv2dArgs& a, DType dtype) {
  return {Direction::forward, a.shape,          dtype,        a.x.address(),
          a.weight.address(), a.bias.address(), a.y.address()};
}
ConvCall call_of(const Conv2dBackwardInputArgs& a, DType dtype) {
  ConvCall call{Direction::backward_data, a.shape, dtype,         a.dx.address(),
                a.weight.address(),       nullptr, a.dy.address()};
  call.shape.relu = false;
  return call;
}
ConvCall call_of(const Conv2dBackwardWeightArgs& a, DType dtype) {
  ConvCall call{Direction::backward_filter, a.shape, dtype,         a.x.address(),
                a.dweight.address(),        nullptr, a.dy.address()};
  call.shape.relu = false;
  return call;
}

Graph conv_graph(const ConvCall& call, std::int64_t alignment) {
  const Conv2dShape& s = call.shape;
  const DataType type = data_type(call.dtype);
  const Sizes weight_sizes{s.k, s.c / s.groups, s.r, s.s}, y_sizes{s.n, s.k, s.p, s.q},
      x_sizes{s.n, s.c, s.h, s.w};
  const Sizes y_strides = image_strides(y_sizes, s.channels_last);
  Graph graph(alignment);
  const std::int64_t x = graph.tensor(x_sizes, image_strides(x_sizes, s.channels_last), type);
  const std::int64_t weight = graph.tensor(weight_sizes, row_major(weight_sizes), type);
  const std::int64_t y = graph.tensor(y_sizes, y_strides, type);
  const auto next = [&](bool is_last) {
    return is_last ? y : graph.intermediate(y_sizes, y_strides, DataType::float_);
  };
  std::int64_t result = next(!call.bias && !s.relu);
  graph.convolve(call.direction,
                 {{s.stride_h, s.stride_w}, {s.padding_h, s.padding_w}, {s.dilation_h, s.dilation_w}}, x,
                 weight, result);
  if (call.bias) {
    const Sizes bias_sizes{1, s.k, 1, 1};
    const std::int64_t bias = graph.tensor(bias_sizes, image_strides(bias_sizes, s.channels_last), type);
    const std::int64_t sum = next(!s.relu);
    graph.pointwise(PointwiseMode::add, result, bias, sum);
    result = sum;
  }
  if (s.relu) graph.pointwise(PointwiseMode::relu_fwd, result, {}, y);
  return graph;
}

std::string why_not(const LaunchContext& context, const ConvCall& call, const EngineRules& rules) {
  if (std::string reason = why_unusable(context.device); !reason.empty()) return reason;
  const Conv2dShape& s = call.shape;
  for (const std::int64_t size : {s.n, s.c, s.h, s.w, s.k, s.r, s.s, s.p, s.q})
    if (size == 0) return "cuDNN has no empty tensors";
  const BorrowedSession session(context);
  return plan_of(session, call, rules).why_not;
}

void run(const LaunchContext& context, const ConvCall& call, const EngineRules& rules) {
  const BorrowedSession session(context);
  const CachedPlan& cached = plan_of(session, call, rules);
  check<MissingKernelError>(cached.plan.has_value(), "[conv2d] ", cached.why_not);
  // The plan says which of the arrays it writes.
  std::array<void*, 4> addresses{const_cast<void*>(call.x), const_cast<void*>(call.weight),
                                 const_cast<void*>(call.y), const_cast<void*>(call.bias)};
  session->run(*cached.plan, context.device, std::span(addresses).first(call.bias ? 4 : 3));
}

}  // namespace tapestry::kernels::cuda::cudnn
