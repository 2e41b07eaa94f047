// Tests that DataLoader copies batches to a device correctly. The fake GPUs copy as late as possible.
#include "tapestry/data/upload.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/pinned.h"
#include "tapestry/data/dataloader.h"
#include "tapestry/data/formats/synthetic.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace tapestry::data;
using tapestry::testing::FakeGpus;

namespace {

const Device kDevice{DeviceType::cuda, 1};

std::shared_ptr<const Dataset<Example>> numbers(std::int64_t rows) {
  const Tensor input = empty({rows, 5}), target = empty({rows}, DType::i64);
  for (std::int64_t i = 0; i < input.numel(); ++i) input.data<float>()[i] = static_cast<float>(i);
  for (std::int64_t i = 0; i < rows; ++i) target.data<std::int64_t>()[i] = i;
  return std::make_shared<TensorDataset>(input, target);
}

/// Returns the bytes of `t` that a kernel on the current stream would see.
std::vector<char> seen_by_kernel(FakeGpus& gpus, const Tensor& t) {
  auto bytes = std::make_shared<std::vector<char>>(t.nbytes());
  const Stream stream = current_stream(t.device());
  gpus.launch(stream, [bytes, from = t.raw_data()] { std::memcpy(bytes->data(), from, bytes->size()); });
  stream.synchronize();
  return *bytes;
}
std::vector<char> bytes_of(const Tensor& t) {
  const char* const p = static_cast<const char*>(t.raw_data());
  return {p, p + t.nbytes()};
}

}  // namespace

TEST_CASE("batches on a device are the same for any number of workers") {
  FakeGpus gpus;
  const auto dataset = numbers(23);
  for (const int workers : {0, 1, 3}) {
    CAPTURE(workers);
    DataLoader<> here(dataset, {.batch_size = 4, .shuffle = true, .seed = 5});
    DataLoader<> there(
        dataset, {.batch_size = 4, .shuffle = true, .seed = 5, .num_workers = workers, .device = kDevice});
    auto expected = here.begin();
    int batches = 0;
    for (const auto& [input, target] : there) {
      REQUIRE(expected != here.end());
      CHECK(input.device() == kDevice);
      CHECK(target.device() == kDevice);
      CHECK(input.sizes() == expected->input.sizes());
      CHECK(seen_by_kernel(gpus, input) == bytes_of(expected->input));
      CHECK(seen_by_kernel(gpus, target) == bytes_of(expected->target));
      ++expected;
      ++batches;
    }
    CHECK(batches == 6);
    CHECK(expected == here.end());
  }
}

TEST_CASE("the host does not wait for a copy, and a batch's memory lives until it has been read") {
  FakeGpus gpus;
  DataLoader<> loader(numbers(40), {.batch_size = 4, .num_workers = 2, .device = kDevice});
  std::vector<std::shared_ptr<float>> seen;
  const std::int64_t before = gpus.host_waits();
  gpus.freeze(true);
  for (const auto& batch : loader) {
    seen.push_back(std::make_shared<float>(-1.0f));
    gpus.launch(current_stream(kDevice),
                [to = seen.back(), from = batch.input.data<float>()] { *to = from[19]; });
  }
  CHECK(gpus.host_waits() == before);
  CHECK(*seen[0] == -1);
  gpus.freeze(false);
  synchronize(kDevice);
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(*seen[i] == static_cast<float>(20 * i + 19));
}

TEST_CASE("workers copy batches ahead of their use, through page-locked memory") {
  FakeGpus gpus;
  std::atomic<int> made = 0;
  DataLoader<> loader(numbers(40), {.batch_size = 4,
                                    .num_workers = 1,
                                    .prefetch = 3,
                                    .transforms = {[&](Example&, const BatchContext&) { ++made; }},
                                    .device = kDevice});
  CHECK(gpus.reserved(-1) == 0);
  auto batch = loader.begin();
  // The worker makes three batches more than were taken, and no further one.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (made < 4 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(made == 4);
  CHECK(gpus.reserved(-1) > 0);
  CHECK(gpus.reserved(1) > 0);
  CHECK(seen_by_kernel(gpus, batch->target).size() == 4 * sizeof(std::int64_t));
}

TEST_CASE("every batch type is copied and keeps its layout") {
  FakeGpus gpus;
  const Upload upload(kDevice);
  const Tensor images = RandomDataset({.size = 2}).input();
  CHECK_FALSE(upload.send(Tensor()).defined());
  CHECK(upload.send(empty({0, 3})).numel() == 0);
  const Tensor last = empty({2, 3, 4, 5}, DType::f32, MemoryFormat::channels_last);
  for (std::int64_t i = 0; i < last.numel(); ++i) last.data<float>()[i] = static_cast<float>(i);
  const Tensor gaps = tapestry::detail::raw_view(last, {3}, {2}, 1);
  for (const Tensor& t : {images, last, gaps}) {
    std::vector<std::vector<Tensor>> batch = {{t}};
    for_tensors(batch[0], [&](Tensor& part) { part = upload.send(part); });
    Event event;
    upload.mark(event);
    upload.arrive(batch[0][0], event);
    CHECK(batch[0][0].is_contiguous(t.memory_format()));
    CHECK(seen_by_kernel(gpus, batch[0][0]) == bytes_of(t.is_contiguous(t.memory_format()) ? t : dense(t)));
  }
}

TEST_CASE("CPU devices and unsupported batch types are refused") {
  FakeGpus gpus;
  const auto dataset = numbers(4);
  CHECK_NOTHROW(DataLoader<>(dataset, {.device = kCPU}));
  CHECK_THROWS_AS(DataLoader<>(dataset, {.device = Device(DeviceType::cuda, 7)}), DeviceError);
  CHECK_THROWS_AS(Upload(kCPU), DeviceError);
  using Loader = DataLoader<Example, int>;
  CHECK_THROWS_WITH(Loader(dataset, {.collate = [](std::vector<Example>&&) { return 1; }, .device = kDevice}),
                    ContainsSubstring("not moved to cuda:1"));
  DataLoader<> moved(
      dataset,
      {.transforms = {[](Example& batch, const BatchContext&) { batch.input = empty({2}, kDevice); }},
       .device = kDevice});
  CHECK_THROWS_WITH(moved.begin(), ContainsSubstring("is on cuda:1"));
}
