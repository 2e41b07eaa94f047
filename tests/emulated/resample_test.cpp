// The resampling kernel must give the CPU's values in f64 for random matrices with empty, short and long
// rows.
#include "tapestry/kernels/cuda/resample.cuh"

#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

/// A matrix whose rows have from 0 to `longest` entries.
struct Matrix {
  std::int64_t in, out;
  std::vector<std::int32_t> begin{0}, index;
  std::vector<float> weight;
  std::vector<double> exact;

  Matrix(std::int64_t inputs, std::int64_t outputs, unsigned longest, unsigned salt)
      : in(inputs), out(outputs) {
    Random random(salt);
    for (std::int64_t o = 0; o < out; ++o) {
      const std::uint32_t count = (random() >> 8) % (longest + 1);
      for (std::uint32_t k = 0; k < count; ++k) {
        index.push_back(static_cast<std::int32_t>((random() >> 8) % static_cast<std::uint32_t>(in)));
        weight.push_back(static_cast<float>((random() >> 24)) / 64 - 2);
        exact.push_back(static_cast<double>(weight.back()));
      }
      begin.push_back(static_cast<std::int32_t>(index.size()));
    }
  }
};

void check_resample(const std::vector<const Matrix*>& matrices, std::int64_t n, std::int64_t inner) {
  ResampleArgs args{};
  args.n = n, args.inner = inner;
  std::int64_t in = n * inner, out = n * inner;
  for (std::size_t i = 0; i < 3; ++i) {
    const Matrix* const m = matrices[i];
    if (!m) continue;
    args.axes[i].in = m->in, args.axes[i].out = m->out;
    in *= m->in, out *= m->out;
    args.axes[i].begin = m->begin.data(), args.axes[i].index = m->index.data();
    args.axes[i].weight = m->exact.data();
  }
  const Values x = numbers(in, 5, 2);
  Values y(static_cast<std::size_t>(out));
  args.x = x.data(), args.y = y.data();
  kernels::resample(kCPU, DType::f64, args);
  // The sum of the absolute terms of an output is at most (6 entries x 2)^3 x 2.
  const Values error(y.size(), 64 * 12 * 12 * 12 * 2);
  for (std::size_t i = 0; i < 3; ++i)
    if (matrices[i]) args.axes[i].weight = matrices[i]->weight.data();
  for_float_dtypes([&]<class T>() {
    const Block<T> from(x);
    in_each_order([&] {
      const Block<T> to(Values(y.size(), 77));
      args.x = from.data(), args.y = to.data();
      gpu::launch_resample<T>({}, args);
      check_close("y", to, y, error);
    });
  });
}

}  // namespace

TEST_CASE("resample kernel: rows of 0 to 6 entries in all axes give the CPU's values") {
  const Matrix depth(3, 4, 2, 1), height(7, 5, 6, 2), width(9, 11, 4, 3), same(6, 6, 0, 4);
  check_resample({&depth, &height, &width}, 2, 1);
  check_resample({nullptr, &height, &width}, 2, 3);
  check_resample({nullptr, nullptr, &width}, 60, 1);
  check_resample({nullptr, &height, nullptr}, 1, 5);
  check_resample({nullptr, &same, &width}, 1, 2);  // no entries at all: zeros
}

TEST_CASE("resample kernel: an identity between two matrices passes its elements on") {
  const Matrix depth(3, 4, 2, 1), width(9, 11, 4, 3);
  ResampleArgs args{};
  args.n = 2, args.inner = 1;
  args.axes[1].in = args.axes[1].out = 5;
  args.axes[0] = {depth.in, depth.out, depth.begin.data(), depth.index.data(), depth.weight.data()};
  args.axes[2] = {width.in, width.out, width.begin.data(), width.index.data(), width.weight.data()};
  const Block<float> x(numbers(2 * 3 * 5 * 9, 6, 2)), y(2 * 4 * 5 * 11), want(2 * 4 * 5 * 11);
  args.x = x.data(), args.y = want.data();
  kernels::resample(kCPU, DType::f32, args);
  args.y = y.data();
  gpu::launch_resample<float>({}, args);
  check_close("y", y, Values(want.data(), want.data() + want.size()), Values(want.size(), 64 * 100));
}

TEST_CASE("resample kernel: NaN and infinities stay in the outputs that read them") {
  const std::vector<std::int32_t> begin{0, 1, 3, 4}, index{0, 0, 1, 2};
  const std::vector<float> weight{1, 0.5f, 0.5f, 1};
  ResampleArgs args{};
  args.n = args.inner = 1;
  args.axes[2] = {3, 3, begin.data(), index.data(), weight.data()};
  const Block<float> x(Values{kInfinity, 1, kNaN}), y(3);
  args.x = x.data(), args.y = y.data();
  gpu::launch_resample<float>({}, args);
  check_close("y", y, {kInfinity, kInfinity, kNaN}, Values(3));
}
