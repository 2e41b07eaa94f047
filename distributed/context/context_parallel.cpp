#include "tapestry/distributed/context/context_parallel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/context/attention.h"
#include "tapestry/distributed/context/internal/checks.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/nn/layers/conv.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/fold.h"
#include "tapestry/nn/layers/norm.h"
#include "tapestry/nn/layers/pool.h"
#include "tapestry/nn/layers/recurrent.h"
#include "tapestry/nn/layers/shape.h"
#include "tapestry/nn/layers/transformer.h"
#include "tapestry/nn/layers/upsample.h"

namespace tapestry::distributed {

namespace {
constexpr std::array<const char*, 4> kAttentionNames{"auto", "gathered", "ring", "all-to-all"};
constexpr const char* kContextParallel = "context_parallel";
}  // namespace

const char* name_of(ContextAttention attention) {
  return kAttentionNames[static_cast<std::size_t>(attention)];
}

ContextAttention context_attention_of(std::string_view name) {
  const auto found = std::find(kAttentionNames.begin(), kAttentionNames.end(), name);
  check(found != kAttentionNames.end(), "[", kContextParallel, "] there is no attention ", name,
        "; choose auto, gathered, ring or all-to-all");
  return static_cast<ContextAttention>(found - kAttentionNames.begin());
}

class DividedAttention final : public nn::DividedSequence {
 public:
  DividedAttention(Axis axis, ContextAttention form) : axis(std::move(axis)), form(form) {}

  const Axis axis;
  const ContextAttention form;
  mutable double forward_bytes = 0, backward_bytes = 0;
  const std::shared_ptr<ConversionTraffic> waits = std::make_shared<ConversionTraffic>();

  SequenceOrder order() const {
    return form == ContextAttention::ring ? SequenceOrder::zigzag : SequenceOrder::contiguous;
  }

  Tensor positions(std::int64_t rows, Device device) const override {
    return sequence_positions(rows * axis.size(), axis.coordinate(), axis.size(), order()).to(device);
  }

  Tensor whole(const Tensor& rows) const override {
    check(order() == SequenceOrder::contiguous, "[", kContextParallel,
          "] a ring has no masks of documents; choose attention gathered or all-to-all");
    const NoGradGuard no_grad;
    return convert(rows, axis, Placement::sharded(1), Placement::invariant());
  }

  Tensor document_mask(const Tensor& documents) const override {
    return context_document_mask(
        documents, axis,
        form == ContextAttention::all_to_all ? ContextQueries::all_rows : ContextQueries::own_rows,
        /*is_causal=*/true);
  }

  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Call& how) const override {
    // Autocast decides how many bytes an element has, so it casts before they are counted.
    if (const autograd::Autocast cast(kCastLike, q, k, v); cast)
      return attention(cast(q), cast(k), cast(v), how);
    check(how.dropout_p == 0, "[", kContextParallel, "] an attention drops weights with the probability ",
          how.dropout_p,
          ", and an attention over ranks drops none; set its dropout to 0 (GPT-2 calls it attn_pdrop)");
    const ContextAttentionOptions options{
        .is_causal = how.is_causal && !how.mask.defined(), .order = order(), .mask = how.mask, .waits = waits};
    if (q.dim() == 4 && q.size(0) == 0)  // a micro-batch without samples, on all ranks of the axis
      return scaled_dot_product_attention(q, k, v, {.enable_gqa = q.size(1) != k.size(1)});
    const auto [forward, backward] = elements_sent(form, {q.size(1), k.size(1)}, axis.size());
    const double size = static_cast<double>(q.element_size());
    double of_gradients = grad_enabled() ? backward * size : 0;
    // A ring sends the gradients of keys and values in f32 at least.
    if (grad_enabled() && form == ContextAttention::ring)
      of_gradients += static_cast<double>(axis.size() * 2 * k.size(1)) * std::max(4 - size, 0.0);
    const auto rows = static_cast<double>(q.size(0) * q.size(2) * q.size(3));
    forward_bytes += rows * forward * size;
    backward_bytes += rows * of_gradients;
    switch (form) {
      case ContextAttention::ring:
        return ring_attention(q, k, v, axis, options);
      case ContextAttention::all_to_all:
        return all_to_all_attention(q, k, v, axis, options);
      case ContextAttention::gathered:
      case ContextAttention::automatic:
        break;
    }
    return gathered_attention(q, k, v, axis, options);
  }
};

