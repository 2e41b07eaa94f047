// Copies of tensors between devices, on fake GPUs, which run no kernels.
#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using tapestry::testing::FakeGpus;

namespace {

Tensor numbers(const Shape& sizes) { return arange(sizes.numel()).to(kFloat32).reshape(sizes); }

bool same_elements(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  return eq(a, b).to(kInt64).sum().item<std::int64_t>() == a.numel();
}

}  // namespace

TEST_CASE("tensors survive a copy to a device and back") {
  const FakeGpus gpus;
  const Tensor x = numbers({3, 5});
  const Tensor y = x.to("cuda:1");
  CHECK(y.device() == Device("cuda:1"));
  CHECK(y.strides() == x.strides());
  CHECK(same_elements(y.cpu(), x));
  CHECK(y.to("cuda:1").is_same(y));

  // Tensors that are not dense, or that change dtype, are converted before the copy.
  CHECK(x.t().to("cuda").strides() == x.t().strides());
  CHECK(same_elements(x.t().to("cuda").cpu(), x.t()));
  CHECK(same_elements(x.t().to("cuda", kInt32).cpu(), x.t().to(kInt32)));
  CHECK(same_elements(x.expand({2, 3, 5}).to("cuda").cpu(), x.expand({2, 3, 5})));
  CHECK(same_elements(x.select(1, 2).to("cuda").cpu(), x.select(1, 2)));
  CHECK(same_elements(x.to("cuda", kFloat64).cpu(), x.to(kFloat64)));
  CHECK(same_elements(x.to("cuda", kBool).cpu(), x.to(kBool)));
  CHECK(same_elements(empty({0, 4}).to("cuda").cpu(), empty({0, 4})));
  CHECK(scalar_tensor(2.5).to("cuda").item<float>() == 2.5f);
  CHECK(same_elements(y.to("cuda:0").to("cuda:1").cpu(), x));
  CHECK(gpus.copies_between() == 2);
}

TEST_CASE("channels-last tensors keep their format across devices") {
  const FakeGpus gpus;
  const Tensor x = numbers({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  const Tensor y = x.to("cuda");
  CHECK(y.memory_format() == MemoryFormat::channels_last);
  const Tensor back = y.cpu();
  CHECK(back.memory_format() == MemoryFormat::channels_last);
  CHECK(same_elements(back, x));
}

TEST_CASE("copy_ copies between devices") {
  const FakeGpus gpus;
  const Tensor x = numbers({4});
  const Tensor y = empty({4}, Device("cuda"));
  y.copy_(x);
  CHECK(same_elements(y.cpu(), x));
  const Tensor z = zeros({3, 4});
  z.copy_(y);  // y is copied to the CPU first and broadcast there
  CHECK(same_elements(z, x.expand({3, 4})));
}

TEST_CASE("gradients flow back across devices") {
  const FakeGpus gpus;
  const Tensor x = numbers({4}).set_requires_grad();
  const Tensor y = x.to("cuda:0").to("cuda:1").cpu();
  (y * y).sum().backward();
  CHECK(same_elements(x.grad(), x.detach() * 2));
}

TEST_CASE("a copy to a GPU that does not exist throws DeviceError") {
  const FakeGpus none(0);
  CHECK_THROWS_WITH(
      numbers({2}).to("cuda"),
      ContainsSubstring("[to] device cuda:0 does not exist: 0 CUDA devices (the fake has none); use "
                        "cpu"));
  CHECK_THROWS_AS(zeros({2}, Device("cuda")), DeviceError);
}
