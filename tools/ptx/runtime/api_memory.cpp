// Entry points: memory and copies.
#include <algorithm>

#include "tapestry/tools/ptx/runtime/api.h"

using namespace stand_in::api;
namespace driver = stand_in::driver;
using driver::Box, driver::Side;

namespace {

void* plain(const void* data) { return const_cast<void*>(data); }

cudaError_t copy_async(const char* name, Side to, Side from, Box box, cudaMemcpyKind kind,
                       cudaStream_t stream) {
  return device_call(name, [&] {
    return enqueue(stream,
                   [&](driver::Operation* made) { return driver::make_copy(to, from, box, kind, made); });
  });
}
cudaError_t copy_sync(const char* name, Side to, Side from, Box box, cudaMemcpyKind kind,
                      cudaStream_t stream) {
  return device_call(name, [&] { return driver::copy_now(to, from, box, kind, stream, current()); });
}
cudaError_t fill(const char* name, Side to, Box box, int value, cudaStream_t stream) {
  return device_call(name, [&] {
    return enqueue(stream, [&](driver::Operation* made) {
      return driver::make_fill(to, box, static_cast<unsigned>(value) & 0xff, 1, made);
    });
  });
}

// CUDA checks the pitches of 2D copies even if there is one row.
template <class F>
cudaError_t pitched(const char* name, std::size_t width, std::size_t a, std::size_t b, F f) {
  if (a >= width && b >= width) return f();
  return device_call(name, [] { return cudaErrorInvalidPitchValue; });
}

Side side_of(const cudaPitchedPtr& p, const cudaPos& at) {
  return {static_cast<char*>(p.ptr) + at.z * p.pitch * p.ysize + at.y * p.pitch + at.x, p.pitch,
          p.pitch * p.ysize};
}
template <class F>
cudaError_t copy_3d(const char* name, const cudaMemcpy3DParms& p, F f) {
  if (p.srcArray || p.dstArray)
    return device_call(name, [&] {
      return driver::misused(cudaErrorNotSupported, std::string(name) + " of an array; arrays are missing");
    });
  return f(side_of(p.dstPtr, p.dstPos), side_of(p.srcPtr, p.srcPos),
           Box{p.extent.width, p.extent.height, p.extent.depth});
}

template <class F>
cudaError_t with_symbol(const char* name, const void* symbol, std::size_t bytes, std::size_t offset, F f) {
  void* address = nullptr;
  std::size_t size = 0;
  const cudaError_t error = device_call(name, [&] { return address_of_symbol(symbol, &address, &size); });
  if (error != cudaSuccess) return error;
  if (offset > size || bytes > size - offset)
    return device_call(name, [&] {
      return driver::misused(cudaErrorInvalidValue, std::string(name) + " beyond the end of a variable");
    });
  return f(static_cast<char*>(address) + offset);
}

cudaError_t location_exists(const cudaMemLocation& l) {
  return l.type == cudaMemLocationTypeDevice && !exists(l.id) ? cudaErrorInvalidDevice : cudaSuccess;
}

}  // namespace

extern "C" {

// ---- allocations ----

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return device_call("cudaMalloc", [&] { return driver::allocate(current(), bytes, data); });
}
cudaError_t cudaMallocPitch(void** data, std::size_t* pitch, std::size_t width, std::size_t height) {
  return device_call("cudaMallocPitch", [&] {
    *pitch = (width + 511) / 512 * 512;
    return driver::allocate(current(), *pitch * height, data);
  });
}
cudaError_t cudaMalloc3D(cudaPitchedPtr* to, cudaExtent extent) {
  return device_call("cudaMalloc3D", [&] {
    *to = {nullptr, (extent.width + 511) / 512 * 512, extent.width, extent.height};
    return driver::allocate(current(), to->pitch * extent.height * extent.depth, &to->ptr);
  });
}
cudaError_t cudaMallocManaged(void** data, std::size_t bytes, unsigned flags) {
  return device_call("cudaMallocManaged", [&] {
    if (bytes == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost))
      return cudaErrorInvalidValue;
    return driver::allocate(current(), bytes, data, true, flags);
  });
}
cudaError_t cudaFree(void* data) {
  return release_call("cudaFree", [&] {
    if (driver::gpu_count() > 0) driver::make_context(current());  // programs call cudaFree(0) for this
    return driver::release(data, false);
  });
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags) {
  return device_call("cudaHostAlloc", [&] {
    return flags & ~7u ? cudaErrorInvalidValue : driver::allocate(-1, bytes, data, false, flags);
  });
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return device_call("cudaMallocHost", [&] { return driver::allocate(-1, bytes, data); });
}
cudaError_t cudaFreeHost(void* data) {
  return release_call("cudaFreeHost", [&] { return driver::release(data, true); });
}
cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned flags) {
  return device_call("cudaHostRegister", [&] { return driver::register_host(data, bytes, flags); });
}
cudaError_t cudaHostUnregister(void* data) {
  return release_call("cudaHostUnregister", [&] { return driver::unregister_host(data); });
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned) {
  return device_call("cudaHostGetDevicePointer", [&] {
    unsigned flags = 0;
    if (const cudaError_t error = driver::host_flags(on_host, &flags); error != cudaSuccess) return error;
    *on_device = on_host;
    return cudaSuccess;
  });
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* data) {
  return device_call("cudaHostGetFlags", [&] { return driver::host_flags(data, flags); });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* data) {
  return device_call("cudaPointerGetAttributes", [&] { return driver::attributes_of(data, to); });
}

