// The stand-in runtime refuses in a capture what CUDA refuses, and core/cuda/runtime.cpp does none of it.
#include <cuda_runtime_api.h>

#include <functional>

#include "tapestry/core/cuda/capture.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/cuda_runtime/kernels.h"

TEST_CASE("calls that CUDA refuses in a capture invalidate it") {
  const Gpus gpus(1);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  void *data = nullptr, *old = nullptr;
  REQUIRE(cudaMalloc(&old, 64) == cudaSuccess);
  const std::function<cudaError_t()> refused[] = {[&] { return cudaStreamSynchronize(stream); },
                                                  [&] { return cudaStreamQuery(stream); },
                                                  [&] { return cudaDeviceSynchronize(); },
                                                  [&] { return cudaEventQuery(event); },
                                                  [&] { return cudaEventSynchronize(event); },
                                                  [&] { return cudaMalloc(&data, 64); },
                                                  [&] { return cudaFree(old); }};
  for (const auto& call : refused) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(call() == cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  }
  // A thread whose mode is relaxed may allocate.
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(cudaMalloc(&data, 64) == cudaSuccess);
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  for (void* const one : {data, old}) CHECK(cudaFree(one) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("a captured kernel runs with each replay and not before, and its memory stays") {
  const Gpus gpus(1);
  const Tensor x = empty({1000}, kFirst);
  float* inside = nullptr;
  auto step = cuda::capture(
      [&] {
        const Tensor y = empty({1000}, kFirst);
        inside = y.data<float>();
        first::launch_scale(x.data<float>(), inside, 1000, 2, current_stream(kFirst).native());
      },
      {.warm_up = 0});
  CHECK(step.nodes() == 1);
  int ran = 0;
  stand_in::set_executor([&](const stand_in::Launch&) { ++ran; });
  synchronize(kFirst);
  CHECK(ran == 0);
  empty_cache(DeviceType::cuda);
  CHECK(stand_in::memory_at(inside, 4000) != nullptr);
  for (int i = 0; i < 3; ++i) step.replay();
  synchronize(kFirst);
  CHECK(ran == 3);
  stand_in::set_executor({});
}
