#pragma once
// Timing of single tasks, and medians over repeated ones.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace tapestry::distributed::planner {

template <class F>
double seconds_of(const F& task) {
  const auto began = std::chrono::steady_clock::now();
  task();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// Returns the median. If the number of values is even, this is the mean of the two middle ones. `values`
/// must not be empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The number of passes with n samples that take about as long as one pass with the whole batch. The speed of
/// a machine changes from one second to the next, so all sizes are measured for the same time.
inline int passes_of(std::int64_t n, std::int64_t batch_size) {
  return static_cast<int>(std::max<std::int64_t>(1, batch_size / n));
}

}  // namespace tapestry::distributed::planner
