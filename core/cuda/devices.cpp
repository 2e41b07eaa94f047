#include "tapestry/core/cuda/internal/devices.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tapestry/core/cuda/internal/stream_counters.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/deferred_check.h"

namespace tapestry::cuda {
namespace {

constinit std::atomic<Devices*> current{nullptr};

const detail::StreamRecord& record_of(StreamId stream) {
  return *reinterpret_cast<const detail::StreamRecord*>(stream);
}

LogicalDevice& existing(const char* op, Device device) {
  check<DeviceError>(device.is_cuda(), "[", op, "] device ", device,
                     " is not a CUDA device; pass for example cuda:0");
  check_device(op, device);
  return devices().at(device);
}

}  // namespace

// ---- memory ----

void* RuntimeMemory::allocate(std::size_t bytes) {
  Runtime& runtime = devices_.runtime();
  return gpu_ == kHost ? runtime.allocate_host(devices_.gpu_in_use(), bytes) : runtime.allocate(gpu_, bytes);
}
void RuntimeMemory::release(void* data) noexcept {
  Runtime& runtime = devices_.runtime();
  if (gpu_ == kHost) runtime.release_host(devices_.gpu_in_use(), data);
  else runtime.release(gpu_, data);
}
void* RuntimeMemory::mark(StreamId stream) {
  const detail::StreamRecord& on = record_of(stream);
  detail::EventRecord* const event = devices_.take_event(on.gpu, false);
  try {
    devices_.runtime().record_event(on.gpu, event->native, on.native);
  } catch (...) {
    devices_.give_back(event);
    throw;
  }
  return event;
}
bool RuntimeMemory::reached(void* mark) {
  const auto& event = *static_cast<detail::EventRecord*>(mark);
  return devices_.runtime().event_done(event.gpu, event.native);
}
void RuntimeMemory::await(void* mark) {
  const auto& event = *static_cast<detail::EventRecord*>(mark);
  devices_.runtime().wait_for_event(event.gpu, event.native);
}
void RuntimeMemory::drop(void* mark) noexcept { devices_.give_back(static_cast<detail::EventRecord*>(mark)); }

// ---- logical devices ----

const detail::StreamRecord* LogicalDevice::make_stream(bool urgent) {
  Runtime& runtime = devices_.runtime();
  void* const native = runtime.create_stream(gpu_, urgent);
  devices_.note_use(gpu_);
  made_.push_back(std::make_unique<detail::StreamRecord>(
      detail::StreamRecord{device_, gpu_, native, &runtime, this, urgent}));
  return made_.back().get();
}

const detail::StreamRecord* LogicalDevice::default_stream() {
  if (const auto* const made = default_.load(std::memory_order_acquire)) [[likely]]
    return made;
  const std::lock_guard lock(mutex_);
  if (const auto* const made = default_.load(std::memory_order_relaxed)) return made;
  const auto* const stream = make_stream(false);
  default_.store(stream, std::memory_order_release);
  return stream;
}

const detail::StreamRecord* LogicalDevice::next_stream(bool urgent) {
  const std::lock_guard lock(mutex_);
  auto& streams = streams_[urgent];
  const std::size_t next = taken_[urgent]++ % kStreams;
  if (next == streams.size()) streams.push_back(make_stream(urgent));
  return streams[next];
}

const detail::StreamRecord* LogicalDevice::take_stream(bool urgent) {
  const std::lock_guard lock(mutex_);
  const auto ready = [&](const detail::StreamRecord* s) {
    return s->urgent == urgent && devices_.runtime().stream_done(gpu_, s->native);
  };
  const auto found = std::find_if(returned_.begin(), returned_.end(), ready);
  if (found != returned_.end()) {
    const auto* const stream = *found;
    returned_.erase(found);
    return stream;
  }
  returned_.reserve(made_.size() + 1);  // give_back() must not allocate
  return make_stream(urgent);
}

void LogicalDevice::give_back(const detail::StreamRecord* stream) noexcept {
  const std::lock_guard lock(mutex_);
  returned_.push_back(stream);
}

std::uint32_t* LogicalDevice::counters(const detail::StreamRecord* stream) {
  static constexpr std::uint32_t kZeros[kStreamCounters] = {};
  const std::lock_guard lock(mutex_);
  std::uint32_t*& own = counters_[stream];
  if (own) return own;
  Runtime& runtime = devices_.runtime();
  void* const data = runtime.allocate(gpu_, sizeof kZeros);
  check<OutOfMemoryError>(data != nullptr, "[cuda] ", device_, " has no ", sizeof kZeros,
                          " bytes left for the counters of a stream; free some tensors");
  try {
    runtime.copy(gpu_, stream->native, data, kZeros, sizeof kZeros);
  } catch (...) {
    runtime.release(gpu_, data);
    throw;
  }
  return own = static_cast<std::uint32_t*>(data);
}

std::int64_t* LogicalDevice::report_cell() {
  if (std::int64_t* const made = report_cell_.load(std::memory_order_acquire)) [[likely]]
    return made;
  const std::lock_guard lock(mutex_);
  if (std::int64_t* const made = report_cell_.load(std::memory_order_relaxed)) return made;
  auto* const cell = static_cast<std::int64_t*>(devices_.runtime().allocate_host(gpu_, sizeof(std::int64_t)));
  check<OutOfMemoryError>(cell != nullptr, "[cuda] the system has no page-locked memory left; free some");
  *cell = detail::kNothingReported;
  report_cell_.store(cell, std::memory_order_release);
  return cell;
}

void LogicalDevice::destroy_streams() noexcept {
  if (std::int64_t* const cell = report_cell_.load()) devices_.runtime().release_host(gpu_, cell);
  for (const auto& [stream, counters] : counters_)
    if (counters) devices_.runtime().release(gpu_, counters);
  for (const auto& stream : made_) devices_.runtime().destroy_stream(gpu_, stream->native);
}

Devices::Devices(Runtime* runtime)
    : runtime_(runtime), pinned_source_(*this, RuntimeMemory::kHost), pinned_(pinned_source_) {
  if (!runtime) {
    why_none_ = "this library was built without CUDA";
    return;
  }
  const int gpus = runtime->gpu_count(why_none_);
  if (gpus == 0) return;
  const bool logical = std::getenv("TAPESTRY_LOGICAL_DEVICES") != nullptr;
  const int count = logical ? device_count(DeviceType::cpu) : std::min(gpus, kMaxDevices);
  for (int i = 0; i < count; ++i)
    devices_.push_back(std::make_unique<LogicalDevice>(*this, Device(DeviceType::cuda, i), i % gpus));
}

Devices::~Devices() {
  for (const auto& device : devices_) device->pool.release_all();
  pinned_.release_all();
  for (const auto& event : made_) runtime_->destroy_event(event->gpu, event->native);
  for (const auto& device : devices_) device->destroy_streams();
}

detail::EventRecord* Devices::take_event(int gpu, bool timing) {
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const detail::EventRecord* e) { return e->gpu == gpu && e->timing == timing; };
  const auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (found != free_.rend()) {
    detail::EventRecord* const event = std::exchange(*found, free_.back());
    free_.pop_back();
    return event;
  }
  void* const native = runtime_->create_event(gpu, timing);
  made_.push_back(std::make_unique<detail::EventRecord>(detail::EventRecord{gpu, native, timing, this}));
  free_.reserve(made_.size());  // give_back() must not allocate
  return made_.back().get();
}

void Devices::give_back(detail::EventRecord* event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

std::uint32_t* stream_counters(const Stream& stream) {
  const auto& record = record_of(stream.id());
  return record.owner->counters(&record);
}

Devices& devices() {
  if (Devices* const made = current.load(std::memory_order_acquire)) [[likely]]
    return *made;
  static Devices& first = *new Devices(cuda_runtime());
  Devices* none = nullptr;
  current.compare_exchange_strong(none, &first, std::memory_order_acq_rel);
  return none ? *none : first;
}

Devices* exchange_devices(Devices* next) {
  detail::forget_deferred_checks();
  return current.exchange(next, std::memory_order_acq_rel);
}

// ---- device.h ----

bool built() { return cuda_runtime() != nullptr; }

const std::string& why_no_device() { return devices().why_none(); }

DeviceProperties device_properties(Device device) {
  const int gpu = existing("device_properties", device).gpu();
  DeviceProperties properties = devices().runtime().properties(gpu);
  properties.gpu = gpu;
  return properties;
}

MemoryInfo memory_info(Device device) {
  return devices().runtime().memory(existing("memory_info", device).gpu());
}

}  // namespace tapestry::cuda
