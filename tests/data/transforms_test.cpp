#include "tapestry/data/transforms.h"

#include <cmath>
#include <map>
#include <set>

#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

template <class T>
Tensor images(const Shape& sizes) {
  Tensor t = empty(sizes, dtype_of<T>);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<T>()[i] = T(static_cast<float>(i % 250 + 1));
  return t;
}

Tensor applied(const BatchTransform<>& transform, const Tensor& input, std::int64_t epoch = 0) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(input.defined() ? input.size(0) : 0));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  Example batch{input, Tensor()};
  transform(batch, {.seed = 3, .epoch = epoch, .indices = indices});
  return batch.input;
}

}  // namespace

TEST_CASE("normalize computes (x - mean) / std per channel and divides bytes by 255 first") {
  const Tensor bytes = images<std::uint8_t>({2, 3, 4, 5}),
               out = applied(normalize({0.1f, 0.2f, 0.3f}, {0.5f, 0.25f, 2.0f}), bytes);
  REQUIRE(out.dtype() == DType::f32);
  REQUIRE(out.sizes() == bytes.sizes());
  const float mean[] = {0.1f, 0.2f, 0.3f}, std[] = {0.5f, 0.25f, 2.0f};
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const int c = static_cast<int>(i / 20 % 3);
    CHECK(out.data<float>()[i] ==
          (static_cast<float>(bytes.data<std::uint8_t>()[i]) / 255.0f - mean[c]) / std[c]);
  }
  CHECK(bytes.data<std::uint8_t>()[0] == 1);
  const Tensor floats = images<float>({1, 2, 3, 3}), one = applied(normalize({1.0f}, {2.0f}), floats);
  for (std::int64_t i = 0; i < one.numel(); ++i)
    CHECK(one.data<float>()[i] == (floats.data<float>()[i] - 1) / 2);
  CHECK(applied(to_float(), bytes).data<float>()[7] == 8 / 255.0f);
  CHECK(applied(normalize({0.0f}, {1.0f}), empty({0, 1, 2, 2}, DType::u8)).sizes() == Shape{0, 1, 2, 2});

  // A strided input, here the transposed image, must be read in the right order.
  const Tensor turned = tapestry::detail::raw_view(bytes, {2, 3, 5, 4}, {60, 20, 1, 5}, 0);
  CHECK(applied(to_float(), turned).data<float>()[1] == 6 / 255.0f);

  CHECK_THROWS_AS(normalize({}, {1.0f}), ValueError);
  CHECK_THROWS_AS(normalize({0.0f}, {0.0f}), ValueError);
  CHECK_THROWS_WITH(applied(normalize({0.0f, 1.0f}, {1.0f}), bytes),
                    ContainsSubstring("2 values for 3 channels"));
  CHECK_THROWS_AS(applied(to_float(), images<std::int64_t>({1, 1, 2, 2})), TypeError);
  CHECK_THROWS_WITH(applied(to_float(), images<float>({2, 2})),
                    ContainsSubstring("[N, C, H, W], got [2, 2]"));
  CHECK_THROWS_WITH(applied(to_float(), Tensor()), ContainsSubstring("undefined"));
}

TEMPLATE_TEST_CASE("random_crop cuts windows of the padded image", "", std::uint8_t, Half, float, double) {
  const Tensor in = images<TestType>({40, 2, 4, 5});
  auto value = [](const Tensor& t, std::int64_t i) { return static_cast<float>(t.data<TestType>()[i]); };
  for (auto [height, width, padding] :
       {std::array{4, 5, 0}, {4, 5, 2}, {2, 3, 0}, {6, 7, 1}, {1, 1, 3}, {2, 2, 6}}) {
    const Tensor out = applied(random_crop(height, width, padding), in);
    REQUIRE(out.sizes() == Shape{40, 2, height, width});
    std::set<std::pair<int, int>> places;
    for (std::int64_t i = 0; i < 40; ++i) {
      // Exactly one window position must match the whole image.
      bool found = false;
      for (int top = -padding; top <= 4 + padding - height && !found; ++top) {
        for (int left = -padding; left <= 5 + padding - width && !found; ++left) {
          bool same = true;
          for (int c = 0; c < 2; ++c)
            for (int y = 0; y < height; ++y)
              for (int x = 0; x < width; ++x) {
                const int row = top + y, column = left + x;
                const bool inside = row >= 0 && row < 4 && column >= 0 && column < 5;
                const float expected = inside ? value(in, ((i * 2 + c) * 4 + row) * 5 + column) : 0;
                same = same && value(out, ((i * 2 + c) * height + y) * width + x) == expected;
              }
          if (same) {
            found = true;
            places.insert({top, left});
          }
        }
      }
      CHECK(found);
    }
    // Windows that lie outside the image are all zero, so not all positions can be distinguished.
    if ((4 + 2 * padding - height) + (5 + 2 * padding - width) > 0) CHECK(places.size() > 3);
  }
  CHECK_THROWS_WITH(applied(random_crop(7, 5, 1), in), ContainsSubstring("does not fit"));
  CHECK_THROWS_AS(random_crop(0, 5), ValueError);
  CHECK_THROWS_AS(random_crop(5, 5, -1), ValueError);
}

TEMPLATE_TEST_CASE("random_horizontal_flip mirrors whole images", "", std::uint8_t, BFloat16, float,
                   std::int64_t) {
  const Tensor in = images<TestType>({64, 2, 3, 5});
  auto value = [](const Tensor& t, std::int64_t i) { return static_cast<float>(t.data<TestType>()[i]); };
  for (double p : {0.0, 0.5, 1.0}) {
    const Tensor out = applied(random_horizontal_flip(p), in);
    int flipped = 0;
    for (std::int64_t i = 0; i < 64; ++i) {
      bool same = true, mirrored = true;
      for (std::int64_t j = 0; j < 30; ++j) {
        same = same && value(out, i * 30 + j) == value(in, i * 30 + j);
        mirrored = mirrored && value(out, i * 30 + j) == value(in, i * 30 + j / 5 * 5 + 4 - j % 5);
      }
      CHECK(same != mirrored);
      flipped += mirrored;
    }
    // 64 fair draws have a standard deviation of 4; the tolerance is five of them.
    if (p == 0.5) CHECK(std::abs(flipped - 32) < 20);
    else CHECK(flipped == 64 * p);
  }
  CHECK_THROWS_AS(random_horizontal_flip(1.5), ValueError);
  CHECK_THROWS_AS(random_horizontal_flip(-0.1), ValueError);
}
