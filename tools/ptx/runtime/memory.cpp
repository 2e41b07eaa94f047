// Memory: allocations, pools, copies.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tapestry/tools/ptx/runtime/callers.h"
#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in::driver {
namespace {

std::size_t page() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
std::size_t pages(std::size_t bytes) { return (bytes + page() - 1) / page() * page(); }

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }
bool on_gpu(MemoryKind kind) { return kind == MemoryKind::kDevice || kind == MemoryKind::kPool; }

// Adds memory to the list and to the machine.
void add_block(void* address, Block block) {
  State& s = state();
  if (s.execution) s.execution->add_memory(address_of(address), block.data, block.bytes, !on_gpu(block.kind));
  block.called_from = Callers::now();
  s.memory[address_of(address)] = block;
  if (!on_gpu(block.kind)) may_wait_by_itself();
  if (block.gpu != kHost) s.used[static_cast<std::size_t>(block.gpu)] += block.bytes;
}

cudaError_t map_memory(MemoryKind kind, int gpu, std::size_t bytes, void** data, unsigned flags) {
  State& s = state();
  *data = nullptr;
  if (bytes > s.total || (gpu != kHost && bytes > s.total - used_memory(gpu)))
    return cudaErrorMemoryAllocation;
  // The program gets addresses that it must not use on the host. Behind the memory is a gap, so that an
  // access beyond its end is not inside other memory.
  const std::size_t mapped = pages(bytes) + page();
  const bool hidden = on_gpu(kind);
  void* const address = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* const own = hidden ? static_cast<std::byte*>(std::malloc(bytes)) : static_cast<std::byte*>(address);
  if (!own || (!hidden && mprotect(address, pages(bytes), PROT_READ | PROT_WRITE) != 0)) {
    munmap(address, mapped);
    return cudaErrorMemoryAllocation;
  }
  std::memset(own, 0xcb, bytes);  // not zero: a program must not rely on what new memory holds
  add_block(address, {kind, gpu, bytes, mapped, own, flags});
  *data = address;
  return cudaSuccess;
}

void end_block(std::uintptr_t address, Block& block) {
  State& s = state();
  block.live = false;
  if (s.execution) s.execution->remove_memory(address);
  // New memory may get these addresses, so the check of orders between streams forgets what used them. A
  // pool's memory is different: it is freed on one stream, and work on another stream may use it afterwards
  // if nothing orders the two. The check must find that, so it keeps the free.
  if (s.order && block.kind != MemoryKind::kPool) s.order->forget(address, block.bytes);
  if (block.gpu != kHost) s.used[static_cast<std::size_t>(block.gpu)] -= block.bytes;
  if (on_gpu(block.kind)) {
    std::free(block.data);
  } else if (block.kind != MemoryKind::kRegistered) {
    mprotect(reinterpret_cast<void*>(address), block.mapped, PROT_NONE);
    madvise(reinterpret_cast<void*>(address), block.mapped, MADV_DONTNEED);
  }
  block.data = nullptr;
}

void run_everything() {
  State& s = state();
  s.each_stream([&](StreamObject& stream) {
    s.run_all(stream);
    s.host_after(stream);
  });
}

// The running operation touches the bytes.
void note_access(const void* address, std::size_t bytes, bool write) {
  State& s = state();
  s.check_order([&](StreamOrder& order) {
    if (s.find(address)) order.access(s.running, address_of(address), bytes, write);
  });
}

PoolObject* pool_object(cudaMemPool_t pool) {
  const auto found = state().pools.find(pool);
  return found == state().pools.end() || !found->second->live ? nullptr : found->second.get();
}

}  // namespace

cudaError_t allocate(int gpu, std::size_t bytes, void** data, bool managed, unsigned flags) {
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = outside_of_captures(true); error != cudaSuccess) return error;
  const MemoryKind kind = managed        ? MemoryKind::kManaged
                          : gpu == kHost ? MemoryKind::kPinned
                                         : MemoryKind::kDevice;
  return map_memory(kind, gpu, bytes, data, flags);
}

