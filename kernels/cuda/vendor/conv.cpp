#include "tapestry/kernels/cuda/vendor/conv.h"

#include <string>

#include "tapestry/core/tensor.h"
#include "tapestry/kernels/cuda/vendor/cudnn_conv.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tapestry/kernels/policy.h"

namespace tapestry::kernels::cuda {
namespace {

const ChoicePoint conv_choice{"conv2d"};

cudnn::EngineRules rules_for(DType dtype) {
  return {.deterministic = are_deterministic_algorithms_enabled(),
          .tensor_cores = dtype != DType::f32 || allow_tf32_convolution()};
}

std::string key_of(const cudnn::ConvCall& call, bool with_dbias) {
  constexpr const char* kNames[] = {"forward", "backward input", "backward weight"};
  const Conv2dShape& s = call.shape;
  std::string key = concat({kNames[static_cast<int>(call.direction)],
                            " ",
                            dtype_name(call.dtype),
                            " n=",
                            s.n,
                            " c=",
                            s.c,
                            " h=",
                            s.h,
                            " w=",
                            s.w,
                            " k=",
                            s.k,
                            " r=",
                            s.r,
                            " s=",
                            s.s,
                            " stride=",
                            s.stride_h,
                            "x",
                            s.stride_w,
                            " padding=",
                            s.padding_h,
                            "x",
                            s.padding_w,
                            " dilation=",
                            s.dilation_h,
                            "x",
                            s.dilation_w,
                            " groups=",
                            s.groups});
  if (s.channels_last) key += " channels_last";
  if (call.bias || with_dbias) key += " bias";
  if (s.relu) key += " relu";
  if (call.dtype == DType::f32 && allow_tf32_convolution()) key += " tf32";
  return key;
}

std::int64_t count_x(const Conv2dShape& s) { return s.n * s.c * s.h * s.w; }
std::int64_t count_y(const Conv2dShape& s) { return s.n * s.k * s.p * s.q; }
std::int64_t count_weight(const Conv2dShape& s) { return s.k * (s.c / s.groups) * s.r * s.s; }

// Each of these structs says in what one of the three slots differs from the others: what cuDNN computes, and
// the arguments with scratch memory for outputs.
struct ConvForward {
  using Args = Conv2dArgs;
  static bool with_dbias(const Args&) { return false; }
  static void run(const LaunchContext& context, DType dtype, const Args& a, const cudnn::EngineRules& rules,
                  OwnConv<Args>) {
    cudnn::run(context, cudnn::call_of(a, dtype), rules);
  }
  struct Scratch {
    Tensor y;
    Scratch(const Args& a, const TensorOptions& options) : y(empty({count_y(a.shape)}, options)) {}
    Args in(Args a) const {
      a.y = y;
      return a;
    }
  };
};

struct BackwardInput {
  using Args = Conv2dBackwardInputArgs;
  static bool with_dbias(const Args&) { return false; }
  static void run(const LaunchContext& context, DType dtype, const Args& a, const cudnn::EngineRules& rules,
                  OwnConv<Args>) {
    cudnn::run(context, cudnn::call_of(a, dtype), rules);
  }
  struct Scratch {
    Tensor dx;
    Scratch(const Args& a, const TensorOptions& options) : dx(empty({count_x(a.shape)}, options)) {}
    Args in(Args a) const {
      a.dx = dx;
      return a;
    }
  };
};

struct BackwardWeight {
  using Args = Conv2dBackwardWeightArgs;
  static bool with_dbias(const Args& a) { return static_cast<bool>(a.dbias); }
  static void run(const LaunchContext& context, DType dtype, const Args& a, const cudnn::EngineRules& rules,
                  OwnConv<Args> own) {
    cudnn::run(context, cudnn::call_of(a, dtype), rules);
    if (!a.dbias) return;
    Args only_bias = a;
    only_bias.dweight = nullptr;
    own(context, only_bias);
  }
  struct Scratch {
    Tensor dweight, dbias;
    Scratch(const Args& a, const TensorOptions& options) : dweight(empty({count_weight(a.shape)}, options)) {
      if (a.dbias) dbias = empty({a.shape.k}, options);
    }
    Args in(Args a) const {
      a.dweight = dweight;
      a.dbias = dbias;
      return a;
    }
  };
};

template <class Slot>
void choose_for(const LaunchContext& context, DType dtype, const typename Slot::Args& args,
                OwnConv<typename Slot::Args> own) {
  if (policy_of(conv_choice) == KernelPolicy::custom) return own(context, args);
  const cudnn::ConvCall call = cudnn::call_of(args, dtype);
  const cudnn::EngineRules rules = rules_for(dtype);
  const std::string why_not = cudnn::why_not(context, call, rules);
  const std::string version = why_not.empty() ? cudnn::version() : "";
  const Candidate candidates[] = {{.name = "tapestry"},
                                  {.name = "cuDNN", .version = version, .vendor = true, .why_not = why_not}};
  const auto run = [&](std::size_t i, const typename Slot::Args& a) {
    if (i == 0) own(context, a);
    else Slot::run(context, dtype, a, rules, own);
  };
  const std::size_t chosen = choose(
      conv_choice, context, candidates, [&] { return key_of(call, Slot::with_dbias(args)); },
      [&](std::size_t i) {
        const typename Slot::Scratch scratch(args, {dtype, context.device});
        run(i, scratch.in(args));
      });
  run(chosen, args);
}

}  // namespace

void choose_conv(const LaunchContext& context, DType dtype, const Conv2dArgs& a, OwnConv<Conv2dArgs> own) {
  choose_for<ConvForward>(context, dtype, a, own);
}
void choose_conv(const LaunchContext& context, DType dtype, const Conv2dBackwardInputArgs& a,
                 OwnConv<Conv2dBackwardInputArgs> own) {
  choose_for<BackwardInput>(context, dtype, a, own);
}
void choose_conv(const LaunchContext& context, DType dtype, const Conv2dBackwardWeightArgs& a,
                 OwnConv<Conv2dBackwardWeightArgs> own) {
  if (!a.dweight) return own(context, a);  // nothing for cuDNN to do
  choose_for<BackwardWeight>(context, dtype, a, own);
}

}  // namespace tapestry::kernels::cuda
