// A library with only the version functions of NCCL, cuDNN and cuBLASLt. Tests copy it to the folders where
// the library loader must find it. Environment variables set the versions.
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
