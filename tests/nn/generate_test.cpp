// Tests the choice of tokens, and generation with a cache.
#include "tapestry/nn/models/generate.h"

#include <cmath>
#include <map>

#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

nn::LlamaConfig tiny() {
  nn::LlamaConfig c;
  c.vocab_size = 23, c.hidden_size = 16, c.intermediate_size = 24, c.num_hidden_layers = 2;
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 8, c.max_position_embeddings = 24;
  c.tie_word_embeddings = true;
  return c;
}
// Logits of the probabilities 0.4, 0.3, 0.15, 0.1, 0.05 for tokens 3, 0, 4, 1, 2.
Tensor logits() {
  return tensor({std::log(0.3), std::log(0.1), std::log(0.05), std::log(0.4), std::log(0.15)}, DType::f64);
}
std::vector<std::int64_t> tokens(const std::vector<nn::Sampler::Candidate>& candidates) {
  std::vector<std::int64_t> list;
  for (const auto& c : candidates) list.push_back(c.token);
  return list;
}
using Tokens = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("Sampler: filters keep the tokens that transformers keeps") {
  const auto kept = [](const nn::SamplerOptions& o, const Tokens& history = {}) {
    return tokens(nn::Sampler(o).candidates(logits(), history));
  };
  CHECK(kept({}) == Tokens{3});
  CHECK(kept({.temperature = 1}) == Tokens{3, 0, 4, 1, 2});
  CHECK(kept({.temperature = 1, .top_k = 2}) == Tokens{3, 0});
  CHECK(kept({.temperature = 1, .top_k = 9}) == Tokens{3, 0, 4, 1, 2});
  CHECK(kept({.temperature = 1, .top_p = 0.4 - 1e-9}) == Tokens{3});
  CHECK(kept({.temperature = 1, .top_p = 0.4 + 1e-9}) == Tokens{3, 0});
  CHECK(kept({.temperature = 1, .top_p = 0.84}) == Tokens{3, 0, 4});
  CHECK(kept({.temperature = 1, .top_p = 1e-12}) == Tokens{3});
  // 3 and 0 have 4/7 and 3/7 after top_k: a sum over all tokens would keep both.
  CHECK(kept({.temperature = 1, .top_k = 2, .top_p = 0.5}) == Tokens{3});
  CHECK(kept({.temperature = 1, .min_p = 0.3}) == Tokens{3, 0, 4});
  CHECK(kept({.temperature = 1, .min_p = 1}) == Tokens{3});
  CHECK(kept({.temperature = 0.01, .min_p = 0.3}) == Tokens{3});  // the temperature comes first
  // The logits are negative, so the penalty doubles them: 0.4 becomes 0.16, and 0.3 becomes 0.09.
  CHECK(kept({.repetition_penalty = 2}, {3, 3, 3}) == Tokens{0});
  CHECK(kept({.repetition_penalty = 2}, {3, 0}) == Tokens{3});
  CHECK(nn::Sampler({.repetition_penalty = 2})(tensor({3.0, 2.0}), Tokens{0}) == 1);  // positive: 1.5
  CHECK(tokens(nn::Sampler({.temperature = 1, .top_k = 1}).candidates(tensor({1.0, 2.0, 2.0}))) ==
        Tokens{1, 2});
  const auto halves = nn::Sampler({.temperature = 2}).candidates(logits());
  CHECK(halves[0].probability / halves[1].probability == Approx(std::sqrt(0.4 / 0.3)));
}

TEST_CASE("Sampler: tokens have their probabilities, and depend on the seed alone") {
  nn::Sampler first({.temperature = 1, .seed = 7}), second({.temperature = 1, .seed = 7}),
      third({.temperature = 1, .seed = 8});
  std::map<std::int64_t, int> count;
  bool differs = false;
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t token = first(logits());
    ++count[token];
    if (i < 200) {
      CHECK(second(logits()) == token);
      differs = differs || third(logits()) != token;
    }
  }
  CHECK(differs);
  const double wanted[] = {0.3, 0.1, 0.05, 0.4, 0.15};
  for (int t = 0; t < 5; ++t)  // six standard deviations
    CHECK(std::abs(count[t] / 20000.0 - wanted[t]) < 6 * std::sqrt(wanted[t] * (1 - wanted[t]) / 20000));
}

TEST_CASE("generate: greedy words are those of uncached calls") {
  manual_seed(3);
  nn::Llama model(tiny());
  {
    const NoGradGuard no_grad;  // larger weights, so that words differ
    for (const nn::Parameter& p : model.parameters())
      if (p->dim() > 1) p->mul_(20);
  }
  Tokens text{5, 2, 9};
  Tokens streamed;
  const Tokens words = nn::generate(model, text, {.max_new_tokens = 12, .on_token = [&](std::int64_t t) {
                                                    streamed.push_back(t);
                                                    return true;
                                                  }});
  CHECK(words.size() == 12);
  CHECK(words == streamed);
  CHECK(model.is_training());
  const NoGradGuard no_grad;
  for (const std::int64_t word : words) {
    const Tensor whole = model(tensor(text, {1, static_cast<std::int64_t>(text.size())}));
    CHECK(argmax(whole.select(1, -1).flatten()).item<std::int64_t>() == word);
    text.push_back(word);
  }
  const Tokens stopped = nn::generate(model, Tokens{5, 2, 9}, {.max_new_tokens = 12, .stop = {words[2]}});
  CHECK(stopped.back() == words[2]);
  CHECK(stopped.size() <= 3);
  CHECK(nn::generate(model, Tokens{5, 2, 9}, {.on_token = [](std::int64_t) { return false; }}).size() == 1);
  CHECK(nn::generate(model, Tokens(20, 1), {.max_new_tokens = 100}).size() == 4);  // the context is full
  CHECK(nn::generate(model, Tokens{1}, {.max_new_tokens = 0}).empty());
}

