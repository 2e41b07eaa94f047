#pragma once
// The loop of all optimizer steps on CPUs. Steps are limited by memory bandwidth, so each block of elements
// is read and written once. All parameters share one parallel loop, so that small parameters do not each
// start a parallel region. Parameters in f16 and bf16 are updated by the same f32 code, in pieces that stay
// in the L1 cache.
#include <algorithm>
#include <vector>

#include "tapestry/core/parallel.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/ops/optim.h"

namespace tapestry::kernels::cpu {

inline constexpr std::int64_t kStepBlock = 4096;  // elements
inline constexpr std::int64_t kStepGrain = 4;     // least number of blocks per thread

/// Calls f(index of item, first element, number of elements) for every block of every item. Blocks begin at
/// fixed places, so results do not depend on the number of threads.
template <class F>
void for_blocks(const StepItems& tensors, const F& f) {
  std::vector<std::int64_t> first(static_cast<std::size_t>(tensors.count) + 1,
                                  0);  // first block of each item
  for (std::int64_t i = 0; i < tensors.count; ++i)
    first[static_cast<std::size_t>(i) + 1] =
        first[static_cast<std::size_t>(i)] + (tensors.items[i].numel + kStepBlock - 1) / kStepBlock;
  parallel_for(first.back(), kStepGrain, [&](std::int64_t begin, std::int64_t end) {
    auto item = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (std::int64_t block = begin; block < end; ++block) {
      while (block >= first[static_cast<std::size_t>(item) + 1]) ++item;
      const std::int64_t at = (block - first[static_cast<std::size_t>(item)]) * kStepBlock;
      f(item, at, std::min(kStepBlock, tensors.items[item].numel - at));
    }
  });
}

/// Applies loss_scale and found_inf. `own` holds the scalars of the step afterwards if they differ from those
/// of the caller. Returns false if the step must change nothing.
inline bool begin_scaled_step(StepItems& tensors, StepScalars& own) {
  if (tensors.found_inf && *tensors.found_inf != 0) return false;
  if (!tensors.loss_scale) return true;
  own = *tensors.scalars;
  own.grad_scale /= static_cast<double>(*tensors.loss_scale);
  tensors.scalars = &own;
  return true;
}

inline constexpr std::int64_t kStepPiece = 512;  // elements that are converted at a time

/// The key of the random bits of successive elements.
struct RoundingKey {
  std::uint64_t parameter, step;
  std::int64_t element;  ///< the first
};
/// Rounds n <= kStepPiece elements stochastically. T is Half or BFloat16.
template <class T>
void round_block(const float* x, T* y, std::int64_t n, const RoundingKey& key);

/// Calls block(item, at, n), which updates n elements from element `at` on in the compute type of T. For f16
/// and bf16 the item has f32 copies of the parameter and of the gradient, or the master in place of the
/// parameter.
template <class T, class F>
void step_block(const StepItems& tensors, std::int64_t index, std::int64_t at, std::int64_t n,
                const F& block) {
  const StepItem& item = tensors.items[index];
  if constexpr (!is_half<T>) {
    block(item, at, n);
  } else {
    const LowPrecisionItem& low = tensors.low[index];
    T* const param = static_cast<T*>(item.param);
    alignas(64) float values[kStepPiece], gradients[kStepPiece];
    for (const std::int64_t end = at + n; at < end; at += kStepPiece) {
      const std::int64_t count = std::min(kStepPiece, end - at);
      float* const p = low.master ? low.master + at : values;
      if (!low.master) to_float(param + at, values, count);
      to_float(static_cast<const T*>(item.grad) + at, gradients, count);
      StepItem piece = item;
      piece.param = p;
      piece.grad = gradients;
      for (void*& state : piece.state)
        if (state) state = static_cast<float*>(state) + at;
      block(piece, 0, count);
      if (low.master || !tensors.stochastic) from_float(p, param + at, count);
      else
        round_block(p, param + at, count,
                    {low.number, static_cast<std::uint64_t>(*item.step), low.offset + at});
    }
  }
}

}  // namespace tapestry::kernels::cpu
