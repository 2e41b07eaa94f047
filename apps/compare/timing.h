#pragma once
// How long something takes, once and of several times.
#include <algorithm>
#include <chrono>
#include <vector>

namespace apps::compare {

template <class F>
double seconds_of(const F& task) {
  const auto began = std::chrono::steady_clock::now();
  task();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// Of an even number the larger of the two in the middle. `values` is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace apps::compare