// Managed memory is where the host and the GPUs see it, so advice moves nothing.
cudaError_t cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, cudaMemLocation location) {
  return device_call("cudaMemAdvise", [&] { return location_exists(location); });
}
cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, cudaMemLocation location, unsigned, cudaStream_t) {
  return device_call("cudaMemPrefetchAsync", [&] { return location_exists(location); });
}
cudaError_t cudaMemPrefetchAsync_ptsz(const void* data, std::size_t bytes, cudaMemLocation location,
                                      unsigned flags, cudaStream_t stream) {
  return cudaMemPrefetchAsync(data, bytes, location, flags, own(stream));
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, std::size_t, unsigned) {
  return device_call("cudaStreamAttachMemAsync", [] { return cudaSuccess; });
}
cudaError_t cudaStreamAttachMemAsync_ptsz(cudaStream_t stream, void* data, std::size_t bytes,
                                          unsigned flags) {
  return cudaStreamAttachMemAsync(own(stream), data, bytes, flags);
}

// ---- memory in stream order ----

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  return device_call("cudaMallocAsync", [&] {
    const int gpu = driver::gpu_of(stream, current());
    return gpu < 0 ? cudaErrorInvalidResourceHandle
                   : driver::allocate_in_order(gpu, bytes, data, nullptr, stream, current());
  });
}
cudaError_t cudaMallocAsync_ptsz(void** data, std::size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(data, bytes, own(stream));
}
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return device_call("cudaMallocFromPoolAsync", [&] {
    const int gpu = driver::gpu_of(stream, current());
    return gpu < 0 ? cudaErrorInvalidResourceHandle
                   : driver::allocate_in_order(gpu, bytes, data, pool, stream, current());
  });
}
cudaError_t cudaMallocFromPoolAsync_ptsz(void** data, std::size_t bytes, cudaMemPool_t pool,
                                         cudaStream_t stream) {
  return cudaMallocFromPoolAsync(data, bytes, pool, own(stream));
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  return release_call("cudaFreeAsync", [&] { return driver::free_in_order(data, stream, current()); });
}
cudaError_t cudaFreeAsync_ptsz(void* data, cudaStream_t stream) { return cudaFreeAsync(data, own(stream)); }

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int gpu) {
  return call("cudaDeviceGetDefaultMemPool",
              [&] { return exists(gpu) ? driver::pool_of(gpu, true, pool) : cudaErrorInvalidDevice; });
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int gpu) {
  return call("cudaDeviceGetMemPool",
              [&] { return exists(gpu) ? driver::pool_of(gpu, false, pool) : cudaErrorInvalidDevice; });
}
cudaError_t cudaDeviceSetMemPool(int gpu, cudaMemPool_t pool) {
  return call("cudaDeviceSetMemPool",
              [&] { return exists(gpu) ? driver::set_pool(gpu, pool) : cudaErrorInvalidDevice; });
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return device_call("cudaMemPoolCreate", [&] {
    if (properties->location.type != cudaMemLocationTypeDevice || !exists(properties->location.id))
      return cudaErrorInvalidValue;
    return driver::create_pool(properties->location.id, pool);
  });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return release_call("cudaMemPoolDestroy", [&] { return driver::destroy_pool(pool); });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  return device_call("cudaMemPoolTrimTo", [] { return cudaSuccess; });
}
namespace {
bool is_flag(cudaMemPoolAttr attribute) {
  return attribute == cudaMemPoolReuseFollowEventDependencies ||
         attribute == cudaMemPoolReuseAllowOpportunistic ||
         attribute == cudaMemPoolReuseAllowInternalDependencies;
}
}  // namespace
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return device_call("cudaMemPoolSetAttribute", [&] {
    const std::uint64_t wide = is_flag(attribute) ? static_cast<std::uint64_t>(*static_cast<int*>(value))
                                                  : *static_cast<std::uint64_t*>(value);
    return driver::pool_attribute(pool, attribute, nullptr, &wide);
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return device_call("cudaMemPoolGetAttribute", [&] {
    std::uint64_t wide = 0;
    const cudaError_t error = driver::pool_attribute(pool, attribute, &wide, nullptr);
    if (is_flag(attribute)) *static_cast<int*>(value) = static_cast<int>(wide);
    else *static_cast<std::uint64_t*>(value) = wide;
    return error;
  });
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc* list, std::size_t count) {
  return device_call("cudaMemPoolSetAccess", [&] {
    for (std::size_t i = 0; i < count; ++i)
      if (const cudaError_t error = location_exists(list[i].location); error != cudaSuccess) return error;
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t, cudaMemLocation* location) {
  return device_call("cudaMemPoolGetAccess", [&] {
    *flags = cudaMemAccessFlagsProtReadWrite;
    return location_exists(*location);
  });
}

// ---- copies ----

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy_async("cudaMemcpyAsync", {to}, {plain(from)}, {bytes}, kind, stream);
}
cudaError_t cudaMemcpyAsync_ptsz(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                 cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, own(stream));
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy_sync("cudaMemcpy", {to}, {plain(from)}, {bytes}, kind, nullptr);
}
cudaError_t cudaMemcpy_ptds(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy_sync("cudaMemcpy", {to}, {plain(from)}, {bytes}, kind, cudaStreamPerThread);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  return pitched("cudaMemcpy2DAsync", width, to_pitch, from_pitch, [&] {
    return copy_async("cudaMemcpy2DAsync", {to, to_pitch}, {plain(from), from_pitch}, {width, rows}, kind,
                      stream);
  });
}
cudaError_t cudaMemcpy2DAsync_ptsz(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                   std::size_t width, std::size_t rows, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, kind, own(stream));
}
cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t rows, cudaMemcpyKind kind) {
  return pitched("cudaMemcpy2D", width, to_pitch, from_pitch, [&] {
    return copy_sync("cudaMemcpy2D", {to, to_pitch}, {plain(from), from_pitch}, {width, rows}, kind, nullptr);
  });
}
cudaError_t cudaMemcpy2D_ptds(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind kind) {
  return pitched("cudaMemcpy2D", width, to_pitch, from_pitch, [&] {
    return copy_sync("cudaMemcpy2D", {to, to_pitch}, {plain(from), from_pitch}, {width, rows}, kind,
                     cudaStreamPerThread);
  });
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  return copy_3d("cudaMemcpy3DAsync", *p, [&](Side to, Side from, Box box) {
    return copy_async("cudaMemcpy3DAsync", to, from, box, p->kind, stream);
  });
}
cudaError_t cudaMemcpy3DAsync_ptsz(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  return cudaMemcpy3DAsync(p, own(stream));
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  return copy_3d("cudaMemcpy3D", *p, [&](Side to, Side from, Box box) {
    return copy_sync("cudaMemcpy3D", to, from, box, p->kind, nullptr);
  });
}
cudaError_t cudaMemcpy3D_ptds(const cudaMemcpy3DParms* p) {
  return copy_3d("cudaMemcpy3D", *p, [&](Side to, Side from, Box box) {
    return copy_sync("cudaMemcpy3D", to, from, box, p->kind, cudaStreamPerThread);
  });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, std::size_t bytes,
                                cudaStream_t stream) {
  return device_call("cudaMemcpyPeerAsync", [&] {
    if (!exists(to_gpu) || !exists(from_gpu)) return cudaErrorInvalidDevice;
    if (driver::owner_of(to) != to_gpu || driver::owner_of(from) != from_gpu)
      return driver::misused(cudaErrorInvalidValue, "cudaMemcpyPeerAsync of memory that is on another GPU");
    return enqueue(stream, [&](driver::Operation* made) {
      return driver::make_copy({to}, {plain(from)}, {bytes}, cudaMemcpyDeviceToDevice, made);
    });
  });
}
cudaError_t cudaMemcpyPeer(void* to, int to_gpu, const void* from, int from_gpu, std::size_t bytes) {
  return cudaMemcpyPeerAsync(to, to_gpu, from, from_gpu, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return fill("cudaMemsetAsync", {to}, {bytes}, value, stream);
}
cudaError_t cudaMemsetAsync_ptsz(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return cudaMemsetAsync(to, value, bytes, own(stream));
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return fill("cudaMemset", {to}, {bytes}, value, nullptr);
}
cudaError_t cudaMemset_ptds(void* to, int value, std::size_t bytes) {
  return fill("cudaMemset", {to}, {bytes}, value, cudaStreamPerThread);
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width, std::size_t rows,
                              cudaStream_t stream) {
  return fill("cudaMemset2DAsync", {to, pitch}, {width, rows}, value, stream);
}
cudaError_t cudaMemset2DAsync_ptsz(void* to, std::size_t pitch, int value, std::size_t width,
                                   std::size_t rows, cudaStream_t stream) {
  return cudaMemset2DAsync(to, pitch, value, width, rows, own(stream));
}
cudaError_t cudaMemset2D(void* to, std::size_t pitch, int value, std::size_t width, std::size_t rows) {
  return fill("cudaMemset2D", {to, pitch}, {width, rows}, value, nullptr);
}
cudaError_t cudaMemset2D_ptds(void* to, std::size_t pitch, int value, std::size_t width, std::size_t rows) {
  return fill("cudaMemset2D", {to, pitch}, {width, rows}, value, cudaStreamPerThread);
}
cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent e, cudaStream_t stream) {
  return fill("cudaMemset3DAsync", side_of(to, {}), {e.width, e.height, e.depth}, value, stream);
}
cudaError_t cudaMemset3DAsync_ptsz(cudaPitchedPtr to, int value, cudaExtent e, cudaStream_t stream) {
  return cudaMemset3DAsync(to, value, e, own(stream));
}
cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent e) {
  return fill("cudaMemset3D", side_of(to, {}), {e.width, e.height, e.depth}, value, nullptr);
}
cudaError_t cudaMemset3D_ptds(cudaPitchedPtr to, int value, cudaExtent e) {
  return fill("cudaMemset3D", side_of(to, {}), {e.width, e.height, e.depth}, value, cudaStreamPerThread);
}

