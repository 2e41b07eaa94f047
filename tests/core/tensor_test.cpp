#include "tapestry/core/tensor.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/version.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("empty makes dense tensors") {
  const Tensor t = empty({2, 3, 4}, kInt32);
  CHECK(t.defined());
  CHECK(t.dtype() == kInt32);
  CHECK(t.device() == kCPU);
  CHECK(t.sizes() == Shape{2, 3, 4});
  CHECK(t.strides() == Shape{12, 4, 1});
  CHECK(t.dim() == 3);
  CHECK(t.numel() == 24);
  CHECK(t.nbytes() == 96);
  CHECK(t.storage()->bytes() == 96);
  CHECK(t.storage_offset() == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(t.raw_data()) % 64 == 0);
  CHECK(t.data<std::int32_t>() == t.raw_data());
  CHECK(empty({}).numel() == 1);
  CHECK(empty({2}).dtype() == kFloat32);
  CHECK(empty({0, 5}).numel() == 0);
  CHECK_FALSE(Tensor().defined());
  const Tensor last = empty({2, 3, 4, 5}, kFloat32, MemoryFormat::channels_last);
  CHECK(last.strides() == Shape{60, 1, 15, 3});
  CHECK_THROWS_AS(empty({2, 3}, kFloat32, MemoryFormat::channels_last), ValueError);
}

TEST_CASE("empty uses the context's device if no device is given, from_blob cpu:0") {
  CHECK_THROWS_AS(empty({2}, Device("cpu:63")), DeviceError);
  Context elsewhere = current_context();
  elsewhere.device = Device("cpu:62");
  const ContextGuard guard(elsewhere);
  CHECK_THROWS_WITH(empty({2}), ContainsSubstring("cpu:62 does not exist"));
  CHECK(empty({2}, kCPU).device() == kCPU);
  float x = 0;
  CHECK(from_blob(&x, {1}).device() == kCPU);
}

TEST_CASE("with_grad creates tensors that require gradients") {
  CHECK(empty({2}, TensorOptions(kFloat64).with_grad()).requires_grad());
  CHECK_FALSE(empty({2}).requires_grad());
  float x = 0;
  CHECK(from_blob(&x, {1}, TensorOptions().with_grad()).requires_grad());
  CHECK_THROWS_AS(empty({2}, TensorOptions(kInt64).with_grad()), TypeError);
}

TEST_CASE("impossible sizes are refused") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_WITH(empty({2, -1}), ContainsSubstring("[empty] size -1 of dimension 1"));
  CHECK_THROWS_WITH(empty({most, 2}), ContainsSubstring("more elements"));
  CHECK_THROWS_WITH(empty({most}), ContainsSubstring("more bytes") && ContainsSubstring("float32"));
  CHECK_THROWS_AS(empty({most}, kUInt8), OutOfMemoryError);
  CHECK_THROWS_AS(empty({std::numeric_limits<std::int64_t>::min()}), ValueError);
  char byte = 0;
  CHECK_THROWS_AS(from_blob(&byte, {most, 4}), ValueError);
  CHECK_THROWS_AS(from_blob(&byte, {-1}), ValueError);
}

TEST_CASE("from_blob uses the caller's memory") {
  double data[6] = {0, 1, 2, 3, 4, 5};
  const Tensor t = from_blob(data, {2, 3}, kFloat64);
  CHECK(t.data<double>() == data);
  t.data<double>()[4] = 9;
  CHECK(data[4] == 9);
  CHECK(t.strides() == Shape{3, 1});
  CHECK_THROWS_WITH(from_blob(nullptr, {2}), ContainsSubstring("[from_blob] a null pointer"));
  CHECK(from_blob(nullptr, {0, 2}).numel() == 0);
}

TEST_CASE("data<T> throws TypeError for another type") {
  const Tensor t = empty({2}, kInt64);
  CHECK_NOTHROW(t.data<std::int64_t>());
  CHECK_THROWS_AS(t.data<float>(), TypeError);
  CHECK_THROWS_WITH(t.data<float>(), ContainsSubstring("int64") && ContainsSubstring("float32"));
  CHECK_THROWS_AS(empty({2}, kFloat16).data<BFloat16>(), TypeError);
}

