// Tests that reduction kernels match the CPU's kernels in f64 on every launch path, for ragged sizes and
// extremes.
#include "tapestry/kernels/cuda/reduce.cuh"

#include <cmath>
#include <vector>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using kernels::for_types;
using namespace emulated;

namespace {

/// Multiples of 1/16 in [-8, 8), exact in bf16; for integers, numbers in [0, 128).
Tensor values(const Shape& sizes, unsigned salt, DType dtype) {
  if (is_floating(dtype)) return tensor(numbers(sizes.numel(), salt, 8), sizes).to(dtype);
  Values v(static_cast<std::size_t>(sizes.numel()));
  Random random(salt);
  for (double& x : v) x = random() >> (dtype == DType::boolean ? 31 : 25);
  return tensor(v, sizes).to(dtype);
}

/// `of` converted to f64; broadcast dimensions stay broadcast.
Tensor to_f64(const Tensor& of) {
  Shape sizes = of.sizes();
  for (int d = 0; d < of.dim(); ++d)
    if (of.strides()[d] == 0) sizes[d] = std::min<std::int64_t>(sizes[d], 1);
  Tensor small = of;
  for (int d = 0; d < of.dim(); ++d) small = small.narrow(d, 0, sizes[d]);
  return small.to(DType::f64).expand(of.sizes());
}

Tensor output_of(const Tensor& x, unsigned mask, DType dtype, double poison = 77) {
  Shape sizes;
  for (int d = 0; d < x.dim(); ++d)
    if ((mask >> d & 1) == 0) sizes.push_back(x.sizes()[d]);
  return full(sizes, poison, dtype);
}

/// Checks that |got - want| is at most `units` unit roundoffs of `size` in f32, plus the rounding to got's
/// dtype.
void check_close(const Tensor& got, const Tensor& want, const Tensor& size, double units) {
  const Tensor g = got.to(DType::f64).contiguous();
  std::int64_t bad = 0;
  for (std::int64_t i = 0; i < g.numel(); ++i) {
    const double a = g.data<double>()[i], b = want.data<double>()[i], s = size.data<double>()[i];
    const double unit = got.dtype() == DType::bf16 ? 0x1p-8 : got.dtype() == DType::f16 ? 0x1p-11 : 0x1p-24;
    const bool fits = std::isnan(b)
                          ? std::isnan(a)
                          : a == b || std::abs(a - b) <= 0x1p-24 * units * s + unit * std::abs(b) + 0x1p-126;
    if (fits || ++bad > 3) continue;
    CAPTURE(i, a, b, s);
    CHECK(fits);
  }
  CHECK(bad == 0);
}

using Cpu = std::function<void(const kernels::Reduction&)>;
/// Compares the GPU kernel's reduction of `x` with the CPU's in f64. `size` computes the sum of the terms'
/// magnitudes, which scales the tolerance; if it is null, the result's magnitude does.
template <class Gpu>
void check_reduce(const Tensor& x, unsigned mask, DType out_dtype, double units, const Cpu& cpu,
                  const Gpu& kernel, const Cpu& size = nullptr) {
  CAPTURE(x.sizes(), x.strides(), mask, dtype_name(x.dtype()), dtype_name(out_dtype));
  const Tensor wide = to_f64(x), want = output_of(x, mask, DType::f64);
  cpu(kernels::Reduction(wide, mask, want));
  Tensor scale = abs(want);
  if (size) {
    scale = output_of(x, mask, DType::f64);
    size(kernels::Reduction(abs(wide), mask, scale));
  }
  in_each_order([&] {
    const Tensor got = output_of(x, mask, out_dtype);
    kernel(kernels::Reduction(x, mask, got));
    check_close(got, want, scale, units);
  });
}

template <class T>
void check_sum(const Tensor& x, unsigned mask, double divisor = 1) {
  const auto cpu = [=](const kernels::Reduction& r) { kernels::sum(kCPU, DType::f64, {r, divisor}); };
  const auto kernel = [=](const kernels::Reduction& r) { gpu::launch_sum<T>({}, {r, divisor}); };
  if constexpr (std::is_integral_v<T>) return check_reduce(x, mask, DType::i64, 0, cpu, kernel);
  check_reduce(x, mask, dtype_of<T>, 8, cpu, kernel, cpu);
  if (dtype_of<T> != DType::f32) check_reduce(x, mask, DType::f32, 8, cpu, kernel, cpu);
}
template <class T>
void check_nansum(const Tensor& x, unsigned mask) {
  const auto cpu = [](const kernels::Reduction& r) { kernels::nansum(kCPU, DType::f64, r); };
  check_reduce(
      x, mask, dtype_of<T>, 8, cpu, [](const kernels::Reduction& r) { gpu::launch_nansum<T>({}, r); }, cpu);
}
template <class T>
void check_variance(const Tensor& x, unsigned mask) {
  const Tensor mean = values(output_of(x, mask, DType::f32).sizes(), 5, DType::f32);
  const Tensor wide_mean = mean.to(DType::f64);
  check_reduce(
      x, mask, dtype_of<T>, 16,
      [&](const kernels::Reduction& r) {
        kernels::variance(kCPU, DType::f64, {r, wide_mean, 3});
      },
      [&](const kernels::Reduction& r) {
        gpu::launch_variance<T>({}, {r, mean, 3});
      });
}
template <class T>
void check_logsumexp(const Tensor& x, unsigned mask) {
  Tensor max = output_of(x, mask, DType::f64);
  if (x.numel() > 0) kernels::max(kCPU, DType::f64, {kernels::Reduction(to_f64(x), mask, max), nullptr});
  else max.fill_(-kInfinity);
  const Tensor shift = max.to(DType::f32);
  check_reduce(
      x, mask, dtype_of<T>, 24,
      [&](const kernels::Reduction& r) {
        kernels::logsumexp(kCPU, DType::f64, {r, max});
      },
      [&](const kernels::Reduction& r) {
        gpu::launch_logsumexp<T>({}, {r, shift});
      },
      // The tolerance is relative to 1, because a relative error of the sum is an absolute error of its
      // logarithm.
      [&](const kernels::Reduction& r) { std::fill_n(r.out.as<double>(), r.outputs, 1.0); });
}
template <class T>
void check_norm(const Tensor& x, unsigned mask, double p) {
  CAPTURE(p);
  check_reduce(
      x, mask, dtype_of<T>, p == 0 || std::isinf(p) ? 0 : 32,
      [&](const kernels::Reduction& r) {
        kernels::norm(kCPU, DType::f64, {r, p});
      },
      [&](const kernels::Reduction& r) {
        gpu::launch_norm<T>({}, {r, p});
      });
}
template <class T>
void check_extremes(const Tensor& x, unsigned mask, bool indices) {
  for (const bool largest : {true, false}) {
    const auto& slot = largest ? kernels::max : kernels::min;
    const DType dtype = x.dtype();
    CAPTURE(largest, x.sizes(), x.strides(), mask, dtype_name(dtype));
    const Tensor want = output_of(x, mask, dtype), want_at = output_of(x, mask, DType::i64);
    std::int64_t* const at = want_at.data<std::int64_t>();
    slot(kCPU, dtype, {kernels::Reduction(x, mask, want), indices ? at : nullptr});
    in_each_order([&] {
      const Tensor got = output_of(x, mask, dtype), got_at = output_of(x, mask, DType::i64);
      gpu::launch_extreme<T>(kernels::Reduction(x, mask, got), largest, false,
                             indices ? got_at.data<std::int64_t>() : nullptr, {});
      CHECK(equal(got_at, want_at));
      CHECK(allclose(got.to(DType::f64), want.to(DType::f64), 0, 0, true));
      if (!indices) return;
      const Tensor alone = output_of(x, mask, DType::i64);
      gpu::launch_extreme<T>(kernels::Reduction(x, mask, Tensor()), largest, false,
                             alone.data<std::int64_t>(), {});
      CHECK(equal(alone, want_at));
    });
  }
}

/// Checks every reduction in every dtype.
void check_all(const Shape& sizes, unsigned mask, int layout = 0) {
  CAPTURE(sizes, mask, layout);
  const bool one_dim = (mask & (mask - 1)) == 0;
  for_float_dtypes([&]<class T>() {
    const Tensor x = laid_out(values(sizes, 1, dtype_of<T>), layout);
    check_sum<T>(x, mask);
    check_sum<T>(x, mask, 7);
    check_variance<T>(x, mask);
    check_logsumexp<T>(x, mask);
    check_norm<T>(x, mask, 2);
    if (!kOnlyRaces)
      for (const double p : {0.0, 1.0, 3.0, -0.5}) check_norm<T>(x, mask, p);
    if (x.numel() == 0) return;
    for (const double p : {kInfinity, -kInfinity}) check_norm<T>(x, mask, p);
    check_extremes<T>(x, mask, one_dim);
  });
  for_types<std::int64_t, std::int32_t, std::uint8_t>([&]<class T>() {
    const Tensor x = laid_out(values(sizes, 2, dtype_of<T>), layout);
    check_sum<T>(x, mask);
    if (x.numel() > 0) check_extremes<T>(x, mask, one_dim);
  });
  const Tensor flags = laid_out(values(sizes, 3, DType::boolean), layout);
  check_sum<std::uint8_t>(flags, mask);
  if (flags.numel() > 0) check_extremes<std::uint8_t>(flags, mask, one_dim);
}
/// Checks sums, minima and maxima in f32 and bf16.
void check_some(const Shape& sizes, unsigned mask, int layout = 0) {
  CAPTURE(sizes, mask, layout);
  for_float_dtypes([&]<class T>() {
    const Tensor x = laid_out(values(sizes, 4, dtype_of<T>), layout);
    check_sum<T>(x, mask, 3);
    if (x.numel() > 0) check_extremes<T>(x, mask, (mask & (mask - 1)) == 0);
  });
}

std::string kernels_for(const Tensor& x, unsigned mask) {
  return kernels_of([&] {
    gpu::launch_sum<float>({}, {kernels::Reduction(x, mask, output_of(x, mask, DType::f32)), 1});
  });
}

}  // namespace

