#pragma once
// Scans of rows (kernels/scan.h). A block scans a piece of a row, one tile after another: each thread joins
// kScanEach adjacent elements, the block scans the threads' States in shared memory (Hillis and Steele 1986),
// and each thread applies the State before its elements. If rows are few, several blocks share each row: a
// first launch computes the States of the pieces, and each block of a second launch joins those before its
// piece. The results depend only on the shape.
#include <algorithm>

#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/scan.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr int kScanThreads = 256, kScanEach = 4;
/// The target number of blocks, and the limit of pieces per row.
inline constexpr std::int64_t kScanBlocks = 1024, kScanPieces = 64;

/// Scans one piece of `piece` elements per block. A tile has kScanEach elements per thread. If `totals` is
/// not null, writes only the State of the piece to totals. Otherwise, `before` has the States of all pieces,
/// or is null if a row is one piece.
template <class Op>
__global__ void __launch_bounds__(kScanThreads)
    scan_rows(Op op, WideDivisor pieces, std::int64_t piece, const typename Op::State* before,
              typename Op::State* totals) {
  using State = typename Op::State;
  __shared__ State shared[2][kScanThreads];
  const auto row = static_cast<std::int64_t>(pieces.divide(blockIdx.x));
  const std::int64_t own = blockIdx.x - row * static_cast<std::int64_t>(pieces.value);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  State carry = Op::identity();
  if (before)
    for (std::int64_t p = 0; p < own; ++p) carry = op.join(carry, before[blockIdx.x - own + p]);
  const std::int64_t end = (own + 1) * piece < op.n ? (own + 1) * piece : op.n;
  for (std::int64_t tile = own * piece; tile < end; tile += threads * kScanEach) {
    const std::int64_t first = tile + thread * kScanEach;
    State each[kScanEach], total = Op::identity();
#pragma unroll
    for (int i = 0; i < kScanEach; ++i) {
      const std::int64_t step = first + i, at = op.reverse ? op.n - 1 - step : step;
      each[i] = step < end ? op.at(row * op.n + at, at) : Op::identity();
      total = op.join(total, each[i]);
    }
    int now = 0;
    shared[0][thread] = total;
    for (int distance = 1; distance < threads; distance *= 2) {
      __syncthreads();
      if (thread >= distance) total = op.join(shared[now][thread - distance], total);
      now = 1 - now;
      shared[now][thread] = total;
    }
    __syncthreads();
    if (!totals) {
      State s = thread > 0 ? op.join(carry, shared[now][thread - 1]) : carry;
#pragma unroll
      for (int i = 0; i < kScanEach; ++i) {
        const std::int64_t step = first + i, at = op.reverse ? op.n - 1 - step : step;
        s = op.join(s, each[i]);
        if (step < end) op.put(row * op.n + at, at, s);
      }
    }
    carry = op.join(carry, shared[now][threads - 1]);
    __syncthreads();  // before the next tile overwrites `shared`
  }
  if (totals && thread == 0) totals[blockIdx.x] = carry;
}

template <class Op, class Args>
void launch_scan(const LaunchContext& context, const Args& a) {
  using State = typename Op::State;
  const Op op(a);
  if (a.rows == 0 || a.n == 0) return;
  int threads = 32;  // short rows need fewer
  while (threads < kScanThreads && threads * kScanEach < a.n) threads *= 2;
  const std::int64_t tile = threads * kScanEach, tiles = (a.n + tile - 1) / tile;
  const std::int64_t most = std::min(kScanPieces, std::max<std::int64_t>(tiles / 4, 1));
  std::int64_t pieces = std::clamp<std::int64_t>(kScanBlocks / a.rows, 1, most);
  const std::int64_t piece = (tiles + pieces - 1) / pieces * tile;
  pieces = (a.n + piece - 1) / piece;
  Scratch<State> scratch;
  if (pieces > 1) scratch = Scratch<State>(context.device, a.rows * pieces);
  const auto blocks = static_cast<unsigned>(a.rows * pieces);
  if (pieces > 1)
    launch(&scan_rows<Op>, blocks, threads, 0, stream_of(context), op, WideDivisor(pieces), piece, nullptr,
           scratch.data());
  launch(&scan_rows<Op>, blocks, threads, 0, stream_of(context), op, WideDivisor(pieces), piece,
         scratch.data(), nullptr);
}

}  // namespace tapestry::kernels::cuda
