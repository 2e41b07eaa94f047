// Convolutions of 1 to 3 dimensions, transposed convolutions, Unfold and Fold, compared with PyTorch's
// (tests/golden/nn.py convs): names and shapes of the state, outputs and gradients.
#include "tapestry/nn/layers/conv.h"

#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

constexpr double kTolerance = 1e-12;

const NnGolden& golden() {
  static const NnGolden recorded("convs");
  return recorded;
}
std::set<std::string>& tested() {
  static std::set<std::string> labels;
  return labels;
}

// Fills the layer with the recorded weights and compares it with the record. `prefix` precedes the names of
// the parameters there.
template <class T>
void check_layer(const std::string& label, const typename T::Options& options, const Tensor& input,
                 const std::string& prefix = "", const Shape& output_size = {}) {
  INFO(label);
  tested().insert(label);
  T layer(options);
  fill(layer);
  const auto names = golden().under(label + "/state/");
  const nn::StateDict state = layer.state_dict();
  REQUIRE(state.size() == names.size());
  for (std::size_t k = 0; k < names.size(); ++k) {
    CHECK(std::to_string(k) + "/" + prefix + state[k].first == names[k].first);
    const auto sizes = std::vector<double>(state[k].second.sizes().begin(), state[k].second.sizes().end());
    CHECK(sizes == names[k].second.values);
  }
  const Tensor x = input.clone().set_requires_grad();
  Tensor y;
  if constexpr (requires { layer(x, output_size); }) y = prefix.empty() ? layer(x) : layer(x, output_size);
  else y = layer(x);
  CHECK(difference(y, golden().at(label + "/output/0"), kTolerance) == "");
  (y * formula(y.sizes(), 100)).sum().backward();
  CHECK(difference(x.grad(), golden().at(label + "/input_grad/0"), kTolerance) == "");
  CHECK(golden().under(label + "/grad/").size() == layer.parameters().size());
  for (const auto& [name, p] : layer.named_parameters()) {
    INFO("gradient of " << name);
    CHECK(difference(p->grad(), golden().at(label + "/grad/" + prefix + name), kTolerance) == "");
  }
}

Tensor line() { return formula({2, 4, 9}, 80, 2.0); }
Tensor image() { return formula({2, 4, 5, 6}, 81, 2.0); }
Tensor volume() { return formula({2, 4, 4, 3, 5}, 82, 2.0); }

// Checks that a layer with a changed option is refused with a message that contains `expected`.
template <class Layer, class Change>
void refused(typename Layer::Options options, const Change& change, const std::string& expected) {
  CHECK_NOTHROW(Layer(options));
  change(options);
  CHECK_THROWS_WITH(Layer(options), ContainsSubstring(expected));
  CHECK_THROWS_AS(Layer(options), ValueError);
}

}  // namespace

TEST_CASE("Conv1d, Conv2d and Conv3d give PyTorch's outputs and gradients in every padding mode") {
  check_layer<nn::Conv1d>("conv1d", {.in_channels = 4, .out_channels = 6, .kernel_size = 3}, line());
  check_layer<nn::Conv1d>("conv1d_options",
                          {.in_channels = 4,
                           .out_channels = 6,
                           .kernel_size = 3,
                           .stride = 2,
                           .padding = 3,
                           .dilation = 2,
                           .groups = 2,
                           .bias = false},
                          line());
  check_layer<nn::Conv1d>("conv1d_circular",
                          {.in_channels = 4,
                           .out_channels = 2,
                           .kernel_size = 3,
                           .padding = 2,
                           .padding_mode = PadMode::circular},
                          line()[0]);
  check_layer<nn::Conv2d>("conv2d_reflect",
                          {.in_channels = 4,
                           .out_channels = 3,
                           .kernel_size = {3, 2},
                           .padding = {2, 1},
                           .padding_mode = PadMode::reflect},
                          image());
  check_layer<nn::Conv2d>("conv2d_replicate",
                          {.in_channels = 4,
                           .out_channels = 2,
                           .kernel_size = 3,
                           .stride = 2,
                           .padding = {0, 3},
                           .padding_mode = PadMode::replicate},
                          image());
  check_layer<nn::Conv3d>("conv3d", {.in_channels = 4, .out_channels = 2, .kernel_size = 2}, volume());
  check_layer<nn::Conv3d>("conv3d_options",
                          {.in_channels = 4,
                           .out_channels = 4,
                           .kernel_size = {3, 1, 2},
                           .stride = {2, 1, 1},
                           .padding = {1, 0, 2},
                           .dilation = {1, 1, 2},
                           .groups = 2},
                          volume());
  check_layer<nn::Conv3d>("conv3d_replicate",
                          {.in_channels = 4,
                           .out_channels = 1,
                           .kernel_size = 2,
                           .padding = {1, 0, 2},
                           .padding_mode = PadMode::replicate},
                          volume());
  check_layer<nn::Conv1d>("conv1d_same",
                          {.in_channels = 4, .out_channels = 3, .kernel_size = 4, .padding = "same"}, line());
  check_layer<nn::Conv2d>("conv2d_same_reflect",
                          {.in_channels = 4,
                           .out_channels = 2,
                           .kernel_size = {4, 3},
                           .padding = "same",
                           .dilation = {1, 2},
                           .padding_mode = PadMode::reflect},
                          image());
  check_layer<nn::Conv3d>(
      "conv3d_valid",
      {.in_channels = 4, .out_channels = 2, .kernel_size = 2, .stride = 2, .padding = "valid"}, volume());
}