TEST_CASE("size and stride take dimensions from either end") {
  const Tensor t = empty({2, 3, 4});
  CHECK(t.size(0) == 2);
  CHECK(t.size(-1) == 4);
  CHECK(t.size(-3) == 2);
  CHECK(t.stride(1) == 4);
  CHECK(t.stride(-1) == 1);
  CHECK_THROWS_WITH(t.size(3), ContainsSubstring("[size] dimension 3"));
  CHECK_THROWS_AS(t.stride(-4), IndexError);
  CHECK_THROWS_WITH(empty({}).size(0), ContainsSubstring("0-d"));
  CHECK_THROWS_AS(empty({}).stride(-1), IndexError);
}

TEST_CASE("views share storage and version") {
  const Tensor t = empty({4, 5}, kUInt8);
  for (int i = 0; i < 20; ++i) t.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
  const Tensor column = detail::raw_view(t, {4}, {5}, 2);
  CHECK(column.data<std::uint8_t>()[5] == 7);
  CHECK(column.storage_offset() == 2);
  CHECK(column.numel() == 4);
  CHECK(column.storage() == t.storage());
  CHECK_FALSE(column.is_same(t));
  t.storage()->bump_version();
  CHECK(column.version() == 1);
  const Tensor again = detail::make_tensor(t.storage(), kInt32, {2, 2}, {2, 1}, 1);
  CHECK(again.raw_data() == t.data<std::uint8_t>() + 4);
  CHECK(again.dtype() == kInt32);
  const Tensor same = t;
  CHECK(same.is_same(t));
}

TEST_CASE("inference mode marks the tensors that it creates, but no views of older tensors") {
  const Tensor before = empty({2});
  const InferenceMode inference;
  CHECK_FALSE(before.impl()->inference);
  CHECK(empty({2}).impl()->inference);
  CHECK_FALSE(detail::raw_view(before, {1}, {1}, 0).impl()->inference);
}

TEST_CASE("is_contiguous ignores the strides of dimensions of size 1") {
  const auto view = [](const Shape& sizes, const Shape& strides) {
    return detail::raw_view(empty({10000}), sizes, strides, 0);
  };
  constexpr auto last = MemoryFormat::channels_last;
  CHECK(empty({2, 3}).is_contiguous());
  CHECK(empty({}).is_contiguous());
  CHECK_FALSE(view({3, 2}, {1, 3}).is_contiguous());
  CHECK_FALSE(view({2, 3}, {4, 1}).is_contiguous());
  CHECK_FALSE(view({2, 3}, {0, 1}).is_contiguous());
  CHECK_FALSE(view({3}, {2}).is_contiguous());
  CHECK(view({1, 3}, {77, 1}).is_contiguous());
  CHECK(view({3, 1}, {1, 99}).is_contiguous());
  CHECK(view({0, 3}, {5, 9}).is_contiguous());

  CHECK_FALSE(empty({2, 3}).is_contiguous(last));
  const Tensor nhwc = empty({2, 3, 4, 5}, kFloat32, last), nchw = empty({2, 3, 4, 5});
  CHECK(nhwc.is_contiguous(last));
  CHECK_FALSE(nhwc.is_contiguous());
  CHECK_FALSE(nchw.is_contiguous(last));
  CHECK(nhwc.memory_format() == last);
  CHECK(nchw.memory_format() == MemoryFormat::contiguous);
  // With one channel or one pixel, a tensor has both formats, and the strides say which was requested.
  for (const Shape& sizes :
       {Shape{2, 1, 4, 5}, Shape{2, 3, 1, 1}, Shape{1, 1, 4, 1}, Shape{2, 1, 1, 1}, Shape{2, 0, 4, 5}})
    for (const auto format : {last, MemoryFormat::contiguous}) {
      const Tensor both = empty(sizes, kFloat32, format);
      INFO(sizes.str());
      CHECK(both.is_contiguous());
      CHECK(both.is_contiguous(last));
      const bool says = sizes != Shape{2, 1, 1, 1} && sizes.numel() > 0;  // else the strides are the same
      CHECK(both.memory_format() == (says ? format : MemoryFormat::contiguous));
    }
  CHECK(empty({2, 1, 4, 5}, kFloat32, last).strides() == Shape{20, 1, 5, 1});
  CHECK(view({2, 1, 4, 5}, {20, 7, 5, 1}).memory_format() == MemoryFormat::contiguous);
  CHECK(view({2, 3, 4, 5}, {7, 1, 1, 1}).memory_format() ==
        MemoryFormat::contiguous);  // dense in neither format
}

