#include "tapestry/core/cuda/faults.h"

#include <deque>
#include <utility>

namespace tapestry::cuda {
namespace {

struct Pending {
  Event behind;
  std::function<void()> check;
};
// In the order in which they were asked for. Of this thread, whose operations they are about.
std::deque<Pending>& pending() {
  thread_local std::deque<Pending> list;
  return list;
}

}  // namespace

void check_behind(const Stream& stream, std::function<void()> check) {
  throw_faults();
  Pending next{Event(), std::move(check)};
  next.behind.record(stream);
  pending().push_back(std::move(next));
}

void throw_faults() {
  std::deque<Pending>& list = pending();
  while (!list.empty() && list.front().behind.done()) {
    const Pending first = std::move(list.front());  // a check may wait, and so come here
    list.pop_front();
    first.check();
  }
}

}  // namespace tapestry::cuda