TEST_CASE("transposed convolutions give PyTorch's outputs and gradients, also with an output size") {
  check_layer<nn::ConvTranspose1d>(
      "conv_transpose1d",
      {.in_channels = 4, .out_channels = 3, .kernel_size = 4, .stride = 3, .padding = 1, .output_padding = 2},
      line());
  check_layer<nn::ConvTranspose2d>(
      "conv_transpose2d", {.in_channels = 4, .out_channels = 3, .kernel_size = 4, .stride = 2, .padding = 1},
      image());
  check_layer<nn::ConvTranspose2d>("conv_transpose2d_options",
                                   {.in_channels = 4,
                                    .out_channels = 6,
                                    .kernel_size = {3, 2},
                                    .stride = {1, 2},
                                    .padding = {1, 0},
                                    .output_padding = {0, 1},
                                    .groups = 2,
                                    .bias = false,
                                    .dilation = {2, 1}},
                                   image());
  check_layer<nn::ConvTranspose2d>(
      "conv_transpose2d_size",
      {.in_channels = 4, .out_channels = 2, .kernel_size = 3, .stride = {3, 2}, .padding = 1}, image(),
      "layer.", {15, 11});
  check_layer<nn::ConvTranspose2d>("conv_transpose2d_shape",
                                   {.in_channels = 4, .out_channels = 2, .kernel_size = 3, .stride = 2},
                                   image(), "layer.", {2, 2, 11, 14});
  check_layer<nn::ConvTranspose3d>("conv_transpose3d",
                                   {.in_channels = 4,
                                    .out_channels = 2,
                                    .kernel_size = {2, 1, 3},
                                    .stride = {2, 1, 2},
                                    .output_padding = {1, 0, 1}},
                                   volume());
}

TEST_CASE("Unfold and Fold give PyTorch's outputs and gradients") {
  check_layer<nn::Unfold>(
      "unfold", {.kernel_size = {3, 2}, .dilation = {1, 2}, .padding = {0, 1}, .stride = 2}, image());
  check_layer<nn::Fold>(
      "fold",
      {.output_size = {5, 4}, .kernel_size = {2, 3}, .dilation = {2, 1}, .padding = {1, 0}, .stride = {2, 1}},
      formula({2, 12, 6}, 83));
  CHECK(nn::Unfold({.kernel_size = {3, 2}}).str() ==
        "Unfold(kernel_size=(3, 2), dilation=1, padding=0, stride=1)");
  CHECK(nn::Fold({.output_size = 4, .kernel_size = 2}).str() ==
        "Fold(output_size=4, kernel_size=2, dilation=1, padding=0, stride=1)");
}

TEST_CASE("all recorded convolutions are tested") {
  // This test runs after all others above. It is skipped if only some of them were selected.
  if (tested().size() < 10) return;
  std::set<std::string> recorded;
  for (const auto& [key, record] : golden().under("")) recorded.insert(key.substr(0, key.find('/')));
  CHECK(recorded == tested());
}

