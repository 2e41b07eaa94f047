#pragma once
// Planted bugs: a CUDA program of its own, without Tapestry, that tapestry-ptx runs. Each bug is a template
// whose argument says whether it is mended. The comment `planted: <name>` marks the lines that a report must
// name.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Bug {
  const char* name;
  void (*planted)();
  void (*mended)();
};
inline std::vector<Bug>& bugs() {
  static std::vector<Bug> all;
  return all;
}
struct Registered {
  explicit Registered(Bug bug) { bugs().push_back(bug); }
};
/// Defines a function without arguments that runs the bug, or, if `mended`, the correct program.
#define BUG(name)                                                              \
  template <bool mended>                                                       \
  void name();                                                                 \
  static const Registered registered_##name({#name, name<false>, name<true>}); \
  template <bool mended>                                                       \
  void name()

/// An error of CUDA, or a result that the program itself finds wrong. The exit status is 2 or 3.
struct Failure {
  int status;
};
inline void check(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, cudaGetErrorName(error));
  throw Failure{2};
}
#define CHECK(call) check(call, __FILE__, __LINE__)
inline void expect(bool right, const char* file, int line) {
  if (right) return;
  std::fprintf(stderr, "%s:%d: wrong result\n", file, line);
  throw Failure{3};
}
#define EXPECT(condition) expect(condition, __FILE__, __LINE__)

/// `n` elements of device memory.
template <class T>
struct Buffer {
  explicit Buffer(int n) : n(n) { CHECK(cudaMalloc(reinterpret_cast<void**>(&data), bytes())); }
  Buffer(int n, T value) : Buffer(n) {
    const std::vector<T> values(static_cast<std::size_t>(n), value);
    CHECK(cudaMemcpy(data, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::size_t bytes() const { return static_cast<std::size_t>(n) * sizeof(T); }
  std::vector<T> download() const {
    std::vector<T> values(static_cast<std::size_t>(n));
    CHECK(cudaMemcpy(values.data(), data, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  T* data = nullptr;
  int n;
};

/// Checks the last launch and waits for it.
inline void finish(const char* file, int line) {
  check(cudaGetLastError(), file, line);
  check(cudaDeviceSynchronize(), file, line);
}
#define FINISH() finish(__FILE__, __LINE__)
