#include "tapestry/nn/module.h"

#include <memory>
#include <optional>
#include <sstream>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

// The model of the README.
struct Net : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc(conv(x).flatten(1)); }
};

struct Inner : nn::Module {
  explicit Inner(int features = 4)
      : fc(add<nn::Linear>("fc", {.in_features = features, .out_features = features})),
        bn(add<nn::BatchNorm1d>("bn", {.num_features = features})) {}
  Tensor forward(const Tensor& x) override { return bn(fc(x)); }
  nn::Linear& fc;
  nn::BatchNorm1d& bn;
};

struct Outer : nn::Module {
  nn::Parameter& scale = param("scale", full({4}, 2.0));
  nn::Buffer& table = buffer("table", arange(4), true);
  nn::Buffer& scratch = buffer("scratch", zeros({2}), false);
  Inner& inner = add<Inner>("inner", 4);
  nn::ModuleList& list = add<nn::ModuleList>("list");
  Outer() {
    list.append<nn::Linear>({.in_features = 4, .out_features = 4, .bias = false});
    list.append<nn::ReLU>();
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = inner(x) * scale;
    for (nn::Module* m : list) y = (*m)(y);
    return y;
  }
};

// A forward with another signature.
struct Pairwise : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 3, .out_features = 3});
  using Module::forward;
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& a, const Tensor& b, double scale = 1) {
    return {fc(a) + b * scale, {a, b}};
  }
};

std::vector<std::string> names(const nn::StateDict& dict) {
  std::vector<std::string> found;
  for (const auto& [name, t] : dict) found.push_back(name);
  return found;
}

std::vector<std::string> parameter_names(const nn::Module& m) {
  std::vector<std::string> found;
  for (const auto& [name, t] : m.named_parameters()) found.push_back(name);
  return found;
}

}  // namespace

TEST_CASE("the model of the README computes and trains") {
  Net net;
  const Tensor y = net(zeros({2, 3, 32, 32}));
  CHECK(y.sizes() == Shape{2, 10});
  CHECK(parameter_names(net) == std::vector<std::string>{"conv.weight", "conv.bias", "fc.weight", "fc.bias"});
  y.sum().backward();
  for (const Tensor& p : net.parameters()) CHECK(p.grad().defined());
  net.zero_grad(false);
  CHECK(net.fc.bias->grad().abs().sum().item() == 0);
  net.zero_grad();
  for (const Tensor& p : net.parameters()) CHECK_FALSE(p.grad().defined());
}

TEST_CASE("named_parameters lists names in registration order, a module's own before its children's") {
  const Outer net;
  CHECK(names(net.state_dict()) ==
        std::vector<std::string>{"scale", "table", "inner.fc.weight", "inner.fc.bias", "inner.bn.weight",
                                 "inner.bn.bias", "inner.bn.running_mean", "inner.bn.running_var",
                                 "inner.bn.num_batches_tracked", "list.0.weight"});
  CHECK(parameter_names(net) == std::vector<std::string>{"scale", "inner.fc.weight", "inner.fc.bias",
                                                         "inner.bn.weight", "inner.bn.bias",
                                                         "list.0.weight"});
  std::vector<std::string> buffers, modules;
  for (const auto& [name, b] : net.named_buffers()) buffers.push_back(name);
  CHECK(buffers == std::vector<std::string>{"table", "scratch", "inner.bn.running_mean",
                                            "inner.bn.running_var", "inner.bn.num_batches_tracked"});
  for (const auto& [name, m] : net.named_modules()) modules.push_back(name);
  CHECK(modules == std::vector<std::string>{"", "inner", "inner.fc", "inner.bn", "list", "list.0", "list.1"});
  CHECK(net.children().size() == 2);
  CHECK(net.named_children()[1].first == "list");
  CHECK(net.buffers().size() == 5);
  CHECK(net.table->dtype() == DType::i64);
  CHECK_FALSE(net.table->requires_grad());
  CHECK(net.scale->requires_grad());
  CHECK(&net.at("inner.fc") == &net.inner.fc);
  CHECK(&net.at("") == &net);
  CHECK_THROWS_WITH(net.at("inner.nothing"), ContainsSubstring("Inner has no module 'nothing'"));
  CHECK(net.inner.fc.path() == "inner.fc");
  CHECK(net.path().empty());
  CHECK(net.inner.bn.num_batches_tracked->sizes() == Shape{});
  CHECK(net.inner.bn.num_batches_tracked->dtype() == DType::i64);
}

