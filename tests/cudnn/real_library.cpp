#include "tests/cudnn/real_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <span>
#include <string_view>

namespace cudnn_test {

namespace cudnn = tapestry::kernels::cuda::cudnn;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // the library is not instrumented
#else
constexpr bool kSanitized = false;
#endif

// What cuDNN wants to know of a GPU. The names are those that its error messages ask for; the numbers are an
// H100's, from NVIDIA's documentation of compute capability 9.0.
constexpr std::string_view kH100 =
    R"({"cudnnVersion":90800,"schemaVersion":1,"deviceName":"NVIDIA H100 80GB HBM3",
"deviceVer":900,"smVersion":90,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":85029158912,
"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,
"smCountOrigin":0,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,
"oversizedSharedMemoryPerBlock":0,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,
"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,
"smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800})";

}  // namespace

RealLibrary::RealLibrary() {
  if (kSanitized) {
    std::printf("skipped: the real cuDNN is not run under sanitizers\n");
    return;
  }
  auto places = tapestry::cuda::library_places();
  places.loaded = false;  // the stand-in of other tests may be loaded
  library_ = tapestry::cuda::open_library(tapestry::cuda::cudnn_spec(), places);
  found_ = library_.about().available();
  if (found_) cudnn::use_library(&library_);
  else std::printf("skipped: %s\n", library_.about().str().c_str());
}

RealLibrary::~RealLibrary() {
  if (found_) cudnn::use_library(nullptr);
}

std::optional<cudnn::Descriptor> RealLibrary::h100() const {
  try {
    cudnn::Descriptor properties(cudnn::Kind::deviceprop);
    const std::string text(kH100);
    properties.set_all<cudnn::Attribute::deviceprop_json_representation>(
        std::span<const char>(text.c_str(), text.size() + 1));
    properties.finalize();
    return properties;
  } catch (const cudnn::CudnnError& e) {
    std::printf("skipped: cuDNN %s takes no properties of a GPU as text: %s\n", version().c_str(), e.what());
    return {};
  }
}

bool RealLibrary::has_driver() const {
  for (const char* file : {"libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so"})
    if (dlopen(file, RTLD_LAZY | RTLD_GLOBAL)) return true;
  std::printf("skipped: there is neither a CUDA driver nor the toolkit's stub of it\n");
  return false;
}

}  // namespace cudnn_test
