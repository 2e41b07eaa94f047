// OLMoE beside a model of dense operations in float64, and its files.
#include "tapestry/nn/models/olmoe.h"

#include <cmath>
#include <fstream>

#include "tapestry/nn/models/generate.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/nn/golden.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::nn;
using tapestry::test::formula, tapestry::test::labels;

namespace {

OlmoeConfig small() {
  OlmoeConfig c;
  c.vocab_size = 29, c.hidden_size = 24, c.intermediate_size = 10, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.max_position_embeddings = 32, c.rope_theta = 100;
  c.num_experts = 6, c.num_experts_per_tok = 3, c.eos_token_id = 5, c.output_router_logits = true;
  c.router_aux_loss_coef = 0.25;
  return c;
}

void fill(Module& net, DType dtype = DType::f64) {
  net.to(dtype);
  const NoGradGuard no_grad;
  int k = 0;
  for (const auto& [name, p] : net.named_parameters())
    p->copy_(formula(p->sizes(), ++k, p->dim() > 1 ? 0.8 : 0.3) + (p->dim() > 1 ? 0.0 : 1.0));
}

Tensor normed(const Tensor& x, const Tensor& weight, double eps) {
  return x * (x.square().mean({-1}, true) + eps).rsqrt() * weight;
}
// Features i and i + size / 2 of a head are a pair.
Tensor rotated(const Tensor& x, double theta) {
  const std::int64_t length = x.size(-2), half = x.size(-1) / 2;
  Tensor angles = empty({length, half}, DType::f64);
  for (std::int64_t t = 0; t < length; ++t)
    for (std::int64_t i = 0; i < half; ++i)
      angles.data<double>()[t * half + i] =
          static_cast<double>(t) * std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
  const Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half), c = angles.cos(), s = angles.sin();
  return cat({a * c - b * s, a * s + b * c}, -1);
}

struct Result {
  Tensor logits, balance;
};
// OlmoeForCausalLM of transformers, with a loop over experts and the loss of load_balancing_loss_func().
Result dense(const Olmoe& net, const Tensor& ids) {
  const OlmoeConfig& c = net.config;
  std::map<std::string, Tensor> w;
  for (const auto& [name, p] : net.named_parameters()) w[name] = p.tensor();
  const std::int64_t batch = ids.size(0), length = ids.size(1), k = c.num_experts_per_tok;
  const std::int64_t groups = c.num_attention_heads / c.num_key_value_heads;
  Tensor x = embedding(w["model.embed_tokens.weight"], ids);
  std::vector<Tensor> router_logits;
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const auto at = [&](const std::string& name) { return w.at(layer + name + ".weight"); };
    const Tensor h = normed(x, at("input_layernorm"), c.rms_norm_eps);
    const auto heads = [&](const Tensor& t) {
      return t.reshape({batch, length, -1, c.head_dim()}).transpose(1, 2);
    };
    const Tensor q =
        rotated(heads(normed(linear(h, at("self_attn.q_proj")), at("self_attn.q_norm"), c.rms_norm_eps)),
                c.rope_theta);
    const Tensor keys =
        rotated(heads(normed(linear(h, at("self_attn.k_proj")), at("self_attn.k_norm"), c.rms_norm_eps)),
                c.rope_theta);
    const Tensor values = heads(linear(h, at("self_attn.v_proj")));
    Tensor scores = matmul(q, keys.repeat_interleave(groups, 1).transpose(-1, -2)) /
                    std::sqrt(static_cast<double>(c.head_dim()));
    scores = scores.masked_fill(ones({length, length}, DType::boolean).triu(1), -HUGE_VAL);
    const Tensor attended = matmul(softmax(scores, -1), values.repeat_interleave(groups, 1));
    x = x + linear(attended.transpose(1, 2).reshape({batch, length, c.hidden_size}), at("self_attn.o_proj"));

    const Tensor rows =
        normed(x, at("post_attention_layernorm"), c.rms_norm_eps).reshape({-1, c.hidden_size});
    const Tensor logits = linear(rows, at("mlp.gate")), probabilities = softmax(logits, 1);
    router_logits.push_back(logits);
    const Tensor chosen = topk(probabilities.detach(), k, 1).second;
    Tensor weights = probabilities * one_hot(chosen, c.num_experts).sum({1}).to(DType::f64);
    if (c.norm_topk_prob) weights = weights / weights.sum({1}, true);
    Tensor y = zeros_like(rows);
    for (std::int64_t e = 0; e < c.num_experts; ++e) {
      const Tensor both = linear(rows, w.at(layer + "mlp.experts.gate_up_proj")[e]);
      const Tensor gate = both.narrow(1, 0, c.intermediate_size);
      const Tensor inner = gate * sigmoid(gate) * both.narrow(1, c.intermediate_size, c.intermediate_size);
      y = y + linear(inner, w.at(layer + "mlp.experts.down_proj")[e]) * weights.narrow(1, e, 1);
    }
    x = x + y.reshape(x.sizes());
  }
  // The routers' loss, over the tokens of all layers. `parts` (k, experts): which part of the tokens has the
  // expert as its first, second, ... choice. It is multiplied by the expert's mean probability.
  const Tensor all = softmax(cat(router_logits, 0), 1);
  const Tensor parts = one_hot(topk(all.detach(), k, 1).second, c.num_experts).to(DType::f64).mean({0});
  const Tensor balance = (parts * all.mean({0}).unsqueeze(0)).sum() * static_cast<double>(c.num_experts);
  return {linear(normed(x, w["model.norm.weight"], c.rms_norm_eps),
                 c.tie_word_embeddings ? w["model.embed_tokens.weight"] : w["lm_head.weight"]),
          balance};
}

