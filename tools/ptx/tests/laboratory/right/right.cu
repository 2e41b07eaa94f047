#include "tapestry/tools/ptx/tests/laboratory/right/right.h"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda/barrier>

#include <atomic>
#include <cassert>
#include <thread>

/// nvcc unrolls the ring by two. The second copy has a negative base in 32 bits and a positive offset.
__global__ void ring(const float* x, float* y, int n) {
  __shared__ float stages[3][256];
  const int t = static_cast<int>(threadIdx.x);
  stages[0][t] = x[t];
  stages[1][t] = x[256 + t];
  for (int i = 0; i < n; ++i) {
    __syncthreads();
    y[i * 256 + t] = stages[i % 3][255 - t];
    stages[(i + 2) % 3][t] = x[(i + 2) * 256 + t];
  }
}
RIGHT(ring_of_three) {
  const Buffer<float> x(10 * 256, 1), y(8 * 256);
  ring<<<1, 256>>>(x.data, y.data, 8);
  FINISH();
  EXPECT(y.download().back() == 1);
}

/// The programming guide's sum: the last block adds the sums of all blocks and resets the counter for the
/// next launch.
__device__ unsigned arrived = 0;
__global__ void sum(const float* x, volatile float* parts) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) total += parts[i];
    parts[0] = total;
    arrived = 0;
  }
}
RIGHT(last_block_resets_its_counter) {
  const Buffer<float> x(8, 1), parts(8);
  sum<<<8, 64>>>(x.data, parts.data);
  sum<<<8, 64>>>(x.data, parts.data);
  FINISH();
  EXPECT(parts.download()[0] == 8);
}

__device__ float max_of(float* to, float value) {
  int* const at = reinterpret_cast<int*>(to);
  int old = *at, assumed;
  do {
    assumed = old;
    old = atomicCAS(at, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
  } while (assumed != old);
  return __int_as_float(old);
}
__global__ void maximum(float* to, __nv_bfloat162* total) {
  max_of(to, static_cast<float>(threadIdx.x));
  atomicAdd(total, __floats2bfloat162_rn(1, 2));  // such a loop, too, on sm_80
}
RIGHT(loop_of_compare_and_swap) {
  const Buffer<float> to(1, 0);
  const Buffer<__nv_bfloat162> total(1, __floats2bfloat162_rn(0, 0));
  maximum<<<2, 64>>>(to.data, total.data);
  FINISH();
  EXPECT(to.download()[0] == 63);
  EXPECT(__bfloat162float(total.download()[0].y) == 256);
}

/// __syncthreads() and the functions of warps wait for the threads that have not ended.
__global__ void leave_early(const int* x, int* y, int n) {
  __shared__ int tile[128];
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) return;
  tile[i] = x[i];
  __syncthreads();
  const unsigned odd = __ballot_sync(0xffffffffu, tile[n - 1 - i] & 1);
  const int any = __any_sync(0xffffffffu, i == n - 1);
  __syncwarp();
  y[i] = __popc(odd) * 10 + any;
}
RIGHT(threads_leave_before_a_barrier) {
  for (const int n : {128, 96, 90, 20}) {
    const Buffer<int> x(n, 1), y(n);
    leave_early<<<1, 128>>>(x.data, y.data, n);
    FINISH();
    const int last = n % 32 == 0 ? 32 : n % 32;
    EXPECT(y.download()[0] == (n < 32 ? n * 10 + 1 : 320) && y.download().back() == last * 10 + 1);
  }
}
/// The full mask names 16 lanes that a block of 48 threads does not have.
__global__ void full_mask(const int* x, int* y) {
  const int i = static_cast<int>(threadIdx.x), lane = i % 32, v = x[i];
  const int any = __any_sync(0xffffffffu, i == 40), count = __popc(__ballot_sync(0xffffffffu, 1));
  const int up = __shfl_up_sync(0xffffffffu, v, 1);
  __syncwarp();
  y[i] = any * 10000 + count * 100 + (lane != 0 ? up : 0) + i % warpSize;
}
RIGHT(full_mask_in_a_ragged_warp) {
  const Buffer<int> x(48, 5), y(48);
  full_mask<<<1, 48>>>(x.data, y.data);
  FINISH();
  EXPECT(y.download()[31] == 3200 + 5 + 31 && y.download()[47] == 10000 + 1600 + 5 + 15);
}

__global__ void across_the_grid(int* a, int* b) {
  const auto grid = cooperative_groups::this_grid();
  const int i = static_cast<int>(grid.thread_rank());
  a[i] = i;
  grid.sync();
  b[i] = a[127 - i];
}
RIGHT(grid_sync) {
  const Buffer<int> a(128), b(128);
  const int *from = a.data, *to = b.data;
  void* arguments[] = {&from, &to};
  CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(across_the_grid), dim3(4), dim3(32), arguments));
  FINISH();
  EXPECT(b.download()[5] == 122);
}
__global__ void handshake(volatile int* flag, int* y) {
  if (blockIdx.x == 1) {
    *flag = 1;
  } else {
    while (*flag == 0) {
    }
    *y = 7;
  }
}
RIGHT(blocks_of_a_cooperative_launch_wait_for_each_other) {
  const Buffer<int> flag(1, 0), y(1);
  const int *first = flag.data, *second = y.data;
  void* arguments[] = {&first, &second};
  CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(handshake), dim3(2), dim3(1), arguments));
  FINISH();
  EXPECT(y.download()[0] == 7);
}
/// libcu++ reads %globaltimer while it waits.
__global__ void with_barrier(int* y) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int tile[64];
  if (threadIdx.x == 0) init(&barrier, 64);
  __syncthreads();
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  barrier.arrive_and_wait();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
RIGHT(cuda_barrier) {
  const Buffer<int> y(64);
  with_barrier<<<1, 64>>>(y.data);
  FINISH();
  EXPECT(y.download()[3] == 60);
}
/// CUB and Thrust choose their kernels by this number.
RIGHT(ptx_version_is_that_of_the_module) {
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, ring));
  EXPECT(attributes.ptxVersion == 80 && attributes.binaryVersion == 90);
}

__global__ void increment(float* x) { x[threadIdx.x] += 1; }
/// A blocking stream waits for the null stream, also with a graph.
RIGHT(graph_after_the_null_stream) {
  const Buffer<float> x(32);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  increment<<<1, 32, 0, stream>>>(x.data);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  CHECK(cudaMemsetAsync(x.data, 0, x.bytes()));
  CHECK(cudaGraphLaunch(ready, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(x.download()[0] == 1);
  CHECK(cudaGraphExecDestroy(ready));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
}
/// The host makes no call while it waits.
std::atomic<bool> ready_to_go{false};
RIGHT(host_waits_by_itself) {
  const Buffer<float> x(32, 0);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  increment<<<1, 32, 0, stream>>>(x.data);
  CHECK(cudaLaunchHostFunc(
      stream, [](void*) { ready_to_go = true; }, nullptr));
  while (!ready_to_go) std::this_thread::yield();
  EXPECT(x.download()[0] == 1);
  CHECK(cudaStreamDestroy(stream));
}
__global__ void asserts(int n) { assert(static_cast<int>(threadIdx.x) < n); }
RIGHT(assertion_that_holds) {
  asserts<<<1, 64>>>(64);
  FINISH();
}
