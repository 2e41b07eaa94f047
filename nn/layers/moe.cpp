#include "tapestry/nn/layers/moe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/grouped_mm.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/scan.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/autograd/ops/swiglu.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {
namespace {

// The least divisor of scores that may all be 0, as in DeepSeek-V3.
constexpr double kTiny = 1e-20;

// 16 bits as f32: kTiny is 0 in f16, and sums over many tokens leave its range.
Tensor at_least_f32(const Tensor& t) {
  return t.dtype() == DType::f16 || t.dtype() == DType::bf16 ? t.to(DType::f32) : t;
}

// ceil(factor * choices / num_experts), and at most all tokens. The product may be a few roundings above an
// integer: 1.12 * 25 / 2 is 14.
std::int64_t capacity_of(double factor, std::int64_t tokens, std::int64_t top_k, std::int64_t num_experts) {
  const double exact =
      factor * static_cast<double>(tokens) * static_cast<double>(top_k) / static_cast<double>(num_experts);
  const double rows = std::ceil(exact * (1 - 0x1p-50));
  return static_cast<std::int64_t>(std::min(rows, static_cast<double>(tokens)));
}

Tensor counted(const Tensor& experts, std::int64_t num_experts) {
  const Tensor chosen = experts.detach().flatten();
  return scatter_add(zeros({num_experts}, {DType::i64, chosen.device()}), 0, chosen, ones_like(chosen));
}

// Weights of matrices with this many columns, as Linear initialises them.
Tensor matrices(const Shape& sizes) {
  const double bound = 1 / std::sqrt(static_cast<double>(sizes.back()));
  return init::uniform_(empty(sizes), -bound, bound);
}

// Calls fn with the tensor of each replica. It tries all kMaxDevices replicas, because parameters may have
// fewer of them between two calls than in a call.
template <class F>
void for_each_replica(const PerReplica<Tensor>& tensors, const F& fn) {
  Context context = current_context();
  for (int r = 0; r < kMaxDevices; ++r) {
    context.replica = static_cast<std::int16_t>(r);
    const ContextGuard guard(context);
    fn(*tensors);
  }
}

}  // namespace

Tensor Routing::counts() const { return counted(experts, scores.size(1)); }

Routing route_tokens(const Tensor& logits, const RouterOptions& o, const Tensor& bias) {
  tapestry::detail::check_defined("route_tokens", logits, "logits");
  check(logits.dim() == 2 && logits.size(1) >= o.top_k, "[route_tokens] logits have shape ", logits.sizes(),
        "; expected (T, num_experts) with at least top_k = ", o.top_k, " experts");
  const bool softmaxed = o.score == RouterScore::softmax;
  Routing r;
  r.logits = at_least_f32(logits);
  r.scores = softmaxed ? softmax(r.logits, 1) : sigmoid(r.logits);
  const Tensor chosen_by = r.scores.detach();
  r.experts = topk(bias.defined() ? chosen_by + bias.detach() : chosen_by, o.top_k, 1).second;
  r.weights = gather(r.scores, 1, r.experts);
  if (o.norm_topk_prob) {
    const Tensor sums = r.weights.sum({1}, true);
    r.weights = r.weights / (softmaxed ? sums : sums + kTiny);
  }
  if (o.route_scale != 1) r.weights = r.weights * o.route_scale;
  return r;
}

Dispatch dispatch_tokens(const Routing& r, std::optional<std::int64_t> capacity) {
  const NoGradGuard no_grad;
  const Tensor experts = r.experts.flatten();
  Dispatch d;
  d.counts = r.counts();
  if (!capacity) {
    d.places = argsort(experts);
  } else {
    // By expert, and of an expert by weight. Both sorts are stable.
    const Tensor by_weight = argsort(r.weights.detach().flatten(), -1, /*descending=*/true);
    const Tensor order = by_weight.index_select(0, argsort(experts.index_select(0, by_weight)));
    const Tensor begins = cumsum(d.counts, 0) - d.counts;
    const Tensor rank = arange(order.numel(), {DType::i64, order.device()}) -
                        begins.index_select(0, experts.index_select(0, order));
    const Tensor kept = sort(masked_select(order, rank < *capacity)).first;
    d.places = kept.index_select(0, argsort(experts.index_select(0, kept)));
    d.counts = d.counts.clamp({}, *capacity);
  }
  d.tokens = floor_divide(d.places, r.experts.size(1));
  return d;
}

