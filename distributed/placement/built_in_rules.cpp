// Which rule each operation in autograd/ops and nn has.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "tapestry/distributed/placement/internal/rules.h"
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/elementary.h"
#include "tapestry/kernels/ops/functions.h"
#include "tapestry/kernels/ops/loss.h"
#include "tapestry/kernels/ops/swiglu.h"

namespace tapestry::distributed {
namespace {

Placement opaque(const PlacementCall& c) { return c.opaque(); }
Placement pointwise(const PlacementCall& c) { return c.pointwise(); }
Placement linear(const PlacementCall& c) { return c.linear(); }

struct Row {
  impl::BuiltInRule rule;
  const char* ops;  // separated by spaces
};
// clang-format off
constexpr Row kRules[] = {
    {rules::attended,
     "scaled_dot_product_attention ring_attention"},
    {rules::added,
     "add sub where"},
    {linear,
     "mul neg clone contiguous to"},
    {rules::divided,
     "div"},
    {rules::copied,
     "copy_"},
    {rules::dropped,
     "fill_ dropout"},
    {rules::sum,
     "sum"},
    {rules::nansum,
     "nansum"},
    {rules::mean,
     "mean"},
    {rules::picked,
     "var logsumexp norm max min amax amin sort topk kthvalue median"},
    {rules::mixed,
     "softmax log_softmax cumprod cummax cummin logcumsumexp pad layer_norm rms_norm "
     "add_layer_norm add_rms_norm"},
    {rules::linearly_mixed,
     "cumsum flip roll narrow slice split chunk tensor_split gather"},
    {rules::selected,
     "index_select"},
    {rules::removed,
     "select unbind squeeze"},
    {rules::inserted,
     "unsqueeze"},
    {rules::permuted,
     "transpose permute"},
    {rules::reshaped,
     "view reshape flatten"},
    {rules::expanded,
     "expand"},
    {rules::joined,
     "cat"},
    {rules::stacked,
     "stack"},
    {rules::matmul,
     "matmul"},
    {rules::fully_connected,
     "linear"},
    {rules::activated,
     "linear_relu linear_gelu"},
    {rules::feed_forward,
     "feed_forward"},
    {rules::grouped,
     "grouped_mm"},
    {rules::convolved,
     "conv1d conv2d conv3d"},
    {rules::convolved_relu,
     "conv2d_relu"},
    {rules::looked_up,
     "embedding"},
    {rules::rotated,
     "rotary_embedding"},
    {rules::batch_norm,
     "batch_norm batch_norm_relu"},
    {rules::elementwise_loss,
     "mse_loss"},
    {rules::class_loss,
     "cross_entropy cross_entropy_ nll_loss"},
    {rules::linear_class_loss,
     "linear_cross_entropy"},
    {pointwise,
     "addcdiv addcmul clamp huber_loss lerp logit smooth_l1_loss std"},
    {rules::by_sample,
     "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
     "adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d col2im "
     "conv_transpose1d conv_transpose2d conv_transpose3d grid_sample group_norm im2col "
     "instance_norm interpolate max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d "
     "max_unpool3d"},
    {opaque,
     "as_strided cdist ctc_loss diag_embed diagonal embedding_bag gru index index_add index_copy "
     "index_fill index_put linalg.cholesky linalg.det linalg.eigh linalg.eigvalsh linalg.inv "
     "linalg.lstsq linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.solve_triangular "
     "linalg.svd linalg.svdvals lstm masked_scatter masked_select packed_linear rnn_relu rnn_tanh "
     "scatter scatter_add scatter_reduce take unfold"},
};
// They record none but the operations that they are made of.
constexpr const char* kComposed =
    "addmm affine_grid aminmax atleast_1d atleast_2d atleast_3d baddbmm block_diag bmm "
    "broadcast_tensors cosine_similarity cross diag diff dot dsplit dstack einsum hardtanh hsplit "
    "hstack kron linalg.matrix_norm linalg.matrix_power linalg.norm linalg.vector_norm logsigmoid "
    "lp_pool1d lp_pool2d lp_pool3d masked_fill meshgrid mm mode movedim mv nanmean nanquantile "
    "normalize outer pairwise_distance pixel_shuffle pixel_unshuffle prelu prod quantile "
    "reciprocal repeat repeat_interleave rot90 softsign square tensordot trapezoid tril triu "
    "unflatten vsplit vstack";
// clang-format on

// True if `list` has the word.
bool has(std::string_view list, std::string_view word) {
  for (std::size_t at = list.find(word); at != std::string_view::npos; at = list.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return !word.empty();
  }
  return false;
}

template <class... Rows>
bool has(kernels::RowList<Rows...>, std::string_view op) {
  return ((Rows::kSlotName.view() == op) || ...);
}
// True if a pointwise kernel's row has this name. Such a function needs no line in kRules.
bool is_row(std::string_view op) {
  return has(kernels::Functions(), op) || has(kernels::Elementary(), op) || has(kernels::Arithmetic(), op) ||
         has(kernels::RareArithmetic(), op) || has(kernels::BinaryLosses(), op) ||
         has(kernels::SwigluRows(), op);
}

}  // namespace

impl::BuiltInRule impl::built_in_rule(std::string_view op) {
  const auto row =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return has(r.ops, op); });
  if (row != std::end(kRules)) return row->rule;
  return is_row(op) ? pointwise : nullptr;
}

bool impl::is_composed(std::string_view op) { return has(kComposed, op); }

}  // namespace tapestry::distributed
