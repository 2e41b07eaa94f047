// Tests kernel launches (kernels/cuda/launch.cuh) from the program, and from a shared library that is linked
// with its own copy of the CUDA runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/cuda_runtime/kernels.h"

namespace {

template <class T>
T argument(const stand_in::Launch& launch, std::size_t i) {
  T value;
  REQUIRE(launch.kernel.parameters);
  REQUIRE(launch.kernel.parameters->at(i).bytes == sizeof value);
  std::memcpy(&value, launch.arguments.data() + launch.kernel.parameters->at(i).offset, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("a launch passes its configuration and arguments") {
  const Gpus gpus;
  const Tensor x = empty({10}, kFirst), y = empty({10}, kFirst);
  const Stream stream = current_stream(kFirst);
  first::launch_scale(x.data<float>(), y.data<float>(), 10, 0.5, stream.native(), 7);
  first::launch_bounded(64, stream.native());
  first::launch_by_chevrons(y.data<float>(), stream.native());
  const auto launches = stand_in::launches();
  REQUIRE(launches.size() == 3);
  const stand_in::Launch& scale = launches[0];
  CHECK_THAT(scale.kernel.symbol, ContainsSubstring("scale"));
  CHECK(scale.kernel.max_threads == 128);
  CHECK(scale.grid == std::array<unsigned, 3>{7, 1, 1});
  CHECK(scale.block == std::array<unsigned, 3>{128, 1, 1});
  CHECK(scale.gpu == 0);
  CHECK(scale.stream == stream.native());
  CHECK(argument<const float*>(scale, 0) == x.data<float>());
  CHECK(argument<float*>(scale, 1) == y.data<float>());
  CHECK(argument<int>(scale, 2) == 10);
  CHECK(argument<double>(scale, 3) == 0.5);
  const stand_in::Launch& bounded = launches[1];
  CHECK(bounded.grid == std::array<unsigned, 3>{1, 2, 3});
  CHECK(argument<char>(bounded, 0) == 'x');
  CHECK(bounded.kernel.parameters->at(1).offset == 4);
  CHECK(argument<std::array<std::int32_t, 5>>(bounded, 1) == std::array<std::int32_t, 5>{1, 2, 3, 4, 5});
  CHECK(bounded.kernel.parameters->at(2).offset == 24);
  CHECK(argument<std::int64_t>(bounded, 2) == -7);
  CHECK(launches[2].block == std::array<unsigned, 3>{3, 4, 1});
  CHECK(launches[2].shared_bytes == 16);
}

TEST_CASE("an executor runs launches in stream order, when the host waits") {
  const Gpus gpus;
  Tensor host = empty({100});
  for (int i = 0; i < 100; ++i) host.data<float>()[i] = static_cast<float>(i);
  const Tensor x = host.to(kFirst), y = empty({100}, kFirst);
  int runs = 0;
  stand_in::set_executor([&](const stand_in::Launch& l) {
    ++runs;
    const auto n = static_cast<std::size_t>(argument<int>(l, 2));
    const auto* in =
        reinterpret_cast<const float*>(stand_in::memory_at(argument<const float*>(l, 0), n * sizeof(float)));
    auto* out = reinterpret_cast<float*>(stand_in::memory_at(argument<float*>(l, 1), n * sizeof(float)));
    if (!in || !out) throw std::runtime_error("an operand is not inside live memory");
    for (std::size_t i = 0; i < n; ++i)
      out[i] = static_cast<float>(argument<double>(l, 3)) * in[i] + static_cast<float>(i);
  });
  first::launch_scale(x.data<float>(), y.data<float>(), 100, 2, current_stream(kFirst).native());
  second::launch_scale(y.data<float>(), y.data<float>(), 100, 3, current_stream(kFirst).native());
  CHECK(runs == 0);
  const Tensor back = y.to(kCPU);
  CHECK(runs == 2);
  for (int i = 0; i < 100; ++i) CHECK(back.data<float>()[i] == static_cast<float>(3 * (2 * i + i) + i));
}

// Kernels of a module with its own copy of the runtime must be launched through that copy, because other
// copies do not know them.
TEST_CASE("a module with a CUDA runtime of its own launches its own kernels") {
  const Gpus gpus;
  const Tensor x = empty({10}, kFirst);
  void* arguments[4] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = static_cast<cudaStream_t>(current_stream(kFirst).native());
  CHECK(cudaLaunchKernelExC(&config, second::scale_address(), arguments) == cudaErrorInvalidDeviceFunction);
  static_cast<void>(cudaGetLastError());
  CHECK_NOTHROW(
      second::launch_scale(x.data<float>(), x.data<float>(), 10, 1, current_stream(kFirst).native()));
  CHECK_NOTHROW(second::launch_shared(100 << 10, current_stream(kFirst).native()));
  REQUIRE(stand_in::launches().size() == 2);
  CHECK_THAT(stand_in::launches()[0].kernel.symbol, ContainsSubstring("second"));
}

// Each copy of the runtime remembers a current device per thread. The stand-in refuses a launch in a stream
// of another GPU than the launching copy's current device, as CUDA does.
TEST_CASE("a launch goes to its stream's GPU, whichever device was current in its module") {
  const Gpus gpus;
  const Tensor x = empty({10}, kFirst), y = empty({10}, kSecond);
  for (int i = 0; i < 3; ++i) {
    for (const Tensor* t : {&x, &y}) {
      void* const stream = current_stream(t->device()).native();
      CHECK_NOTHROW(first::launch_scale(t->data<float>(), t->data<float>(), 10, 1, stream));
      CHECK_NOTHROW(second::launch_scale(t->data<float>(), t->data<float>(), 10, 1, stream));
      CHECK(stand_in::launches().back().gpu == t->device().index);
    }
  }
  std::thread([&] {
    CHECK_NOTHROW(
        second::launch_scale(y.data<float>(), y.data<float>(), 10, 1, current_stream(kSecond).native()));
  }).join();
}

TEST_CASE("a kernel may use more than 48 KiB of shared memory on each GPU") {
  const Gpus gpus;
  const auto stream = [](Device device) { return current_stream(device).native(); };
  const auto attributes = [] { return stand_in::calls()["cudaFuncSetAttribute"]; };
  CHECK_NOTHROW(first::launch_shared(48 << 10, stream(kFirst)));
  CHECK(attributes() == 0);
  CHECK_NOTHROW(first::launch_shared(90 << 10, stream(kFirst)));
  CHECK_NOTHROW(first::launch_shared(64 << 10, stream(kFirst)));
  CHECK(attributes() == 1);
  CHECK_NOTHROW(first::launch_shared(90 << 10, stream(kSecond)));
  CHECK(attributes() == 2);
  // Another thread's launch with less shared memory must not lower the limit, which all threads share.
  std::thread([&] { CHECK_NOTHROW(first::launch_shared(50 << 10, stream(kFirst))); }).join();
  CHECK_NOTHROW(first::launch_shared(90 << 10, stream(kFirst)));
  CHECK_THROWS_WITH(first::launch_shared(300 << 10, stream(kFirst)),
                    ContainsSubstring("[cuda] launch of first::") && ContainsSubstring("needs_shared") &&
                        ContainsSubstring("failed on GPU 0") && ContainsSubstring("cudaErrorInvalidValue"));
}

TEST_CASE("launches that a GPU refuses throw CudaError and name the kernel") {
  const Gpus gpus;
  const Tensor x = empty({10}, kSecond);
  void* const stream = current_stream(kSecond).native();
  const auto launch = [&](unsigned blocks) {
    second::launch_scale(x.data<float>(), x.data<float>(), 10, 1, stream, blocks);
  };
  CHECK_THROWS_WITH(launch(0), ContainsSubstring("launch of second::") &&
                                   ContainsSubstring("scale(float const*, float*, int, double)") &&
                                   ContainsSubstring("on GPU 1") &&
                                   ContainsSubstring("cudaErrorInvalidConfiguration"));
  CHECK_THROWS_AS(first::launch_bounded(65, stream), CudaError);
  CHECK_THROWS_AS(first::launch_bounded(0, stream), CudaError);
  stand_in::fail("cudaLaunchKernelExC", 1, cudaErrorMemoryAllocation);
  CHECK_THROWS_AS(launch(1), OutOfMemoryError);
  stand_in::fail("cudaStreamGetDevice", 1, cudaErrorInvalidResourceHandle);
  CHECK_THROWS_AS(launch(1), CudaError);
  stand_in::fail("cudaSetDevice", 1, cudaErrorDevicesUnavailable);
  // The new thread's current device is GPU 0, so the launch must select GPU 1, which fails.
  std::thread([&] { CHECK_THROWS_AS(launch(1), CudaError); }).join();
}

TEST_CASE("an error inside a kernel is thrown where the host next waits") {
  const Gpus gpus;
  const Tensor x = empty({10}, kFirst);
  const Stream stream = current_stream(kFirst);
  const auto launch = [&] { first::launch_scale(x.data<float>(), x.data<float>(), 10, 1, stream.native()); };
  stand_in::fail_next_kernel(cudaErrorIllegalAddress);
  CHECK_NOTHROW(launch());
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("cudaStreamSynchronize") &&
                                              ContainsSubstring("cudaErrorIllegalAddress") &&
                                              ContainsSubstring("CUDA_LAUNCH_BLOCKING=1"));
  // cudaErrorIllegalAddress makes the CUDA context unusable: every later call must return the error again.
  CHECK_THROWS_WITH(launch(), ContainsSubstring("cudaErrorIllegalAddress"));
  CHECK_THROWS_AS(empty({3'000'000}, kFirst), CudaError);
}

TEST_CASE("child: TAPESTRY_SYNC_LAUNCHES=1 reports a kernel's error where it was launched",
          "[.][sync_launches]") {
  const Gpus gpus;
  const Tensor x = empty({10}, kFirst);
  const auto launch = [&] {
    second::launch_scale(x.data<float>(), x.data<float>(), 10, 1, current_stream(kFirst).native());
  };
  CHECK_NOTHROW(launch());
  stand_in::fail_next_kernel(cudaErrorMisalignedAddress);
  CHECK_THROWS_WITH(
      launch(), ContainsSubstring("launch of second::") && ContainsSubstring("cudaErrorMisalignedAddress"));
}
