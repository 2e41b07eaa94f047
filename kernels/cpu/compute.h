#pragma once
// Converts between the types in which elements are stored and the types in which CPU kernels compute.
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "tapestry/core/half.h"
#include "tapestry/kernels/convert.h"
#include "tapestry/kernels/cpu/grain.h"
#include "tapestry/kernels/scratch.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels::cpu {

/// The type that T is computed in.
template <class T>
using Compute =
    std::conditional_t<is_half<T>, float, std::conditional_t<is_stored_integer<T>, std::int32_t, T>>;

template <class T>
inline Compute<T> load(const T& v) {
  return static_cast<Compute<T>>(v);
}

// Convert blocks of elements between 16-bit floats and f32. They use hardware instructions if the CPU has
// them.
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
void from_float(const float* x, BFloat16* y, std::int64_t n);  // pointwise_convert.cpp

/// A dense input in the compute type. It points to the input itself or, for 16-bit floats, to a converted
/// copy. If the input is null, the pointer is null.
template <class T>
class ComputeInput {
 public:
  ComputeInput(const LaunchContext& context, const ConstArray& x, std::int64_t n) {
    if constexpr (!is_half<T>) {
      data_ = x.as<T>();
    } else if (x) {
      copy_ = Scratch<float>(context.device, n);
      data_ = copy_.data();
      parallel_for(n, kGrain, [from = x.as<T>(), to = copy_.data()](auto begin, auto end) {
        to_float(from + begin, to + begin, end - begin);
      });
    }
  }
  const Compute<T>* data() const { return data_; }

 private:
  Scratch<float> copy_;
  const Compute<T>* data_ = nullptr;
};

/// A dense output in the compute type. store() rounds it to the dtype of the real output. If the output is
/// null, the pointer is null.
template <class T>
class ComputeOutput {
 public:
  ComputeOutput(const LaunchContext& context, const MutableArray& y, std::int64_t n) : y_(y.as<T>()), n_(n) {
    if constexpr (!is_half<T>) {
      data_ = y_;
    } else if (y_) {
      copy_ = Scratch<float>(context.device, n);
      data_ = copy_.data();
    }
  }
  Compute<T>* data() const { return data_; }
  void store() const {
    if constexpr (is_half<T>)
      if (y_)
        parallel_for(n_, kGrain, [from = data_, to = y_](auto begin, auto end) {
          from_float(from + begin, to + begin, end - begin);
        });
  }

 private:
  Scratch<float> copy_;
  T* y_;
  std::int64_t n_;
  Compute<T>* data_ = nullptr;
};

}  // namespace tapestry::kernels::cpu
