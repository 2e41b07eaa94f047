#include "tapestry/distributed/pipeline/internal/hand_over.h"

#include "tapestry/core/context.h"
#include "tapestry/core/cuda/internal/copy.h"

namespace tapestry::distributed {
namespace {

// True if the elements fill one piece of memory, in any order of dimensions, so that bytes can be copied.
bool is_dense(const Tensor& t) {
  std::int64_t span = 1;
  for (int i = 0; i < t.dim(); ++i) span += (t.sizes()[i] - 1) * t.strides()[i];
  return t.numel() > 0 && span == t.numel();
}

}  // namespace

std::shared_ptr<const Departure> depart(Device device, const Ways& ways) {
  if (device.is_cpu()) return nullptr;
  auto departure = std::make_shared<Departure>(Departure{Event(), ways.out});
  departure->ready.record(current_stream(device));
  return departure;
}

Tensor hand_over(const Tensor& x, const Departure* departure, const Stream& consumer, const Ways& ways) {
  const NoGradGuard no_grad;
  const Device device = consumer.device();
  if (!departure || device.is_cpu()) return x.to(device);
  const Stream out = departure->out;
  const auto await = [&consumer](const Tensor& y, const Stream& arrival) {
    Event arrived;
    arrived.record(arrival);
    consumer.wait(arrived);
    record_stream(y, consumer);
    return y;
  };
  out.wait(departure->ready);
  record_stream(x, out);
  if (!is_dense(x)) {
    const StreamGuard guard(out);
    return await(x.to(device), current_stream(device));
  }
  StorageRef memory;
  {
    // Memory of arrivals, which comes back when their consumers have done what they were given: the copy need
    // not wait for this one. In that stream is nothing, unless there are so many that others have it too.
    const StreamGuard guard(ways.in);
    memory = Storage::allocate(device, x.nbytes());
    Event unused;
    unused.record(ways.in);
    out.wait(unused);
  }
  const Tensor y = detail::make_tensor(std::move(memory), x.dtype(), x.sizes(), x.strides(), 0);
  cuda::copy_bytes_async(device, y.raw_data(), x.device(), x.raw_data(), x.nbytes(), out);
  return await(y, out);
}

}  // namespace tapestry::distributed
