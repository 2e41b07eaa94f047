#pragma once
// Memory of tape nodes: bump allocation from slabs of one thread, freed from any thread. A slab is used again
// when all that lives in it is gone, so a node that outlives its step pins one slab and no more.
#include <cstddef>
#include <cstdint>

namespace tapestry::autograd {

void* slab_allocate(std::size_t bytes);
void slab_free(void* p) noexcept;

/// Slabs in use (holding a live node, or being filled), for tests.
std::int64_t slabs_in_use();

}  // namespace tapestry::autograd
