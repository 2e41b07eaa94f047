#include "tapestry/nn/layers/attention.h"

#include <cmath>
#include <limits>
#include <tuple>

#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/pad.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {

using Options = MultiheadAttentionOptions;

Options checked(Options o) {
  check(o.embed_dim > 0 && o.num_heads > 0 && o.embed_dim % o.num_heads == 0,
        "[MultiheadAttention] num_heads must divide embed_dim, both positive, but they are ", o.num_heads,
        " and ", o.embed_dim, "; set both");
  check(o.dropout >= 0 && o.dropout <= 1, "[MultiheadAttention] dropout must lie in [0, 1] but is ",
        o.dropout);
  o.kdim = o.kdim.value_or(o.embed_dim);
  o.vdim = o.vdim.value_or(o.embed_dim);
  check(*o.kdim > 0 && *o.vdim > 0, "[MultiheadAttention] kdim and vdim must be positive but are ", *o.kdim,
        " and ", *o.vdim);
  return o;
}

bool packed(const Options& o) { return o.kdim == o.embed_dim && o.vdim == o.embed_dim; }

Tensor weight_if(bool wanted, std::int64_t out, std::int64_t in) {
  return wanted ? init::xavier_uniform_(empty({out, in})) : Tensor();
}

// Converts a mask to an additive one of this dtype: a bool mask becomes -inf where it is true.
Tensor additive(const Tensor& mask, DType dtype, const char* name) {
  if (mask.dtype() == DType::boolean)
    return where(mask, full({}, -std::numeric_limits<double>::infinity(), {dtype, mask.device()}),
                 zeros({}, {dtype, mask.device()}));
  check<TypeError>(is_floating(mask.dtype()), "[multihead_attention] ", name,
                   " must be bool or floating but is ", mask.dtype());
  return mask.to(dtype);
}

// (N, L, E) -> (N, heads, L, E / heads)
Tensor split_heads(const Tensor& x, std::int64_t heads) {
  return x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

Tensor bias_row_if(bool wanted, std::int64_t size) {
  return wanted ? init::xavier_normal_(empty({1, 1, size})) : Tensor();
}

// (N, heads, S + 1, E): the row, of E elements per head, follows the keys or values (N, heads, S, E).
Tensor with_row(const Tensor& x, const Tensor& row) {
  return cat({x, row.expand({x.size(0), x.size(1), 1, x.size(3)})}, 2);
}

}  // namespace

KeyValueCache::KeyValueCache(std::int64_t capacity) : capacity_(capacity) {
  check(capacity > 0, "[KeyValueCache] capacity must be positive but is ", capacity);
}

std::pair<Tensor, Tensor> KeyValueCache::append(const Tensor& keys, const Tensor& values) {
  const char* const op = "KeyValueCache";
  tapestry::detail::check_defined(op, keys, "keys");
  tapestry::detail::check_defined(op, values, "values");
  check(!grad_enabled() || (!keys.requires_grad() && !values.requires_grad()), "[", op,
        "] a cache keeps no gradients; decode under NoGradGuard");
  check(keys.dim() == 4 && values.dim() == 4 && keys.size(2) == values.size(2), "[", op, "] keys ",
        keys.sizes(), " and values ", values.sizes(), "; expected (N, heads, L, E) with one L");
  const std::int64_t count = keys.size(2);
  check(length_ + count <= capacity_, "[", op, "] ", count, " tokens after ", length_,
        " exceed the capacity of ", capacity_, "; construct the cache with more");
  const auto fits = [&](const Tensor& t, const Tensor& kept) {
    Shape sizes = t.sizes();
    if (kept.defined()) sizes[2] = kept.size(2);
    check(!kept.defined() ||
              (kept.sizes() == sizes && kept.dtype() == t.dtype() && kept.device() == t.device()),
          "[", op, "] tokens of shape ", t.sizes(), ", dtype ", t.dtype(), " and device ", t.device(),
          " do not fit a cache of ", kept.defined() ? kept.sizes() : Shape(), ", ",
          kept.defined() ? kept.dtype() : t.dtype(), " and ", kept.defined() ? kept.device() : t.device(),
          "; use one cache for each layer and batch");
  };
  fits(keys, keys_), fits(values, values_);
  const NoGradGuard no_grad;
  if (const std::int64_t room = keys_.defined() ? keys_.size(2) : 0; length_ + count > room) {
    constexpr std::int64_t kFirst = 256;  // tokens
    const std::int64_t size = std::min(capacity_, std::max({length_ + count, 2 * room, kFirst}));
    const auto grown = [&](const Tensor& t, const Tensor& kept) {
      Shape sizes = t.sizes();
      sizes[2] = size;
      Tensor out = empty(sizes, {t.dtype(), t.device()});
      if (length_ > 0) out.narrow(2, 0, length_).copy_(kept.narrow(2, 0, length_));
      return out;
    };
    Tensor more_keys = grown(keys, keys_), more_values = grown(values, values_);
    keys_ = std::move(more_keys), values_ = std::move(more_values);
  }
  keys_.narrow(2, length_, count).copy_(keys);
  values_.narrow(2, length_, count).copy_(values);
  length_ += count;
  return {keys_.narrow(2, 0, length_), values_.narrow(2, 0, length_)};
}

