#pragma once
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Rows of weight (V, D) for integer indices of any shape: result (..., D). Row `padding_idx` gets no
/// gradient. IndexError for an index outside [0, V).
Tensor embedding(const Tensor& weight, const Tensor& indices, std::optional<std::int64_t> padding_idx = {});

}  // namespace tapestry
