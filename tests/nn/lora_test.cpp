// Low-rank adapters: what they compute, which layers they select, merging, and their state.
#include "tapestry/nn/models/lora.h"

#include <cmath>

#include "tapestry/nn/internal/name_pattern.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/nn/golden.h"
#include "tests/nn/small_models.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

// Adapters that change something: B starts as 0.
void fill_adapters(const nn::Module& net) {
  const NoGradGuard no_grad;
  int seed = 0;
  for (const auto& [path, adapter] : nn::lora_adapters(net)) {
    adapter->A->copy_(formula(adapter->A->sizes(), ++seed, 0.7));
    adapter->B->copy_(formula(adapter->B->sizes(), ++seed, 0.7));
  }
}
std::vector<std::string> trainable(const nn::Module& net) {
  std::vector<std::string> names;
  for (const auto& [name, p] : net.named_parameters())
    if (p->requires_grad()) names.push_back(name);
  return names;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("lora: an untrained adapter changes nothing, and only adapters are trained") {
  nn::Llama net(small_llama());
  net.to(DType::f64);
  const Tensor ids = labels({2, 7}, 3, 29), before = net(ids);
  const Names paths = nn::add_lora(net, {.r = 2, .target_modules = {"q_proj", "down_proj"}});
  CHECK(paths == Names{"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj",
                       "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"});
  CHECK(equal(net(ids), before));
  CHECK(trainable(net).size() == 8);
  CHECK(trainable(net)[0] == "model.layers.0.self_attn.q_proj.lora.A");
  const auto adapters = nn::lora_adapters(net);
  const nn::LoraAdapter& down = *adapters[1].second;
  CHECK(down.A->sizes() == Shape{2, 40});
  CHECK(down.B->sizes() == Shape{24, 2});
  CHECK(down.A->dtype() == DType::f64);
  // Kaiming-uniform with slope sqrt(5), as PEFT's: the bound is 1 / sqrt(in).
  const double largest = abs(down.A.tensor()).amax().item();
  CHECK(largest < 1 / std::sqrt(40.0));
  CHECK(largest > 0.8 / std::sqrt(40.0));
  CHECK(down.B->equal(zeros({24, 2}, kFloat64)));
  CHECK(down.str() == "LoraAdapter(r=2, lora_alpha=8)");
}

TEST_CASE("lora: the layer computes its result plus the scaled product of both matrices") {
  for (const bool rs : {false, true}) {
    nn::Sequential net(nn::make<nn::Linear>(5, 7));
    net.to(DType::f64);
    auto& inner = dynamic_cast<nn::Linear&>(net.at("0"));
    nn::add_lora(net, {.r = 3, .lora_alpha = 12, .target_modules = {"0"}, .use_rslora = rs});
    fill_adapters(net);
    nn::LoraAdapter& adapter = *nn::lora_adapters(net)[0].second;
    const double scaling = rs ? 12 / std::sqrt(3.0) : 4;
    CHECK(adapter.scaling() == Approx(scaling).epsilon(1e-15));
    const Tensor x = formula({2, 4, 5}, 9, 2.0);
    const Tensor weight = inner.weight + matmul(adapter.B, adapter.A) * scaling;
    CHECK(allclose(net(x), linear(x, weight, inner.bias), 1e-12, 1e-12));
    const Tensor a = formula({3, 5}, 1, 0.7).set_requires_grad(),
                 b = formula({7, 3}, 2, 0.7).set_requires_grad();
    const Tensor in = x.detach().set_requires_grad();
    autograd::gradgradcheck(
        [&](const std::vector<Tensor>& t) {
          adapter.A.set_replica(0, t[1]);
          adapter.B.set_replica(0, t[2]);
          return net(t[0]);
        },
        {in, a, b});
  }
}

TEST_CASE("lora: gradients are those of the merged weight, also in checkpoint()") {
  nn::Llama net(small_llama());
  net.to(DType::f64);
  nn::add_lora(net, {.r = 2, .lora_dropout = 0.5, .target_modules = {"all-linear"}});
  fill_adapters(net);
  const Tensor ids = labels({2, 9}, 3, 29), x = ids.narrow(1, 0, 8), y = ids.narrow(1, 1, 8);
  const auto gradients = [&](bool recompute) {
    manual_seed(5);
    net.zero_grad();
    net(x, {.targets = y, .checkpoint = recompute}).backward();
    std::vector<Tensor> all;
    for (const nn::Parameter& p : net.parameters())
      if (p->requires_grad()) all.push_back(p->grad());
    return all;
  };
  const std::vector<Tensor> kept = gradients(false), recomputed = gradients(true);
  REQUIRE(kept.size() == 28);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    CHECK(kept[i].equal(recomputed[i]));
    CHECK(kept[i].norm().item() > 0);
  }
  for (const auto& [name, p] : net.named_parameters())
    if (!p->requires_grad()) CHECK(!p->grad().defined());
}

