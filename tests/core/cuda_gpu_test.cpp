// Tests core on a real GPU. cuda_stream_test.cpp tests the same on fake GPUs.
#include <cstring>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

const Device kFirst{DeviceType::cuda, 0};

Tensor counted(std::int64_t n) {
  Tensor t = empty_pinned({n});
  for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] = static_cast<float>(i % 1'000'003);
  return t;
}
bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0;
}

}  // namespace

TEST_CASE("a GPU reports its properties and memory") {
  if (no_gpu()) return;
  const auto properties = cuda::device_properties(kFirst);
  std::printf("%s: capability %d.%d, %d multiprocessors, %zu bytes\n", properties.name.c_str(),
              properties.major, properties.minor, properties.multiprocessors, properties.memory);
  CHECK_FALSE(properties.name.empty());
  CHECK(properties.major >= 7);
  CHECK(properties.multiprocessors > 0);
  const auto memory = cuda::memory_info(kFirst);
  CHECK(memory.free > 0);
  CHECK(memory.free <= memory.total);
  CHECK(memory.total <= properties.memory);
}

TEST_CASE("data copied to a GPU and back is unchanged, with and without pinned memory") {
  if (no_gpu()) return;
  const Stream side = new_stream(kFirst, true);
  for (const std::int64_t n : {1, 1023, 5'000'000}) {
    const Tensor x = counted(n), y = empty({n}, kFirst), back = empty_pinned({n});
    copy_async(y, x, side);
    copy_async(back, y, side);
    side.synchronize();
    CHECK(side.done());
    CHECK(same_bytes(back, x));

    const Tensor plain = empty({n});
    cuda::copy_bytes(kCPU, plain.raw_data(), kFirst, y.raw_data(), y.nbytes());
    CHECK(same_bytes(plain, x));
    cuda::copy_bytes(kFirst, y.raw_data(), kCPU, counted(n).raw_data(), y.nbytes());
    allocator(DeviceType::cuda).copy(kFirst, back.raw_data(), y.raw_data(), y.nbytes());
    CHECK(same_bytes(back, x));
  }
}

TEST_CASE("events order a GPU's streams and measure time") {
  if (no_gpu()) return;
  constexpr std::int64_t kCount = 32 << 20;
  const Stream a = new_stream(kFirst), b = new_stream(kFirst);
  const Tensor x = counted(kCount), on_gpu = empty({kCount}, kFirst), back = empty_pinned({kCount});
  Event begin(true), end(true);
  begin.record(a);
  copy_async(on_gpu, x, a);
  end.record(a);
  CHECK_FALSE(end.done());  // copying 128 MiB takes milliseconds
  b.wait(end);
  copy_async(back, on_gpu, b);
  b.synchronize();
  CHECK(end.done());
  CHECK(same_bytes(back, x));
  CHECK(end.milliseconds_since(begin) > 0);
}

TEST_CASE("bytes copied between two devices are unchanged") {
  if (no_gpu(2)) return;
  const Device other("cuda:1");
  const Tensor x = counted(100'000), there = empty({100'000}, other), back = empty({100'000});
  const Tensor here = empty({100'000}, kFirst);
  cuda::copy_bytes(kFirst, here.raw_data(), kCPU, x.raw_data(), x.nbytes());
  cuda::copy_bytes(other, there.raw_data(), kFirst, here.raw_data(), x.nbytes());
  cuda::copy_bytes(kCPU, back.raw_data(), other, there.raw_data(), x.nbytes());
  CHECK(same_bytes(back, x));
}

TEST_CASE("running out of GPU memory throws, and the process can continue") {
  if (no_gpu()) return;
  const std::size_t total = cuda::memory_info(kFirst).total;
  CHECK_THROWS_WITH(empty({static_cast<std::int64_t>(total)}, kFirst),
                    ContainsSubstring("[allocate] no room for") && ContainsSubstring("on cuda:0"));
  const Tensor x = counted(10), y = empty({10}, kFirst), back = empty({10});
  cuda::copy_bytes(kFirst, y.raw_data(), kCPU, x.raw_data(), x.nbytes());
  cuda::copy_bytes(kCPU, back.raw_data(), kFirst, y.raw_data(), x.nbytes());
  CHECK(same_bytes(back, x));
  empty_cache(DeviceType::cuda);
}

TEST_CASE("a call that CUDA refuses throws an error that names it") {
  if (no_gpu()) return;
  const Tensor x = empty({10}, kFirst), y = empty({10}, kFirst);
  CHECK_THROWS_WITH(  // the pitch is less than the width
      cuda::copy_rows_async(y.raw_data(), 4, x.raw_data(), 4, 8, 2, current_stream(kFirst)),
      ContainsSubstring("[cuda] cudaMemcpy2DAsync(") && ContainsSubstring("failed on GPU 0 at runtime.cpp:"));
  CHECK_NOTHROW(synchronize(kFirst));
}
