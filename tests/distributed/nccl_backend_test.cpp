// Tests the NCCL backend without a GPU (error texts, refusals), and on a real GPU if there is one: with one
// rank, and with several ranks that tools/gpu_check starts. nccl_collectives_test.cpp and
// nccl_faults_test.cpp run several ranks on a stand-in NCCL.
#include <cstring>
#include <vector>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/core/pinned.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/comm/internal/nccl_failure.h"
#include "tests/distributed/nccl_support.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace std::chrono_literals;

namespace {

const Device kGpu{DeviceType::cuda, 0};

template <class T>
Tensor on_gpu(const std::vector<T>& values) {
  const Tensor t = empty({static_cast<std::int64_t>(values.size())}, {dtype_of<T>, kGpu});
  cuda::copy_bytes(kGpu, t.raw_data(), kCPU, values.data(), t.nbytes());
  return t;
}
template <class T>
std::vector<T> on_host(const Tensor& t) {
  std::vector<T> values(static_cast<std::size_t>(t.numel()));
  cuda::copy_bytes(kCPU, values.data(), kGpu, t.raw_data(), t.nbytes());
  return values;
}

}  // namespace

TEST_CASE("failures of NCCL say what to do") {
  const auto text = [](const std::string& error, const std::string& last) {
    return nccl_failure_text(
        {.call = "ncclAllReduce", .error = error, .last = last, .rank = 1, .device = kGpu});
  };
  CHECK(text("invalid usage", "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000") ==
        "ncclAllReduce failed on rank 1 (cuda:0): invalid usage: Duplicate GPU detected : rank 0 and rank 1 "
        "both on "
        "CUDA device 1b000; two ranks have one GPU: give each its own, or use the backend gloo");
  CHECK_THAT(text("unhandled system error", "Error while creating shared memory segment /dev/shm/nccl-x"),
             ContainsSubstring("--shm-size"));
  CHECK_THAT(text("unhandled cuda error", "CUDA driver version is insufficient"),
             ContainsSubstring("install an"));
  CHECK_THAT(text("remote process exited or there was a network error", ""),
             ContainsSubstring("network error; look at the output of the other ranks"));
  CHECK_THAT(text("internal error", ""), ContainsSubstring("internal error; run with NCCL_DEBUG=INFO"));
}

TEST_CASE("NCCL without a GPU is refused") {
  const auto store = memory_store();
  if (!built_with_nccl()) {
    CHECK_THROWS_WITH(nccl_backend(store, 0, 1, kGpu, 1s), ContainsSubstring("built without NCCL"));
    return;
  }
  CHECK_THROWS_WITH(nccl_backend(store, 0, 1, kCPU, 1s),
                    ContainsSubstring("[nccl] device cpu:0 is not a CUDA device"));
  CHECK_THROWS_AS(nccl_backend(store, 1, 1, kGpu, 1s), ValueError);
  const tapestry::testing::FakeGpus none(0);
  CHECK_THROWS_WITH(nccl_backend(store, 0, 1, kGpu, 1s),
                    ContainsSubstring("[nccl] device cuda:0 does not exist"));
}

TEST_CASE("the text of NCCL's own error reaches the caller") {
  if (!built_with_nccl() || device_count(DeviceType::cuda) > 0) return;
  if (!cuda::nccl_library().about().available())
    return static_cast<void>(std::printf("skipped: %s\n", cuda::nccl_library().about().str().c_str()));
  // NCCL must fail here: the real library runs, but the GPU is a fake that the CUDA driver does not know.
  const tapestry::testing::FakeGpus gpus(1);
  CHECK_THROWS_WITH(nccl_backend(memory_store(), 0, 1, kGpu, 5s),
                    ContainsSubstring("failed") && ContainsSubstring("driver"));
}