TEST_CASE("apply visits children before their parents") {
  Outer net;
  std::vector<std::string> order;
  net.apply([&](nn::Module& m) { order.push_back(m.type_name()); });
  CHECK(order ==
        std::vector<std::string>{"Linear", "BatchNorm1d", "Inner", "Linear", "ReLU", "ModuleList", "Outer"});
}

TEST_CASE("registration refuses empty, dotted and duplicate names") {
  struct Open : nn::Module {
    using Module::add;
    Tensor forward(const Tensor& x) override { return x; }
  } m;
  m.param("w", zeros({2}));
  CHECK_THROWS_WITH(m.param("w", zeros({2})), ContainsSubstring("Open already has a 'w'"));
  CHECK_THROWS_WITH(m.buffer("w", zeros({2})), ContainsSubstring("already has a 'w'"));
  CHECK_THROWS_WITH(m.add<nn::ReLU>("w"), ContainsSubstring("already has a 'w'"));
  CHECK_THROWS_WITH(m.param("", zeros({2})), ContainsSubstring("cannot be a name"));
  CHECK_THROWS_WITH(m.add<nn::ReLU>("a.b"), ContainsSubstring("'a.b' cannot be a name"));
  CHECK_THROWS_WITH(m.add("null", std::shared_ptr<nn::ReLU>()), ContainsSubstring("null"));
  const auto child = std::make_shared<Inner>();
  m.add("child", child);
  m.add("again", child);  // registers the same module under a second name
  CHECK(m.parameters().size() == 1 + 4);
  CHECK(m.state_dict().size() == 1 + 2 * 7);
  CHECK(child->path() == "child");
  const auto loop = std::make_shared<nn::Sequential>();
  loop->push_back(std::make_shared<nn::Sequential>());
  CHECK_THROWS_WITH((*loop)[0].add("up", loop), ContainsSubstring("modules form a tree"));
  loop->append(child);  // child gets a second parent; path() still uses the first one
  CHECK_THROWS_WITH(child->add("up", loop), ContainsSubstring("modules form a tree"));
  CHECK_THROWS_WITH(child->add("self", child), ContainsSubstring("modules form a tree"));
}