Tensor combine_tokens(const Tensor& y, const Routing& r, const Dispatch& d) {
  const Tensor weights = r.weights.flatten().index_select(0, d.places).unsqueeze(1);
  const Tensor rows = y * weights;  // in the wider dtype of the two
  const Tensor none = zeros({r.experts.size(0), y.size(1)}, {rows.dtype(), rows.device()});
  return index_add(none, 0, d.tokens, rows).to(y.dtype());
}

Tensor load_balancing_loss(const Tensor& scores, const Tensor& counts) {
  check(scores.dim() == 2 && counts.dim() == 1 && counts.size(0) == scores.size(1),
        "[load_balancing_loss] scores have shape ", scores.sizes(), " and counts ", counts.sizes(),
        "; expected (T, num_experts) and (num_experts)");
  const Tensor wide = at_least_f32(scores);
  const Tensor shares = wide / (wide.sum({1}, true) + kTiny);
  const Tensor n = counts.detach().to(wide.dtype());
  const Tensor parts = n / n.sum().clamp(1);
  const double tokens = static_cast<double>(std::max<std::int64_t>(scores.size(0), 1));
  return (shares.sum({0}) * parts).sum() * (static_cast<double>(scores.size(1)) / tokens);
}

Tensor router_z_loss(const Tensor& logits) {
  check(logits.dim() == 2, "[router_z_loss] logits have shape ", logits.sizes(),
        "; expected (T, num_experts)");
  const double tokens = static_cast<double>(std::max<std::int64_t>(logits.size(0), 1));
  return logsumexp(at_least_f32(logits), {1}).square().sum() / tokens;
}

// ---- the parts ----

namespace {
const RouterOptions& checked(const RouterOptions& o) {
  check(o.embed_dim > 0 && o.num_experts > 0,
        "[TopKRouter] embed_dim and num_experts must be positive but are ", o.embed_dim, " and ",
        o.num_experts, "; set both");
  check(o.top_k > 0 && o.top_k <= o.num_experts, "[TopKRouter] top_k is ", o.top_k,
        "; it must be from 1 to num_experts, ", o.num_experts);
  check(o.route_scale > 0 && std::isfinite(o.route_scale), "[TopKRouter] route_scale is ", o.route_scale,
        "; it must be above 0");
  return o;
}
const GroupedExpertsOptions& checked(const GroupedExpertsOptions& o) {
  check(o.num_experts > 0 && o.embed_dim > 0 && o.hidden_dim > 0,
        "[GroupedExperts] num_experts, embed_dim and hidden_dim must be positive but are ", o.num_experts,
        ", ", o.embed_dim, " and ", o.hidden_dim, "; set them");
  return o;
}
}  // namespace

TopKRouter::TopKRouter(const Options& o)
    : options(checked(o)),
      weight(param("weight", matrices({o.num_experts, o.embed_dim}))),
      expert_bias(buffer("expert_bias", o.bias ? zeros({o.num_experts}) : Tensor())) {}

Tensor TopKRouter::forward(const Tensor& x) {
  const AutocastGuard off(false);
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return linear(x.to(dtype), weight->to(dtype));
}

Routing TopKRouter::route(const Tensor& logits) const { return route_tokens(logits, options, expert_bias); }

std::string TopKRouter::options_text() const {
  detail::OptionsText text;
  text.add("embed_dim", options.embed_dim)
      .add("num_experts", options.num_experts)
      .add("top_k", options.top_k);
  if (options.score == RouterScore::sigmoid) text.add("score", "sigmoid");
  return text.add("norm_topk_prob", options.norm_topk_prob)
      .add("route_scale", options.route_scale, 1.0)
      .add("bias", options.bias)
      .str();
}

GroupedExperts::GroupedExperts(const Options& o)
    : options(checked(o)),
      gate_up_proj(param("gate_up_proj", matrices({o.num_experts, 2 * o.hidden_dim, o.embed_dim}))),
      down_proj(param("down_proj", matrices({o.num_experts, o.embed_dim, o.hidden_dim}))) {}

