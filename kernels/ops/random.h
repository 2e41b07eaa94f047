#pragma once
// Contracts of the kernels that make numbers. The output is dense, `n` elements in row-major order. The bits
// are a function of (range.seed, range.offset) and the element's index alone: any device and any number of
// threads gives the same. A "word" is one of the four 32-bit numbers of a Philox counter: word w is lane w %
// 4 of counter range.offset + w / 4.
#include "tapestry/core/generator.h"
#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// Uniform in [low, high), before rounding. Floats. f32, f16 and bf16: element i takes word i, of which the
/// top 24, 11 or 8 bits count; f64: words 2i and 2i + 1 (uniform_double).
inline constinit Slot<void(void* out, std::int64_t n, PhiloxRange range, double low, double high)> uniform{
    "uniform"};
/// Normal, by Box-Muller: elements 2k and 2k + 1 are r cos t and r sin t with r = sqrt(-2 log u) and
/// t = 2 pi v. f32, f16, bf16: u = (w + 1) / 2^32 with word w = 2k, v = word 2k + 1 / 2^32. f64: u = 1 -
/// uniform_double of words 4k, 4k + 1; v of words 4k + 2, 4k + 3. Then mean + std z in f64, rounded once.
inline constinit Slot<void(void* out, std::int64_t n, PhiloxRange range, double mean, double std)> normal{
    "normal"};
/// Uniform integers low + (w * span >> 64), where w has words 2i (high) and 2i + 1 (low). Numbers.
inline constinit Slot<void(void* out, std::int64_t n, PhiloxRange range, std::int64_t low,
                           std::uint64_t span)>
    randint{"randint"};
/// The i64 permutation of 0 .. n-1 that sorts the 64-bit keys w of randint, ties by index.
inline constinit Slot<void(void* out, std::int64_t n, PhiloxRange range)> randperm{"randperm"};
/// Element i = start + i * step: in i64 (wrapping) if start and step are integers, else in f64. Numbers.
inline constinit Slot<void(void* out, std::int64_t n, Scalar start, Scalar step)> arange{"arange"};

/// out[i] = x[i] * scale if word i is kept, else 0; kept if its top 24 bits are at least `threshold`. Floats;
/// both dense.
inline constinit Slot<void(void* out, const void* x, std::int64_t n, PhiloxRange range,
                           std::uint32_t threshold, double scale)>
    dropout{"dropout"};

}  // namespace tapestry::kernels
