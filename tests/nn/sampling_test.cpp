// Layers that resize, pool and reduce bags. tests/autograd compares their functions with PyTorch.
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("Upsample and its two short forms call interpolate") {
  const Tensor x = randn({2, 3, 4, 5});
  nn::Upsample twice({.scale_factor = 2});
  CHECK(equal(twice(x), interpolate(x, {.scale_factor = 2})));
  CHECK(twice.str() == "Upsample(scale_factor=2, mode=nearest)");
  nn::Upsample smooth({.size = {7, 3}, .mode = InterpolateMode::bicubic, .align_corners = true});
  CHECK(equal(smooth(x),
              interpolate(x, {.size = {7, 3}, .mode = InterpolateMode::bicubic, .align_corners = true})));
  CHECK(smooth.str() == "Upsample(size=[7, 3], mode=bicubic)");
  CHECK(nn::Upsample({.scale_factor = {2, 0.5}}).str() == "Upsample(scale_factor=(2, 0.5), mode=nearest)");
  CHECK(equal(nn::UpsamplingNearest2d({.size = 8})(x), interpolate(x, {.size = 8})));
  nn::UpsamplingBilinear2d corners({.scale_factor = 1.5});
  CHECK(
      equal(corners(x),
            interpolate(x, {.scale_factor = 1.5, .mode = InterpolateMode::bilinear, .align_corners = true})));
  CHECK(corners.str() == "UpsamplingBilinear2d(scale_factor=1.5, mode=bilinear)");
  CHECK_THROWS_WITH(nn::Upsample({}), ContainsSubstring("not neither"));
  CHECK_THROWS_WITH(nn::Upsample({.size = 3, .scale_factor = 2}), ContainsSubstring("not both"));
}

TEST_CASE("pools of lines and volumes call their functions") {
  const Tensor line = randn({2, 3, 9}), volume = rand({1, 2, 5, 6, 7}) + 1, image = rand({2, 3, 6, 7}) + 1;
  CHECK(equal(nn::MaxPool1d({.kernel_size = 3, .stride = 2, .padding = 1})(line),
              max_pool1d(line, {.kernel_size = 3, .stride = 2, .padding = 1})));
  CHECK(equal(nn::MaxPool3d({.kernel_size = {2, 1, 3}, .ceil_mode = true})(volume),
              max_pool3d(volume, {.kernel_size = {2, 1, 3}, .ceil_mode = true})));
  CHECK(equal(nn::AvgPool1d({.kernel_size = 3, .padding = 1, .count_include_pad = false})(line),
              avg_pool1d(line, {.kernel_size = 3, .padding = 1, .count_include_pad = false})));
  CHECK(equal(nn::AvgPool3d({.kernel_size = 2, .stride = 1})(volume),
              avg_pool3d(volume, {.kernel_size = 2, .stride = 1})));
  CHECK(equal(nn::LPPool1d({.norm_type = 1, .kernel_size = 2})(line.abs()),
              lp_pool1d(line.abs(), 1, {.kernel_size = 2})));
  CHECK(equal(nn::LPPool2d({.norm_type = 2, .kernel_size = {2, 3}, .stride = 1})(image),
              lp_pool2d(image, 2, {.kernel_size = {2, 3}, .stride = 1})));
  CHECK(equal(nn::LPPool3d({.norm_type = 3, .kernel_size = 2})(volume),
              lp_pool3d(volume, 3, {.kernel_size = 2})));
  CHECK(equal(nn::AdaptiveAvgPool1d({.output_size = 4})(line), adaptive_avg_pool1d(line, 4)));
  CHECK(equal(nn::AdaptiveAvgPool3d({.output_size = {2, 3, 1}})(volume),
              adaptive_avg_pool3d(volume, {2, 3, 1})));
  CHECK(equal(nn::AdaptiveMaxPool1d({.output_size = 4})(line), adaptive_max_pool1d(line, 4)));
  CHECK(equal(nn::AdaptiveMaxPool2d({.output_size = {2, 3}})(image), adaptive_max_pool2d(image, {2, 3})));
  CHECK(equal(nn::AdaptiveMaxPool3d({.output_size = 2})(volume), adaptive_max_pool3d(volume, 2)));
  CHECK(nn::MaxPool1d({.kernel_size = 3}).str() == "MaxPool1d(kernel_size=3, stride=3, padding=0)");
  CHECK(nn::MaxPool3d({.kernel_size = {2, 1, 3}, .dilation = 2}).str() ==
        "MaxPool3d(kernel_size=[2, 1, 3], stride=[2, 1, 3], padding=0, dilation=2)");
  CHECK(nn::LPPool2d({.norm_type = 2, .kernel_size = {2, 3}}).str() ==
        "LPPool2d(kernel_size=(2, 3), norm_type=2, stride=(2, 3))");
  CHECK(nn::AdaptiveMaxPool3d({.output_size = 2}).str() == "AdaptiveMaxPool3d(output_size=2)");
  CHECK_THROWS_WITH(nn::MaxPool1d({}), ContainsSubstring("[MaxPool1d] kernel_size must be positive"));
  CHECK_THROWS_WITH(nn::AvgPool3d({.kernel_size = {2, 0, 1}}), ContainsSubstring("[AvgPool3d] kernel_size"));
  CHECK_THROWS_WITH(nn::AdaptiveMaxPool2d({}), ContainsSubstring("[AdaptiveMaxPool2d] output_size"));
  CHECK_THROWS_WITH(nn::LPPool1d({.kernel_size = 2}), ContainsSubstring("norm_type"));
  CHECK_THROWS_WITH(nn::MaxUnpool2d({}), ContainsSubstring("[MaxUnpool2d] kernel_size"));
}

