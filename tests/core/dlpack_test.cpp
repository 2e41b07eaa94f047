#include "tapestry/core/dlpack.h"

#include <thread>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace tapestry::dlpack;

namespace {

/// A 2 x 3 matrix that another library owns.
template <class Managed>
struct Foreign {
  float numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  std::int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
  int deleted = 0;
  Managed managed{};

  Foreign() {
    managed.dl_tensor = {numbers, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
    if constexpr (requires { Managed::version; }) managed.version = {1, 3};
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;
};

struct Code {
  DType dtype;
  int code, bits;
};
constexpr Code kCodes[] = {{DType::f32, 2, 32},  {DType::f64, 2, 64},   {DType::f16, 2, 16},
                           {DType::bf16, 4, 16}, {DType::i64, 0, 64},   {DType::i32, 0, 32},
                           {DType::i16, 0, 16},  {DType::i8, 0, 8},     {DType::u16, 1, 16},
                           {DType::u8, 1, 8},    {DType::boolean, 6, 8}};

}  // namespace

TEST_CASE("to_dlpack describes every dtype and layout, and keeps the memory alive") {
  for (const Code& code : kCodes) {
    CAPTURE(dtype_name(code.dtype));
    Tensor base = empty({4, 6}, code.dtype);
    const void* const data = base.raw_data();
    Tensor view = base.t().narrow(0, 2, 3);
    DLManagedTensor* const managed = to_dlpack(view);
    const Tensor copy = base;
    view = Tensor();
    base = Tensor();
    const DLTensor& t = managed->dl_tensor;
    CHECK((t.dtype.code == code.code && t.dtype.bits == code.bits && t.dtype.lanes == 1));
    CHECK((t.ndim == 2 && t.shape[0] == 3 && t.shape[1] == 4 && t.strides[0] == 1 && t.strides[1] == 6));
    CHECK(t.data == static_cast<const char*>(data) + 2 * dtype_size(code.dtype));
    CHECK(t.byte_offset == 0);
    CHECK((t.device.device_type == kDLCPU && t.device.device_id == 0));
    CHECK(copy.storage()->use_count() == 2);
    std::thread([&] { managed->deleter(managed); }).join();
    CHECK(copy.storage()->use_count() == 1);
  }
  DLManagedTensorVersioned* const managed = to_dlpack_versioned(tensor({1.0f, 2.0f}));
  CHECK((managed->version.major == 1 && managed->flags == 0 && managed->dl_tensor.ndim == 1));
  managed->deleter(managed);
  DLManagedTensor* const number = to_dlpack(empty(Shape{}));
  CHECK(number->dl_tensor.ndim == 0);
  number->deleter(number);
  CHECK_THROWS_AS(to_dlpack(Tensor()), ValueError);
  CHECK_THROWS_AS(to_dlpack(ones({2}).set_requires_grad()), AutogradError);
}

TEMPLATE_TEST_CASE("from_dlpack uses the memory of the other library and frees it once", "", DLManagedTensor,
                   DLManagedTensorVersioned) {
  Foreign<TestType> other;
  {
    const Tensor t = from_dlpack(&other.managed);
    CHECK(t.sizes() == Shape{2, 3});
    CHECK(t.strides() == Shape{1, 2});
    CHECK(t.raw_data() == other.numbers);
    CHECK((t * 1).sum(0).select(0, 2).template item<float>() == 9);
    const Tensor part = t.select(0, 1);
    part.fill_(-1);
    CHECK(other.numbers[5] == -1);
    CHECK(t.storage()->bytes() == 24);
  }
  CHECK(other.deleted == 1);
  other.managed.dl_tensor.strides = nullptr;
  other.managed.dl_tensor.byte_offset = 8;
  {
    const Tensor t = from_dlpack(&other.managed);
    CHECK(t.is_contiguous());
    CHECK(t.select(0, 0).select(0, 0).template item<float>() == 2);
  }
  CHECK(other.deleted == 2);
  other.managed.deleter = nullptr;
  CHECK(from_dlpack(&other.managed).numel() == 6);
  CHECK(other.deleted == 2);
}

TEMPLATE_TEST_CASE("from_dlpack refuses what it cannot represent, and leaves it to the caller", "",
                   DLManagedTensor, DLManagedTensorVersioned) {
  const auto fails = [](auto&& spoil, const std::string& why) {
    Foreign<TestType> other;
    spoil(other);
    CHECK_THROWS_WITH(from_dlpack(&other.managed), ContainsSubstring(why));
    CHECK(other.deleted == 0);
  };
  using F = Foreign<TestType>;
  fails([](F& f) { f.managed.dl_tensor.dtype = {kDLComplex, 64, 1}; }, "type code 5, 64 bits and 1 lanes");
  fails([](F& f) { f.managed.dl_tensor.dtype.lanes = 4; }, "4 lanes");
  fails([](F& f) { f.managed.dl_tensor.dtype = {kDLUInt, 64, 1}; }, "none of Tapestry's dtypes");
  fails([](F& f) { f.managed.dl_tensor.device.device_type = kDLCUDAManaged; }, "device of type 13");
  fails([](F& f) { f.managed.dl_tensor.device = {kDLCUDA, 63}; }, "cuda:63");
  fails([](F& f) { f.managed.dl_tensor.ndim = 9; }, "9 dimensions");
  fails([](F& f) { f.managed.dl_tensor.ndim = -1; }, "-1 dimensions");
  fails([](F& f) { f.managed.dl_tensor.shape = nullptr; }, "shape is a null pointer");
  fails([](F& f) { f.shape[0] = -2; }, "negative");
  fails([](F& f) { f.strides[1] = -2; }, "dimension 1 has the stride -2");
  fails([](F& f) { f.shape[0] = 2, f.strides[0] = std::int64_t{1} << 61; }, "beyond any memory");
  fails([](F& f) { f.shape[0] = f.shape[1] = std::int64_t{1} << 40; }, "from_dlpack");
  fails([](F& f) { f.managed.dl_tensor.data = nullptr; }, "a null pointer for a tensor of shape [2, 3]");
  fails([](F& f) { f.managed.dl_tensor.byte_offset = 2; }, "not aligned to elements of 4 bytes");
  CHECK_THROWS_AS(from_dlpack(static_cast<TestType*>(nullptr)), ValueError);
  if constexpr (requires { TestType::flags; }) {
    fails([](F& f) { f.managed.flags = kReadOnly; }, "read-only");
    fails([](F& f) { f.managed.version.major = 2; }, "version 2.3");
  }
  F empty_one;
  empty_one.shape[1] = 0;
  empty_one.managed.dl_tensor.data = nullptr;
  CHECK(from_dlpack(&empty_one.managed).sizes() == Shape{2, 0});
  CHECK(empty_one.deleted == 1);
}

TEST_CASE("a round trip through DLPack shares the memory") {
  const Tensor x = arange(6).reshape({2, 3});
  const Tensor y = from_dlpack(to_dlpack(x.t()));
  CHECK(y.raw_data() == x.raw_data());
  CHECK(y.strides() == Shape{1, 3});
  CHECK(x.storage()->use_count() >= 2);
  const Tensor z = from_dlpack(to_dlpack_versioned(x));
  CHECK(z.raw_data() == x.raw_data());

  tapestry::testing::FakeGpus gpus;
  const Device cuda(DeviceType::cuda, 1);
  const Tensor there = empty({2}, cuda);
  DLManagedTensor* const managed = to_dlpack(there);
  CHECK((managed->dl_tensor.device.device_type == kDLCUDA && managed->dl_tensor.device.device_id == 1));
  CHECK(from_dlpack(managed).device() == cuda);
}
