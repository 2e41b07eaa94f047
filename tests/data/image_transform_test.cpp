// Tests of the transforms that compute pixels, against torchvision (tests/golden/data_images.py); of random
// transforms, against the parameters that they must have drawn; and of the ways to call a transform.
#include "tapestry/data/image_transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "tapestry/core/safetensors.h"
#include "tapestry/data/formats/synthetic.h"
#include "tapestry/data/mix.h"
#include "tapestry/data/transforms.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

using Golden = std::map<std::string, Tensor>;
const Golden& golden() {
  static const Golden all =
      load_safetensors(tests::source_path("tests/golden/data_images.safetensors")).tensors;
  return all;
}

double value(const Tensor& t, std::int64_t i) {
  return t.dtype() == DType::u8 ? t.data<std::uint8_t>()[i] : static_cast<double>(t.data<float>()[i]);
}

/// Checks that at most a part `odd` of the pixels differ by more than `tolerance`, and none by more than
/// `most`.
void check_close(const Tensor& a, const Tensor& b, double tolerance, double odd = 0, double most = 0) {
  REQUIRE(a.dtype() == b.dtype());
  REQUIRE(a.sizes() == b.sizes());
  std::int64_t far = 0, too_far = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double distance = std::abs(value(a, i) - value(b, i));
    far += !(distance <= tolerance);
    too_far += !(distance <= std::max(tolerance, most));
  }
  CHECK(static_cast<double>(far) <= odd * static_cast<double>(a.numel()));
  CHECK(too_far == 0);
}

/// Applies the transform to the recorded image, as bytes and as floats, and compares with torchvision.
void check_golden(const std::string& name, const ImageTransform& transform, double tolerance = 3e-6) {
  CAPTURE(name);
  check_close(transform(golden().at("image/f32")), golden().at(name + "/f32"), tolerance);
  // A byte may be rounded to the other side.
  check_close(transform(golden().at("image/u8")), golden().at(name + "/u8"), 0, 0.01, 1);
}

std::string text(double x) {
  std::string s = std::to_string(x);
  while (s.ends_with("0") && !s.ends_with(".0")) s.pop_back();
  return s;
}

Tensor noise(std::int64_t n, std::int64_t channels, std::int64_t h, std::int64_t w) {
  const Tensor t = empty({n, channels, h, w});
  Rng rng(9);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = static_cast<float>(rng.uniform());
  return t;
}

/// Image i of a batch as a batch of one.
Tensor one(const Tensor& t, std::int64_t i) {
  const Tensor image = row(t, i);
  Shape sizes = image.sizes(), strides = image.strides();
  sizes.insert(0, 1);
  strides.insert(0, image.numel());
  return tapestry::detail::raw_view(image, sizes, strides, image.storage_offset());
}

void check_same(const Tensor& a, const Tensor& b) { check_close(a, b, 0); }

std::vector<Rng> generators(std::int64_t n) {
  std::vector<Rng> all;
  for (std::int64_t i = 0; i < n; ++i) all.emplace_back(77, static_cast<std::uint64_t>(i));
  return all;
}

}  // namespace

TEST_CASE("resize interpolates as torchvision does, with and without antialias") {
  const std::pair<const char*, Interpolation> modes[] = {{"nearest", Interpolation::nearest},
                                                         {"bilinear", Interpolation::bilinear},
                                                         {"bicubic", Interpolation::bicubic}};
  for (const auto& [mode, interpolation] : modes)
    for (const auto& [h, w] : {std::pair(5, 7), {17, 9}, {40, 31}, {17, 23}, {1, 1}})
      for (const bool antialias : {true, false}) {
        if (!antialias && interpolation == Interpolation::nearest) continue;
        check_golden(concat({"resize/", mode, "/", h, "x", w, "/", antialias ? 1 : 0}),
                     resize(h, w, {interpolation, antialias}));
      }
  check_golden("resize/shorter/8", resize(8));
  const Tensor wide = golden().at("image/f32");
  const Tensor tall = tapestry::detail::raw_view(wide, {3, 23, 17}, {17 * 23, 1, 23}, 0);
  check_close(resize(8)(tall), golden().at("resize/tall/8/f32"), 3e-6);
  const Tensor ids = empty({1, 2, 2}, DType::i64);
  for (std::int64_t i = 0; i < 4; ++i) ids.data<std::int64_t>()[i] = i;
  CHECK(resize(4, 4, {.interpolation = Interpolation::nearest})(ids).data<std::int64_t>()[15] == 3);
  CHECK_THROWS_AS(resize(4, 4)(ids), TypeError);
  CHECK_THROWS_AS(resize(0, 4), ValueError);
  CHECK_THROWS_AS(resize(-1), ValueError);
  CHECK_THROWS_WITH(resize(4)(empty({3, 0, 5})), ContainsSubstring("no pixels"));
  CHECK_THROWS_WITH(resize(1 << 20)(empty({1, 1, 1 << 20})), ContainsSubstring("beyond any memory"));
}

