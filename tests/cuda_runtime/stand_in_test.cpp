// Tests the stand-in for the CUDA runtime. It must detect leaks and misuse, and must run work as late as CUDA
// may.
#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "tapestry/tools/ptx/runtime/control.h"
#include "tests/support/catch.h"

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

TEST_CASE("a graph of nodes runs in the order of its edges, and can be changed") {
  const Fresh fresh;
  const cudaStream_t s = stream();
  void* const data = allocated(8);
  std::int64_t host = 0x0101010101010101, back = 0;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaGraphCreate(&graph, 0) == cudaSuccess);
  cudaGraphNode_t set = nullptr, copy = nullptr, read = nullptr;
  cudaMemsetParams to_seven{data, 0, 7, 1, 8, 1};
  REQUIRE(cudaGraphAddMemcpyNode1D(&read, graph, nullptr, 0, &back, data, 8, cudaMemcpyDefault) ==
          cudaSuccess);
  REQUIRE(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, data, &host, 8, cudaMemcpyDefault) ==
          cudaSuccess);
  REQUIRE(cudaGraphAddMemsetNode(&set, graph, &copy, 1, &to_seven) == cudaSuccess);
  const cudaGraphNode_t from[] = {set}, to[] = {read};
  REQUIRE(cudaGraphAddDependencies(graph, from, to, nullptr, 1) == cudaSuccess);
  std::size_t count = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
  CHECK(count == 3);
  CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count) == cudaSuccess);
  CHECK(count == 2);
  CHECK(cudaGraphGetRootNodes(graph, nullptr, &count) == cudaSuccess);
  CHECK(count == 1);
  cudaGraphExec_t ready = nullptr;
  REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(ready, s) == cudaSuccess);
  CHECK(back == 0);
  CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(back == 0x0707070707070707);
  // Without the memset, the copy's bytes remain; then another value is set.
  CHECK(cudaGraphNodeSetEnabled(ready, set, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(ready, s) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(back == host);
  to_seven.value = 9;
  CHECK(cudaGraphNodeSetEnabled(ready, set, 1) == cudaSuccess);
  CHECK(cudaGraphExecMemsetNodeSetParams(ready, set, &to_seven) == cudaSuccess);
  CHECK(cudaGraphLaunch(ready, s) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(back == 0x0909090909090909);
  cudaGraphExecUpdateResultInfo info{};
  CHECK(cudaGraphExecUpdate(ready, graph, &info) == cudaSuccess);
  CHECK(cudaGraphLaunch(ready, s) == cudaSuccess);
  CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(back == 0x0707070707070707);
  CHECK(cudaGraphDestroyNode(read) == cudaSuccess);
  CHECK(cudaGraphExecUpdate(ready, graph, &info) == cudaErrorGraphExecUpdateFailure);
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  const cudaGraphNode_t circle[] = {set}, closes[] = {copy};
  CHECK(cudaGraphAddDependencies(graph, circle, closes, nullptr, 1) == cudaSuccess);
  cudaGraphExec_t none = nullptr;
  CHECK(cudaGraphInstantiate(&none, graph, 0) == cudaErrorInvalidValue);
  CHECK(stand_in::misuse().size() == 1);
  CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaStreamDestroy(s) == cudaSuccess);
  CHECK(stand_in::leaks().empty());
}

TEST_CASE("a capture takes streams in through events, and must be joined") {
  const Fresh fresh;
  const cudaStream_t a = stream(), b = stream();
  const cudaEvent_t fork = event(), join = event();
  std::vector<int> order;
  struct Note {
    std::vector<int>* order;
    int value;
  };
  Note notes[] = {{&order, 1}, {&order, 2}, {&order, 3}};
  const auto note = [](void* n) { static_cast<Note*>(n)->order->push_back(static_cast<Note*>(n)->value); };
  for (const bool joined : {true, false}) {
    order.clear();
    REQUIRE(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaLaunchHostFunc(a, note, &notes[0]) == cudaSuccess);
    CHECK(cudaEventRecord(fork, a) == cudaSuccess);
    CHECK(cudaEventQuery(fork) == cudaErrorCapturedEvent);
    CHECK(cudaStreamWaitEvent(b, fork, 0) == cudaSuccess);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(b, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    CHECK(cudaLaunchHostFunc(b, note, &notes[1]) == cudaSuccess);
    if (joined) {
      CHECK(cudaEventRecord(join, b) == cudaSuccess);
      CHECK(cudaStreamWaitEvent(a, join, 0) == cudaSuccess);
    }
    CHECK(cudaLaunchHostFunc(a, note, &notes[2]) == cudaSuccess);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(a, &graph) == (joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
    CHECK((graph != nullptr) == joined);
    if (!graph) continue;
    cudaGraphExec_t ready = nullptr;
    REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    CHECK(cudaGraphLaunch(ready, a) == cudaSuccess);
    CHECK(cudaStreamSynchronize(a) == cudaSuccess);
    CHECK(order == std::vector<int>{1, 2, 3});
    CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("memory in stream order, registered and managed memory, and copies in three dimensions") {
  const Fresh fresh;
  const cudaStream_t s = stream();
  void* pooled = nullptr;
  CHECK(cudaMallocAsync(&pooled, 64, s) == cudaSuccess);
  CHECK(cudaMemsetAsync(pooled, 5, 64, s) == cudaSuccess);
  CHECK(cudaFreeAsync(pooled, s) == cudaSuccess);
  CHECK(cudaFreeAsync(pooled, s) == cudaErrorInvalidValue);
  CHECK(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(cudaMemsetAsync(pooled, 5, 64, s) == cudaErrorInvalidValue);
  CHECK(stand_in::misuse().size() == 2);

  std::vector<unsigned char> host(4096, 1);
  CHECK(cudaHostRegister(host.data(), host.size(), 0) == cudaSuccess);
  CHECK(cudaHostRegister(host.data() + 10, 10, 0) == cudaErrorHostMemoryAlreadyRegistered);
  cudaPointerAttributes attributes{};
  CHECK(cudaPointerGetAttributes(&attributes, host.data() + 100) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(cudaHostUnregister(host.data()) == cudaSuccess);

  int* managed = nullptr;
  CHECK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 12, cudaMemAttachGlobal) == cudaSuccess);
  managed[2] = 7;
  int value = 0;
  CHECK(cudaMemcpy(&value, managed + 2, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(value == 7);
  CHECK(cudaFree(managed) == cudaSuccess);

  cudaPitchedPtr box{};
  CHECK(cudaMalloc3D(&box, {3, 2, 2}) == cudaSuccess);
  CHECK(cudaMemset3D(box, 4, {3, 2, 2}) == cudaSuccess);
  unsigned char dense[12] = {};
  cudaMemcpy3DParms p{};
  p.srcPtr = box;
  p.dstPtr = {dense, 3, 3, 2};
  p.extent = {3, 2, 2};
  p.kind = cudaMemcpyDeviceToHost;
  CHECK(cudaMemcpy3D(&p) == cudaSuccess);
  for (const unsigned char c : dense) CHECK(c == 4);
  CHECK(cudaFree(box.ptr) == cudaSuccess);
  CHECK(cudaStreamDestroy(s) == cudaSuccess);
  CHECK(stand_in::leaks().empty());
}

TEST_CASE("a function that the runtime lacks is refused by name") {
  const Fresh fresh;
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format{};
  CHECK(cudaMallocArray(&array, &format, 1, 1, 0) == cudaErrorNotSupported);
  REQUIRE(stand_in::misuse().size() == 1);
  CHECK(stand_in::misuse()[0] == "cudaMallocArray is missing in this runtime");
}
