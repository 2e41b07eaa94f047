#pragma once
// The choices of kernels (core/kernel_policy.h) in checkpoints. A resumed run computes the same bits only if
// it uses the same implementations.
#include <string>

#include "tapestry/core/safetensors.h"

namespace tapestry::nn {

/// Adds this process's choices to the `extra` of a checkpoint's progress, if there are any.
void put_kernel_choices(StringMap& extra);
/// Takes the choices out of a checkpoint's `extra` and returns them; empty if there are none. Throws IoError
/// that begins with [op] and names `path` if they are broken. set_kernel_choices() puts them into effect.
std::string take_kernel_choices(const char* op, const std::string& path, StringMap& extra);

}  // namespace tapestry::nn
