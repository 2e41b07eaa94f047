// Layers that tensor ranks divide, against one process in float64.
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;
using Style = TensorStyle;

namespace {

// 10 hidden features: 5 and 5 on two ranks, 3, 3, 3 and 1 on four.
struct Mlp : nn::Module {
  nn::Linear& in = add<nn::Linear>("in", {.in_features = 4, .out_features = 3});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = 3, .out_features = 10});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 10, .out_features = 3});
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = {3}});
  nn::Linear& out = add<nn::Linear>("out", {.in_features = 3, .out_features = 7});
  Mlp() {
    to(DType::f64);
    test::fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = in(x);
    return out(norm(h + nn::feed_forward(up, down, h, Activation::gelu)));
  }
};
const TensorPlan kPlan{{{"in", Style::enter},
                        {"up", Style::column},
                        {"down", Style::row},
                        {"norm", Style::residual},
                        {"out", Style::gathered_column}}};

}  // namespace

TEST_CASE("a divided MLP has the result and the gradients of one process, also behind fully_shard") {
  const Tensor x = wave({4, 6, 4}, 1.3);
  Mlp one;
  const Tensor leaf = x.clone().set_requires_grad(true), y = one(leaf);
  (y * wave(y.sizes(), 0.4)).sum().backward();
  const Gradients expected = gradients_of(one);
  const struct {
    int ranks, tensors;
    bool sequence;
    int chunks = 0;
  } cases[] = {{2, 2, false}, {4, 4, false},   {4, 2, false},   {2, 2, true},   {4, 4, true},
               {4, 2, true},  {2, 2, true, 2}, {4, 4, true, 8}, {4, 2, true, 3}};
  for (const auto& c : cases) {
    if (kSanitized && (c.ranks == 2 || c.sequence != (c.chunks == 3))) continue;
    on_ranks<int>(c.ranks, [&](const Group& world) {
      Mesh mesh = mesh_of(world, c.tensors);
      const Axis tensor = mesh["tensor"], shard = mesh["shard"];
      const std::string what =
          concat({c.ranks, " ranks, tensor=", c.tensors, " sequence=", c.sequence, " chunks=", c.chunks});
      Mlp net;
      tensor_parallel(net, tensor, kPlan, {.sequence = c.sequence, .chunks = c.chunks});
      const int parts = shard.size(), rows = 4 / parts, first = shard.coordinate() * rows;
      if (parts > 1) fully_shard(net, {.group = shard.group(), .reduce = ReduceOp::sum});
      const Tensor own = x.narrow(0, first, rows).clone().set_requires_grad(true);
      set_placement(own, tensor, Placement::invariant());
      const Tensor out = net(own);
      require_placement(out, tensor, Placement::invariant());
      require(distance(out, y.narrow(0, first, rows)) < 1e-12, what, ": the result");
      for (int pass = 0; pass < 2; ++pass) {  // gradients are added to what there is
        net.zero_grad();
        own.zero_grad();
        for (int part = 0; part <= pass; ++part)
          (net(own) * wave(y.sizes(), 0.4).narrow(0, first, rows) / (pass + 1)).sum().backward();
        require_gradients(net, expected, what);
        // Each rank has the gradient of what all of them were given.
        require(distance(own.grad(), leaf.grad().narrow(0, first, rows)) < 1e-10, what,
                ": the input's gradient");
      }
      return 0;
    });
  }
}

TEST_CASE("a sequence that ranks cannot divide equally is divided into unequal parts") {
  for (const auto& [length, chunks] :
       {std::pair(1, 0), {3, 2}, {5, 0}, {5, 2}, {7, 0}, {7, 2}, {7, 4}, {10, 3}}) {
    if (kSanitized && length != 1 && length != 10) continue;
    const Tensor x = wave({2, length, 4}, 0.9);
    Mlp one;
    one(x).square().sum().backward();
    const Gradients expected = gradients_of(one);
    on_ranks<int>(3, [&](const Group& world) {
      Mesh mesh = mesh_of(world, 3);
      Mlp net;
      tensor_parallel(net, mesh["tensor"], kPlan, {.sequence = true, .chunks = chunks});
      net(x).square().sum().backward();
      require_gradients(net, expected, concat({"length ", length, ", chunks ", chunks}));
      return 0;
    });
  }
}

