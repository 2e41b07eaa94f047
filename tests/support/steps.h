#pragma once
// For tests that hold two ways of training against each other.

namespace tapestry {

/// Steps of such a test: DESIGN.md's 50. Under sanitizers, which look for faults that the first steps
/// show, 10.
#ifdef TAPESTRY_SANITIZED
inline constexpr int kSteps = 10;
#else
inline constexpr int kSteps = 50;
#endif

}  // namespace tapestry
