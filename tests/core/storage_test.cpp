#include "tapestry/core/storage.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("a storage owns its memory") {
  const std::int64_t before = memory_stats(kCPU).allocated;
  {
    const StorageRef s = Storage::allocate(kCPU, 100);
    REQUIRE(s->data() != nullptr);
    CHECK(s->bytes() == 100);
    CHECK(s->device() == kCPU);
    CHECK(s->use_count() == 1);
    CHECK(s->version() == 0);
    std::memset(s->data(), 0xff, 100);
    CHECK(s->bytes() == 100);  // the object lies outside the data
    s->bump_version();
    CHECK(s->version() == 1);
    const StorageRef more = s;
    CHECK(s->use_count() == 2);
    CHECK(memory_stats(kCPU).allocated == before + 100);
    const StorageRef none = Storage::allocate(kCPU, 0);
    CHECK(none->bytes() == 0);
  }
  CHECK(memory_stats(kCPU).allocated == before);
  CHECK_THROWS_AS(Storage::allocate(Device("cpu:63"), 8), DeviceError);
}

TEST_CASE("wrapped memory is released once, by the function passed to wrap") {
  int released = 0;
  char data[16] = {};
  {
    const StorageRef s = Storage::wrap(
        kCPU, data, sizeof data, [](void* count) { ++*static_cast<int*>(count); }, &released);
    const StorageRef again = s;
    CHECK(s->data() == data);
    CHECK(released == 0);
  }
  CHECK(released == 1);
  Storage::wrap(kCPU, data, sizeof data);  // without a release function, destruction does nothing
  CHECK_THROWS_AS(Storage::wrap(Device("cpu:63"), data, 1), DeviceError);
}

TEST_CASE("a part has its own version and keeps the base alive") {
  const std::int64_t before = memory_stats(kCPU).allocated;
  StorageRef part;
  {
    const StorageRef whole = Storage::allocate(kCPU, 64);
    std::memset(whole->data(), 7, 64);
    part = Storage::part(whole, 16, 32);
    const StorageRef nested = Storage::part(part, 31, 1);
    CHECK(nested->data() == static_cast<char*>(whole->data()) + 47);
    part->bump_version();
    CHECK(part->version() == 1);
    CHECK(whole->version() == 0);
    CHECK(Storage::part(whole, 64, 0)->bytes() == 0);
    CHECK_THROWS_WITH(Storage::part(whole, 33, 32),
                      ContainsSubstring("32 bytes at offset 33") && ContainsSubstring("64 bytes"));
    CHECK_THROWS_AS(Storage::part(whole, 65, 0), IndexError);
    CHECK_THROWS_AS(Storage::part(whole, 8, std::numeric_limits<std::size_t>::max()), IndexError);
    CHECK_THROWS_AS(Storage::part(part, 1, 32), IndexError);
    CHECK(whole->use_count() == 2);
  }
  CHECK(static_cast<char*>(part->data())[31] == 7);
  CHECK(memory_stats(kCPU).allocated == before + 64);
  part = nullptr;
  CHECK(memory_stats(kCPU).allocated == before);
}

TEST_CASE("references are counted across threads") {
  const std::int64_t before = memory_stats(kCPU).allocated;
  {
    StorageRef s = Storage::allocate(kCPU, 1000);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([s] {
        for (int k = 0; k < 1000; ++k) {
          const StorageRef copy = s;
          copy->bump_version();
        }
      });
    for (std::thread& t : threads) t.join();
    CHECK(s->version() == 4000);
    threads.clear();
    CHECK(s->use_count() == 1);
  }
  CHECK(memory_stats(kCPU).allocated == before);
}
