#pragma once
// Storage types, the types that CPU kernels compute in, and the way from one to the other.
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "tapestry/core/half.h"
#include "tapestry/kernels/cpu/grain.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cpu {

/// Stored in two bytes, computed in f32.
template <class T>
inline constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
/// The type that T is computed in.
template <class T>
using Compute = std::conditional_t<is_half<T>, float, T>;

template <class T>
inline Compute<T> load(const T& v) {
  return static_cast<Compute<T>>(v);
}

// f16 <-> f32 by the blocks, with the machine's instructions where it has them.
inline void to_float(const Half* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
  for (; i < n; ++i) y[i] = static_cast<float>(x[i]);
}
inline void to_float(const BFloat16* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
}
inline void from_float(const float* x, Half* y, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
  for (; i < n; ++i) y[i] = Half(x[i]);
}
inline void from_float(const float* x, BFloat16* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = BFloat16(x[i]);
}

/// A dense input in the compute type: itself, or a converted copy. Null stays null.
template <class T>
class ComputeInput {
 public:
  ComputeInput(Device device, const void* x, std::int64_t n) : data_(static_cast<const Compute<T>*>(x)) {
    if constexpr (is_half<T>)
      if (x) {
        copy_ = Scratch<float>(device, n);
        data_ = copy_.data();
        parallel_for(n, kGrain, [from = static_cast<const T*>(x), to = copy_.data()](auto begin, auto end) {
          to_float(from + begin, to + begin, end - begin);
        });
      }
  }
  const Compute<T>* data() const { return data_; }

 private:
  Scratch<float> copy_;
  const Compute<T>* data_;
};

/// A dense output in the compute type, rounded into the real one by store(). Null stays null.
template <class T>
class ComputeOutput {
 public:
  ComputeOutput(Device device, void* y, std::int64_t n) : y_(y), n_(n), data_(static_cast<Compute<T>*>(y)) {
    if constexpr (is_half<T>)
      if (y) {
        copy_ = Scratch<float>(device, n);
        data_ = copy_.data();
      }
  }
  Compute<T>* data() const { return data_; }
  void store() const {
    if constexpr (is_half<T>)
      if (y_)
        parallel_for(n_, kGrain, [from = data_, to = static_cast<T*>(y_)](auto begin, auto end) {
          from_float(from + begin, to + begin, end - begin);
        });
  }

 private:
  Scratch<float> copy_;
  void* y_;
  std::int64_t n_;
  Compute<T>* data_;
};

}  // namespace tapestry::kernels::cpu