TEST_CASE("convolutions start uniform within PyTorch's bounds") {
  // 1 / sqrt(fan-in), where fan-in is the product of the weight's sizes after the first.
  manual_seed(5);
  const auto check_bounds = [](const Tensor& weight, const Tensor& bias, std::int64_t fan_in) {
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
    CHECK(weight.numel() == weight.size(0) * fan_in);
    CHECK(weight.abs().amax().item() <= bound);
    CHECK(weight.amax().item() > 0.9 * bound);
    CHECK(weight.amin().item() < -0.9 * bound);
    // The standard deviation of a uniform distribution is its width / sqrt(12).
    CHECK(weight.std().item() == Approx(bound / std::sqrt(3.0)).epsilon(0.1));
    CHECK(bias.abs().amax().item() <= bound);
    CHECK(bias.abs().amax().item() > 0.8 * bound);
  };
  nn::Conv1d line({.in_channels = 8, .out_channels = 64, .kernel_size = 5, .groups = 2});
  check_bounds(line.weight, line.bias, 4 * 5);
  nn::Conv3d volume({.in_channels = 2, .out_channels = 64, .kernel_size = {2, 3, 4}});
  check_bounds(volume.weight, volume.bias, 2 * 24);
  nn::ConvTranspose2d up({.in_channels = 6, .out_channels = 64, .kernel_size = {2, 4}, .groups = 2});
  check_bounds(up.weight, up.bias, 32 * 8);
}

TEST_CASE("convolution layers print their options") {
  CHECK(nn::Conv1d({.in_channels = 2, .out_channels = 3, .kernel_size = 5, .padding_mode = PadMode::reflect})
            .str() == "Conv1d(in_channels=2, out_channels=3, kernel_size=5, stride=1, padding_mode=reflect)");
  CHECK(nn::Conv3d({.in_channels = 2, .out_channels = 2, .kernel_size = {1, 2, 3}, .groups = 2}).str() ==
        "Conv3d(in_channels=2, out_channels=2, kernel_size=(1, 2, 3), stride=1, groups=2)");
  CHECK(nn::Conv2d({.in_channels = 2, .out_channels = 3, .kernel_size = 3, .padding = "same"}).str() ==
        "Conv2d(in_channels=2, out_channels=3, kernel_size=3, stride=1, padding=same)");
  CHECK(nn::ConvTranspose2d({.in_channels = 2,
                             .out_channels = 3,
                             .kernel_size = 4,
                             .stride = 2,
                             .padding = 1,
                             .output_padding = {0, 1},
                             .bias = false})
            .str() ==
        "ConvTranspose2d(in_channels=2, out_channels=3, kernel_size=4, stride=2, padding=1, "
        "output_padding=(0, 1), bias=false)");
}