TEST_CASE("reductions: every operation and dtype gives the CPU's values on every launch path") {
  check_all({5, 32}, 2);            // rows, packs
  check_all({5, 33}, 2);            // rows, single elements
  check_all({19, 32}, 1);           // columns, packs
  check_all({19, 33}, 1);           // columns, single elements
  check_all({40000}, 1);            // several pieces
  check_all({3, 4, 5, 8}, 0b1010);  // dimensions that cannot be merged
}

TEST_CASE("reductions: rows of any length give the CPU's values") {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 31, 100, 127, 128, 129, 255, 1000, 2052, 2100})
    check_some({3, n}, 2);
  check_some({40, 5}, 2);
  check_some({300, 4}, 2);
}

TEST_CASE("reductions: columns of any length give the CPU's values") {
  for (const std::int64_t n : {1, 2, 7, 8, 9, 64, 65, 130})
    for (const std::int64_t c : {2, 3, 4, 8, 40, 100}) {
      static unsigned calls = 0;
      if (next_choice(calls, 4) == 0 || !kOnlyRaces) check_some({n, c}, 1);
    }
}

TEST_CASE("reductions: any set of dimensions in any layout gives the CPU's sum") {
  for (int layout = 0; layout < kLayouts; ++layout)
    for (unsigned mask = 1; mask < 16; ++mask)
      check_sum<float>(laid_out(values({3, 4, 5, 8}, 4, DType::f32), layout), mask);
  const Tensor nhwc = values({2, 5, 3, 4}, 1, DType::f32).contiguous(MemoryFormat::channels_last);
  for (unsigned mask = 1; mask < 16; ++mask) check_sum<float>(nhwc, mask);
}

