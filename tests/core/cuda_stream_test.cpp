// Tests streams, events, copies and device memory on fake GPUs, which run all work as late as CUDA allows.
#include "tapestry/core/stream.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace std::chrono_literals;
using tapestry::testing::FakeGpus;

namespace {

const Device kFirst{DeviceType::cuda, 0}, kSecond{DeviceType::cuda, 1};

Tensor counted(std::int64_t n, float first = 0) {
  Tensor t = empty({n});
  for (std::int64_t i = 0; i < n; ++i) t.data<float>()[i] = first + static_cast<float>(i);
  return t;
}
Tensor on_device(const Tensor& x, Device device) {
  Tensor y = empty(x.sizes(), {x.dtype(), device});
  cuda::copy_bytes(device, y.raw_data(), x.device(), x.raw_data(), x.nbytes());
  return y;
}
Tensor on_host(const Tensor& x) {
  Tensor y = empty(x.sizes(), x.dtype());
  cuda::copy_bytes(kCPU, y.raw_data(), x.device(), x.raw_data(), x.nbytes());
  return y;
}
bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0;
}

}  // namespace

TEST_CASE("the stream of a CPU never has pending work") {
  const Stream stream = current_stream(kCPU);
  CHECK(stream == Stream());
  CHECK(stream.device() == kCPU);
  CHECK(stream.native() == nullptr);
  CHECK(stream.done());
  stream.synchronize();
  Event event;
  CHECK(event.done());
  event.record(stream);
  stream.wait(event);
  CHECK(event.wait_for(0ms));
  CHECK_THROWS_AS(event.milliseconds_since(event), ValueError);
  synchronize(kCPU);
  record_stream(counted(3), stream);
  CHECK(new_stream(kCPU) == stream);
  const ExclusiveStream exclusive(kCPU);
  CHECK(exclusive.stream() == stream);
}

TEST_CASE("each device has a default stream and a pool, and StreamGuard selects a stream") {
  const FakeGpus gpus;
  CHECK(current_stream(kFirst) == default_stream(kFirst));
  CHECK_FALSE(default_stream(kFirst) == default_stream(kSecond));
  CHECK(default_stream(kSecond).device() == kSecond);

  const Stream side = new_stream(kFirst);
  CHECK_FALSE(side == default_stream(kFirst));
  {
    const StreamGuard guard(side);
    CHECK(current_stream(kFirst) == side);
    CHECK(current_stream(kSecond) ==
          default_stream(kSecond));  // the guard's stream belongs to the first device
    CHECK(current_stream(kCPU) == Stream());
  }
  CHECK(current_stream(kFirst) == default_stream(kFirst));

  // The pool has 32 streams of each priority.
  std::vector<Stream> all{side};
  for (int i = 1; i < 32; ++i) {
    all.push_back(new_stream(kFirst));
    CHECK_FALSE(all.back() == side);
  }
  CHECK(new_stream(kFirst) == side);
  CHECK_FALSE(new_stream(kFirst, true) == all[1]);
}

TEST_CASE("an exclusive stream is shared with nobody, however many there are") {
  FakeGpus gpus;
  std::vector<Stream> pool;
  for (int i = 0; i < 40; ++i) pool.push_back(new_stream(kFirst, true));
  std::vector<ExclusiveStream> owners;
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 100; ++i) {
    owners.emplace_back(kFirst, true);
    CHECK(ids.insert(owners.back().stream().id()).second);
  }
  for (const Stream& shared : pool) CHECK_FALSE(ids.contains(shared.id()));
  CHECK_FALSE(ids.contains(default_stream(kFirst).id()));
  CHECK_FALSE(ids.contains(new_stream(kFirst, true).id()));

  // A receive that waits for its peer must not delay a send on another exclusive stream, even if there are
  // more exclusive streams than the pool has streams (32).
  bool sent = false;
  const Stream send = owners[40].stream(), receive = owners[8].stream();
  gpus.launch(receive, [&] { CHECK(sent); });
  gpus.launch(send, [&] { sent = true; });
  send.synchronize();
  receive.synchronize();
}