cudaError_t release(void* data, bool host) {
  State& s = state();
  if (!data) return s.broken;
  if (const cudaError_t error = outside_of_captures(true); error != cudaSuccess) return error;
  const char* const call = host ? "cudaFreeHost" : "cudaFree";
  const auto found = s.memory.find(address_of(data));
  if (found == s.memory.end())
    return misused(cudaErrorInvalidValue, text(call, " of an address that was not allocated"));
  Block& block = found->second;
  if (!block.live || block.freeing)
    return misused(cudaErrorInvalidValue, text(call, " of memory that is already free"));
  const bool fits = host ? block.kind == MemoryKind::kPinned : block.gpu != kHost;
  if (!fits) return misused(cudaErrorInvalidValue, text(call, " of memory of the other kind"));
  run_everything();  // cudaFree() and cudaFreeHost() wait for all work
  end_block(found->first, block);
  return s.broken;
}

cudaError_t register_host(void* data, std::size_t bytes, unsigned flags) {
  if (!data || bytes == 0) return cudaErrorInvalidValue;
  State& s = state();
  const auto next = s.memory.lower_bound(address_of(data) + bytes);
  if (next != s.memory.begin()) {
    const auto& [begin, block] = *std::prev(next);
    if (block.live && begin + block.bytes > address_of(data)) return cudaErrorHostMemoryAlreadyRegistered;
  }
  std::erase_if(s.memory, [&](const auto& one) {  // the program may register an address again
    return !one.second.live && one.second.kind == MemoryKind::kRegistered && one.first == address_of(data);
  });
  add_block(data, {MemoryKind::kRegistered, kHost, bytes, 0, static_cast<std::byte*>(data), flags});
  return cudaSuccess;
}
cudaError_t unregister_host(void* data) {
  const auto found = state().memory.find(address_of(data));
  if (found == state().memory.end() || !found->second.live || found->second.kind != MemoryKind::kRegistered)
    return misused(cudaErrorHostMemoryNotRegistered, "cudaHostUnregister of memory that is not registered");
  run_everything();
  end_block(found->first, found->second);
  return state().broken;
}

int owner_of(const void* address) {
  const auto* const found = state().find(address);
  return found ? found->second.gpu : kUnknown;
}
cudaError_t attributes_of(const void* address, cudaPointerAttributes* to) {
  const auto* const found = state().find(address);
  *to = {};
  to->device = -1;
  if (!found || !found->second.live) {  // CUDA does not know the memory, and says so without an error
    to->type = cudaMemoryTypeUnregistered;
    to->hostPointer = const_cast<void*>(address);
    return cudaSuccess;
  }
  const Block& block = found->second;
  void* const same = const_cast<void*>(address);
  to->type = block.gpu == kHost                   ? cudaMemoryTypeHost
             : block.kind == MemoryKind::kManaged ? cudaMemoryTypeManaged
                                                  : cudaMemoryTypeDevice;
  to->device = block.gpu == kHost ? 0 : block.gpu;
  to->devicePointer = same;
  to->hostPointer = on_gpu(block.kind) || block.kind == MemoryKind::kVariable ? nullptr : same;
  return cudaSuccess;
}
cudaError_t host_flags(const void* address, unsigned* flags) {
  const auto* const found = state().find(address);
  if (!found || !found->second.live || found->second.gpu != kHost) return cudaErrorInvalidValue;
  *flags = found->second.flags | cudaHostAllocMapped;
  return cudaSuccess;
}

// ---- memory in stream order ----