TEST_CASE("errors name the module's path and keep their type") {
  Outer net;
  try {
    net(zeros({2, 5}));
    FAIL("no error");
  } catch (const ValueError& e) {
    const std::string text = e.what();
    INFO(text);
    CHECK(text.find("expected an input of shape (..., 4) but got [2, 5]") != std::string::npos);
    CHECK(text.find("(in inner.fc: Linear(in_features=4, out_features=4, bias=true))") != std::string::npos);
    // The error must name only the innermost module.
    CHECK(text.find("(in ", text.find("(in ") + 1) == std::string::npos);
  }
  nn::Embedding embedding({.num_embeddings = 3, .embedding_dim = 2});
  CHECK_THROWS_AS(embedding(tensor({5})), IndexError);
  CHECK_THROWS_WITH(embedding(tensor({5})),
                    ContainsSubstring("(in Embedding(num_embeddings=3, embedding_dim=2))"));

  nn::Conv2d conv({.in_channels = 3, .out_channels = 4, .kernel_size = 3});
  CHECK_THROWS_WITH(conv(zeros({1, 2, 8, 8})), ContainsSubstring("(N, 3, H, W) but got [1, 2, 8, 8]"));
  nn::BatchNorm2d bn({.num_features = 3});
  CHECK_THROWS_WITH(bn(zeros({1, 2, 8, 8})), ContainsSubstring("(N, 3, H, W) but got [1, 2, 8, 8]"));
  CHECK_THROWS_WITH(bn(zeros({1, 3, 1, 1})), ContainsSubstring("in BatchNorm2d(num_features=3"));
  nn::BatchNorm1d bn1({.num_features = 3});
  CHECK_THROWS_WITH(bn1(zeros({2, 3, 1, 1})), ContainsSubstring("(N, 3) or (N, C, L) but got"));
  nn::LayerNorm ln({.normalized_shape = {3, 4}});
  CHECK_THROWS_WITH(ln(zeros({2, 3, 5})), ContainsSubstring("LayerNorm(normalized_shape=[3, 4]"));
  nn::MultiheadAttention attn({.embed_dim = 8, .num_heads = 2});
  CHECK_THROWS_WITH(attn(zeros({2, 1, 7})), ContainsSubstring("the last one 8, but got [2, 1, 7]"));
  CHECK_THROWS_WITH(attn(zeros({2, 1, 8}), zeros({2, 1, 8}), zeros({3, 1, 8})),
                    ContainsSubstring("do not fit"));
  CHECK_THROWS_WITH(attn(zeros({2, 1, 8}), zeros({3, 1, 8}), zeros({3, 1, 8}), {.attn_mask = zeros({3, 3})}),
                    ContainsSubstring("expected an attn_mask of [2, 3] or [2, 2, 3] but got [3, 3]"));
  CHECK_THROWS_WITH(
      attn(zeros({2, 1, 8}), zeros({3, 1, 8}), zeros({3, 1, 8}), {.key_padding_mask = zeros({1, 2})}),
      ContainsSubstring("key_padding_mask of [1, 3] but got [1, 2]"));
  CHECK_THROWS_AS(
      attn(zeros({2, 1, 8}), zeros({3, 1, 8}), zeros({3, 1, 8}), {.attn_mask = zeros({2, 3}, DType::i64)}),
      TypeError);
  // An error that is caught inside is not changed by later modules.
  struct Careful : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 2, .out_features = 2});
    Tensor forward(const Tensor& x) override {
      try {
        return fc(x);
      } catch (const ValueError&) {
        throw TypeError("second");
      }
    }
  } careful;
  CHECK_THROWS_AS(careful(zeros({3})), TypeError);
  CHECK_THROWS_WITH(careful(zeros({3})), "second (in Careful)");
}

TEST_CASE("layers refuse bad options") {
  CHECK_THROWS_WITH(nn::Linear({}),
                    ContainsSubstring("[Linear] in_features and out_features must be positive"));
  CHECK_THROWS_WITH(nn::Conv2d({.in_channels = 3, .out_channels = 4}), ContainsSubstring("kernel_size"));
  CHECK_THROWS_WITH(nn::Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .groups = 2}),
                    ContainsSubstring("groups must divide"));
  CHECK_THROWS_WITH(nn::Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .stride = 0}),
                    ContainsSubstring("stride"));
  CHECK_THROWS_WITH(nn::Conv2d({.in_channels = 3, .out_channels = 4, .kernel_size = 3, .padding = -1}),
                    ContainsSubstring("padding"));
  CHECK_THROWS_WITH(nn::BatchNorm2d({}), ContainsSubstring("[BatchNorm2d] num_features"));
  CHECK_THROWS_WITH(nn::LayerNorm({}), ContainsSubstring("normalized_shape"));
  CHECK_THROWS_WITH(nn::Embedding({.num_embeddings = 3}), ContainsSubstring("embedding_dim"));
  CHECK_THROWS_AS(nn::Embedding({.num_embeddings = 3, .embedding_dim = 1, .padding_idx = 3}), IndexError);
  CHECK_THROWS_WITH(nn::Dropout({.p = 1.5}), ContainsSubstring("[Dropout] p must lie in [0, 1] but is 1.5"));
  CHECK_THROWS_WITH(nn::GELU({.approximate = "erf"}), ContainsSubstring("'erf'"));
  CHECK_THROWS_WITH(nn::MaxPool2d({}), ContainsSubstring("kernel_size"));
  CHECK_THROWS_WITH(nn::AdaptiveAvgPool2d({}), ContainsSubstring("output_size"));
  CHECK_THROWS_WITH(nn::MultiheadAttention({.embed_dim = 8, .num_heads = 3}),
                    ContainsSubstring("num_heads must divide"));
  CHECK_THROWS_WITH(nn::CrossEntropyLoss({.label_smoothing = 2}), ContainsSubstring("label_smoothing"));
}

