#pragma once
// The two allocators of CPU memory. Programs use them through allocator.h.
#include <memory>

#include "tapestry/core/allocator.h"

namespace tapestry::detail {

/// Caches freed blocks by size class for later tensors, because new memory from the system costs one page
/// fault per 4 KiB. Small blocks go through a cache of the calling thread, without a lock.
std::unique_ptr<Allocator> make_caching_cpu_allocator();
/// Takes each block from the system, with exactly the requested size, and returns it when it is freed. For
/// sanitizers and leak checkers.
std::unique_ptr<Allocator> make_system_cpu_allocator();

/// The allocator that the environment variable TAPESTRY_CPU_ALLOCATOR selects: `caching` or `system`. If the
/// variable is not set, `caching`, or `system` in a build with sanitizers. Throws ValueError for another
/// value. Never destroyed.
Allocator& cpu_allocator();

}  // namespace tapestry::detail