TEST_CASE("a stream that its owner has given back is reused once its work is done") {
  FakeGpus gpus;
  const auto make = [](bool urgent = false) { return std::make_unique<ExclusiveStream>(kFirst, urgent); };
  auto owner = make();
  const Stream idle = owner->stream();
  owner = nullptr;
  owner = make();
  CHECK(owner->stream() == idle);
  CHECK_FALSE(make(true)->stream() == idle);  // a stream of the other priority is not reused
  CHECK_FALSE(ExclusiveStream(kSecond).stream() == idle);

  bool done = false;
  gpus.launch(idle, [&] { done = true; });
  gpus.freeze(true);
  owner = nullptr;
  owner = make();
  CHECK_FALSE(owner->stream() == idle);
  gpus.freeze(false);
  idle.synchronize();
  CHECK(done);
  CHECK(make()->stream() == idle);

  // A moved-from ExclusiveStream must not give the stream back: the pool gets it once.
  ExclusiveStream a(kFirst), b = std::move(a);
  CHECK(b.stream() == idle);
  CHECK_FALSE(ExclusiveStream(kFirst).stream() == idle);
  a = std::move(b);
  CHECK(a.stream() == idle);
  CHECK_THROWS_AS(ExclusiveStream(Device(DeviceType::cuda, 7)), DeviceError);
}

TEST_CASE("streams wait for events without blocking the host") {
  std::vector<int> order;  // declared before `gpus`, whose destructor runs queued work
  FakeGpus gpus;
  const Stream a = new_stream(kFirst), b = new_stream(kSecond);
  gpus.launch(a, [&] { order.push_back(1); });
  Event event;
  CHECK(event.done());
  event.record(a);
  gpus.launch(a, [&] { order.push_back(2); });
  b.wait(event);
  gpus.launch(b, [&] { order.push_back(3); });
  CHECK(order.empty());
  CHECK_FALSE(b.done());
  b.synchronize();
  CHECK(b.done());
  REQUIRE(order.size() >= 2);
  CHECK(order[0] == 1);  // 3 may run before or after 2
  CHECK(order[1] != 1);

  // Recording an event again moves it to the later point. Streams that already wait keep the earlier point.
  event.record(b);
  Event moved = std::move(event);
  gpus.launch(b, [&] { order.push_back(4); });
  moved.record(b);
  moved.synchronize();
  CHECK(order.back() == 4);
  Event other;
  other = std::move(moved);
  CHECK(other.done());
  other.record(current_stream(kCPU));
  CHECK(other.done());
}

TEST_CASE("wait_for() returns false after its timeout") {
  FakeGpus gpus;
  const Stream a = new_stream(kFirst);
  gpus.launch(a, [] {});
  Event event;
  event.record(a);
  gpus.freeze(true);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(event.wait_for(20ms));
  CHECK(std::chrono::steady_clock::now() - begin >= 20ms);
  gpus.freeze(false);
  CHECK(event.wait_for(10s));
}

TEST_CASE("milliseconds_since() needs two events with timing that were reached") {
  FakeGpus gpus;
  const Stream a = default_stream(kFirst);
  Event begin(true), end(true), plain;
  begin.record(a);
  gpus.launch(a, [] {});
  end.record(a);
  plain.record(a);
  CHECK_THROWS_AS(end.milliseconds_since(begin), DeviceError);
  synchronize(kFirst);
  CHECK(end.milliseconds_since(begin) > 0);
  CHECK_THROWS_WITH(plain.milliseconds_since(begin), ContainsSubstring("without timing"));
  CHECK_THROWS_AS(end.milliseconds_since(Event(true)), ValueError);
}

TEST_CASE("copies from and to the host are complete when they return") {
  const FakeGpus gpus;
  for (const std::int64_t n : {1, 1000, 3'000'000}) {
    const Tensor x = counted(n);
    CHECK(same_bytes(on_host(on_device(x, kSecond)), x));
  }
  const Tensor none = empty({0}, kFirst);
  CHECK(on_host(none).numel() == 0);
  CHECK(none.raw_data() == nullptr);
}