std::map<std::string, Tensor> gradients_of(Module& net) {
  std::map<std::string, Tensor> all;
  for (const auto& [name, p] : net.named_parameters()) {
    INFO(name);
    REQUIRE(p.grad().defined());
    all[name] = p.grad().clone();
  }
  net.zero_grad();
  return all;
}

}  // namespace

TEST_CASE("Olmoe: logits, the loss with that of the routers, and gradients are those of dense operations") {
  for (const bool norm : {false, true})
    for (const bool recompute : {false, true}) {
      OlmoeConfig c = small();
      c.norm_topk_prob = norm, c.tie_word_embeddings = norm;
      CAPTURE(norm, recompute);
      Olmoe net(c);
      fill(net);
      const Tensor ids = labels({2, 9}, 4, 29), next = labels({2, 9}, 5, 29);
      const Result want = dense(net, ids);
      CHECK(allclose(net(ids), want.logits, 1e-11, 1e-11));
      const Tensor words = cross_entropy(want.logits.flatten(0, 1), next.flatten());
      const Tensor loss = net(ids, {.targets = next, .checkpoint = recompute});
      CHECK(allclose(loss, words + want.balance * 0.25, 1e-12, 1e-12));
      loss.backward();
      const auto got = gradients_of(net);
      (words + want.balance * 0.25).backward();
      const auto expected = gradients_of(net);
      for (const auto& [name, grad] : expected) {
        INFO(name);
        CHECK(allclose(got.at(name), grad, 1e-10, 1e-12));
      }
      // Evaluation, and a configuration without the routers' loss, have the loss of the words alone.
      net.eval();
      CHECK(allclose(net(ids, {.targets = next}), words, 1e-12, 1e-12));
      c.output_router_logits = false;
      Olmoe plain(c);
      fill(plain);
      CHECK(allclose(plain(ids, {.targets = next}), words, 1e-12, 1e-12));
    }
}

TEST_CASE("Olmoe: files, logits, loss and gradients are those of transformers") {
  // tests/golden/nn_olmoe.py. transformers computes angles and the routers' probabilities in f32.
  const tapestry::test::NnGolden golden("olmoe");
  const auto net = load_language_model(tests::source_path("tests/golden/nn_olmoe"));
  REQUIRE(net->type_name() == "Olmoe");
  net->to(DType::f64);
  const Tensor words = labels({2, 7}, 4, 7), ids = words.narrow(1, 0, 6);
  CHECK(tapestry::test::difference((*net)(ids), golden.at("logits"), 2e-6) == "");
  const Tensor loss = (*net)(ids, {.targets = words.narrow(1, 1, 6)});
  CHECK(tapestry::test::difference(loss, golden.at("loss"), 1e-6) == "");
  loss.backward();
  const auto named = net->named_parameters();
  CHECK(named.size() == golden.under("gradient/").size());
  for (const auto& [name, p] : named) {
    INFO(name);
    CHECK(tapestry::test::difference(p.grad(), golden.at("gradient/" + name), 2e-6) == "");
  }
}

