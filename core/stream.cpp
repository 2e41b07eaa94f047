#include "tapestry/core/stream.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/deferred_check.h"
#include "tapestry/core/tensor.h"

namespace tapestry {
namespace {

constinit const std::array<detail::StreamRecord, kMaxDevices> cpu_streams = [] {
  std::array<detail::StreamRecord, kMaxDevices> all{};
  for (int i = 0; i < kMaxDevices; ++i) all[static_cast<std::size_t>(i)].device = Device(DeviceType::cpu, i);
  return all;
}();
constinit const detail::StreamRecord meta_stream = [] {
  detail::StreamRecord record{};
  record.device = kMeta;
  return record;
}();
constexpr const char* kNoWait = "wait for the device outside of the step";
constexpr const char* kNoEvent = "use events outside of the step";

// The stream of a device that has one stream and never pending work: a CPU, or the meta device.
const detail::StreamRecord* host_stream(Device device) {
  return device.is_meta() ? &meta_stream : &cpu_streams[static_cast<std::size_t>(device.index)];
}

}  // namespace

Stream::Stream() : record_(host_stream(kCPU)) {}
Device Stream::device() const { return record_->device; }
void* Stream::native() const { return record_->native; }

bool Stream::done() const {
  if (record_->runtime) detail::refuse_in_capture("Stream::done", kNoWait);
  return !record_->runtime || record_->runtime->stream_done(record_->gpu, record_->native);
}

void Stream::synchronize() const {
  if (!record_->runtime) return;
  detail::refuse_in_capture("Stream::synchronize", kNoWait);
  const std::uint64_t checks = detail::count_deferred_checks();
  record_->runtime->wait_for_stream(record_->gpu, record_->native);
  detail::run_deferred_checks(record_->device, this, checks);
}

void Stream::wait(const Event& event) const {
  if (!event.record_) return;
  detail::refuse_in_capture("Stream::wait", kNoEvent);
  if (record_->runtime) record_->runtime->stream_waits(record_->gpu, record_->native, event.record_->native);
  else event.synchronize();
}

Stream default_stream(Device device) {
  check_device("default_stream", device);
  return Stream(device.is_cuda() ? cuda::devices().at(device).default_stream() : host_stream(device));
}

Stream current_stream(Device device) {
  if (const std::uint64_t id = current_context().stream) {
    const Stream stream(reinterpret_cast<const detail::StreamRecord*>(id));
    if (stream.device() == device) return stream;
  }
  return default_stream(device);
}

Stream new_stream(Device device, bool urgent) {
  check_device("new_stream", device);
  return Stream(device.is_cuda() ? cuda::devices().at(device).next_stream(urgent) : host_stream(device));
}

ExclusiveStream::ExclusiveStream(Device device, bool urgent) {
  check_device("ExclusiveStream", device);
  detail::refuse_in_capture("ExclusiveStream", "make streams outside of the step");
  stream_ = Stream(device.is_cuda() ? cuda::devices().at(device).take_stream(urgent) : host_stream(device));
}

void ExclusiveStream::give_back() noexcept {
  if (stream_.record_->owner) stream_.record_->owner->give_back(stream_.record_);
}

void synchronize(Device device) {
  check_device("synchronize", device);
  if (!device.is_cuda()) return;
  detail::refuse_in_capture("synchronize", kNoWait);
  cuda::Devices& devices = cuda::devices();
  const std::uint64_t checks = detail::count_deferred_checks();
  devices.runtime().synchronize(devices.at(device).gpu());
  detail::run_deferred_checks(device, nullptr, checks);
}

void detail::order_streams(std::uint64_t first, std::uint64_t then) {
  for (const std::uint64_t id : {first, then}) {
    if (!id) continue;
    const Device device = reinterpret_cast<const StreamRecord*>(id)->device;
    const auto current = [&](std::uint64_t context) {
      Context at = current_context();
      at.stream = context;
      const ContextGuard guard(at);
      return current_stream(device);
    };
    const Stream before = current(first), after = current(then);
    if (before == after) continue;
    Event event;
    event.record(before);
    after.wait(event);
  }
}

Event::~Event() { forget(); }
Event::Event(Event&& o) noexcept : timing_(o.timing_), record_(std::exchange(o.record_, nullptr)) {}
Event& Event::operator=(Event&& o) noexcept {
  std::swap(timing_, o.timing_);
  std::swap(record_, o.record_);
  return *this;
}

void Event::forget() noexcept {
  if (record_) record_->devices->give_back(std::exchange(record_, nullptr));
}

void Event::record(const Stream& stream) {
  const detail::StreamRecord& on = *stream.record_;
  if (record_ && (record_->gpu != on.gpu || !on.runtime)) forget();
  if (!on.runtime) return;
  detail::refuse_in_capture("Event::record", kNoEvent);
  if (!record_) record_ = cuda::devices().take_event(on.gpu, timing_);
  on.runtime->record_event(on.gpu, record_->native, on.native);
}

bool Event::done() const {
  if (record_) detail::refuse_in_capture("Event::done", kNoEvent);
  return !record_ || record_->devices->runtime().event_done(record_->gpu, record_->native);
}

void Event::synchronize() const {
  if (record_) detail::refuse_in_capture("Event::synchronize", kNoEvent);
  if (record_) record_->devices->runtime().wait_for_event(record_->gpu, record_->native);
}

bool Event::wait_for(std::chrono::milliseconds timeout) const {
  using namespace std::chrono_literals;
  const auto begin = std::chrono::steady_clock::now();
  while (!done()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= timeout) return false;
    // Most waits are short, so the first 50 us only yield. Later the thread sleeps between polls. Polling an
    // event does not load the GPU.
    if (waited < 50us) std::this_thread::yield();
    else std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 8, 1ms));
  }
  return true;
}

double Event::milliseconds_since(const Event& begin) const {
  check(record_ && begin.record_, "[Event] milliseconds_since() of events that no CUDA stream recorded; ",
        "record both");
  check(record_->timing && begin.record_->timing,
        "[Event] milliseconds_since() of an event without timing; make both with Event(true)");
  check<DeviceError>(
      done() && begin.done(),
      "[Event] milliseconds_since() of an event that its stream has not reached; synchronize() first");
  return record_->devices->runtime().milliseconds_between(record_->gpu, begin.record_->native,
                                                          record_->native);
}

void record_stream(const Tensor& t, const Stream& stream) {
  detail::check_defined("record_stream", t);
  if (!stream.device().is_cuda() || t.device().is_meta() || t.numel() == 0) return;
  cuda::Devices& devices = cuda::devices();
  cuda::BlockPool& pool = t.device().is_cpu() ? devices.pinned() : devices.at(t.device()).pool;
  pool.use(t.raw_data(), stream.id());
}

}  // namespace tapestry
