// Tests copies between fake GPUs, which run everything as late as stream order allows.
#include "tapestry/distributed/pipeline/internal/copy_between_stages.h"

#include <cstring>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/cuda/internal/copy.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using distributed::copy_between_stages;
using distributed::CopyStreams;
using distributed::record_ready;
using tapestry::testing::FakeGpus;

namespace {

const Device kFirst{DeviceType::cuda, 0}, kSecond{DeviceType::cuda, 1};
constexpr std::int64_t kCount = 600;

// Launches a kernel that fills the tensor.
void fill_later(FakeGpus& gpus, const Tensor& t, float value) {
  float* const data = t.data<float>();
  gpus.launch(current_stream(t.device()), [data, value] { std::fill_n(data, kCount, value); });
}
// Returns the value of all elements, which must be equal. Synchronizes.
float value_of(const Tensor& t) {
  const Tensor host = empty(t.sizes());
  cuda::copy_bytes(kCPU, host.raw_data(), t.device(), t.raw_data(), t.nbytes());
  for (std::int64_t i = 1; i < kCount; ++i) REQUIRE(host.data<float>()[i] == host.data<float>()[0]);
  return host.data<float>()[0];
}

}  // namespace

TEST_CASE("the copy overlaps later work of the producer and earlier work of the consumer") {
  FakeGpus gpus(2);
  {
    const CopyStreams first(kFirst), second(kSecond);
    bool later = false, earlier = false;
    gpus.launch(current_stream(kSecond), [&] { earlier = true; });
    const Tensor x = empty({kCount}, kFirst);
    fill_later(gpus, x, 3);
    const auto ready = record_ready(kFirst, first);
    gpus.launch(current_stream(kFirst), [&] { later = true; });
    const std::int64_t waits = gpus.host_waits();
    const Tensor y = copy_between_stages(x, ready.get(), current_stream(kSecond), second);
    CHECK(y.device() == kSecond);
    CHECK(gpus.host_waits() == waits);
    CHECK(gpus.copies_between() == 1);

    SECTION("the tensor arrives while the producer is busy") {
      CHECK(value_of(y) == 3);
      CHECK(earlier);  // value_of() waits for the consumer's stream
      CHECK_FALSE(later);
    }
    SECTION("the producer goes on while the consumer is busy") {
      current_stream(kFirst).synchronize();
      CHECK(later);
      CHECK_FALSE(earlier);
      first.outgoing.stream().synchronize();
      CHECK_FALSE(earlier);
    }
    synchronize(kFirst);
    synchronize(kSecond);
  }
}

TEST_CASE("the consumer stream that is passed waits for the tensor") {
  FakeGpus gpus(2);
  {
    const CopyStreams first(kFirst), second(kSecond);
    const Stream consumer = new_stream(kSecond);
    const Tensor x = empty({kCount}, kFirst);
    fill_later(gpus, x, 3);
    const auto ready = record_ready(kFirst, first);
    const Tensor y = copy_between_stages(x, ready.get(), consumer, second);
    const StreamGuard guard(consumer);
    CHECK(value_of(y) == 3);
    synchronize(kFirst);
    synchronize(kSecond);
  }
}

TEST_CASE("memory of copied tensors is not reused too early") {
  FakeGpus gpus(2);
  {
    const CopyStreams first(kFirst), second(kSecond);
    Tensor x = empty({kCount}, kFirst);
    const void* const there = x.raw_data();
    fill_later(gpus, x, 3);
    auto ready = record_ready(kFirst, first);
    Tensor y = copy_between_stages(x, ready.get(), current_stream(kSecond), second);
    x = {};
    // The producer writes its next tensor before the copy of x runs, so they must not share memory.
    const Tensor next = empty({kCount}, kFirst);
    CHECK(next.raw_data() != there);
    fill_later(gpus, next, 4);
    current_stream(kFirst).synchronize();

    // The next incoming tensor must not use memory that the consumer still reads.
    const Tensor sum = empty({kCount}, kSecond);
    const float* const from = y.data<float>();
    float* const to = sum.data<float>();
    gpus.launch(current_stream(kSecond), [from, to] { std::copy_n(from, kCount, to); });
    y = {};
    ready = record_ready(kFirst, first);
    const Tensor z = copy_between_stages(next, ready.get(), current_stream(kSecond), second);
    CHECK(z.raw_data() != from);
    first.outgoing.stream().synchronize();
    CHECK(value_of(sum) == 3);
    CHECK(value_of(z) == 4);
    synchronize(kFirst);
    synchronize(kSecond);
  }
}

TEST_CASE("the copy waits for other work in the incoming stream") {
  FakeGpus gpus(2);
  {
    const CopyStreams first(kFirst), second(kSecond);
    {
      const StreamGuard guard(second.incoming);
      const Tensor other = empty({kCount}, kSecond);
      fill_later(gpus, other, 9);
    }
    const Tensor x = empty({kCount}, kFirst);
    fill_later(gpus, x, 3);
    const Tensor y =
        copy_between_stages(x, record_ready(kFirst, first).get(), current_stream(kSecond), second);
    first.outgoing.stream().synchronize();
    second.incoming.stream().synchronize();
    CHECK(value_of(y) == 3);
    synchronize(kFirst);
    synchronize(kSecond);
  }
}

TEST_CASE("tensors on a CPU, or copied to one, are copied as by Tensor::to()") {
  FakeGpus gpus(1);
  const CopyStreams cpu(kCPU), gpu(kFirst);
  CHECK(record_ready(kCPU, cpu) == nullptr);
  const Tensor x = full({kCount}, 5);
  CHECK(copy_between_stages(x, nullptr, current_stream(kCPU), cpu).raw_data() == x.raw_data());
}