TEST_CASE("nn::call works with a forward of any signature") {
  Pairwise m;
  const Tensor a = ones({2, 3}), b = ones({2, 3});
  CHECK(nn::call(m, a, b, 2.0).second.size() == 2);
  CHECK_THROWS_WITH(nn::call(m, zeros({2, 4}), b), ContainsSubstring("in fc: Linear("));
  CHECK_THROWS_WITH(m(a), ContainsSubstring("forward(const Tensor&) is not defined"));
  std::vector<std::size_t> seen;
  m.register_forward_hook([&](nn::Module&, const std::vector<Tensor>& in, std::vector<Tensor>& out) {
    seen = {in.size(), out.size()};
    out[2] = out[2] * 7.0;
  });
  CHECK(nn::call(m, a, b, 2.0).second[1].sum().item() == 42);
  CHECK(seen == std::vector<std::size_t>{2, 3});
}

TEST_CASE("hooks pass arguments that are not tensors through unchanged") {
  struct Cache {
    int calls = 0;
    std::unique_ptr<int> cannot_be_copied;
  };
  struct Counting : nn::Module {
    using Module::forward;
    void forward(const Tensor& x, Cache& cache, std::unique_ptr<int> owned) {
      cache.calls += static_cast<int>(x.numel()) + *owned;
    }
  } m;
  Cache cache;
  nn::call(m, ones({2}), cache, std::make_unique<int>(10));
  CHECK(cache.calls == 12);
  m.register_forward_pre_hook([](nn::Module&, std::vector<Tensor>& in) { in[0] = ones({3}); });
  std::size_t outputs = 99;
  m.register_forward_hook(
      [&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& out) { outputs = out.size(); });
  nn::call(m, ones({2}), cache, std::make_unique<int>(10));
  CHECK(cache.calls == 12 + 13);
  CHECK(outputs == 0);
}

TEST_CASE("a parameter made from a strided view is dense") {
  struct Views : nn::Module {
    nn::Parameter& transposed = param("transposed", arange(6, DType::f32).reshape({2, 3}).transpose(0, 1));
    nn::Parameter& expanded = param("expanded", full({1}, 2.0).expand({4}));
  } m;
  CHECK(m.transposed->is_contiguous());
  CHECK(equal(m.transposed, tensor({{0.0, 3.0}, {1.0, 4.0}, {2.0, 5.0}})));
  CHECK(m.expanded->is_contiguous());
  (m.transposed->sum() + (m.expanded * tensor({1.0, 2.0, 3.0, 4.0})).sum()).backward();
  optim::SGD(m.parameters(), {.lr = 1}).step();
  CHECK(equal(m.expanded, tensor({1.0, 0.0, -1.0, -2.0})));
  const Tensor image = zeros({2, 3, 4, 4}).contiguous(MemoryFormat::channels_last);
  const nn::Parameter kept("kept", image);
  CHECK(kept->raw_data() == image.raw_data());
}

TEST_CASE("num_batches_tracked does not count a batch that batch norm refuses") {
  for (const std::optional<double> momentum : {std::optional<double>(0.1), std::optional<double>()}) {
    nn::BatchNorm1d bn({.num_features = 2, .momentum = momentum});
    CHECK_THROWS_WITH(bn(ones({1, 2})), ContainsSubstring("one value per channel"));
    CHECK_THROWS_WITH(bn(ones({0, 2})), ContainsSubstring("no values"));
    CHECK(bn.num_batches_tracked->item<std::int64_t>() == 0);
    bn(tensor({{1.0, 3.0}, {3.0, 5.0}}));
    CHECK(bn.num_batches_tracked->item<std::int64_t>() == 1);
    // Without momentum, the running mean is the average over all batches, which is one batch here.
    if (!momentum) CHECK(equal(bn.running_mean, tensor({2.0, 4.0})));
  }
}

