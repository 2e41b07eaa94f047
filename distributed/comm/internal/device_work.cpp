#include "tapestry/distributed/comm/internal/device_work.h"

#include "tapestry/core/error.h"

namespace tapestry::distributed {

void DeviceWork::await(Backend& backend, Deadline deadline) const {
  constexpr Milliseconds kPoll{10};
  while (!after_.wait_for(kPoll)) {
    backend.poll();
    check<TimeoutError>(Clock::now() < deadline, stream_.device(), " has not finished its part");
  }
  backend.poll();  // throws if the collective was aborted: the event is then done although the work is not
}

}  // namespace tapestry::distributed