TEST_CASE("lora: dropout acts in training alone") {
  nn::Sequential net(nn::make<nn::Linear>(40, 3, false));
  nn::add_lora(net, {.lora_dropout = 0.5, .target_modules = {"0"}});
  fill_adapters(net);
  const Tensor x = formula({2, 40}, 1, 2.0, DType::f32);
  CHECK(!net(x).equal(net(x)));
  net.eval();
  CHECK(net(x).equal(net(x)));
}

TEST_CASE("lora: layers are selected as by PEFT") {
  const auto selected = [](nn::Module& net, const nn::LoraOptions& options) {
    Names paths = nn::add_lora(net, options);
    nn::remove_lora(net);
    return paths;
  };
  nn::Llama llama(small_llama());
  CHECK(selected(llama, {}) == Names{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                                     "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"});
  CHECK(selected(llama, {.target_modules = {"all-linear"}}).size() == 14);
  CHECK(selected(llama, {.target_modules = {"model.layers.1.mlp.up_proj"}}).size() == 1);
  CHECK(selected(llama, {.target_modules = {"mlp.up_proj"}}).size() == 2);
  CHECK(selected(llama, {.target_pattern = ".*\\.0\\.(mlp|self_attn)\\.[a-k].*"}) ==
        Names{"model.layers.0.self_attn.k_proj", "model.layers.0.mlp.gate_proj",
              "model.layers.0.mlp.down_proj"});
  nn::Gpt2 gpt2(small_gpt2());
  CHECK(selected(gpt2, {}) == Names{"transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"});
  nn::Llama untied(scaled_llama());
  CHECK(selected(untied, {.target_modules = {"all-linear"}}).size() == 14);  // without the head

  const auto refuses = [](nn::Module& net, const nn::LoraOptions& options, const char* text) {
    const std::string tree = net.str();
    net.requires_grad_(true);
    CHECK_THROWS_WITH(nn::add_lora(net, options), ContainsSubstring(text));
    CHECK(net.str() == tree);
    CHECK(trainable(net).size() == net.parameters().size());
  };
  refuses(untied, {.target_modules = {"q_proj", "lm_head"}}, "'lm_head' is the head of a language model");
  refuses(untied, {.target_modules = {"q_proj", "_proj"}}, "no Linear layer of the Llama is named '_proj'");
  refuses(untied, {.target_modules = {"embed_tokens"}}, "is named 'embed_tokens'");
  refuses(untied, {.target_pattern = "q_proj"}, "is selected by the pattern \"q_proj\"");
  refuses(untied, {.target_modules = {"q_proj"}, .target_pattern = "x"}, "are both set");
  refuses(untied, {.r = 0}, "r is 0");
  refuses(untied, {.r = 1 << 20}, "r is 1048576");
  refuses(untied, {.lora_alpha = std::nan("")}, "lora_alpha is nan");
  refuses(untied, {.lora_dropout = 1}, "lora_dropout is 1");
  nn::Sequential plain(nn::make<nn::Linear>(2, 2));
  refuses(plain, {}, "has no default layers");
  nn::add_lora(plain, {.target_modules = {"all-linear"}});
  CHECK_THROWS_WITH(nn::add_lora(plain, {.target_modules = {"0"}}),
                    ContainsSubstring("has adapters already"));
  CHECK_THROWS_WITH(nn::merge_lora(untied), ContainsSubstring("has no adapters"));
  CHECK_THROWS_WITH(nn::remove_lora(untied), ContainsSubstring("has no adapters"));
}

