#pragma once
// The numbers by which the calls of a device share one cell for reports (deferred_check.h).
#include <cstdint>

namespace tapestry::detail {

/// A report is the call's number times this, plus a position in a tensor, which has fewer elements.
inline constexpr std::int64_t kPositionsOfCall = std::int64_t{1} << 40;

/// The cell of a CUDA device, and the number of a call that is about to launch a kernel which may report.
struct CallCell {
  std::int64_t* cell;
  std::int32_t call;
};

}  // namespace tapestry::detail
