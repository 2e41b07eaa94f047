#pragma once
// Softmax in f16, with fewer kernels than f32 and bf16 have, because each takes time to compile: rows of up
// to 4096 elements in registers, longer rows streamed, also if they are few, and columns.
#include "tapestry/kernels/cuda/softmax.cuh"

namespace tapestry::kernels::cuda {

template <class Op, int V>
void launch_rows_f16(const RowInputs<Half, Op::kInputs>& in, Half* out, std::int64_t rows, std::int64_t n,
                     cudaStream_t stream) {
  const auto blocks = [&](std::int64_t rows_per_block) {
    return static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
  };
  const int count = static_cast<int>(std::min<std::int64_t>(n, 1 << 30));
  if (n <= 32 * 8)
    launch(&row_in_registers<Op, Half, 32, 8, V>, blocks(4), {32, 4}, 0, stream, in, out, rows, count);
  else if (n <= 256 * 16)
    launch(&row_in_registers<Op, Half, 256, 16, V>, blocks(1), 256, 0, stream, in, out, rows, count);
  else launch(&row_streamed<Op, Half, V>, blocks(1), 512, 0, stream, in, out, n);
}

/// As launch_softmax().
template <class Op>
void launch_softmax_f16(const SoftmaxShape& shape, const RowInputs<Half, Op::kInputs>& in, Half* out,
                        const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  if (shape.outer * shape.n * shape.inner == 0) return;
  if (shape.inner > 1) {
    const std::int64_t tiles = (shape.inner + 31) / 32;
    return launch(&columns<Op, Half>, static_cast<unsigned>(shape.outer * tiles), {32, kColumnThreads}, 0,
                  stream, in, out, shape.n, shape.inner, tiles);
  }
  constexpr int V = 8;
  bool packs = shape.n % V == 0 && aligned<Half, V>(out);
  for (const Half* x : in.x) packs = packs && aligned<Half, V>(x);
  if (packs) launch_rows_f16<Op, V>(in, out, shape.outer, shape.n, stream);
  else launch_rows_f16<Op, 1>(in, out, shape.outer, shape.n, stream);
}

template <bool log>
void launch_softmax_f16_forward(const LaunchContext& context, const SoftmaxArgs& a) {
  launch_softmax_f16<SoftmaxForward<Half, log>>(a.shape, {{a.x.as<Half>()}}, a.y.as<Half>(), context);
}
template <bool log>
void launch_softmax_f16_backward(const LaunchContext& context, const SoftmaxBackwardArgs& a) {
  launch_softmax_f16<SoftmaxBackward<Half, log>>(a.shape, {{a.y.as<Half>(), a.dy.as<Half>()}},
                                                 a.dx.as<Half>(), context);
}

}  // namespace tapestry::kernels::cuda