TEST_CASE("center_crop and crop cut and pad as torchvision does") {
  for (const auto& [h, w] : {std::pair(10, 11), {9, 8}, {30, 6}, {20, 28}})
    check_golden(concat({"center_crop/", h, "x", w}), center_crop(h, w), 0);
  const Tensor image = golden().at("image/u8");
  const Tensor part = crop(-1, 20, 3, 5)(image);
  REQUIRE(part.sizes() == Shape{3, 3, 5});
  CHECK(value(part, 0) == 0);
  CHECK(value(part, 5) == value(image, 20));
  CHECK(value(part, 8) == 0);
  CHECK(value(part, 15 + 12) == value(image, 17 * 23 + 23 + 22));
  CHECK_THROWS_AS(crop(0, 0, 0, 1), ValueError);
  CHECK_THROWS_AS(crop(std::int64_t{1} << 40, 0, 1, 1), ValueError);
}

TEST_CASE("colors are adjusted as torchvision does") {
  for (const double factor : {0.0, 0.6, 1.0, 1.7}) {
    check_golden("brightness/" + text(factor), adjust_brightness(factor));
    check_golden("contrast/" + text(factor), adjust_contrast(factor));
    check_golden("saturation/" + text(factor), adjust_saturation(factor));
  }
  for (const double shift : {-0.5, -0.13, 0.0, 0.4})
    check_golden("hue/" + text(shift), adjust_hue(shift), 2e-5);
  const Tensor gray = noise(1, 1, 3, 4);
  check_same(adjust_saturation(0)(gray), gray);
  check_same(adjust_hue(0.3)(gray), gray);
  CHECK_THROWS_WITH(adjust_hue(0.1)(noise(1, 2, 3, 4)), ContainsSubstring("1 or 3 channels"));
  CHECK_THROWS_AS(adjust_brightness(-1), ValueError);
  CHECK_THROWS_AS(adjust_hue(0.6), ValueError);
  CHECK_THROWS_AS(color_jitter({.hue = -0.1}), ValueError);
}

TEST_CASE("rotate turns images as torchvision does") {
  for (const double angle : {0.0, 31.0, -90.0, 123.4})
    for (const bool bilinear : {false, true})
      for (const bool fill : {false, true}) {
        const std::string name =
            concat({"rotate/", bilinear ? "bilinear/" : "nearest/", text(angle), fill ? "/0.4" : "/0"});
        CAPTURE(name);
        RotationOptions options{.interpolation = bilinear ? Interpolation::bilinear : Interpolation::nearest,
                                .fill = fill ? 0.4f : 0};
        // A source position between two pixels may be rounded to the other one.
        check_close(rotate(angle, options)(golden().at("image/f32")), golden().at(name + "/f32"), 1e-4, 0.01,
                    1);
        options.fill *= 255;
        check_close(rotate(angle, options)(golden().at("image/u8")), golden().at(name + "/u8"), 1, 0.01, 255);
      }
  check_close(rotate(20, {.interpolation = Interpolation::bilinear, .center = std::pair(4.0, 12.0)})(
                  golden().at("image/f32")),
              golden().at("rotate/center/f32"), 1e-4);
  CHECK_THROWS_AS(rotate(std::nan("")), ValueError);
  CHECK_THROWS_AS(random_rotation(-1), ValueError);
  CHECK_THROWS_AS(rotate(1, {.interpolation = Interpolation::bicubic}), ValueError);
}

