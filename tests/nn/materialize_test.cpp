// Models on the meta device: they are built without memory, and materialize() gives them the bits that
// construction on a real device would have given.
#include "tapestry/nn/materialize.h"

#include <functional>
#include <memory>
#include <string>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/nn/nn.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;

namespace {

using Build = std::function<std::shared_ptr<nn::Module>()>;

std::shared_ptr<nn::Module> on_meta(const Build& build) {
  const DeviceGuard guard("meta");
  return build();
}

void check_equal(const nn::StateDict& got, const nn::StateDict& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO(got[i].first);
    CHECK(got[i].first == expected[i].first);
    CHECK(got[i].second.device() == kCPU);
    CHECK(got[i].second.strides() == expected[i].second.strides());
    CHECK(equal(got[i].second, expected[i].second));
  }
}

// A model as programs write them: blocks, initialisation after construction, tied weights, its own parameter
// and table.
struct Gpt : nn::Module {
  struct Block : nn::Module {
    nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = 16});
    nn::Linear& up = add<nn::Linear>("up", {.in_features = 16, .out_features = 32});
    nn::Linear& down = add<nn::Linear>("down", {.in_features = 32, .out_features = 16});
    Tensor forward(const Tensor& x) override { return x + down(gelu(up(norm(x)))); }
  };
  nn::Embedding& tokens = add<nn::Embedding>("tokens", {.num_embeddings = 11, .embedding_dim = 16});
  nn::Parameter& positions = param("positions", randn({7, 16}) * 0.02);
  nn::Buffer& mask = buffer("mask", tril(ones({7, 7})));
  nn::Sequential& blocks = add<nn::Sequential>("blocks");
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 16, .out_features = 11, .bias = false});
  Gpt() {
    for (int i = 0; i < 3; ++i) blocks.push_back(std::make_shared<Block>());
    apply([](nn::Module& m) {
      if (auto* const linear = dynamic_cast<nn::Linear*>(&m)) {
        nn::init::normal_(linear->weight, 0, 0.02);
        if (linear->bias.defined()) nn::init::zeros_(linear->bias);
      }
    });
    for (const auto& [name, p] : named_parameters())
      if (name.ends_with("down.weight")) {
        const NoGradGuard no_grad;
        p->mul_(0.4);
      }
    head.weight = tokens.weight;
  }
  Tensor forward(const Tensor& x) override {
    return head(blocks(tokens(x) + positions->narrow(0, 0, x.size(1))));
  }
};

const std::pair<const char*, Build> kModules[] = {
    {"Gpt", [] { return std::make_shared<Gpt>(); }},
    {"Linear",
     [] {
       return std::make_shared<nn::Linear>(nn::Linear::Options{5, 3});
     }},
    {"Bilinear",
     [] {
       return std::make_shared<nn::Bilinear>(nn::Bilinear::Options{3, 4, 5});
     }},
    {"Embedding",
     [] {
       return std::make_shared<nn::Embedding>(
           nn::Embedding::Options{.num_embeddings = 6, .embedding_dim = 4, .padding_idx = 2});
     }},
    {"EmbeddingBag",
     [] {
       return std::make_shared<nn::EmbeddingBag>(
           nn::EmbeddingBag::Options{.num_embeddings = 6, .embedding_dim = 4});
     }},
    {"Conv2d",
     [] {
       return std::make_shared<nn::Conv2d>(
           nn::Conv2d::Options{.in_channels = 2, .out_channels = 4, .kernel_size = 3});
     }},
    {"ConvTranspose1d",
     [] {
       return std::make_shared<nn::ConvTranspose1d>(
           nn::ConvTranspose1d::Options{.in_channels = 2, .out_channels = 4, .kernel_size = 3});
     }},
    {"BatchNorm2d",
     [] { return std::make_shared<nn::BatchNorm2d>(nn::BatchNorm2d::Options{.num_features = 4}); }},
    {"GroupNorm",
     [] {
       return std::make_shared<nn::GroupNorm>(nn::GroupNorm::Options{.num_groups = 2, .num_channels = 4});
     }},
    {"InstanceNorm1d",
     [] {
       return std::make_shared<nn::InstanceNorm1d>(
           nn::InstanceNorm1d::Options{.num_features = 4, .affine = true, .track_running_stats = true});
     }},
    {"RMSNorm", [] { return std::make_shared<nn::RMSNorm>(nn::RMSNorm::Options{.normalized_shape = 4}); }},
    {"PReLU", [] { return std::make_shared<nn::PReLU>(nn::PReLU::Options{.num_parameters = 3}); }},
    {"LSTM",
     [] {
       return std::make_shared<nn::LSTM>(
           nn::LSTM::Options{.input_size = 3, .hidden_size = 4, .num_layers = 2, .bidirectional = true});
     }},
    {"GRUCell",
     [] { return std::make_shared<nn::GRUCell>(nn::GRUCell::Options{.input_size = 3, .hidden_size = 4}); }},
    {"MultiheadAttention",
     [] {
       return std::make_shared<nn::MultiheadAttention>(nn::MultiheadAttention::Options{
           .embed_dim = 8, .num_heads = 2, .add_bias_kv = true, .kdim = 6, .vdim = 5});
     }},
    {"TransformerDecoderLayer",
     [] {
       return std::make_shared<nn::TransformerDecoderLayer>(
           nn::TransformerDecoderLayer::Options{.d_model = 8, .nhead = 2, .dim_feedforward = 12});
     }},
    {"CrossEntropyLoss with weights",
     [] {
       return std::make_shared<nn::CrossEntropyLoss>(
           nn::CrossEntropyLoss::Options{.weight = tensor({1.0, 2.0, 0.5})});
     }},
    {"weight_norm",
     [] {
       auto m = std::make_shared<nn::Linear>(nn::Linear::Options{5, 3});
       nn::weight_norm(*m);
       return m;
     }},
    {"spectral_norm",
     [] {
       auto m = std::make_shared<nn::ConvTranspose2d>(
           nn::ConvTranspose2d::Options{.in_channels = 2, .out_channels = 3, .kernel_size = 2});
       nn::spectral_norm(*m);
       return m;
     }},
};

}  // namespace