TEST_CASE("reductions: long dimensions split into pieces with a tail give the CPU's values") {
  for (const std::int64_t n : {32768, 32771, 50001}) check_some({n}, 1);
  check_some({2, 20012}, 2);
  check_some({2, 20011}, 2);
  check_some({700, 3}, 1);
  check_some({700, 64}, 1);
  check_some({3, 260, 16}, 0b011);
}

TEST_CASE("reductions: no access is outside the elements, whatever the size and alignment") {
  for (const std::size_t n : {1, 5, 127, 1030, 20003})
    for (const std::size_t offset : {0, 1, 4}) {
      const Block<float> x(std::vector<float>(n, 1), offset), out(2);
      const Tensor like = zeros({static_cast<std::int64_t>(n)}), result = zeros({});
      kernels::Reduction r(like, 1, result);
      r.x = x.data(), r.out = out.data();
      gpu::launch_sum<float>({}, {r, 1});
      CHECK(out[0] == static_cast<float>(n));
      CHECK(out[1] == 0);
    }
}

TEST_CASE("reductions: empty inputs give the identity, and empty outputs launch nothing") {
  for (const Shape& sizes : {Shape{3, 0}, Shape{0}, Shape{2, 0, 3}}) {
    check_all(sizes, sizes.size() == 1 ? 1 : 2);
    check_all(sizes, (1u << sizes.size()) - 1);
  }
  cuda_emulator::take_launches();
  check_all({0, 3}, 2);
  CHECK(cuda_emulator::take_launches().empty());
}