TEST_CASE("an embedding is divided by words and by features, and knows its padding") {
  struct Net : nn::Module {
    nn::Embedding& words =
        add<nn::Embedding>("words", {.num_embeddings = 7, .embedding_dim = 6, .padding_idx = 5});
    nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = {6}});
    Net() {
      to(DType::f64);
      test::fill_by_formula(*this);
    }
    Tensor forward(const Tensor& ids) override { return norm(words(ids)); }
  };
  const Tensor ids = ints({0, 5, 6, 3, 3, 2, 5, 1}, {2, 4});
  Net one;
  const Tensor y = one(ids);
  (y * wave(y.sizes(), 0.8)).sum().backward();
  const Gradients expected = gradients_of(one);
  for (const int ranks : {2, 4})
    for (const Style style : {Style::vocabulary, Style::embedding_column})
      on_ranks<int>(ranks, [&](const Group& world) {
        Mesh mesh = mesh_of(world, ranks);
        if (ranks == 4 && style == Style::embedding_column) return 0;  // a rank would have no feature
        Net net;
        tensor_parallel(net, mesh["tensor"], {{{"words", style}, {"norm", Style::residual}}});
        const Tensor out = net(ids);
        require(distance(out, y) < 1e-12, "the result");
        (out * wave(y.sizes(), 0.8)).sum().backward();
        require_gradients(net, expected, concat({ranks, " ranks, style ", static_cast<int>(style)}));
        std::string error;
        try {
          net(ints({0, 7}, {1, 2}));
        } catch (const IndexError& e) {
          error = e.what();
        }
        require(style != Style::vocabulary || error.find("outside [0, 7)") != std::string::npos, error);
        return 0;
      });
}

TEST_CASE("a Transformer encoder is divided by heads, with masks for each of them") {
  constexpr std::int64_t kLength = 3;
  const auto make = [](std::int64_t heads) {
    static std::mutex mutex;  // ranks are threads, and share the generator
    const std::lock_guard lock(mutex);
    auto net = std::make_unique<nn::TransformerEncoder>(nn::TransformerEncoder::Options{
        .layer =
            {.d_model = 2 * heads, .nhead = heads, .dim_feedforward = 5, .dropout = 0, .batch_first = true},
        .num_layers = 2,
        .norm = true});
    net->to(DType::f64);
    test::fill_by_formula(*net);
    return net;
  };
  for (const auto& [heads, tensors] : {std::pair(4, 2), {4, 4}, {5, 2}, {5, 3}}) {
    if (kSanitized && tensors != 3) continue;
    const Tensor x = wave({2, kLength, 2 * heads}, 1.9);
    // Another mask for each head: true marks keys that a query must not see.
    const Tensor masks = wave({2 * heads, kLength, kLength}, 0.9) > 0.3;
    const auto one = make(heads);
    const Tensor y = (*one)(x, {.mask = masks});
    (y * wave(y.sizes(), 0.4)).sum().backward();
    const Gradients expected = gradients_of(*one);
    on_ranks<int>(tensors, [&, heads = heads, tensors = tensors](const Group& world) {
      Mesh mesh = mesh_of(world, tensors);
      const auto net = make(heads);
      TensorPlan plan = tensor_plan(*net, tensors);
      if (tensors == 4)  // 5 hidden features are 2, 2, 1 and 0: leave them whole
        std::erase_if(plan.rules,
                      [](const TensorRule& r) { return r.path.find("linear") != std::string::npos; });
      tensor_parallel(*net, mesh["tensor"], plan);
      const Tensor out = (*net)(x, {.mask = masks});
      require(distance(out, y) < 1e-12, heads, " heads: the result on ", tensors, " ranks");
      (out * wave(y.sizes(), 0.4)).sum().backward();
      require_gradients(*net, expected, concat({heads, " heads, ", tensors, " ranks"}));
      return 0;
    });
  }
}

namespace {

// Gate and up in one matrix, of 5 features each: 3 and 2 on two ranks; 2, 2 and 1 on three.
struct FusedMlp : nn::Module {
  nn::Linear& gate_up = add<nn::Linear>("gate_up", {.in_features = 4, .out_features = 10});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 5, .out_features = 4});
  FusedMlp() {
    to(DType::f64);
    test::fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) override {
    const std::vector<Tensor> parts = gate_up(x).chunk(2, -1);
    return down(swiglu(parts[0], parts[1]));
  }
};

// A step of training. Returns the norm of the gradients.
double step(FusedMlp& net, optim::AdamW& optimizer, const Tensor& x) {
  optimizer.zero_grad();
  net(x).square().sum().backward();
  const double norm = nn::clip_grad_norm_(net.parameters(), 0.5).item();
  optimizer.step();
  return norm;
}

}  // namespace

