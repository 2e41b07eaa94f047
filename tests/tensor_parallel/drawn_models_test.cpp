// Trains drawn language models on drawn meshes, against one process in float64. TAPESTRY_FUZZ_SEED draws
// other cases, and TAPESTRY_FUZZ_CASES sets their number.
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/fuzz_setting.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;

namespace {

struct Case {
  nn::LlamaConfig llama;
  nn::Gpt2Config gpt2;
  nn::OlmoeConfig olmoe;
  bool is_gpt2 = false, is_olmoe = false, checkpoint = false, adamw = false, adapters = false;
  bool averages = false, scales = false;    // AveragedModel, GradScaler
  bool overflows = false;                   // in the second step, a gradient of the last rank alone
  bool bf16 = false;                        // autocast, with weights of f32
  bool documents = false, ignores = false;  // several documents; most targets, and all of the last quarter
  std::int64_t length = 1, rows = 1;
  int ranks = 1, parts = 1;
  std::string mesh;
  double clip = 0;

  std::string str() const {
    if (is_olmoe)
      return concat({"Olmoe ", mesh, ", ", olmoe.num_experts, " experts, top ", olmoe.num_experts_per_tok,
                     olmoe.norm_topk_prob ? " normed" : "", ", length ", length, ", ", rows, " rows in ",
                     parts, " parts, tied ", olmoe.tie_word_embeddings, ", checkpoint ", checkpoint,
                     ", clip ", clip});
    return concat({is_gpt2 ? "Gpt2 " : "Llama ",
                   mesh,
                   ", ",
                   is_gpt2 ? gpt2.n_head : llama.num_attention_heads,
                   " heads, ",
                   llama.num_key_value_heads,
                   " key heads, ",
                   llama.vocab_size,
                   " words, ",
                   llama.intermediate_size,
                   " inside, length ",
                   length,
                   ", ",
                   rows,
                   " rows in ",
                   parts,
                   " parts, tied ",
                   llama.tie_word_embeddings,
                   ", biases ",
                   llama.attention_bias,
                   llama.attention_output_bias,
                   llama.mlp_bias,
                   ", checkpoint ",
                   checkpoint,
                   ", adapters ",
                   adapters,
                   ", documents ",
                   documents,
                   ", ignores ",
                   ignores,
                   ", clip ",
                   clip});
  }
};

Case drawn(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  Case c;
  const int tensors = pick(2, 4);
  // Key and value heads: one for two ranks, or one or more for each, also unequal numbers of them.
  const bool shares = tensors % 2 == 0 && pick(0, 1);
  int keys = shares ? tensors / 2 : pick(tensors, 2 * tensors);
  while (!shares && (keys + tensors - 1) / tensors * (tensors - 1) >= keys) ++keys;
  const int heads = shares ? tensors * pick(1, 2) : keys * pick(1, 2);
  c.is_gpt2 = pick(0, 3) == 0;
  c.llama = {.vocab_size = pick(2 * tensors, 30),
             .hidden_size = 2 * pick(2, 5),
             .intermediate_size = pick(0, 1) ? 2 * tensors : 4 * tensors + 1,
             .num_hidden_layers = pick(1, 2),
             .num_attention_heads = heads,
             .num_key_value_heads = keys,
             .head_dim = 2,
             .max_position_embeddings = 8,
             .tie_word_embeddings = pick(0, 1) == 1,
             .attention_bias = pick(0, 1) == 1,
             .attention_output_bias = pick(0, 1) == 1,
             .mlp_bias = pick(0, 1) == 1};
  // ceil(words / ranks) words of each rank but the last leave it some.
  while ((c.llama.vocab_size + tensors - 1) / tensors * (tensors - 1) >= c.llama.vocab_size)
    ++c.llama.vocab_size;
  c.gpt2 = {.vocab_size = c.llama.vocab_size,
            .n_positions = 8,
            .n_embd = heads * 2,
            .n_layer = c.llama.num_hidden_layers,
            .n_head = heads,
            .n_inner = c.llama.intermediate_size,
            .tie_word_embeddings = c.llama.tie_word_embeddings,
            .embd_pdrop = 0,
            .attn_pdrop = 0,
            .resid_pdrop = 0};
  c.length = pick(1, 7), c.parts = pick(1, 2);
  const char* const others[] = {"", "shard=2,", "replicate=2,", "replicate=2:zero=1,",
                                "shard=2:reduce=part,"};
  const std::string other = tensors == 3 ? "" : others[pick(0, 4)];
  constexpr const char* kForms[] = {"", ":sequence=1", ":sequence=1:chunks=2", ":sequence=1:chunks=8"};
  c.mesh = concat({other, "tensor=", tensors, kForms[pick(0, 3)]});
  c.ranks = tensors * (other.empty() ? 1 : 2);
  c.rows = 2 * c.parts + pick(0, 1) * (other.empty() ? 1 : 0);
  c.checkpoint = pick(0, 1) == 1, c.adamw = pick(0, 1) == 1, c.clip = pick(0, 1) ? 0.3 : 0;
  c.adapters = pick(0, 2) == 0;
  c.averages = pick(0, 1) == 1, c.scales = pick(0, 1) == 1;
  c.overflows = c.scales && pick(0, 1) == 1 && !c.adapters && other.find("shard") == std::string::npos;
  return c;
}

// A mixture of experts, whose experts ranks divide, and sometimes its sequences.
Case drawn_experts(std::uint64_t seed) {
  std::mt19937_64 random(seed * 104729 + 1);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  Case c;
  c.is_olmoe = true;
  const int ranks = pick(2, 4);
  c.olmoe.vocab_size = pick(5, 20), c.olmoe.hidden_size = 8, c.olmoe.intermediate_size = pick(1, 5);
  c.olmoe.num_hidden_layers = pick(1, 2), c.olmoe.num_attention_heads = 2;
  c.olmoe.num_key_value_heads = pick(1, 2), c.olmoe.max_position_embeddings = 8;
  c.olmoe.tie_word_embeddings = pick(0, 1) == 1, c.olmoe.norm_topk_prob = pick(0, 1) == 1;
  c.olmoe.num_experts = ranks * pick(1, 2);
  if (ranks == 2) c.olmoe.num_experts += pick(0, 1) + 1;  // 3 and more: the last rank may have fewer
  c.olmoe.num_experts_per_tok = pick(1, 2);
  c.length = pick(1, 7), c.parts = pick(1, 2);
  const char* const others[] = {"",
                                "shard=2,",
                                "replicate=2,",
                                "shard=2:reduce=part,",
                                "shard=2:gather=step,",
                                "replicate=2:zero=1,",
                                "replicate=2:zero=2,"};
  const std::string other = ranks == 3 ? "" : others[pick(0, 6)];
  const bool divides_sequences = ranks == 2 && pick(0, 1) == 0;
  if (divides_sequences) c.length = 4 * pick(1, 2);
  c.mesh = concat({other, "expert=", ranks, divides_sequences ? ",context=2" : ""});
  c.ranks = ranks * (other.empty() ? 1 : 2) * (divides_sequences ? 2 : 1);
  // Ranks may have no sequence, but those of a context axis have a part of one.
  const int all = c.parts * c.ranks;
  c.rows = pick(divides_sequences ? all : 1, all + 2);
  c.checkpoint = pick(0, 1) == 1, c.adamw = pick(0, 1) == 1, c.clip = pick(0, 1) ? 0.3 : 0;
  c.averages = pick(0, 1) == 1, c.scales = pick(0, 1) == 1;
  c.overflows = c.scales && pick(0, 1) == 1 && other.find("shard") == std::string::npos;
  c.adapters = !c.overflows && pick(0, 3) == 0;
  return c;
}

// A mesh with a context axis, whose ranks divide the sequences, in each of the forms of attention.
Case drawn_context(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 2);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  Case c = drawn(seed);
  const char* const others[] = {"", "shard=2,", "replicate=2,", "replicate=2:zero=2,", "pipeline=2,"};
  const std::string other = others[pick(0, 4)];
  const int members = other.empty() ? 1 : 2, tensors = pick(1, 2);
  const int ranks = members * tensors == 1 ? pick(2, 4) : 2;
  const char* const forms[] = {"auto", "gathered", "ring", "all-to-all"};
  const std::string form = forms[pick(0, 3)];
  const bool pipeline = other == "pipeline=2,", by_heads = form == "all-to-all";
  c.is_gpt2 = pick(0, 3) == 0 && !pipeline;
  int keys = tensors * (by_heads ? ranks : pick(1, 2));
  if (tensors == 2 && !by_heads && pick(0, 1)) keys = 5;  // 3 on the first rank of the tensor axis, then 2
  const int heads = keys * pick(1, 2);
  c.llama.num_attention_heads = heads, c.llama.num_key_value_heads = keys, c.llama.num_hidden_layers = 2;
  c.llama.max_position_embeddings = 32;
  c.gpt2.n_head = by_heads ? keys : heads, c.gpt2.n_embd = 2 * c.gpt2.n_head, c.gpt2.n_positions = 32;
  c.mesh = concat({other, "context=", ranks, form == "auto" ? "" : ":attention=" + form});
  if (tensors > 1) c.mesh += concat({",tensor=2", pick(0, 1) ? ":sequence=1:chunks=2" : ""});
  c.ranks = members * ranks * tensors;
  c.parts = pick(1, 2), c.rows = 2 * c.parts, c.length = 2 * ranks * pick(1, 2);
  c.overflows = c.overflows && other.find("shard") == std::string::npos && !pipeline;
  c.documents = pick(0, 2) == 0 && form != "ring" && !pipeline;
  c.ignores = pick(0, 1) == 1;
  return c;
}

