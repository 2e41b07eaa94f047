// Compares language models with PyTorch over 50 steps from the same weights and data
// (tests/golden/nn_language.py), and cached with uncached calls.
#include <cmath>
#include <memory>

#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tests/nn/golden.h"
#include "tests/nn/small_models.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

std::unique_ptr<nn::LanguageModel> make_model(const std::string& name) {
  if (name == "gpt2") return std::make_unique<nn::Gpt2>(small_gpt2());
  return std::make_unique<nn::Llama>(name == "llama" ? small_llama() : scaled_llama());
}
const std::string kNames[] = {"llama", "scaled", "gpt2"};

void follow(const std::string& name, DType dtype, double logits_tolerance, double loss_tolerance) {
  static const NnGolden golden("language");
  const std::string label = name + (dtype == DType::f64 ? "_f64" : "_f32");
  const std::unique_ptr<nn::LanguageModel> net = make_model(name);
  std::vector<std::string> ours, theirs;
  for (const auto& [parameter, p] : net->named_parameters()) ours.push_back(parameter);
  for (const auto& [parameter, record] : golden.under(label + "/parameter/"))
    theirs.push_back(parameter.substr(parameter.find('/') + 1));
  REQUIRE(ours == theirs);
  fill_as_language_models(*net, dtype);
  INFO(label);
  CHECK(difference((*net)(labels({2, 12}, 4, 29)), golden.at(label + "/logits"), logits_tolerance) == "");

  std::unique_ptr<optim::Optimizer> optimizer;
  if (dtype == DType::f64)
    optimizer = std::make_unique<optim::AdamW>(net->parameters(), optim::AdamW::Options{.lr = 0.003});
  else optimizer = std::make_unique<optim::SGD>(net->parameters(), optim::SGD::Options{.lr = 0.05});
  const std::vector<double>& wanted = golden.at(label + "/losses").values;
  for (int step = 0; step < kSteps; ++step) {
    const Tensor words = labels({4, 13}, step % 5, 29);
    optimizer->zero_grad();
    const Tensor loss = (*net)(words.narrow(1, 0, 12), {.targets = words.narrow(1, 1, 12)});
    loss.backward();
    optimizer->step();
    const double expected = wanted[static_cast<std::size_t>(step)];
    INFO("step " << step << ": " << loss.item() << ", PyTorch " << expected);
    CHECK(std::abs(loss.item() - expected) <= loss_tolerance * expected);
  }
}

}  // namespace

TEST_CASE("language models: names, logits and 50 steps are PyTorch's") {
  for (const std::string& name : kNames) {
    follow(name, DType::f64, 1e-12, 1e-9);
    follow(name, DType::f32, 2e-5, 1e-4);
  }
}

TEST_CASE("language models: a cache gives the uncached logits and greedy words") {
  const NoGradGuard no_grad;
  for (const std::string& name : kNames) {
    INFO(name);
    const std::unique_ptr<nn::LanguageModel> net = make_model(name);
    fill_as_language_models(*net, DType::f32);
    net->eval();
    const Tensor ids = labels({2, 15}, 3, 29), whole = (*net)(ids);
    nn::KvCache cache = net->make_cache(15);
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (const std::int64_t count : {4, 1, 1, 3, 5, 1}) {
      parts.push_back((*net)(ids.narrow(1, at, count), {.cache = &cache}));
      CHECK(cache.length() == (at += count));
    }
    const Tensor cached = cat(parts, 1);
    CHECK(allclose(cached, whole, 0, 1e-4));
    CHECK(equal(argmax(cached, -1), argmax(whole, -1)));
    // After a part of the text is forgotten, another goes on.
    cache.truncate(6);
    CHECK(allclose((*net)(ids.narrow(1, 6, 9), {.cache = &cache, .last = true}), whole.narrow(1, 14, 1), 0,
                   1e-4));
    CHECK_THROWS_WITH((*net)(ids, {.cache = &cache}), ContainsSubstring("exceed the c"));
    CHECK(cache.length() == 15);
  }
}

