// The host's calls: copies, lifetimes, streams, events, launches.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

__global__ void fill(float* x, float value, int n) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    x[i] = value;
}
__global__ void twice(const float* x, float* y, int n) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    y[i] = 2 * x[i];  // planted: reused_by_other_stream, freed_while_other_stream_reads,
                      // no_wait_between_streams, event_on_wrong_stream, event_recorded_early,
                      // wait_before_record, null_stream_does_not_wait, graph_outlives_memory
}
constexpr int kSize = 256;

struct Stream {
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    CHECK(cudaStreamCreateWithFlags(&stream, flags));
  }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream; }
  cudaStream_t stream = nullptr;
};
struct Event {
  Event() { CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event; }
  cudaEvent_t event = nullptr;
};

BUG(no_wait_between_streams) {
  const Stream first, second;
  const Event done;
  const Buffer<float> x(kSize), y(kSize);
  fill<<<2, 64, 0, first>>>(x.data, 1, kSize);
  CHECK(cudaEventRecord(done, first));
  if (mended) CHECK(cudaStreamWaitEvent(second, done, 0));
  twice<<<2, 64, 0, second>>>(x.data, y.data, kSize);
  FINISH();
}
BUG(event_on_wrong_stream) {
  const Stream first, second;
  const Event done;
  const Buffer<float> x(kSize), y(kSize);
  fill<<<2, 64, 0, first>>>(x.data, 1, kSize);
  CHECK(cudaEventRecord(done, mended ? first : second));
  CHECK(cudaStreamWaitEvent(second, done, 0));
  twice<<<2, 64, 0, second>>>(x.data, y.data, kSize);
  FINISH();
}
BUG(event_recorded_early) {
  const Stream first, second;
  const Event done;
  const Buffer<float> x(kSize), y(kSize);
  if (!mended) CHECK(cudaEventRecord(done, first));
  fill<<<2, 64, 0, first>>>(x.data, 1, kSize);
  if (mended) CHECK(cudaEventRecord(done, first));
  CHECK(cudaStreamWaitEvent(second, done, 0));
  twice<<<2, 64, 0, second>>>(x.data, y.data, kSize);
  FINISH();
}
/// Waiting for an event that was never recorded waits for nothing.
BUG(wait_before_record) {
  const Stream first, second;
  const Event done;
  const Buffer<float> x(kSize), y(kSize);
  fill<<<2, 64, 0, first>>>(x.data, 1, kSize);
  if (mended) CHECK(cudaEventRecord(done, first));
  CHECK(cudaStreamWaitEvent(second, done, 0));
  twice<<<2, 64, 0, second>>>(x.data, y.data, kSize);
  if (!mended) CHECK(cudaEventRecord(done, first));
  FINISH();
}
/// The null stream waits for blocking streams only.
BUG(null_stream_does_not_wait) {
  const Stream side(mended ? cudaStreamDefault : cudaStreamNonBlocking);
  const Buffer<float> x(kSize), y(kSize);
  fill<<<2, 64, 0, side>>>(x.data, 1, kSize);
  twice<<<2, 64>>>(x.data, y.data, kSize);
  FINISH();
}
BUG(freed_while_other_stream_reads) {
  const Stream first, second;
  const Event filled, read;
  const Buffer<float> y(kSize);
  float* x;
  CHECK(cudaMallocAsync(reinterpret_cast<void**>(&x), kSize * sizeof(float), first));
  fill<<<2, 64, 0, first>>>(x, 1, kSize);
  CHECK(cudaEventRecord(filled, first));
  CHECK(cudaStreamWaitEvent(second, filled, 0));
  twice<<<2, 64, 0, second>>>(x, y.data, kSize);
  CHECK(cudaEventRecord(read, second));
  if (mended) CHECK(cudaStreamWaitEvent(first, read, 0));
  CHECK(cudaFreeAsync(x, first));
  CHECK(cudaStreamSynchronize(first));
  FINISH();
}
/// A pool of the program's own gives a block to another stream, which must wait for what was done with it.
BUG(reused_by_other_stream) {
  const Stream first, second;
  const Event read;
  const Buffer<float> block(kSize, 1), y(kSize);
  twice<<<2, 64, 0, first>>>(block.data, y.data, kSize);
  CHECK(cudaEventRecord(read, first));
  if (mended) CHECK(cudaStreamWaitEvent(second, read, 0));
  fill<<<2, 64, 0, second>>>(block.data, 2, kSize);
  CHECK(cudaStreamSynchronize(second));
  FINISH();
}

