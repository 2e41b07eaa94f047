#pragma once
// How much a test does of what it could do for ever.

namespace tapestry {

/// Sanitizers slow a test down ten times or more, and find in a short one what they find in a long one.
#ifdef TAPESTRY_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Steps of a test that holds two ways of training against each other: DESIGN.md's 50.
inline constexpr int kSteps = kSanitized ? 10 : 50;

}  // namespace tapestry