void KeyValueCache::truncate(std::int64_t length) {
  check(length >= 0 && length <= length_, "[KeyValueCache] cannot truncate ", length_, " tokens to ", length);
  length_ = length;
}

MultiheadAttention::MultiheadAttention(const Options& o)
    : options(checked(o)),
      in_proj_weight(param("in_proj_weight", weight_if(packed(options), 3 * o.embed_dim, o.embed_dim))),
      q_proj_weight(param("q_proj_weight", weight_if(!packed(options), o.embed_dim, o.embed_dim))),
      k_proj_weight(param("k_proj_weight", weight_if(!packed(options), o.embed_dim, *options.kdim))),
      v_proj_weight(param("v_proj_weight", weight_if(!packed(options), o.embed_dim, *options.vdim))),
      in_proj_bias(param("in_proj_bias", o.bias ? zeros({3 * o.embed_dim}) : Tensor())),
      bias_k(param("bias_k", bias_row_if(o.add_bias_kv, o.embed_dim))),
      bias_v(param("bias_v", bias_row_if(o.add_bias_kv, o.embed_dim))),
      out_proj(add<Linear>("out_proj",
                           {.in_features = o.embed_dim, .out_features = o.embed_dim, .bias = o.bias})) {
  if (o.bias) init::zeros_(out_proj.bias);
}

std::array<Tensor, 3> MultiheadAttention::project(const Tensor& query, const Tensor& key,
                                                  const Tensor& value) const {
  const Tensor weight = in_proj_weight, bias = in_proj_bias;
  std::vector<Tensor> biases(3);
  if (bias.defined()) biases = bias.chunk(3);
  if (!weight.defined())
    return {linear(query, q_proj_weight, biases[0]), linear(key, k_proj_weight, biases[1]),
            linear(value, v_proj_weight, biases[2])};
  if (query.is_same(key) &&
      key.is_same(value)) {  // self-attention: one matrix product computes all three projections
    const std::vector<Tensor> all = linear(query, weight, bias).chunk(3, -1);
    return {all[0], all[1], all[2]};
  }
  const std::vector<Tensor> weights = weight.chunk(3);
  return {linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
          linear(value, weights[2], biases[2])};
}

