#pragma once
// Rows of gradients that are operations themselves (see `composed` in internal/common.h).
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry::autograd {

template <>
inline constexpr auto composed<kernels::Neg> = [](const Tensor& dy, const auto&...) { return neg(dy); };
template <>
inline constexpr auto composed<kernels::Mul> =
    [](const Tensor& dy, const auto& t, const auto&...) { return mul(dy, t); };
template <>
inline constexpr auto composed<kernels::Div> =
    [](const Tensor& dy, const auto& t, const auto&...) { return div(dy, t); };

}  // namespace tapestry::autograd