std::unique_ptr<nn::LanguageModel> make(const Case& c) {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  std::unique_ptr<nn::LanguageModel> net;
  if (c.is_gpt2) net = std::make_unique<nn::Gpt2>(c.gpt2);
  else if (c.is_olmoe) net = std::make_unique<nn::Olmoe>(c.olmoe);
  else net = std::make_unique<nn::Llama>(c.llama);
  if (!c.bf16) net->to(DType::f64);
  if (c.adapters) nn::add_lora(*net, {.r = 3, .target_modules = {"all-linear"}});
  int k = 0;
  for (const nn::Parameter& p : net->parameters()) {
    const NoGradGuard no_grad;
    p.copy_(wave(p.sizes(), 0.37 + 0.01 * k, k) * 0.3 + (p.dim() == 1 ? 0.9 : 0));
    ++k;
  }
  return net;
}

// Two stages, of which the second has the head.
std::vector<Stage> stages_of(nn::Llama& net, const std::vector<Device>& devices) {
  nn::LlamaModel& model = net.model;
  Stage::Modules first{model.embed_tokens}, second{model.norm};
  for (std::size_t i = 0; i < 2; ++i) (i == 0 ? first : second).emplace_back(*model.layers.children()[i]);
  if (net.lm_head) second.emplace_back(*net.lm_head);
  else second.emplace_back(model.embed_tokens);
  const auto block = [&model](std::int64_t i, const Tensor& x) {
    return model.layers.get<nn::LlamaDecoderLayer>(i)(x, nn::LlamaBlockContext());
  };
  std::vector<Stage> stages;
  stages.emplace_back([&model, block](const Tensor& ids) { return block(0, model.embed_tokens(ids)); },
                      devices.at(0), first);
  stages.emplace_back([&net, block](const Tensor& x) { return net.head(net.model.norm(block(1, x))); },
                      devices.at(1), second);
  return stages;
}

