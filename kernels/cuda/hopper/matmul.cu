#include "tapestry/kernels/cuda/hopper/matmul.h"

#include <algorithm>

#include "tapestry/kernels/cuda/hopper/device.cuh"
#include "tapestry/kernels/cuda/hopper/matmul.cuh"
#include "tapestry/kernels/cuda/launch_context.cuh"

namespace tapestry::kernels::cuda {
namespace {

/// An operand's matrices in boxes: of `lines` (rows of A or columns of B) by k, with a box of `box_lines`.
BoxedArray<3> boxed(const ConstArray& array, bool along_k, std::int64_t pitch, std::int64_t lines,
                    const GemmArgs& g, const std::int64_t (&batch)[kMaxDims], std::uint32_t box_lines) {
  const bool has_batch = g.batch_ndim == 1 && batch[0] != 0;
  return {.data = array.address(),
          .sizes = {along_k ? g.k : lines, along_k ? lines : g.k, has_batch ? g.batch_sizes[0] : 1},
          .pitches = {1, pitch, batch[0]},
          .box = {64, along_k ? box_lines : WgmmaTile::kDepth, 1}};
}

struct GemmOperands {
  bool a_along_k, b_along_k;
  BoxedArray<3> a, b;

  explicit GemmOperands(const GemmArgs& g)
      : a_along_k(g.a_strides.row_major(g.k)), b_along_k(!g.b_strides.row_major(g.n)) {
    a = boxed(g.a, a_along_k, a_along_k ? g.a_strides.row : g.a_strides.col, g.m, g, g.a_batch,
              WgmmaTile::kM);
    b = boxed(g.b, b_along_k, b_along_k ? g.b_strides.col : g.b_strides.row, g.n, g, g.b_batch,
              WgmmaTile::kN);
  }
};

}  // namespace

std::string_view wgmma_gemm_why_not(DType dtype, const GemmArgs& g) {
  if (dtype != DType::bf16) return "it multiplies bf16";
  if (const std::string_view why_not = wgmma_why_not(); !why_not.empty()) return why_not;
  if (g.m < 64 || g.n < 128 || g.k < 64) return "most of its tiles of 128 x 256 would be empty";
  if (g.row_sums) return "it computes no sums of rows";
  if (g.batch_ndim > 1) return "the batch has more than one dimension";
  const GemmOperands operands(g);
  if (!is_boxable(operands.a) || !is_boxable(operands.b))
    return "lines do not begin at multiples of 16 bytes";
  return {};
}

void wgmma_gemm(const LaunchContext& context, const GemmArgs& g) {
  using T = BFloat16;
  const GemmOperands operands(g);
  // k is split if most multiprocessors of an H100, which has 132, would have no tile. Filling the ring of
  // stages takes 256 of k, so that splits of less than 512 would not pay.
  const std::int64_t whole = ceil_div(g.m, WgmmaTile::kM) * ceil_div(g.n, WgmmaTile::kN) * batch_count(g);
  const std::int64_t splits = std::max<std::int64_t>(std::min(g.k / 512, 132 / whole), 1);
  GemmPlan<T> plan = gemm_plan<WgmmaTile, T>(g, gemm_layout<T>(g), splits);
  const ptx::TensorMapBytes a = tensor_map(operands.a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  const ptx::TensorMapBytes b = tensor_map(operands.b, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  Scratch<float> partial;
  if (plan.splits > 1) {
    partial =
        Scratch<float>(context.device, std::int64_t{plan.splits} * plan.batch * plan.m * plan.partial_row);
    plan.partial = partial.data();
  }
  const unsigned tiles = plan.m_tiles * plan.n_tiles * plan.splits * plan.batch;
  const unsigned blocks =
      std::min(tiles, static_cast<unsigned>(device_attribute(cudaDevAttrMultiProcessorCount)));
  const auto with = [&]<bool kAAlongK, bool kBAlongK>() {
    launch(&gemm_wgmma<T, kAAlongK, kBAlongK>, blocks, WgmmaTile::kThreads, sizeof(WgmmaShared<T>),
           stream_of(context), plan, a, b);
  };
  if (operands.a_along_k && operands.b_along_k) with.template operator()<true, true>();
  else if (operands.a_along_k) with.template operator()<true, false>();
  else if (operands.b_along_k) with.template operator()<false, true>();
  else with.template operator()<false, false>();
  if (plan.splits == 1) return;
  const std::int64_t quads = plan.batch * plan.m * (plan.partial_row / 4);
  launch(&add_wgmma_splits<T>, static_cast<unsigned>(ceil_div(quads, kAddThreads)), kAddThreads, 0,
         stream_of(context), plan);
}

}  // namespace tapestry::kernels::cuda
