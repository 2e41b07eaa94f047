#pragma once
// Copies of bytes to, from and between CUDA devices, ordered by streams. Programs use Tensor::to() and
// copy_async() (pinned.h).
#include <cstddef>

#include "tapestry/core/stream.h"

namespace tapestry::cuda {

/// On `stream`, without waiting or ordering anything. Of the two devices one at least is a CUDA device; the
/// stream is of one of them, of `from` if both are.
void copy_bytes_async(Device to, void* out, Device from, const void* x, std::size_t bytes,
                      const Stream& stream);

/// `rows` pieces of `width` bytes, which begin `to_pitch` and `from_pitch` bytes apart (no less than
/// `width`), on `stream`; both places are the stream's device or the host.
void copy_rows_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                     std::size_t width, std::size_t rows, const Stream& stream);

/// As an operation: after what the current streams of both devices have been given so far, before what they
/// are given next. Waits until it is done where host memory takes part.
void copy_bytes(Device to, void* out, Device from, const void* x, std::size_t bytes);

}  // namespace tapestry::cuda