cudaError_t allocate_in_order(int gpu, std::size_t bytes, void** data, cudaMemPool_t pool,
                              cudaStream_t stream, int current) {
  *data = nullptr;
  PoolObject* const from = pool ? pool_object(pool) : state().current_pools[static_cast<std::size_t>(gpu)];
  if (!from) return misused(cudaErrorInvalidValue, "a memory pool that does not exist");
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = map_memory(MemoryKind::kPool, gpu, bytes, data, 0); error != cudaSuccess)
    return error;
  from->used += bytes;
  from->used_high = std::max(from->used_high, from->used);
  Operation operation{cudaGraphNodeTypeMemAlloc, [] { return true; }};
  operation.what = text("cudaMallocAsync of ", bytes, " bytes");
  if (const cudaError_t error = enqueue(stream, current, std::move(operation)); error != cudaSuccess)
    return error;
  // At once, so that work of other streams that does not wait for the allocation is an error.
  const StreamObject& on = *state().stream_of(stream, current);
  if (!on.capture)
    state().check_order(
        [&](StreamOrder& order) { order.allocate(on.work.back().work, address_of(*data), bytes); });
  return cudaSuccess;
}
cudaError_t free_in_order(void* data, cudaStream_t stream, int current) {
  State& s = state();
  if (!data) return s.broken;
  const auto found = s.memory.find(address_of(data));
  if (found == s.memory.end() || !found->second.live || found->second.freeing || !on_gpu(found->second.kind))
    return misused(cudaErrorInvalidValue, "cudaFreeAsync of memory that is not allocated");
  // A graph may be launched again, so what it allocates stays.
  if (const StreamObject* const on = s.stream_of(stream, current); on && on->capture)
    return enqueue(stream, current, {cudaGraphNodeTypeMemFree, [] { return true; }});
  found->second.freeing = true;
  Operation operation{
      cudaGraphNodeTypeMemFree, [address = found->first] {
        State& now = state();
        Block& block = now.memory.at(address);
        now.check_order([&](StreamOrder& order) { order.free(now.running, address, block.bytes); });
        PoolObject& pool = *now.default_pools[static_cast<std::size_t>(block.gpu)];
        pool.used -= std::min(pool.used, block.bytes);
        end_block(address, block);
        return true;
      }};
  operation.what = text("cudaFreeAsync of ", found->second.bytes, " bytes");
  return enqueue(stream, current, std::move(operation));
}
cudaError_t create_pool(int gpu, cudaMemPool_t* pool) {
  auto made = std::make_unique<PoolObject>(PoolObject{gpu});
  *pool = reinterpret_cast<cudaMemPool_t>(made.get());
  state().pools[made.get()] = std::move(made);
  return cudaSuccess;
}
cudaError_t destroy_pool(cudaMemPool_t pool) {
  PoolObject* const object = pool_object(pool);
  auto& defaults = state().default_pools;
  if (!object || std::find(defaults.begin(), defaults.end(), object) != defaults.end())
    return misused(cudaErrorInvalidValue, "cudaMemPoolDestroy of no pool, or of a default one");
  object->live = false;
  auto& now = state().current_pools[static_cast<std::size_t>(object->gpu)];
  if (now == object) now = defaults[static_cast<std::size_t>(object->gpu)];
  return cudaSuccess;
}
cudaError_t pool_of(int gpu, bool default_one, cudaMemPool_t* pool) {
  auto& pools = default_one ? state().default_pools : state().current_pools;
  *pool = reinterpret_cast<cudaMemPool_t>(pools[static_cast<std::size_t>(gpu)]);
  return cudaSuccess;
}
cudaError_t set_pool(int gpu, cudaMemPool_t pool) {
  PoolObject* const object = pool_object(pool);
  if (!object || object->gpu != gpu) return cudaErrorInvalidValue;
  state().current_pools[static_cast<std::size_t>(gpu)] = object;
  return cudaSuccess;
}
cudaError_t pool_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, std::uint64_t* get,
                           const std::uint64_t* set) {
  PoolObject* const object = pool_object(pool);
  if (!object) return misused(cudaErrorInvalidValue, "a memory pool that does not exist");
  if (set) {
    if (attribute == cudaMemPoolAttrUsedMemHigh) object->used_high = object->used;
    object->attributes[attribute] = *set;
    return cudaSuccess;
  }
  switch (attribute) {
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrReservedMemCurrent:
      *get = object->used;
      break;
    case cudaMemPoolAttrUsedMemHigh:
    case cudaMemPoolAttrReservedMemHigh:
      *get = object->used_high;
      break;
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
      *get = object->attributes.contains(attribute) ? object->attributes[attribute] : 1;
      break;
    default:
      *get = object->attributes[attribute];
  }
  return cudaSuccess;
}

