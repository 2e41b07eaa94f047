// Language models that tensor ranks divide, against one process in float64.
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;

namespace {

// On two ranks each has 2 of 4 heads and 1 of 2 key and value heads; on four, pairs of ranks share these.
// Neither the words (23) nor the features inside the MLPs (10) divide.
nn::LlamaConfig llama_config(bool tied) {
  return {.vocab_size = 23,
          .hidden_size = 12,
          .intermediate_size = 10,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .max_position_embeddings = 16,
          .tie_word_embeddings = tied,
          .attention_bias = true,
          .attention_output_bias = !tied,
          .mlp_bias = tied};
}

template <class Model>
std::unique_ptr<Model> made(const typename Model::Options& config) {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  auto net = std::make_unique<Model>(config);
  net->to(DType::f64);
  // Weights of size 0.2, as after an initialisation: gradients of all parameters matter.
  int k = 0;
  for (const nn::Parameter& p : net->parameters()) {
    const NoGradGuard no_grad;
    p.copy_(wave(p.sizes(), 0.37 + 0.01 * k, k) * 0.2 + (p.dim() == 1 ? 0.9 : 0));
    ++k;
  }
  return net;
}
std::unique_ptr<nn::Llama> make_llama(bool tied) { return made<nn::Llama>(llama_config(tied)); }

std::unique_ptr<nn::Gpt2> make_gpt2(bool tied, double dropout = 0) {
  return made<nn::Gpt2>({.vocab_size = 23,
                         .n_positions = 16,
                         .n_embd = 12,
                         .n_layer = 2,
                         .n_head = 4,
                         .n_inner = 10,
                         .tie_word_embeddings = tied,
                         .embd_pdrop = dropout,
                         .attn_pdrop = dropout,
                         .resid_pdrop = dropout});
}

constexpr std::int64_t kLength = 5;

Tensor ids_of(std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = first * kLength; i < (first + rows) * kLength; ++i) ids.push_back(i * i % 23);
  return ints(ids, {rows, kLength});
}
Tensor targets_of(std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = first * kLength; i < (first + rows) * kLength; ++i)
    ids.push_back(i % kLength == 3 ? -100 : (i * 7 + 2) % 23);
  return ints(ids, {rows, kLength});
}

}  // namespace

namespace {

struct Case {
  int ranks, tensors;
  bool sequence, checkpoint;
  int chunks = 0;
  bool sanitized = false;  // runs in builds with a sanitizer too
};

// Of a model with blocks.
void compare(const std::function<std::unique_ptr<nn::LanguageModel>()>& make,
             const std::function<nn::ModuleList&(nn::LanguageModel&)>& blocks,
             const std::vector<Case>& cases) {
  constexpr std::int64_t kRows = 2;
  const auto one = make();
  const Tensor logits = (*one)(ids_of(0, kRows)).detach();
  const Tensor loss = (*one)(ids_of(0, kRows), {.targets = targets_of(0, kRows)});
  loss.backward();
  const Gradients expected = gradients_of(*one);
  for (const Case& c : cases) {
    if (kSanitized && !c.sanitized) continue;
    on_ranks<int>(c.ranks, [&](const Group& world) {
      Mesh mesh = mesh_of(world, c.tensors);
      const Axis shard = mesh["shard"], tensor = mesh["tensor"];
      const auto net = make();
      const std::string what =
          concat({net->type_name(), ", ", c.ranks, " ranks, tensor=", c.tensors, " sequence=", c.sequence,
                  " checkpoint=", c.checkpoint, " chunks=", c.chunks});
      tensor_parallel(*net, tensor, tensor_plan(*net, tensor.size()),
                      {.sequence = c.sequence, .chunks = c.chunks});
      const std::int64_t rows = kRows / shard.size(), first = rows * shard.coordinate();
      if (shard.size() > 1) {
        const FsdpOptions options{.group = shard.group()};  // all rows have equally many targets
        for (nn::Module* block : blocks(*net).children()) fully_shard(*block, options);
        fully_shard(*net, options);
      }
      const Tensor own =
          (*net)(ids_of(first, rows), {.targets = targets_of(first, rows), .checkpoint = c.checkpoint});
      own.backward();
      require_gradients(*net, expected, what);
      const NoGradGuard no_grad;
      const Tensor mine = logits.narrow(0, first, rows);
      require(distance((*net)(ids_of(first, rows)), mine) < 1e-11, what, ": the logits");
      require(distance((*net)(ids_of(first, rows), {.last = true}), mine.narrow(1, kLength - 1, 1)) < 1e-11,
              what, ": the last token's logits");
      const Tensor mean = own.detach().clone();
      shard.group()->all_reduce(mean, ReduceOp::mean).wait();
      require(std::abs(mean.item() - loss.item()) < 1e-12, what, ": the loss is ", mean.item());
      return 0;
    });
  }
}

}  // namespace