Tensor GroupedExperts::forward(const Tensor& x, const Tensor& counts,
                               const std::function<void()>& meanwhile) {
  if (divided_forward) return divided_forward(x, counts, meanwhile);
  if (meanwhile) meanwhile();
  return products(x, counts);
}

Tensor GroupedExperts::products(const Tensor& x, const Tensor& counts) {
  Tensor offs = cumsum(counts.detach(), 0);
  if (offs.device().is_cuda()) {  // one read for both products
    tapestry::detail::check_host_reads("grouped_mm", offs);
    offs = offs.cpu();
  }
  const Tensor h = grouped_mm(x, gate_up_proj->transpose(1, 2), offs);
  const Tensor gated =
      swiglu(h.narrow(1, 0, options.hidden_dim), h.narrow(1, options.hidden_dim, options.hidden_dim));
  return grouped_mm(gated, down_proj->transpose(1, 2), offs);
}

std::string GroupedExperts::options_text() const {
  return detail::OptionsText()
      .add("num_experts", options.num_experts)
      .add("embed_dim", options.embed_dim)
      .add("hidden_dim", options.hidden_dim)
      .str();
}

SharedExpert::SharedExpert(std::int64_t embed_dim, std::int64_t hidden_dim)
    : gate_proj(
          add<Linear>("gate_proj", {.in_features = embed_dim, .out_features = hidden_dim, .bias = false})),
      up_proj(add<Linear>("up_proj", {.in_features = embed_dim, .out_features = hidden_dim, .bias = false})),
      down_proj(
          add<Linear>("down_proj", {.in_features = hidden_dim, .out_features = embed_dim, .bias = false})) {}

Tensor SharedExpert::forward(const Tensor& x) { return down_proj(swiglu(gate_proj(x), up_proj(x))); }

// ---- the layer ----

namespace {
const MixtureOfExpertsOptions& checked(const MixtureOfExpertsOptions& o) {
  check(o.shared_hidden_dim >= 0, "[MixtureOfExperts] shared_hidden_dim is ", o.shared_hidden_dim,
        "; it must be a size, or 0 for no shared expert");
  check(!o.capacity_factor || (*o.capacity_factor > 0 && std::isfinite(*o.capacity_factor)),
        "[MixtureOfExperts] capacity_factor is ", o.capacity_factor.value_or(0),
        "; it must be above 0, or absent, so that no token is dropped");
  for (const double factor : {o.aux_loss_coef, o.z_loss_coef, o.bias_update_rate})
    check(factor >= 0 && std::isfinite(factor), "[MixtureOfExperts] a factor is ", factor,
          "; aux_loss_coef, z_loss_coef and bias_update_rate must not be negative");
  return o;
}
}  // namespace

MixtureOfExperts::MixtureOfExperts(const Options& o)
    : options(checked(o)),
      gate(add<TopKRouter>("gate", {.embed_dim = o.embed_dim,
                                    .num_experts = o.num_experts,
                                    .top_k = o.top_k,
                                    .score = o.score,
                                    .norm_topk_prob = o.norm_topk_prob,
                                    .route_scale = o.route_scale,
                                    .bias = o.balance == RouterBalance::bias})),
      experts(add<GroupedExperts>(
          "experts", {.num_experts = o.num_experts, .embed_dim = o.embed_dim, .hidden_dim = o.hidden_dim})),
      shared_expert(o.shared_hidden_dim > 0
                        ? &add<SharedExpert>("shared_expert", o.embed_dim, o.shared_hidden_dim)
                        : nullptr) {}

