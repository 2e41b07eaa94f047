#include "tapestry/nn/models/weights.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "tapestry/core/atomic_file.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::nn;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

Tensor random_tensor(const Shape& sizes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  Tensor t = empty(sizes);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = normal(random);
  return t;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0;
}

LlamaConfig small_llama() {
  LlamaConfig c;
  c.vocab_size = 40;
  c.hidden_size = 32;
  c.intermediate_size = 64;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.max_position_embeddings = 128;
  c.rms_norm_eps = 1e-5;  // no f32 number
  c.bos_token_id = 1;
  c.eos_token_id = 2;
  return c;
}

Gpt2Config small_gpt2() {
  Gpt2Config c;
  c.vocab_size = 40;
  c.n_positions = 16;
  c.n_embd = 32;
  c.n_layer = 2;
  c.n_head = 4;
  c.n_inner = 96;
  c.layer_norm_epsilon = 0.25;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  return c;
}

StateDict llama_state(const LlamaConfig& c) {
  StateDict dict;
  const auto put = [&](const std::string& name, const Shape& sizes) {
    dict.emplace_back(name, random_tensor(sizes, dict.size() + 1));
  };
  const std::int64_t h = c.hidden_size, q = c.num_attention_heads * c.head_dim,
                     kv = c.num_key_value_heads * c.head_dim, m = c.intermediate_size;
  put("model.embed_tokens.weight", {c.vocab_size, h});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    put(layer + "input_layernorm.weight", {h});
    put(layer + "self_attn.q_proj.weight", {q, h});
    put(layer + "self_attn.k_proj.weight", {kv, h});
    put(layer + "self_attn.v_proj.weight", {kv, h});
    put(layer + "self_attn.o_proj.weight", {h, q});
    if (c.attention_bias) put(layer + "self_attn.q_proj.bias", {q});
    if (c.attention_bias) put(layer + "self_attn.k_proj.bias", {kv});
    if (c.attention_bias) put(layer + "self_attn.v_proj.bias", {kv});
    if (c.attention_output_bias) put(layer + "self_attn.o_proj.bias", {h});
    put(layer + "post_attention_layernorm.weight", {h});
    put(layer + "mlp.gate_proj.weight", {m, h});
    put(layer + "mlp.up_proj.weight", {m, h});
    put(layer + "mlp.down_proj.weight", {h, m});
  }
  put("model.norm.weight", {h});
  if (!c.tie_word_embeddings) put("lm_head.weight", {c.vocab_size, h});
  return dict;
}

StateDict gpt2_state(const Gpt2Config& c) {
  StateDict dict;
  const auto put = [&](const std::string& name, const Shape& sizes) {
    dict.emplace_back(name, random_tensor(sizes, dict.size() + 1));
  };
  const std::int64_t e = c.n_embd;
  put("transformer.wte.weight", {c.vocab_size, e});
  put("transformer.wpe.weight", {c.n_positions, e});
  for (std::int64_t i = 0; i < c.n_layer; ++i) {
    const std::string layer = "transformer.h." + std::to_string(i) + ".";
    for (const char* const norm : {"ln_1", "ln_2"}) {
      put(layer + norm + ".weight", {e});
      put(layer + norm + ".bias", {e});
    }
    const std::tuple<const char*, std::int64_t, std::int64_t> linears[] = {{"attn.c_attn", e, 3 * e},
                                                                           {"attn.c_proj", e, e},
                                                                           {"mlp.c_fc", e, c.n_inner},
                                                                           {"mlp.c_proj", c.n_inner, e}};
    for (const auto& [name, in, out] : linears) {
      put(layer + name + ".weight", {in, out});
      put(layer + name + ".bias", {out});
    }
  }
  put("transformer.ln_f.weight", {e});
  put("transformer.ln_f.bias", {e});
  return dict;
}

void check_same(const ModelWeights& weights, const StateDict& expected) {
  CHECK(weights.entries().size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(weights.find(name));
    CHECK(weights.find(name)->sizes == tensor.sizes());
    CHECK(same(weights.read(name), tensor));
  }
}

