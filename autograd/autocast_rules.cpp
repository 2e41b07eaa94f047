// The list of operations of autocast. Operations that have a row in kernels/ops say it there. Source:
// aten/src/ATen/autocast_mode.h and .cpp of PyTorch 2.15, which have a list for CPUs and one for GPUs.
// tests/golden/autocast.py records the dtypes that PyTorch returns on CPUs and its list for GPUs, and
// tests/autograd/autocast_rules_test.cpp compares both with this list.
#include "tapestry/autograd/autocast.h"

#include <algorithm>
#include <string_view>

#include "tapestry/autograd/op.h"

namespace tapestry::autograd {
namespace {

// Adds the rows that say what autocast does, and sorts.
std::vector<CastRule> with_rows(std::vector<CastRule> rules) {
  for (const Op* op = Op::first(); op; op = op->next())
    if (op->cast_on_gpus != CastPolicy::none) rules.push_back({op->name, CastPolicy::none, op->cast_on_gpus});
  std::ranges::sort(rules, {}, [](const CastRule& r) { return std::string_view(r.op); });
  return rules;
}

}  // namespace

const std::vector<CastRule>& cast_rules() {
  constexpr CastPolicy none = CastPolicy::none, low = CastPolicy::low, f32 = CastPolicy::f32,
                       promote = CastPolicy::promote, through = CastPolicy::through;
  static const std::vector<CastRule> rules = with_rows({
      {"adaptive_avg_pool3d", f32, none},
      {"adaptive_max_pool3d", f32, none},
      {"add_layer_norm", through, f32},
      {"add_rms_norm", through, f32},
      {"addcdiv", none, promote},
      {"addcmul", none, promote},
      {"addmm", low, low},
      {"avg_pool3d", f32, none},
      {"baddbmm", low, low},
      {"batch_norm", through, through},
      {"batch_norm_relu", through, through},
      {"binary_cross_entropy", f32, f32},
      {"binary_cross_entropy_with_logits", f32, f32},
      {"bmm", low, low},
      {"cat", promote, promote},
      {"cdist", f32, f32},
      {"conv1d", low, low},
      {"conv2d", low, low},
      {"conv2d_relu", low, low},
      {"conv3d", low, low},
      {"conv_transpose1d", low, low},
      {"conv_transpose2d", low, low},
      {"conv_transpose3d", low, low},
      {"cosine_embedding_loss", f32, f32},
      {"cosine_similarity", none, f32},
      {"cross", none, promote},
      {"cross_entropy", f32, f32},
      {"cross_entropy_", f32, f32},
      {"ctc_loss", f32, f32},
      {"cumprod", none, f32},
      {"cumsum", none, f32},
      {"dot", none, promote},
      {"einsum", low, low},
      {"feed_forward", low, low},
      {"grid_sample", f32, promote},
      {"group_norm", through, f32},
      {"grouped_mm", low, low},
      {"gru", low, low},
      {"hinge_embedding_loss", f32, f32},
      {"huber_loss", f32, f32},
      {"index_copy", promote, none},
      {"index_put", none, promote},
      {"instance_norm", through, through},
      {"interpolate", none, f32},
      {"kl_div", f32, f32},
      {"l1_loss", f32, f32},
      {"layer_norm", through, f32},
      {"linalg.cholesky", f32, none},
      {"linalg.eigh", f32, none},
      {"linalg.eigvalsh", f32, none},
      {"linalg.inv", f32, none},
      {"linalg.lstsq", f32, none},
      {"linalg.matrix_norm", none, f32},
      {"linalg.matrix_rank", f32, none},
      {"linalg.qr", f32, none},
      {"linalg.solve", f32, none},
      {"linalg.svd", f32, none},
      {"linalg.svdvals", f32, none},
      {"linalg.vector_norm", none, f32},
      {"linear", low, low},
      {"linear_cross_entropy", low, low},
      {"linear_gelu", low, low},
      {"linear_relu", low, low},
      {"log_softmax", none, f32},
      {"logsumexp", none, f32},
      {"lstm", low, low},
      {"margin_ranking_loss", f32, f32},
      {"matmul", low, low},
      {"max_pool3d", f32, none},
      {"max_unpool2d", f32, none},
      {"max_unpool3d", f32, none},
      {"mm", low, low},
      {"mse_loss", f32, f32},
      {"mv", none, low},
      {"nanquantile", f32, none},
      {"nll_loss", f32, f32},
      {"norm", none, f32},
      {"poisson_nll_loss", f32, f32},
      {"prelu", low, low},
      {"prod", f32, f32},
      {"quantile", f32, none},
      {"reciprocal", none, f32},
      {"rms_norm", through, f32},
      {"rnn_relu", low, low},
      {"rnn_tanh", low, low},
      {"scaled_dot_product_attention", low, low},
      {"scatter_add", none, promote},
      {"smooth_l1_loss", f32, f32},
      {"soft_margin_loss", f32, f32},
      {"softmax", none, f32},
      {"stack", promote, promote},
      {"sum", none, f32},
      {"tensordot", low, promote},
      {"triplet_margin_loss", f32, f32},
  });
  return rules;
}

}  // namespace tapestry::autograd