struct Trace {
  std::vector<double> losses, norms;
  nn::StateDict weights;
};

Trace train(const Case& c, const std::string& mesh, const Group& world) {
  Strategy strategy(mesh, {.world = world, .parts = c.parts});
  const auto net = make(c);
  const auto valid = [](const Tensor& targets) { return targets.ne(-100).sum().item(); };
  ModelParts parts;
  parts.sequence_dim = 1, parts.has_documents = c.documents;
  parts.forward_loss = [&](const std::vector<Tensor>& in, const std::vector<Tensor>& targets) -> Loss {
    std::optional<AutocastGuard> low;
    if (c.bf16) low.emplace(DType::bf16);
    return {(*net)(in[0], {.documents = c.documents ? in[1] : Tensor(),
                           .targets = targets[0],
                           .checkpoint = c.checkpoint}),
            valid(targets[0])};
  };
  parts.loss = [&](const std::vector<Tensor>& out, const std::vector<Tensor>& targets) -> Loss {
    return {cross_entropy(out[0].flatten(0, 1), targets[0].flatten()), valid(targets[0])};
  };
  if (!c.is_gpt2 && !c.is_olmoe)
    parts.stages = [&](const std::vector<Device>& devices) {
      return stages_of(dynamic_cast<nn::Llama&>(*net), devices);
    };
  parts.units = c.is_gpt2    ? dynamic_cast<nn::Gpt2&>(*net).transformer.h.children()
                : c.is_olmoe ? dynamic_cast<nn::Olmoe&>(*net).model.layers.children()
                             : dynamic_cast<nn::Llama&>(*net).model.layers.children();
  strategy.wrap(*net, parts);
  int step = 0;
  if (c.overflows && (!world || world->rank() == world->size() - 1)) {
    const auto named = net->named_parameters();
    const auto of_experts = std::find_if(named.begin(), named.end(), [](const auto& p) {
      return p.first.find("experts.") != std::string::npos;
    });
    const nn::Parameter p = of_experts == named.end() ? named[0].second : of_experts->second;
    p.tensor().register_hook([&step](const Tensor& g) { return step == 1 ? g * INFINITY : g; });
  }
  const std::unique_ptr<optim::Optimizer> optimizer =
      c.adamw ? make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.01})
              : make_optimizer<optim::SGD>(strategy, net->parameters(), {.lr = 0.1, .momentum = 0.9});
  Trace trace;
  optim::AveragedModel average(*net, {.avg_fn = optim::get_ema_avg(0.7)});
  optim::GradScaler scaler(optim::GradScalerOptions{.init_scale = 1024, .enabled = c.scales});
  for (; step < 3; ++step) {
    optimizer->zero_grad();
    std::vector<std::int64_t> words;
    for (std::int64_t i = 0; i < c.rows * (c.length + 1); ++i)
      words.push_back((i * i * 5 + i * 3 + step) % net->vocab_size());
    const Tensor all = ints(words, {c.rows, c.length + 1});
    Tensor targets = all.narrow(1, 1, c.length).clone();
    if (c.ignores) {
      targets.narrow(1, c.length - c.length / 4, c.length / 4).fill_(-100);
      targets.narrow(1, 0, 1).fill_(-100);
    }
    const Tensor documents = (arange(c.rows).unsqueeze(1) + arange(c.length) * 3).floor_divide(5);
    const auto read = [&](const Part& part) {
      const Samples s = strategy.share(c.rows, part);
      const Tensor own = all.narrow(0, s.first, s.count);
      Batch batch{{own.narrow(1, 0, c.length)}, {targets.narrow(0, s.first, s.count)}};
      if (c.documents) batch.inputs.push_back(documents.narrow(0, s.first, s.count));
      return batch;
    };
    const StepLoss loss = strategy.gradients(read, valid(targets), &scaler);
    scaler.unscale_(*optimizer);
    trace.losses.push_back(strategy.sum({loss.loss.item()})[0]);
    trace.norms.push_back(strategy.clip_grad_norm_(c.clip > 0 ? c.clip : 1e9).item());
    scaler.step(*optimizer);
    scaler.update();
    if (c.averages) average.update_parameters();
  }
  std::optional<optim::AveragedModel::Scope> averaged;
  if (c.averages) averaged.emplace(average);
  trace.weights = strategy.whole_state();
  for (auto& [name, t] : trace.weights) t = t.clone();  // the model gets its own weights back
  return trace;
}