TEST_CASE("convolution layers refuse options that are out of range, and name them") {
  const nn::Conv3d::Options conv{.in_channels = 2, .out_channels = 2, .kernel_size = 1};
  for (const std::int64_t value : {0, -1}) {
    refused<nn::Conv3d>(
        conv, [=](auto& o) { o.kernel_size.d = value; }, "[Conv3d] kernel_size must be positive");
    refused<nn::Conv3d>(
        conv, [=](auto& o) { o.stride.d = value; }, "stride and dilation must be positive");
    refused<nn::Conv3d>(
        conv, [=](auto& o) { o.dilation.w = value; }, "stride and dilation must be positive");
  }
  refused<nn::Conv3d>(
      conv, [](auto& o) { o.padding.sides.h = -1; }, "padding must not be negative but is (0, -1, 0)");
  refused<nn::Conv3d>(
      conv, [](auto& o) { o.stride.h = std::int64_t{1} << 31; }, "are at most 2147483647");
  refused<nn::Conv3d>(
      conv, [](auto& o) { o.padding = "same", o.stride.w = 2; },
      "[Conv3d] padding \"same\" with stride (1, 1, 2); it needs stride 1");
  refused<nn::Conv3d>(
      conv, [](auto& o) { o.padding = "same", o.padding_mode = PadMode::reflect, o.stride.w = 2; },
      "needs stride 1");
  CHECK_THROWS_WITH(nn::Conv1d({.in_channels = 2, .out_channels = 2, .kernel_size = 1, .padding = "full"}),
                    ContainsSubstring("padding is \"full\""));
  const nn::Conv1d::Options line{.in_channels = 2, .out_channels = 2, .kernel_size = 1};
  refused<nn::Conv1d>(
      line, [](auto& o) { o.groups = 3; }, "[Conv1d] groups must divide in_channels 2");
  refused<nn::Conv1d>(
      line, [](auto& o) { o.in_channels = 0; }, "in_channels and out_channels must be positive");
  const nn::ConvTranspose2d::Options up{
      .in_channels = 2, .out_channels = 4, .kernel_size = 3, .stride = 2, .output_padding = 1};
  refused<nn::ConvTranspose2d>(
      up, [](auto& o) { o.output_padding.w = -1; }, "output_padding (1, -1) must not be negative");
  refused<nn::ConvTranspose2d>(
      up, [](auto& o) { o.output_padding.h = 2; }, "less than stride (2, 2) or dilation (1, 1)");
  refused<nn::ConvTranspose2d>(
      up, [](auto& o) { o.groups = 4; }, "[ConvTranspose2d] groups must divide");
  const nn::Unfold::Options windows{.kernel_size = 2};
  refused<nn::Unfold>(
      windows, [](auto& o) { o.kernel_size.h = 0; }, "[Unfold] kernel_size must be positive");
  refused<nn::Unfold>(
      windows, [](auto& o) { o.stride.w = 0; }, "[Unfold] stride and dilation must be positive");
  refused<nn::Unfold>(
      windows, [](auto& o) { o.padding.w = -1; }, "[Unfold] padding must not be negative");
  refused<nn::Fold>(
      {.output_size = 3, .kernel_size = 2}, [](auto& o) { o.output_size.h = 0; },
      "[Fold] output_size must be positive");
}

TEST_CASE("convolution layers refuse inputs and output sizes that do not fit") {
  nn::Conv1d line({.in_channels = 2, .out_channels = 2, .kernel_size = 1});
  CHECK_THROWS_WITH(line(zeros({1, 3, 8})), ContainsSubstring("(N, 2, L) but got [1, 3, 8]"));
  nn::Conv3d volume({.in_channels = 2, .out_channels = 2, .kernel_size = 1});
  CHECK_THROWS_WITH(volume(zeros({2, 8, 8})), ContainsSubstring("(N, 2, D, H, W) but got [2, 8, 8]"));
  CHECK(volume(zeros({2, 3, 4, 5})).sizes() == Shape{2, 3, 4, 5});
  nn::Conv2d mirrored({.in_channels = 1,
                       .out_channels = 1,
                       .kernel_size = 3,
                       .padding = 3,
                       .padding_mode = PadMode::reflect});
  CHECK_THROWS_WITH(mirrored(zeros({1, 1, 3, 9})), ContainsSubstring("this mode gives at most 2"));
  nn::ConvTranspose2d up({.in_channels = 2, .out_channels = 2, .kernel_size = 3, .stride = {3, 2}});
  const Tensor x = zeros({1, 2, 4, 4});
  CHECK(up(x).sizes() == Shape{1, 2, 12, 9});
  CHECK(up(x, {14, 10}).sizes() == Shape{1, 2, 14, 10});
  CHECK(up(x[0], {2, 14, 10}).sizes() == Shape{2, 14, 10});
  CHECK_THROWS_WITH(up(x, {15, 10}), ContainsSubstring("dimension 0 can be from 12 to 14"));
  CHECK_THROWS_WITH(up(x, {12, 8}), ContainsSubstring("dimension 1 can be from 9 to 10"));
  CHECK_THROWS_WITH(up(x, {12, 8, 9}), ContainsSubstring("give 2 or 4 numbers"));
  CHECK_THROWS_WITH(up(zeros({1, 3, 4, 4})), ContainsSubstring("(N, 2, H, W) but got [1, 3, 4, 4]"));
}

TEST_CASE("convolutions of all kinds are parts of a Sequential") {
  nn::Sequential net(
      nn::ConvTranspose2d::Options{.in_channels = 3, .out_channels = 4, .kernel_size = 4, .stride = 2},
      nn::Unfold::Options{.kernel_size = 2, .stride = 2},
      nn::Conv1d::Options{.in_channels = 16, .out_channels = 2, .kernel_size = 3});
  CHECK(net(zeros({1, 3, 3, 3})).sizes() == Shape{1, 2, 14});
}
