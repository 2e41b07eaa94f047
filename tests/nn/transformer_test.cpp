// Transformer layers, attention with caches and with added keys, against PyTorch
// (tests/golden/nn_sequences.py).
#include "tapestry/core/allocator.h"
#include "tests/nn/recorded_layer.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

RecordedLayers& recorded() {
  static RecordedLayers layers("transformer");
  return layers;
}
using One = std::vector<Tensor>;

// (S, N, E) = (4, 3, 4), and a memory of 5 tokens
Tensor source() { return formula({4, 3, 4}, 60, 2.0); }
Tensor memory() { return formula({5, 3, 4}, 61, 2.0); }
Tensor swapped(const Tensor& x) { return x.transpose(0, 1).contiguous(); }
Tensor causal_mask(std::int64_t n) { return triu(ones({n, n}, DType::boolean), 1); }
// True marks padding.
Tensor padding() { return tensor({{0, 0, 0, 1}, {0, 0, 0, 0}, {0, 0, 1, 1}}).to(DType::boolean); }

nn::TransformerEncoderLayerOptions small() {
  return {.d_model = 4, .nhead = 2, .dim_feedforward = 6, .dropout = 0};
}
nn::TransformerDecoderLayerOptions small_decoder() {
  return {.d_model = 4, .nhead = 2, .dim_feedforward = 6, .dropout = 0};
}

void check_encoder_layer(const std::string& label, const nn::TransformerEncoderLayerOptions& options,
                         const Tensor& x, const nn::EncodeOptions& how = {}) {
  nn::TransformerEncoderLayer m(options);
  recorded().check_layer("encoder_layer_" + label, m, {x}, [&](const One& in) { return One{m(in[0], how)}; });
}

}  // namespace

