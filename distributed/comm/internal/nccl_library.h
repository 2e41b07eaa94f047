#pragma once
// Which NCCL library the backend calls. Does not include nccl.h.
#include "tapestry/core/cuda/internal/libraries.h"

namespace tapestry::distributed {

/// For tests: communicators that are made from now on call this library; null restores cuda::nccl_library().
/// Throws DistributedError if the library lacks a function. Does nothing in a build without NCCL.
void use_nccl_library(const cuda::OpenLibrary* library);

}  // namespace tapestry::distributed