std::pair<Tensor, Tensor> MultiheadAttention::forward(const Tensor& query, const Tensor& key,
                                                      const Tensor& value, const AttendOptions& how) {
  const std::int64_t head_dim = options.embed_dim / options.num_heads,
                     heads = divided_heads ? divided_heads->count : options.num_heads;
  check(!divided_heads || !how.need_weights,
        "[multihead_attention] ranks divide the heads, and none has the weights of all; pass need_weights = "
        "false");
  const std::int64_t wanted[] = {options.embed_dim, *options.kdim, *options.vdim};
  const Tensor* const given[] = {&query, &key, &value};
  const char* const names[] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    tapestry::detail::check_defined("multihead_attention", *given[i], names[i]);
    const Tensor& t = *given[i];
    check((t.dim() == 2 || t.dim() == 3) && t.dim() == query.dim() && t.size(-1) == wanted[i],
          "[multihead_attention] expected a ", names[i], " of ", query.dim() == 2 ? "2" : "3",
          " dimensions, the last one ", wanted[i], ", but got ", t.sizes());
  }
  const DividedSequence* const sequence = divided(how.cache);
  check(!sequence || (query.is_same(key) && key.is_same(value)),
        "[multihead_attention] ranks divide the sequences, but query, key and value are not one tensor; only "
        "self-attention can be divided");
  check(!sequence || !(how.need_weights || how.attn_mask.defined() || how.key_padding_mask.defined() ||
                       options.add_bias_kv || options.add_zero_attn),
        "[multihead_attention] ranks divide the sequences, and an attention over ranks has no weights, masks "
        "or added keys; pass need_weights = false, and is_causal in place of a mask");
  const bool batched = query.dim() == 3;
  // Converts all layouts to (N, L, E). If the three inputs are the same tensor, they stay the same tensor.
  const auto batch_first = [&](const Tensor& x) {
    if (!batched) return x.unsqueeze(0);
    return options.batch_first ? x : x.transpose(0, 1);
  };
  const Tensor q_in = batch_first(query);
  const Tensor k_in = key.is_same(query) ? q_in : batch_first(key);
  const Tensor v_in = value.is_same(key) ? k_in : batch_first(value);
  const std::int64_t batch = q_in.size(0), targets = q_in.size(1), fresh = k_in.size(1);
  check(k_in.size(0) == batch && v_in.size(0) == batch && v_in.size(1) == fresh,
        "[multihead_attention] query ", query.sizes(), ", key ", key.sizes(), " and value ", value.sizes(),
        " do not fit: one batch size for all, one length for key and value");

  const std::int64_t past = how.cache ? how.cache->length() : 0, sources = past + fresh;

  Tensor mask;  // additive, broadcasting to (N, heads, L, S)
  const auto join = [&](const Tensor& m) { mask = mask.defined() ? mask + m : m; };
  if (how.attn_mask.defined()) {
    Tensor m = additive(how.attn_mask, query.dtype(), "attn_mask");
    const bool shared = m.sizes() == Shape{targets, sources};
    const std::int64_t all_heads = options.num_heads;
    check(shared || m.sizes() == Shape{batch * all_heads, targets, sources},
          "[multihead_attention] expected an attn_mask of [", targets, ", ", sources, "] or [",
          batch * all_heads, ", ", targets, ", ", sources, "] but got ", m.sizes());
    if (!shared) m = m.reshape({batch, all_heads, targets, sources});
    join(shared || !divided_heads ? m : m.narrow(1, divided_heads->first, heads));
  }
  if (how.key_padding_mask.defined()) {
    Tensor m = additive(how.key_padding_mask, query.dtype(), "key_padding_mask");
    if (!batched && m.dim() == 1) m = m.unsqueeze(0);
    check(m.sizes() == Shape{batch, sources}, "[multihead_attention] expected a key_padding_mask of [", batch,
          ", ", sources, "] but got ", m.sizes());
    join(m.reshape({batch, 1, 1, sources}));
  }
  const bool more_keys = options.add_bias_kv || options.add_zero_attn;
  // A single query after the earlier tokens sees all keys.
  const bool causal = how.is_causal && !(targets == 1 && sources == past + 1);
  const bool explicit_causal = causal && (mask.defined() || how.need_weights || more_keys);
  if (explicit_causal) {
    const TensorOptions there(query.device());
    join(additive(arange(sources, there).unsqueeze(0) > (arange(targets, there) + past).unsqueeze(1),
                  query.dtype(), "causal mask"));
  }

  const auto [q_flat, k_flat, v_flat] = project(q_in, k_in, v_in);
  const Tensor q = split_heads(q_flat, heads);
  Tensor k = split_heads(k_flat, heads), v = split_heads(v_flat, heads);
  if (how.cache) std::tie(k, v) = how.cache->append(k, v);
  if (options.add_bias_kv) {
    k = with_row(k, split_heads(bias_k, heads));
    v = with_row(v, split_heads(bias_v, heads));
  }
  if (options.add_zero_attn) {
    const Tensor zero = zeros({1, 1, 1, head_dim}, {k.dtype(), k.device()});
    k = with_row(k, zero);
    v = with_row(v, zero);
  }
  if (mask.defined() && more_keys) mask = pad(mask, {0, k.size(2) - sources});

  const double dropout_p = is_training() ? options.dropout : 0;
  Tensor context, weights;
  if (how.need_weights) {
    Tensor scores = matmul(q * (1 / std::sqrt(static_cast<double>(head_dim))), k.transpose(-2, -1));
    if (mask.defined()) scores = scores + mask;
    // A query that may see no key has weights of 0, as in scaled_dot_product_attention.
    Tensor blind;
    if (mask.defined() && scores.numel() > 0) {
      const NoGradGuard guard;
      blind = amax(scores, -1, true) == -std::numeric_limits<double>::infinity();
    }
    if (blind.defined()) scores = scores.masked_fill(blind, 0);
    weights = softmax(scores, -1);
    if (blind.defined()) weights = weights.masked_fill(blind, 0);
    weights = dropout(weights, dropout_p);
    context = matmul(weights, v);
    if (how.average_attn_weights) weights = weights.mean(1);
    if (!batched) weights = weights.squeeze(0);
  } else if (sequence) {
    context = sequence->attention(q, k, v, {.is_causal = how.is_causal, .dropout_p = dropout_p});
  } else {
    context = scaled_dot_product_attention(q, k, v,
                                           {.attn_mask = mask,
                                            .dropout_p = dropout_p,
                                            .is_causal = causal && !explicit_causal,
                                            .causal_offset = causal && !explicit_causal ? past : 0});
  }
  Tensor out = out_proj(context.transpose(1, 2).reshape({batch, targets, heads * head_dim}));
  if (!batched) out = out.squeeze(0);
  else if (!options.batch_first) out = out.transpose(0, 1);
  return {out, weights};
}
std::pair<Tensor, Tensor> MultiheadAttention::operator()(const Tensor& query, const Tensor& key,
                                                         const Tensor& value,
                                                         const AttendOptions& how) const {
  return call(*this, query, key, value, how);
}

Tensor MultiheadAttention::forward(const Tensor& x) {
  return forward(x, x, x, {.need_weights = false}).first;
}

std::string MultiheadAttention::options_text() const {
  detail::OptionsText text;
  text.add("embed_dim", options.embed_dim)
      .add("num_heads", options.num_heads)
      .add("dropout", options.dropout, 0.0)
      .add("bias", options.bias, true)
      .add("add_bias_kv", options.add_bias_kv, false)
      .add("add_zero_attn", options.add_zero_attn, false);
  if (!packed(options)) text.add("kdim", *options.kdim).add("vdim", *options.vdim);
  return text.add("batch_first", options.batch_first).str();
}

}  // namespace tapestry::nn