TEST_CASE("generate: wrong options are errors") {
  nn::Llama model(tiny());
  CHECK_THROWS_WITH(nn::generate(model, Tokens{}), ContainsSubstring("the prompt is empty"));
  CHECK_THROWS_WITH(nn::generate(model, Tokens(24, 1)), ContainsSubstring("shorten the prompt"));
  CHECK_THROWS_WITH(nn::generate(model, Tokens{1}, {.max_new_tokens = -1}),
                    ContainsSubstring("max_new_tokens"));
  CHECK_THROWS_WITH(nn::generate(model, Tokens{23}), ContainsSubstring("outside [0, 23)"));
  CHECK_THROWS_WITH(nn::Sampler({.temperature = -1}), ContainsSubstring("temperature"));
  CHECK_THROWS_WITH(nn::Sampler({.top_k = -1}), ContainsSubstring("top_k"));
  CHECK_THROWS_WITH(nn::Sampler({.top_p = 0}), ContainsSubstring("top_p"));
  CHECK_THROWS_WITH(nn::Sampler({.min_p = 2}), ContainsSubstring("min_p"));
  CHECK_THROWS_WITH(nn::Sampler({.repetition_penalty = 0}), ContainsSubstring("repetition_penalty"));
  nn::Sampler sampler({.temperature = 1});
  CHECK_THROWS_WITH(sampler(tensor({1.0, NAN})), ContainsSubstring("NaN"));
  CHECK_THROWS_WITH(sampler(tensor({-INFINITY, -INFINITY})), ContainsSubstring("-inf"));
  CHECK_THROWS_WITH(sampler(zeros({1, 4})), ContainsSubstring("expected floating numbers"));
  CHECK(sampler(tensor({1.0, INFINITY})) == 1);
}

TEST_CASE("generate_batch: prompts of different lengths get the tokens that each gets alone") {
  manual_seed(5);
  nn::Llama llama(tiny());
  nn::Gpt2Config config;
  config.vocab_size = 23, config.n_positions = 24, config.n_embd = 16, config.n_layer = 2, config.n_head = 2;
  config.n_inner = 32;
  nn::Gpt2 gpt2(config);
  const std::vector<Tokens> prompts{{5, 2, 9}, {1}, {3, 3, 3, 3, 8, 4, 11}, {7, 0}};
  for (nn::LanguageModel* model :
       {static_cast<nn::LanguageModel*>(&llama), static_cast<nn::LanguageModel*>(&gpt2)}) {
    {
      const NoGradGuard no_grad;  // larger weights, so that words differ
      for (const nn::Parameter& p : model->parameters())
        if (p->dim() > 1) p->mul_(20);
    }
    for (const nn::SamplerOptions& sampling :
         {nn::SamplerOptions(), nn::SamplerOptions{.temperature = 2, .seed = 4}}) {
      const nn::GenerateOptions options{.max_new_tokens = 9};
      const auto all = nn::generate_batch(*model, prompts, options, sampling);
      REQUIRE(all.size() == prompts.size());
      bool differ = false;
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        nn::Sampler sampler(sampling);
        CHECK(all[i] == nn::generate(*model, prompts[i], options, sampler));
        differ = differ || all[i] != all[0];
      }
      CHECK(differ);
      // A text that ends leaves the others as they are.
      const std::int64_t stop = all[2][1];
      const auto some = nn::generate_batch(*model, prompts, {.max_new_tokens = 9, .stop = {stop}}, sampling);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        nn::Sampler sampler(sampling);
        CHECK(some[i] == nn::generate(*model, prompts[i], {.max_new_tokens = 9, .stop = {stop}}, sampler));
      }
    }
    CHECK(model->is_training());
    const auto full = nn::generate_batch(*model, {Tokens(20, 1), Tokens{2}}, {.max_new_tokens = 100});
    CHECK((full[0].size() == 4 && full[1].size() == 4));
    CHECK(nn::generate_batch(*model, prompts, {.max_new_tokens = 0}) == std::vector<Tokens>(4));
  }
  CHECK_THROWS_WITH(nn::generate_batch(llama, {}), ContainsSubstring("no prompts"));
  CHECK_THROWS_WITH(nn::generate_batch(llama, {{1}, {}}), ContainsSubstring("the prompt 1 is empty"));
  CHECK_THROWS_WITH(nn::generate_batch(llama, {{1}, Tokens(24, 1)}),
                    ContainsSubstring("the prompt 1 has 24 tokens"));
  CHECK_THROWS_WITH(nn::generate_batch(llama, {{1}}, {.on_token = [](std::int64_t) { return true; }}),
                    ContainsSubstring("on_token"));
}

TEST_CASE("Sampler: the most likely token of many is the first of equal ones") {
  for (const std::int64_t n : {1, 63, 64, 65, 200}) {
    const Tensor x = full({n}, -2.0);
    CHECK(nn::Sampler()(x) == 0);
    for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      const Tensor y = x.clone();
      y.narrow(0, at, n - at).fill_(3);
      CHECK(nn::Sampler()(y) == at);
      const Tensor bad = y.clone();
      bad.narrow(0, at, 1).fill_(NAN);
      CHECK_THROWS_WITH(nn::Sampler()(bad), ContainsSubstring("NaN"));
    }
    CHECK_THROWS_WITH(nn::Sampler()(full({n}, -INFINITY)), ContainsSubstring("-inf"));
  }
}