// `tolerance` is for weights, relative to the largest of a tensor. Losses have a tenth of it.
void check_as_one_process(const Case& c, double tolerance = 1e-9) {
  INFO(c.str());
  const Trace one = train(c, "single", nullptr);
  const auto all = on_ranks<Trace>(c.ranks, [&](const Group& world) { return train(c, c.mesh, world); });
  for (const Trace& t : all)
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      CHECK(std::abs(t.losses[s] - one.losses[s]) < tolerance / 10);
      CHECK(std::isfinite(one.norms[s]) == (s != 1 || !c.overflows));
      CHECK(std::isfinite(t.norms[s]) == std::isfinite(one.norms[s]));
      if (std::isfinite(one.norms[s])) CHECK(std::abs(t.norms[s] / one.norms[s] - 1) < tolerance);
    }
  REQUIRE(all[0].weights.size() == one.weights.size());
  for (std::size_t p = 0; p < one.weights.size(); ++p) {
    INFO(one.weights[p].first);
    CHECK(all[0].weights[p].first == one.weights[p].first);
    CHECK(tensor_test::distance(all[0].weights[p].second, one.weights[p].second) < tolerance);
  }
}

// Builds with a sanitizer run only the cases `few`, which communicate in different ways.
void compare_cases(Case (*draw)(std::uint64_t seed), std::uint64_t number, std::vector<std::uint64_t> few) {
  const std::uint64_t seed = test::fuzz_setting("TAPESTRY_FUZZ_SEED", 1),
                      count = test::fuzz_setting("TAPESTRY_FUZZ_CASES", 0);
  if (!kSanitized || count > 0) {
    few.resize(count > 0 ? count : number);
    std::iota(few.begin(), few.end(), 0);
  }
  for (const std::uint64_t i : few) check_as_one_process(draw(seed * 1'000'000 + i));
}

}  // namespace