TEST_CASE("reductions: infinities and NaN propagate, and small terms are not lost in f32") {
  std::vector<double> v(6 * 300, 0.0625);
  const auto row = [&](int i) { return &v[static_cast<std::size_t>(i) * 300]; };
  row(1)[17] = kInfinity;
  row(2)[299] = -kInfinity;
  row(3)[0] = kNaN, row(3)[150] = kInfinity;
  std::fill_n(row(4), 300, -kInfinity);
  row(5)[7] = kNaN, row(5)[200] = kNaN;
  const Tensor x = tensor(v, {6, 300});
  for_types<float, BFloat16>([&]<class T>() {
    for (const Tensor& t : {x.to(dtype_of<T>), x.to(dtype_of<T>).transpose(0, 1)}) {
      const unsigned mask = t.sizes()[0] == 6 ? 2 : 1;
      check_sum<T>(t, mask);
      check_nansum<T>(t, mask);
      check_logsumexp<T>(t, mask);
      check_variance<T>(t, mask);
      check_extremes<T>(t, mask, true);
      for (const double p : {0.0, 1.0, 2.0, -0.5, kInfinity, -kInfinity}) check_norm<T>(t, mask, p);
    }
  });
  // The sum 1 + 70000 * 2^-25 must not lose the small terms. A running sum in f32 would stay 1.
  const Tensor small = full({70001}, 0x1p-25, DType::f32);
  small.data<float>()[0] = 1;
  check_sum<float>(small, 1);
}

TEST_CASE("reductions: sums of whole numbers are rounded only once") {
  // The elements are whole numbers. Their partial sums in f32 stay below 2^24 and are exact. The total in f64
  // is exact too.
  const auto whole = [](const Shape& sizes) {
    std::vector<float> v(static_cast<std::size_t>(sizes.numel()));
    Random random(5);
    for (float& x : v) x = static_cast<float>(random() >> 13);
    return tensor(v, sizes);
  };
  for (const Tensor& x : {whole({3, 2001}), whole({2, 40000}), whole({5000, 8})}) {
    const unsigned mask = x.sizes()[0] < 5000 ? 2 : 1;
    const Tensor got = output_of(x, mask, DType::f32);
    gpu::launch_sum<float>({}, {kernels::Reduction(x, mask, got), 1});
    CHECK(equal(got, x.to(DType::f64).sum(mask == 2 ? 1 : 0).to(DType::f32)));
  }
}

TEST_CASE("reductions: more than 32 pieces are all merged") {
  const Tensor x = values({140001}, 6, DType::i64);
  check_sum<std::int64_t>(x, 1);
  x.data<std::int64_t>()[139000] = 1000;
  check_extremes<std::int64_t>(x, 1, true);
}

TEST_CASE("reductions: minima and maxima return the first of equal elements") {
  for (const Shape& sizes : {Shape{3, 200}, Shape{3, 4100}, Shape{200, 3}, Shape{200, 64}}) {
    const unsigned mask = sizes[0] == 3 ? 2 : 1;
    for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([&]<class T>() {
      if (kOnlyRaces && !std::is_same_v<T, float>) return;
      Tensor x = full(sizes, 2, dtype_of<T>);
      check_extremes<T>(x, mask, true);
      const Tensor part = x.narrow(mask == 2 ? 1 : 0, 150, 50);
      part.fill_(3);
      check_extremes<T>(x, mask, true);
      part.fill_(1);
      check_extremes<T>(x, mask, true);
    });
  }
  const Tensor extremes = tensor(std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min(),
                                                           std::numeric_limits<std::int64_t>::max(), 0,
                                                           std::numeric_limits<std::int64_t>::min()});
  check_extremes<std::int64_t>(extremes, 1, true);
  check_extremes<float>(full({5}, -kInfinity, DType::f32), 1, true);
  check_extremes<float>(full({5}, kInfinity, DType::f32), 1, true);
}

TEST_CASE("reductions: integer sums wrap as on the CPU") {
  const Tensor x = tensor(std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max(), 1, 1});
  const Tensor want = zeros({}, DType::i64), got = zeros({}, DType::i64);
  kernels::sum(kCPU, DType::i64, {kernels::Reduction(x, 1, want), 1});
  gpu::launch_sum<std::int64_t>({}, {kernels::Reduction(x, 1, got), 1});
  CHECK(equal(got, want));
}

