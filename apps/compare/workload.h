#pragma once
// What all modes of a comparison train, and on what.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"

namespace apps::compare {

struct Workload {
  std::string model = "mlp";
  std::int64_t batch_size = 64;  ///< of all devices together
  std::int64_t image_size = 32;
  tapestry::DType dtype = tapestry::DType::f32;
  tapestry::DeviceType device_type = tapestry::DeviceType::cpu;
  int devices = 2;
  int threads = 1;             ///< of the CPU, for all devices together
  int micro_batches = 4;       ///< of pipelines
  int warmup = 2, steps = 10;  ///< steps that are not timed, and those that are
  double lr = 0.01;            ///< of SGD without momentum
  std::uint64_t seed = 1;
  /// How many of the model's blocks each part has, where each device gets a part. The program fills it in, by
  /// measured costs, where it is not given.
  std::vector<int> split = {};

  /// Each device's share of `threads`.
  int threads_per_device() const { return threads > devices ? threads / devices : 1; }
};

/// cpu:0, cpu:1, ... or cuda:0, ...
std::vector<tapestry::Device> devices_of(const Workload& workload);

}  // namespace apps::compare