TEST_CASE(
    "ranks divide each block of a fused projection, behind fully_shard too, and checkpoints are whole") {
  const tests::TempDir dir;
  const Tensor x = wave({4, 4}, 0.9);
  FusedMlp one;
  optim::AdamW optimizer(one.parameters(), {.lr = 0.01});
  one(x).square().sum().backward();
  const Gradients expected = gradients_of(one);
  step(one, optimizer, x);
  const double norm = step(one, optimizer, x), last = step(one, optimizer, x);
  const TensorPlan plan{{{"gate_up", Style::column, 1, /*blocks=*/2}, {"down", Style::row}}};
  for (const auto& [ranks, tensors] : {std::pair(2, 2), {3, 3}, {4, 2}, {6, 3}}) {
    if (kSanitized && ranks != 4) continue;
    const std::string at = concat({ranks, "-", tensors});
    on_ranks<int>(ranks, [&, ranks = ranks, tensors = tensors](const Group& world) {
      Mesh mesh = mesh_of(world, tensors);
      const Axis tensor = mesh["tensor"], shard = mesh["shard"];
      const std::string what = concat({ranks, " ranks, tensor=", tensors});
      const auto make = [&] {
        auto net = std::make_unique<FusedMlp>();
        tensor_parallel(*net, tensor, plan);
        // All ranks along `shard` have all samples.
        if (shard.size() > 1) fully_shard(*net, {.group = shard.group()});
        return net;
      };
      const auto net = make();
      const std::int64_t mine = nn::Region::whole({5}).part(0, tensor.coordinate(), tensors).sizes[0];
      require(net->gate_up.weight.layout()->full_boxes(0).sizes()[0] == 2 * mine, what, ": the rows");
      (*net)(x).square().sum().backward();
      require_gradients(*net, expected, what);
      optim::AdamW own(net->parameters(), {.lr = 0.01});
      step(*net, own, x);
      require(std::abs(step(*net, own, x) - norm) < 1e-11, what, ": the norm");
      save_checkpoint(dir / ("whole" + at), world, {net.get(), &own}, {.step = 2});
      save_sharded(dir / ("parts" + at), world, {net.get(), &own}, {.step = 2});
      for (const char* const from : {"whole", "parts"}) {
        const auto other = make();
        for (const nn::Parameter& p : other->parameters()) p.detach().fill_(1);
        optim::AdamW again(other->parameters(), {.lr = 0.01});
        load_sharded(dir / (from + at), {other.get(), &again}, {.rank = world->rank()});
        require(std::abs(step(*other, again, x) - last) < 1e-11, what, ": loaded from ", from);
      }
      return 0;
    });
    FusedMlp whole, parts;
    optim::AdamW own(whole.parameters(), {.lr = 0.01}), other(parts.parameters(), {.lr = 0.01});
    nn::load_checkpoint(dir / ("whole" + at), {&whole, &own});
    CHECK(std::abs(step(whole, own, x) - last) < 1e-11);
    load_sharded(dir / ("parts" + at), {&parts, &other});
    CHECK(std::abs(step(parts, other, x) - last) < 1e-11);
  }
}

