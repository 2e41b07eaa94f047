#pragma once
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Gathers rows of weight (V, D) by indices of any integer dtype and any shape (...). The result is (..., D).
/// Row `padding_idx` gets no gradient. Throws IndexError for an index outside [0, V); on a GPU it does so
/// when the host next waits for the work.
Tensor embedding(const Tensor& weight, const Tensor& indices, std::optional<std::int64_t> padding_idx = {});

}  // namespace tapestry