TEST_CASE("random transforms draw torchvision's parameters from each image's own numbers") {
  const std::int64_t n = 12, h = 21, w = 34;
  const Tensor in = noise(n, 3, h, w);
  std::vector<Rng> used = generators(n), replay = generators(n);
  const Tensor crops = random_resized_crop(8, 9)(in, used);
  std::set<std::int64_t> heights;
  for (std::int64_t i = 0; i < n; ++i) {
    Rng& rng = replay[static_cast<std::size_t>(i)];
    bool found = false;
    for (int attempt = 0; attempt < 10 && !found; ++attempt) {
      const double area = static_cast<double>(h * w) * (0.08 + 0.92 * rng.uniform());
      const double low = std::log(0.75), high = std::log(4.0 / 3);
      const double ratio = std::exp(low + (high - low) * rng.uniform());
      const std::int64_t cw = std::llrint(std::sqrt(area * ratio)), ch = std::llrint(std::sqrt(area / ratio));
      if (cw > w || ch > h) continue;
      found = true;
      heights.insert(ch);
      const std::int64_t top = rng.below(h - ch + 1), left = rng.below(w - cw + 1);
      check_close(one(crops, i), compose({crop(top, left, ch, cw), resize(8, 9)})(one(in, i)), 1e-6);
    }
    CHECK(found);
  }
  CHECK(heights.size() > 4);
  // A window that never fits gives the largest allowed one in the middle.
  const Tensor flat = noise(1, 1, 4, 400);
  check_close(random_resized_crop(4, 5)(flat), compose({crop(0, 197, 4, 5), resize(4, 5)})(flat), 1e-6);

  used = generators(n), replay = generators(n);
  const Tensor turned = random_rotation(-10, 70)(in, used);
  for (std::int64_t i = 0; i < n; ++i)
    check_same(one(turned, i), rotate(-10 + 80 * replay[static_cast<std::size_t>(i)].uniform())(one(in, i)));

  used = generators(n), replay = generators(n);
  const Tensor jittered =
      color_jitter({.brightness = 0.5, .contrast = 1.5, .saturation = 0.3, .hue = 0.2})(in, used);
  std::set<int> first;
  for (std::int64_t i = 0; i < n; ++i) {
    Rng& rng = replay[static_cast<std::size_t>(i)];
    std::array<int, 4> order = {0, 1, 2, 3};
    for (std::int64_t k = 0; k < 3; ++k)
      std::swap(order[static_cast<std::size_t>(k)], order[static_cast<std::size_t>(k + rng.below(4 - k))]);
    const double brightness = 0.5 + rng.uniform(), contrast = 2.5 * rng.uniform();
    const double saturation = 0.7 + 0.6 * rng.uniform(), hue = -0.2 + 0.4 * rng.uniform();
    const ImageTransform steps[] = {adjust_brightness(brightness), adjust_contrast(contrast),
                                    adjust_saturation(saturation), adjust_hue(hue)};
    Tensor expected = one(in, i);
    for (const int step : order) expected = steps[step](expected);
    check_close(one(jittered, i), expected, 1e-6);
    first.insert(order[0]);
  }
  CHECK(first.size() > 1);
}