// ---- copies ----

namespace {

std::size_t span(const Side& side, const Box& box) {
  return (box.slices - 1) * side.slice + (box.rows - 1) * side.pitch + box.width;
}

// Checks one side of a copy. The bounds of host memory that CUDA did not allocate are unknown, so such memory
// is not checked. Returns the memory behind the address, or null.
std::byte* resolve(const Side& side, const Box& box, const char* name) {
  if (owner_of(side.data) == kUnknown) return static_cast<std::byte*>(side.data);
  std::byte* const data = state().inside(side.data, span(side, box));
  if (!data)
    misused(cudaErrorInvalidValue,
            text("a copy of ", span(side, box), " bytes whose ", name, " is not inside live memory"));
  return data;
}

template <class F>
void each_row(const Box& box, F f) {
  for (std::size_t z = 0; z < box.slices; ++z)
    for (std::size_t y = 0; y < box.rows; ++y) f(z, y);
}

// A copy runs later than it is called, and its memory may be released in between. Then this returns false,
// and later calls fail with cudaErrorIllegalAddress, as on a GPU.
bool still_live(const Side& side) {
  const auto* const found = state().find(side.data);
  if (!found || found->second.live) return true;
  misused(cudaErrorIllegalAddress, "memory was released while a copy in a stream still needed it");
  state().broken = cudaErrorIllegalAddress;
  return false;
}

}  // namespace