/// A module whose parameters have the names and shapes of a state dict, and zeros.
struct Tree : Module {
  std::map<std::string, Tree*> children;
  void put(const std::string& path, const Shape& sizes) {
    const std::size_t dot = path.find('.');
    if (dot == std::string::npos) {
      Tensor zeros = empty(sizes);
      std::memset(zeros.raw_data(), 0, zeros.nbytes());
      param(path, zeros);
      return;
    }
    Tree*& child = children[path.substr(0, dot)];
    if (!child) child = &add(path.substr(0, dot), std::make_shared<Tree>());
    child->put(path.substr(dot + 1), sizes);
  }
};

}  // namespace

TEST_CASE("rows of q and k are reordered as llama.cpp's converter does, and back") {
  const auto golden = load_safetensors(tests::source_path("tests/golden/core_gguf.safetensors")).tensors;
  const Tensor &halves = golden.at("halves"), &interleaved = golden.at("interleaved");
  CHECK(same(rows_to_interleaved(halves, 3), interleaved));
  CHECK(same(rows_to_halves(interleaved, 3), halves));
  CHECK_FALSE(same(rows_to_halves(halves, 3), interleaved));
  // Packed rows move with their blocks.
  const Tensor wide = random_tensor({24, 64}, 3);
  const PackedTensor packed = PackedTensor::pack(wide, BlockType::q8_0);
  CHECK(same(rows_to_interleaved(packed, 3).unpack(),
             PackedTensor::pack(rows_to_interleaved(wide, 3), BlockType::q8_0).unpack()));
  CHECK(same(rows_to_halves(rows_to_interleaved(packed, 3), 3).unpack(), packed.unpack()));
  CHECK_THROWS_WITH(rows_to_halves(halves, 5), ContainsSubstring("24 rows cannot be the rows of 5 heads"));
  CHECK_THROWS_AS(rows_to_halves(halves, 0), ValueError);
  CHECK_THROWS_AS(rows_to_halves(halves, 24), ValueError);
  CHECK_THROWS_AS(rows_to_halves(empty({2, 2, 2}), 1), ValueError);
  CHECK_THROWS_AS(rows_to_halves(PackedTensor::pack(random_tensor({32}, 1), BlockType::q8_0), 2), ValueError);
}

TEST_CASE(
    "attention scores with GGUF's rows and RoPE of neighbours are those of HF's rows and RoPE of halves") {
  constexpr std::int64_t kHeads = 3, kDim = 8, kHidden = 5;
  const Tensor q = random_tensor({kHeads * kDim, kHidden}, 1), k = random_tensor({kHeads * kDim, kHidden}, 2),
               x = random_tensor({2, kHidden}, 3);
  const auto score = [&](const Tensor& wq, const Tensor& wk, std::int64_t head, bool neighbours) {
    // Projects token 0 at position 7 to q and token 1 at position 3 to k, and rotates both.
    double out = 0;
    std::vector<double> rotated[2];
    for (int which = 0; which < 2; ++which) {
      const float* const w = (which == 0 ? wq : wk).data<float>() + head * kDim * kHidden;
      std::vector<double> v(kDim), r(kDim);
      for (std::int64_t i = 0; i < kDim; ++i)
        for (std::int64_t j = 0; j < kHidden; ++j)
          v[static_cast<std::size_t>(i)] += static_cast<double>(w[i * kHidden + j]) *
                                            static_cast<double>(x.data<float>()[which * kHidden + j]);
      for (std::size_t i = 0; i < kDim / 2; ++i) {
        const double angle = (which == 0 ? 7 : 3) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
        const std::size_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + kDim / 2;
        r[a] = v[a] * std::cos(angle) - v[b] * std::sin(angle);
        r[b] = v[b] * std::cos(angle) + v[a] * std::sin(angle);
      }
      rotated[which] = r;
    }
    for (std::size_t i = 0; i < kDim; ++i) out += rotated[0][i] * rotated[1][i];
    return out;
  };
  const Tensor gguf_q = rows_to_interleaved(q, kHeads), gguf_k = rows_to_interleaved(k, kHeads);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const double hf = score(q, k, head, false);
    CHECK(std::fabs(score(gguf_q, gguf_k, head, true) - hf) < 1e-9);
    CHECK(std::fabs(score(gguf_q, gguf_k, head, false) - hf) > 1e-3);  // mixing the two is wrong
    CHECK(std::fabs(score(q, k, head, true) - hf) > 1e-3);
  }
}

