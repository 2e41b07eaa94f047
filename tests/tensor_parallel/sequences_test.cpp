// Models whose sequences ranks divide, against one process. Drawn meshes with a context axis are in
// tests/tensor_parallel/drawn_models_test.cpp.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;

namespace {

const ContextAttention kForms[] = {ContextAttention::gathered, ContextAttention::ring,
                                   ContextAttention::all_to_all};

template <class Model>
std::unique_ptr<Model> made(const typename Model::Options& options) {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  auto net = std::make_unique<Model>(options);
  net->to(DType::f64);
  int k = 0;
  for (const nn::Parameter& p : net->parameters()) {
    const NoGradGuard no_grad;
    p.copy_(wave(p.sizes(), 0.37 + 0.01 * k, k) * 0.3 + (p.dim() == 1 ? 0.9 : 0));
    ++k;
  }
  return net;
}

nn::LlamaConfig llama() {
  return {.vocab_size = 23,
          .hidden_size = 8,
          .intermediate_size = 10,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .max_position_embeddings = 16};
}

Tensor ids_of(std::int64_t rows, std::int64_t length) {
  return (arange(rows * length) * 7 % 23).reshape({rows, length});
}

// Each rank's gradients, added over the ranks.
void add_gradients(const nn::Module& net, const Axis& axis) {
  for (const nn::Parameter& p : net.parameters()) axis.group()->all_reduce(p.grad()).wait();
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("an encoder over divided sequences has the values and gradients of one process") {
  const nn::TransformerEncoderOptions options{
      .layer = {.d_model = 8, .nhead = 4, .dim_feedforward = 12, .dropout = 0, .batch_first = true},
      .num_layers = 2,
      .norm = true};
  const Tensor x = wave({2, 8, 8}, 0.7), weights = wave({2, 8, 8}, 1.3);
  for (const bool causal : {false, true}) {
    const auto one = made<nn::TransformerEncoder>(options);
    const Tensor y = (*one)(x, {.is_causal = causal});
    (y * weights).sum().backward();
    const Gradients expected = gradients_of(*one);
    for (const int ranks : {2, 4}) {
      if (kSanitized && causal == (ranks == 4)) continue;
      on_ranks<int>(ranks, [&](const Group& world) {
        const Axis axis = Mesh(world, {{"context", -1}})["context"];
        for (const ContextAttention form : kForms) {
          const auto net = made<nn::TransformerEncoder>(options);
          const ContextParallel context = context_parallel(*net, axis, {.attention = form});
          const std::string what = concat({name_of(form), causal ? ", causal" : ""});
          const Tensor own = (*net)(context.own_part(x, 1), {.is_causal = causal});
          require(distance(own, context.own_part(y.detach(), 1)) < 1e-12, what, ": the values");
          (own * context.own_part(weights, 1)).sum().backward();
          add_gradients(*net, axis);
          require_gradients(*net, expected, what);
        }
        return 0;
      });
    }
  }
}

TEST_CASE("language models over divided sequences have the loss and the gradients of one process") {
  nn::OlmoeConfig olmoe;
  olmoe.vocab_size = 23, olmoe.hidden_size = 8, olmoe.intermediate_size = 6, olmoe.num_hidden_layers = 1;
  olmoe.num_attention_heads = 4, olmoe.num_key_value_heads = 4, olmoe.max_position_embeddings = 16;
  olmoe.num_experts = 4, olmoe.num_experts_per_tok = 2;
  const nn::Gpt2Config gpt2{.vocab_size = 23,
                            .n_positions = 16,
                            .n_embd = 8,
                            .n_layer = 2,
                            .n_head = 4,
                            .n_inner = 10,
                            .embd_pdrop = 0,
                            .attn_pdrop = 0,
                            .resid_pdrop = 0};
  const Tensor ids = ids_of(2, 8), next = (ids * 3 + 1).remainder(23);
  // 3 documents in the first sequence; the middle one crosses the border of two ranks.
  const Tensor documents = ints({0, 0, 0, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0}, {2, 8});
  const auto compare = [&](const auto& make) {
    for (const bool packed : {false, true}) {
      const auto one = make();
      const Tensor loss = (*one)(ids, {.documents = packed ? documents : Tensor(), .targets = next});
      loss.backward();
      const Gradients expected = gradients_of(*one);
      on_ranks<int>(2, [&](const Group& world) {
        const Axis axis = Mesh(world, {{"context", -1}})["context"];
        for (const ContextAttention form : kForms) {
          const auto net = make();
          const ContextParallel context = context_parallel(*net, axis, {.attention = form});
          nn::TokenContext how{.targets = context.own_part(next, 1)};
          const DType integers = form == ContextAttention::gathered ? DType::i32 : DType::i64;
          if (packed) how.documents = context.own_part(documents, 1).to(integers);
          const Tensor mine = context.own_part(ids, 1);
          const std::string what = concat({net->type_name(), ", ", name_of(form), packed ? ", packed" : ""});
          if (packed && form == ContextAttention::ring) {
            const std::string error = error_of([&] { (*net)(mine, how); });
            require(error.find("a ring has no masks of documents") != error.npos, what, error);
            continue;
          }
          const Tensor own = (*net)(mine, how) * 0.5;  // half of the targets
          own.backward();
          const Tensor sum = own.detach().clone();
          axis.group()->all_reduce(sum).wait();
          require(std::abs(sum.item() - loss.item()) < 1e-12, what, ": the loss");
          add_gradients(*net, axis);
          require_gradients(*net, expected, what);
        }
        return 0;
      });
    }
  };
  compare([] { return made<nn::Llama>(llama()); });
  if (!kSanitized) compare([&] { return made<nn::Gpt2>(gpt2); });
  compare([&] { return made<nn::Olmoe>(olmoe); });
}

TEST_CASE("a call makes the mask of its documents once, for all layers") {
  // One rank that says it has the whole sequences.
  struct Counting final : nn::DividedSequence {
    mutable int masks = 0;
    mutable std::vector<Tensor> used;
    Tensor positions(std::int64_t rows, Device) const override { return arange(rows); }
    Tensor whole(const Tensor& rows) const override { return rows; }
    Tensor document_mask(const Tensor& documents) const override {
      ++masks;
      return nn::document_mask(documents);
    }
    Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Call& how) const override {
      used.push_back(how.mask);
      return scaled_dot_product_attention(q, k, v, {.attn_mask = how.mask, .enable_gqa = true});
    }
  };
  const auto counting = std::make_shared<Counting>();
  nn::Llama net({.vocab_size = 9,
                 .hidden_size = 4,
                 .intermediate_size = 4,
                 .num_hidden_layers = 3,
                 .num_attention_heads = 2,
                 .num_key_value_heads = 1,
                 .head_dim = 2,
                 .max_position_embeddings = 8});
  const Tensor ids = ints({1, 2, 3, 4, 5, 6}, {1, 6}), documents = ints({0, 0, 1, 1, 1, 2}, {1, 6});
  const Tensor expected = net(ids, {.documents = documents}).detach();
  for (nn::Module* const m : net.modules())
    if (auto* const layer = dynamic_cast<nn::SequenceModule*>(m)) layer->divided_sequence = counting;
  CHECK(tensor_test::distance(net(ids, {.documents = documents}), expected) < 1e-6);
  CHECK(counting->masks == 1);
  REQUIRE(counting->used.size() == 3);
  for (const Tensor& mask : counting->used) CHECK(mask.is_same(counting->used[0]));
}

TEST_CASE("the models without their heads know the positions of a rank's rows too") {
  const auto one = made<nn::Llama>(llama());
  const Tensor features = one->model(ids_of(2, 8)).detach();
  on_ranks<int>(2, [&](const Group& world) {
    const auto net = made<nn::Llama>(llama());
    const ContextParallel context = context_parallel(net->model, Mesh(world, {{"context", -1}})["context"]);
    require(distance(net->model(context.own_part(ids_of(2, 8), 1)), context.own_part(features, 1)) < 1e-12,
            "the features");
    return 0;
  });
}

TEST_CASE("a model over divided sequences generates on each rank without communication") {
  const std::vector<std::int64_t> prompt{3, 11, 7};
  const auto words_of = [&](nn::LanguageModel& net) {
    nn::Sampler sampler({.temperature = 0.8, .seed = 4});
    return nn::generate(net, prompt, {.max_new_tokens = 6}, sampler);
  };
  const std::vector<std::int64_t> expected = words_of(*made<nn::Llama>(llama()));
  on_ranks<int>(2, [&](const Group& world) {
    const auto net = made<nn::Llama>(llama());
    const Axis axis = Mesh(world, {{"context", -1}})["context"];
    context_parallel(*net, axis);
    const std::size_t calls = axis.group()->recorder().records().size();
    if (world->rank() == 1) require(words_of(*net) == expected, "other words");
    require(axis.group()->recorder().records().size() == calls, "something was posted");
    return 0;
  });
}

TEST_CASE("in an evaluation of whole sequences, the first rank of a context axis counts") {
  for (const char* const text : {"context=2", "context=2:attention=ring"})
    on_ranks<int>(2, [&](const Group& world) {
      Strategy strategy(text, {.world = world});
      const auto net = made<nn::Llama>(llama());
      nn::KvCache cache = net->make_cache();
      ModelParts parts;
      parts.sequence_dim = 1;
      parts.forward = [&](const std::vector<Tensor>& in) {
        return std::vector{(*net)(in[0], {.cache = in[0].size(1) == 3 ? &cache : nullptr})};
      };
      parts.loss = [](const std::vector<Tensor>& out, const std::vector<Tensor>& targets) -> Loss {
        return {cross_entropy(out[0].flatten(0, 1), targets[0].flatten()),
                static_cast<double>(targets[0].numel())};
      };
      strategy.wrap(*net, parts);
      int seen = 0;
      const auto evaluated = [&](std::int64_t length, bool whole) {
        return *strategy.evaluate(
            1,
            [&](std::int64_t) {
              return Batch{{ids_of(1, length)}, {ids_of(1, length)}, true, whole};
            },
            {}, [&](const auto&, const Batch&) { ++seen; });
      };
      const auto one = made<nn::Llama>(llama());
      const auto loss = [&](std::int64_t length) {
        return (*one)(ids_of(1, length), {.targets = ids_of(1, length)}).item();
      };
      // 3 tokens cannot be divided.
      const Evaluation whole = evaluated(3, true), divided = evaluated(8, false);
      require(whole.count == 3 && std::abs(whole.mean() - loss(3)) < 1e-12, "whole: ", whole.mean());
      require(divided.count == 8 && std::abs(divided.mean() - loss(8)) < 1e-12, "divided: ", divided.mean());
      require(seen == (world->rank() == 0 ? 2 : 1), "seen ", seen);
      const std::string error = error_of([&] {
        strategy.gradients([](const Part&) { return Batch{{ids_of(1, 8)}, {ids_of(1, 8)}, true, true}; }, 8);
      });
      require(error.find("a batch of training is whole") != error.npos, error);
      return 0;
    });
}

TEST_CASE("SyncBatchNorm over a context axis has the statistics of whole sequences") {
  struct Net : nn::Module {
    nn::MultiheadAttention& attention =
        add<nn::MultiheadAttention>("attention", {.embed_dim = 4, .num_heads = 2, .batch_first = true});
    nn::BatchNorm1d& norm = add<nn::BatchNorm1d>("norm", {.num_features = 4});
    Tensor forward(const Tensor& x) override { return norm(attention(x).transpose(1, 2)).transpose(1, 2); }
    struct Options {};
    explicit Net(const Options&) {}
  };
  const Tensor x = wave({2, 6, 4}, 0.7);
  const auto one = made<Net>({});
  const Tensor y = (*one)(x).detach();
  on_ranks<int>(2, [&](const Group& world) {
    const Axis axis = Mesh(world, {{"context", -1}})["context"];
    const auto net = made<Net>({});
    const std::string error = error_of([&] { context_parallel(*net, axis); });
    require(error.find("BatchNorm1d norm has statistics of one rank's positions") != error.npos, error);
    convert_sync_batchnorm(*net, axis.group());
    const ContextParallel context = context_parallel(*net, axis);
    require(distance((*net)(context.own_part(x, 1)), context.own_part(y, 1)) < 1e-12, "the values");
    return 0;
  });
}

TEST_CASE("the form of attention follows from the heads, the ranks and the masks") {
  using Form = ContextAttention;
  const auto chosen = [](std::int64_t queries, std::int64_t keys, bool causal, int ranks,
                         bool documents = false) {
    return choose_attention({{queries, keys, causal}}, ranks, documents);
  };
  // Elements of a row in forward and backward, on 2 ranks: a ring 2 * 2 g + 2 * 2 g, an all-to-all 2 (h + g).
  CHECK(chosen(8, 8, true, 2) == Form::all_to_all);   // 64 against 32
  CHECK(chosen(32, 8, true, 2) == Form::ring);        // 64 against 80
  CHECK(chosen(32, 8, true, 4) == Form::all_to_all);  // 160 against 120
  CHECK(chosen(6, 3, true, 2) == Form::ring);         // 2 ranks cannot divide 3 heads
  CHECK(chosen(6, 3, true, 2, true) == Form::gathered);
  CHECK(chosen(32, 8, true, 2, true) == Form::all_to_all);
  CHECK(chosen(32, 8, false, 2) == Form::gathered);
  CHECK(chosen(8, 8, false, 4) == Form::all_to_all);
  CHECK(choose_attention({{8, 8, true}, {3, 3, true}}, 2, false) == Form::ring);  // one form for all layers
  CHECK_THROWS_WITH(context_attention_of("rings"), Catch::Matchers::Contains("there is no attention rings"));
}

TEST_CASE("the form of attention follows from the heads that tensor_parallel() gave each rank") {
  TensorPlan mlp_alone;
  mlp_alone.rules = {{"model.layers.0.mlp", TensorStyle::input},
                     {"model.layers.0.mlp.gate_proj", TensorStyle::column},
                     {"model.layers.0.mlp.up_proj", TensorStyle::column},
                     {"model.layers.0.mlp.down_proj", TensorStyle::row}};
  on_ranks<int>(4, [&](const Group& world) {
    const Mesh mesh(world, {{"context", 2}, {"tensor", 2}});
    const auto divided = [&](std::int64_t heads, ContextAttention attention, bool by_plan) {
      nn::LlamaConfig config = llama();
      config.num_hidden_layers = 1, config.num_attention_heads = config.num_key_value_heads = heads;
      const auto net = made<nn::Llama>(config);
      tensor_parallel(*net, mesh["tensor"], by_plan ? tensor_plan(*net, 2) : mlp_alone);
      return context_parallel(*net, mesh["context"], {.attention = attention, .head_ranks = 2}).attention();
    };
    const auto form = ContextAttention::all_to_all;
    for (const std::int64_t heads : {5, 7}) {  // 3 and 2, 4 and 3: one rank alone could divide them
      require(divided(heads, ContextAttention::automatic, true) == ContextAttention::ring, "auto, ", heads);
      const std::string error = error_of([&] { divided(heads, form, true); });
      require(error.find("has 3 heads of keys and values on a rank of the axis that divides heads, which 2 "
                         "ranks cannot divide") != error.npos,
              error);
    }
    require(divided(4, ContextAttention::automatic, true) == form, "2 heads on each rank");
    require(divided(2, ContextAttention::automatic, true) == ContextAttention::ring, "1 head on each rank");
    require(divided(2, ContextAttention::automatic, false) == form, "2 heads that all ranks have");
    return 0;
  });
}

TEST_CASE("one rank takes sequences of any length in each form of attention") {
  const Tensor ids = ids_of(2, 5);
  const double expected = (*made<nn::Llama>(llama()))(ids, {.targets = ids}).item();
  on_ranks<int>(1, [&](const Group& world) {
    for (const ContextAttention form : kForms) {
      const auto net = made<nn::Llama>(llama());
      const Axis axis = Mesh(world, {{"context", -1}})["context"];
      const Tensor own = context_parallel(*net, axis, {.attention = form}).own_part(ids, 1);
      const double loss = (*net)(own, {.targets = own}).item();
      require(own.equal(ids) && std::abs(loss - expected) < 1e-12, name_of(form));
    }
    return 0;
  });
}

TEST_CASE("the report counts what attention sends, and names the form that was chosen") {
  on_ranks<int>(2, [](const Group& world) {
    Strategy strategy("context=2", {.world = world});
    require(strategy.data_size() == 1 && strategy.loss_parts() == 2 && strategy.calls_are_collective() &&
                strategy.random_place().data == world->rank(),
            "facts");
    const auto net = made<nn::Llama>(llama());
    ModelParts parts;
    parts.sequence_dim = 1;
    parts.forward_loss = [&](const auto& in, const auto& targets) -> Loss {
      return {(*net)(in[0], {.targets = targets[0]}), static_cast<double>(targets[0].numel())};
    };
    strategy.wrap(*net, parts);
    strategy.gradients([](const Part&) { return Batch{{ids_of(3, 8)}, {ids_of(3, 8)}}; }, 24);
    // 2 layers, 3 sequences of 4 rows, heads of 4 features in f64; of 4 heads and 2 of keys, an all-to-all
    // sends half of 12 heads in each direction.
    const auto report = strategy.report();
    require(report.size() == 1 && report[0].axis == "context" && report[0].choice == "attention=all-to-all",
            "the report");
    std::int64_t activations = 0, gradients = 0;
    for (const Transfer& t : strategy.transfers()) {
      require(t.from == world->rank() && t.to == 1 - world->rank(), "sender and receiver");
      (t.what == std::string("activations") ? activations : gradients) += t.bytes;
    }
    require(activations == 2 * 12 * 4 * 8 * (6 + 6), activations, " bytes");
    require(gradients > 0 && report[0].bytes_sent == activations + gradients, gradients, " bytes");
    return 0;
  });
}

TEST_CASE("the bytes of attention are those of the dtype that autocast chooses") {
  on_ranks<int>(2, [](const Group& world) {
    const Axis axis = Mesh(world, {{"context", -1}})["context"];
    // 2 layers, 3 sequences of 4 rows and heads of 4 features: the bytes for one row and feature, forward and
    // backward. A ring sends gradients of keys and values in f32: 4 elements of keys and values forward, and
    // backward 4, with 8 of the gradients.
    const auto sent = [&](ContextAttention form, bool casts, bool records) {
      const auto net = made<nn::Llama>(llama());
      net->to(DType::f32);
      const ContextParallel context = context_parallel(*net, axis, {.attention = form});
      const AutocastGuard low(DType::bf16, {.enabled = casts});
      std::optional<NoGradGuard> unrecorded;
      if (!records) unrecorded.emplace();
      (*net)(context.own_part(ids_of(3, 8), 1));
      const std::int64_t each = 2 * 12 * 4;
      require(context.bytes_sent() % each == 0, context.bytes_sent(), " bytes");
      return context.bytes_sent() / each;
    };
    using Form = ContextAttention;
    const std::vector<std::int64_t> bytes{sent(Form::ring, true, true), sent(Form::ring, false, true),
                                          sent(Form::ring, true, false), sent(Form::gathered, true, true),
                                          sent(Form::all_to_all, true, true)};
    require(bytes == std::vector<std::int64_t>{(4 + 4) * 2 + 8 * 4, (4 + 4 + 8) * 4, 4 * 2, (4 + 4) * 2,
                                               (6 + 6) * 2},
            "ring ", bytes[0], " ", bytes[1], " ", bytes[2], ", gathered ", bytes[3], ", all-to-all ",
            bytes[4]);
    return 0;
  });
}

TEST_CASE("what cannot be divided along its sequences is refused by name") {
  struct Both : nn::Module {
    struct Options {};
    explicit Both(std::shared_ptr<nn::Module> other) {
      add<nn::MultiheadAttention>("attention", {.embed_dim = 4, .num_heads = 2});
      add("other", std::move(other));
    }
  };
  on_ranks<int>(2, [](const Group& world) {
    const Axis axis = Mesh(world, {{"context", -1}})["context"];
    const std::size_t calls = axis.group()->recorder().records().size();
    const auto refused = [&](const std::string& why, const std::function<void()>& fn) {
      const std::string error = error_of(fn);
      require(error.find(why) != error.npos, error, "\ninstead of\n", why);
    };
    const auto beside = [&](const std::string& why, std::shared_ptr<nn::Module> other) {
      refused(why, [&] {
        Both net(std::move(other));
        context_parallel(net, axis);
      });
    };
    beside("LSTM other is recurrent",
           nn::make<nn::LSTM>(nn::LSTM::Options{.input_size = 4, .hidden_size = 4}));
    beside("Conv1d other mixes neighbours",
           nn::make<nn::Conv1d>(nn::Conv1d::Options{.in_channels = 4, .out_channels = 4, .kernel_size = 3}));
    const auto mixes = [&]<class Layer>(const char* name, const typename Layer::Options& options) {
      beside(concat({name, " other mixes neighbours"}), nn::make<Layer>(options));
    };
    mixes.operator()<nn::ConstantPad1d>("ConstantPad1d", {.padding = 1});
    mixes.operator()<nn::CircularPad2d>("CircularPad2d", {.padding = 1});
    mixes.operator()<nn::Upsample>("Upsample", {.scale_factor = {2.0}});
    mixes.operator()<nn::Unfold>("Unfold", {.kernel_size = 2});
    mixes.operator()<nn::Fold>("Fold", {.output_size = 4, .kernel_size = 2});
    mixes.operator()<nn::PixelShuffle>("PixelShuffle", {.upscale_factor = 2});
    mixes.operator()<nn::PixelUnshuffle>("PixelUnshuffle", {.downscale_factor = 2});
    beside("GroupNorm other has sums over a whole sequence",
           nn::make<nn::GroupNorm>(nn::GroupNorm::Options{.num_groups = 2, .num_channels = 4}));
    beside("TransformerDecoderLayer other has cross-attention",
           nn::make<nn::TransformerDecoderLayer>(
               nn::TransformerDecoderLayer::Options{.d_model = 4, .nhead = 2, .dim_feedforward = 4}));
    refused("Linear has no layer of self-attention", [&] {
      nn::Linear net({.in_features = 2, .out_features = 2});
      context_parallel(net, axis);
    });
    const auto options = nn::MultiheadAttention::Options{.embed_dim = 6, .num_heads = 3, .dropout = 0.5};
    nn::MultiheadAttention net(options);
    refused("MultiheadAttention has 3 heads of keys and values, which 2 ranks cannot divide",
            [&] { context_parallel(net, axis, {.attention = ContextAttention::all_to_all}); });
    const ContextParallel context = context_parallel(net, axis, {.attention = ContextAttention::ring});
    refused("is divided already", [&] { context_parallel(net, axis); });
    refused("2 ranks cannot divide a sequence of 6 positions into 4 equal chunks, which attention ring needs",
            [&] {
              context.own_part(ones({1, 6}), 1);
            });
    const Tensor x = ones({4, 1, 6}), mask = zeros({4, 4}, DType::boolean);
    refused("an attention drops weights with the probability 0.5", [&] { net(x); });
    net.eval();
    refused("only self-attention can be divided", [&] {
      net(x, ones({4, 1, 6}), x, {.need_weights = false});
    });
    refused("has no weights, masks or added keys", [&] { net(x, x, x); });
    refused("has no weights, masks or added keys",
            [&] { net(x, x, x, {.need_weights = false, .attn_mask = mask}); });
    const auto model = made<nn::Llama>(llama());
    context_parallel(*model, axis);
    refused("one rank has the last token", [&] { (*model)(ids_of(1, 4), {.last = true}); });
    refused("pass TokenContext::documents in place of the mask", [&] {
      (*model)(ids_of(1, 4), {.mask = ones({4, 4}, DType::boolean)});
    });
    require(axis.group()->recorder().records().size() == calls, "something was posted");
    refused("set sequence_dim", [&] {
      Strategy strategy("context=2", {.world = world});
      const auto other = made<nn::Llama>(llama());
      ModelParts parts;
      parts.forward_loss = [](const auto&, const auto&) { return Loss{}; };
      strategy.wrap(*other, parts);
    });
    return 0;
  });
  CHECK_THROWS_WITH(
      plan_strategy("context=2:attention=rings", true),
      Catch::Matchers::Contains("attention is rings; choose one of auto|gathered|ring|all-to-all"));
}
