// Threads of different blocks, or of one block without barriers: atomics, fences, flags and locks.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

template <bool mended>
__global__ void total(const float* x, float* sum) {
  const float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  if (mended) atomicAdd(sum, v);
  else *sum += v;  // planted: lost_update
}
BUG(lost_update) {
  const Buffer<float> x(128, 1), sum(1, 0);
  total<mended><<<2, 64>>>(x.data, sum.data);
  FINISH();
}

/// Each block replaces its part by differences, and reads the last element of the block before.
template <bool mended>
__global__ void differences(float* x, float* y) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const float left = i > 0 ? x[i - 1] : 0, here = x[i];  // planted: race_between_blocks
  __syncthreads();
  (mended ? y : x)[i] = here - left;  // planted: race_between_blocks
}
BUG(race_between_blocks) {
  const Buffer<float> x(256, 1), y(256);
  differences<mended><<<4, 64>>>(x.data, y.data);
  FINISH();
}

/// The last block to count itself adds the sums of all blocks.
template <bool mended>
__global__ void sum_in_last_block(const float* x, float* parts, unsigned* count, float* y) {
  __shared__ bool last;
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += x[8 * blockIdx.x + i];
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;  // planted: missing_threadfence
    if (mended) __threadfence();
    last = atomicAdd(count, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x > 0) return;
  if (mended) __threadfence();
  sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];  // planted: missing_threadfence
  *y = sum;
}
BUG(missing_threadfence) {
  const Buffer<float> x(64, 1), parts(8), y(1);
  const Buffer<unsigned> count(1, 0);
  sum_in_last_block<mended><<<8, 32>>>(x.data, parts.data, count.data, y.data);
  FINISH();
}

/// atomicAdd_block is atomic for the threads of one block.
template <bool mended>
__global__ void count_all(unsigned* count) {
  if (mended) atomicAdd(count, 1u);
  else atomicAdd_block(count, 1u);  // planted: atomic_of_one_block
}
BUG(atomic_of_one_block) {
  const Buffer<unsigned> count(1, 0u);
  count_all<mended><<<2, 32>>>(count.data);
  FINISH();
}

/// A lock. Its atomics order nothing but themselves: the fences make what it protects visible.
template <bool mended>
__global__ void locked_sum(int* lock, float* sum) {
  if (threadIdx.x > 0) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  if (mended) __threadfence();
  *sum += 1;  // planted: lock_without_fence
  if (mended) __threadfence();
  atomicExch(lock, 0);
}
BUG(lock_without_fence) {
  const Buffer<int> lock(1, 0);
  const Buffer<float> sum(1, 0);
  locked_sum<mended><<<3, 32>>>(lock.data, sum.data);
  FINISH();
}

/// The lock is released before the last access to what it protects.
template <bool mended>
__global__ void released_early(int* lock, float* sum, float* copy) {
  if (threadIdx.x > 0) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __threadfence();
  *sum += 1;  // planted: lock_released_early
  if (mended) copy[blockIdx.x] = *sum;
  __threadfence();
  atomicExch(lock, 0);
  if (!mended) copy[blockIdx.x] = *sum;  // planted: lock_released_early
}
BUG(lock_released_early) {
  const Buffer<int> lock(1, 0);
  const Buffer<float> sum(1, 0), copy(3);
  released_early<mended><<<3, 32>>>(lock.data, sum.data, copy.data);
  FINISH();
}

/// The first warp writes a message and a flag; the second waits for the flag.
template <bool mended>
__global__ void message(float* data, volatile int* flag, float* y) {
  if (threadIdx.x == 0) {
    *data = 5;  // planted: flag_without_fence
    if (mended) __threadfence();
    *flag = 1;
  }
  if (threadIdx.x == 32) {
    while (*flag == 0) {
    }
    if (mended) __threadfence();
    *y = *data;  // planted: flag_without_fence
  }
}
BUG(flag_without_fence) {
  const Buffer<float> data(1, 0), y(1);
  const Buffer<int> flag(1, 0);
  message<mended><<<1, 64>>>(data.data, flag.data, y.data);
  FINISH();
}

