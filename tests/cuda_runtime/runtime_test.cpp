// Tests core/cuda/runtime.cpp on stand-in GPUs: that it makes the right calls to CUDA, and that it handles
// every error that a call can return.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <typeinfo>

#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/capture.h"
#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/cuda_runtime/kernels.h"

namespace {

Tensor counted(std::int64_t n) {
  Tensor t = empty({n});
  for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}

/// Uses every call that core makes to CUDA, and launches kernels of two modules. Throws std::logic_error if a
/// value is wrong.
void use_everything() {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  expect(device_count(DeviceType::cuda) == 2, "two devices");
  expect(cuda::device_properties(kSecond).name == "Tapestry PTX machine 1", "properties");
  const Tensor pinned = empty_pinned({1000}), back = empty_pinned({1000});
  std::memcpy(pinned.raw_data(), counted(1000).raw_data(), pinned.nbytes());
  const Tensor x = empty({1000}, kFirst), y = empty({1000}, kSecond);
  const ExclusiveStream side(kFirst, true);
  Event begin(true), copied(true), plain;
  begin.record(side);
  copy_async(x, pinned, side);
  copied.record(side);
  current_stream(kFirst).wait(copied);
  first::launch_scale(x.data<float>(), x.data<float>(), 1000, 1, current_stream(kFirst).native());
  second::launch_shared(60 << 10, current_stream(kFirst).native());
  cuda::copy_bytes(kSecond, y.raw_data(), kFirst, x.raw_data(), x.nbytes());
  cuda::copy_rows_async(back.raw_data(), 8, y.raw_data(), 8, 4, 500, current_stream(kSecond));
  record_stream(x, side);
  plain.record(side);
  while (!plain.done()) {
  }
  copied.synchronize();
  expect(copied.milliseconds_since(begin) > 0, "time between events");
  {
    // A graph that allocates, launches and copies: its replay doubles x.
    auto step = cuda::capture(
        [&] {
          const Tensor scratch = empty({5'000'000}, kFirst);
          first::launch_scale(x.data<float>(), x.data<float>(), 1000, 2, current_stream(kFirst).native());
          copy_async(x, pinned, current_stream(kFirst));
        },
        {.warm_up = 0, .device = kFirst});
    expect(step.nodes() == 2, "nodes");
    step.replay();
    bool refused = false;
    try {
      cuda::capture([] { current_stream(kFirst).synchronize(); }, {.warm_up = 0, .device = kFirst});
    } catch (const cuda::CaptureError&) {
      refused = true;
    }
    expect(refused, "a wait in a capture");
  }
  { const Tensor freed = empty({5'000'000}, kFirst); }
  expect(cuda::memory_info(kFirst).free < (std::size_t{256} << 20), "memory in use");
  empty_cache(DeviceType::cuda);
  while (!side.stream().done()) {
  }
  current_stream(kSecond).synchronize();
  synchronize(kFirst);
  for (int i = 0; i < 1000; i += 2) expect(back.data<float>()[i] == static_cast<float>(i), "copied values");
}

/// The calls that release an object. Their errors must not be thrown, because no caller could handle them.
const std::set<std::string> kReleases = {"cudaFree",          "cudaFreeHost",     "cudaEventDestroy",
                                         "cudaStreamDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy"};
/// Calls that are also made while a tensor's memory is freed, with the number of such calls. Freeing must not
/// throw: if the call fails, the block is never reused.
const std::map<std::string, std::size_t> kAlsoInRelease = {
    {"cudaGetDevice", 3},        {"cudaEventCreateWithFlags", 1},
    {"cudaEventRecord", 2},      {"cudaDeviceSynchronize", 1},
    {"cudaStreamEndCapture", 1}, {"cudaThreadExchangeStreamCaptureMode", 1}};

enum class Outcome { nothing, out_of_memory, cuda_error, other };

/// Runs use_everything() on a new thread, which has not selected a device yet. Returns what it threw.
Outcome try_everything(std::string& text) {
  Outcome outcome = Outcome::nothing;
  std::thread([&] {
    try {
      use_everything();
    } catch (const OutOfMemoryError& e) {
      outcome = Outcome::out_of_memory, text = e.what();
    } catch (const CudaError& e) {
      outcome = Outcome::cuda_error, text = e.what();
    } catch (const std::exception& e) {
      outcome = Outcome::other, text = e.what();
    }
  }).join();
  return outcome;
}

}  // namespace

