#pragma once
// Contracts of the kernels that generate numbers. `out` is dense and has `n` elements in row-major order. The
// result depends only on range.seed, range.offset and the element's index, so any number of threads gives the
// same bits. All devices give the same bits too, except that normal numbers may differ in their last digits
// (kernels/random.h). A "word" is one of the four 32-bit numbers of a Philox counter. Word w is number w % 4
// of counter range.offset + w / 4.
#include "tapestry/core/generator.h"
#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Writes uniform numbers in [low, high), which then are rounded to the dtype. The dtypes are floating. For
/// f32, f16 and bf16, element i uses the top 24, 11 or 8 bits of word i. For f64 it uses words 2i and 2i + 1
/// (uniform_double).
struct UniformArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
  double low, high;
};
inline constinit Slot<UniformArgs> uniform{"uniform"};

/// Writes normal numbers by the Box-Muller method. Elements 2k and 2k + 1 are mean + std r cos t and mean +
/// std r sin t, where r = sqrt(-2 log u) and t = 2 pi v. They are computed in f64 and rounded once. For f32,
/// f16 and bf16, u = (w + 1) / 2^32 and v = w' / 2^32, where w is word 2k and w' is word 2k + 1. For f64, u =
/// 1 - uniform_double of words 4k and 4k + 1, and v = uniform_double of words 4k + 2 and 4k + 3.
struct NormalArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
  double mean, std;
};
inline constinit Slot<NormalArgs> normal{"normal"};

/// Writes uniform integers low + (w * span >> 64). The 64-bit number w has word 2i as its upper half and word
/// 2i + 1 as its lower half. Takes all dtypes except bool.
struct RandintArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
  std::int64_t low;
  std::uint64_t span;
};
inline constinit Slot<RandintArgs> randint{"randint"};

/// Writes the i64 permutation of 0 .. n - 1 that sorts the 64-bit numbers w of `randint`. The sort is stable.
struct RandpermArgs {
  MutableArray out;
  std::int64_t n;
  PhiloxRange range;
};
inline constinit Slot<RandpermArgs> randperm{"randperm"};

/// Sets element i to start + i * step. It is computed in i64 (wrapping) if start and step are integers, else
/// in f64. Takes all dtypes except bool.
struct ArangeArgs {
  MutableArray out;
  std::int64_t n;
  Scalar start, step;
};
inline constinit Slot<ArangeArgs> arange{"arange"};

/// Sets out[i] = x[i] * scale if element i is kept, else 0. Element i is kept if the top 24 bits of word i
/// are at least `threshold`. The dtypes are floating. x and out are dense.
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
