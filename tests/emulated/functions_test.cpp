// Elementwise arithmetic and functions against the CPU's kernels.
#include "tapestry/kernels/cuda/functions.cuh"

#include "tests/emulated/elementwise.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using kernels::BinarySlot, kernels::ScalarSlot, kernels::UnarySlot, kernels::for_types;
using namespace emulated;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Numbers of all sizes and signs, zeros, infinities and NaN.
Tensor values(const Shape& sizes, unsigned salt, DType dtype, bool special = true) {
  std::int64_t n = 1;
  for (int d = 0; d < sizes.size(); ++d) n *= sizes[d];
  const float specials[] = {0.0f,       -0.0f, 1.0f,  -1.0f,   0.5f,  kInfinity,
                            -kInfinity, NAN,   1e30f, -1e-30f, 88.0f, -88.0f};
  std::vector<float> v(static_cast<std::size_t>(n));
  std::uint32_t state = salt + 99;
  for (std::size_t i = 0; i < v.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    v[i] = (static_cast<float>(state >> 16) - 32768) / 8192;
    if (special && (state >> 8) % 4 == 0) v[i] = specials[(state >> 10) % std::size(specials)];
  }
  return tensor(v, sizes).to(dtype);
}

template <class T, class F>
void check_unary(const UnarySlot& slot, const Tolerance& error) {
  const auto check = [&](const Tensor& out, const Tensor& x) {
    CAPTURE(slot.name(), dtype_name(dtype_of<T>));
    compare<2>(
        out, {&out, &x}, error, [&](const Elementwise<2>& e) { slot(kCPU, dtype_of<T>, e); },
        [&](const Elementwise<2>& e) { gpu::launch_unary<T, F>(e, nullptr); });
  };
  check(zeros({1003}, dtype_of<T>), values({1003}, 1, dtype_of<T>));
  check(zeros({6, 7}, dtype_of<T>), laid_out(values({6, 7}, 2, dtype_of<T>), 1));
}
template <class T, class F>
void check_binary(const BinarySlot& slot, const Tolerance& error, bool special = true) {
  const auto check = [&](const Tensor& out, const Tensor& a, const Tensor& b) {
    CAPTURE(slot.name(), dtype_name(dtype_of<T>));
    compare<3>(
        out, {&out, &a, &b}, error, [&](const Elementwise<3>& e) { slot(kCPU, dtype_of<T>, e); },
        [&](const Elementwise<3>& e) { gpu::launch_binary<T, F>(e, nullptr); });
  };
  check(zeros({507}, dtype_of<T>), values({507}, 3, dtype_of<T>, special),
        values({507}, 4, dtype_of<T>, special));
  for (int a = 0; a < kLayouts; ++a)
    for (int b = 0; b < kLayouts; ++b) {
      CAPTURE(a, b);
      check(zeros({3, 16}, dtype_of<T>), laid_out(values({3, 16}, 5, dtype_of<T>, special), a),
            laid_out(values({3, 16}, 6, dtype_of<T>, special), b));
    }
}
template <class T, class F>
void check_scalar(const ScalarSlot& slot, const Tolerance& error) {
  for (const double s : {0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -2.5, 1e30})
    for (const int layout : {0, 2}) {
      const Tensor x = laid_out(values({5, 21}, 7, dtype_of<T>), layout), out = zeros({5, 21}, dtype_of<T>);
      CAPTURE(slot.name(), dtype_name(dtype_of<T>), s);
      compare<2>(
          out, {&out, &x}, error, [&](const Elementwise<2>& e) { slot(kCPU, dtype_of<T>, e, s); },
          [&](const Elementwise<2>& e) { gpu::launch_scalar<T, F>(e, s, nullptr); });
    }
}

/// In bf16 two results that differ by a rounding of f32 may round apart: 2 units of bf16.
template <class T>
double units(double of_f32) {
  return std::is_same_v<T, float> ? of_f32 : of_f32 > 0 ? 2 : 0;
}

}  // namespace

TEST_CASE("elementwise kernels: arithmetic") {
  for_types<float, BFloat16>([]<class T>() {
    check_binary<T, gpu::Add>(kernels::add, 0);
    check_binary<T, gpu::Sub>(kernels::sub, 0);
    check_binary<T, gpu::Mul>(kernels::mul, 0);
    check_binary<T, gpu::Div>(kernels::div, 0);
    check_binary<T, gpu::Maximum>(kernels::maximum, 0);
    check_binary<T, gpu::Minimum>(kernels::minimum, 0);
    check_binary<T, gpu::Pow>(kernels::pow, units<T>(4));
    check_scalar<T, gpu::WithScalar<gpu::Add>>(kernels::add_scalar, 0);
    check_scalar<T, gpu::WithScalar<gpu::Mul>>(kernels::mul_scalar, 0);
    check_scalar<T, gpu::WithScalar<gpu::Div>>(kernels::div_scalar, 0);
    check_scalar<T, gpu::ScalarWith<gpu::Sub>>(kernels::rsub_scalar, 0);
    check_scalar<T, gpu::ScalarWith<gpu::Div>>(kernels::rdiv_scalar, 0);
    check_scalar<T, gpu::PowScalar>(kernels::pow_scalar, units<T>(4));
  });
}

