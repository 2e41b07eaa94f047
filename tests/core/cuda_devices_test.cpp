#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/core/cuda/internal/failure.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using tapestry::testing::FakeGpus;

TEST_CASE("child: prints whether there is CUDA", "[.]") {
  std::printf("built=%d;devices=%d;why=%s;", cuda::built(), device_count(DeviceType::cuda),
              cuda::why_no_device().c_str());
  try {
    empty({2}, Device("cuda"));
    std::printf("made a tensor;");
  } catch (const DeviceError& e) {
    std::printf("refused: %s;", e.what());
  }
}

TEST_CASE("without a GPU there are no devices, and errors give the reason") {
  const ChildResult child = run_child("child: prints whether there is CUDA", "CUDA_VISIBLE_DEVICES=");
  INFO(child.output);
  CHECK(child.status == 0);
  CHECK_THAT(child.output, ContainsSubstring("devices=0;"));
  CHECK_FALSE(child.output.find("why=;") != std::string::npos);
  CHECK_THAT(child.output,
             ContainsSubstring("refused: [Storage::allocate] device cuda:0 does not exist: 0 CUDA "
                               "devices ("));
  CHECK_THAT(child.output, ContainsSubstring("; use cpu"));
  if (!cuda::built()) CHECK_THAT(child.output, ContainsSubstring("this library was built without CUDA"));
}

TEST_CASE("every function that takes a device refuses CUDA devices that do not exist") {
  const FakeGpus none(0);
  CHECK(device_count(DeviceType::cuda) == 0);
  CHECK(cuda::why_no_device() == "the fake has none");
  const Device device("cuda");
  const auto gone = ContainsSubstring("cuda:0 does not exist: 0 CUDA devices (the fake has none); use cpu");
  CHECK_THROWS_WITH(empty({1}, device), gone);
  CHECK_THROWS_WITH(DeviceGuard(device), gone);
  CHECK_THROWS_WITH(current_stream(device), gone);
  CHECK_THROWS_WITH(new_stream(device), gone);
  CHECK_THROWS_WITH(synchronize(device), gone);
  CHECK_THROWS_WITH(memory_stats(device), gone);
  CHECK_THROWS_WITH(cuda::device_properties(device), gone);
  CHECK_THROWS_WITH(cuda::memory_info(device), gone);
  CHECK_THROWS_AS(cuda::memory_info(kCPU), DeviceError);

  // Without a GPU, empty_pinned() returns ordinary memory.
  const Tensor t = empty_pinned({3, 4});
  CHECK(t.sizes() == Shape{3, 4});
  CHECK_FALSE(is_pinned(t));
}

TEST_CASE("without TAPESTRY_LOGICAL_DEVICES there is one device per GPU") {
  if (std::getenv("TAPESTRY_LOGICAL_DEVICES")) return;  // set for the whole test run
  const FakeGpus gpus(3);
  CHECK(device_count(DeviceType::cuda) == 3);
  for (int i = 0; i < 3; ++i) {
    const auto properties = cuda::device_properties({DeviceType::cuda, i});
    CHECK(properties.gpu == i);
    CHECK(properties.name == "Fake " + std::to_string(i));
    CHECK(properties.major == 9);
  }
  CHECK_THROWS_WITH(check_device("empty", "cuda:3"),
                    ContainsSubstring("cuda:3 does not exist: 3 CUDA device(s), cuda:0 to cuda:2"));
  CHECK(cuda::memory_info("cuda:1").total == cuda::device_properties("cuda:1").memory);
}

TEST_CASE("child: logical devices on fake GPUs", "[.]") {
  const FakeGpus gpus(2);
  std::printf("devices=%d;on", device_count(DeviceType::cuda));
  for (int i = 0; i < device_count(DeviceType::cuda); ++i)
    std::printf(" %d", cuda::device_properties({DeviceType::cuda, i}).gpu);
  const Tensor a = empty({1 << 20}, Device("cuda:0"));
  const bool apart = memory_stats("cuda:0").allocated == 4 << 20 &&
                     (device_count(DeviceType::cuda) < 3 || memory_stats("cuda:2").allocated == 0);
  std::printf(";%s;", apart ? "counted apart" : "mixed up");
}

TEST_CASE("logical devices are assigned to the GPUs round-robin") {
  const auto with = [](int n) {
    return run_child("child: logical devices on fake GPUs", "TAPESTRY_LOGICAL_DEVICES=" + std::to_string(n))
        .output;
  };
  CHECK_THAT(with(4), ContainsSubstring("devices=4;on 0 1 0 1;counted apart;"));
  CHECK_THAT(with(3), ContainsSubstring("devices=3;on 0 1 0;counted apart;"));
  CHECK_THAT(with(1), ContainsSubstring("devices=1;on 0;counted apart;"));
}

TEST_CASE("the text of a failed call names the call, the GPU, the place and the remedy") {
  const auto where = SourceLocation::current();
  const std::string at = "cuda_devices_test.cpp:" + std::to_string(where.line());
  CHECK(
      cuda::failure_text({.call = "cudaStreamQuery(stream)",
                          .gpu = 1,
                          .name = "cudaErrorIllegalAddress",
                          .text = "an illegal memory access was encountered",
                          .remedy = cuda::Remedy::kernel},
                         where) ==
      "[cuda] cudaStreamQuery(stream) failed on GPU 1 at " + at +
          ": an illegal memory access was encountered (cudaErrorIllegalAddress); an earlier kernel caused "
          "this "
          "error, and this process can no longer use the GPU; run again with CUDA_LAUNCH_BLOCKING=1 or under "
          "compute-sanitizer to find the kernel");
  const std::string early = cuda::failure_text({.call = "f()", .name = "n", .text = "t"}, where);
  CHECK_THAT(early, ContainsSubstring("f() failed at " + at + ": t (n); look this error up in CUDA's"));
  for (const auto& [remedy, word] :
       std::vector<std::pair<cuda::Remedy, std::string>>{{cuda::Remedy::memory, "smaller batch"},
                                                         {cuda::Remedy::driver, "driver"},
                                                         {cuda::Remedy::device, "nvidia-smi"}})
    CHECK_THAT(cuda::failure_text({.remedy = remedy}, where), ContainsSubstring(word));
}
