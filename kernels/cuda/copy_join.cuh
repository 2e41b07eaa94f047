#pragma once
// Joins dense arrays line by line in one launch (cat, stack, and the gradients of split). A thread finds the
// piece of its bytes by binary search in a table, which is a kernel argument: nothing is copied to the GPU
// first.
#include <algorithm>

#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry::kernels::cuda {

inline constexpr int kJoinedPieces = 96;  // CUDA takes 4 KiB of arguments on every GPU
inline constexpr int kJoinThreads = 256;

/// Some adjacent pieces. All lengths are in units of the kernel's T.
struct JoinTable {
  int count = 0;
  WideDivisor width;                           // of a line of these pieces
  std::int64_t line = 0;                       // the width of a whole line of the output
  std::int64_t first = 0;                      // where these pieces begin in it
  std::int64_t total = 0;                      // in all lines of these pieces
  std::int64_t begin[kJoinedPieces + 1] = {};  // of each piece, from `first`; and the end of the last one
  const void* data[kJoinedPieces] = {};
};

template <class T>
__global__ void __launch_bounds__(kJoinThreads) join_lines(JoinTable table, T* out) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * kJoinThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kJoinThreads + threadIdx.x; i < table.total;
       i += step) {
    const auto line = static_cast<std::int64_t>(table.width.divide(static_cast<std::uint64_t>(i)));
    const std::int64_t at = i - line * static_cast<std::int64_t>(table.width.value);
    int low = 0, high = table.count - 1;  // the last piece that does not begin after `at`
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (table.begin[middle] <= at) low = middle;
      else high = middle - 1;
    }
    const std::int64_t own = table.begin[low + 1] - table.begin[low];
    const T* const piece = static_cast<const T*>(table.data[low]);
    out[line * table.line + table.first + at] = piece[line * own + at - table.begin[low]];
  }
}

template <class T>
void launch_join_as(const JoinArgs& a, std::int64_t line_bytes, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 16;
  constexpr auto kUnit = static_cast<std::int64_t>(sizeof(T));
  JoinTable table;
  table.line = line_bytes / kUnit;
  for (std::int64_t i = 0; i < a.count; ++i) {
    if (a.pieces[i].bytes > 0) {
      table.data[table.count] = a.pieces[i].data;
      table.begin[table.count + 1] = table.begin[table.count] + a.pieces[i].bytes / kUnit;
      ++table.count;
    }
    if (table.count == 0 || (table.count < kJoinedPieces && i + 1 < a.count)) continue;
    const std::int64_t width = table.begin[table.count];
    table.width = WideDivisor(width);
    table.total = a.lines * width;
    const std::int64_t blocks = (table.total + kJoinThreads - 1) / kJoinThreads;
    launch(&join_lines<T>, static_cast<unsigned>(std::min(blocks, kMostBlocks)), kJoinThreads, 0, stream,
           table, static_cast<T*>(a.out));
    table.first += width;
    table.count = 0;
  }
}

inline void launch_join(const LaunchContext& context, const JoinArgs& a) {
  std::int64_t line = 0;
  auto units = reinterpret_cast<std::uintptr_t>(a.out);  // their lowest set bit is a unit that divides all
  for (std::int64_t i = 0; i < a.count; ++i) {
    line += a.pieces[i].bytes;
    units |= static_cast<std::uintptr_t>(a.pieces[i].bytes);
    if (a.pieces[i].bytes > 0) units |= reinterpret_cast<std::uintptr_t>(a.pieces[i].data);
  }
  if (a.lines == 0 || line == 0) return;
  const cudaStream_t stream = stream_of(context);
  if (units % 16 == 0) launch_join_as<Pack<std::uint32_t, 4>>(a, line, stream);
  else if (units % 4 == 0) launch_join_as<std::uint32_t>(a, line, stream);
  else if (units % 2 == 0) launch_join_as<std::uint16_t>(a, line, stream);
  else launch_join_as<std::uint8_t>(a, line, stream);
}

}  // namespace tapestry::kernels::cuda
