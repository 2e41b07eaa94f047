// Host code with typical faults in the use of streams. On a GPU such a program mostly gives the right result.
// On fake GPUs, which do work as late as the CUDA model allows, the result is wrong. On a real GPU these
// tests check the correct programs only.
#include "tapestry/core/pinned.h"
#include "tapestry/tapestry.h"
#include "tests/support/gpu.h"

using namespace tapestry;

namespace {

enum class Fault {
  none,
  no_wait,
  event_recorded_early,
  block_reused,
  block_moved,
  buffer_overwritten,
  host_reads_early,
  host_writes_early
};

constexpr std::int64_t kSize = 1 << 12;
Device gpu() { return Device(DeviceType::cuda, 0); }

/// Another number at each call, because a block may hold the right numbers of an earlier run.
float next_value() {
  static float value = 2;
  return ++value;
}

void order(const Stream& first, const Stream& then) {
  Event event;
  event.record(first);
  then.wait(event);
}

/// x is computed on one stream, and y = 2 x on another.
template <Fault fault>
bool two_streams() {
  const Stream here = current_stream(gpu()), side = new_stream(gpu());
  Event early;
  early.record(here);
  const float value = next_value();
  const Tensor x = full({kSize}, value, gpu());
  if (fault == Fault::event_recorded_early) side.wait(early);
  else if (fault != Fault::no_wait) order(here, side);
  const Tensor y = [&] {
    const StreamGuard guard(side);
    return x * 2;
  }();
  record_stream(x, side);
  side.synchronize();
  return allclose(y.cpu(), full({kSize}, 2 * value));
}

/// A side stream reads a tensor that is freed meanwhile, and whose block another tensor gets.
template <Fault fault>
bool freed_in_use() {
  const Stream here = current_stream(gpu()), side = new_stream(gpu());
  const float value = next_value();
  Tensor x = full({kSize}, value, gpu());
  order(here, side);
  const Tensor y = [&] {
    const StreamGuard guard(side);
    return x * 2;
  }();
  if (fault != Fault::block_reused) record_stream(x, side);
  x = Tensor();
  const Tensor other = full({kSize}, -value, gpu());
  here.synchronize();
  side.synchronize();
  return allclose(y.cpu(), full({kSize}, 2 * value)) && allclose(other.cpu(), full({kSize}, -value));
}

/// A side stream writes to a tensor that is freed meanwhile, and whose block moves to another tensor.
template <Fault fault>
bool freed_and_written() {
  const Stream here = current_stream(gpu()), side = new_stream(gpu());
  const float value = next_value();
  Tensor x = zeros({kSize}, gpu());
  order(here, side);
  {
    const StreamGuard guard(side);
    x.fill_(value);
  }
  if (fault != Fault::block_moved) record_stream(x, side);
  x = Tensor();
  const Tensor other = full({kSize}, -value, gpu());
  here.synchronize();
  side.synchronize();
  return allclose(other.cpu(), full({kSize}, -value));
}

/// A side stream copies the next batch into the buffer that the current stream computes from.
template <Fault fault>
bool prefetched() {
  const Stream here = current_stream(gpu()), side = new_stream(gpu());
  const float value = next_value();
  const Tensor buffer = zeros({kSize}, gpu()), batch = empty_pinned({kSize}), next = empty_pinned({kSize});
  batch.fill_(value), next.fill_(-value);
  order(here, side);
  copy_async(buffer, batch, side);
  order(side, here);
  const Tensor y = buffer * 2;
  if (fault != Fault::buffer_overwritten) order(here, side);
  copy_async(buffer, next, side);
  side.synchronize();
  here.synchronize();
  return allclose(y.cpu(), full({kSize}, 2 * value));
}

/// Copies to pinned memory and back without blocking the host.
template <Fault fault>
bool pinned_copies() {
  const Stream here = current_stream(gpu());
  const float value = next_value();
  const Tensor x = full({kSize}, value, gpu()), held = empty_pinned({kSize}), back = zeros({kSize}, gpu());
  held.zero_();
  copy_async(held, x, here);
  if (fault != Fault::host_reads_early) here.synchronize();
  bool right = true;
  for (std::int64_t i = 0; i < kSize; ++i) right &= held.data<float>()[i] == value;
  copy_async(back, held, here);
  if (fault != Fault::host_writes_early) here.synchronize();
  held.fill_(-value);
  here.synchronize();
  return right && allclose(back.cpu(), full({kSize}, value));
}

struct Plant {
  const char* name;
  bool (*correct)();
  bool (*faulty)();
};
const Plant kPlants[] = {
    {"a stream that does not wait for another", &two_streams<Fault::none>, &two_streams<Fault::no_wait>},
    {"an event that was recorded before the work", &two_streams<Fault::none>,
     &two_streams<Fault::event_recorded_early>},
    {"a block that is reused while a stream reads it", &freed_in_use<Fault::none>,
     &freed_in_use<Fault::block_reused>},
    {"a stream that writes to a block after it moved to another tensor", &freed_and_written<Fault::none>,
     &freed_and_written<Fault::block_moved>},
    {"a buffer that is overwritten while a stream computes from it", &prefetched<Fault::none>,
     &prefetched<Fault::buffer_overwritten>},
    {"pinned memory read before the copy has finished", &pinned_copies<Fault::none>,
     &pinned_copies<Fault::host_reads_early>},
    {"pinned memory written before the copy has read it", &pinned_copies<Fault::none>,
     &pinned_copies<Fault::host_writes_early>},
};

}  // namespace

TEST_CASE("faults in the use of streams give wrong results on fake GPUs") {
  if (no_gpu()) return;
  for (const Plant& plant : kPlants) {
    CAPTURE(plant.name);
    CHECK(plant.correct());
    if (make_devices) CHECK_FALSE(plant.faulty());
    CHECK(plant.correct());  // a fault must not affect later work
  }
}
