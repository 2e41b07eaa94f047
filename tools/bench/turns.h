#pragma once
// The C++ side of benchmarks that alternate between Tapestry and PyTorch (turns.py).
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <string>

namespace tapestry::bench {

/// Reads lines `NAME REPEATS` from stdin and answers each with REPEATS times in milliseconds. Returns the
/// exit status.
inline int take_turns(const std::map<std::string, std::function<void()>>& work) {
  std::string name;
  int repeats;
  while (std::cin >> name >> repeats) {
    const auto it = work.find(name);
    if (it == work.end()) {
      std::cerr << "unknown work " << name << '\n';
      return 2;
    }
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      it->second();
      std::printf(
          "%.6f ",
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace tapestry::bench
