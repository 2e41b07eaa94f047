#pragma once
// exp, tanh and erf as the CPU kernels use them.
#include <cmath>

namespace tapestry::kernels::cpu {

inline double exp(double x) { return std::exp(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }
inline float exp(float x) { return std::exp(x); }
inline float tanh(float x) { return std::tanh(x); }
inline float erf(float x) { return std::erf(x); }

}  // namespace tapestry::kernels::cpu