struct Pinned {
  Pinned() {
    CHECK(cudaMallocHost(reinterpret_cast<void**>(&data), kSize * sizeof(float)));
    for (int i = 0; i < kSize; ++i) data[i] = 1;
  }
  ~Pinned() { cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  float* data = nullptr;
};
BUG(host_reads_early) {
  const Stream stream;
  const Pinned host;
  const Buffer<float> x(kSize, 3);
  CHECK(cudaMemcpyAsync(host.data, x.data, x.bytes(), cudaMemcpyDeviceToHost, stream));
  if (mended) CHECK(cudaStreamSynchronize(stream));
  EXPECT(host.data[7] == 3);  // planted: host_reads_early
}
BUG(host_writes_early) {
  const Stream stream;
  const Pinned host;
  const Buffer<float> x(kSize, 0);
  CHECK(cudaMemcpyAsync(x.data, host.data, x.bytes(), cudaMemcpyHostToDevice, stream));
  if (mended) CHECK(cudaStreamSynchronize(stream));
  host.data[7] = 9;  // the next batch
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(x.download()[7] == 1);  // planted: host_writes_early
}

BUG(double_free) {
  float* x;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&x), 64));
  CHECK(cudaFree(x));
  if (!mended) CHECK(cudaFree(x));  // planted: double_free
}
BUG(free_of_the_middle) {
  float* x;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&x), 64));
  CHECK(cudaFree(mended ? x : x + 4));  // planted: free_of_the_middle
}
BUG(free_by_the_wrong_function) {
  float* x;
  CHECK(cudaMallocHost(reinterpret_cast<void**>(&x), 64));
  CHECK(mended ? cudaFreeHost(x) : cudaFree(x));  // planted: free_by_the_wrong_function
}
BUG(never_freed) {
  float* x;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&x), 1024));  // planted: never_freed
  if (mended) CHECK(cudaFree(x));
}
BUG(copy_in_wrong_direction) {
  const Buffer<float> x(kSize, 1);
  std::vector<float> host(kSize);
  CHECK(cudaMemcpy(  // planted: copy_in_wrong_direction
      host.data(), x.data, x.bytes(), mended ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice));
}
BUG(copy_too_long) {
  const Buffer<float> x(kSize);
  const std::vector<float> host(2 * kSize, 1);
  CHECK(cudaMemcpy(x.data, host.data(), mended ? x.bytes() : 2 * x.bytes(),  // planted: copy_too_long
                   cudaMemcpyHostToDevice));
}
BUG(result_never_written) {
  const Buffer<float> x(kSize, 1), y(kSize);
  twice<<<2, 64>>>(x.data, y.data, mended ? kSize : kSize - 56);
  FINISH();
  std::vector<float> host(kSize);
  CHECK(cudaMemcpy(host.data(), y.data, y.bytes(), cudaMemcpyDeviceToHost));  // planted: result_never_written
}
BUG(graph_outlives_memory) {
  const Stream stream;
  const Buffer<float> y(kSize);
  float* x;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&x), kSize * sizeof(float)));
  CHECK(cudaMemset(x, 0, kSize * sizeof(float)));
  CHECK(cudaDeviceSynchronize());
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  twice<<<2, 64, 0, stream>>>(x, y.data, kSize);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  if (!mended) CHECK(cudaFree(x));
  CHECK(cudaGraphLaunch(ready, stream));
  CHECK(cudaStreamSynchronize(stream));
  if (mended) CHECK(cudaFree(x));
  CHECK(cudaGraphExecDestroy(ready));
  CHECK(cudaGraphDestroy(graph));
}
BUG(too_many_threads) {
  const Buffer<float> x(2048);
  fill<<<1, mended ? 1024 : 2048>>>(x.data, 1, 2048);  // planted: too_many_threads
  CHECK(cudaDeviceSynchronize());                      // does not return the error of the launch
}
__global__ void __launch_bounds__(128) bounded(float* x) { x[threadIdx.x] = 1; }
BUG(more_threads_than_bounds) {
  const Buffer<float> x(256);
  bounded<<<1, mended ? 128 : 256>>>(x.data);  // planted: more_threads_than_bounds
  CHECK(cudaDeviceSynchronize());
}
__global__ void much_shared(float* x) {
  extern __shared__ float memory[];
  memory[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = memory[threadIdx.x ^ 1];
}
BUG(shared_limit_not_raised) {
  const Buffer<float> x(64);
  if (mended) CHECK(cudaFuncSetAttribute(much_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  much_shared<<<1, 64, 64 << 10>>>(x.data);  // planted: shared_limit_not_raised
  CHECK(cudaDeviceSynchronize());
}