Tensor MixtureOfExperts::forward(const Tensor& x, Routing* routing) {
  tapestry::detail::check_defined("MixtureOfExperts", x);
  check(x.dim() > 0 && x.size(-1) == options.embed_dim,
        "[MixtureOfExperts] expected an input of shape (..., ", options.embed_dim, ") but got ", x.sizes(),
        "; make its last dimension ", options.embed_dim, ", or set embed_dim");
  const std::int64_t tokens = Shape(x.sizes().begin(), x.dim() - 1).numel();
  const Tensor rows = reshape(x, {tokens, options.embed_dim});
  const Routing r = gate.route(gate(rows));
  std::optional<std::int64_t> capacity;
  if (options.capacity_factor)
    capacity = capacity_of(*options.capacity_factor, tokens, options.top_k, options.num_experts);
  const Dispatch d = dispatch_tokens(r, capacity);
  Tensor of_shared;
  const std::function<void()> meanwhile = [&] {
    if (shared_expert) of_shared = (*shared_expert)(rows);
  };
  Tensor y = combine_tokens(experts(rows.index_select(0, d.tokens), d.counts, meanwhile), r, d);
  check(!shared_expert || of_shared.defined(),
        "[MixtureOfExperts] experts.divided_forward has not called meanwhile(), which computes the shared "
        "expert; call it once in each call");
  if (shared_expert) y = y + of_shared;

  Tensor loss, counts;
  if (is_training()) {
    counts = r.counts();
    if (options.balance == RouterBalance::auxiliary_loss)
      loss = load_balancing_loss(r.scores, counts) * options.aux_loss_coef;
    if (options.z_loss_coef > 0) {
      const Tensor z = router_z_loss(r.logits) * options.z_loss_coef;
      loss = loss.defined() ? loss + z : z;
    }
  }
  if (!autograd::recomputing()) {  // a second run computes the same, but what is stored is of the first
    if (routing) *routing = r;
    *auxiliary_loss_ = loss;
    Tensor& sum = *tokens_per_expert_;
    if (counts.defined()) sum = sum.defined() ? sum.to(counts.device()) + counts : counts;
  }
  return reshape(y, x.sizes());
}

Tensor MixtureOfExperts::auxiliary_loss() {
  Tensor loss = std::exchange(*auxiliary_loss_, Tensor());
  if (loss.defined()) return loss;
  const Tensor& w = gate.weight;
  return zeros({}, {w.dtype() == DType::f64 ? DType::f64 : DType::f32, w.device()});
}

Tensor MixtureOfExperts::tokens_per_expert() const {
  const Device device = gate.weight->device();
  Tensor sum = zeros({options.num_experts}, {DType::i64, device});
  for_each_replica(tokens_per_expert_, [&](const Tensor& n) {
    if (n.defined()) sum = sum + n.to(device);
  });
  return sum;
}

void MixtureOfExperts::update_router_bias(const Tensor& counts) {
  const char* const op = "update_router_bias";
  check(options.balance == RouterBalance::bias, "[", op,
        "] the layer has no bias; set balance to RouterBalance::bias");
  const bool divided = gate.weight.layout() || experts.gate_up_proj.layout() || experts.down_proj.layout();
  check(counts.defined() || !divided, "[", op,
        "] the parameters are sharded over ranks, which have counts of their own; sum tokens_per_expert() "
        "over the ranks and pass the sum");
  const Tensor n = counts.defined() ? counts.detach() : tokens_per_expert();
  check(n.dim() == 1 && n.size(0) == options.num_experts, "[", op, "] counts have shape ", n.sizes(),
        ", expected ", Shape{options.num_experts});
  const NoGradGuard no_grad;
  const Tensor real = n.to(DType::f64), s = (real.mean() - real).sign();
  const Tensor change = (s - s.mean()) * options.bias_update_rate;
  for (int r = 0; r < gate.expert_bias.replicas(); ++r) {
    Tensor bias = gate.expert_bias.replica(r);
    if (at_least_f32(bias).dtype() != bias.dtype()) {  // Module::to(dtype): 0.5 + 0.001 is 0.5 in bf16
      bias = bias.to(DType::f32);
      gate.expert_bias.set_replica(r, bias);
    }
    bias.add_(change.to(bias.device(), bias.dtype()));
  }
  for_each_replica(tokens_per_expert_, [](Tensor& sum) { sum = Tensor(); });
}

std::string MixtureOfExperts::options_text() const {
  detail::OptionsText text;
  if (options.capacity_factor) text.add("capacity_factor", *options.capacity_factor);
  text.add("balance", options.balance == RouterBalance::none   ? "none"
                      : options.balance == RouterBalance::bias ? "bias"
                                                               : "auxiliary_loss");
  return text.str();
}

}  // namespace tapestry::nn