TEST_CASE("Llama's weights go to GGUF and to Hugging Face's files and come back unchanged") {
  for (const bool tied : {false, true}) {
    for (const bool qwen : {false, true}) {
      CAPTURE(tied, qwen);
      const TempDir dir;
      LlamaConfig config = small_llama();
      config.tie_word_embeddings = tied;
      if (qwen) config.model_type = "qwen2";
      config.attention_bias = qwen;
      const StateDict state = llama_state(config);
      save_gguf(dir / "a.gguf", config, weight_sources(state));
      const ModelWeights gguf(dir / "a.gguf");
      check_same(gguf, state);
      REQUIRE(gguf.gguf());
      // Llama's q and k are reordered in the file by the number of their own heads, and nothing else is.
      const std::string q = "model.layers.1.self_attn.q_proj.weight",
                        k = "model.layers.1.self_attn.k_proj.weight";
      const Tensor stored_q = gguf.gguf()->packed("blk.1.attn_q.weight").unpack(),
                   stored_k = gguf.gguf()->packed("blk.1.attn_k.weight").unpack();
      CHECK(same(stored_q, qwen ? *find(state, q) : rows_to_interleaved(*find(state, q), 4)));
      CHECK(same(stored_k, qwen ? *find(state, k) : rows_to_interleaved(*find(state, k), 2)));
      CHECK(same(gguf.packed(q).unpack(), *find(state, q)));
      CHECK(same(gguf.gguf()->packed("blk.0.attn_v.weight").unpack(),
                 *find(state, "model.layers.0.self_attn.v_proj.weight")));
      const char* const embedding = tied ? "model.embed_tokens.weight" : "lm_head.weight";
      CHECK(same(gguf.read("lm_head.weight"), *find(state, embedding)));
      CHECK_THROWS_WITH(gguf.read("absent"), ContainsSubstring("has no tensor \"absent\""));

      save_hf(dir / "hf", config, gguf.sources(), {.max_shard_bytes = 20'000});
      CHECK(std::filesystem::exists(dir / "hf/model.safetensors.index.json"));
      const ModelWeights hf(dir / "hf");
      check_same(hf, state);
      CHECK(hf.gguf() == nullptr);
      CHECK(same(hf.read("lm_head.weight"), *find(state, embedding)));
      CHECK_THROWS_AS(hf.packed(q), ValueError);
      // And back: tensors come in another order, but each has the same bytes.
      save_gguf(dir / "b.gguf", LlamaConfig::from_hf_json(dir / "hf"), hf.sources());
      check_same(ModelWeights(dir / "b.gguf"), state);
      for (const GgufFile::Entry& entry : gguf.gguf()->entries())
        CHECK(same(GgufFile(dir / "b.gguf").packed(entry.name).unpack(), entry.tensor.unpack()));
      const LlamaConfig back = LlamaConfig::from_gguf(GgufFile(dir / "b.gguf"));
      CHECK(back.to_hf_json() == config.to_hf_json());
      CHECK(back.tie_word_embeddings == tied);
      CHECK(back.attention_bias == qwen);
      CHECK_FALSE(back.attention_output_bias);
      CHECK(back.num_key_value_heads == 2);
      CHECK(back.head_dim == 8);
      CHECK(back.vocab_size == 40);
    }
  }
}

TEST_CASE("GPT-2's linear layers are transposed in GGUF") {
  const TempDir dir;
  const Gpt2Config config = small_gpt2();
  const StateDict state = gpt2_state(config);
  save_gguf(dir / "a.gguf", config, weight_sources(state));
  const ModelWeights gguf(dir / "a.gguf");
  check_same(gguf, state);
  const PackedTensor& stored = gguf.gguf()->packed("blk.1.attn_qkv.weight");
  REQUIRE(stored.sizes() == Shape{96, 32});
  const Tensor values = stored.unpack(), original = *find(state, "transformer.h.1.attn.c_attn.weight");
  for (std::int64_t out = 0; out < 96; ++out)
    for (std::int64_t in = 0; in < 32; ++in)
      REQUIRE(values.data<float>()[out * 32 + in] == original.data<float>()[in * 96 + out]);
  CHECK_THROWS_WITH(gguf.packed("transformer.h.1.attn.c_attn.weight"),
                    ContainsSubstring("cannot be transposed"));
  save_hf(dir / "hf", config, gguf.sources());
  check_same(ModelWeights(dir / "hf"), state);
  const Gpt2Config back = Gpt2Config::from_gguf(*gguf.gguf());
  CHECK(back.n_inner == 96);
  CHECK(back.n_positions == 16);
  CHECK(back.layer_norm_epsilon == 0.25);
  CHECK(back.tie_word_embeddings);
  CHECK(Gpt2Config::from_hf_json(dir / "hf/config.json").n_head == 4);
  CHECK(model_type_of(dir / "hf") == "gpt2");
  CHECK(model_type_of(dir / "a.gguf") == "gpt2");
  // Files of the first GPT-2 have no prefix, and contain the causal mask.
  NamedTensors old;
  for (const auto& [name, tensor] : state)
    old.emplace_back(name.substr(std::string("transformer.").size()), tensor);
  old.emplace_back("h.0.attn.bias", empty({1, 1, 16, 16}, DType::u8));
  save_safetensors(dir / "old.safetensors", old);
  check_same(ModelWeights(dir / "old.safetensors"), state);
}

TEST_CASE("Q8_0 and F16 files are within a step of the weights") {
  const TempDir dir;
  const LlamaConfig config = small_llama();
  const StateDict state = llama_state(config);
  GgufMetadata extra;
  extra.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  extra.set("llama.block_count", std::uint32_t{77});  // the configuration's wins
  for (const BlockType type : {BlockType::q8_0, BlockType::f16, BlockType::bf16}) {
    save_gguf(dir / "f", config, weight_sources(state), {.type = type, .metadata = extra});
    const ModelWeights weights(dir / "f");
    CHECK(weights.gguf()->metadata().integer("llama.block_count") == 2);
    CHECK(LlamaConfig::from_gguf(*weights.gguf()).bos_token_id == 1);
    CHECK(weights.gguf()->packed("output_norm.weight").type() == BlockType::f32);
    CHECK(weights.gguf()->packed("blk.0.ffn_up.weight").type() == type);
    for (const auto& [name, tensor] : state) {
      const Tensor found = PackedTensor::pack(weights.read(name), BlockType::f32).unpack();
      float worst = 0;
      for (std::int64_t i = 0; i < tensor.numel(); ++i)
        worst = std::max(worst, std::fabs(found.data<float>()[i] - tensor.data<float>()[i]));
      CHECK(worst <= 0.025f);  // 4.5 / 127 is a step of Q8_0, 2^-7 one of bf16 at 4
      if (tensor.dim() == 2) CHECK(worst > 0);
    }
  }
}

TEST_CASE("weights are loaded into a module by name") {
  const TempDir dir;
  LlamaConfig config = small_llama();
  const StateDict state = llama_state(config);
  save_gguf(dir / "f", config, weight_sources(state));
  const ModelWeights weights(dir / "f");
  Tree model;
  for (const auto& [name, tensor] : state) model.put(name, tensor.sizes());
  CHECK(load_weights(model, weights).missing.empty());
  const StateDict loaded = model.state_dict();
  for (const auto& [name, tensor] : state) CHECK(same(*find(loaded, name), tensor));

  Tree other;  // a wrong shape, a missing and an unexpected name: one error, and nothing is loaded
  for (const auto& [name, tensor] : state)
    if (name != "model.norm.weight")
      other.put(name, name == "lm_head.weight" ? Shape{41, 32} : tensor.sizes());
  other.put("extra", {1});
  CHECK_THROWS_WITH(
      load_weights(other, weights),
      ContainsSubstring("lm_head.weight has the shape [40, 32], but the module's is [41, 32]") &&
          ContainsSubstring("extra is missing") && ContainsSubstring("model.norm.weight is unexpected"));
  CHECK(find(other.state_dict(), "model.embed_tokens.weight")->data<float>()[0] == 0);
  Tree part;
  part.put("model.norm.weight", {32});
  const LoadResult result = load_weights(part, weights, false);
  CHECK(result.unexpected.size() == state.size() - 1);
  CHECK(same(*find(part.state_dict(), "model.norm.weight"), *find(state, "model.norm.weight")));
}

TEST_CASE("files that are no model of the table are refused") {
  const TempDir dir;
  const LlamaConfig config = small_llama();
  StateDict state = llama_state(config);
  const auto broken = [&](const StateDict& dict, const std::string& why) {
    CHECK_THROWS_WITH(save_gguf(dir / "x", config, weight_sources(dict)), ContainsSubstring(why));
    CHECK_FALSE(std::filesystem::exists(dir / "x"));
  };
  StateDict less(state.begin(), state.end() - 2);
  broken(less, "model.norm.weight is missing");
  StateDict more = state;
  more.emplace_back("model.layers.0.extra.weight", empty({1}));
  broken(more, "model.layers.0.extra.weight is no weight of a model of type llama");
  StateDict odd = state;
  for (auto& [name, tensor] : odd)
    if (name == "model.layers.0.self_attn.k_proj.weight") tensor = random_tensor({6, 32}, 1);
  broken(odd, "6 rows cannot be the rows of 2 heads");
  CHECK_THROWS_AS(save_gguf(dir / "x", config, weight_sources(state), {.type = BlockType::q4_1}), ValueError);

  const auto refused = [&](const std::string& architecture, const std::string& tensor, const Shape& sizes,
                           std::uint32_t heads, const std::string& why) {
    GgufMetadata m;
    m.set("general.architecture", architecture);
    m.set("llama.attention.head_count", heads);
    GgufWriter writer(dir / "y", {{tensor, BlockType::f32, sizes}}, m);
    writer.write(random_tensor(sizes, 1));
    writer.commit();
    CHECK_THROWS_AS(ModelWeights(dir / "y"), IoError);
    CHECK_THROWS_WITH(ModelWeights(dir / "y"), ContainsSubstring(why));
  };
  refused("mamba", "a", {1}, 1, "\"mamba\", which is not supported");
  refused("llama", "blk.0.ssm_a", {1}, 1, "\"blk.0.ssm_a\" is unknown in a model of type llama");
  refused("llama", "blk..attn_q.weight", {2, 2}, 1, "is unknown");
  refused("llama", "blk.0.attn_q.weight", {6, 2}, 2, "does not fit to 2 heads");
  refused("llama", "blk.0.attn_q.weight", {6, 2}, 0, "does not fit to 0 heads");
  refused("llama", "blk.0.attn_q.weight", {6, 2}, UINT32_MAX, "does not fit to 4294967295 heads");
  refused("llama", "blk.0.attn_q.weight", {2, 2, 2}, 1, "does not fit to 1 heads");
  CHECK_THROWS_AS(weight_names("bert"), ValueError);
  CHECK_THROWS_AS(ModelWeights(dir / "absent"), IoError);
}

TEST_CASE("mutated models give weights and a configuration, or an IoError") {
  const TempDir dir;
  LlamaConfig llama = small_llama();
  llama.num_hidden_layers = 1;
  Gpt2Config gpt2 = small_gpt2();
  gpt2.n_layer = 1;
  save_gguf(dir / "llama", llama, weight_sources(llama_state(llama)), {.type = BlockType::q8_0});
  save_gguf(dir / "gpt2", gpt2, weight_sources(gpt2_state(gpt2)));
  for (const char* const name : {"llama", "gpt2"}) {
    std::string bytes = read_file(dir / name);
    bytes.resize(bytes.size() / 32 * 32);
    const int calls = tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
      write_file(dir / "f", mutated);
      const ModelWeights weights(dir / "f");
      for (const ModelWeights::Entry& entry : weights.entries())
        if (weights.read(entry.name).sizes() != entry.sizes) throw std::logic_error("another shape");
      if (std::string(name) == "llama") static_cast<void>(LlamaConfig::from_gguf(*weights.gguf()));
      else static_cast<void>(Gpt2Config::from_gguf(*weights.gguf()));
    });
    CHECK(calls > 100);
  }
}