// ---- variables of modules ----

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  return device_call("cudaGetSymbolAddress", [&] {
    std::size_t bytes = 0;
    return address_of_symbol(symbol, address, &bytes);
  });
}
cudaError_t cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  return device_call("cudaGetSymbolSize", [&] {
    void* address = nullptr;
    return address_of_symbol(symbol, &address, bytes);
  });
}
#define TAPESTRY_SYMBOL_COPIES(suffix, stream_of)                                                          \
  cudaError_t cudaMemcpyToSymbolAsync##suffix(const void* symbol, const void* from, std::size_t bytes,     \
                                              std::size_t offset, cudaMemcpyKind kind,                     \
                                              cudaStream_t stream) {                                       \
    return with_symbol("cudaMemcpyToSymbolAsync", symbol, bytes, offset, [&](void* to) {                   \
      return copy_async("cudaMemcpyToSymbolAsync", {to}, {plain(from)}, {bytes}, kind, stream_of(stream)); \
    });                                                                                                    \
  }                                                                                                        \
  cudaError_t cudaMemcpyFromSymbolAsync##suffix(void* to, const void* symbol, std::size_t bytes,           \
                                                std::size_t offset, cudaMemcpyKind kind,                   \
                                                cudaStream_t stream) {                                     \
    return with_symbol("cudaMemcpyFromSymbolAsync", symbol, bytes, offset, [&](void* from) {               \
      return copy_async("cudaMemcpyFromSymbolAsync", {to}, {from}, {bytes}, kind, stream_of(stream));      \
    });                                                                                                    \
  }