TEST_CASE("Transformer layers give PyTorch's outputs and gradients") {
  auto options = small();
  check_encoder_layer("plain", options, source());
  check_encoder_layer("unbatched", options, source().select(1, 0), {.src_mask = causal_mask(4)});
  options.norm_first = true, options.activation = "gelu";
  check_encoder_layer("norm_first", options, source());
  options.norm_first = false, options.batch_first = true;
  check_encoder_layer("masks", options, swapped(source()),
                      {.src_mask = causal_mask(4), .src_key_padding_mask = padding()});
  options = small();
  options.norm_first = true, options.bias = false, options.layer_norm_eps = 1e-3;
  check_encoder_layer("added", options, source(), {.src_mask = formula({4, 4}, 62, 3.0)});

  for (const bool final : {false, true}) {
    options = small();
    options.batch_first = true, options.norm_first = final;
    nn::TransformerEncoder m({.layer = options, .num_layers = 2, .norm = final});
    recorded().check_layer(final ? "encoder_norm" : "encoder", m, {swapped(source())}, [&](const One& in) {
      return One{m(in[0], {.mask = causal_mask(4), .src_key_padding_mask = padding()})};
    });
  }

  nn::TransformerDecoderLayer plain(small_decoder());
  recorded().check_layer("decoder_layer_plain", plain, {source(), memory()},
                         [&](const One& in) { return One{plain(in[0], in[1])}; });
  auto how = small_decoder();
  how.batch_first = true, how.norm_first = true, how.activation = "gelu";
  nn::TransformerDecoderLayer masked(how);
  const Tensor to_memory = tensor({{0, 0, 1, 0, 1}, {0, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}).to(DType::f64) * -3;
  recorded().check_layer("decoder_layer_masks", masked, {swapped(source()), swapped(memory())},
                         [&](const One& in) {
                           return One{masked(in[0], in[1],
                                             {.tgt_mask = causal_mask(4),
                                              .memory_mask = formula({4, 5}, 63),
                                              .tgt_key_padding_mask = padding(),
                                              .memory_key_padding_mask = to_memory})};
                         });
  nn::TransformerDecoder stack({.layer = small_decoder(), .num_layers = 2, .norm = true});
  recorded().check_layer("decoder", stack, {source(), memory()},
                         [&](const One& in) { return One{stack(in[0], in[1], {.tgt_is_causal = true})}; });

  const Tensor q = formula({3, 2, 4}, 64, 2.0), k = formula({5, 2, 4}, 65, 2.0),
               v = formula({5, 2, 4}, 66, 2.0);
  const Tensor hidden = tensor({{0, 0, 1, 0, 1}, {0, 1, 0, 0, 0}}).to(DType::boolean);
  const auto check_attention = [&](const std::string& label, const nn::MultiheadAttentionOptions& o) {
    nn::MultiheadAttention m(o);
    const auto list = [](const std::pair<Tensor, Tensor>& r) { return One{r.first, r.second}; };
    recorded().check_layer("mha_" + label, m, {q, k, v},
                           [&](const One& in) { return list(m(in[0], in[1], in[2])); });
    recorded().check_layer("mha_" + label + "_masks", m, {q, k, v}, [&](const One& in) {
      return list(
          m(in[0], in[1], in[2], {.key_padding_mask = hidden, .attn_mask = formula({3, 5}, 67, 3.0)}));
    });
  };
  check_attention("bias_kv", {.embed_dim = 4, .num_heads = 2, .add_bias_kv = true});
  check_attention("zero_attn", {.embed_dim = 4, .num_heads = 2, .add_zero_attn = true});
  check_attention("bias_and_zero",
                  {.embed_dim = 4, .num_heads = 2, .add_bias_kv = true, .add_zero_attn = true});
  CHECK(recorded().untested() == "");
}

TEST_CASE("is_causal gives what a causal mask gives, with and without added keys") {
  manual_seed(1);
  const Tensor x = randn({4, 3, 8});
  for (const bool more : {false, true})
    for (const bool need_weights : {false, true}) {
      CAPTURE(more, need_weights);
      nn::MultiheadAttention m({.embed_dim = 8, .num_heads = 2, .add_bias_kv = more, .add_zero_attn = more});
      const Tensor by_mask =
          m(x, x, x, {.need_weights = need_weights, .attn_mask = causal_mask(4)}).first.detach();
      const Tensor by_flag = m(x, x, x, {.need_weights = need_weights, .is_causal = true}).first.detach();
      CHECK(allclose(by_mask, by_flag, 1e-5, 1e-6));
    }
}

TEST_CASE("decoding with caches gives what one causal pass gives, whatever the number of new tokens") {
  manual_seed(2);
  auto layer = small();
  layer.batch_first = true, layer.norm_first = true;
  nn::TransformerEncoder m({.layer = layer, .num_layers = 2, .norm = true});
  m.eval();
  const NoGradGuard no_grad;
  const Tensor x = randn({2, 7, 4});
  const Tensor whole = m(x, {.is_causal = true});
  auto caches = m.make_caches(7);
  std::int64_t at = 0;
  for (const std::int64_t count : {3, 1, 2, 1}) {
    const Tensor y = m(x.narrow(1, at, count), {.is_causal = true, .caches = &caches});
    CHECK(allclose(y, whole.narrow(1, at, count), 1e-4, 1e-5));
    at += count;
  }
  CHECK(caches[1].length() == 7);
  CHECK_THROWS_WITH(m(x.narrow(1, 0, 1), {.is_causal = true, .caches = &caches}),
                    ContainsSubstring("1 tokens after 7 exceed the capacity of 7"));

  // Another continuation after the first five tokens: the cache forgets the others.
  for (nn::KeyValueCache& cache : caches) cache.truncate(5);
  const Tensor other = cat({x.narrow(1, 0, 5), randn({2, 1, 4})}, 1);
  const Tensor y = m(other.narrow(1, 5, 1), {.is_causal = true, .caches = &caches});
  CHECK(allclose(y, m(other, {.is_causal = true}).narrow(1, 5, 1), 1e-4, 1e-5));

  // Weights and padding of all tokens, by the first layer alone.
  nn::MultiheadAttention& attention = m.layers.get<nn::TransformerEncoderLayer>(0).self_attn;
  const Tensor pad = tensor({{1, 0, 0, 0}, {0, 1, 0, 0}}).to(DType::boolean);
  const Tensor head = x.narrow(1, 0, 2), tail = x.narrow(1, 2, 2), all = x.narrow(1, 0, 4);
  nn::KeyValueCache cache(4);
  attention(head, head, head, {.is_causal = true, .cache = &cache});
  const auto [got, got_weights] =
      attention(tail, tail, tail, {.key_padding_mask = pad, .is_causal = true, .cache = &cache});
  const auto [want, want_weights] = attention(all, all, all, {.key_padding_mask = pad, .is_causal = true});
  CHECK(allclose(got, want.narrow(1, 2, 2), 1e-4, 1e-5));
  CHECK(allclose(got_weights, want_weights.narrow(1, 2, 2), 1e-4, 1e-5));
}

TEST_CASE("a cache has memory for what it holds, and not for its capacity") {
  const NoGradGuard no_grad;
  const Tensor k = randn({1, 2, 700, 8}), v = randn({1, 2, 700, 4});
  const auto before = memory_stats(kCPU).allocated;
  nn::KeyValueCache cache(std::int64_t{1} << 40);
  std::pair<Tensor, Tensor> all;
  for (std::int64_t at = 0; at < 700; at += 7) all = cache.append(k.narrow(2, at, 7), v.narrow(2, at, 7));
  CHECK(all.first.equal(k));
  CHECK(all.second.equal(v));
  // Memory for 1024 tokens, and blocks of the allocator that round it up.
  CHECK(memory_stats(kCPU).allocated - before < 2 * 1024 * (2 * 12) * 4);
  CHECK_THROWS_WITH(cache.append(randn({2, 2, 1, 8}), randn({2, 2, 1, 4})), ContainsSubstring("do not fit"));
  CHECK(cache.length() == 700);
  cache.truncate(3);
  CHECK(cache.append(k.narrow(2, 3, 600), v.narrow(2, 3, 600)).first.equal(k.narrow(2, 0, 603)));
}

TEST_CASE("Transformer layers and caches report bad input") {
  const auto fails = [](const std::string& text, const auto& call) {
    CHECK_THROWS_WITH(call(), ContainsSubstring(text));
  };
  auto options = small();
  options.nhead = 3;
  fails("nhead must divide d_model", [&] { nn::TransformerEncoderLayer m(options); });
  options = small();
  options.activation = "tanh";
  fails("activation must be \"relu\" or \"gelu\" but is \"tanh\"",
        [&] { nn::TransformerEncoder m({.layer = options, .num_layers = 1}); });
  fails("num_layers must be positive", [&] { nn::TransformerEncoder m({.layer = small()}); });
  auto wide = small_decoder();
  wide.dim_feedforward = 0;
  fails("dim_feedforward must be positive", [&] { nn::TransformerDecoderLayer m(wide); });
  wide.dim_feedforward = 4, wide.dropout = -1;
  fails("dropout must lie in [0, 1]", [&] { nn::TransformerDecoderLayer m(wide); });
  fails("num_layers must be positive", [&] { nn::TransformerDecoder m({.layer = small_decoder()}); });

  nn::TransformerEncoder m({.layer = small(), .num_layers = 2});
  std::vector<nn::KeyValueCache> one(1, nn::KeyValueCache(4));
  fails("got 1 caches for 2 layers", [&] { m(zeros({4, 1, 4}), {.caches = &one}); });
  fails("capacity must be positive but is 0", [] { nn::KeyValueCache cache(0); });
  nn::KeyValueCache cache(4);
  const Tensor kept = zeros({2, 3, 1, 5});
  fails("decode under NoGradGuard", [&] { cache.append(kept.clone().set_requires_grad(), kept); });
  cache.append(kept, kept);
  fails("do not fit a cache of [2, 3, 4, 5]", [&] { cache.append(zeros({1, 3, 1, 5}), kept); });
  fails("do not fit", [&] { cache.append(kept, kept.to(DType::f64)); });
  fails("expected (N, heads, L, E) with one L", [&] { cache.append(kept, zeros({2, 3, 2, 5})); });
  fails("4 tokens after 1 exceed the capacity of 4", [&] {
    cache.append(zeros({2, 3, 4, 5}), zeros({2, 3, 4, 5}));
  });
  fails("cannot truncate 1 tokens to 2", [&] { cache.truncate(2); });
  CHECK(cache.length() == 1);
}
