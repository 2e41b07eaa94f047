#pragma once
// Contracts of the kernels that generate numbers. `out` is dense with `n` elements in row-major order. The
// bits depend only on range.seed, range.offset and the element's index, so any device and any number of
// threads gives the same ones. A "word" is one of the four 32-bit numbers of a Philox counter: word w is lane
// w % 4 of counter range.offset + w / 4.
#include "tapestry/core/generator.h"
#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Uniform in [low, high), before rounding. Floating dtypes. For f32, f16 and bf16 element i uses the top 24,
/// 11 or 8 bits of word i. For f64 it uses words 2i and 2i + 1 (uniform_double).
struct UniformArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
  double low, high;
};
inline constinit Slot<UniformArgs> uniform{"uniform"};

/// Normal, by the Box-Muller method: elements 2k and 2k + 1 are r cos t and r sin t with r = sqrt(-2 log u)
/// and t = 2 pi v. For f32, f16 and bf16, u = (w + 1) / 2^32 with word w = 2k, and v is word 2k + 1 over
/// 2^32. For f64, u = 1 - uniform_double of words 4k and 4k + 1, and v comes from words 4k + 2 and 4k + 3.
/// The result is mean + std z in f64, rounded once.
struct NormalArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
  double mean, std;
};
inline constinit Slot<NormalArgs> normal{"normal"};

/// Uniform integers low + (w * span >> 64), where w has word 2i as its upper and word 2i + 1 as its lower
/// half. All dtypes but bool.
struct RandintArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
  std::int64_t low;
  std::uint64_t span;
};
inline constinit Slot<RandintArgs> randint{"randint"};

/// The i64 permutation of 0 .. n - 1 that sorts the 64-bit numbers w of randint; equal ones stay in order.
struct RandpermArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
};
inline constinit Slot<RandpermArgs> randperm{"randperm"};

/// Element i = start + i * step. In i64 (wrapping) if start and step are integers, else in f64. All dtypes
/// but bool.
struct ArangeArgs {
  MutableArray out;
  std::int64_t n;
  Scalar start, step;
};
inline constinit Slot<ArangeArgs> arange{"arange"};

/// out[i] = x[i] * scale if element i is kept, else 0. It is kept if the top 24 bits of word i are at least
/// `threshold`. Floating dtypes; x and out are dense.
struct DropoutArgs {
  MutableArray out;
  ConstArray x;
  std::int64_t n;
  PhiloxRange range;
  std::uint32_t threshold;
  double scale;
};
inline constinit Slot<DropoutArgs> dropout{"dropout"};

}  // namespace tapestry::kernels
