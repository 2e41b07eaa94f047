#pragma once
#include <memory>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/cuda/internal/runtime.h"
#include "tests/support/catch.h"
#include "tapestry/tools/ptx/runtime/control.h"

using namespace tapestry;

inline const Device kFirst{DeviceType::cuda, 0}, kSecond{DeviceType::cuda, 1};

/// Passed to the constructor of Gpus: it must not reset the stand-in runtime, because the test has injected
/// errors.
struct KeepInjected {};
inline constexpr KeepInjected kKeepInjected;

/// While a Gpus object exists, the process's CUDA devices are new GPUs of the stand-in runtime, called
/// through core/cuda/runtime.cpp. The destructor fails the test if anything leaked or a call was misused.
/// Tensors, streams and events must be destroyed before it.
class Gpus {
 public:
  explicit Gpus(int gpus = 2, std::size_t memory = std::size_t{256} << 20)
      : Gpus((stand_in::reset(gpus, memory), kKeepInjected)) {}
  explicit Gpus(KeepInjected) {
    devices_ = std::make_unique<cuda::Devices>(cuda::cuda_runtime());
    before_ = cuda::exchange_devices(devices_.get());
  }
  ~Gpus() {
    cuda::exchange_devices(before_);
    devices_.reset();
    CHECK(stand_in::leaks() == std::vector<std::string>{});
    CHECK(stand_in::misuse() == std::vector<std::string>{});
    stand_in::reset();
  }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

 private:
  std::unique_ptr<cuda::Devices> devices_;
  cuda::Devices* before_;
};
