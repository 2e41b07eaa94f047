#pragma once
// Sets how long tests run whose amount of work can be chosen.

namespace tapestry {

/// True in builds with a sanitizer. Sanitizers slow tests down by a factor of ten or more, and a short run
/// finds the same errors as a long one.
#ifdef TAPESTRY_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// The number of training steps of tests that compare two ways of training.
inline constexpr int kSteps = kSanitized ? 5 : 50;

}  // namespace tapestry
