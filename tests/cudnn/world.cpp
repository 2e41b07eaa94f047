#include "tests/cudnn/world.h"

#include <cmath>
#include <cstdlib>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tests/support/catch.h"
#include "tests/support/dtypes.h"

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

Tensor numbers(std::int64_t count, DType dtype, double seed) {
  const Tensor t = empty({count}, {dtype, kCPU});
  tests::for_dtype(dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<T*>(t.raw_data())[i] =
          tests::from_double<T>(std::sin(seed + 1.7 * static_cast<double>(i)) + 0.2);
  });
  return t;
}
std::vector<double> values(const Tensor& t) {
  const Tensor host = t.device().is_cuda() ? moved(t, kCPU) : t;
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  tests::for_dtype(t.dtype(), [&]<class T>() {
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = tests::to_double(static_cast<const T*>(host.raw_data())[i]);
  });
  return v;
}

}  // namespace cudnn_test
