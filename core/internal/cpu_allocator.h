#pragma once
// The allocators of CPU memory. Not in tapestry.h: allocator.h is what a program uses.
#include <memory>

#include "tapestry/core/allocator.h"

namespace tapestry::detail {

/// Keeps freed blocks by size for the next tensor of that size: fresh memory from the system costs a page
/// fault every 4 KiB. Small blocks go through a cache of the calling thread, without a lock.
std::unique_ptr<Allocator> make_caching_cpu_allocator();
/// Every block straight from the system and back, of exactly the size asked for: for sanitizers and leak
/// hunters.
std::unique_ptr<Allocator> make_system_cpu_allocator();

/// The one that TAPESTRY_CPU_ALLOCATOR (caching or system; ValueError otherwise) asks for. Unset: caching, or
/// system in a build with sanitizers. Never destroyed.
Allocator& cpu_allocator();

}  // namespace tapestry::detail
