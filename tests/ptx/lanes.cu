// The kernels of lanes.h.
#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/cuda/mma.cuh"
#include "tests/ptx/lanes.h"

namespace ptx_test {
namespace {

struct Buffers {
  const std::uint32_t* in;
  std::uint32_t* out;
};

template <int N>
__device__ __forceinline__ void copy_words(std::uint32_t* to, const std::uint32_t* from) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from[i];
}
__device__ __forceinline__ float as_float(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
__device__ __forceinline__ std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

/// If `read` is false, returns an invalid address. Kernels pass such addresses too, for elements outside
/// their operands.
__device__ __forceinline__ const void* source(const std::uint32_t* p, bool read) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return reinterpret_cast<const void*>(read ? address : address ^ 0xabcd'0000'0000'0000u);
}

template <Instruction kInstruction>
__global__ void __launch_bounds__(32) lanes(Buffers buffers) {
  namespace ptx = tapestry::kernels::cuda::ptx;
  using enum Instruction;
  constexpr int kIn = words_in(kInstruction), kOut = words_out(kInstruction);
  __shared__ uint4 rows[64];
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  const std::uint32_t* const in = buffers.in + at * kIn;
  std::uint32_t* const out = buffers.out + at * kOut;
  if constexpr (kInstruction == mma || kInstruction == mma_f16) {
    std::uint32_t a[4], b[2];
    float d[4];
    copy_words<4>(a, in);
    copy_words<2>(b, in + 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = as_float(in[6 + i]);
    if constexpr (kInstruction == mma_f16) ptx::mma_m16n8k16_f16(d, a, b);
    else ptx::mma_m16n8k16_bf16(d, a, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = as_bits(d[i]);
  } else if constexpr (kInstruction == cp_async) {
    const bool first = (in[8] & 1) != 0, second = (in[8] & 2) != 0;
    ptx::cp_async16(&rows[lane], source(in, first), first);
    ptx::cp_async_commit();
    ptx::cp_async16(&rows[32 + lane], source(in + 4, second), second);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    copy_words<4>(out, reinterpret_cast<const std::uint32_t*>(&rows[lane]));
    ptx::cp_async_wait<0>();
    copy_words<4>(out + 4, reinterpret_cast<const std::uint32_t*>(&rows[32 + lane]));
  } else if constexpr (kInstruction == cp_async4) {
    const bool read = (in[1] & 1) != 0;
    ptx::cp_async4(&rows[lane].y, source(in, read), read);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    *out = rows[lane].y;
  } else if constexpr (kInstruction == bf16_pair) {
    *out = ptx::to_bf16_pair(as_float(in[0]), as_float(in[1]));
  } else if constexpr (kInstruction == f16_pair) {
    *out = ptx::to_f16_pair(as_float(in[0]), as_float(in[1]));
  } else if constexpr (kInstruction == to_bf16) {
    *out = ptx::to_bf16_bits(as_float(*in));
  } else if constexpr (kInstruction == to_f16) {
    *out = ptx::to_f16_bits(as_float(*in));
  } else if constexpr (kInstruction == from_f16) {
    *out = as_bits(ptx::from_f16_bits(static_cast<std::uint16_t>(*in)));
  } else if constexpr (kInstruction == power_of_2) {
    *out = as_bits(ptx::exp2_approx(as_float(*in)));
  } else {
    rows[lane] = {in[0], in[1], in[2], in[3]};
    __syncthreads();
    const uint4* const row = &rows[in[4]];
    std::uint32_t r[kOut];
    if constexpr (kInstruction == ldmatrix_x4) ptx::ldmatrix_x4(r, row);
    if constexpr (kInstruction == ldmatrix_x2) ptx::ldmatrix_x2(r, row);
    if constexpr (kInstruction == ldmatrix_x4_trans) ptx::ldmatrix_x4_trans(r, row);
    if constexpr (kInstruction == ldmatrix_x2_trans) ptx::ldmatrix_x2_trans(r, row);
    copy_words<kOut>(out, r);
  }
}

void launch_lanes(Instruction instruction, int cases, Buffers buffers, cudaStream_t stream) {
  using enum Instruction;
  const auto start = [&](void (*kernel)(Buffers)) {
    tapestry::kernels::cuda::launch(kernel, static_cast<unsigned>(cases), 32, 0, stream, buffers);
  };
  switch (instruction) {
    case mma:
      return start(&lanes<mma>);
    case mma_f16:
      return start(&lanes<mma_f16>);
    case ldmatrix_x4:
      return start(&lanes<ldmatrix_x4>);
    case ldmatrix_x2:
      return start(&lanes<ldmatrix_x2>);
    case ldmatrix_x4_trans:
      return start(&lanes<ldmatrix_x4_trans>);
    case ldmatrix_x2_trans:
      return start(&lanes<ldmatrix_x2_trans>);
    case cp_async:
      return start(&lanes<cp_async>);
    case cp_async4:
      return start(&lanes<cp_async4>);
    case bf16_pair:
      return start(&lanes<bf16_pair>);
    case f16_pair:
      return start(&lanes<f16_pair>);
    case to_bf16:
      return start(&lanes<to_bf16>);
    case to_f16:
      return start(&lanes<to_f16>);
    case from_f16:
      return start(&lanes<from_f16>);
    case power_of_2:
      return start(&lanes<power_of_2>);
  }
}

int count_cases(Instruction instruction, const Words& in) {
  return static_cast<int>(in.size() / 32) / words_in(instruction);
}

}  // namespace
Words run_on_gpu(Instruction instruction, const Words& in) {
  using namespace tapestry;
  const Device gpu(DeviceType::cuda);
  const int cases = count_cases(instruction, in);
  Words out(static_cast<std::size_t>(cases * 32 * words_out(instruction)), 0xdeadbeef);
  const auto on_gpu = [&](const Words& words) {
    const Tensor t = empty({static_cast<std::int64_t>(words.size())}, {DType::i32, gpu});
    tapestry::cuda::copy_bytes(gpu, t.raw_data(), kCPU, words.data(), t.nbytes());
    return t;
  };
  const Tensor x = on_gpu(in), y = on_gpu(out);
  const Stream stream = current_stream(gpu);
  launch_lanes(instruction, cases,
               {static_cast<const std::uint32_t*>(x.raw_data()), static_cast<std::uint32_t*>(y.raw_data())},
               static_cast<cudaStream_t>(stream.native()));
  stream.synchronize();
  tapestry::cuda::copy_bytes(kCPU, out.data(), gpu, y.raw_data(), y.nbytes());
  return out;
}

}  // namespace ptx_test
