#pragma once
// What MemoryRecord notes about pinned host memory, which comes from no Allocator.
#include <cstddef>

namespace tapestry::detail {

/// Called after pinned memory was allocated, and after it was freed. Cheap without a record.
void note_pinned(const void* data, std::size_t bytes);
void note_unpinned(const void* data) noexcept;

}  // namespace tapestry::detail