TEST_CASE("tensor_parallel refuses what it cannot divide, on all ranks and before anything is changed") {
  struct Odd : nn::Module {
    nn::Embedding& words = add<nn::Embedding>("words", {.num_embeddings = 6, .embedding_dim = 4});
    nn::LSTM& rnn = add<nn::LSTM>("rnn", {.input_size = 4, .hidden_size = 4});
    nn::Linear& head = add<nn::Linear>("head", {.in_features = 4, .out_features = 6, .bias = false});
    nn::Embedding& scaled =
        add<nn::Embedding>("scaled", {.num_embeddings = 6, .embedding_dim = 4, .max_norm = 1});
    Odd() { head.weight = words.weight; }
  };
  on_ranks<int>(3, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 3);
    Odd net;
    const auto error_of = [&](const TensorPlan& plan, const TensorParallelOptions& options = {}) {
      try {
        tensor_parallel(net, mesh["tensor"], plan, options);
      } catch (const ValueError& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const struct {
      TensorPlan plan;
      const char* text;
    } cases[] = {
        {{{{"rnn", Style::column}}}, "LSTM rnn is recurrent"},
        {{{{"layers.*", Style::column}}}, "no module has the path \"layers.*\""},
        {{{{"head", Style::vocabulary}}},
         "Linear head is no Embedding, which vocabulary divides; choose another style"},
        {{{{"words", Style::row}}}, "Embedding words is no Linear, which row divides; choose another style"},
        {{{{"", Style::head}}}, "is no LanguageModel, whose head is divided; choose another style"},
        {{{{"words", Style::vocabulary}}}, "'weight' of Linear head is divided by another module"},
        {{{{"words", Style::embedding_column}, {"head", Style::column}}}, "Embedding words has 4 features"},
        {{{{"words", Style::vocabulary}, {"head", Style::row}}},
         "Linear head has 4 inputs, of which the last"},
        {{{{"head", Style::column, 4}}}, "has 6 outputs, which are no units of 4; correct unit in the rule"},
        {{{{"head", Style::column, 1, 4}}},
         "has 6 outputs, which are no 4 blocks; correct blocks in the rule"},
        {{{{"head", Style::row, 1, 2}}}, "is no column layer, whose outputs can be blocks; leave out blocks"},
        {{{{"head", Style::column, 3}}}, "has 2 units of 3 outputs, which 3 ranks cannot share"},
        {{{{"scaled", Style::vocabulary}}}, "max_norm"},
        {{{{"", Style::input}}}, "Embedding words has parameters inside a divided region, and no rule"},
        {{{{"", Style::input}, {"words", Style::residual}}}, "own features alone, and residual divides none"},
        {{{{"", Style::input}, {"words", Style::enter}}}, "own features alone, and enter divides none"},
        {{{{"head", Style::gathered_column, 6}}}, "is a gathered_column layer, whose units cannot be shared"},
        {{{{"words", Style::vocabulary, 2}}}, "has a unit or blocks in its rule, for which vocabulary"},
        {{{{"words", Style::residual, 1, 2}}}, "has a unit or blocks in its rule, for which residual"},
    };
    for (const auto& c : cases) {
      const std::string error = error_of(c.plan);
      require(error.find(c.text) != std::string::npos, "expected \"", c.text, "\": ", error);
    }
    require(error_of({{{"words", Style::vocabulary}, {"head", Style::column}}}, {.sequence = true})
                    .find("on a residual stream") != std::string::npos,
            "a module without a rule on a divided stream");
    require(error_of({{{"words", Style::vocabulary},
                       {"head", world->rank() == 1 ? Style::gathered_column : Style::column}}})
                    .find("only rank 1 has:") != std::string::npos,
            "other plans");
    for (const auto& [name, p] : net.named_parameters()) require(!p.layout(), name, " was divided");
    require(error_of({{{"words", Style::vocabulary}, {"head", Style::gathered_column}}}).empty(),
            "a right plan");
    require(error_of({{{"words", Style::vocabulary}, {"head", Style::gathered_column}}})
                    .find("is divided already; call tensor_parallel() once") != std::string::npos,
            "twice");
    return 0;
  });
}

TEST_CASE("tensor_parallel refuses buffers that differ, and meta parameters that share memory") {
  struct Net : nn::Module {
    nn::Linear& layer = add<nn::Linear>("layer", {.in_features = 2, .out_features = 4, .bias = false});
    Net(std::int64_t scales, bool shares) {
      buffer("scale", ones({scales}));
      if (shares) param("view", layer.weight.tensor().detach());
    }
  };
  on_ranks<int>(2, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 2);
    const auto require_error = [&](nn::Module& net, const char* text) {
      std::string error;
      try {
        tensor_parallel(net, mesh["tensor"], {{{"layer", Style::column}}});
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find(text) != std::string::npos, "expected \"", text, "\": ", error);
      for (const auto& [name, p] : net.named_parameters()) require(!p.layout(), name, " was divided");
    };
    Net net(1 + world->rank(), false);
    require_error(net, "buffer scale");
    const auto shared = [] {
      const DeviceGuard on_meta("meta");
      return std::make_unique<Net>(1, true);
    }();
    require_error(*shared, "are on the meta device and share memory");
    return 0;
  });
}

TEST_CASE("initial values are those of one process, on the meta device too") {
  const auto build = [](bool meta) {
    Generator generator(11);
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    std::optional<DeviceGuard> on_meta;
    if (meta) on_meta.emplace("meta");
    auto net = std::make_unique<nn::Sequential>(nn::make<nn::Linear>(5, 8), nn::make<nn::GELU>(),
                                                nn::make<nn::Linear>(8, 5));
    return net;
  };
  const auto one = build(false);
  for (const bool meta : {false, true})
    on_ranks<int>(2, [&](const Group& world) {
      Mesh mesh = mesh_of(world, 2);
      const auto net = build(meta);
      // Rank 1 has other values, as with another seed.
      if (!meta && world->rank() == 1)
        for (const nn::Parameter& p : net->parameters()) p.detach().fill_(3);
      tensor_parallel(*net, mesh["tensor"], {{{"0", Style::column}, {"2", Style::row}}});
      for (const auto& [name, p] : net->named_parameters()) {
        const Tensor whole =
            one->at(name.substr(0, 1)).named_parameters()[name.ends_with("bias")].second.detach();
        require(distance(p.detach(), p.layout()->boxes(0).of(whole)) == 0, name, " has other values");
      }
      return 0;
    });
}
