#pragma once
// What a checkpoint in one file contains beside the model, for the code of one process and of jobs.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/nn/checkpoint.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::nn::checkpoint_file {

inline const std::string kTraining = "training/";
inline const std::string kOptimizer = kTraining + "optimizer/", kScheduler = kTraining + "scheduler/",
                         kScaler = kTraining + "scaler/", kGenerator = kTraining + "generator/";

/// The metadata of a progress, to which the caller may add more.
StringMap metadata_of(const Progress& progress);
/// Reads it. `extra` has everything that is not a field of Progress. Throws IoError, which begins with [op]
/// and names `path`, for metadata of another version, without a position, or with a wrong one.
Progress progress_of(const char* op, const std::string& path, const StringMap& metadata);

/// The names of the optimizer's parameters in the order of their numbers. A parameter without a slot in
/// `parameters` is "#" with its number.
std::vector<std::string> parameter_names(const optim::Optimizer& optimizer, const NamedSlots& parameters);

/// The state of a device's generator as a tensor, and back. Throws IoError, which begins with [op] and names
/// `path`, unless `device` names a device and the tensor has two int64.
Tensor generator_tensor(const std::array<std::uint64_t, 2>& state);
std::array<std::uint64_t, 2> generator_state(const char* op, const std::string& path,
                                             const std::string& device, const Tensor& tensor);

}  // namespace tapestry::nn::checkpoint_file
