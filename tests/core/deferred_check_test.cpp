#include "tapestry/core/internal/deferred_check.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using detail::CallCell;
using detail::defer_check;
using detail::next_call_cell;

namespace {

/// A kernel that reports `position`, and the check that throws `text`.
std::function<void()> reporting(const CallCell& to, std::int64_t position) {
  return [=] { *to.cell = std::min(*to.cell, to.call * detail::kPositionsOfCall + position); };
}
detail::DeferredCheck check_of(const CallCell& to, const char* text) {
  return {to.call, [text](std::int64_t position) { fail<IndexError>(text, " at ", position); }};
}

}  // namespace

TEST_CASE("the first call that reported an index is thrown once, when the host waits for its stream") {
  testing::FakeGpus gpus(2);
  const Stream stream = current_stream("cuda:0"), other = current_stream("cuda:1");
  const CallCell silent = next_call_cell("cuda:0"), first = next_call_cell("cuda:0"),
                 second = next_call_cell("cuda:0"), aside = next_call_cell("cuda:1");
  CHECK(first.cell == second.cell);
  CHECK(first.cell != aside.cell);
  gpus.launch(stream, reporting(second, 3));
  gpus.launch(stream, reporting(first, 12345678901));
  gpus.launch(other, reporting(aside, 0));
  defer_check(stream, check_of(silent, "silent"));
  defer_check(stream, check_of(second, "second"));
  defer_check(stream, check_of(first, "first"));
  defer_check(other, check_of(aside, "aside"));
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("first at 12345678901"));
  stream.synchronize();
  synchronize("cuda:0");
  CHECK_THROWS_WITH(synchronize("cuda:1"), ContainsSubstring("aside at 0"));
  synchronize("cuda:1");
}

TEST_CASE("a copy to the host throws what a kernel has reported, and calls without a report are forgotten") {
  testing::FakeGpus gpus(1);
  const Tensor x = empty({3}, {DType::f32, "cuda:0"});
  const CallCell silent = next_call_cell("cuda:0"), late = next_call_cell("cuda:0");
  defer_check(current_stream("cuda:0"), check_of(silent, "silent"));
  synchronize("cuda:0");
  gpus.launch(current_stream("cuda:0"), reporting(late, 7));
  defer_check(current_stream("cuda:0"), check_of(late, "late"));
  CHECK_THROWS_WITH(x.to("cpu"), ContainsSubstring("late at 7"));
}

TEST_CASE("a check that is deferred during a wait stays, and a report of another stream is thrown at once") {
  testing::FakeGpus gpus(1);
  const Stream stream = current_stream("cuda:0"), side = new_stream("cuda:0");
  const CallCell late = next_call_cell("cuda:0");
  gpus.launch(stream, [&] { defer_check(stream, check_of(late, "late")); });  // runs during the wait
  CHECK_NOTHROW(stream.synchronize());
  gpus.launch(stream, reporting(late, 1));
  CHECK_THROWS_WITH(synchronize("cuda:0"), ContainsSubstring("late at 1"));

  const CallCell aside = next_call_cell("cuda:0");
  gpus.launch(side, reporting(aside, 2));
  defer_check(side, check_of(aside, "aside"));
  Event event;
  event.record(side);
  stream.wait(event);
  defer_check(stream, check_of(late, "late"));
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("aside at 2"));
  CHECK_NOTHROW(side.synchronize());
}

TEST_CASE("a report whose call is no longer known is an error too") {
  testing::FakeGpus gpus(1);
  const Stream stream = current_stream("cuda:0");
  const CallCell lost = next_call_cell("cuda:0"), known = next_call_cell("cuda:0");
  gpus.launch(stream, reporting(lost, 5));
  defer_check(stream, check_of(known, "known"));
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("position 5 of an earlier operation"));
}