TEST_CASE("every layer is built on the meta device and gets the values of a real one") {
  for (const auto& [name, build] : kModules) {
    INFO(name);
    manual_seed(5);
    const std::shared_ptr<nn::Module> real = build();
    const auto state = default_generator(kCPU).state();
    manual_seed(5);
    const std::shared_ptr<nn::Module> module = on_meta(build);
    CHECK(default_generator(kCPU).state() == state);
    CHECK(nn::has_meta_tensors(*module));
    const std::vector<nn::Parameter> slots = module->parameters();
    for (const nn::Parameter& p : slots) CHECK(p.device() == kMeta);
    nn::materialize(*module, kCPU);
    CHECK(default_generator(kCPU).state() == state);
    CHECK_FALSE(nn::has_meta_tensors(*module));
    check_equal(module->state_dict(), real->state_dict());
    for (const nn::Parameter& p : slots) {
      CHECK(p.device() == kCPU);
      CHECK(p.tensor().requires_grad());
    }
  }
}

TEST_CASE("the init functions fill a meta tensor as a real one") {
  const std::pair<const char*, std::function<void(const Tensor&)>> fills[] = {
      {"trunc_normal_", [](const Tensor& t) { nn::init::trunc_normal_(t, 1, 0.5, 0, 2); }},
      {"orthogonal_", [](const Tensor& t) { nn::init::orthogonal_(t, 2); }},
      {"kaiming_normal_", [](const Tensor& t) { nn::init::kaiming_normal_(t); }},
      {"xavier_uniform_", [](const Tensor& t) { nn::init::xavier_uniform_(t); }},
      {"sparse_", [](const Tensor& t) { nn::init::sparse_(t, 0.3); }},
      {"dirac_",
       [](const Tensor& t) {
         nn::init::dirac_(t.view({4, 2, 3}));
       }},
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [name, fill] : fills) {
      INFO(name << " " << dtype_name(dtype));
      manual_seed(5);
      const Tensor real = empty({4, 6}, dtype);
      fill(real);
      const auto state = default_generator(kCPU).state();
      manual_seed(5);
      const Tensor meta = empty({4, 6}, {dtype, kMeta});
      fill(meta);
      CHECK(default_generator(kCPU).state() == state);
      CHECK(equal(materialize(meta, kCPU), real));
    }
}

TEST_CASE("a model of 100 GB is built without memory, and its summary too") {
  const auto build = [] {
    auto net = std::make_shared<nn::Sequential>();
    for (int i = 0; i < 50; ++i) {
      const auto up = std::make_shared<nn::Linear>(nn::Linear::Options{16384, 16384});
      const auto down = std::make_shared<nn::Linear>(nn::Linear::Options{16384, 16384});
      nn::init::trunc_normal_(up->weight, 0, 0.02);
      nn::init::orthogonal_(down->weight);
      net->push_back(up).push_back(down);
    }
    return net;
  };
  reset_peak_memory(kCPU);
  const std::int64_t before = memory_stats(kCPU).allocated;
  const std::shared_ptr<nn::Module> net = on_meta(build);
  const std::string text = net->summary({2048, 16384});
  CHECK(memory_stats(kCPU).peak_allocated - before < 1 << 20);
  CHECK_THAT(text, ContainsSubstring("Parameters: 26,845,184,000 (26,845,184,000 trained)"));
  CHECK_THAT(text, ContainsSubstring("parameters 100.0 GiB"));
  CHECK_THAT(text, ContainsSubstring("[2048, 16384]"));
}

TEST_CASE("a submodule at a time can be materialized") {
  manual_seed(9);
  Gpt real;
  manual_seed(9);
  const std::shared_ptr<nn::Module> net = on_meta([] { return std::make_shared<Gpt>(); });
  nn::Module& block = net->at("blocks.1");
  nn::materialize(block, kCPU);
  CHECK_FALSE(nn::has_meta_tensors(block));
  CHECK(nn::has_meta_tensors(*net));
  check_equal(block.state_dict(), real.at("blocks.1").state_dict());
  nn::materialize(*net, kCPU);
  check_equal(net->state_dict(), real.state_dict());
  CHECK(net->named_parameters().size() == real.named_parameters().size());  // the head is still tied
  const Tensor x = randint(0, 11, {2, 5});
  const Tensor y = (*net)(x);
  CHECK(equal(y, real(x)));
  y.sum().backward();
}

