// The NCCL backend on the CUDA runtime over the PTX machine, with the stand-in NCCL: two ranks train on two
// GPUs, whose kernels are what nvcc made of them. This needs a build with CUDA and with the shared CUDA
// runtime.
#if TAPESTRY_LIBRARY_HAS_CUDA && defined(TAPESTRY_STANDIN_NCCL)
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/distributed/comm/internal/nccl_library.h"
#include "tapestry/tapestry.h"
#include "tests/cuda_runtime/gpus.h"
#include "tests/support/nccl/standin.h"

using namespace tapestry::distributed;

namespace {

/// The stand-in NCCL whose operations are work of the runtime's streams.
class Nccl {
 public:
  Nccl() {
    setenv("TAPESTRY_NCCL_LIBRARY", TAPESTRY_STANDIN_NCCL, 1);
    library_ = cuda::open_library(cuda::nccl_spec(), {.loaded = false, .loader = false});
    unsetenv("TAPESTRY_NCCL_LIBRARY");
    controls_ = library_.function<const StandInNccl*()>("tapestry_standin_nccl")();
    controls_->reset();
    controls_->set_device(stand_in::enqueue, [] {
      int gpu = -1;
      return cudaGetDevice(&gpu) == cudaSuccess ? gpu : -1;
    });
    controls_->set_memory([](const void* address, unsigned long bytes, int write) -> void* {
      return stand_in::touch(address, bytes, write != 0);
    });
    use_nccl_library(&library_);
  }
  ~Nccl() {
    use_nccl_library(nullptr);
    controls_->set_memory(nullptr);
    CHECK(std::string(controls_->violations()) == "");
    CHECK(controls_->live() == 0);
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

 private:
  cuda::OpenLibrary library_;
  const StandInNccl* controls_;
};

std::vector<float> trained(Device device, const std::shared_ptr<ProcessGroup>& group, int rank, int size) {
  static std::mutex one_at_a_time;  // all threads draw from the CPU's one generator
  std::unique_lock lock(one_at_a_time);
  manual_seed(1);
  nn::Linear model({.in_features = 6, .out_features = 4});
  manual_seed(2);
  const Tensor x = randn({8, 6}, kCPU), target = randn({8, 4}, kCPU);
  lock.unlock();
  model.to(device);
  const std::int64_t rows = 8 / size;
  const auto part = [&](const Tensor& t) { return t.narrow(0, rank * rows, rows).contiguous().to(device); };
  optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  std::unique_ptr<DistributedDataParallel<nn::Linear>> ddp;
  if (group)
    ddp = std::make_unique<DistributedDataParallel<nn::Linear>>(model, DdpOptions{.process_group = group});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    mse_loss(ddp ? (*ddp)(part(x)) : model(part(x)), part(target)).backward();
    optimizer.step();
  }
  std::vector<float> weights;
  for (const Tensor& p : model.parameters())
    for (const float w : p.detach().cpu().to_vector<float>()) weights.push_back(w);
  return weights;
}

}  // namespace

TEST_CASE("two ranks over NCCL train on the PTX machine as one CPU does") {
  const std::vector<float> expected = trained(kCPU, nullptr, 0, 1);
  const Gpus gpus(2);
  stand_in::execute();
  const Nccl nccl;
  const auto store = memory_store();
  std::vector<std::thread> threads;
  std::string errors[2];
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const Device device(DeviceType::cuda, rank);
        auto backend = nccl_backend(prefix_store("nccl/", store), rank, 2, device, std::chrono::seconds(60));
        const auto group = make_process_group(std::move(backend), prefix_store("group/", store),
                                              {.timeout = std::chrono::seconds(60)});
        const std::vector<float> got = trained(device, group, rank, 2);
        if (got.size() != expected.size()) throw std::runtime_error("another number of weights");
        for (std::size_t i = 0; i < got.size(); ++i)
          if (std::abs(got[i] - expected[i]) > 1e-5f) {
            throw std::runtime_error("weight " + std::to_string(i) + " is " + std::to_string(got[i]) +
                                     ", not " + std::to_string(expected[i]));
          }
      } catch (const std::exception& e) {
        errors[rank] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  CHECK(stand_in::executed().size() > 3);
}
#else
#include <cstdio>

#include "tests/support/catch.h"

TEST_CASE("without CUDA, the shared CUDA runtime or nccl.h, no ranks train over NCCL") {
  std::printf("skipped: the library was not built with CUDA, the shared CUDA runtime and NCCL\n");
}
#endif