TEST_CASE("Olmoe: a cache gives the uncached logits, and documents in a sequence do not see each other") {
  const NoGradGuard no_grad;
  Olmoe net(small());
  fill(net);
  net.eval();
  const Tensor ids = labels({2, 9}, 3, 29), whole = net(ids);
  KvCache cache = net.make_cache(9);
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  for (const std::int64_t count : {4, 1, 3, 1}) {
    parts.push_back(net(ids.narrow(1, at, count), {.cache = &cache}));
    at += count;
  }
  CHECK(allclose(cat(parts, 1), whole, 0, 1e-11));
  const Tensor documents = tensor({0, 0, 0, 1, 1, 1, 1, 2, 2}, DType::i64).expand({2, 9}).contiguous();
  const Tensor packed =
      net(ids, {.positions = document_positions(documents), .mask = document_mask(documents)});
  CHECK(allclose(packed.narrow(1, 3, 4), net(ids.narrow(1, 3, 4)), 0, 1e-11));
  CHECK(generate(net, std::vector<std::int64_t>{7, 3}, {.max_new_tokens = 4}).size() <= 4);
}

TEST_CASE("Olmoe has as many parameters as OLMoE-1B-7B, and starts as Hugging Face's") {
  {
    const DeviceGuard guard("meta");
    std::int64_t count = 0;
    for (const Parameter& p : Olmoe(OlmoeConfig()).parameters()) count += p->numel();
    CHECK(count == 6'919'161'856);
  }
  OlmoeConfig c = small();
  c.hidden_size = 64, c.intermediate_size = 64;
  const Olmoe net(c);
  for (const auto& [name, p] : net.named_parameters()) {
    INFO(name);
    if (p->dim() > 1) CHECK(p->std().item<double>() == Approx(0.02).epsilon(0.1));
    else CHECK(p->eq(1).all().item<bool>());
  }
}

TEST_CASE("Olmoe: files have a matrix per expert, and load into the same model") {
  const tests::TempDir folder;
  for (const bool tied : {false, true}) {
    OlmoeConfig c = small();
    c.tie_word_embeddings = tied, c.attention_bias = tied;
    Olmoe net(c);
    fill(net, DType::f32);
    save_language_model(folder / "hf", net);
    const ModelWeights weights(folder / "hf");
    const auto& layer = dynamic_cast<OlmoeDecoderLayer&>(net.model.layers[1]);
    const Tensor gate_up = layer.mlp.experts.gate_up_proj[4].detach();
    const std::string expert = "model.layers.1.mlp.experts.4.";
    CHECK(weights.read(expert + "gate_proj.weight").equal(gate_up.narrow(0, 0, 10)));
    CHECK(weights.read(expert + "up_proj.weight").equal(gate_up.narrow(0, 10, 10)));
    CHECK(weights.read(expert + "down_proj.weight").equal(layer.mlp.experts.down_proj[4].detach()));
    CHECK(weights.find("model.layers.0.mlp.gate.weight")->sizes == Shape({6, 24}));
    CHECK_FALSE(weights.find("model.layers.1.mlp.experts.gate_up_proj"));
    CHECK((weights.find("lm_head.weight") == nullptr) == tied);
    CHECK(model_type_of(folder / "hf") == "olmoe");

    const auto loaded = load_language_model(folder / "hf");
    REQUIRE(loaded->type_name() == "Olmoe");
    for (const auto& [name, tensor] : net.state_dict())
      CHECK(tensor.equal(*nn::find(loaded->state_dict(), name)));
    const auto& config = dynamic_cast<const Olmoe&>(*loaded).config;
    CHECK(config.to_hf_json() == c.to_hf_json());
    std::filesystem::remove_all(folder / "hf");
  }
}

TEST_CASE("Olmoe: files with all experts in one tensor load too, and incomplete files are refused") {
  const tests::TempDir folder;
  Olmoe net(small());
  fill(net, DType::f32);
  const auto write = [&](const std::vector<TensorSource>& sources) {
    std::filesystem::remove_all(folder / "f");
    std::filesystem::create_directories(folder / "f");
    save_safetensors_shards(folder / "f", sources);
    std::ofstream(folder / "f/config.json") << net.config.to_hf_json();
    return folder / "f";
  };
  const auto joined = load_language_model(write(weight_sources(net.state_dict())));
  for (const auto& [name, tensor] : net.state_dict())
    CHECK(tensor.equal(*nn::find(joined->state_dict(), name)));

  const std::string lost = "model.layers.1.mlp.experts.5.up_proj.weight";
  std::vector<TensorSource> sources = hf_sources(net);
  std::erase_if(sources, [&](const TensorSource& s) { return s.name == lost; });
  CHECK_THROWS_WITH(load_language_model(write(sources)), ContainsSubstring(lost + " is missing"));
  CHECK_THROWS_WITH(save_hf(folder / "g", net.config, sources), ContainsSubstring(lost + " is missing"));
  Olmoe other(small());
  const Tensor before = nn::find(other.state_dict(), "model.layers.1.mlp.experts.gate_up_proj")->clone();
  const LoadResult result = load_weights(other, ModelWeights(folder / "f"), /*strict=*/false);
  CHECK(result.missing == std::vector<std::string>{lost});
  CHECK(nn::find(other.state_dict(), "model.layers.1.mlp.experts.gate_up_proj")->equal(before));
  CHECK(nn::find(other.state_dict(), "model.layers.0.mlp.experts.gate_up_proj")
            ->equal(*nn::find(net.state_dict(), "model.layers.0.mlp.experts.gate_up_proj")));

  sources = hf_sources(net);
  sources.push_back(sources.back());
  sources.back().name = "model.layers.1.mlp.experts.6.up_proj.weight";
  CHECK_THROWS_WITH(load_language_model(write(sources)),
                    ContainsSubstring("experts.6.up_proj.weight is unexpected"));
  OlmoeConfig wide = small();
  wide.intermediate_size = 2'000'000'000;
  write(hf_sources(net));
  std::ofstream(folder / "f/config.json") << wide.to_hf_json();
  CHECK_THROWS_WITH(load_language_model(folder / "f"), ContainsSubstring("do not fit to the configuration"));
  CHECK_THROWS_WITH(save_language_model_gguf(folder / "m.gguf", net),
                    ContainsSubstring("Olmoe cannot be written"));
  CHECK_FALSE(std::filesystem::exists(folder / "m.gguf"));
}

TEST_CASE("OlmoeConfig reads what OLMoE-1B-7B has, and refuses what the model does not compute") {
  const tests::TempDir folder;
  const auto read = [&](const std::string& changes) {
    std::ofstream(folder / "config.json")
        << R"({"architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "clip_qkv": null, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 1024, "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": false,
  "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
  "num_key_value_heads": 16, "output_router_logits": false, "pad_token_id": 1, "rope_scaling": null,
  "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 50304)"
        << changes << "}";
    return OlmoeConfig::from_hf_json(folder / "config.json");
  };
  CHECK(read("").to_hf_json() == OlmoeConfig().to_hf_json());
  const std::pair<const char*, const char*> wrong[] = {
      {R"(, "clip_qkv": 8.0)", "clip_qkv is 8.0"},
      {R"(, "hidden_act": "gelu")", "hidden_act is \"gelu\""},
      {R"(, "rope_scaling": {"type": "linear", "factor": 2.0})", "RoPE is scaled"},
      {R"(, "num_experts_per_tok": 65)", "there are 64 experts"},
      {R"(, "num_experts": 0)", "num_experts is 0"},
      {R"(, "num_key_value_heads": 3)", "no multiple of num_key_value_heads"},
      {R"(, "hidden_size": 2047)", "heads of an equal and even number"},
      {R"(, "router_aux_loss_coef": -1)", "router_aux_loss_coef is -1"},
      {R"(, "head_dim": 64)", "head_dim is not"},
      {R"(, "model_type": "llama")", "OlmoeConfig reads \"olmoe\""},
      {R"(, "shared_expert": 1)", "shared_expert is 1, a setting that is not supported"},
  };
  for (const auto& [changes, text] : wrong) {
    CAPTURE(changes);
    CHECK_THROWS_AS(read(changes), IoError);
    CHECK_THROWS_WITH(read(changes), ContainsSubstring(text));
  }
}
