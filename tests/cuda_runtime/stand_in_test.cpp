// Tests the stand-in for the CUDA runtime. It must detect leaks and misuse, and must run work as late as CUDA
// may.
#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "tests/support/catch.h"
#include "tapestry/tools/ptx/runtime/control.h"

namespace {

/// Makes new stand-in GPUs. Unlike Gpus, it does not check for leaks and misuse: the test case does that
/// itself.
struct Fresh {
  explicit Fresh(int gpus = 2, std::size_t memory = std::size_t{64} << 20) { stand_in::reset(gpus, memory); }
  ~Fresh() { stand_in::reset(); }
};

void* allocated(std::size_t bytes) {
  void* data = nullptr;
  CHECK(cudaMalloc(&data, bytes) == cudaSuccess);
  return data;
}
char* at(void* data, std::size_t offset) { return static_cast<char*>(data) + offset; }
cudaStream_t stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t made = nullptr;
  CHECK(cudaStreamCreateWithFlags(&made, flags) == cudaSuccess);
  return made;
}
cudaEvent_t event(unsigned flags = cudaEventDefault) {
  cudaEvent_t made = nullptr;
  CHECK(cudaEventCreateWithFlags(&made, flags) == cudaSuccess);
  return made;
}

}  // namespace

TEST_CASE("what is not released is listed") {
  const Fresh fresh;
  void* const data = allocated(1000);
  const cudaStream_t s = stream();
  const cudaEvent_t e = event();
  void* host = nullptr;
  CHECK(cudaMallocHost(&host, 10) == cudaSuccess);
  CHECK(stand_in::leaks().size() == 4);
  CHECK_THAT(stand_in::leaks()[0] + stand_in::leaks()[1],
             ContainsSubstring("1000 bytes of memory on GPU 0") &&
                 ContainsSubstring("10 bytes of page-locked memory"));
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFreeHost(host) == cudaSuccess);
  CHECK(cudaStreamDestroy(s) == cudaSuccess);
  CHECK(cudaEventDestroy(e) == cudaSuccess);
  CHECK(stand_in::leaks().empty());
  CHECK(stand_in::misuse().empty());
}