TEST_CASE("a divided Llama has the loss, the logits and the gradients of one process") {
  const auto blocks = [](nn::LanguageModel& net) -> nn::ModuleList& {
    return dynamic_cast<nn::Llama&>(net).model.layers;
  };
  compare([] { return make_llama(true); }, blocks,
          {{2, 2, false, true}, {4, 4, true, false}, {4, 2, true, true}, {2, 2, true, true, 2, true}});
  compare(
      [] { return make_llama(false); }, blocks,
      {{4, 4, false, false}, {4, 2, false, false, 0, true}, {4, 4, true, false, 2}, {4, 2, true, false, 8}});
}

TEST_CASE("a divided GPT-2 has the loss, the logits and the gradients of one process") {
  const auto blocks = [](nn::LanguageModel& net) -> nn::ModuleList& {
    return dynamic_cast<nn::Gpt2&>(net).transformer.h;
  };
  compare([] { return make_gpt2(true); }, blocks,
          {{4, 4, false, true}, {4, 2, true, false, 0, true}, {4, 2, true, false, 3}});
  compare([] { return make_gpt2(false); }, blocks, {{2, 2, true, true}});
}

TEST_CASE("a divided head adds the balancing loss of the experts") {
  const auto make = [] {
    nn::OlmoeConfig config;
    config.vocab_size = 23, config.hidden_size = 12, config.intermediate_size = 6;
    config.num_hidden_layers = 1, config.num_attention_heads = 2, config.num_key_value_heads = 2;
    config.max_position_embeddings = 16, config.num_experts = 4, config.num_experts_per_tok = 2;
    config.output_router_logits = true, config.router_aux_loss_coef = 0.25;
    return made<nn::Olmoe>(config);
  };
  const auto one = make();
  const Tensor loss = (*one)(ids_of(0, 2), {.targets = targets_of(0, 2)});
  loss.backward();
  const Gradients expected = gradients_of(*one);
  on_ranks<int>(2, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 2);
    const auto net = make();
    tensor_parallel(*net, mesh["tensor"],
                    {{{"", TensorStyle::head}, {"lm_head", TensorStyle::gathered_column}}});
    const Tensor own = (*net)(ids_of(0, 2), {.targets = targets_of(0, 2)});
    own.backward();
    require(std::abs(own.item() - loss.item()) < 1e-12, "the loss is ", own.item(), ", not ", loss.item());
    require_gradients(*net, expected, "Olmoe");
    return 0;
  });
}

TEST_CASE("calls with sequences of other lengths may come before a call's checkpoint is recomputed") {
  // Of 7 tokens, the first rank has 4, as of 8.
  const auto backward = [](nn::LanguageModel& net) {
    const auto loss = [&](std::int64_t length) {
      std::vector<std::int64_t> ids, targets;
      for (std::int64_t i = 0; i < length; ++i)
        ids.push_back((i * i + length) % 23), targets.push_back((3 * i + 1) % 23);
      return net(ints(ids, {1, length}), {.targets = ints(targets, {1, length}), .checkpoint = true});
    };
    const Tensor first = loss(7), second = loss(8);
    first.backward();
    second.backward();
  };
  const auto one = make_llama(true);
  backward(*one);
  const Gradients expected = gradients_of(*one);
  on_ranks<int>(2, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 2);
    const auto net = make_llama(true);
    tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, 2), {.sequence = true});
    backward(*net);
    require_gradients(*net, expected, "two lengths");
    return 0;
  });
}