TEST_CASE("reductions: shape, strides and alignment choose the kernel") {
  const auto check = [&](const Tensor& x, unsigned mask, const std::string& kernel) {
    CHECK_THAT(kernels_for(x, mask), ContainsSubstring(kernel) && !ContainsSubstring("merge_pieces"));
  };
  check(zeros({4, 64}), 2, "reduce_rows");
  check(zeros({4, 64}), 2, "fLi4E");
  check(zeros({4, 63}), 2, "fLi1E");
  check(laid_out(zeros({4, 64}), 5), 2, "fLi1E");
  check(zeros({64, 4}), 1, "reduce_columns");
  check(zeros({64, 4}), 1, "fLi4E");
  check(zeros({64, 5}), 1, "fLi1E");
  CHECK_THAT(kernels_for(zeros({70000}), 1),
             ContainsSubstring("reduce_rows") && ContainsSubstring("merge_pieces"));
  CHECK_THAT(kernels_for(zeros({5000, 8}), 1),
             ContainsSubstring("reduce_columns") && ContainsSubstring("merge_pieces"));
  // In channels-last memory, channels are contiguous although they are not the last dimension.
  check(zeros({4, 8, 3, 3}).contiguous(MemoryFormat::channels_last), 1, "reduce_columns");
  check(zeros({4, 8, 3, 3}).contiguous(MemoryFormat::channels_last), 0b1101, "reduce_columns");
  check(zeros({4, 8, 3, 3}), 0b1101, "reduce_rows");
}

TEST_CASE("reductions: WideDivisor and Dims are exact beyond 32 bits") {
  for (const std::int64_t d : {std::int64_t{1}, std::int64_t{3}, std::int64_t{0x7fffffff},
                               std::int64_t{5000000000}, std::int64_t{1} << 61}) {
    const gpu::WideDivisor division(d);
    for (const std::uint64_t n :
         {std::uint64_t{0}, std::uint64_t{0x7fffffff}, std::uint64_t{0x80000000}, std::uint64_t{5000000001},
          std::uint64_t{1} << 60, (std::uint64_t{1} << 63) - 1})
      CHECK(division.divide(n) == n / static_cast<std::uint64_t>(d));
  }
  gpu::Dims<2> dims;
  dims.ndim = 3;
  const std::int64_t sizes[] = {7, 3000000000, 5};
  for (int d = 0; d < 3; ++d) {
    dims.sizes[d] = gpu::WideDivisor(sizes[d]);
    dims.strides[0][d] = 1 << d, dims.strides[1][d] = 1000 + d;
  }
  std::int64_t at[2];
  dims.offsets((std::uint64_t{2} * 3000000000 + 2999999999) * 5 + 3, at);
  CHECK(at[0] == 2 * 1 + 2999999999 * 2 + 3 * 4);
  CHECK(at[1] == 2 * 1000 + 2999999999 * 1001 + 3 * 1002);
}

TEST_CASE("norm_backward kernel: zeros, infinities and NaN give the CPU's gradient") {
  for_types<float, BFloat16>([]<class T>() {
    const Tensor x = values({6, 20}, 1, dtype_of<T>), g = values({6, 20}, 2, dtype_of<T>),
                 out = zeros({6, 20}, dtype_of<T>);
    const Tensor special = tensor({0.0, -0.0, kInfinity, -kInfinity, kNaN, 2.0}).to(dtype_of<T>);
    x.narrow(1, 3, 1).squeeze(1).copy_(special);
    for (const double p : {0.0, 1.0, 2.0, 3.0, 0.5, -1.0, kInfinity, -kInfinity}) {
      const Tensor norms = values({6, 1}, 3, dtype_of<T>).abs();
      norms.narrow(0, 1, 1).fill_(0);
      norms.narrow(0, 4, 1).fill_(kNaN);
      norms.narrow(0, 5, 1).fill_(2);
      for (const Tensor& norm : {norms.expand({6, 20}), norms.expand({6, 20}).contiguous()}) {
        CAPTURE(p, dtype_name(dtype_of<T>));
        compare<4>(
            out, {&out, &x, &norm, &g}, p < 3 && p > 0.5 ? 1 : 16,
            [&](const Elementwise<4>& e) {
              kernels::norm_backward(kCPU, dtype_of<T>, {e, p});
            },
            [&](const Elementwise<4>& e) {
              gpu::launch_norm_backward<T>({}, {e, p});
            });
      }
    }
  });
}

TEST_CASE("reduce kernels: sums in f16 are those of the CPU in f64, rounded once") {
  struct Case {
    Shape sizes;
    unsigned mask;
  };
  // Rows and columns, by packs and by single elements, and sums in several pieces.
  for (const Case& c :
       {Case{{5, 32}, 2}, Case{{5, 33}, 2}, Case{{19, 32}, 1}, Case{{19, 33}, 1}, Case{{40000}, 1}}) {
    const Tensor x = values(c.sizes, 1, DType::f16);
    check_sum<Half>(x, c.mask, 7);
    check_nansum<Half>(x, c.mask);
    if (x.numel() < 40000) check_variance<Half>(x, c.mask);  // a larger sum of squares is infinite in f16
  }
}
