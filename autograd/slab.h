#pragma once
// The slab allocator of tape nodes. Each thread allocates nodes from its own slab by advancing an offset; any
// thread may free them. A slab is reused when all nodes in it are freed, so a long-lived node keeps one slab
// of 64 KiB.
#include <cstddef>
#include <cstdint>

namespace tapestry::autograd {

void* slab_allocate(std::size_t bytes);
void slab_free(void* p) noexcept;

/// The number of slabs that hold a live node or are being filled. For tests.
std::int64_t slabs_in_use();

}  // namespace tapestry::autograd