TEST_CASE("MaxUnpool undoes the pool that gave its indices") {
  const Tensor image = rand({2, 3, 7, 6}) + 1, line = rand({2, 3, 7}) + 1, volume = rand({1, 2, 5, 4, 4}) + 1;
  nn::MaxPool2d pool({.kernel_size = 2});
  nn::MaxUnpool2d unpool({.kernel_size = 2});
  const auto [y, at] = pool.forward_with_indices(image);
  CHECK(equal(y, pool(image)));
  CHECK(equal(unpool(y, at, image.sizes()), max_unpool2d(y, at, {.kernel_size = 2}, image.sizes())));
  CHECK(unpool.str() == "MaxUnpool2d(kernel_size=2, stride=2, padding=0)");
  const auto [y1, at1] = nn::MaxPool1d({.kernel_size = 2}).forward_with_indices(line);
  CHECK(equal(max_pool1d(nn::MaxUnpool1d({.kernel_size = 2})(y1, at1, {7}), {.kernel_size = 2}), y1));
  const auto [y3, at3] = nn::MaxPool3d({.kernel_size = 2}).forward_with_indices(volume);
  CHECK(equal(max_pool3d(nn::MaxUnpool3d({.kernel_size = 2})(y3, at3, volume.sizes()), {.kernel_size = 2}),
              y3));
  const auto [y2, at2] = nn::AdaptiveMaxPool2d({.output_size = 3}).forward_with_indices(image);
  CHECK(equal(image.flatten(2).gather(2, at2.flatten(2)), y2.flatten(2)));
}

TEST_CASE("EmbeddingBag takes rows of indices, or indices with offsets and factors") {
  nn::EmbeddingBag bag(
      {.num_embeddings = 9, .embedding_dim = 4, .mode = EmbeddingBagMode::sum, .padding_idx = -1});
  CHECK(bag.weight.tensor().size(0) == 9);
  CHECK(equal(bag.weight.tensor().select(0, 8), zeros({4})));
  const Tensor at = tensor({1, 8, 3, 3, 0, 2}), offsets = tensor({0, 4}), scales = randn({6});
  CHECK(equal(bag(at.view({2, 3})),
              embedding_bag(bag.weight, at.view({2, 3}), {.mode = EmbeddingBagMode::sum, .padding_idx = 8})));
  CHECK(equal(bag(at, offsets, scales), embedding_bag(bag.weight, at,
                                                      {.mode = EmbeddingBagMode::sum,
                                                       .offsets = offsets,
                                                       .per_sample_weights = scales,
                                                       .padding_idx = 8})));
  CHECK(bag.str() == "EmbeddingBag(num_embeddings=9, embedding_dim=4, mode=sum, padding_idx=8)");
  nn::EmbeddingBag ends({.num_embeddings = 9, .embedding_dim = 4, .include_last_offset = true});
  CHECK(ends(at, tensor({0, 4, 6})).sizes() == Shape{2, 4});
  bag(at.view({2, 3})).sum().backward();
  CHECK(equal(bag.weight.tensor().grad().sum(1), tensor({4.0, 4.0, 4.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0})));
  CHECK_THROWS_WITH(nn::EmbeddingBag({.embedding_dim = 4}),
                    ContainsSubstring("[EmbeddingBag] num_embeddings"));
  CHECK_THROWS_AS(nn::EmbeddingBag({.num_embeddings = 2, .embedding_dim = 4, .padding_idx = 2}), IndexError);
}

TEST_CASE("a decoder of Upsample and Conv2d trains in a Sequential") {
  nn::Sequential net(nn::Upsample::Options{.scale_factor = 2, .mode = InterpolateMode::bilinear},
                     nn::Conv2d::Options{.in_channels = 2, .out_channels = 1, .kernel_size = 3},
                     nn::AdaptiveMaxPool2d::Options{.output_size = 2});
  const Tensor x = randn({3, 2, 4, 4}).set_requires_grad();
  net(x).sum().backward();
  CHECK(x.grad().sizes() == x.sizes());
}