TEST_CASE("a copy between devices is ordered after earlier work of both and before later work of both") {
  FakeGpus gpus;
  Tensor x = on_device(counted(1000), kFirst);
  Tensor y = empty({1000}, kSecond);
  float* const data = x.data<float>();
  float* const to = y.data<float>();
  gpus.launch(current_stream(kFirst), [=] { data[7] = -1; });  // earlier work of the source: copied
  gpus.launch(current_stream(kSecond),
              [=] { to[7] = to[8] = 5; });  // earlier work of the target: overwritten
  cuda::copy_bytes(kSecond, to, kFirst, data, x.nbytes());
  gpus.launch(current_stream(kFirst), [=] { data[8] = -2; });  // later work of the source: not copied
  float seen = 0;
  gpus.launch(current_stream(kSecond), [&] { seen = to[7] + to[8]; });
  current_stream(kFirst).synchronize();  // the source runs first
  current_stream(kSecond).synchronize();
  CHECK(seen == 7);
  CHECK(gpus.copies_between() == 1);
  CHECK(on_host(y).data<float>()[999] == 999);
}

TEST_CASE("a device's allocator counts, caches, and throws OutOfMemoryError with the numbers") {
  constexpr std::size_t kMiB = 1 << 20;
  FakeGpus gpus(2, 100 * kMiB);
  {
    const Tensor x = empty({static_cast<std::int64_t>(10 * kMiB)}, kFirst);  // 40 MiB
    CHECK(memory_stats(kFirst).allocated == static_cast<std::int64_t>(40 * kMiB));
    CHECK(memory_stats(kSecond).allocated == 0);
    CHECK(gpus.reserved(0) == 40 * kMiB);
    CHECK_THROWS_AS(empty({static_cast<std::int64_t>(20 * kMiB)}, kFirst), OutOfMemoryError);
    CHECK_THROWS_WITH(empty({static_cast<std::int64_t>(20 * kMiB)}, kFirst),
                      ContainsSubstring("no room for 80.00 MiB (83886080 bytes) on cuda:0: 60.00 MiB") &&
                          ContainsSubstring("reserved 40.00 MiB"));
    // The other device has free memory.
    CHECK_NOTHROW(empty({static_cast<std::int64_t>(20 * kMiB)}, kSecond));
  }
  CHECK(memory_stats(kFirst).allocated == 0);
  CHECK(memory_stats(kFirst).peak_allocated == static_cast<std::int64_t>(40 * kMiB));
  CHECK(gpus.reserved(0) == 40 * kMiB);
  reset_peak_memory(kFirst);
  CHECK(memory_stats(kFirst).peak_allocated == 0);
  CHECK_NOTHROW(empty({static_cast<std::int64_t>(20 * kMiB)}, kFirst));  // the cache is released first
  empty_cache(DeviceType::cuda);
  CHECK(gpus.reserved(0) == 0);
  CHECK(gpus.reserved(1) == 0);
  CHECK_THROWS_AS(empty({std::int64_t{1} << 50}, kFirst), OutOfMemoryError);

  gpus.break_next();
  CHECK_THROWS_AS(empty({5}, kFirst), CudaError);
  CHECK_NOTHROW(empty({5}, kFirst));
}

TEST_CASE("memory that record_stream() names is reused after that stream has finished") {
  FakeGpus gpus;
  const Stream side = new_stream(kFirst);
  float* data = nullptr;
  float read = 0;
  {
    const Tensor x = on_device(counted(1000), kFirst);
    data = x.data<float>();
    gpus.launch(side, [=, &read] { read = data[5]; });
    record_stream(x, side);
  }
  Tensor y = empty({1000}, kFirst);
  CHECK(y.data<float>() != data);
  gpus.launch(current_stream(kFirst), [to = y.data<float>()] { to[5] = -1; });
  synchronize(kFirst);
  CHECK(read == 5);
  y = Tensor();
  Event event;
  event.record(side);
  event.synchronize();
  const Tensor z = empty({1000}, kFirst), w = empty({1000}, kFirst);
  CHECK((z.data<float>() == data || w.data<float>() == data));
  // record_stream() ignores memory that the pool did not allocate.
  record_stream(from_blob(&read, {1}), side);
}

