#pragma once
// C = A B in bf16 or f16 on tensor cores for operands with lines of any length and alignment, such as the
// 50257 columns of GPT-2's output layer. cp.async copies at least 4 bytes to and from multiples of 4, so
// lines of an odd number of elements begin where it cannot read. Each operand has a width:
//
//   8   lines begin at multiples of 16 bytes: cp.async of 16 bytes, as in matmul_bf16.cuh
//   2   at multiples of 4 bytes: cp.async of 4 bytes
//   1   anywhere: two elements are loaded into registers while the previous tile is multiplied, and stored
//       to shared memory as one word before the next loads
//
// Adjacent lanes load adjacent elements in all cases, so a warp's loads take one pass through the L1 cache
// per 128 bytes, and width 1 takes two. Widths and directions are read at run time, once per tile, because a
// kernel for each combination would take minutes to compile. Tiles have the layouts of TileBf16.
//
// The expected speed, counted for the large tile, per 32 of k and SM: the shared memory and the L1 cache pass
// 128 bytes per clock, which makes 384 clocks of ldmatrix (8 warps, 12 of 4 clocks each), and for the 16 KiB
// of both operands 256 clocks of loads and 128 of stores in width 1, or about 256 for cp.async in width 2.
// That is 768 clocks at most for 128 x 128 x 32 products, or 683 products per clock. The 256 mma hide behind
// it: LargeTileBf16, which is limited by them, is estimated at 1100 per clock. So at least 0.6 of its speed
// is left, of which latency takes a part. None of this has been measured.
#include "tapestry/kernels/cuda/matmul_bf16.cuh"

namespace tapestry::kernels::cuda {

/// Up to 255 registers per thread, 32 of them for elements on their way, and 64 KiB of shared memory: one
/// block per SM.
struct RaggedLargeTile {
  static constexpr int kM = 128, kN = 128, kDepth = 32, kWarpsM = 2, kWarpsN = 4, kThreads = 256, kBlocks = 1;
  static constexpr int kStages = 4, kSlicePad = 8, kFinishRows = 4;
  static constexpr double kFmasPerClock = 600, kOverheadClocks = 2500;  // for gemm_clocks(): estimates
};
/// 168 registers per thread and 32 KiB of shared memory: three blocks per SM.
struct RaggedSmallTile {
  static constexpr int kM = 64, kN = 64, kDepth = 32, kWarpsM = 2, kWarpsN = 2, kThreads = 128, kBlocks = 3;
  static constexpr int kStages = 4, kSlicePad = 8, kFinishRows = 4;
  static constexpr double kFmasPerClock = 300, kOverheadClocks = 1000;
};

/// One operand of a block: a thread's addresses in the current tile, and elements on their way to the next.
template <class T, int kLines, int kThreads>
class RaggedOperand {
 public:
  static constexpr int kDepth = 32, kSize = TileBf16<kLines, true>::kSize;
  /// `operand` is the matrix, of which the block needs the lines from `line` and k from `k`.
  __device__ __forceinline__ RaggedOperand(const T* operand, std::int64_t pitch, std::int64_t line,
                                           std::int64_t line_count, std::int64_t k, bool along_k, int width)
      : width_(width),
        along_k_(along_k),
        lines_(static_cast<int>(std::min(line_count - line, std::int64_t{kLines}))) {
    // Units of 8 or 2 elements, `across` of which make a contiguous line.
    const int unit = width == 8 ? 8 : 2, across = (along_k ? kDepth : kLines) / unit;
    const int thread = static_cast<int>(threadIdx.x), first = thread % across * unit, next = thread / across;
    line_ = along_k ? next : first;
    k_ = along_k ? first : next;
    step_ = kThreads / across;
    pitch_ = pitch;
    at_ = operand + (along_k ? (line + line_) * pitch + (k + k_) : (k + k_) * pitch + (line + line_));
    to_ = along_k ? TileBf16<kLines, true>::chunk(line_, k_) + k_ % 8
                  : TileBf16<kLines, false>::chunk(line_, k_) + line_ % 8;
    // Two units of 2 elements are 4 of k apart, which flips one bit of the swizzle.
    flip_ = along_k || width == 8 ? 0 : 32;
  }

