// Attention on a CUDA device, with its gradients through the tape, must be what it is on the CPU, with the
// same dropout for the same seed.
#include <cmath>
#include <string>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/attention_lse.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/kernels/ops/attention.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

struct Inputs {
  Tensor q, k, v, dy;
};
std::vector<Tensor> attend(const Inputs& in, const char* device, AttentionParams params) {
  if (params.attn_mask.defined()) params.attn_mask = params.attn_mask.to(device);
  std::vector<Tensor> leaves;
  for (const Tensor& t : {in.q, in.k, in.v}) leaves.push_back(t.detach().to(device).set_requires_grad());
  manual_seed(11);
  const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], params);
  y.backward(in.dy.to(device));
  return {y.detach().cpu(), leaves[0].grad().cpu(), leaves[1].grad().cpu(), leaves[2].grad().cpu()};
}

void check_devices(const Inputs& in, const AttentionParams& params, double tolerance) {
  const auto want = attend(in, "cpu", params), got = attend(in, "cuda:0", params);
  const char* const names[] = {"y", "dq", "dk", "dv"};
  for (std::size_t i = 0; i < want.size(); ++i) {
    INFO(names[i]);
    const Tensor w = want[i].to(DType::f64), g = got[i].to(DType::f64);
    const double size = w.abs().max().item<double>();
    CHECK((g - w).abs().max().item<double>() <= tolerance * size);
  }
}

// As layers make them: (batch, rows, heads, width) in memory.
Tensor heads(const Shape& sizes, DType dtype) {
  return (randn({sizes[0], sizes[2], sizes[1], sizes[3]}) * 0.7 + 0.2).to(dtype).transpose(1, 2);
}

}  // namespace

TEST_CASE("attention and its gradients on a CUDA device are the CPU's") {
  if (no_gpu()) return;
  manual_seed(4);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(dtype);
    REQUIRE(kernels::attention.has(DeviceType::cuda, dtype));
    const double tolerance = dtype == DType::f32 ? 2e-5 : dtype == DType::f16 ? 4e-3 : 3e-2;
    const Inputs in{heads({2, 4, 21, 24}, dtype), heads({2, 2, 50, 24}, dtype), heads({2, 2, 50, 16}, dtype),
                    heads({2, 4, 21, 16}, dtype)};
    check_devices(in, {.enable_gqa = true}, tolerance);
    check_devices(in, {.dropout_p = 0.3, .is_causal = true, .causal_offset = 29, .enable_gqa = true},
                  tolerance);
    check_devices(in, {.attn_mask = rand({21, 50}) > 0.5, .scale = 0.1, .enable_gqa = true}, tolerance);
    check_devices(in, {.attn_mask = randn({2, 1, 1, 50}).to(dtype), .enable_gqa = true}, tolerance);
  }
}

// Two parts of the keys, of which the first query sees nothing of the second.
TEST_CASE("attention in parts on a CUDA device is the CPU's, with its gradients") {
  if (no_gpu()) return;
  manual_seed(8);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(dtype);
    const double tolerance = dtype == DType::f32 ? 2e-5 : dtype == DType::f16 ? 4e-3 : 3e-2;
    const Inputs in{heads({2, 4, 21, 24}, dtype), heads({2, 2, 50, 24}, dtype), heads({2, 2, 50, 16}, dtype),
                    heads({2, 4, 21, 16}, dtype)};
    const Tensor seen = le(arange(50, DType::i64), arange(21, DType::i64).unsqueeze(1) + 28);
    const auto attend_in_parts = [&](const char* device) {
      AttentionWithLse total;
      std::vector<AttentionParams> params;
      const Tensor q = in.q.to(device), k = in.k.to(device), v = in.v.to(device);
      const auto part = [](const Tensor& t, int i) { return t.narrow(2, i * 29, i == 0 ? 29 : 21); };
      for (int i = 0; i < 2; ++i) {
        const Tensor mask = seen.narrow(1, i * 29, i == 0 ? 29 : 21).to(device);
        params.push_back({.attn_mask = mask, .enable_gqa = true});
        merge_attention(total, attention_with_lse(q, part(k, i), part(v, i), params.back()));
      }
      std::vector<Tensor> results{total.out, total.lse};
      for (int i = 0; i < 2; ++i) {
        const AttentionGrads d =
            attention_with_lse_backward(in.dy.to(device), q, part(k, i), part(v, i), total.out.to(dtype),
                                        total.lse, params[static_cast<std::size_t>(i)]);
        for (const Tensor& t : {d.dq, d.dk, d.dv}) results.push_back(t);
      }
      for (Tensor& t : results) t = t.cpu().to(DType::f64);
      return results;
    };
    const auto want = attend_in_parts("cpu"), got = attend_in_parts("cuda:0");
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      CHECK((got[i] - want[i]).abs().max().item<double>() <= tolerance * want[i].abs().max().item<double>());
    }
  }
}

TEST_CASE("attention on a CUDA device is composed of operations where the kernel does not reach") {
  if (no_gpu()) return;
  manual_seed(5);
  const Inputs wide{randn({1, 1, 5, 136}), randn({1, 1, 9, 136}), randn({1, 1, 9, 8}), randn({1, 1, 5, 8})};
  check_devices(wide, {.dropout_p = 0.5}, 2e-5);
  const Inputs deep{randn({2, 1, 1, 5, 8}), randn({2, 1, 1, 9, 8}), randn({2, 1, 1, 9, 8}),
                    randn({2, 1, 1, 5, 8})};
  check_devices(deep, {.is_causal = true}, 2e-5);
}

TEST_CASE("attention on a CUDA device saves no matrix of scores") {
  if (no_gpu()) return;
  const std::int64_t n = 256;
  const Tensor q = randn({1, 2, n, 8}).to("cuda:0").set_requires_grad();
  const auto before = memory_stats("cuda:0").allocated;
  reset_peak_memory("cuda:0");
  const Tensor y = scaled_dot_product_attention(q, q, q, {.dropout_p = 0.1, .is_causal = true});
  y.backward(y.detach());
  CHECK(memory_stats("cuda:0").peak_allocated - before < n * n * 4);  // half of one matrix of scores
}

TEST_CASE("attention on a CUDA device gives the same bits each time") {
  if (no_gpu()) return;
  manual_seed(6);
  const Inputs in{randn({1, 2, 90, 16}), randn({1, 2, 140, 16}), randn({1, 2, 140, 16}),
                  randn({1, 2, 90, 16})};
  const auto first = attend(in, "cuda:0", {.dropout_p = 0.2}),
             again = attend(in, "cuda:0", {.dropout_p = 0.2});
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i].equal(again[i]));
}
