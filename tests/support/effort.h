#pragma once
// How much work open-ended tests do.

namespace tapestry {

/// Sanitizers slow tests down by a factor of ten or more, and a short run finds the same errors as a long
/// one.
#ifdef TAPESTRY_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Steps of a test that compares two ways of training.
inline constexpr int kSteps = kSanitized ? 10 : 50;

}  // namespace tapestry