TEST_CASE("ranks drop the same elements of the residual stream, and other ones of their heads") {
  const auto gradients = [](bool sequence, bool checkpoint) {
    return on_ranks<Gradients>(2, [&](const Group& world) {
      Generator generator(5);
      Context context = current_context();
      context.generator = &generator;
      const ContextGuard guard(context);
      Mesh mesh = mesh_of(world, 2);
      const auto net = make_gpt2(true, 0.3);
      tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, 2), {.sequence = sequence});
      (*net)(ids_of(0, 2), {.targets = targets_of(0, 2), .checkpoint = checkpoint}).backward();
      return gradients_of(*net);
    });
  };
  for (const bool sequence : {false, true}) {
    const auto plain = gradients(sequence, false), recomputed = gradients(sequence, true);
    for (std::size_t rank = 0; rank < 2; ++rank)
      for (const auto& [name, gradient] : plain[rank]) {
        INFO(name << ", sequence " << sequence);
        // Recomputing draws the same numbers.
        CHECK(tensor_test::distance(recomputed[rank].at(name), gradient) < 1e-12);
      }
  }
  // A dropout inside a divided region, and one on the stream.
  struct Net : nn::Module {
    nn::Dropout& inside = add<nn::Dropout>("inside", {.p = 0.5});
    nn::Dropout& stream = add<nn::Dropout>("stream", {.p = 0.5});
    std::vector<Tensor> masks;
    Tensor forward(const Tensor& x) override {
      masks = {inside(x), stream(x), stream(x)};
      return x;
    }
  };
  const auto masks_of = [](const TensorPlan& plan, bool sequence) {
    return on_ranks<std::vector<Tensor>>(2, [&](const Group& world) {
      Generator generator(5);
      Context context = current_context();
      context.generator = &generator;
      const ContextGuard guard(context);
      Mesh mesh = mesh_of(world, 2);
      Net net;
      tensor_parallel(net, mesh["tensor"], plan, {.sequence = sequence});
      net(ones({8, 8}, DType::f64));
      return net.masks;
    });
  };
  // Ranks drop other elements on their parts of the sequence.
  const auto parts = masks_of({{{"stream", TensorStyle::residual}}}, true);
  CHECK_FALSE(parts[0][1].equal(parts[1][1]));
  CHECK_FALSE(parts[0][2].equal(parts[1][2]));
  CHECK_FALSE(parts[0][1].equal(parts[0][2]));
  const auto masks = masks_of({{{"", TensorStyle::input}, {"stream", TensorStyle::residual}}}, false);
  CHECK_FALSE(masks[0][0].equal(masks[1][0]));
  CHECK(masks[0][1].equal(masks[1][1]));
  CHECK(masks[0][2].equal(masks[1][2]));
  CHECK_FALSE(masks[0][1].equal(masks[0][2]));
}

TEST_CASE("a divided Llama generates the words of one process, with a cache on each rank") {
  const auto one = make_llama(true);
  const std::vector<std::int64_t> prompt{3, 11, 7};
  const auto words_of = [&](nn::LanguageModel& net) {
    nn::Sampler sampler({.temperature = 0.8, .seed = 4});
    return nn::generate(net, prompt, {.max_new_tokens = 6}, sampler);
  };
  const std::vector<std::int64_t> expected = words_of(*one);
  for (const bool sequence : {false, true})
    on_ranks<int>(2, [&](const Group& world) {
      Mesh mesh = mesh_of(world, 2);
      const auto net = make_llama(true);
      tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, 2), {.sequence = sequence});
      require(words_of(*net) == expected, "other words, sequence=", sequence);
      return 0;
    });
}

