#include "tapestry/kernels/cuda/vendor/attention.h"

#include <array>
#include <span>
#include <string>

#include "tapestry/core/error.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/cuda/vendor/cudnn_attention.h"
#include "tapestry/kernels/policy.h"

namespace tapestry::kernels::cuda {
namespace {

const ChoicePoint attention_choice{"attention"};

void append(std::string& key, const char* name, const AttentionStrides& s) {
  key += concat({" ", name, "=", s.batch, "/", s.head, "/", s.row});
}

/// What both directions depend on. The strides say which layout the arrays have.
template <class Args>
std::string key_of(const char* direction, DType dtype, const Args& a) {
  const AttentionShape& s = a.shape;
  std::string key =
      concat({direction, " ", dtype_name(dtype), " batch=", s.batch, " heads=", s.heads, " groups=", s.groups,
              " queries=", s.queries, " keys=", s.keys, " width=", s.width, " value_width=", s.value_width});
  append(key, "q", a.q_strides);
  append(key, "k", a.k_strides);
  append(key, "v", a.v_strides);
  if (a.mask.causal) key += concat({" causal+", a.mask.offset});
  if (a.mask.mask) {
    const AttentionBias b(s, a.mask);
    key += concat({" mask ", dtype_name(a.mask.mask.dtype()), " ", b.batches, "/", b.heads, "/", b.queries});
  }
  return key;
}

/// An array with room for `rows` rows of `width` elements at these strides.
Tensor room(const TensorOptions& options, std::int64_t batch, std::int64_t heads, std::int64_t rows,
            std::int64_t width, const AttentionStrides& s) {
  return empty({(batch - 1) * s.batch + (heads - 1) * s.head + (rows - 1) * s.row + width}, options);
}

// What the two slots differ in.
struct AttentionForward {
  using Args = AttentionArgs;
  static constexpr const char *kSlot = "attention", *kDirection = "forward";
  /// The arguments with scratch memory for the outputs.
  struct Scratch {
    Tensor y, log_sum_exp;
    Scratch(Device device, DType dtype, const Args& a) {
      const AttentionShape& s = a.shape;
      y = room({dtype, device}, s.batch, s.heads, s.queries, s.value_width, a.y_strides);
      log_sum_exp = empty({s.batch * s.heads * s.queries}, {DType::f32, device});
    }
    Args in(Args a) const {
      a.y = y, a.log_sum_exp = log_sum_exp;
      return a;
    }
  };
};
struct AttentionBackward {
  using Args = AttentionBackwardArgs;
  static constexpr const char *kSlot = "attention_backward", *kDirection = "backward";
  struct Scratch {
    Tensor dq, dk, dv;
    Scratch(Device device, DType dtype, const Args& a) {
      const AttentionShape& s = a.shape;
      const TensorOptions options{dtype, device};
      if (a.dq) dq = room(options, s.batch, s.heads, s.queries, s.width, a.dq_strides);
      if (a.dk) dk = room(options, s.batch, s.groups, s.keys, s.width, a.dk_strides);
      if (a.dv) dv = room(options, s.batch, s.groups, s.keys, s.value_width, a.dv_strides);
    }
    Args in(Args a) const {
      a.dq = dq, a.dk = dk, a.dv = dv;
      return a;
    }
  };
};

template <class Slot>
void choose_for(const LaunchContext& context, DType dtype, const typename Slot::Args& args,
                OwnAttention<typename Slot::Args> own, const AttentionBiasKernels& bias,
                const SpecialAttention<typename Slot::Args>* special) {
  std::array<Candidate, 3> candidates;
  std::size_t count = 0;
  if (special) candidates[count++] = {.name = special->name, .why_not = special->why_not(dtype, args)};
  const std::size_t of_own = count;
  candidates[count++] = {.name = "tapestry", .why_not = own ? "" : "there is no own kernel for this dtype"};
  const bool deterministic = are_deterministic_algorithms_enabled();
  std::string why_not, version;
  if (!own || policy_of(attention_choice) != KernelPolicy::custom) {
    why_not = cudnn::why_not(context, dtype, args, deterministic);
    if (!own && !why_not.empty())
      fail<MissingKernelError>(
          "[", Slot::kSlot, "] there is no cuda kernel for ", dtype,
          "; convert with .to() to f32, or let cuDNN compute it, which cannot: ", why_not);
    version = why_not.empty() ? cudnn::version() : "";
    candidates[count++] = {.name = "cuDNN", .version = version, .vendor = true, .why_not = why_not};
  }
  const auto run = [&](std::size_t i, const typename Slot::Args& a) {
    if (i < of_own) special->run(context, a);
    else if (i == of_own) own(context, a);
    else cudnn::run(context, dtype, a, deterministic, bias);
  };
  const std::size_t chosen = choose(
      attention_choice, context, std::span(candidates).first(count),
      [&] { return key_of(Slot::kDirection, dtype, args); },
      [&](std::size_t i) {
        const typename Slot::Scratch scratch(context.device, dtype, args);
        run(i, scratch.in(args));
      });
  run(chosen, args);
}

}  // namespace

void choose_attention(const LaunchContext& context, DType dtype, const AttentionArgs& a,
                      OwnAttention<AttentionArgs> own, const AttentionBiasKernels& bias,
                      const SpecialAttention<AttentionArgs>* special) {
  choose_for<AttentionForward>(context, dtype, a, own, bias, special);
}
void choose_attention(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& a,
                      OwnAttention<AttentionBackwardArgs> own, const AttentionBiasKernels& bias,
                      const SpecialAttention<AttentionBackwardArgs>* special) {
  choose_for<AttentionBackward>(context, dtype, a, own, bias, special);
}

}  // namespace tapestry::kernels::cuda
