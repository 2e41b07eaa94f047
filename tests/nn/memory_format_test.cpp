// Channels-last models: the format of a tensor that is dense in both formats, and Module::to(MemoryFormat).
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;

namespace {

constexpr auto kLast = MemoryFormat::channels_last, kRows = MemoryFormat::contiguous;

// A depthwise CNN for images of one channel. It notes the format of each intermediate result.
struct GreyNet : nn::Module {
  nn::Conv2d& conv =
      add<nn::Conv2d>("conv", {.in_channels = 1, .out_channels = 6, .kernel_size = 3, .padding = 1});
  nn::BatchNorm2d& norm = add<nn::BatchNorm2d>("norm", {.num_features = 6});
  nn::Conv2d& depthwise =
      add<nn::Conv2d>("depthwise", {.in_channels = 6, .out_channels = 6, .kernel_size = 3, .groups = 6});
  nn::Conv2d& pointwise =
      add<nn::Conv2d>("pointwise", {.in_channels = 6, .out_channels = 1, .kernel_size = 1});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 6, .out_features = 3});
  std::vector<MemoryFormat> seen;

  Tensor note(const Tensor& t) {
    seen.push_back(t.memory_format());
    return t;
  }
  Tensor forward(const Tensor& x) override {
    seen.clear();
    Tensor h = note(note(norm(note(conv(x)))).relu());
    h = note(max_pool2d(h, {.kernel_size = 2}));
    h = note(pointwise(note(depthwise(h))));  // one channel again
    return fc(note(adaptive_avg_pool2d(note(h.sigmoid() + h), {2, 3})).flatten(1));
  }
};

}  // namespace

TEST_CASE("an image with one channel keeps the requested memory format, without a copy") {
  const Tensor x = randn({2, 1, 4, 5});
  const Tensor last = x.contiguous(kLast);
  CHECK(x.memory_format() == kRows);
  CHECK(last.memory_format() == kLast);
  CHECK(last.strides() == Shape{20, 1, 5, 1});
  CHECK(last.raw_data() == x.raw_data());
  CHECK(last.contiguous(kLast).is_same(last));
  CHECK(last.contiguous().memory_format() == kRows);
  CHECK(last.contiguous().raw_data() == x.raw_data());
  CHECK(x.contiguous().is_same(x));
  const std::pair<const char*, Tensor> results[] = {
      {"clone", last.clone()},         {"to", last.to(kFloat64)}, {"relu", last.relu()},
      {"last + x", last + x},          {"x + last", x + last},    {"zeros_like", zeros_like(last)},
      {"dropout", dropout(last, 0.5)}, {"last > 0", last > 0},    {"cat", cat({last, last}, 1)},
      {"last * 2", last * 2},
  };
  for (const auto& [name, y] : results) {
    INFO(name);
    CHECK(y.memory_format() == kLast);
  }
  for (const Tensor& y : {x.clone(), x.relu(), x + x, cat({last, x}, 1)}) CHECK(y.memory_format() == kRows);

  const Tensor leaf = x.clone().set_requires_grad();
  (leaf.contiguous(kLast) * last).sum().backward();
  CHECK(equal(leaf.grad(), x));
}

TEST_CASE(
    "one-pixel images keep the requested format, and tensors with the same strides in both formats stay "
    "row-major") {
  CHECK(randn({2, 3, 1, 1}).contiguous(kLast).memory_format() == kLast);
  CHECK(randn({2, 3, 1, 1}).memory_format() == kRows);
  CHECK(randn({2, 1, 1, 1}).contiguous(kLast).memory_format() == kRows);
  const Tensor none = zeros({0, 1, 4, 4});
  CHECK(none.contiguous(kLast).is_same(none));
  CHECK(conv2d(none.contiguous(kLast), randn({2, 1, 3, 3})).sizes() == Shape{0, 2, 2, 2});
}

TEST_CASE("Module::to(channels_last) makes every layer compute channels-last, with the same results") {
  manual_seed(3);
  GreyNet rows, last;
  last.load_state_dict(rows.state_dict());
  rows.to(kFloat64), last.to(kFloat64);
  const Tensor x = randn({4, 1, 9, 10}, kFloat64);
  optim::SGD rows_step(rows.parameters(), {.lr = 0.05, .momentum = 0.9}),
      last_step(last.parameters(), {.lr = 0.05, .momentum = 0.9});
  const auto step = [&] {
    const Tensor a = rows(x), b = last(x);
    CHECK(allclose(a, b, 1e-9, 1e-12));
    a.pow(2.0).mean().backward();
    b.pow(2.0).mean().backward();
    for (std::size_t i = 0; i < rows.parameters().size(); ++i) {
      INFO(rows.named_parameters()[i].first);
      CHECK(allclose(rows.parameters()[i]->grad(), last.parameters()[i]->grad(), 1e-9, 1e-12));
    }
    rows_step.step(), last_step.step();
    rows_step.zero_grad(), last_step.zero_grad();
  };
  step();  // the optimizer has row-major momentum when the model changes its format
  CHECK(last.seen == std::vector<MemoryFormat>(8, kRows));

  last.to(kLast);
  CHECK(last.conv.weight->memory_format() == kLast);
  CHECK(last.depthwise.weight->memory_format() == kLast);
  CHECK(last.fc.weight->is_contiguous());
  CHECK(last.parameters()[0]->requires_grad());
  for (int i = 0; i < 3; ++i) step();
  CHECK(last.seen == std::vector<MemoryFormat>(8, kLast));
  CHECK(rows.seen == std::vector<MemoryFormat>(8, kRows));
  for (std::size_t i = 0; i < rows.parameters().size(); ++i)
    CHECK(allclose(rows.parameters()[i], last.parameters()[i], 1e-9, 1e-12));

  last.to(kRows);
  step();
  CHECK(last.seen == std::vector<MemoryFormat>(8, kRows));
}

