#pragma once
// Storage types and the types that CPU kernels compute in.
#include <type_traits>

#include "tapestry/core/half.h"
#include "tapestry/core/parallel.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cpu {

/// f32 for f32, f16 and bf16; f64 for f64.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;
/// Stored in two bytes, computed in f32.
template <class T>
inline constexpr bool is_half = !std::is_same_v<T, Compute<T>>;

template <class T>
inline Compute<T> load(const T& v) {
  return static_cast<Compute<T>>(v);
}

inline constexpr std::int64_t kConvertGrain = 16384;

template <class To, class From>
void convert(const From* x, To* y, std::int64_t n) {
  parallel_for(n, kConvertGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = static_cast<To>(static_cast<float>(x[i]));
  });
}

/// A dense input in the compute type: itself, or a converted copy. Null stays null.
template <class T>
class ComputeInput {
 public:
  ComputeInput(Device device, const void* x, std::int64_t n) : data_(static_cast<const Compute<T>*>(x)) {
    if constexpr (is_half<T>)
      if (x) {
        copy_ = Scratch<float>(device, n);
        convert(static_cast<const T*>(x), copy_.data(), n);
        data_ = copy_.data();
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
      if (y_) convert(data_, static_cast<T*>(y_), n_);
  }

 private:
  Scratch<float> copy_;
  void* y_;
  std::int64_t n_;
  Compute<T>* data_;
};

}  // namespace tapestry::kernels::cpu