// Injects every class of error at every call to CUDA. If an exception is thrown, it must have the right type,
// and its text must name the call and the error. Only calls that release memory, and allocations that are
// tried again, may fail without one. Nothing may leak.
TEST_CASE("an error at any call to CUDA throws the right exception, and nothing leaks") {
  std::map<std::string, int> calls;
  for (int i = 0; i < 2; ++i) {  // only the second run counts, because some calls are made once per process
    const Gpus gpus;
    std::string text;
    CHECK(try_everything(text) == Outcome::nothing);
    CHECK(text == "");
    calls = stand_in::calls();
  }
  CHECK(calls.size() >= 30);
  int injected = 0;
  std::map<std::string, std::set<int>> not_thrown;
  for (const auto& [function, times] : calls) {
    for (int nth = 1; nth <= times; ++nth) {
      for (const cudaError_t error :
           {cudaErrorMemoryAllocation, cudaErrorInvalidValue, cudaErrorIllegalAddress,
            cudaErrorECCUncorrectable, cudaErrorInsufficientDriver}) {
        const std::string name = cudaGetErrorName(error);
        CAPTURE(function, nth, name);
        std::string text;
        Outcome outcome;
        {
          stand_in::reset();
          stand_in::fail(function, nth, error);
          const Gpus gpus(kKeepInjected);
          outcome = try_everything(text);
        }
        ++injected;
        CAPTURE(text);
        if (function == "cudaGetDeviceCount") {
          CHECK(outcome == Outcome::other);  // without devices, use_everything() reports a wrong device count
          continue;
        }
        // A failed allocation need not throw, because the allocator tries again after it has released its
        // cache.
        const bool retried =
            error == cudaErrorMemoryAllocation && (function == "cudaMalloc" || function == "cudaHostAlloc");
        if (outcome == Outcome::nothing) {
          if (!retried && !kReleases.contains(function)) not_thrown[function].insert(nth);
          continue;
        }
        CHECK(outcome == (error == cudaErrorMemoryAllocation ? Outcome::out_of_memory : Outcome::cuda_error));
        if (!retried) CHECK_THAT(text, ContainsSubstring("[cuda] ") && ContainsSubstring(name));
      }
    }
  }
  for (const auto& [function, calls_not_thrown] : not_thrown) {
    CAPTURE(function, calls_not_thrown);
    REQUIRE(kAlsoInRelease.contains(function));
    CHECK(calls_not_thrown.size() <= kAlsoInRelease.at(function));
  }
  std::printf("%d errors were injected into %zu functions\n", injected, calls.size());
}

// This test uses pairs of GPUs that no other test uses, because peer access is enabled only once per pair and
// process.
TEST_CASE("an error while peer access is enabled is thrown") {
  const Gpus gpus(7);
  const auto copy = [](int from, int to) {
    const Tensor x = empty({10}, Device(DeviceType::cuda, from));
    const Tensor y = empty({10}, Device(DeviceType::cuda, to));
    cuda::copy_bytes(y.device(), y.raw_data(), x.device(), x.raw_data(), x.nbytes());
    synchronize(x.device());
  };
  stand_in::fail("cudaDeviceCanAccessPeer", 1, cudaErrorInvalidDevice);
  CHECK_THROWS_WITH(copy(2, 3),
                    ContainsSubstring("cudaDeviceCanAccessPeer(") && ContainsSubstring("on GPU 2"));
  stand_in::fail("cudaDeviceEnablePeerAccess", 1, cudaErrorInvalidValue);
  CHECK_THROWS_WITH(copy(3, 4), ContainsSubstring("cudaDeviceEnablePeerAccess("));
  stand_in::fail("cudaDeviceEnablePeerAccess", 1, cudaErrorPeerAccessAlreadyEnabled);
  CHECK_NOTHROW(copy(4, 5));
  CHECK_NOTHROW(copy(5, 6));
  CHECK_NOTHROW(copy(5, 6));
  CHECK(stand_in::calls()["cudaDeviceEnablePeerAccess"] == 3);
}

