// Layers must check each option by itself: a good layer with one value at the edge of what is allowed is
// accepted, and one value beyond it is refused by name.
#include <functional>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

// Checks that a layer with a changed option is refused with a message that contains `expected`.
template <class Layer>
void refused(typename Layer::Options options, const std::function<void(typename Layer::Options&)>& change,
             const std::string& expected) {
  INFO(expected);
  CHECK_NOTHROW(Layer(options));
  change(options);
  CHECK_THROWS_AS(Layer(options), ValueError);
  CHECK_THROWS_WITH(Layer(options), ContainsSubstring(expected));
}

}  // namespace

TEST_CASE("Conv2d refuses each option that is out of range in one direction only") {
  using Options = nn::Conv2d::Options;
  const Options good{.in_channels = 4, .out_channels = 6, .kernel_size = 3, .groups = 2};
  const auto bad = [&](const std::function<void(Options&)>& change, const std::string& expected) {
    refused<nn::Conv2d>(good, change, expected);
  };
  for (const std::int64_t value : {0, -2}) {
    bad([=](Options& o) { o.in_channels = value; }, "in_channels and out_channels must be positive");
    bad([=](Options& o) { o.out_channels = value; }, "in_channels and out_channels must be positive");
    bad([=](Options& o) { o.kernel_size.h = value; }, "kernel_size must be positive");
    bad([=](Options& o) { o.kernel_size.w = value; }, "kernel_size must be positive");
    bad([=](Options& o) { o.stride.h = value; }, "stride and dilation must be positive");
    bad([=](Options& o) { o.stride.w = value; }, "stride and dilation must be positive");
    bad([=](Options& o) { o.dilation.h = value; }, "stride and dilation must be positive");
    bad([=](Options& o) { o.dilation.w = value; }, "stride and dilation must be positive");
    bad([=](Options& o) { o.groups = value; }, "groups must divide");
  }
  bad([](Options& o) { o.padding.sides.h = -1; }, "padding must not be negative");
  bad([](Options& o) { o.padding.sides.w = -1; }, "padding must not be negative");
  bad([](Options& o) { o.in_channels = 5; }, "groups must divide");
  bad([](Options& o) { o.out_channels = 5; }, "groups must divide");
  CHECK_NOTHROW(nn::Conv2d({.in_channels = 1, .out_channels = 1, .kernel_size = 1}));
}

TEST_CASE("Linear, Embedding and the normalisations refuse each size that is not positive") {
  for (const std::int64_t value : {0, -1}) {
    refused<nn::Linear>(
        {.in_features = 1, .out_features = 1}, [=](auto& o) { o.in_features = value; }, "in_features");
    refused<nn::Linear>(
        {.in_features = 1, .out_features = 1}, [=](auto& o) { o.out_features = value; }, "out_features");
    refused<nn::LocalResponseNorm>(
        {.size = 1}, [=](auto& o) { o.size = value; }, "[LocalResponseNorm] size must be positive");
    const nn::Embedding::Options embedding{.num_embeddings = 1, .embedding_dim = 1};
    refused<nn::Embedding>(
        embedding, [=](auto& o) { o.num_embeddings = value; }, "num_embeddings");
    refused<nn::Embedding>(
        embedding, [=](auto& o) { o.embedding_dim = value; }, "embedding_dim");
    refused<nn::BatchNorm1d>(
        {.num_features = 1}, [=](auto& o) { o.num_features = value; }, "[BatchNorm1d] num_features");
    refused<nn::BatchNorm2d>(
        {.num_features = 1}, [=](auto& o) { o.num_features = value; }, "[BatchNorm2d] num_features");
    refused<nn::LayerNorm>(
        {.normalized_shape = {1, 1}},
        [=](auto& o) {
          o.normalized_shape = {1, value};
        },
        "normalized_shape must be positive");
    refused<nn::LayerNorm>(
        {.normalized_shape = {1, 1}},
        [=](auto& o) {
          o.normalized_shape = {value, 1};
        },
        "normalized_shape must be positive");
  }
  refused<nn::BatchNorm2d>(
      {.num_features = 1, .eps = 0}, [](auto& o) { o.eps = -1e-9; }, "eps must not be negative");
}

TEST_CASE("MultiheadAttention refuses each option that is out of range") {
  const nn::MultiheadAttention::Options good{
      .embed_dim = 4, .num_heads = 2, .dropout = 1, .kdim = 1, .vdim = 1};
  using Attention = nn::MultiheadAttention;
  for (const std::int64_t value : {0, -2}) {
    refused<Attention>(
        good, [=](auto& o) { o.embed_dim = value; }, "num_heads must divide embed_dim");
    refused<Attention>(
        good, [=](auto& o) { o.num_heads = value; }, "num_heads must divide embed_dim");
    refused<Attention>(
        good, [=](auto& o) { o.kdim = value; }, "kdim and vdim must be positive");
    refused<Attention>(
        good, [=](auto& o) { o.vdim = value; }, "kdim and vdim must be positive");
  }
  refused<Attention>(
      good, [](auto& o) { o.embed_dim = 5; }, "num_heads must divide embed_dim");
  refused<Attention>(
      good, [](auto& o) { o.dropout = -0.1; }, "dropout must lie in [0, 1]");
  refused<Attention>(
      good, [](auto& o) { o.dropout = 1.1; }, "dropout must lie in [0, 1]");
}

TEST_CASE("pools, Dropout and CrossEntropyLoss refuse each option that is out of range") {
  for (const std::int64_t value : {0, -1})
    for (const bool tall : {false, true}) {
      const Pair pair = tall ? Pair(1, value) : Pair(value, 1);
      refused<nn::MaxPool2d>(
          {.kernel_size = 1}, [=](auto& o) { o.kernel_size = pair; }, "[MaxPool2d] kernel_size");
      refused<nn::AvgPool2d>(
          {.kernel_size = 1}, [=](auto& o) { o.kernel_size = pair; }, "[AvgPool2d] kernel_size");
      refused<nn::AdaptiveAvgPool2d>(
          {.output_size = 1}, [=](auto& o) { o.output_size = pair; }, "[AdaptiveAvgPool2d] output_size");
    }
  refused<nn::Dropout>(
      {.p = 0}, [](auto& o) { o.p = -0.1; }, "p must lie in [0, 1]");
  refused<nn::Dropout>(
      {.p = 1}, [](auto& o) { o.p = 1.1; }, "p must lie in [0, 1]");
  refused<nn::CrossEntropyLoss>(
      {.label_smoothing = 0}, [](auto& o) { o.label_smoothing = -0.1; }, "label_smoothing");
  refused<nn::CrossEntropyLoss>(
      {.label_smoothing = 1}, [](auto& o) { o.label_smoothing = 1.1; }, "label_smoothing");
}