  /// Starts to load the next tile, of which `depth` of k exist, into `tile`. With width 1 the elements stay
  /// in registers until store().
  __device__ __forceinline__ void fetch(T* tile, int depth) {
    const T* from = at_;
    const std::int64_t step = step_ * pitch_;
    if (width_ == 8) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i, from += step)
        if (has_line(i)) ptx::cp_async16(tile + (to_ + i * kThreads * 8), from, k(i) < depth);
    } else if (width_ == 2) {
#pragma unroll
      for (int i = 0; i < kWords; ++i, from += step)
        if (has_line(i)) ptx::cp_async4(tile + word(i), from, k(i) < depth);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i, from += step) {
        const bool first = has_line(i) && k(i) < depth;
        const bool second = along_k_ ? has_line(i) && k(i) + 1 < depth : line(i) + 1 < lines_ && k(i) < depth;
        low_[i] = first ? from[0].bits : std::uint16_t{0};
        high_[i] = second ? from[1].bits : std::uint16_t{0};
      }
    }
    at_ += along_k_ ? depth : depth * pitch_;
  }
  /// Stores the elements of the last fetch() to its tile.
  __device__ __forceinline__ void store(T* tile) const {
    if (width_ != 1) return;
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      *reinterpret_cast<std::uint32_t*>(tile + word(i)) = low_[i] | std::uint32_t{high_[i]} << 16;
  }

 private:
  static constexpr int kPacks = kLines * kDepth / 8 / kThreads, kWords = kLines * kDepth / 2 / kThreads;
  static_assert(kThreads == 2 * kLines, "the increments of `to_` are derived for this number of threads");

  __device__ __forceinline__ int line(int i) const { return line_ + (along_k_ ? i * step_ : 0); }
  __device__ __forceinline__ int k(int i) const { return k_ + (along_k_ ? 0 : i * step_); }
  __device__ __forceinline__ bool has_line(int i) const { return line(i) < lines_; }
  __device__ __forceinline__ int word(int i) const { return (to_ ^ (i % 2 ? flip_ : 0)) + i * kThreads * 2; }

  const T* at_;
  std::int64_t pitch_;
  int width_;
  bool along_k_;
  int lines_, line_, k_, step_, to_, flip_;
  std::uint16_t low_[kWords], high_[kWords];
};

