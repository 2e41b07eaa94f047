#pragma once
// Copies of bytes to, from and between CUDA devices, ordered by streams. Programs use Tensor::to() and
// copy_async() (pinned.h).
#include <cstddef>

#include "tapestry/core/stream.h"

namespace tapestry::cuda {

/// Enqueues a copy of `bytes` bytes on `stream` and returns. Does not order the copy with other streams. At
/// least one of the devices must be a CUDA device. `stream` must belong to that device, or to `from` if both
/// are CUDA devices.
void copy_bytes_async(Device to, void* out, Device from, const void* x, std::size_t bytes,
                      const Stream& stream);

/// Enqueues a copy of `rows` rows of `width` bytes on `stream` and returns. Consecutive rows start `to_pitch`
/// and `from_pitch` bytes apart; neither may be less than `width`. Each side is in the stream's device or on
/// the host.
void copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                     std::size_t width, std::size_t rows, const Stream& stream);

/// Copies in order with operations: after earlier work and before later work of both devices' current
/// streams. If one side is host memory, blocks until the copy is done.
void copy_bytes(Device to, void* out, Device from, const void* x, std::size_t bytes);

}  // namespace tapestry::cuda