TEST_CASE("a group of one over NCCL does every collective") {
  if (no_gpu()) return;
  if (!built_with_nccl()) return static_cast<void>(std::printf("skipped: built without NCCL\n"));
  const auto group = init_process_group({.backend = "nccl"});
  CHECK(group->backend() == "nccl");
  using F = std::vector<float>;
  const Tensor x = on_gpu<float>({1, 2, 3});
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product})
    group->all_reduce(x, op).wait();
  CHECK(on_host<float>(x) == F{1, 2, 3});
  const Tensor b = on_gpu<std::int64_t>({7, 1 << 20});
  group->all_reduce(b).wait();
  CHECK(on_host<std::int64_t>(b) == std::vector<std::int64_t>{7, 1 << 20});
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16, DType::i32, DType::u8, DType::boolean}) {
    const Tensor t = empty({5}, {dtype, kGpu});
    CHECK_NOTHROW(group->all_reduce(t).wait());
  }
  const Tensor y = on_gpu<float>({0, 0, 0});
  const auto arrives = [&](const Work& work) {
    work.wait();
    CHECK(on_host<float>(y) == F{1, 2, 3});
    cuda::copy_bytes(kGpu, y.raw_data(), kGpu, on_gpu<float>({0, 0, 0}).raw_data(), y.nbytes());
  };
  arrives(group->all_gather(y, x));
  arrives(group->reduce_scatter(y, x));
  arrives(group->gather(y, x));
  arrives(group->scatter(y, x));
  arrives(group->all_to_all(y, x));
  group->broadcast(x).wait();
  group->reduce(x).wait();
  group->barrier().wait();
  CHECK(on_host<float>(x) == F{1, 2, 3});

  Tensor plain = empty({2});
  plain.data<float>()[0] = 4, plain.data<float>()[1] = 5;
  group->all_reduce(plain).wait();
  CHECK(plain.data<float>()[1] == 5);

  group->abort("the test says so");
  CHECK_THROWS_AS(group->all_reduce(x), DistributedError);
}

// tools/gpu_check starts two ranks of this test, each with its own NCCL_HOSTID, because NCCL refuses two
// ranks of one host on one GPU.
TEST_CASE("two ranks over NCCL share a GPU", "[.]") {
  if (no_gpu()) return;
  const auto group = init_process_group({.backend = "nccl", .group = {.timeout = 60s}});
  REQUIRE(group->size() == 2);
  const int rank = group->rank();
  using F = std::vector<float>;

  // Odd lengths, one of them longer than NCCL's chunks. Neighbouring elements differ.
  for (const std::size_t n : {std::size_t{1}, std::size_t{1027}, std::size_t{5'000'003}}) {
    F own(n), sum(n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto number = static_cast<float>(i % 4096);
      own[i] = number + static_cast<float>(rank);
      sum[i] = 2 * number + 1;
    }
    const Tensor x = on_gpu(own);
    group->all_reduce(x).wait();
    CHECK(on_host<float>(x) == sum);
  }
  const Tensor told = on_gpu<float>({static_cast<float>(rank), 5});
  group->broadcast(told, 1).wait();
  CHECK(on_host<float>(told) == F{1, 5});
  const Tensor all = on_gpu<float>({0, 0, 0, 0});
  group->all_gather(all, on_gpu<float>({static_cast<float>(rank), 7})).wait();
  CHECK(on_host<float>(all) == F{0, 7, 1, 7});
  group->barrier().wait();
}

// tools/gpu_check starts a rank for each GPU.
TEST_CASE("overlapping groups over NCCL on streams of their own", "[.]") {
  if (no_gpu()) return;
  const int gpus = device_count(DeviceType::cuda);
  if (gpus < 2)
    return static_cast<void>(std::printf("skipped: %d GPU is visible, and this test needs 2\n", gpus));
  const auto world = init_process_group({.backend = "nccl", .group = {.timeout = 40s, .own_streams = true}});
  REQUIRE_NOTHROW(nccl_test::overlap_groups(world, {DeviceType::cuda, world->rank()}, 300'007));
}