TEST_CASE("forward hooks run in order, may replace tensors, and can be removed at any time") {
  nn::Linear layer({.in_features = 2, .out_features = 2});
  {
    const NoGradGuard no_grad;
    layer.weight->copy_(eye(2));
    layer.bias->zero_();
  }
  std::string order;
  HookHandle before = layer.register_forward_pre_hook([&](nn::Module&, std::vector<Tensor>& in) {
    order += "a";
    in[0] = in[0] + 1.0;
  });
  HookHandle after = layer.register_forward_hook(
      [&](nn::Module& m, const std::vector<Tensor>& in, std::vector<Tensor>& out) {
        order += "b";
        CHECK(&m == &layer);
        CHECK(in[0].sum().item() == 8);
        out[0] = out[0] * 10.0;
      });
  HookHandle second = layer.register_forward_hook(
      [&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { order += "c"; });
  CHECK(layer(ones({2, 2})).sum().item() == 80);
  CHECK(order == "abc");
  before.remove();
  before.remove();  // a second remove() must do nothing
  after.remove();
  CHECK(layer(ones({2, 2})).sum().item() == 4);
  CHECK(order == "abcc");
  second.remove();
  CHECK_FALSE(layer.has_hooks());

  HookHandle once;
  once = layer.register_forward_pre_hook([&](nn::Module&, std::vector<Tensor>&) { once.remove(); });
  layer(ones({2, 2}));
  CHECK_FALSE(layer.has_hooks());

  HookHandle wrong =
      layer.register_forward_pre_hook([](nn::Module&, std::vector<Tensor>& in) { in.clear(); });
  CHECK_THROWS_WITH(layer(ones({2, 2})),
                    ContainsSubstring("a hook changed the number of tensors from 1 to 0"));
  CHECK_THROWS_WITH(layer.register_forward_hook({}), ContainsSubstring("the hook is empty"));

  HookHandle orphan;
  {
    nn::ReLU gone;
    orphan = gone.register_forward_pre_hook([](nn::Module&, std::vector<Tensor>&) {});
  }
  orphan.remove();  // remove() must do nothing after the module was destroyed
}

TEST_CASE("train() and eval() set the mode of a module and its descendants only") {
  Outer net;
  CHECK(net.is_training());
  net.eval();
  for (const nn::Module* m : net.modules()) CHECK_FALSE(m->is_training());
  net.inner.train();
  CHECK(net.inner.fc.is_training());
  CHECK_FALSE(net.is_training());
}

TEST_CASE("requires_grad_(false) freezes a module and its descendants only") {
  Outer net;
  net.inner.requires_grad_(false);
  CHECK_FALSE(net.inner.fc.weight->requires_grad());
  CHECK(net.scale->requires_grad());
  net(formula({3, 4}, 1, 1, DType::f32)).sum().backward();
  CHECK_FALSE(net.inner.fc.weight->grad().defined());
  CHECK(net.scale->grad().defined());
  net.requires_grad_();
  CHECK(net.inner.fc.weight->requires_grad());
}

TEST_CASE("to() moves parameters, gradients and buffers, and handles stay valid") {
  Outer net;
  const nn::Parameter handle = net.inner.fc.weight;
  net(formula({3, 4}, 1, 1, DType::f32)).sum().backward();
  const std::vector<double> grad = values_of(handle->grad());
  net.to(DType::f64);
  CHECK(handle->dtype() == DType::f64);
  CHECK(handle->grad().dtype() == DType::f64);
  CHECK(values_of(handle->grad()) == grad);
  CHECK(handle->requires_grad());
  CHECK(handle->is_leaf());
  CHECK(net.table->dtype() == DType::i64);
  CHECK(net.inner.bn.running_var->dtype() == DType::f64);
  net.to("cpu:1");
  for (const Tensor& p : net.parameters()) CHECK(p.device() == Device("cpu:1"));
  CHECK(net.table->device() == Device("cpu:1"));
  CHECK(handle->grad().device() == Device("cpu:1"));
  CHECK(net(formula({3, 4}, 1).to("cpu:1")).device() == Device("cpu:1"));
  net.to(kCPU, DType::f32);
  CHECK(handle->device() == kCPU);
  CHECK_THROWS_AS(net.to(DType::i64), TypeError);
  CHECK_THROWS_AS(net.to("cpu:9"), DeviceError);
  const Tensor same = handle;
  net.to(kCPU);
  CHECK(handle->is_same(same));  // the tensor has this dtype and device already, so it must not be replaced
}

TEST_CASE("load_state_dict copies a state dict into another module") {
  Outer a, b;
  const nn::LoadResult result = b.load_state_dict(a.state_dict());
  CHECK(result.missing.empty());
  CHECK(result.unexpected.empty());
  for (const auto& [name, t] : a.state_dict()) CHECK(equal(t, *nn::find(b.state_dict(), name)));
  // The state dict shares storage with the module, as in PyTorch.
  a.state_dict()[0].second.fill_(9.0);
  CHECK(a.scale->select(0, 0).item() == 9);
  CHECK_FALSE(b.scale->is_same(a.scale));
  // Values are converted to the module's dtype and device.
  b.to(DType::f64);
  b.load_state_dict(a.state_dict());
  CHECK(b.scale->dtype() == DType::f64);
  CHECK(b.scale->select(0, 0).item() == 9);
}

TEST_CASE("load_state_dict lists every mismatch at once and loads nothing") {
  Outer net;
  nn::StateDict dict;
  for (const auto& [name, t] : net.state_dict())
    dict.emplace_back(name, zeros_like(t) + (is_floating(t.dtype()) ? 5 : 0));
  std::erase_if(dict, [](const auto& e) { return e.first == "inner.fc.bias"; });
  dict.emplace_back("extra.weight", zeros({1}));
  dict[2].second = zeros({4, 5});
  REQUIRE(dict[2].first == "inner.fc.weight");
  try {
    net.load_state_dict(dict);
    FAIL("no error");
  } catch (const ValueError& e) {
    const std::string text = e.what();
    INFO(text);
    CHECK(text.find("missing: inner.fc.bias") != std::string::npos);
    CHECK(text.find("unexpected: extra.weight") != std::string::npos);
    CHECK(text.find("wrong shape: inner.fc.weight expected [4, 4] but got [4, 5]") != std::string::npos);
  }
  CHECK(net.scale->select(0, 0).item() == 2);
  // A wrong shape is refused even with strict = false.
  CHECK_THROWS_WITH(net.load_state_dict(dict, false), ContainsSubstring("wrong shape"));
  CHECK(net.scale->select(0, 0).item() == 2);
  dict.erase(dict.begin() + 2);
  const nn::LoadResult result = net.load_state_dict(dict, false);
  CHECK(result.missing == std::vector<std::string>{"inner.fc.weight", "inner.fc.bias"});
  CHECK(result.unexpected == std::vector<std::string>{"extra.weight"});
  CHECK(net.scale->select(0, 0).item() == 5);
  // The keys that PyTorch saves for a wrapped model.
  const auto before = net.state_dict();
  nn::StateDict wrapped;
  for (const auto& [name, t] : before) wrapped.emplace_back("module." + name, t);
  CHECK_THROWS_WITH(net.load_state_dict(wrapped), ContainsSubstring("prefix \"module.\" comes from PyTorch"));
  CHECK_THROWS_WITH(net.load_state_dict(dict), !ContainsSubstring("prefix"));
  CHECK_THROWS_WITH(net.load_state_dict({{"scale", ones({4})}, {"scale", zeros({4})}}, false),
                    ContainsSubstring("duplicate key: scale"));
  CHECK_THROWS_WITH(net.load_state_dict({{"scale", Tensor()}}, false),
                    ContainsSubstring("undefined tensor: scale"));
}

TEST_CASE("tied weights are one parameter, and stay tied when the module moves") {
  struct Tied : nn::Module {
    nn::Embedding& tokens = add<nn::Embedding>("tokens", {.num_embeddings = 5, .embedding_dim = 3});
    nn::Linear& head = add<nn::Linear>("head", {.in_features = 3, .out_features = 5, .bias = false});
    nn::Parameter& same = param("same", tokens.weight);
    Tied() { head.weight = tokens.weight; }
    Tensor forward(const Tensor& x) override { return head(tokens(x)); }
  } net;
  CHECK(net.parameters().size() == 1);
  CHECK(net.same.is_same(net.head.weight));
  CHECK(names(net.state_dict()) == std::vector<std::string>{"same", "tokens.weight", "head.weight"});
  net(tensor({1, 2})).sum().backward();
  CHECK(net.head.weight->grad().defined());
  net.to(DType::f64);
  CHECK(net.tokens.weight->is_same(net.head.weight));
  CHECK(net.tokens.weight->dtype() == DType::f64);
}

TEST_CASE("each context sees the tensors of its replica") {
  nn::Linear layer({.in_features = 2, .out_features = 1, .bias = false});
  {
    Tensor second = full({1, 2}, 3.0, Device("cpu:1"));
    second.set_requires_grad();
    layer.weight.set_replicas({full({1, 2}, 2.0).set_requires_grad(), second});
  }
  CHECK(layer.weight.replicas() == 2);
  Context context = current_context();
  context.replica = 1;
  context.device = Device("cpu:1");
  {
    const ContextGuard guard(context);
    const Tensor y = layer(ones({1, 2}));
    CHECK(y.device() == Device("cpu:1"));
    CHECK(y.item() == 6);
    y.backward();
  }
  CHECK(layer(ones({1, 2})).item() == 4);
  CHECK_FALSE(layer.weight.replica(0).grad().defined());
  CHECK(layer.weight.replica(1).grad().defined());
  layer.zero_grad();
  CHECK_FALSE(layer.weight.replica(1).grad().defined());
  layer.requires_grad_(false);
  CHECK_FALSE(layer.weight.replica(1).requires_grad());
  layer.load_state_dict({{"weight", full({1, 2}, 7.0)}});
  CHECK(layer.weight.replica(0).sum().item() == 14);
  CHECK(layer.weight.replica(1).sum().item() == 14);
  CHECK_THROWS_WITH(layer.to(DType::f64), ContainsSubstring("'weight' has 2 replicas"));

  context.replica = 2;
  {
    const ContextGuard guard(context);
    CHECK_THROWS_AS(layer.weight.tensor(), IndexError);
    CHECK_THROWS_WITH(layer(ones({1, 2})),
                      ContainsSubstring("replica 2 of 'weight' was requested, but the slot has 2"));
  }
  CHECK_THROWS_AS(layer.weight.replica(-1), IndexError);
  CHECK_THROWS_AS(layer.weight.set_replica(2, zeros({1})), IndexError);
  CHECK_THROWS_AS(layer.weight.set_replicas({}), ValueError);
  CHECK_THROWS_AS(nn::Parameter().set_replica(0, zeros({1})), ValueError);
  CHECK_FALSE(nn::Parameter().tensor().defined());

  nn::PerReplica<int> count;
  *count = 4;
  {
    context.replica = 1;
    const ContextGuard guard(context);
    CHECK(*count == 0);
    *count = 5;
  }
  CHECK(*count == 4);
}

TEST_CASE("modules print as a tree") {
  std::ostringstream out;
  out << Outer();
  CHECK(out.str() ==
        "Outer(\n"
        "  (inner): Inner(\n"
        "    (fc): Linear(in_features=4, out_features=4, bias=true)\n"
        "    (bn): BatchNorm1d(num_features=4, eps=1e-05, momentum=0.1, affine=true, "
        "track_running_stats=true)\n"
        "  )\n"
        "  (list): ModuleList(\n"
        "    (0): Linear(in_features=4, out_features=4, bias=false)\n"
        "    (1): ReLU()\n"
        "  )\n"
        ")");
  const nn::Conv2d conv({.in_channels = 3, .out_channels = 4, .kernel_size = {3, 5}, .padding = 1});
  const std::string pool = nn::MaxPool2d({.kernel_size = 3, .stride = {0, 2}}).str();
  CHECK(pool == "MaxPool2d(kernel_size=3, stride=(3, 2), padding=0)");
  CHECK(conv.str() == "Conv2d(in_channels=3, out_channels=4, kernel_size=(3, 5), stride=1, padding=1)");
}

TEST_CASE("summary() prints shapes, parameters and memory, and restores modes, hooks and statistics") {
  Net net;
  net.conv.requires_grad_(false);
  net.fc.eval();
  const std::string text = net.summary({2, 3, 32, 32});
  INFO(text);
  CHECK(text ==
        "Layer           Output shape     Parameters\n"
        "-------------------------------------------\n"
        "Net             [2, 10]                   -\n"
        "  conv: Conv2d  [2, 16, 30, 30]         448\n"
        "  fc: Linear    [2, 10]             144,010\n"
        "-------------------------------------------\n"
        "Parameters: 144,458 (144,010 trained)\n"
        "Memory: parameters 564.3 KiB, buffers 0 B, outputs of layers 112.6 KiB\n");
  CHECK(net.is_training());  // summary() must restore training mode
  CHECK_FALSE(net.fc.is_training());
  CHECK_FALSE(net.conv.has_hooks());
  CHECK(net.summary().find("[2, 10]") == std::string::npos);
  CHECK_THROWS_AS(net.summary({2, 4, 32, 32}), ValueError);
  CHECK_FALSE(net.conv.has_hooks());

  Outer outer;
  const std::vector<double> mean = values_of(outer.inner.bn.running_mean);
  CHECK(outer.summary([&] { outer(ones({3, 4})); }).find("[3, 4]") != std::string::npos);
  CHECK(values_of(outer.inner.bn.running_mean) == mean);
}

TEST_CASE("Sequential runs its modules in order, and ModuleList cannot be called") {
  nn::Sequential net(
      nn::Linear::Options{.in_features = 3, .out_features = 4}, [](const Tensor& x) { return x * 2.0; },
      std::make_shared<nn::ReLU>(), std::make_unique<nn::Tanh>(),
      nn::named("head", nn::Linear::Options{.in_features = 4, .out_features = 2}));
  CHECK(net.size() == 5);
  CHECK(names(net.state_dict()) ==
        std::vector<std::string>{"0.weight", "0.bias", "head.weight", "head.bias"});
  CHECK(net(zeros({5, 3})).sizes() == Shape{5, 2});
  CHECK(net.get<nn::Linear>(0).options.out_features == 4);
  CHECK(net[-1].type_name() == "Linear");
  CHECK_THROWS_AS(net[5], IndexError);
  CHECK_THROWS_WITH(net.get<nn::Conv2d>(1), ContainsSubstring("module 1 is a Function"));
  CHECK_THROWS_WITH(net(zeros({5, 4})), ContainsSubstring("in 0: Linear("));
  net.append<nn::Dropout>({.p = 0.1});
  CHECK(net.size() == 6);
  nn::Sequential empty;
  CHECK(empty.empty());
  CHECK(equal(empty(ones({2})), ones({2})));
  nn::ModuleList list;
  list.append<nn::ReLU>();
  CHECK_THROWS_WITH(list(ones({2})), ContainsSubstring("[ModuleList] forward(const Tensor&) is not defined"));
  CHECK_THROWS_AS(nn::Function(nullptr), ValueError);
}
