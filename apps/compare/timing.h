#pragma once
// How long something takes, once and of several times.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace apps::compare {

template <class F>
double seconds_of(const F& task) {
  const auto began = std::chrono::steady_clock::now();
  task();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// Of an even number the mean of the two in the middle. `values` is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// How many passes with n samples take about as long as one with the whole batch. A machine is not equally
/// fast from one second to the next: what is measured for as long sees as much of that.
inline int passes_of(std::int64_t n, std::int64_t batch_size) {
  return static_cast<int>(std::max<std::int64_t>(1, batch_size / n));
}

}  // namespace apps::compare