TEST_CASE("random_erasing overwrites one rectangle of the drawn size, and nothing else") {
  const std::int64_t n = 200, h = 20, w = 30;
  const Tensor in = noise(n, 2, h, w);
  std::vector<Rng> used = generators(n);
  const Tensor out = random_erasing({.value = -5})(in, used);
  int erased = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t top = h, bottom = 0, left = w, right = 0, count = 0;
    for (std::int64_t y = 0; y < h; ++y)
      for (std::int64_t x = 0; x < w; ++x) {
        const std::int64_t at = (i * 2 * h + y) * w + x;
        const bool hole = value(out, at) == -5;
        CHECK((hole || value(out, at) == value(in, at)));
        CHECK((value(out, at + h * w) == -5) == hole);
        if (!hole) continue;
        top = std::min(top, y), bottom = std::max(bottom, y + 1);
        left = std::min(left, x), right = std::max(right, x + 1);
        ++count;
      }
    if (count == 0) continue;
    ++erased;
    CHECK(count == (bottom - top) * (right - left));
    // A side is rounded by half a pixel.
    const double area = static_cast<double>(count) / static_cast<double>(h * w);
    CHECK((area > 0.01 && area < 0.37));
  }
  CHECK(std::abs(erased - n / 2) < 36);  // five standard deviations
  used = generators(n);
  const Tensor random = random_erasing({.p = 1, .random_values = true})(in, used);
  double sum = 0, squares = 0, changed = 0;
  for (std::int64_t i = 0; i < in.numel(); ++i) {
    if (value(random, i) == value(in, i)) continue;
    ++changed;
    sum += value(random, i), squares += value(random, i) * value(random, i);
  }
  CHECK(changed > 10000);
  CHECK(std::abs(sum / changed) < 0.05);
  CHECK(std::abs(squares / changed - 1) < 0.07);
  CHECK_THROWS_AS(random_erasing({.random_values = true})(empty({1, 3, 3}, DType::u8)), TypeError);
  CHECK_THROWS_AS(random_erasing({.scale = {0.5, 0.1}}), ValueError);
}

TEST_CASE("random_vertical_flip turns whole images upside down") {
  const Tensor in = noise(64, 2, 3, 5);
  std::vector<Rng> used = generators(64), replay = generators(64);
  const Tensor out = random_vertical_flip(0.5)(in, used);
  int flips = 0;
  for (std::int64_t i = 0; i < 64; ++i) {
    const bool flip = replay[static_cast<std::size_t>(i)].uniform() < 0.5;
    flips += flip;
    for (std::int64_t c = 0; c < 2; ++c)
      for (std::int64_t y = 0; y < 3; ++y)
        for (std::int64_t x = 0; x < 5; ++x)
          CHECK(value(out, ((i * 2 + c) * 3 + y) * 5 + x) ==
                value(in, ((i * 2 + c) * 3 + (flip ? 2 - y : y)) * 5 + x));
  }
  CHECK((flips > 10 && flips < 54));
  CHECK_THROWS_AS(random_vertical_flip(1.1), ValueError);
}

TEST_CASE("a transform works on an image, on images, and on batches of every type") {
  const Tensor images = noise(3, 2, 6, 6);
  const ImageTransform flip = random_horizontal_flip(1), both = compose({crop(0, 0, 3, 3), flip});
  const Tensor flipped = both(images);
  REQUIRE(flipped.sizes() == Shape{3, 2, 3, 3});
  check_same(both(row(images, 1)), row(flipped, 1));
  CHECK(both.is_random());
  CHECK_FALSE(compose({crop(0, 0, 3, 3)}).is_random());
  CHECK_THROWS_WITH(flip(empty({3, 3})),
                    ContainsSubstring("an image [C, H, W] or images [N, C, H, W], got [3, 3]"));

  struct Scene {
    Tensor photo, mask;
  };
  const std::vector<std::int64_t> indices = {0, 1, 2};
  const BatchContext context{.indices = indices};
  std::pair<Tensor, Tensor> pair = {images, images};
  std::tuple<Tensor, int> tuple = {images, 1};
  Tensor plain = images;
  Scene scene{images, images};
  both(pair, context), both(tuple, context), both(plain, context);
  on(&Scene::mask, both)(scene, context);
  check_same(pair.first, flipped), check_same(std::get<0>(tuple), flipped), check_same(plain, flipped);
  check_same(scene.mask, flipped);
  CHECK(scene.photo.is_same(images));
  CHECK(pair.second.is_same(images));

  // A call on a tensor draws from the current generator; transforms that are not random do not.
  const ImageTransform shift = random_crop(6, 6, 5);
  Generator generator(5);
  Context here;
  here.generator = &generator;
  const ContextGuard guard(here);
  const Tensor first = shift(images), second = shift(images);
  CHECK(std::memcmp(first.raw_data(), second.raw_data(), first.nbytes()) != 0);
  const auto state = generator.state();
  resize(3)(images);
  CHECK(generator.state() == state);
  generator.manual_seed(5);
  check_same(shift(images), first);
}