TEST_CASE("an optimizer that was built on the meta device trains after materialize()") {
  const auto trained = [](bool meta) {
    manual_seed(4);
    const Build build = [] { return std::make_shared<nn::Linear>(nn::Linear::Options{4, 2}); };
    const std::shared_ptr<nn::Module> net = meta ? on_meta(build) : build();
    optim::AdamW optimizer(net->parameters(), {.lr = 0.1});
    if (meta) nn::materialize(*net, kCPU);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      (*net)(ones({3, 4})).square().sum().backward();
      optimizer.step();
    }
    return net->state_dict();
  };
  check_equal(trained(true), trained(false));
}

TEST_CASE("materialize() names every parameter whose values are unknown, and changes nothing") {
  struct Odd : nn::Module {
    nn::Linear& fine = add<nn::Linear>("fine", {.in_features = 2, .out_features = 2});
    nn::Parameter& raw = param("raw", empty({3}));
    nn::Parameter& odd = param("odd", softmax(randn({3}), 0));
  };
  const std::shared_ptr<nn::Module> net = on_meta([] { return std::make_shared<Odd>(); });
  CHECK_THROWS_AS(nn::materialize(*net, kCPU), ValueError);
  CHECK_THROWS_WITH(nn::materialize(*net, kCPU), ContainsSubstring("'raw' holds") &&
                                                     ContainsSubstring("'odd' holds") &&
                                                     !ContainsSubstring("'fine"));
  for (const nn::Parameter& p : net->parameters()) CHECK(p.device() == kMeta);
  CHECK_THROWS_AS(nn::materialize(*net, "meta"), DeviceError);
  CHECK_THROWS_AS(nn::materialize(*net, "cpu:63"), DeviceError);
}

TEST_CASE("to() and to_empty() move modules to and from the meta device") {
  nn::Linear net({.in_features = 3, .out_features = 2});
  net.bias.requires_grad_(false);
  net(ones({1, 3})).sum().backward();
  const nn::Parameter weight = net.weight;
  const Tensor before = weight.tensor();
  net.to("meta");
  CHECK(weight.device() == kMeta);
  CHECK(weight.tensor().requires_grad());
  CHECK_THROWS_WITH(net.to("cpu"), ContainsSubstring("to_empty"));
  CHECK_THROWS_WITH(nn::materialize(net, kCPU), ContainsSubstring("'weight' holds"));
  net.to_empty("cpu");
  CHECK(weight.device() == kCPU);
  CHECK(weight.tensor().requires_grad());
  CHECK_FALSE(net.bias.tensor().requires_grad());
  CHECK_FALSE(weight.tensor().grad().defined());
  CHECK_FALSE(weight.tensor().is_same(before));
  nn::init::ones_(weight);
  CHECK(weight.tensor().sum().item() == 6);
}

TEST_CASE("loading into a meta model replaces its tensors") {
  manual_seed(2);
  Gpt source;
  const tests::TempDir dir;
  nn::save_model(dir / "m.safetensors", source);
  const std::shared_ptr<nn::Module> net = on_meta([] { return std::make_shared<Gpt>(); });
  const std::vector<nn::Parameter> slots = net->parameters();
  slots[1].requires_grad_(false);
  nn::load_model(dir / "m.safetensors", *net);
  check_equal(net->state_dict(), source.state_dict());
  CHECK(slots[0].tensor().requires_grad());
  CHECK_FALSE(slots[1].tensor().requires_grad());

  // The values are copies, in the module's dtype.
  const std::shared_ptr<nn::Module> half = on_meta([] {
    auto m = std::make_shared<Gpt>();
    m->to(DType::bf16);
    return m;
  });
  half->load_state_dict(source.state_dict());
  const Tensor loaded = half->parameters()[0].tensor(), given = source.parameters()[0].tensor();
  CHECK(loaded.dtype() == DType::bf16);
  CHECK(equal(loaded.detach(), given.detach().to(DType::bf16)));
  const std::shared_ptr<nn::Module> other = on_meta([] { return std::make_shared<Gpt>(); });
  other->load_state_dict(source.state_dict());
  CHECK(other->parameters()[0].tensor().storage().get() != given.storage().get());

  // A state dict of the meta device has no values for a real model.
  const std::shared_ptr<nn::Module> empty_one = on_meta([] { return std::make_shared<Gpt>(); });
  const nn::StateDict before = source.state_dict();
  CHECK_THROWS_WITH(source.load_state_dict(empty_one->state_dict()),
                    ContainsSubstring("meta device, which has no elements: tokens.weight"));
  CHECK_THROWS_WITH(nn::save_model(dir / "none.safetensors", *empty_one), ContainsSubstring("meta device"));
}