/// The compiler reads a flag that is not volatile once, before the loop.
template <bool mended>
__global__ void plain_flag(int* flag, int* y) {
  if (threadIdx.x == 32) {
    if constexpr (mended) {
      while (*static_cast<volatile int*>(flag) == 0) {
      }
    } else {
      while (*flag == 0) {
      }
    }
    *y = 1;
  }
  if (threadIdx.x == 0) *static_cast<volatile int*>(flag) = 1;  // planted: flag_not_volatile
}
BUG(flag_not_volatile) {
  const Buffer<int> flag(1, 0), y(1);
  plain_flag<mended><<<1, 64>>>(flag.data, y.data);
  FINISH();
}

/// Each block continues the sum of the block before it, which may not have run yet.
template <bool mended>
__global__ void carry(float* sums, volatile int* done) {
  if (threadIdx.x > 0) return;
  if (mended && blockIdx.x > 0) {
    while (done[blockIdx.x - 1] == 0) {
    }
    __threadfence();
  }
  sums[blockIdx.x] = 1 + (blockIdx.x > 0 ? sums[blockIdx.x - 1] : 0);  // planted: relies_on_order_of_blocks
  __threadfence();
  done[blockIdx.x] = 1;
}
BUG(relies_on_order_of_blocks) {
  const Buffer<float> sums(4, 0);
  const Buffer<int> done(4, 0);
  carry<mended><<<4, 32>>>(sums.data, done.data);
  FINISH();
}

/// A plain read beside atomics of other threads. The result of the atomic itself is the number that is
/// wanted.
template <bool mended>
__global__ void numbers(unsigned* count, unsigned* y) {
  const unsigned mine = atomicAdd(count, 1u);                         // planted: plain_read_beside_atomics
  y[blockIdx.x * blockDim.x + threadIdx.x] = mended ? mine : *count;  // planted: plain_read_beside_atomics
}
BUG(plain_read_beside_atomics) {
  const Buffer<unsigned> count(1, 0u), y(64);
  numbers<mended><<<2, 32>>>(count.data, y.data);
  FINISH();
}

/// A stack of free nodes. Between a thread's read of `next` and its exchange, others may take the node and
/// bring it back: the head is the same again (A, B, A), but not its successor. The tag in the upper bits
/// counts exchanges.
struct Stack {
  unsigned long long head;  // the node, and the tag if mended
  unsigned next[4], taken[4];
};
template <bool mended>
__device__ unsigned pop(Stack* s) {
  for (;;) {
    const unsigned long long old = atomicAdd(&s->head, 0ull);
    const unsigned node = static_cast<unsigned>(old);
    if (node == 4) return 4;
    const unsigned long long next = atomicAdd(&s->next[node], 0u), tag = mended ? (old >> 32) + 1 : 0;
    if (atomicCAS(&s->head, old, tag << 32 | next) == old) return node;
  }
}
template <bool mended>
__device__ void push(Stack* s, unsigned node) {
  for (;;) {
    const unsigned long long old = atomicAdd(&s->head, 0ull), tag = mended ? (old >> 32) + 1 : 0;
    atomicExch(&s->next[node], static_cast<unsigned>(old));
    if (atomicCAS(&s->head, old, tag << 32 | node) == old) return;
  }
}
template <bool mended>
__global__ void recycle(Stack* s, int rounds) {
  if (threadIdx.x % 32 != 0) return;
  for (int k = 0; k < rounds; ++k) {
    const unsigned a = pop<mended>(s), b = pop<mended>(s);
    const bool again =
        (a < 4 && atomicExch(&s->taken[a], 1u) != 0) || (b < 4 && atomicExch(&s->taken[b], 1u) != 0);
    if (again) __trap();  // planted: aba_in_a_stack
    if (a < 4) atomicExch(&s->taken[a], 0u), push<mended>(s, a);
    if (b < 4) atomicExch(&s->taken[b], 0u), push<mended>(s, b);
  }
}
BUG(aba_in_a_stack) {
  Stack stack{0, {1, 2, 3, 4}, {}};
  Stack* s;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&s), sizeof stack));
  CHECK(cudaMemcpy(s, &stack, sizeof stack, cudaMemcpyHostToDevice));
  recycle<mended><<<1, 96>>>(s, 400);
  FINISH();
  CHECK(cudaFree(s));
}