TEST_CASE("mixup and cutmix mix images and labels by the same part") {
  const std::int64_t n = 5, classes = 4;
  const Tensor images = noise(n, 2, 8, 10), labels = empty({n}, DType::i64);
  for (std::int64_t i = 0; i < n; ++i) labels.data<std::int64_t>()[i] = i % classes;
  double low = 1, high = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const bool cut : {false, true}) {
      const MixTransform mix =
          cut ? cutmix({.num_classes = classes}) : mixup({.num_classes = classes, .alpha = 0.4});
      const Example out = mix(Example{images, labels}, Rng(seed));
      REQUIRE(out.target.sizes() == Shape{n, classes});
      const double part =
          value(out.target, 0);  // class 0 in image 0, whose partner has class 0 only if n = 5
      const double mine = value(out.target, classes + 1);
      low = std::min(low, mine), high = std::max(high, mine);
      CHECK(part == Approx(1));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t before = i == 0 ? n - 1 : i - 1, size = 2 * 8 * 10;
        double pasted = 0;
        for (std::int64_t j = 0; j < size; ++j) {
          const double a = value(images, i * size + j), b = value(images, before * size + j);
          const double got = value(out.input, i * size + j);
          if (cut) {
            CHECK((got == a || got == b));
            pasted += got == b;
          } else {
            CHECK(std::abs(got - (mine * a + (1 - mine) * b)) < 1e-6);
          }
        }
        if (cut) CHECK(std::abs(1 - pasted / static_cast<double>(size) - mine) < 1e-6);
        double total = 0;
        for (std::int64_t c = 0; c < classes; ++c) total += value(out.target, i * classes + c);
        CHECK(std::abs(total - 1) < 1e-6);
      }
    }
  }
  CHECK((low < 0.2 && high > 0.8));
  // Beta(alpha, alpha) has the mean 1/2 and the variance 1 / (8 alpha + 4).
  for (const double alpha : {0.4, 1.0, 3.0}) {
    const MixTransform mix = mixup({.num_classes = 2, .alpha = alpha});
    const Tensor dots = empty({2, 1, 1, 1}), zero_one = empty({2}, DType::i64);
    for (std::int64_t i = 0; i < 2; ++i)
      dots.data<float>()[i] = static_cast<float>(i), zero_one.data<std::int64_t>()[i] = i;
    double sum = 0, squares = 0;
    const int draws = 4000;
    for (int k = 0; k < draws; ++k) {
      const double part = value(mix(Example{dots, zero_one}, Rng(static_cast<std::uint64_t>(k))).target, 0);
      sum += part, squares += (part - 0.5) * (part - 0.5);
    }
    CHECK(std::abs(sum / draws - 0.5) < 0.03);
    CHECK(squares / draws == Approx(1 / (8 * alpha + 4)).epsilon(0.1));
  }
  CHECK_THROWS_AS(mixup({}), ValueError);
  CHECK_THROWS_AS(cutmix({.num_classes = 2, .alpha = 0}), ValueError);
  CHECK_THROWS_WITH(mixup({.num_classes = 2})(Example{images, labels}, Rng(1)),
                    ContainsSubstring("label 2 of image 2"));
  CHECK_THROWS_AS(mixup({.num_classes = 4})(Example{empty({1, 1, 2, 2}, DType::u8), labels}, Rng(1)),
                  TypeError);
}

TEST_CASE("batches of random transforms do not depend on the number of workers") {
  const RandomDataset images({.size = 24, .channels = 3, .height = 9, .width = 8, .num_classes = 3});
  const auto run = [&](int workers) {
    DataLoader loader(images, {.batch_size = 5,
                               .shuffle = true,
                               .seed = 4,
                               .num_workers = workers,
                               .transforms = {compose({random_resized_crop(6), random_rotation(30)}),
                                              color_jitter({.brightness = 0.3, .hue = 0.1}), random_erasing(),
                                              cutmix({.num_classes = 3})}});
    std::vector<float> out;
    for (auto& [input, target] : loader) {
      out.insert(out.end(), input.data<float>(), input.data<float>() + input.numel());
      out.insert(out.end(), target.data<float>(), target.data<float>() + target.numel());
    }
    return out;
  };
  const auto expected = run(0);
  CHECK(expected.size() == 24 * (3 * 36 + 3));
  CHECK(run(2) == expected);
}