TEST_CASE("language models: packed documents have the logits and the loss of single ones") {
  for (const std::string& name : kNames) {
    INFO(name);
    const std::unique_ptr<nn::LanguageModel> net = make_model(name);
    fill_as_language_models(*net, DType::f64);
    net->eval();
    const Tensor ids = labels({2, 11}, 3, 29);
    const Tensor documents =
        tensor({0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, kInt64).reshape({2, 11});
    const Tensor positions = nn::document_positions(documents);
    CHECK(equal(
        positions,
        tensor({0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, kInt64).reshape({2, 11})));
    const Tensor packed = (*net)(ids, {.positions = positions, .mask = nn::document_mask(documents)});
    const std::array<std::int64_t, 3> pieces[] = {{0, 0, 4}, {0, 4, 2}, {0, 6, 5}, {1, 0, 1}, {1, 1, 10}};
    for (const auto& [row, from, count] : pieces) {
      const auto part = [&](const Tensor& t) { return t.narrow(0, row, 1).narrow(1, from, count); };
      CHECK(allclose(part(packed), (*net)(part(ids)), 1e-10, 1e-10));
    }
    const Tensor loss = (*net)(ids, {.targets = labels({2, 11}, 5, 29)});
    CHECK(allclose(loss, cross_entropy((*net)(ids).flatten(0, 1), labels({2, 11}, 5, 29).flatten()), 1e-12,
                   1e-12));
  }
}

TEST_CASE("language models: a batch without sequences has no logits, and gradients of 0") {
  for (const std::string& name : kNames) {
    INFO(name);
    const std::unique_ptr<nn::LanguageModel> net = make_model(name);
    fill_as_language_models(*net, DType::f64);
    const Tensor ids = zeros({0, 7}, kInt64);
    CHECK((*net)(ids).sizes() == Shape{0, 7, net->vocab_size()});
    for (const bool checkpoint : {false, true}) {
      const Tensor loss = (*net)(ids, {.targets = ids, .checkpoint = checkpoint});
      loss.flatten().narrow(0, 0, 0).sum().backward();  // as a Strategy replaces a mean over nothing
      for (const auto& [parameter, p] : net->named_parameters()) {
        INFO(parameter);
        REQUIRE(p.grad().defined());
        CHECK(p.grad().abs().max().item() == 0);
      }
    }
    CHECK_THROWS_WITH((*net)(zeros({2, 0}, kInt64)), ContainsSubstring("an L of 1 or more"));
  }
}

TEST_CASE("language models: gradients of blocks agree with finite differences") {
  const auto llama = std::make_unique<nn::Llama>(scaled_llama());
  const auto gpt2 = std::make_unique<nn::Gpt2>(small_gpt2());
  fill_as_language_models(*llama, DType::f64);
  fill_as_language_models(*gpt2, DType::f64);
  const Tensor x = formula({2, 3, 24}, 7, 2.0).set_requires_grad();
  autograd::gradcheck([&](const std::vector<Tensor>& in) { return llama->model.layers[0](in[0]); }, {x});
  autograd::gradcheck([&](const std::vector<Tensor>& in) { return gpt2->transformer.h[0](in[0]); }, {x});
}

TEST_CASE("language models: parameters are counted as by Hugging Face") {
  const DeviceGuard guard("meta");
  const auto count = [](const nn::Module& net) {
    std::int64_t n = 0;
    for (const nn::Parameter& p : net.parameters()) n += p->numel();
    return n;
  };
  nn::LlamaConfig smol;  // SmolLM2-135M
  smol.vocab_size = 49152, smol.hidden_size = 576, smol.intermediate_size = 1536, smol.num_hidden_layers = 30;
  smol.num_attention_heads = 9, smol.num_key_value_heads = 3, smol.head_dim = 64;
  smol.max_position_embeddings = 8192, smol.rope_theta = 1e5, smol.tie_word_embeddings = true;
  CHECK(count(nn::Llama(smol)) == 134'515'008);
  nn::LlamaConfig qwen;  // Qwen2-0.5B
  qwen.model_type = "qwen2";
  qwen.vocab_size = 151936, qwen.hidden_size = 896, qwen.intermediate_size = 4864,
  qwen.num_hidden_layers = 24;
  qwen.num_attention_heads = 14, qwen.num_key_value_heads = 2, qwen.head_dim = 64;
  qwen.tie_word_embeddings = true, qwen.attention_bias = true;
  CHECK(count(nn::Llama(qwen)) == 494'032'768);
  CHECK(count(nn::Gpt2(nn::Gpt2Config())) == 124'439'808);
  CHECK_THAT(nn::Llama(small_llama()).summary({1, 8}, DType::i64), ContainsSubstring("LlamaDecoderLayer"));
}

TEST_CASE("language models: a model in bf16 keeps its angles in f32") {
  const NoGradGuard no_grad;
  const auto net = std::make_unique<nn::Llama>(small_llama());
  fill_as_language_models(*net, DType::f32);
  const Tensor ids = labels({1, 31}, 3, 29), whole = (*net)(ids);
  net->to(DType::bf16);
  const Tensor half = (*net)(ids);
  CHECK(half.dtype() == DType::bf16);
  CHECK(net->model.rotary_emb.angles(0, 4, DType::bf16, kCPU).cos.dtype() == DType::f32);
  CHECK(allclose(half.to(DType::f32), whole, 0.05, 0.1));
}

TEST_CASE("language models: wrong calls are errors that leave the cache as it was") {
  const NoGradGuard no_grad;
  nn::Llama net(small_llama());
  net.eval();
  const Tensor ids = labels({2, 5}, 3, 29);
  nn::KvCache cache = net.make_cache();
  net(ids, {.cache = &cache});
  const auto refuses = [&](const Tensor& words, const nn::TokenContext& how, const char* text) {
    CHECK_THROWS_WITH(net(words, how), ContainsSubstring(text));
    for (std::int64_t i = 0; i < 2; ++i) CHECK(cache.layer(i).length() == 5);
  };
  refuses(ids.to(DType::f32), {}, "token ids must be integers");
  refuses(ids.flatten(), {}, "expected (N, L)");
  refuses(labels({1, 33}, 1, 29), {}, "33 tokens after 0 exceed the context of 32");
  refuses(labels({2, 28}, 1, 29), {.cache = &cache}, "28 tokens after 5 exceed the context of 32");
  refuses(ids + 27, {.cache = &cache}, "outside [0, 29)");
  refuses(labels({3, 2}, 1, 29), {.cache = &cache}, "do not fit a cache");
  refuses(ids, {.targets = ids.narrow(1, 0, 4)}, "give one word for each token");
  refuses(ids, {.cache = &cache, .positions = ids + 30}, "of max_seq_len");
  nn::KvCache other(3, 32);
  refuses(ids, {.cache = &other}, "the cache has 3 layers, the model 2");
  CHECK_THROWS_WITH(net.make_cache(33), ContainsSubstring("larger than the context"));
  CHECK_THROWS_WITH(nn::RotaryEmbedding({.dim = 5}), ContainsSubstring("even and positive"));
  CHECK_THROWS_WITH(nn::RotaryEmbedding({.dim = 4, .frequencies = {1}}),
                    ContainsSubstring("one for each of the 2"));
  CHECK_THROWS_WITH(nn::RotaryEmbedding({.dim = 4, .max_seq_len = 8})(zeros({9, 4})),
                    ContainsSubstring("position 8"));
}

TEST_CASE("RotaryEmbedding: positions select the rows of the table") {
  nn::RotaryEmbedding rotary({.dim = 6, .max_seq_len = 100, .base = 50});
  CHECK(rotary.str() == "RotaryEmbedding(dim=6, max_seq_len=100, base=50)");
  const Tensor x = formula({2, 3, 4, 6}, 5, 2.0);
  CHECK(equal(rotary(x, 70), rotary(x, arange(70, 74))));
  const Tensor positions = tensor({1, 2, 3, 4, 90, 7, 8, 99}, kInt64).reshape({2, 4});
  const Tensor y = rotary(x, positions);
  CHECK(equal(y.narrow(0, 0, 1), rotary(x.narrow(0, 0, 1), 1)));
  CHECK(equal(y.select(0, 1).narrow(1, 3, 1), rotary(x.select(0, 1).narrow(1, 3, 1), 99)));
  const double angle = 99 * std::pow(50.0, -2.0 / 6);  // of the second pair
  const auto at = [&](std::int64_t i, const Tensor& t) {
    return t.select(0, 1).select(0, 2).select(0, 3).select(0, i).item();
  };
  CHECK(at(1, y) == Approx(at(1, x) * std::cos(angle) - at(4, x) * std::sin(angle)).epsilon(1e-12));
}