TEST_CASE("elementwise kernels: functions") {
  for_types<float, BFloat16>([]<class T>() {
    check_unary<T, gpu::Neg>(kernels::neg, 0);
    check_unary<T, gpu::Abs>(kernels::abs, 0);
    check_unary<T, gpu::Relu>(kernels::relu, 0);
    check_unary<T, gpu::Exp>(kernels::exp, units<T>(8));
    check_unary<T, gpu::Log>(kernels::log, units<T>(8));
    check_unary<T, gpu::Sqrt>(kernels::sqrt, 0);
    check_unary<T, gpu::Rsqrt>(kernels::rsqrt, units<T>(4));
    check_unary<T, gpu::Tanh>(kernels::tanh, units<T>(8));
    check_unary<T, gpu::Sigmoid<T>>(kernels::sigmoid, units<T>(8));
    check_unary<T, gpu::Silu<T>>(kernels::silu, units<T>(8));
    // Their tails are exponentials of x^2 / 2, whose rounding they carry.
    check_unary<T, gpu::Gelu<T>>(kernels::gelu, units<T>(64));
    check_unary<T, gpu::GeluTanh<T>>(kernels::gelu_tanh, units<T>(64));
  });
}

TEST_CASE("elementwise kernels: gradients") {
  for_types<float, BFloat16>([]<class T>() {
    check_binary<T, gpu::ReluBackward>(kernels::relu_backward, 0);
    // Differences: near their zeros the terms' roundings remain, fused or not.
    check_binary<T, gpu::TanhBackward>(kernels::tanh_backward, {units<T>(8), 256}, false);
    check_binary<T, gpu::SigmoidBackward>(kernels::sigmoid_backward, {units<T>(8), 256}, false);
    check_binary<T, gpu::SqrtBackward>(kernels::sqrt_backward, 0);
    check_binary<T, gpu::RsqrtBackward>(kernels::rsqrt_backward, units<T>(4));
    check_binary<T, gpu::AbsBackward>(kernels::abs_backward, 0);
    check_binary<T, gpu::SiluBackward<T>>(kernels::silu_backward, {units<T>(8), 64}, false);
    check_binary<T, gpu::GeluBackward<T>>(kernels::gelu_backward, {units<T>(8), 64}, false);
    check_binary<T, gpu::GeluTanhBackward<T>>(kernels::gelu_tanh_backward, {units<T>(8), 64}, false);
  });
}

TEST_CASE("elementwise kernels: clamp, with either limit, both, or NaN") {
  using Limit = std::optional<Scalar>;
  for_types<float, BFloat16>([]<class T>() {
    for (const Limit& lo : {Limit(), Limit(-0.5), Limit(2.0), Limit(NAN)})
      for (const Limit& hi : {Limit(), Limit(0.5), Limit(-1.0), Limit(NAN)}) {
        if (!lo && !hi) continue;
        for (const int layout : {0, 1}) {
          const Tensor x = laid_out(values({7, 31}, 8, dtype_of<T>), layout);
          const Tensor dy = values({7, 31}, 9, dtype_of<T>, false), out = zeros({7, 31}, dtype_of<T>);
          compare<2>(
              out, {&out, &x}, 0,
              [&](const Elementwise<2>& e) { kernels::clamp(kCPU, dtype_of<T>, e, lo, hi); },
              [&](const Elementwise<2>& e) { gpu::launch_clamp<T>(e, lo, hi, nullptr); });
          compare<3>(
              out, {&out, &dy, &x}, 0,
              [&](const Elementwise<3>& e) { kernels::clamp_backward(kCPU, dtype_of<T>, e, lo, hi); },
              [&](const Elementwise<3>& e) { gpu::launch_clamp_backward<T>(e, lo, hi, nullptr); });
        }
      }
  });
}

TEST_CASE("elementwise kernels: the output may be an input") {
  const Tensor a = values({301}, 10, DType::f32, false), b = values({301}, 11, DType::f32, false);
  compare<3>(
      a, {&a, &a, &b}, 0, [](const Elementwise<3>& e) { kernels::mul(kCPU, DType::f32, e); },
      [](const Elementwise<3>& e) { gpu::launch_binary<float, gpu::Mul>(e, nullptr); });
}

TEST_CASE("elementwise kernels: 16 bytes at a time where memory allows it") {
  const auto kernel = [](const Tensor& out, const Tensor& a, const Tensor& b) {
    cuda_emulator::take_launches();
    const Tensor* const operands[] = {&out, &a, &b};
    gpu::launch_binary<float, gpu::Add>(kernels::plan(operands), nullptr);
    const auto launches = cuda_emulator::take_launches();
    REQUIRE(launches.size() == 1);
    return launches[0].kernel;
  };
  const Tensor x = zeros({8, 12}), y = zeros({8, 12});
  CHECK_THAT(kernel(y, x, x), ContainsSubstring("map_packsILi4E"));
  CHECK_THAT(kernel(y, x, laid_out(x, 3)), ContainsSubstring("map_packsILi4E"));  // a bias
  CHECK_THAT(kernel(y, laid_out(x, 4), x), ContainsSubstring("map_packsILi4E"));
  CHECK_THAT(kernel(zeros({50}), zeros({50}), zeros({50})), ContainsSubstring("map_packsILi4E"));
  CHECK_THAT(kernel(y, x, laid_out(x, 5)), ContainsSubstring("map_elements"));
  CHECK_THAT(kernel(y, x, laid_out(x, 1)), ContainsSubstring("map_elements"));
}