/// The read-only cache need not see what the same kernel writes.
template <bool mended>
__global__ void read_only_loads(float* x, float* y) {
  x[threadIdx.x] = 1;  // planted: read_only_load_of_written_memory
  __syncthreads();
  const unsigned other = threadIdx.x ^ 1;
  y[threadIdx.x] = mended ? x[other] : __ldg(x + other);  // planted: read_only_load_of_written_memory
}
BUG(read_only_load_of_written_memory) {
  const Buffer<float> x(64, 0), y(64);
  read_only_loads<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// The last block to count itself adds the sums of all, and sets the counter back for the next launch.
enum class Flaw { none, no_last_block, counter_not_reset, flag_read_early };
template <Flaw flaw>
__global__ void sum_of_blocks(const float* x, float* parts, unsigned* count, float* y) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    atomicExch(&parts[blockIdx.x], x[blockIdx.x]);
    __threadfence();
    last = atomicAdd(count, 1u) == (flaw == Flaw::no_last_block ? gridDim.x : gridDim.x - 1);
    __threadfence();
  }
  if (flaw != Flaw::flag_read_early) __syncthreads();
  if (!last) return;  // planted: flag_read_early
  if (threadIdx.x > 0) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += atomicAdd(&parts[i], 0.0f);
  *y = sum;
  if (flaw != Flaw::counter_not_reset) atomicExch(count, 0u);
}
template <Flaw flaw>
float last_sum(int launches) {
  const Buffer<float> x(5, 1), parts(5, 0), y(1, 0);
  const Buffer<unsigned> count(1, 0u);
  for (int i = 0; i < launches; ++i) {
    CHECK(cudaMemset(y.data, 0, y.bytes()));
    sum_of_blocks<flaw><<<5, 64>>>(x.data, parts.data, count.data, y.data);
    FINISH();
  }
  return y.download()[0];
}
BUG(no_last_block) {
  constexpr auto flaw = mended ? Flaw::none : Flaw::no_last_block;
  EXPECT(last_sum<flaw>(1) == 5);  // planted: no_last_block
}
BUG(counter_not_reset) {
  constexpr auto flaw = mended ? Flaw::none : Flaw::counter_not_reset;
  EXPECT(last_sum<flaw>(2) == 5);  // planted: counter_not_reset
}
BUG(flag_read_early) { last_sum<mended ? Flaw::none : Flaw::flag_read_early>(1); }

/// Additions in the order in which threads come: the last bits of the sum differ from run to run.
template <bool mended>
__global__ void sum_of_fractions(float* y) {
  const unsigned t = threadIdx.x;
  if (!mended) atomicAdd(y, 1.0f / static_cast<float>(3 * t + 1));
  else if (t == 0)
    for (unsigned i = 0; i < 64; ++i) *y += 1.0f / static_cast<float>(3 * i + 1);
}
BUG(sum_in_order_of_arrival) {
  const Buffer<float> y(1, 0);
  sum_of_fractions<mended><<<1, 64>>>(y.data);
  FINISH();
  float want = 0;
  for (int i = 0; i < 64; ++i) want += 1.0f / static_cast<float>(3 * i + 1);
  EXPECT(y.download()[0] == want);  // planted: sum_in_order_of_arrival
}