namespace {

template <class... Layers>
bool is_any(const nn::Module& m) {
  return (dynamic_cast<const Layers*>(&m) || ...);
}

template <int kDims>
bool sums_own_rows(const nn::Module& m) {
  const auto* const norm = dynamic_cast<const nn::BatchNorm<kDims>*>(&m);
  return norm && !norm->type_name().starts_with("Sync");
}

// Why a layer of this kind would compute wrong values of a part of a sequence; empty if it would not.
std::string why_not_divided(const nn::Module& m) {
  if (is_any<nn::RecurrentLayer, nn::RecurrentCellLayer>(m))
    return "is recurrent: each position needs the state of the one before, which another rank computes; use "
           "attention, or divide samples (replicate, shard)";
  if (is_any<nn::Conv<1>, nn::Conv<2>, nn::Conv<3>, nn::ConvTranspose<1>, nn::ConvTranspose<2>,
             nn::ConvTranspose<3>, nn::PoolLayer, nn::PadLayer, nn::Upsample, nn::Unfold, nn::Fold,
             nn::PixelShuffle, nn::PixelUnshuffle>(m))
    return "mixes neighbours, of which another rank has some; divide samples (replicate, shard)";
  if (sums_own_rows<1>(m) || sums_own_rows<2>(m) || sums_own_rows<3>(m))
    return "has statistics of one rank's positions; call convert_sync_batchnorm(model, "
           "strategy.data_group()) before";
  if (is_any<nn::GroupNorm, nn::InstanceNorm<1>, nn::InstanceNorm<2>, nn::InstanceNorm<3>, nn::EmbeddingBag>(
          m))
    return "has sums over a whole sequence; use a layer that computes each position by itself, such as "
           "LayerNorm";
  if (is_any<nn::TransformerDecoderLayer>(m))
    return "has cross-attention, which cannot be divided; divide samples (replicate, shard)";
  return {};
}

// True if ranks divide a parameter, rather than copy it or hold it for their stage.
bool has_divided_parameters(const nn::Module& m) {
  for (const nn::Parameter& p : m.parameters())
    if (p.layout())
      for (const nn::Cut& cut : p.layout()->cuts())
        if (cut.dim >= 0) return true;
  return false;
}

// The different numbers of heads that ranks have if `ranks` of them divide an attention with these heads.
// Each has ceil(keys / ranks) heads of keys with their queries, and the last one has the rest. Ranks that are
// more than the heads of keys share them.
std::vector<nn::SequenceModule::Heads> heads_of_ranks(const nn::SequenceModule::Heads& whole, int ranks) {
  if (whole.queries == 0) return {};
  if (whole.keys < ranks) return {{std::max<std::int64_t>(whole.queries / ranks, 1), 1, whole.always_causal}};
  const std::int64_t each = (whole.keys + ranks - 1) / ranks, last = whole.keys - each * (ranks - 1);
  std::vector<nn::SequenceModule::Heads> all;
  for (const std::int64_t keys : {each, last})
    if (keys > 0 && (all.empty() || keys != each))
      all.push_back({whole.queries / whole.keys * keys, keys, whole.always_causal});
  return all;
}

}  // namespace

std::array<double, 2> elements_sent(ContextAttention form, const nn::SequenceModule::Heads& heads,
                                    int ranks) {
  const double n = ranks, pair = 2.0 * static_cast<double>(heads.keys);
  const double all = 2.0 * static_cast<double>(heads.queries + heads.keys);  // q, k, v and the result
  if (form == ContextAttention::all_to_all) return {(n - 1) / n * all, (n - 1) / n * all};
  return {(n - 1) * pair,
          form == ContextAttention::ring && ranks > 1 ? (n - 1) * pair + n * pair : (n - 1) * pair};
}

ContextAttention choose_attention(const std::vector<nn::SequenceModule::Heads>& layers, int ranks,
                                  bool documents) {
  const auto all = [&](const auto& fn) { return std::all_of(layers.begin(), layers.end(), fn); };
  const bool causal = all([](const auto& heads) { return heads.always_causal; });
  std::vector<ContextAttention> candidates;
  if (all([&](const auto& heads) { return heads.keys % ranks == 0; }))
    candidates.push_back(ContextAttention::all_to_all);
  if (causal && !documents) candidates.push_back(ContextAttention::ring);
  if (!causal || candidates.empty()) candidates.push_back(ContextAttention::gathered);
  const auto sent = [&](ContextAttention form) {
    double sum = 0;
    for (const auto& heads : layers) {
      const auto [forward, backward] = elements_sent(form, heads, ranks);
      sum += forward + backward;
    }
    return sum;
  };
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&](ContextAttention a, ContextAttention b) { return sent(a) < sent(b); });
}

