#pragma once
// Fake GPUs whose cuDNN is the stand-in of tests/support/cudnn.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/slot.h"
#include "tests/support/cudnn/standin.h"
#include "tests/support/fake_gpu.h"

namespace cudnn_test {

using namespace tapestry;

inline const Device kGpu{DeviceType::cuda, 0};

/// Provides fake GPUs and the stand-in cuDNN for the length of a scope. The destructor fails the test if a
/// descriptor or handle is left, or if a rule of the backend API was broken.
class World {
 public:
  explicit World(int gpus = 1);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const StandInCudnn& cudnn() const { return *controls_; }
  testing::FakeGpus& gpus() { return *gpus_; }
  /// What slots pass to kernels on this device.
  kernels::LaunchContext context(Device device = kGpu) const;
  /// Destroys the handles and plans.
  void forget();

 private:
  cuda::OpenLibrary library_;
  const StandInCudnn* controls_;
  std::unique_ptr<testing::FakeGpus> gpus_;
};

/// Copies a tensor between the host and a device, and waits for it. The sizes are kept, and the elements
/// become dense in the order in which they lie in memory.
Tensor moved(const Tensor& t, Device device);

/// Numbers with full mantissas of the dtype, different at each place, with a mean that is not 0.
Tensor numbers(std::int64_t count, DType dtype, double seed);
/// The elements of a tensor of any device, in the order of memory.
std::vector<double> values(const Tensor& t);

}  // namespace cudnn_test