TEST_CASE("tensors may be freed on a thread that created none, and their memory is reused") {
  const MemoryStats before = memory_stats(kCPU);
  std::vector<Tensor> made;
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t i = 0; i < 3000; ++i) made.push_back(empty({i % 7, 3}));
    for (std::int64_t i = 0; i < 3000; ++i) {
      const Tensor& t = made[static_cast<std::size_t>(i)];
      REQUIRE(t.sizes() == Shape{i % 7, 3});
      REQUIRE((t.is_contiguous() && t.storage_offset() == 0 && !t.requires_grad()));
    }
    // The new thread frees one half of the 3000 tensors, and this thread frees the other half.
    std::thread([rest = std::vector<Tensor>(std::make_move_iterator(made.begin() + 1500),
                                            std::make_move_iterator(made.end()))]() mutable {
      rest.clear();
      rest.push_back(empty({2}));
    }).join();
    made.clear();
  }
  CHECK(memory_stats(kCPU).allocated == before.allocated);
#ifndef TAPESTRY_SANITIZED  // sanitizers must see each free, so there is no free list
  Tensor t = empty({2});
  const TensorImpl* const impl = t.impl();
  t = Tensor();
  CHECK(empty({3, 4}).impl() == impl);
#endif
}

TEST_CASE("a HookHandle removes once, check_defined throws, and a tensor does not convert to bool") {
  int removed = 0;
  HookHandle handle([&] { ++removed; });
  handle.remove();
  handle.remove();
  CHECK(removed == 1);
  HookHandle().remove();
  CHECK_THROWS_WITH(detail::check_defined("relu", Tensor()),
                    ContainsSubstring("[relu] input is an undefined tensor"));
  CHECK_FALSE(std::is_convertible_v<Tensor, bool>);
  CHECK_FALSE(std::string(version()).empty());
}

TEST_CASE("properties of an undefined tensor throw ValueError") {
  const Tensor none;
  CHECK_THROWS_WITH(none.dtype(), ContainsSubstring("[Tensor] the tensor is undefined"));
  CHECK_THROWS_AS(none.device(), ValueError);
  CHECK_THROWS_AS(none.sizes(), ValueError);
  CHECK_THROWS_AS(none.shape(), ValueError);
  CHECK_THROWS_AS(none.strides(), ValueError);
  CHECK_THROWS_AS(none.size(0), ValueError);
  CHECK_THROWS_AS(none.stride(0), ValueError);
  CHECK_THROWS_AS(none.dim(), ValueError);
  CHECK_THROWS_AS(none.ndim(), ValueError);
  CHECK_THROWS_AS(none.numel(), ValueError);
  CHECK_THROWS_AS(none.nbytes(), ValueError);
  CHECK_THROWS_AS(none.storage_offset(), ValueError);
  CHECK_THROWS_AS(none.storage(), ValueError);
  CHECK_THROWS_AS(none.version(), ValueError);
  CHECK_THROWS_AS(none.is_contiguous(), ValueError);
  CHECK_THROWS_AS(none.memory_format(), ValueError);
  CHECK_THROWS_AS(none.raw_data(), ValueError);
  CHECK_THROWS_AS(none.data<float>(), ValueError);
  CHECK(none.is_same(Tensor()));
  CHECK(none.str() == "tensor(undefined)");
}