namespace {

// The weights of the convolutions have other element orders in memory in the two formats.
struct ColorNet : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 4, .kernel_size = 3});
  nn::Conv2d& grouped =
      add<nn::Conv2d>("grouped", {.in_channels = 4, .out_channels = 6, .kernel_size = 2, .groups = 2});
  Tensor forward(const Tensor& x) override { return grouped(conv(x).relu()); }
};

}  // namespace

TEST_CASE("a channels-last model continues from a checkpoint as the row-major model that wrote it") {
  using Steps = std::unique_ptr<optim::Optimizer>;
  const auto make = [](int kind, const nn::Module& net) -> Steps {
    if (kind == 0)
      return std::make_unique<optim::SGD>(net.parameters(), optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
    if (kind == 1) return std::make_unique<optim::Adam>(net.parameters(), optim::Adam::Options{.lr = 0.05});
    return std::make_unique<optim::AdamW>(net.parameters(),
                                          optim::AdamW::Options{.lr = 0.05, .amsgrad = true});
  };
  for (int kind = 0; kind < 3; ++kind)
    // `writer` and `reader` are the formats of the two models; the file itself is always row-major.
    for (const auto& [writer, reader] : {std::pair{kRows, kLast}, {kLast, kRows}, {kLast, kLast}}) {
      CAPTURE(kind, writer == kLast, reader == kLast);
      manual_seed(5);
      ColorNet first;
      first.to(kFloat64), first.to(writer);
      const Steps first_steps = make(kind, first);
      const Tensor x = randn({4, 3, 5, 6}, kFloat64);
      const auto train = [&](ColorNet& net, optim::Optimizer& steps) {
        steps.zero_grad();
        net(x).pow(2.0).mean().backward();
        steps.step();
      };
      for (int i = 0; i < 3; ++i) train(first, *first_steps);
      const tests::TempDir folder;
      nn::save_checkpoint(folder / "state", {&first, first_steps.get()}, {});

      ColorNet second;
      second.to(kFloat64), second.to(reader);
      const Steps second_steps = make(kind, second);
      nn::load_checkpoint(folder / "state", {&second, second_steps.get()});
      CHECK(second.conv.weight->memory_format() == reader);
      for (int i = 0; i < 2; ++i) train(first, *first_steps), train(second, *second_steps);
      CHECK(second.conv.weight->memory_format() == reader);
      for (std::size_t i = 0; i < first.parameters().size(); ++i) {
        INFO(first.named_parameters()[i].first);
        CHECK(allclose(first.parameters()[i], second.parameters()[i], 1e-9, 1e-12));
      }
      const nn::StateDict a = first_steps->state_dict(), b = second_steps->state_dict();
      REQUIRE(a.size() == b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        INFO(a[i].first);
        CHECK(allclose(a[i].second.contiguous(), b[i].second.contiguous(), 1e-9, 1e-12));
      }
    }
}

TEST_CASE("a channels-last image, or a channels-last weight, makes the convolution channels-last") {
  const Tensor x = randn({2, 1, 6, 5}), w = randn({4, 1, 3, 3});
  for (const auto& [image, weight] : {std::pair{x.contiguous(kLast), w}, {x, w.contiguous(kLast)}}) {
    const Tensor in = image.detach().set_requires_grad(), k = weight.detach().set_requires_grad();
    const Tensor y = conv2d(in, k), wanted = conv2d(x, w);
    CHECK(y.memory_format() == kLast);
    CHECK(wanted.memory_format() == kRows);
    CHECK(allclose(y, wanted, 1e-5, 1e-5));
    y.sum().backward();
    CHECK(in.grad().memory_format() == kLast);
    CHECK(k.grad().sizes() == w.sizes());
  }
  const Tensor image = randn({2, 3, 6, 5}),
               full = randn({4, 3, 3, 3});  // the weight is dense in one format only
  CHECK(conv2d(image, full.contiguous(kLast)).memory_format() == kLast);
  CHECK(allclose(conv2d(image, full.contiguous(kLast)), conv2d(image, full), 1e-5, 1e-5));
}
