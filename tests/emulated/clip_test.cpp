// The kernels that clip many gradients at once must compute the norm of all elements, and change every
// element of every gradient and nothing else.
#include "tapestry/kernels/cuda/clip.cuh"

#include <algorithm>
#include <deque>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

constexpr std::int64_t kBlock = kGradientBlock;

/// A gradient in memory that ends after its last element. It begins `offset` elements after a 16-byte
/// boundary.
struct Gradient {
  DType dtype;
  Block<float> wide;
  Block<BFloat16> bf16;
  Block<Half> f16;
  std::size_t size;

  Gradient(DType type, const Values& values, std::size_t offset)
      : dtype(type),
        wide(type == DType::f32 ? values : Values(), offset),
        bf16(type == DType::bf16 ? values : Values(), offset),
        f16(type == DType::f16 ? values : Values(), offset),
        size(values.size()) {}
  void* data() const {
    if (dtype == DType::f32) return wide.data();
    return dtype == DType::bf16 ? static_cast<void*>(bf16.data()) : f16.data();
  }
  float operator[](std::size_t i) const {
    if (dtype == DType::f32) return wide[i];
    return dtype == DType::bf16 ? static_cast<float>(bf16[i]) : static_cast<float>(f16[i]);
  }
};

struct Gradients {
  std::deque<Gradient> all;
  std::vector<GradientItem> items;
  std::int64_t blocks = 0;

  void add(DType dtype, const Values& values, std::size_t offset = 0) {
    all.emplace_back(dtype, values, offset);
    items.push_back({all.back().data(), static_cast<std::int64_t>(values.size()),
                     static_cast<std::int32_t>(blocks), dtype});
    blocks += (items.back().numel + kBlock - 1) / kBlock;
  }
  /// `on_device` is what a copy to the device would give. Nothing may read the items on the host then.
  GradientItems list() const {
    const auto count = static_cast<std::int64_t>(items.size());
    return {items.data(), count > kGradientsInArguments ? items.data() : nullptr, count, blocks};
  }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> found;
    for (const Gradient& g : all) {
      found.emplace_back();
      for (std::size_t i = 0; i < g.size; ++i) found.back().push_back(g[i]);
    }
    return found;
  }
  double norm(double order) const {
    double sum = 0;
    for (const auto& g : values())
      for (const float x : g) {
        const double value = std::abs(static_cast<double>(x));
        if (std::isinf(order)) sum = value > sum || std::isnan(value) ? value : sum;
        else sum += std::pow(value, order);
      }
    return std::isinf(order) ? sum : std::pow(sum, 1 / order);
  }
};

struct Norm {
  Block<float> total{1}, factor{1};
};
void compute(Norm& norm, const Gradients& g, double order, double max_norm) {
  gpu::launch_gradient_norm({}, {.gradients = g.list(),
                                 .order = order,
                                 .max_norm = max_norm,
                                 .total = norm.total.data(),
                                 .factor = norm.factor.data()});
}

/// Gradients of all dtypes, aligned and not, around the limits of packs and blocks.
void add_ragged(Gradients& g) {
  unsigned salt = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [n, offset] : {std::pair<std::int64_t, std::size_t>{1, 0}, {7, 0}, {8, 1}, {1000, 0}})
      g.add(dtype, numbers(n, ++salt, 2), offset);
  g.add(DType::f32, numbers(kBlock, 50, 2));
  g.add(DType::bf16, numbers(kBlock + 1, 51, 2));
  g.add(DType::f32, numbers(2 * kBlock + 5, 52, 4), 1);
}

}  // namespace

TEST_CASE("clip kernels: norms of every order over ragged gradients of all dtypes, and the factor") {
  Gradients g;
  add_ragged(g);
  for (const double order : {1.0, 2.0, 3.0, 0.5, kInfinity}) {
    CAPTURE(order);
    const double want = g.norm(order);
    in_each_order([&] {
      for (const double max_norm : {want / 4, want * 4, 0.0}) {
        Norm got;
        compute(got, g, order, max_norm);
        CHECK(got.total[0] == Approx(want).epsilon(1e-6));
        CHECK(got.factor[0] == Approx(std::min(1.0, max_norm / (want + 1e-6))).epsilon(1e-5));
      }
    });
    if (kOnlyRaces) break;
  }
}

TEST_CASE("clip kernels: every element is scaled and clamped once") {
  Gradients scaled, clamped;
  for (Gradients* g : {&scaled, &clamped}) add_ragged(*g);
  in_each_order([&] {
    const auto before = scaled.values(), unclamped = clamped.values();
    const Block<float> factor(Values{0.5});  // exact in every dtype
    gpu::launch_scale_gradients({}, {.gradients = scaled.list(), .factor = factor.data()});
    gpu::launch_clamp_gradients({}, {.gradients = clamped.list(), .limit = 1.5});
    const auto after = scaled.values(), limited = clamped.values();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      for (std::size_t j = 0; j < before[i].size(); ++j) {
        wrong += after[i][j] != 0.5f * before[i][j];
        wrong += limited[i][j] != std::clamp(unclamped[i][j], -1.5f, 1.5f);
      }
    CHECK(wrong == 0);
  });
}

TEST_CASE("clip kernels: as many gradients as fit into the arguments, and more") {
  for (const std::int64_t count :
       {kGradientsInArguments - 1, kGradientsInArguments, kGradientsInArguments + 1, std::int64_t{300}}) {
    CAPTURE(count);
    Gradients g;
    for (std::int64_t i = 0; i < count; ++i)
      g.add(DType::f32, numbers(1 + i % 5, static_cast<unsigned>(i), 2));
    const auto before = g.values();
    Norm got;
    compute(got, g, 2, 1);
    CHECK(got.total[0] == Approx(g.norm(2)).epsilon(1e-6));
    gpu::launch_scale_gradients({}, {.gradients = g.list(), .factor = got.factor.data()});
    const auto after = g.values();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      for (std::size_t j = 0; j < before[i].size(); ++j) wrong += after[i][j] != before[i][j] * got.factor[0];
    CHECK(wrong == 0);
  }
}

TEST_CASE("clip kernels: squares beyond f32, tiny gradients, infinities, and NaN at any place") {
  for (const double scale : {1e30, 1e-30}) {
    Gradients g;
    g.add(DType::f32, {3 * scale, -4 * scale});
    Norm got;
    compute(got, g, 2, 1);
    CHECK(got.total[0] == Approx(5 * scale).epsilon(1e-6));
  }
  for (const double order : {1.0, 2.0, 3.0, kInfinity})
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{255}, std::size_t{kBlock}, std::size_t{kBlock + 2}})
      for (const double special : {kNaN, -kInfinity}) {
        CAPTURE(order, at, special);
        if (kOnlyRaces && at != 255) continue;
        Values values(static_cast<std::size_t>(kBlock + 3), 0.5);
        values[at] = special;
        Gradients g;
        g.add(DType::f32, {1, 2});
        g.add(DType::f32, values);
        Norm got;
        compute(got, g, order, 1);
        CHECK((std::isnan(special) ? std::isnan(got.total[0]) : got.total[0] == INFINITY));
        CHECK((std::isnan(special) ? std::isnan(got.factor[0]) : got.factor[0] == 0));
      }
  Gradients g;
  g.add(DType::f32, {kNaN, kInfinity, -kInfinity, 1});
  gpu::launch_clamp_gradients({}, {.gradients = g.list(), .limit = 2});
  const auto found = g.values()[0];
  CHECK(std::isnan(found[0]));
  CHECK(std::vector<float>(found.begin() + 1, found.end()) == std::vector<float>{2, -2, 1});
}
