// Tests of storages whose memory can be released.
#include "tapestry/core/allocator.h"
#include "tapestry/core/storage.h"
#include "tapestry/core/tensor.h"
#include "tapestry/core/tensor_impl.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

struct Source final : StorageSource {
  int refills = 0;
  void refill(Storage& storage) override {
    ++refills;
    storage.acquire();
    for (int i = 0; i < 4; ++i) static_cast<float*>(storage.data())[i] = static_cast<float>(i);
  }
  std::string why_released(const Storage&) const override { return "it is put away; fetch it"; }
};

Tensor tensor_on(const StorageRef& storage) {
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(storage, DType::f32, {4}, 4, false)));
}

}  // namespace

TEST_CASE("a storage releases its memory and gets it again without a new version") {
  const std::int64_t before = memory_stats(kCPU).allocated;
  Source source;
  const StorageRef storage = Storage::releasable(kCPU, 16, &source);
  const Tensor t = tensor_on(storage);
  CHECK(storage->is_released());
  CHECK(storage->bytes() == 16);
  CHECK(memory_stats(kCPU).allocated == before);
  CHECK_THROWS_WITH(t.raw_data(), ContainsSubstring("[4]") && ContainsSubstring("it is put away; fetch it"));
  CHECK_THROWS_AS(t.item(), ValueError);
  CHECK(t.str() == "tensor(..., size=[4])");
  const std::uint32_t version = storage->version();
  for (int round = 0; round < 3; ++round) {
    source.refill(*storage);
    CHECK_FALSE(storage->is_released());
    CHECK(memory_stats(kCPU).allocated > before);
    CHECK(t.data<float>()[3] == 3);
    const void* const data = storage->data();
    storage->acquire();  // does nothing
    CHECK(storage->data() == data);
    storage->release_memory();
    storage->release_memory();  // does nothing
    CHECK(storage->data() == nullptr);
    CHECK(memory_stats(kCPU).allocated == before);
  }
  CHECK(storage->version() == version);
  storage->set_source(nullptr);
  CHECK_THROWS_WITH(t.raw_data(), ContainsSubstring("its memory was released"));
}

TEST_CASE("only a releasable storage releases its memory") {
  const StorageRef storage = Storage::allocate(kCPU, 16);
  CHECK_THROWS_AS(storage->release_memory(), ValueError);
  CHECK_THROWS_AS(storage->acquire(), ValueError);
  CHECK(storage->data() != nullptr);
  CHECK_FALSE(storage->is_released());
  CHECK_THROWS_AS(Storage::releasable(Device(DeviceType::cpu, 63), 16, nullptr), DeviceError);
}