TEST_CASE("copies outside of an allocation, of freed memory or in the wrong direction are misuse") {
  const Fresh fresh;
  void* const a = allocated(1000);
  void* const b = allocated(1000);
  std::vector<char> host(1001);
  std::size_t found = 0;
  const auto refused = [&](cudaError_t error) {
    CHECK(error == cudaErrorInvalidValue);
    CHECK(stand_in::misuse().size() == ++found);
  };
  refused(cudaMemcpy(a, host.data(), 1001, cudaMemcpyDefault));
  refused(cudaMemcpy(at(a, 1), host.data(), 1000, cudaMemcpyDefault));
  refused(cudaMemcpy(host.data(), at(a, 1000), 1, cudaMemcpyDefault));
  refused(cudaMemcpy(a, b, 10, cudaMemcpyHostToDevice));
  refused(cudaMemcpy(host.data(), a, 10, cudaMemcpyHostToDevice));
  refused(cudaMemcpy(a, host.data(), 10, cudaMemcpyDeviceToHost));
  refused(cudaMemset(at(a, 999), 0, 2));
  refused(cudaMemcpyPeerAsync(a, 1, b, 0, 10, nullptr));
  CHECK(cudaMemcpy2DAsync(a, 3, b, 4, 4, 2, cudaMemcpyDefault, nullptr) == cudaErrorInvalidPitchValue);
  refused(cudaMemcpy2DAsync(a, 100, b, 100, 4, 11, cudaMemcpyDefault, nullptr));
  CHECK(cudaMemcpy2DAsync(a, 100, b, 100, 4, 10, cudaMemcpyDefault, nullptr) == cudaSuccess);
  CHECK(cudaFree(b) == cudaSuccess);
  refused(cudaMemcpy(a, b, 1, cudaMemcpyDefault));
  refused(cudaFree(b));
  refused(cudaFree(at(a, 8)));
  refused(cudaFreeHost(a));
  CHECK(cudaMemcpy(nullptr, host.data(), 1, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaFree(a) == cudaSuccess);
}

TEST_CASE("handles that do not exist, or belong to another GPU, are misuse") {
  const Fresh fresh;
  const cudaStream_t s = stream(), gone = stream();
  const cudaEvent_t e = event(), plain = event(cudaEventDisableTiming);
  CHECK(cudaStreamDestroy(gone) == cudaSuccess);
  CHECK(cudaStreamSynchronize(gone) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamDestroy(gone) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(e, gone) == cudaErrorInvalidResourceHandle);
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, e, e) == cudaErrorInvalidResourceHandle);  // the event was never recorded
  CHECK(cudaEventRecord(e, s) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&ms, e, e) == cudaErrorNotReady);
  CHECK(cudaEventElapsedTime(&ms, e, plain) == cudaErrorInvalidResourceHandle);
  CHECK(cudaSetDevice(1) == cudaSuccess);
  const cudaEvent_t other = event();
  CHECK(cudaEventRecord(other, s) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamWaitEvent(s, other, 0) == cudaSuccess);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(stand_in::misuse().size() == 7);
  CHECK(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("work runs in stream order, when the host waits or keeps asking") {
  const Fresh fresh;
  void* const data = allocated(8);
  const cudaStream_t a = stream(), b = stream();
  const cudaEvent_t e = event();
  std::vector<int> order;
  struct Note {
    std::vector<int>* order;
    int value;
  };
  Note notes[] = {{&order, 1}, {&order, 2}, {&order, 3}};
  const auto note = [](void* n) { static_cast<Note*>(n)->order->push_back(static_cast<Note*>(n)->value); };
  CHECK(cudaLaunchHostFunc(a, note, &notes[0]) == cudaSuccess);
  CHECK(cudaEventRecord(e, a) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(a, note, &notes[1]) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(b, e, 0) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(b, note, &notes[2]) == cudaSuccess);
  CHECK(order.empty());
  CHECK(cudaStreamSynchronize(b) == cudaSuccess);
  CHECK(order == std::vector<int>{1, 3});
  CHECK(cudaStreamQuery(a) == cudaErrorNotReady);
  int asked = 0;
  while (cudaStreamQuery(a) == cudaErrorNotReady && asked < 10) ++asked;
  CHECK(asked < 10);
  CHECK(order == std::vector<int>{1, 3, 2});

  // A copy must read its source when it runs, not when it is enqueued.
  std::int64_t value = 1;
  CHECK(cudaMemcpyAsync(data, &value, 8, cudaMemcpyDefault, a) == cudaSuccess);
  value = 2;
  std::int64_t back = 0;
  CHECK(cudaMemcpyAsync(&back, data, 8, cudaMemcpyDefault, a) == cudaSuccess);
  CHECK(back == 0);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(back == 2);
  CHECK(stand_in::misuse().empty());
}

TEST_CASE("the null stream waits for blocking streams only") {
  const Fresh fresh;
  const cudaStream_t blocking = stream(cudaStreamDefault), other = stream();
  bool ran[2] = {};
  const auto set = [](void* flag) { *static_cast<bool*>(flag) = true; };
  CHECK(cudaLaunchHostFunc(blocking, set, &ran[0]) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(other, set, &ran[1]) == cudaSuccess);
  CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
  CHECK(ran[0]);
  CHECK_FALSE(ran[1]);
}

TEST_CASE("memory is limited, holds garbage at first, and is not the host's to touch") {
  const Fresh fresh(1, 1 << 20);
  void* const data = allocated(1 << 20);
  void* more = data;
  CHECK(cudaMalloc(&more, 1) == cudaErrorMemoryAllocation);
  CHECK(more == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  unsigned char first = 0;
  CHECK(cudaMemcpy(&first, data, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(first == 0xcb);
  CHECK(stand_in::memory_at(data, 1 << 20) != static_cast<std::byte*>(data));
  CHECK(stand_in::memory_at(at(data, 1), 1 << 20) == nullptr);
}

TEST_CASE("injected errors come at the call that was named, once or for good") {
  const Fresh fresh;
  stand_in::fail("cudaMemGetInfo", 2, cudaErrorInvalidValue);
  std::size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(cudaMemGetInfo(&free, &total) == cudaErrorInvalidValue);
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  stand_in::fail("cudaMemGetInfo", 1, cudaErrorLaunchFailure);
  CHECK(cudaMemGetInfo(&free, &total) == cudaErrorLaunchFailure);
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
}