template <class Tile, class T>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) gemm_ragged(GemmPlan<T> p) {
  constexpr int kM = Tile::kM, kN = Tile::kN, kDepth = Tile::kDepth, kStages = Tile::kStages;
  constexpr int kWarpM = kM / Tile::kWarpsM, kWarpN = kN / Tile::kWarpsN;
  using OperandA = RaggedOperand<T, kM, Tile::kThreads>;
  using OperandB = RaggedOperand<T, kN, Tile::kThreads>;
  constexpr int kStage = OperandA::kSize + OperandB::kSize;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  T* const shared = reinterpret_cast<T*>(dynamic_shared);

  __shared__ GemmBlock shared_block;  // read by the epilogue
  __shared__ float row_sums[kM];      // in registers they would be live during the whole mainloop
  GemmBlock block = gemm_block<Tile>(p);
  const BatchOffsets batch = batch_offsets(p, block.batch);
  block.c = batch.c;
  if (threadIdx.x == 0) shared_block = block;
  const KRange range = k_range<kDepth>(p, block.split);
  OperandA operand_a(p.a + batch.a, p.a_pitch, block.row, p.m, range.begin, p.a_along_k, p.a_width);
  OperandB operand_b(p.b + batch.b, p.b_pitch, block.column, p.n, range.begin, p.b_along_k, p.b_width);

  int to_fetch = range.tiles, fetched = 0, fetching = -1;  // tiles that remain; stages, as offsets
  const auto fetch = [&](int depth) {
    if (to_fetch > 0) {
      operand_a.fetch(shared + fetched, depth);
      operand_b.fetch(shared + (fetched + OperandA::kSize), depth);
      fetching = fetched;
    }
    ptx::cp_async_commit();  // one group per tile, also for missing tiles, so that the wait counts stay valid
    fetched = fetched == (kStages - 1) * kStage ? 0 : fetched + kStage;
    --to_fetch;
  };
  const auto store = [&] {
    if (fetching < 0) return;
    operand_a.store(shared + fetching);
    operand_b.store(shared + (fetching + OperandA::kSize));
    fetching = -1;
  };

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp % Tile::kWarpsM, warp_n = warp / Tile::kWarpsM;
  using FragmentsA = FragmentsBf16<kM, true, true>;
  using FragmentsAcrossA = FragmentsBf16<kM, false, true>;
  using FragmentsB = FragmentsBf16<kN, true, false>;
  using FragmentsAcrossB = FragmentsBf16<kN, false, false>;
  const int at_a = p.a_along_k ? FragmentsA(warp_m * kWarpM).at : FragmentsAcrossA(warp_m * kWarpM).at;
  const int at_b = p.b_along_k ? FragmentsB(warp_n * kWarpN).at : FragmentsAcrossB(warp_n * kWarpN).at;
  std::uint32_t a[2][kWarpM / 16][4], b[2][kWarpN / 16][4];
  float sums[kWarpM / 16][kWarpN / 8][4] = {};
  const auto read = [&](const T* stage, int step, int to) {
    if (p.a_along_k)
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) FragmentsA::read_at(at_a, stage, i, step, a[to][i]);
    else
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) FragmentsAcrossA::read_at(at_a, stage, i, step, a[to][i]);
    stage += OperandA::kSize;
    if (p.b_along_k)
#pragma unroll
      for (int i = 0; i < kWarpN / 16; ++i) FragmentsB::read_at(at_b, stage, i, step, b[to][i]);
    else
#pragma unroll
      for (int i = 0; i < kWarpN / 16; ++i) FragmentsAcrossB::read_at(at_b, stage, i, step, b[to][i]);
  };

  fetch(range.first);
  store();
#pragma unroll
  for (int i = 1; i < kStages - 1; ++i) {
    fetch(kDepth);
    store();
  }
  ptx::cp_async_wait<kStages - 2>();
  __syncthreads();
  if (range.tiles > 0) read(shared, 0, 0);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kM) row_sums[thread] = 0;
  int stage = 0;
  for (int tiles = range.tiles; tiles > 0; --tiles) {
    read(shared + stage, 1, 1);
    store();        // what the previous iteration loaded; two barriers precede its use
    fetch(kDepth);  // refills the stage that all warps had finished reading at the last barrier
    multiply_fragments<T>(sums, a[0], b[0]);
    if (has_row_sums(p, shared_block) && thread < kM)
      row_sums[thread] += p.a_along_k ? sum_of_line<kM, true>(shared + stage, thread)
                                      : sum_of_line<kM, false>(shared + stage, thread);
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    stage = stage == (kStages - 1) * kStage ? 0 : stage + kStage;
    if (tiles > 1) read(shared + stage, 0, 0);
    multiply_fragments<T>(sums, a[1], b[1]);
  }
  ptx::cp_async_wait<0>();
  write_row_sums<Tile>(p, shared_block, row_sums);

  float* const slices = reinterpret_cast<float*>(shared);
  finish_tile<Tile>(p, shared_block, slices,
                    [&](int slice) { write_slice_of<Tile>(slices, slice, warp_m, warp_n, sums); });
}

/// Launches the kernel for operands of any layout and alignment.
template <class Tile, class T>
void launch_gemm_ragged(const GemmArgs& g, const GemmLayout& layout, std::int64_t splits,
                        const LaunchContext& context) {
  launch_gemm_plan<Tile>(&gemm_ragged<Tile, T>, gemm_plan<Tile, T>(g, layout, splits), shared_bytes<Tile>(),
                         context);
}

}  // namespace tapestry::kernels::cuda