TEST_CASE("errors say what to do about them") {
  struct Case {
    cudaError_t error;
    const char* advice;
  };
  for (const auto& [error, advice] :
       {Case{cudaErrorIllegalAddress, "compute-sanitizer"},
        Case{cudaErrorInsufficientDriver, "install an NVIDIA driver"},
        Case{cudaErrorNoKernelImageForDevice, "install an NVIDIA driver"},
        Case{cudaErrorECCUncorrectable, "nvidia-smi"}, Case{cudaErrorMemoryAllocation, "free tensors"},
        Case{cudaErrorInvalidResourceHandle, "documentation"}}) {
    const Gpus gpus;
    const Stream stream = current_stream(kFirst);
    stand_in::fail("cudaStreamSynchronize", 1, error);
    CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("[cuda] cudaStreamSynchronize(") &&
                                                ContainsSubstring("failed on GPU 0 at runtime.cpp:") &&
                                                ContainsSubstring(advice));
  }
}

TEST_CASE("an error that was thrown is not reported again") {
  const Gpus gpus;
  stand_in::fail("cudaMemGetInfo", 1, cudaErrorInvalidValue);
  CHECK_THROWS_AS(cuda::memory_info(kFirst), CudaError);
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  CHECK(stand_in::calls()["cudaMemGetInfo"] == 1);
}

TEST_CASE("if CUDA finds no usable GPU, why_no_device() gives the reason") {
  struct Case {
    cudaError_t error;
    const char* why;
  };
  for (const auto& [error, why] : {Case{cudaErrorInsufficientDriver, "no NVIDIA driver"},
                                   Case{cudaErrorNoDevice, "this machine has no GPU"},
                                   Case{cudaErrorECCUncorrectable, "uncorrectable ECC error"}}) {
    stand_in::reset();
    stand_in::fail("cudaGetDeviceCount", 1, error);
    const Gpus gpus(kKeepInjected);
    CHECK(device_count(DeviceType::cuda) == 0);
    CHECK_THAT(cuda::why_no_device(), ContainsSubstring(why));
    CHECK(cudaPeekAtLastError() == cudaSuccess);
  }
}

TEST_CASE("running out of memory is an OutOfMemoryError, after the cache was given back") {
  const Gpus gpus(2, std::size_t{100} << 20);
  { const Tensor cached = empty({15 << 20}, kFirst); }
  CHECK_NOTHROW(empty({20 << 20}, kFirst));
  CHECK_THROWS_WITH(empty({30 << 20}, kFirst), ContainsSubstring("no room for 120.00 MiB"));
  CHECK_NOTHROW(empty({20 << 20}, kFirst));
  CHECK_THROWS_AS(empty_pinned({30 << 20}), OutOfMemoryError);
}

TEST_CASE("using one GPU creates no context on another") {
  const Gpus gpus(3);
  std::thread([] {
    const Tensor x = counted(1000).to(kSecond);
    const Tensor pinned = empty_pinned({1000});
    const ExclusiveStream side(kSecond);
    copy_async(pinned, x, side);
    Event event;
    event.record(side);
    std::thread([&] { event.synchronize(); }).join();
    std::thread([&] {
      first::launch_scale(x.data<float>(), x.data<float>(), 9, 1, side.stream().native());
    }).join();
    std::thread([] { empty_cache(DeviceType::cuda); }).join();
  }).join();
  CHECK(stand_in::contexts() == std::vector<int>{1});
}

TEST_CASE("streams have the priority that was asked for") {
  const Gpus gpus;
  const auto priority = [](const Stream& stream) {
    int p = 1;
    CHECK(cudaStreamGetPriority(static_cast<cudaStream_t>(stream.native()), &p) == cudaSuccess);
    return p;
  };
  CHECK(priority(new_stream(kFirst, true)) < priority(new_stream(kFirst)));
  CHECK(priority(ExclusiveStream(kSecond, true)) < priority(ExclusiveStream(kSecond)));
  unsigned flags = 0;
  CHECK(cudaStreamGetFlags(static_cast<cudaStream_t>(current_stream(kFirst).native()), &flags) ==
        cudaSuccess);
  CHECK(flags == cudaStreamNonBlocking);
}
