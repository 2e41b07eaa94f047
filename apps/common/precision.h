#pragma once
// The option --precision of the programs that train.
#include <optional>
#include <string>

#include "tapestry/autograd/autocast.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace apps {

/// Turns autocast on in this scope if `precision` is "bf16" or "f16"; does nothing for "f32".
class AutocastScope {
 public:
  explicit AutocastScope(const std::string& precision) {
    if (precision == "bf16") guard_.emplace(tapestry::DType::bf16);
    if (precision == "f16") guard_.emplace(tapestry::DType::f16);
  }

 private:
  std::optional<tapestry::AutocastGuard> guard_;
};

/// Gradients of f16 need a scale; a scaler for the others does nothing.
inline tapestry::optim::GradScalerOptions scaler_options(const std::string& precision) {
  return {.enabled = precision == "f16"};
}

}  // namespace apps