ContextAttention ContextParallel::attention() const { return attention_->form; }
SequenceOrder ContextParallel::order() const { return attention_->order(); }
std::int64_t ContextParallel::bytes_sent() const {
  return static_cast<std::int64_t>(attention_->forward_bytes + attention_->backward_bytes + 0.5);
}
std::int64_t ContextParallel::forward_bytes_sent() const {
  return static_cast<std::int64_t>(attention_->forward_bytes + 0.5);
}
double ContextParallel::exposed_s() const { return attention_->waits->counts().exposed_s; }
void ContextParallel::reset_report() const {
  attention_->forward_bytes = attention_->backward_bytes = 0;
  attention_->waits->reset();
}

Tensor ContextParallel::own_part(const Tensor& whole, std::int64_t dim) const {
  detail::check_defined(kContextParallel, whole);
  const int d = wrap_dim(kContextParallel, dim, whole.dim());
  const std::int64_t length = whole.size(d), ranks = attention_->axis.size();
  if (ranks == 1) return whole;
  const std::int64_t chunks = order() == SequenceOrder::zigzag ? 2 * ranks : ranks;
  check(length % chunks == 0, "[", kContextParallel, "] ", ranks, " ranks cannot divide a sequence of ",
        length, " positions into ", chunks, " equal chunks, which attention ", name_of(attention()),
        " needs; choose a length that is a multiple of ", chunks, ", such as ",
        (length + chunks - 1) / chunks * chunks);
  if (order() == SequenceOrder::contiguous)
    return whole.narrow(d, length / ranks * attention_->axis.coordinate(), length / ranks).contiguous();
  return index_select(whole, d, attention_->positions(length / ranks, whole.device()));
}

ContextParallel context_parallel(nn::Module& module, const Axis& axis,
                                 const ContextParallelOptions& options) {
  check(!axis.over_devices(), "[", kContextParallel, "] the axis ", axis.name(),
        " is over devices of one process; use one over ranks");
  std::vector<nn::SequenceModule*> layers;
  std::vector<nn::SequenceModule::Heads> heads;
  for (const auto& [path, m] : module.named_modules()) {
    const std::string place = m->type_name() + (path.empty() ? "" : " " + path);
    const std::string why = why_not_divided(*m);
    check(why.empty(), "[", kContextParallel, "] ", place, " ", why);
    auto* const layer = dynamic_cast<nn::SequenceModule*>(m);
    if (!layer) continue;
    check(!layer->divided_sequence, "[", kContextParallel, "] ", place,
          " is divided already; call it once for a model");
    layers.push_back(layer);
    const int head_ranks = has_divided_parameters(*m) ? options.head_ranks : 1;
    for (const nn::SequenceModule::Heads& own : heads_of_ranks(layer->heads(), head_ranks)) {
      check(options.attention != ContextAttention::all_to_all || own.keys % axis.size() == 0, "[",
            kContextParallel, "] ", place, " has ", own.keys, " heads of keys and values",
            head_ranks > 1 ? " on a rank of the axis that divides heads" : "", ", which ", axis.size(),
            " ranks cannot divide; choose attention ring or gathered");
      heads.push_back(own);
    }
  }
  check(!heads.empty(), "[", kContextParallel, "] ", module.type_name(),
        " has no layer of self-attention whose sequences ranks can divide; use MultiheadAttention, or a "
        "model of nn/models");
  check(options.attention != ContextAttention::ring || !options.documents, "[", kContextParallel,
        "] a ring has no masks of documents; choose attention gathered or all-to-all");
  const auto attention =
      std::make_shared<DividedAttention>(axis, options.attention == ContextAttention::automatic
                                                   ? choose_attention(heads, axis.size(), options.documents)
                                                   : options.attention);
  if (axis.size() > 1)
    for (nn::SequenceModule* const layer : layers) layer->divided_sequence = attention;
  return ContextParallel(attention);
}

}  // namespace tapestry::distributed
