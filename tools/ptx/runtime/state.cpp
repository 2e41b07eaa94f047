#include "tapestry/tools/ptx/runtime/state.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace stand_in {
namespace driver {

void Mutex::lock() {
  std::unique_lock lock(inner_);
  const auto self = std::this_thread::get_id();
  if (depth_ > 0 && owner_ == self) {
    ++depth_;
    return;
  }
  free_.wait(lock, [&] { return depth_ == 0; });
  owner_ = self;
  depth_ = 1;
}
void Mutex::unlock() {
  const std::lock_guard lock(inner_);
  if (--depth_ == 0) free_.notify_one();
}
int Mutex::release() {
  const std::lock_guard lock(inner_);
  const int depth = std::exchange(depth_, 0);
  free_.notify_one();
  return depth;
}
void Mutex::restore(int depth) {
  lock();
  depth_ = depth;  // only this thread changes it while it holds the mutex
}

Mutex& mutex() {
  static auto& one = *new Mutex;
  return one;
}

}  // namespace driver

State::State(int gpus, std::size_t memory_each, const Settings* executes)
    : total(memory_each), used(static_cast<std::size_t>(gpus)), null_streams(static_cast<std::size_t>(gpus)) {
  if (executes) execute(*executes);
  for (int i = 0; i < gpus; ++i) {
    null_streams[static_cast<std::size_t>(i)].gpu = i;
    auto pool = std::make_unique<PoolObject>(PoolObject{i});
    default_pools.push_back(pool.get());
    pools[pool.get()] = std::move(pool);
  }
  current_pools = default_pools;
}
State::~State() {
  for (auto& [address, block] : memory) {
    if (block.mapped != 0) munmap(reinterpret_cast<void*>(address), block.mapped);
    if (block.live && (block.kind == MemoryKind::kDevice || block.kind == MemoryKind::kPool))
      std::free(block.data);
  }
}

std::pair<const std::uintptr_t, Block>* State::find(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto after = memory.upper_bound(at);
  if (after == memory.begin()) return nullptr;
  auto& found = *std::prev(after);
  return at < found.first + std::max(found.second.mapped, found.second.bytes) ? &found : nullptr;
}
std::byte* State::inside(const void* address, std::size_t bytes) {
  const auto* const found = find(address);
  if (!found || !found->second.live) return nullptr;
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(address) - found->first;
  if (bytes > found->second.bytes || offset > found->second.bytes - bytes) return nullptr;
  return found->second.data + offset;
}

void State::execute(const Settings& how) {
  execution = std::make_unique<Execution>(how);
  order = how.races ? std::make_unique<StreamOrder>() : nullptr;
  each_stream([](StreamObject& stream) { stream.order = 0; });
}

void State::enter_order(StreamObject& stream, Operation& operation) {
  if (!order || operation.what.empty() || operation.work != StreamOrder::kNone) return;
  point_of(stream);  // gives the stream its number
  operation.work = order->enqueue(stream.order, operation.what);
}
OrderPoint State::point_of(StreamObject& stream) {
  if (!order) return {};
  if (stream.order == 0) {
    const bool null_stream = &stream == &null_streams[static_cast<std::size_t>(stream.gpu)];
    const std::string of_gpu = used.size() > 1 ? text(" of GPU ", stream.gpu) : "";
    stream.order =
        order->add_stream(null_stream ? "the null stream" + of_gpu : text("stream ", stream.id, of_gpu));
  }
  return order->record(stream.order);
}
void State::order_after(StreamObject& stream, const OrderPoint& point) {
  if (!order) return;
  point_of(stream);
  order->wait(stream.order, point);
}
void State::host_after(const OrderPoint& point) {
  if (order) order->wait(StreamOrder::kHost, point);
}

bool State::advance(StreamObject& stream) {
  if (stream.work.empty() || stream.busy) return false;
  // The operation may release the lock; no other thread may run the stream meanwhile.
  stream.busy = true;
  const StreamOrder::Work outer = std::exchange(running, stream.work.front().work);
  const bool done = broken != cudaSuccess || stream.work.front().run();
  running = outer;
  stream.busy = false;
  if (done) {
    time += 1;
    stream.work.pop_front();
  }
  return done;
}
void State::wait_for_others(StreamObject& stream) {
  // What the first operation waits for may be at the head of any other stream, such as another rank's part of
  // a collective. If nothing can run, another thread must bring the work.
  bool ran = false;
  each_stream([&](StreamObject& other) { ran = (&other != &stream && advance(other)) || ran; });
  if (!ran) driver::mutex().without([] { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
}
std::shared_ptr<Signal> State::signal_in(StreamObject& stream) {
  auto signal = std::make_shared<Signal>(Signal{&stream, point_of(stream)});
  stream.work.push_back({cudaGraphNodeTypeEventRecord, [this, signal] {
                           signal->reached = true;
                           signal->time = time;
                           return true;
                         }});
  return signal;
}
void State::make_wait(StreamObject& stream, const std::shared_ptr<Signal>& signal) {
  order_after(stream, signal->point);
  stream.work.push_back({cudaGraphNodeTypeWaitEvent, [this, signal] {
                           while (!signal->reached && !signal->stream->work.empty())
                             if (!advance(*signal->stream)) return false;
                           return true;
                         }});
}
void State::order_with_null(StreamObject& stream) {
  StreamObject& null_stream = null_streams[static_cast<std::size_t>(stream.gpu)];
  if (&stream != &null_stream) {
    if (stream.flags & cudaStreamNonBlocking) return;
    if (!null_stream.work.empty()) make_wait(stream, signal_in(null_stream));
    else order_after(stream, point_of(null_stream));
    return;
  }
  for (StreamObject* other : streams_made) {
    if (other->gpu != stream.gpu || (other->flags & cudaStreamNonBlocking)) continue;
    if (!other->work.empty()) make_wait(stream, signal_in(*other));
    else order_after(stream, point_of(*other));
  }
}

StreamObject* State::stream_of(cudaStream_t stream, int current) {
  if (!stream || stream == cudaStreamLegacy) return &null_streams[static_cast<std::size_t>(current)];
  if (stream == cudaStreamPerThread) {
    StreamObject*& own = thread_streams[{std::this_thread::get_id(), current}];
    if (!own) {
      auto made = std::make_unique<StreamObject>(StreamObject{current});
      made->id = next_id++;
      made->live = false;  // it has no handle that could leak
      own = made.get();
      streams_made.push_back(own);
      streams[own] = std::move(made);
    }
    return own;
  }
  const auto found = streams.find(stream);
  return found == streams.end() || !found->second->live ? nullptr : found->second.get();
}

}  // namespace stand_in
