#pragma once
// The option --precision of the programs that train.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/autograd/autocast.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace apps {

inline std::vector<std::string> precisions() { return {"f32", "bf16", "f16"}; }
inline constexpr const char* kPrecisionHelp = "f32, or mixed precision: bf16, or f16 with scaled gradients";

/// Adds --precision to the command line of a small program. `value` is "f32" before.
inline void add_precision(CommandLine& line, std::string& value) {
  line.add("--precision", value, kPrecisionHelp, {.check = one_of(precisions())});
}

/// True for an option that runs had not when the first ones were saved. Their config.json lacks it, and they
/// were trained with its default, f32.
inline bool may_lack(std::string_view option) { return option == "precision" || option == "--precision"; }

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
