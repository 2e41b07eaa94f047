// Runs the library that users link, with the kernels that nvcc compiled, on stand-in GPUs. This needs a build
// with CUDA and with the shared CUDA runtime.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include <cstring>

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/cuda_runtime/kernels.h"

TEST_CASE("the library's kernels are registered, and their parameters are known") {
  const auto kernels = stand_in::kernels();
  CHECK(kernels.size() > 100);
  int unbounded = 0;
  for (const stand_in::Kernel& kernel : kernels) {
    CAPTURE(kernel.symbol);
    CHECK(kernel.parameters.has_value());
    unbounded += kernel.max_threads == 0;
  }
  CHECK(unbounded <= 4);  // kernels.cu has two without launch bounds, and is compiled into two modules
}

TEST_CASE("an operation launches its kernel on its tensor's GPU") {
  const Gpus gpus;
  Tensor host = empty({1000});
  std::memset(host.raw_data(), 0, host.nbytes());
  for (const Device device : {kFirst, kSecond}) {
    const Tensor x = host.to(device);
    const auto device_queries = [] { return stand_in::calls()["cudaStreamGetDevice"]; };
    const auto queries_before = device_queries();
    const Tensor y = relu(x);
    // CUDA must not be asked for the stream's GPU, because the slot has noted it.
    CHECK(device_queries() == queries_before);
    const auto launches = stand_in::launches();
    REQUIRE_FALSE(launches.empty());
    const stand_in::Launch& last = launches.back();
    CHECK(last.gpu == device.index);
    CHECK(last.stream == current_stream(device).native());
    // The kernel's arguments must contain the addresses of the operands.
    const auto passes = [&](const Tensor& t) {
      const void* const data = t.raw_data();
      for (std::size_t i = 0; i + sizeof data <= last.arguments.size(); i += sizeof data)
        if (std::memcmp(last.arguments.data() + i, &data, sizeof data) == 0) return true;
      return false;
    };
    CHECK(passes(x));
    CHECK(passes(y));
    // Launches from other modules (the program and a shared library) between operations must not disturb the
    // next operation.
    first::launch_scale(x.data<float>(), y.data<float>(), 10, 1, current_stream(device).native());
    second::launch_scale(x.data<float>(), y.data<float>(), 10, 1, current_stream(device).native());
  }
}
#else
#include "tests/support/catch.h"

TEST_CASE("without CUDA or with a static CUDA runtime, the tests of the library's kernels are skipped") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