TEST_CASE("drawn language models train on drawn meshes with a tensor axis as in one process") {
  compare_cases(drawn, 12, {2, 3, 4});
}

TEST_CASE("models that ranks divide train in bf16 under autocast, and scale their gradients") {
  Case c;
  c.bf16 = c.scales = c.averages = true;
  c.ranks = 2, c.parts = 2, c.rows = 4, c.length = 8;
  c.llama = {.vocab_size = 11,
             .hidden_size = 8,
             .intermediate_size = 10,
             .num_hidden_layers = 1,
             .num_attention_heads = 2,
             .num_key_value_heads = 2,
             .head_dim = 4,
             .max_position_embeddings = 8};
  std::vector<std::string> meshes{"tensor=2:sequence=1", "context=2:attention=ring"};
  if (!kSanitized)
    for (const char* const more :
         {"tensor=2", "context=2:attention=gathered", "context=2:attention=all-to-all"})
      meshes.emplace_back(more);
  for (const std::string& mesh : meshes) {
    c.mesh = mesh, c.checkpoint = !c.checkpoint;
    check_as_one_process(c, 0.02);  // an element of bf16 has 8 bits
  }
  c.is_olmoe = true;
  c.olmoe.vocab_size = 11, c.olmoe.hidden_size = 8, c.olmoe.intermediate_size = 4;
  c.olmoe.num_hidden_layers = 1, c.olmoe.num_attention_heads = c.olmoe.num_key_value_heads = 2;
  c.olmoe.max_position_embeddings = 8, c.olmoe.num_experts = 3, c.olmoe.num_experts_per_tok = 3;
  c.mesh = "expert=2";
  if (!kSanitized) check_as_one_process(c, 0.02);
  c.mesh = "replicate=2:zero=2,expert=2", c.ranks = 4, c.rows = 8;
  check_as_one_process(c, 0.02);
}

TEST_CASE("stages of a pipeline pass on parts of a divided sequence") {
  const struct {
    const char* mesh;
    int ranks;
    bool tied;
  } cases[] = {{"pipeline=2,tensor=2:sequence=1", 4, true},
               {"pipeline=2:schedule=zero-bubble,tensor=2:sequence=1", 4, false},
               {"pipeline=2,replicate=2:zero=1,tensor=2:sequence=1", 8, true}};
  for (const auto& [mesh, ranks, tied] : cases) {
    if (kSanitized && ranks == 8) continue;
    Case c;
    c.mesh = mesh, c.ranks = ranks;
    c.length = 5, c.rows = 3, c.parts = 2, c.adamw = tied, c.averages = !tied, c.clip = 0.3;
    c.llama = {.vocab_size = 9,
               .hidden_size = 4,
               .intermediate_size = 5,
               .num_hidden_layers = 2,
               .num_attention_heads = 3,
               .num_key_value_heads = 3,
               .head_dim = 2,
               .max_position_embeddings = 8,
               .tie_word_embeddings = tied};
    check_as_one_process(c);
  }
}

TEST_CASE("drawn language models train on drawn meshes with a context axis as in one process") {
  compare_cases(drawn_context, 16, {0, 1, 3, 14});
  if (kSanitized) return;
  // One rank of the tensor axis has 3 heads and the other 2, and all of them choose the same attention.
  Case uneven;
  uneven.mesh = "context=2,tensor=2", uneven.ranks = 4, uneven.length = 4, uneven.rows = 2;
  uneven.llama = {.vocab_size = 7,
                  .hidden_size = 4,
                  .intermediate_size = 4,
                  .num_hidden_layers = 1,
                  .num_attention_heads = 5,
                  .num_key_value_heads = 5,
                  .head_dim = 2,
                  .max_position_embeddings = 8};
  check_as_one_process(uneven);
}

TEST_CASE("drawn mixtures of experts train on drawn meshes with an expert axis as in one process") {
  compare_cases(drawn_experts, 10, {0, 1});
}
