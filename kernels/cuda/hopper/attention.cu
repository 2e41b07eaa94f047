#include "tapestry/kernels/cuda/hopper/attention.h"

#include <algorithm>

#include "tapestry/kernels/cuda/hopper/attention.cuh"
#include "tapestry/kernels/cuda/hopper/device.cuh"

namespace tapestry::kernels::cuda {
namespace {

/// The heads of an array, in boxes of 64 columns by `box_rows` rows.
BoxedArray<4> boxed(const ConstArray& array, const AttentionStrides& s, std::int64_t width, std::int64_t rows,
                    std::int64_t heads, std::int64_t batch, std::uint32_t box_rows) {
  return {.data = array.address(),
          .sizes = {width, rows, heads, batch},
          .pitches = {1, s.row, s.head, s.batch},
          .box = {kBoxColumns, box_rows, 1, 1}};
}

struct AttentionOperands {
  BoxedArray<4> q, k, v;
  explicit AttentionOperands(const AttentionArgs& a) {
    constexpr std::uint32_t kKeys = WgmmaAttentionTile::kKeys;
    const AttentionShape& s = a.shape;
    q = boxed(a.q, a.q_strides, s.width, s.queries, s.heads, s.batch, kWgmmaRows);
    k = boxed(a.k, a.k_strides, s.width, s.keys, s.groups, s.batch, kKeys);
    v = boxed(a.v, a.v_strides, s.value_width, s.keys, s.groups, s.batch, kKeys);
  }
};

std::int64_t query_tiles_of_head(const AttentionShape& s) {
  return (s.queries + kWgmmaRows - 1) / kWgmmaRows;
}
std::int64_t query_tiles(const AttentionShape& s) { return query_tiles_of_head(s) * s.heads * s.batch; }

}  // namespace

std::string_view wgmma_attention_why_not(DType dtype, const AttentionArgs& a) {
  const AttentionShape& s = a.shape;
  if (dtype != DType::bf16) return "it computes bf16";
  if (const std::string_view why_not = wgmma_why_not(); !why_not.empty()) return why_not;
  if (s.width != s.value_width || (s.width != 64 && s.width != 128))
    return "it computes heads of 64 or 128 elements";
  if (a.mask.mask) return "it takes no mask";
  if (a.dropout.threshold) return "it has no dropout";
  if (!(a.scale > 0)) return "the scale is not positive";
  if (s.batch == 0 || s.heads == 0 || s.queries < 64 || s.keys < 64)
    return "most of its tiles of 128 queries and 128 keys would be empty";
  // An H100 has 132 multiprocessors.
  if (query_tiles(s) < 66 && s.keys >= 2048) return "it does not divide the keys of few queries";
  const AttentionOperands operands(a);
  if (!is_boxable(operands.q) || !is_boxable(operands.k) || !is_boxable(operands.v))
    return "rows do not begin at multiples of 16 bytes";
  return {};
}

void wgmma_attention(const LaunchContext& context, const AttentionArgs& a) {
  const AttentionShape& s = a.shape;
  const std::int64_t count = query_tiles(s);
  check(count < std::int64_t{1} << 31, "[scaled_dot_product_attention] ", s.batch, " batches of ", s.heads,
        " heads with ", s.queries, " queries; divide the batch, one launch takes 2^31 tiles");
  const WgmmaAttentionPlan plan{.scores = attention_plan<BFloat16>(s, a.scale, a.mask, a.dropout),
                                .y = head_rows(a.y.as<BFloat16>(), a.y_strides, s.value_width),
                                .log_sum_exp = a.log_sum_exp.as<float>(),
                                .row_tiles = static_cast<unsigned>(query_tiles_of_head(s)),
                                .count = static_cast<unsigned>(count)};
  const AttentionOperands operands(a);
  const auto map = [](const BoxedArray<4>& array) {
    return tensor_map(array, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  };
  const ptx::TensorMapBytes q = map(operands.q), k = map(operands.k), v = map(operands.v);
  const unsigned blocks =
      std::min(plan.count, static_cast<unsigned>(device_attribute(cudaDevAttrMultiProcessorCount)));
  const auto start = [&]<int kWidth>() {
    launch(&attention_wgmma<kWidth>, blocks, kWgmmaThreads, sizeof(WgmmaAttentionShared<kWidth>),
           stream_of(context), plan, q, k, v);
  };
  if (s.width == 64) start.template operator()<64>();
  else start.template operator()<128>();
}

}  // namespace tapestry::kernels::cuda
