// A library that has nothing but the version functions of NCCL, cuDNN and cuBLASLt. Tests copy it to where
// they want a library to be found. The versions come from environment variables.
#include <cstddef>
#include <cstdlib>

namespace {
int number(const char* name) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : 0;
}
}  // namespace

extern "C" {
int ncclGetVersion(int* version) {
  *version = number("FAKE_NCCL_VERSION");
  return 0;
}
std::size_t cudnnGetVersion() { return static_cast<std::size_t>(number("FAKE_CUDNN_VERSION")); }
std::size_t cudnnGetCudartVersion() { return static_cast<std::size_t>(number("FAKE_CUDNN_CUDA_VERSION")); }
std::size_t cublasLtGetVersion() { return static_cast<std::size_t>(number("FAKE_CUBLASLT_VERSION")); }
}