TEST_CASE("lora: patterns match as Python's re.fullmatch, in linear time") {
  const auto matches = [](const std::string& pattern, const std::string& name) {
    return nn::detail::NamePattern(pattern).matches(name);
  };
  CHECK(matches("", ""));
  CHECK(!matches("", "a"));
  CHECK(matches("a|bc|", "bc"));
  CHECK(!matches("a|bc", "abc"));
  CHECK(matches(".*\\.(q|v)_proj$", "model.layers.11.q_proj"));
  CHECK(!matches(".*\\.(q|v)_proj$", "model.layers.11.k_proj"));
  CHECK(!matches(".*.(q|v)_proj", "model.q_proj.x"));
  CHECK(matches("^h\\.[0-3]\\.(?:attn|mlp)\\.\\w+$", "h.2.mlp.c_fc"));
  CHECK(!matches("^h\\.[0-3]\\.(?:attn|mlp)\\.\\w+$", "h.4.mlp.c_fc"));
  CHECK(matches("[^a-c]{2,3}?x+y*", "ddxx"));
  CHECK(!matches("[^a-c]{2,3}x", "dx"));
  CHECK(!matches("[^a-c]{2,3}x", "ddddx"));
  CHECK(matches("(ab){2}", "abab"));
  CHECK(matches("(a{0,2}b){,2}", "aabb"));
  CHECK(matches("[]x]", "]"));
  CHECK(matches("[a\\-z]", "-"));
  CHECK(!matches("[a\\-z]", "b"));
  CHECK(matches("\\d\\D\\S\\.", "1ab."));
  CHECK(!matches("a^b", "ab"));
  CHECK(matches("(a*)*b", std::string(20000, 'a') + "b"));  // exponential for engines that backtrack
  CHECK(!matches("(a|a)*(a|aa)*c", std::string(5000, 'a')));
  for (const char* broken : {"(", ")", "a)", "[", "[a", "[b-a]", "*", "a**", "a{2,1}", "a{2", "\\", "\\1",
                             "(?=a)", "(?P<n>a)", "\\b", "a{5000}", "((a{999}){999}){999}", "[\\d-x]"}) {
    INFO(broken);
    CHECK_THROWS_WITH(nn::detail::NamePattern(broken), ContainsSubstring("at position"));
  }
  CHECK_THROWS_WITH(nn::detail::NamePattern(std::string(100'000, '(')), ContainsSubstring("nested"));
}

TEST_CASE("lora: merging adds the product to the weights, and can be undone") {
  nn::Gpt2 net(small_gpt2());
  net.to(DType::f64);
  net.eval();
  const Tensor ids = labels({2, 7}, 3, 29), base = net(ids);
  const nn::StateDict weights = [&] {
    nn::StateDict copies;
    for (const auto& [name, t] : net.state_dict()) copies.emplace_back(name, t.clone());
    return copies;
  }();
  nn::add_lora(net, {.r = 3, .target_modules = {"c_attn", "c_fc"}});
  fill_adapters(net);
  const Tensor adapted = net(ids);
  CHECK(!allclose(adapted, base, 1e-3, 1e-3));
  nn::merge_lora(net);
  nn::merge_lora(net);  // does nothing more
  CHECK(allclose(net(ids), adapted, 1e-12, 1e-12));
  nn::unmerge_lora(net);
  CHECK(allclose(net(ids), adapted, 1e-12, 1e-12));
  for (const auto& [name, t] : weights) CHECK(allclose(*nn::find(net.state_dict(), name), t, 0, 1e-14));
  nn::merge_lora(net);
  nn::remove_lora(net);
  CHECK(allclose(net(ids), adapted, 1e-12, 1e-12));
  CHECK(net.state_dict().size() == weights.size());
  CHECK(net.str().find("lora") == std::string::npos);
  CHECK_NOTHROW(nn::add_lora(net));
  nn::remove_lora(net);  // without a merge
  CHECK(allclose(net(ids), adapted, 1e-12, 1e-12));
}

TEST_CASE("lora: a merge that cannot be done changes nothing") {
  nn::Llama net(small_llama());
  nn::add_lora(net);
  fill_adapters(net);
  auto& last = net.model.layers.get<nn::LlamaDecoderLayer>(1).self_attn.v_proj;
  nn::weight_norm(last);
  const Tensor first = net.model.layers.get<nn::LlamaDecoderLayer>(0).self_attn.q_proj.weight->clone();
  CHECK_THROWS_WITH(nn::merge_lora(net),
                    ContainsSubstring("layers.1.self_attn.v_proj' is packed, parametrized"));
  CHECK(equal(net.model.layers.get<nn::LlamaDecoderLayer>(0).self_attn.q_proj.weight, first));
  nn::Sequential tied(nn::make<nn::Linear>(3, 3, false), nn::make<nn::Linear>(3, 3, false));
  dynamic_cast<nn::Linear&>(tied.at("1")).weight = dynamic_cast<nn::Linear&>(tied.at("0")).weight;
  nn::add_lora(tied, {.target_modules = {"0"}});
  CHECK_THROWS_WITH(nn::merge_lora(tied), ContainsSubstring("is shared with another module"));
}

TEST_CASE("lora: adapters of a base in bf16 are f32") {
  nn::Llama net(small_llama());
  net.to(DType::bf16);
  nn::add_lora(net);
  fill_adapters(net);
  CHECK(nn::lora_adapters(net)[0].second->A->dtype() == DType::f32);
  const Tensor ids = labels({2, 7}, 3, 29), logits = net(ids);
  CHECK(logits.dtype() == DType::bf16);
  net(ids, {.targets = ids}).backward();
  CHECK(nn::lora_adapters(net)[0].second->A->grad().dtype() == DType::f32);
  const NoGradGuard no_grad;
  nn::merge_lora(net);
  CHECK(allclose(net(ids).to(DType::f32), logits.to(DType::f32), 0.05, 0.1));
}

TEST_CASE("lora: a base whose weights stay packed gives the losses and gradients of its elements") {
  const tests::TempDir dir;
  nn::LlamaConfig config = scaled_llama();
  config.model_type = "llama", config.attention_bias = false, config.rope_scaling = {};
  config.hidden_size = 32, config.intermediate_size = 64,
  config.num_key_value_heads = 2;  // rows of whole blocks
  manual_seed(3);
  nn::save_language_model_gguf(dir / "m.gguf", nn::Llama(config), {.type = BlockType::q8_0});
  const auto packed = nn::load_language_model(dir / "m.gguf", {.packed = true});
  const auto plain = nn::load_language_model(dir / "m.gguf");
  const Tensor ids = labels({2, 9}, 3, 29), x = ids.narrow(1, 0, 8), y = ids.narrow(1, 1, 8);
  for (nn::LanguageModel* net : {packed.get(), plain.get()}) {
    CHECK(nn::add_lora(*net, {.target_modules = {"all-linear"}}).size() == 14);  // without the head
    fill_adapters(*net);
    (*net)(x, {.targets = y, .checkpoint = true}).backward();
  }
  const auto a = nn::lora_adapters(*packed), b = nn::lora_adapters(*plain);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].second->A->grad().allclose(b[i].second->A->grad(), 1e-3, 1e-6));
    CHECK(a[i].second->B->grad().allclose(b[i].second->B->grad(), 1e-3, 1e-6));
    CHECK(a[i].second->B->grad().norm().item() > 0);
  }
  CHECK_THROWS_WITH(nn::merge_lora(*packed), ContainsSubstring("is packed, parametrized"));
  CHECK_THROWS_WITH(nn::add_lora(*nn::load_language_model(dir / "m.gguf", {.packed = true}),
                                 {.target_modules = {"lm_head"}}),
                    ContainsSubstring("'lm_head' is the head"));
}

TEST_CASE("lora: adapters on the meta device get the values of construction there") {
  const auto make = [](Device device) {
    const DeviceGuard guard(device);
    manual_seed(3);
    auto net = std::make_unique<nn::Llama>(small_llama());
    nn::add_lora(*net);
    return net;
  };
  const auto meta = make("meta"), real = make("cpu");
  nn::materialize(*meta, "cpu");
  CHECK(nn::lora_adapters(*meta)[3].second->A->equal(nn::lora_adapters(*real)[3].second->A));
  CHECK(trainable(*meta) == trainable(*real));
}

TEST_CASE("lora: the state has PEFT's names and loads all or nothing") {
  nn::Llama net(small_llama()), other(small_llama());
  nn::add_lora(net, {.r = 2});
  nn::add_lora(other, {.r = 2});
  fill_adapters(net);
  nn::StateDict dict = nn::lora_state_dict(net);
  REQUIRE(dict.size() == 8);
  CHECK(dict[1].first == "model.layers.0.self_attn.q_proj.lora_B.weight");
  nn::load_lora_state_dict(other, dict);
  const auto values = nn::lora_state_dict(other);
  for (std::size_t i = 0; i < 8; ++i) CHECK(values[i].second.equal(dict[i].second));
  dict[0].second = zeros({3, 24});
  dict[1].first = "model.layers.7.self_attn.q_proj.lora_B.weight";
  CHECK_THROWS_WITH(
      nn::load_lora_state_dict(other, dict),
      ContainsSubstring("wrong shapes: model.layers.0.self_attn.q_proj.lora_A.weight is [3, 24] "
                        "instead of [2, 24]") &&
          ContainsSubstring("missing tensors: model.layers.0.self_attn.q_proj.lora_B.weight") &&
          ContainsSubstring("does not have: model.layers.7.self_attn.q_proj.lora_B.weight"));
  for (std::size_t i = 0; i < 8; ++i) CHECK(values[i].second.equal(nn::lora_state_dict(net)[i].second));
}
