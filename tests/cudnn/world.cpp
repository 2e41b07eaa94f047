#include "tests/cudnn/world.h"

#include <cstdlib>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tests/support/catch.h"

namespace cudnn_test {
namespace {

testing::FakeGpus* world_gpus = nullptr;  // the GPUs of the World that exists, or null

}  // namespace

World::World(int gpus) {
  setenv("TAPESTRY_CUDNN_LIBRARY", TAPESTRY_STANDIN_CUDNN, 1);
  library_ = cuda::open_library(cuda::cudnn_spec(),
                                {.loaded = false, .loader = false, .folders = {}, .site_packages = {}});
  unsetenv("TAPESTRY_CUDNN_LIBRARY");
  REQUIRE(library_.about().error == "");
  controls_ = library_.function<const StandInCudnn*()>("tapestry_standin_cudnn")();
  controls_->reset();
  gpus_ = std::make_unique<testing::FakeGpus>(gpus);
  world_gpus = gpus_.get();
  controls_->set_device([](void* stream, void (*work)(void*), void* argument) {
    world_gpus->launch(stream, [=] { work(argument); });
  });
  kernels::cuda::cudnn::use_library(&library_);
}

World::~World() {
  forget();
  gpus_.reset();  // runs the work that streams still have
  kernels::cuda::cudnn::use_library(nullptr);
  CHECK(std::string(controls_->violations()) == "");
  CHECK(controls_->live_descriptors() == 0);
  CHECK(controls_->live_handles() == 0);
}

kernels::LaunchContext World::context(Device device) const {
  return {device, current_stream(device).native()};
}

void World::forget() { kernels::cuda::cudnn::forget_sessions(); }

Tensor moved(const Tensor& t, Device device) {
  if (t.device().is_cpu() && device.is_cpu()) return t;
  const Tensor to = empty(t.sizes(), {t.dtype(), device});
  cuda::copy_bytes(to.device(), to.raw_data(), t.device(), t.raw_data(), t.nbytes());
  if (t.device().is_cuda()) current_stream(t.device()).synchronize();
  return to;
}

}  // namespace cudnn_test
