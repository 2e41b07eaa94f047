#include "tapestry/core/pinned.h"

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/pinned_notes.h"

namespace tapestry {
namespace {

bool same_dense_layout(const Tensor& a, const Tensor& b) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    if (a.is_contiguous(format) && b.is_contiguous(format)) return true;
  return false;
}

}  // namespace

Tensor empty_pinned(const Shape& sizes, DType dtype) {
  cuda::Devices& devices = cuda::devices();
  const Tensor plain = empty(devices.count() == 0 ? sizes : Shape{0}, {dtype, kCPU});
  if (devices.count() == 0) return plain;
  const std::int64_t numel = checked_numel("empty_pinned", sizes);
  std::int64_t bytes = 0;
  check(!__builtin_mul_overflow(numel, static_cast<std::int64_t>(dtype_size(dtype)), &bytes),
        "[empty_pinned] a ", dtype, " tensor of shape ", sizes,
        " has more bytes than 64 bits can count; ask for smaller sizes");
  if (bytes == 0) return empty(sizes, {dtype, kCPU});
  const auto size = static_cast<std::size_t>(bytes);
  void* const data = devices.pinned().allocate(size, 0);
  check<OutOfMemoryError>(data != nullptr, "[empty_pinned] the system could not provide ", size,
                          " bytes of page-locked memory, where ", devices.pinned().stats().reserved,
                          " are reserved; pin less, or raise the limit of locked memory (ulimit -l)");
  // The block returns to the pool that it came from, even if a test has replaced the runtime since then.
  struct Block {
    cuda::BlockPool& pool;
    void* data;
  };
  const auto release = [](void* arg) {
    const std::unique_ptr<Block> block(static_cast<Block*>(arg));
    detail::note_unpinned(block->data);
    block->pool.deallocate(block->data);
  };
  detail::note_pinned(data, size);
  StorageRef storage = Storage::wrap(kCPU, data, size, release, new Block{devices.pinned(), data});
  return detail::make_tensor(std::move(storage), dtype, sizes, contiguous_strides(sizes), 0);
}

bool is_pinned(const Tensor& t) {
  detail::check_defined("is_pinned", t);
  return t.device().is_cpu() && t.numel() > 0 && cuda::devices().pinned().contains(t.raw_data());
}

void copy_async(const Tensor& out, const Tensor& x, const Stream& stream) {
  detail::check_defined("copy_async", out, "the output");
  detail::check_defined("copy_async", x);
  check<TypeError>(out.dtype() == x.dtype(), "[copy_async] the output is ", out.dtype(), " and the input ",
                   x.dtype(), "; make them the same");
  check(out.sizes() == x.sizes() && same_dense_layout(out, x), "[copy_async] an output of shape ",
        out.sizes(), " and strides ", out.strides(), ", an input of shape ", x.sizes(), " and strides ",
        x.strides(), "; both must have the same shape and the same dense layout");
  out.check_has_elements("copy_async");
  x.check_has_elements("copy_async");
  const Device at = stream.device();
  check<DeviceError>(
      at.is_cuda() && (at == out.device() || at == x.device()) && (!x.device().is_cuda() || at == x.device()),
      "[copy_async] from ", x.device(), " to ", out.device(), " on a stream of ", at,
      "; pass a stream of the CUDA device that takes part, or of the source's device if both are CUDA "
      "devices");
  cuda::copy_bytes_async(out.device(), out.raw_data(), x.device(), x.raw_data(), x.nbytes(), stream);
  // A replay reads and writes the same memory again.
  if (detail::CaptureState* const capture = detail::current_capture()) {
    for (const Tensor& t : {out, x}) capture->kept.push_back(t.storage());
  } else {
    record_stream(out, stream);
    record_stream(x, stream);
  }
  out.storage()->bump_version();
}

}  // namespace tapestry
