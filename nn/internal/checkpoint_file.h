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
/// Reads such metadata. `extra` has everything that is not a field of Progress. Throws IoError, which begins
/// with [op] and names `path`, for metadata of another version, without a position, or with a wrong one.
Progress progress_of(const char* op, const std::string& path, const StringMap& metadata);

/// The names of the optimizer's parameters in the order of their numbers. A parameter without a slot in
/// `parameters` is "#" with its number.
std::vector<std::string> parameter_names(const optim::Optimizer& optimizer, const NamedSlots& parameters);

/// Returns the state of a device's generator as a tensor of two int64.
Tensor generator_tensor(const std::array<std::uint64_t, 2>& state);
/// Reads such a tensor. Throws IoError, which begins with [op] and names `path`, if `device` is not the name
/// of a device, or if the tensor is not two int64.
std::array<std::uint64_t, 2> generator_state(const char* op, const std::string& path,
                                             const std::string& device, const Tensor& tensor);

}  // namespace tapestry::nn::checkpoint_file