#define TAPESTRY_SAME(stream) stream
TAPESTRY_SYMBOL_COPIES(, TAPESTRY_SAME)
TAPESTRY_SYMBOL_COPIES(_ptsz, own)
#define TAPESTRY_SYMBOL_COPIES_NOW(suffix, stream)                                                \
  cudaError_t cudaMemcpyToSymbol##suffix(const void* symbol, const void* from, std::size_t bytes, \
                                         std::size_t offset, cudaMemcpyKind kind) {               \
    return with_symbol("cudaMemcpyToSymbol", symbol, bytes, offset, [&](void* to) {               \
      return copy_sync("cudaMemcpyToSymbol", {to}, {plain(from)}, {bytes}, kind, stream);         \
    });                                                                                           \
  }                                                                                               \
  cudaError_t cudaMemcpyFromSymbol##suffix(void* to, const void* symbol, std::size_t bytes,       \
                                           std::size_t offset, cudaMemcpyKind kind) {             \
    return with_symbol("cudaMemcpyFromSymbol", symbol, bytes, offset, [&](void* from) {           \
      return copy_sync("cudaMemcpyFromSymbol", {to}, {from}, {bytes}, kind, stream);              \
    });                                                                                           \
  }
TAPESTRY_SYMBOL_COPIES_NOW(, nullptr)
TAPESTRY_SYMBOL_COPIES_NOW(_ptds, cudaStreamPerThread)

}  // extern "C"
