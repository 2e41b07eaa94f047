// Tests that only the emulator allows: they count launches and host waits, and look for host addresses among
// kernel arguments.
#include <sys/mman.h>

#include <algorithm>

#include "tapestry/kernels/cuda/copy.cuh"
#include "tests/device/emulated/device.h"
#include "tests/device/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace device_tests;
using testing::emulated_gpus;
using testing::host_address_in;
using testing::launched_by;

namespace {

/// The constructor trains the task's model for two steps, so that the optimizer's state exists. step() trains
/// one more step.
class Training {
 public:
  explicit Training(const Task& task)
      : model_(task.make()), input_(task.input().to("cuda:0")), target_(task.target().to("cuda:0")) {
    model_->to("cuda:0");
    optimizer_ =
        std::make_unique<optim::SGD>(model_->parameters(), optim::SGD::Options{.lr = 0.01, .momentum = 0.9});
    step();
    step();
  }
  Tensor step() { return train_step(*model_, *optimizer_, input_, target_); }

 private:
  std::unique_ptr<nn::Module> model_;
  Tensor input_, target_;
  std::unique_ptr<optim::SGD> optimizer_;
};

}  // namespace

TEST_CASE("a kernel runs when its stream runs") {
  testing::FakeGpus& gpus = emulated_gpus();
  const Tensor x = full({1000}, 2.0, {DType::f32, "cuda:0"});
  synchronize("cuda:0");
  cuda_emulator::take_launches();
  const std::int64_t waits = gpus.host_waits();
  const Tensor y = x * 3 + x;
  CHECK(cuda_emulator::take_launches().empty());
  CHECK(gpus.host_waits() == waits);
  CHECK(y.cpu().data<float>()[999] == 8);
  CHECK(cuda_emulator::take_launches().size() == 2);

  // A kernel on another stream must run after the event that this stream waits for.
  const Stream side = new_stream("cuda:0");
  Event ready;
  const Tensor z = y * 2;
  ready.record(current_stream("cuda:0"));
  side.wait(ready);
  Tensor w;
  {
    const StreamGuard guard(side);
    w = z + 1;
    record_stream(z, side);
  }
  side.synchronize();
  CHECK(w.cpu().data<float>()[0] == 17);
}

TEST_CASE("a failing kernel throws at the next wait, a host address among arguments throws at the launch") {
  testing::FakeGpus& gpus = emulated_gpus();
  const Tensor x = zeros({4}, {DType::f32, "cuda:0"});
  gpus.launch(current_stream("cuda:0"), [] { throw std::runtime_error("went wrong"); });
  CHECK_THROWS_WITH(synchronize("cuda:0"), "went wrong");
  CHECK_NOTHROW(synchronize("cuda:0"));

  float here[4] = {};
  kernels::Elementwise<2> e;
  e.ndim = 1;
  e.numel = e.sizes[0] = 4;
  e.strides[0][0] = e.strides[1][0] = 1;
  e.out = x.raw_data();
  e.in[0] = here;
  CHECK_THROWS_WITH(kernels::copy("cuda:0", DType::f32, e),
                    ContainsSubstring("map_packs") && ContainsSubstring("host's"));
  e.in[0] = x.raw_data();
  CHECK_NOTHROW(kernels::copy("cuda:0", DType::f32, e));
  synchronize("cuda:0");
}

TEST_CASE("a 32-bit number and old bytes in the padding behind it are no host address") {
  // Padding whose old bytes are the upper half of an address, behind the number 3. The word they form is an
  // address of mapped memory.
  void* const wanted = reinterpret_cast<void*>(std::uintptr_t{0x7100} << 32);
  void* const page =
      mmap(wanted, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(page == wanted);
  const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(page) + 3;
  CHECK(host_address_in(&number, sizeof number) == nullptr);
  munmap(page, 4096);
  const int here = 0;
  const int* const address = &here;
  CHECK(host_address_in(&address, sizeof address) == address);
}

TEST_CASE("a training step never blocks the host") {
  emulated_gpus();
  for (const Task& task : tasks()) {
    CAPTURE(task.name);
    Training training(task);
    synchronize("cuda:0");
    const std::int64_t before = emulated_gpus().host_waits();
    const Tensor loss = training.step();
    CHECK(emulated_gpus().host_waits() - before == 0);
    loss.item();
    CHECK(emulated_gpus().host_waits() - before == 1);
  }
}

TEST_CASE("batch norm in training is three launches forward, and three backward") {
  emulated_gpus();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      CAPTURE(dtype, static_cast<int>(format));
      const TensorOptions options(dtype, "cuda:0");
      const Tensor x = ones({2, 4, 3, 3}, options).contiguous(format).set_requires_grad();
      const Tensor weight = ones({4}, options).set_requires_grad();
      const Tensor bias = zeros({4}, options).set_requires_grad();
      const Tensor mean = zeros({4}, options), var = ones({4}, options);
      const Tensor grad = ones({2, 4, 3, 3}, options).contiguous(format);
      Tensor y;
      CHECK(launched_by([&] { y = batch_norm(x, mean, var, weight, bias, true); }).size() == 3);
      CHECK(launched_by([&] { y.backward(grad); }).size() == 3);
    }
}

TEST_CASE("a channels-last residual network is trained without copies of layouts") {
  emulated_gpus();
  for (const Task& task : tasks()) {
    if (task.name.find("channels-last") != 0) continue;
    const auto is_copy = [](const std::string& name) {
      return name.find("4Same") != name.npos;
    };  // "Same" is the functor of the copy kernel
    Training training(task);
    const auto names = launched_by([&] { training.step(); });
    CHECK(names.size() > 50);
    CHECK(std::none_of(names.begin(), names.end(), is_copy));
    // The check itself is checked: images in another layout must cause a copy.
    Task other = task;
    other.input = [make = task.input] { return make().transpose(1, 2).contiguous().transpose(1, 2); };
    Training transposed(other);
    const auto more = launched_by([&] { transposed.step(); });
    CHECK(std::any_of(more.begin(), more.end(), is_copy));
  }
}
