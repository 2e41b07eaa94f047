// What a capture asks of the pool of blocks, and what the fake GPUs refuse in one.
#include "tapestry/core/cuda/capture.h"

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/internal/block_pool.h"
#include "tapestry/core/cuda/internal/stream_counters.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using cuda::BlockPool;
using testing::FakeGpus;

namespace {

/// Counts the calls of a pool. Marks are never reached unless the test says so.
class Source final : public cuda::MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    if (full) return nullptr;
    ++segments;
    void* const data = reinterpret_cast<void*>(next_);
    next_ += bytes;
    return data;
  }
  void release(void*) noexcept override { --segments; }
  void* mark(cuda::StreamId) override { return ++events, ++marks, this; }
  bool reached(void*) override { return ++events, done; }
  void await(void*) override { ++events; }
  void drop(void*) noexcept override { --marks; }

  int segments = 0, events = 0, marks = 0;
  bool done = false, full = false;

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 32;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;
const Device kGpu{DeviceType::cuda, 0};

/// Calls f, which must throw an E whose message contains `part`.
template <class E, class F>
void check_throws(const F& f, const char* part) {
  try {
    f();
    FAIL_CHECK("nothing was thrown; expected " << part);
  } catch (const E& e) {
    CHECK_THAT(e.what(), ContainsSubstring(part));
  }
}

}  // namespace

TEST_CASE("a held stream keeps its free segments until it is let go") {
  Source source;
  BlockPool pool(source);
  pool.hold(1);
  void* const own = pool.allocate(kMiB, 1);
  void* const other = pool.allocate(kMiB, 2);
  pool.deallocate(own);
  pool.deallocate(other);
  CHECK(source.segments == 2);
  pool.empty_cache();
  CHECK(source.segments == 1);
  CHECK(pool.allocate(kMiB, 2) != own);  // another stream is never given its blocks
  CHECK(pool.allocate(kMiB, 1) == own);
  pool.deallocate(own);
  pool.let_go(1);
  CHECK(source.segments == 1);  // that of stream 2, which has a live block
  pool.release_all();
}

TEST_CASE("a paused pool makes no call about events and releases nothing") {
  Source source;
  BlockPool pool(source);
  void* const before = pool.allocate(kMiB, 1);
  pool.use(before, 2);
  pool.deallocate(before);
  CHECK(source.marks == 1);
  void* const shared = pool.allocate(kMiB, 1);
  void* const plain = pool.allocate(kMiB, 1);
  pool.use(shared, 2);
  pool.pause_events(true);
  source.events = 0;
  pool.deallocate(shared);
  pool.deallocate(plain);
  CHECK(pool.allocate(kMiB, 1) == plain);  // only its own stream used it
  pool.empty_cache();
  source.full = true;
  CHECK(pool.allocate(64 * kMiB, 1) == nullptr);
  CHECK(source.events == 0);
  pool.pause_events(false);
  CHECK(source.marks == 2);
  source.done = true;
  pool.empty_cache();
  CHECK(source.marks == 0);
  pool.release_all();
}

TEST_CASE("a graph of copies repeats them, with pinned memory of its own") {
  FakeGpus gpus(1);
  const Tensor x = empty({4}, kGpu), result = empty_pinned({4});
  float* address = nullptr;
  {
    auto step = cuda::capture(
        [&] {
          const Tensor values = empty_pinned({4});  // freed in the step; the graph keeps it
          address = values.data<float>();
          copy_async(x, values, current_stream(kGpu));
          copy_async(result, x, current_stream(kGpu));
        },
        {.warm_up = 0});
    CHECK(step.nodes() == 2);
    CHECK(gpus.graphs() == 1);
    const Tensor later = empty_pinned({4});
    CHECK(later.data<float>() != address);
    for (const float value : {1.0f, 2.0f}) {
      std::fill_n(address, 4, value);
      step();
      synchronize(kGpu);
      CHECK(result.data<float>()[3] == value);
    }
  }
  CHECK(gpus.graphs() == 0);
}

TEST_CASE("a capture that fails is discarded, and the next one works") {
  FakeGpus gpus(1);
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_AS(cuda::capture([] { synchronize(kGpu); }, {.warm_up = 0}), cuda::CaptureError);
    // A fault of the library: a call that only the driver refuses.
    check_throws<CudaError>(
        [&] {
          static_cast<void>(cuda::capture(
              [] { cuda::devices().runtime().wait_for_stream(0, default_stream(kGpu).native()); },
              {.warm_up = 0}));
        },
        "cudaErrorStreamCaptureUnsupported");
    check_throws<CudaError>(
        [&] {
          static_cast<void>(cuda::capture(
              [] {
                try {
                  static_cast<void>(cuda::devices().runtime().stream_done(0, default_stream(kGpu).native()));
                } catch (const CudaError&) {  // the capture stays invalid
                }
              },
              {.warm_up = 0}));
        },
        "cudaErrorStreamCaptureInvalidated");
    CHECK_THROWS_AS(cuda::capture([] { cuda::capture([] {}); }, {.warm_up = 0}), ValueError);
    CHECK(gpus.graphs() == 0);
    synchronize(kGpu);
    auto empty_step = cuda::capture([] {});
    CHECK(empty_step.nodes() == 0);
    empty_step();
    synchronize(kGpu);
  }
}

TEST_CASE("planted bugs: the fake GPU finds a copy of pageable memory and an event of another stream") {
  FakeGpus gpus(1);
  const Tensor x = empty({4}, kGpu), pageable = empty({4});
  check_throws<CudaError>(
      [&] {
        static_cast<void>(
            cuda::capture([&] { copy_async(x, pageable, current_stream(kGpu)); }, {.warm_up = 0}));
      },
      "page-locked");
  cuda::Runtime& runtime = cuda::devices().runtime();
  void* const event = runtime.create_event(0, false);
  runtime.record_event(0, event, default_stream(kGpu).native());
  check_throws<CudaError>(
      [&] {
        static_cast<void>(cuda::capture(
            [&] { runtime.stream_waits(0, current_stream(kGpu).native(), event); }, {.warm_up = 0}));
      },
      "cudaErrorStreamCaptureIsolation");
  check_throws<CudaError>(
      [&] {
        static_cast<void>(cuda::capture(
            [&] {
              runtime.record_event(0, event, current_stream(kGpu).native());
              runtime.stream_waits(0, default_stream(kGpu).native(), event);
            },
            {.warm_up = 0}));
      },
      "cudaErrorStreamCaptureUnjoined");
  runtime.destroy_event(0, event);
}

TEST_CASE("each stream has its own counters, which are 0") {
  FakeGpus gpus(2);
  const Stream stream = current_stream(kGpu), side = new_stream(kGpu), other = current_stream("cuda:1");
  std::uint32_t* const own = cuda::stream_counters(stream);
  CHECK(cuda::stream_counters(stream) == own);
  CHECK(cuda::stream_counters(side) != own);
  CHECK(cuda::stream_counters(other) != own);
  bool zero = true;
  gpus.launch(stream, [&] {
    for (std::int64_t i = 0; i < cuda::kStreamCounters; ++i) zero = zero && own[i] == 0;
  });
  synchronize(kGpu);
  CHECK(zero);
}