TEST_CASE("copy_async() from pinned memory does not block the host") {
  FakeGpus gpus;
  const Stream side = new_stream(kFirst, true);
  Tensor x = empty_pinned({1000});
  CHECK(is_pinned(x));
  CHECK_FALSE(is_pinned(counted(3)));
  std::memcpy(x.raw_data(), counted(1000).raw_data(), x.nbytes());
  const Tensor y = empty({1000}, kFirst);
  const std::uint32_t version = y.version();
  copy_async(y, x, side);
  CHECK_FALSE(side.done());
  CHECK(y.version() == version + 1);

  // Pinned memory is not reused while a stream still reads it.
  const void* const address = x.raw_data();
  x = Tensor();
  CHECK(empty_pinned({1000}).raw_data() != address);
  side.synchronize();
  CHECK(empty_pinned({1000}).raw_data() == address);

  const Tensor back = empty_pinned({1000});
  copy_async(back, y, side);
  side.synchronize();
  CHECK(same_bytes(back, counted(1000)));

  // A copy between devices runs on the source's stream.
  const Tensor there = empty({1000}, kSecond);
  copy_async(there, y, side);
  side.synchronize();
  CHECK(same_bytes(on_host(there), back));
  CHECK(gpus.copies_between() == 1);

  const Tensor none = empty_pinned({0, 3});
  CHECK_FALSE(is_pinned(none));
  copy_async(empty({0, 3}, kFirst), none, side);
}

TEST_CASE("copy_async() refuses tensors and streams that do not match") {
  const FakeGpus gpus;
  const Stream side = new_stream(kFirst);
  const Tensor x = empty_pinned({2, 3}), y = empty({2, 3}, kFirst);
  CHECK_THROWS_AS(copy_async(empty({2, 3}, {kInt32, kFirst}), x, side), TypeError);
  CHECK_THROWS_WITH(copy_async(empty({3, 2}, kFirst), x, side), ContainsSubstring("[3, 2]"));
  CHECK_THROWS_AS(copy_async(detail::raw_view(y, {2, 3}, {1, 2}, 0), x, side), ValueError);
  CHECK_THROWS_AS(copy_async(Tensor(), x, side), ValueError);
  CHECK_THROWS_WITH(copy_async(y, x, new_stream(kSecond)),
                    ContainsSubstring("from cpu:0 to cuda:0 on a stream of cuda:1"));
  CHECK_THROWS_AS(copy_async(y, x, Stream()), DeviceError);
  CHECK_THROWS_AS(copy_async(empty({2, 3}, kSecond), y, new_stream(kSecond)), DeviceError);
  CHECK_THROWS_AS(empty_pinned({std::int64_t{1} << 62}), ValueError);
  CHECK_THROWS_AS(empty_pinned({std::int64_t{1} << 40}), OutOfMemoryError);
}

TEST_CASE("using one GPU creates no context on others, on any thread") {
  FakeGpus gpus(3);
  const Tensor x = on_device(counted(1000), kSecond);
  const Stream side = new_stream(kSecond);
  Event begin(true), end(true);
  begin.record(side);
  gpus.launch(side, [] {});
  end.record(side);
  const auto on_a_thread = [](const std::function<void()>& f) { std::thread(f).join(); };
  on_a_thread([&] { CHECK(end.wait_for(10s)); });
  on_a_thread([&] { CHECK(begin.done()); });
  on_a_thread([&] { end.synchronize(); });
  on_a_thread([&] { CHECK(end.milliseconds_since(begin) > 0); });
  on_a_thread([&] { copy_async(x, empty_pinned({1000}), side); });
  side.synchronize();
  on_a_thread([] { empty_cache(DeviceType::cuda); });  // this also releases page-locked memory
  CHECK(gpus.reserved(-1) == 0);
  CHECK(gpus.is_in_use(1));
  CHECK_FALSE(gpus.is_in_use(0));
  CHECK_FALSE(gpus.is_in_use(2));
}