cudaError_t make_copy(Side to, Side from, Box box, cudaMemcpyKind kind, Operation* made) {
  if (box.rows > 1 && (to.pitch < box.width || from.pitch < box.width)) return cudaErrorInvalidPitchValue;
  *made = {cudaGraphNodeTypeMemcpy, [] { return true; }};
  if (box.width == 0 || box.rows == 0 || box.slices == 0) return cudaSuccess;
  std::byte* const out = to.data ? resolve(to, box, "target") : nullptr;
  const std::byte* const in = out && from.data ? resolve(from, box, "source") : nullptr;
  if (!in) return cudaErrorInvalidValue;
  // Managed memory counts as memory of either side.
  const auto fits_side = [](const Side& side, bool gpu) {
    const auto* const found = state().find(side.data);
    if (found && found->second.kind == MemoryKind::kManaged) return true;
    return gpu == (found && found->second.gpu != kHost);
  };
  const bool fits = kind == cudaMemcpyDefault ||
                    (fits_side(to, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
                     fits_side(from, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!fits)
    return misused(cudaErrorInvalidValue,
                   text("a copy whose direction ", int{kind}, " is not that of its addresses"));
  made->what = text("copy of ", box.width * box.rows * box.slices, " bytes");
  const bool to_host = epoch() == 0 && fits_side(to, false) && fits_side(from, true);
  const Callers called_from = Callers::now();
  made->run = [=] {
    if (!still_live(to) || !still_live(from)) return true;
    Execution* const execution = state().execution.get();
    std::size_t unwritten = 0;
    each_row(box, [&](std::size_t z, std::size_t y) {
      const std::size_t t = z * to.slice + y * to.pitch, f = z * from.slice + y * from.pitch;
      note_access(static_cast<std::byte*>(from.data) + f, box.width, false);
      note_access(static_cast<std::byte*>(to.data) + t, box.width, true);
      std::memmove(out + t, in + f, box.width);
      if (to_host && execution && execution->settings().initialised)
        unwritten += execution->unwritten(address_of(from.data) + f, box.width);
      if (execution) execution->note_written(address_of(to.data) + t, address_of(from.data) + f, box.width);
    });
    if (unwritten > 0)
      misused(cudaErrorUnknown,
              text("a copy to the host reads ", box.width * box.rows * box.slices, " bytes, of which ",
                   unwritten, " bytes were never written", called_from.text()));
    return true;
  };
  return cudaSuccess;
}

cudaError_t make_fill(Side to, Box box, unsigned value, unsigned element, Operation* made) {
  *made = {cudaGraphNodeTypeMemset, [] { return true; }};
  if (box.width == 0 || box.rows == 0 || box.slices == 0) return cudaSuccess;
  if (box.rows > 1 && to.pitch < box.width) return cudaErrorInvalidPitchValue;
  std::byte* const out = to.data ? state().inside(to.data, span(to, box)) : nullptr;
  if (!out) return misused(cudaErrorInvalidValue, "cudaMemset of memory that is not allocated");
  made->what = text("memset of ", box.width * box.rows * box.slices, " bytes");
  made->run = [=] {
    if (!still_live(to)) return true;
    each_row(box, [&](std::size_t z, std::size_t y) {
      std::byte* const row = out + z * to.slice + y * to.pitch;
      note_access(static_cast<std::byte*>(to.data) + (row - out), box.width, true);
      if (element == 1) {
        std::memset(row, static_cast<int>(value), box.width);
      } else {
        for (std::size_t x = 0; x < box.width; x += element) std::memcpy(row + x, &value, element);
      }
      if (Execution* const execution = state().execution.get())
        execution->note_written(address_of(to.data) + static_cast<std::size_t>(row - out), 0, box.width);
    });
    return true;
  };
  return cudaSuccess;
}

cudaError_t copy_now(Side to, Side from, Box box, cudaMemcpyKind kind, cudaStream_t stream, int current) {
  Operation operation;
  if (const cudaError_t error = make_copy(to, from, box, kind, &operation); error != cudaSuccess)
    return error;
  if (const cudaError_t error = enqueue(stream, current, std::move(operation)); error != cudaSuccess)
    return error;
  // A copy between addresses of GPUs does not wait for its end.
  const bool within_gpus = owner_of(to.data) >= 0 && owner_of(from.data) >= 0;
  return within_gpus ? state().broken : synchronize(stream, current);
}

cudaError_t make_host_function(cudaHostFn_t function, void* data, Operation* made) {
  if (!function) return cudaErrorInvalidValue;
  // The function may wait for other threads that call CUDA.
  *made = {cudaGraphNodeTypeHost, [=] {
             mutex().without([=] { function(data); });
             return true;
           }};
  return cudaSuccess;
}

cudaError_t reset_gpu(int gpu) {
  State& s = state();
  const cudaError_t error = synchronize_gpu(gpu);
  for (auto& [address, block] : s.memory)
    if (block.live && block.gpu == gpu && block.kind != MemoryKind::kVariable) end_block(address, block);
  for (const auto& [handle, stream] : s.streams)
    if (stream->gpu == gpu) stream->live = false;
  for (const auto& [handle, event] : s.events)
    if (event->gpu == gpu) event->live = false;
  s.contexts.erase(gpu);
  return error;
}

cudaError_t allow_access(int gpu, int other) {
  if (gpu == other || other < 0 || other >= gpu_count())
    return misused(cudaErrorInvalidDevice, "peer access to a GPU that does not exist, or to itself");
  return state().peers.emplace(gpu, other).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}
cudaError_t deny_access(int gpu, int other) {
  return state().peers.erase({gpu, other}) != 0 ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
}

}  // namespace stand_in::driver
