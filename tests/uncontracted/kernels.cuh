#pragma once
// Kernels that two compilers compile without contracting products and sums to fused multiply-adds: nvcc
// (-fmad=false) to PTX for the machine, and g++ (-ffp-contract=off) for the emulator. Then both must give the
// same bits (kernels_test.cpp). Kernels that call exp, log and the like are not here, since the two
// compilers take these functions from different libraries, nor those with approximate instructions, whose
// last bits the PTX manual leaves open.
#include "tapestry/kernels/cuda/matmul_f32.cuh"
#include "tapestry/kernels/cuda/norm_layer.cuh"
#include "tapestry/kernels/cuda/optim.cuh"
#include "tapestry/kernels/cuda/softmax.cuh"

namespace uncontracted {

using tapestry::kernels::cuda::Pack;

/// y += a x, in f32 or f64.
template <class T>
__global__ void __launch_bounds__(128) axpy(int n, T a, const T* x, T* y) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = a * x[i] + y[i];
}

/// The complex quotient x / y, and a polynomial of its size by Horner's rule: products, sums, a division and
/// a root. x, y and out are pairs (real, imaginary).
template <class T>
__global__ void __launch_bounds__(128) complex_quotients(int n, const T* x, const T* y, T* out, T* sizes) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const T a = x[2 * i], b = x[2 * i + 1], c = y[2 * i], d = y[2 * i + 1], square = c * c + d * d;
  const T re = (a * c + b * d) / square, im = (b * c - a * d) / square;
  out[2 * i] = re;
  out[2 * i + 1] = im;
  T p = static_cast<T>(0.0312);
  const T size = std::sqrt(re * re + im * im);
  for (int k = 1; k < 6; ++k) p = p * size + static_cast<T>(0.31) * static_cast<T>(k) - static_cast<T>(0.8);
  sizes[i] = p;
}

/// The sum of x y over all elements, for add_elements() and add_parts().
struct Dot {
  static constexpr int kSums = 1, kPack = 4;
  const float *x, *y;
  double* out;
  template <int V>
  __device__ __forceinline__ void add(std::int64_t i, float (&sums)[1]) const {
    const auto a = *reinterpret_cast<const Pack<float, V>*>(x + i),
               b = *reinterpret_cast<const Pack<float, V>*>(y + i);
    UNROLL for (int j = 0; j < V; ++j) sums[0] += a.v[j] * b.v[j];
  }
  __device__ __forceinline__ void finish(const double (&sums)[1]) const { *out = sums[0]; }
};

/// Conversions, comparisons and integers: nothing here rounds twice.
template <class = void>
__global__ void __launch_bounds__(128) mixed(int n, const double* x, const float* f, std::int64_t* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const auto narrow = static_cast<float>(x[i]);
  std::int64_t sum = static_cast<std::int64_t>(x[i] * 1000.5) * 1000003;
  sum ^= static_cast<std::int64_t>(static_cast<std::int32_t>(f[i])) << 17;
  sum += narrow < f[i] ? 7 : narrow == f[i] ? 11 : 13;
  sum += static_cast<std::int64_t>(fmaxf(narrow, f[i]) * 64.0f) % 97;
  sum ^= static_cast<std::int64_t>(rintf(f[i] * 3.5f)) * 31 + static_cast<std::int64_t>(floor(x[i]));
  out[i] = sum + __popc(static_cast<unsigned>(sum)) + __clz(static_cast<int>(sum | 1));
}

}  // namespace uncontracted