TEST_CASE("a checkpoint of ranks that share key and value heads is whole, and loads on other meshes") {
  const tests::TempDir dir;
  const auto step = [](nn::Llama& net, optim::AdamW& optimizer) {
    optimizer.zero_grad();
    const Tensor loss = net(ids_of(0, 2), {.targets = targets_of(0, 2)});
    loss.backward();
    const double norm = nn::clip_grad_norm_(net.parameters(), 0.5).item();
    optimizer.step();
    return std::pair(loss.item(), norm);
  };
  const auto one = make_llama(true);
  optim::AdamW optimizer(one->parameters(), {.lr = 0.01});
  for (int i = 0; i < 2; ++i) step(*one, optimizer);
  const auto [third, norm] = step(*one, optimizer);
  const auto close = [&, third = third, norm = norm](const std::pair<double, double>& got, const char* what) {
    require(std::abs(got.first - third) < 1e-11 && std::abs(got.second - norm) < 1e-11, what, ": loss ",
            got.first, " and norm ", got.second, ", not ", third, " and ", norm);
  };
  on_ranks<int>(4, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 4);
    const auto net = make_llama(true);
    tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, 4));
    optim::AdamW own(net->parameters(), {.lr = 0.01});
    for (int i = 0; i < 2; ++i) step(*net, own);
    save_checkpoint(dir / "whole", world, {net.get(), &own}, {.step = 2});
    save_sharded(dir / "parts", world, {net.get(), &own}, {.step = 2});
    close(step(*net, own), "four ranks");
    return 0;
  });
  on_ranks<int>(2, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 2);
    for (const char* const from : {"whole", "parts"}) {
      if (kSanitized && from[0] == 'w') continue;  // one process loads `whole` below
      const auto net = make_llama(true);
      for (const nn::Parameter& p : net->parameters()) p.detach().fill_(1);
      tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, 2), {.sequence = true});
      optim::AdamW own(net->parameters(), {.lr = 0.01});
      load_sharded(dir / from, {net.get(), &own}, {.rank = world->rank()});
      close(step(*net, own), from);
    }
    return 0;
  });
  const auto plain = make_llama(true);
  optim::AdamW own(plain->parameters(), {.lr = 0.01});
  nn::load_checkpoint(dir / "whole", {plain.get(), &own});
  close(step(*plain, own), "one process");
}

namespace {

// Gives a divided model's whole tensors. Collective.
nn::StateDict whole_state_of(const nn::Module& net) {
  nn::StateDict whole;
  for (const auto& [name, p] : net.named_parameters()) {
    const Tensor all = empty(p.layout()->whole_sizes(), {p.dtype(), kCPU});
    p.layout()->gather(0, all);
    whole.emplace_back(name, all);
  }
  return whole;
}

void compare_adapters(const std::function<std::unique_ptr<nn::LanguageModel>()>& make, int ranks) {
  const auto with_adapters = [&] {
    auto net = make();
    nn::add_lora(*net, {.r = 2, .lora_alpha = 3, .target_modules = {"all-linear"}});
    const NoGradGuard no_grad;  // an untrained B is zero
    for (const auto& [path, adapter] : nn::lora_adapters(*net)) {
      adapter->A.copy_(wave(adapter->A.sizes(), 0.53) * 0.4);
      adapter->B.copy_(wave(adapter->B.sizes(), 0.71) * 0.4);
    }
    return net;
  };
  const auto loss_of = [](nn::LanguageModel& net) {
    return net(ids_of(0, 2), {.targets = targets_of(0, 2)});
  };
  const auto one = with_adapters();
  loss_of(*one).backward();
  Gradients expected;
  for (const auto& [name, p] : one->named_parameters())
    if (p.requires_grad()) expected[name] = p.grad().clone();
  REQUIRE(!expected.empty());
  optim::SGD optimizer(one->parameters(), {.lr = 0.1});
  optimizer.step();
  const nn::StateDict trained = nn::lora_state_dict(*one);
  nn::merge_lora(*one);
  const Tensor logits = (*one)(ids_of(0, 2)).detach();
  for (const auto& [sequence, chunks] : {std::pair(false, 0), {true, 0}, {true, 2}}) {
    if (kSanitized && chunks == 0) continue;
    on_ranks<int>(ranks, [&](const Group& world) {
      Mesh mesh = mesh_of(world, ranks);
      const auto net = with_adapters();
      const std::string what =
          concat({net->type_name(), ", ", ranks, " ranks, sequence=", sequence, " chunks=", chunks});
      tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, ranks),
                      {.sequence = sequence, .chunks = chunks});
      loss_of(*net).backward();
      for (const auto& [name, p] : net->named_parameters()) {
        if (!p.requires_grad()) continue;
        const Tensor mine = p.layout()->boxes(0).of(expected.at(name));
        require(distance(p.grad(), mine) < 1e-10, what, ": the gradient of ", name);
      }
      optim::SGD own(net->parameters(), {.lr = 0.1});
      own.step();
      const NoGradGuard none;
      std::string error;
      try {
        nn::lora_state_dict(*net);
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find("is divided") != std::string::npos, what, ": ", error);
      error.clear();
      try {
        nn::load_lora_state_dict(*net, trained);
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find("is divided; load adapters before tensor_parallel() and fully_shard()") !=
                  std::string::npos,
              what, ": ", error);
      const nn::StateDict whole = nn::lora_state_dict(*net, whole_state_of(*net));
      require(whole.size() == trained.size(), what, ": ", whole.size(), " tensors");
      for (std::size_t i = 0; i < whole.size(); ++i)
        require(whole[i].first == trained[i].first && distance(whole[i].second, trained[i].second) < 1e-10,
                what, ": ", whole[i].first);
      require(distance((*net)(ids_of(0, 2)), logits) < 1e-11, what, ": the logits");
      nn::merge_lora(*net);
      require(distance((*net)(ids_of(0, 2)), logits) < 1e-11, what, ": the merged logits");
      nn::unmerge_lora(*net);
      require(distance((*net)(ids_of(0, 2)), logits) < 1e-11, what, ": the logits after unmerge_lora()");
      return 0;
    });
  }
}

}  // namespace

TEST_CASE("adapters of divided layers train, merge and are saved as in one process") {
  compare_adapters([] { return make_llama(true); }, 2);
  if (kSanitized) return;
  compare_adapters([] { return make_llama(true); }, 4);
  compare_adapters([] { return make_gpt2(true); }, 2);
}

TEST_CASE("an adapter of a divided layer drops the same elements on all ranks") {
  // With equal inputs and rows of B that are equal, the outputs of the ranks differ only by what is dropped.
  const auto outputs = on_ranks<Tensor>(2, [](const Group& world) {
    Generator generator(5);
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    Mesh mesh = mesh_of(world, 2);
    nn::Sequential net(nn::make<nn::Sequential>(nn::make<nn::Linear>(16, 8)));
    net.to(DType::f64);
    nn::add_lora(net, {.r = 2, .lora_dropout = 0.5, .target_modules = {"all-linear"}});
    for (const nn::Parameter& p : net.parameters()) p.detach().fill_(0.5);
    tensor_parallel(net, mesh["tensor"], {{{"0", TensorStyle::input}, {"0.0", TensorStyle::column}}});
    return net(wave({3, 16}, 0.3)).detach();
  });
  CHECK(outputs[0].equal(outputs[1]));
  CHECK(outputs[0].size(1) == 4);
}

TEST_CASE("a plan names heads that ranks cannot divide, and models that it does not know") {
  nn::Llama net(llama_config(true));
  CHECK_THROWS_WITH(
      tensor_plan(net, 3),
      Catch::Matchers::Contains("4 heads and 2 key and value heads, which an axis of 3 ranks cannot divide; "
                                "choose 2 ranks"));
  nn::Gpt2 four({.vocab_size = 8, .n_positions = 4, .n_embd = 8, .n_layer = 1, .n_head = 4});
  CHECK_THROWS_WITH(tensor_plan(four, 3),
                    Catch::Matchers::Contains("4 heads") && Catch::Matchers::Contains("choose 2 ranks"));
  CHECK_NOTHROW(
      tensor_plan(nn::Gpt2({.vocab_size = 8, .n_positions = 4, .n_embd = 10, .n_layer = 1, .n_head = 5}), 3));
  nn::Linear layer({.in_features = 2, .out_features = 2});
  CHECK_THROWS_WITH(tensor_plan(layer, 2),
                    Catch::Matchers::Contains("no ready plan for the modules of Linear"));
}
