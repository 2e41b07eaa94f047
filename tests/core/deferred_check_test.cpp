#include "tapestry/core/internal/deferred_check.h"

#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;

namespace {
struct Found {
  int calls = 0;
  std::function<void()> check(const char* text) {
    return [this, text] {
      ++calls;
      if (text) fail<IndexError>(text);
    };
  }
};
}  // namespace

TEST_CASE("deferred checks of a stream run once, when the host waits for that stream") {
  const testing::FakeGpus gpus(2);
  const Stream stream = current_stream("cuda:0"), side = new_stream("cuda:0"),
               other = current_stream("cuda:1");
  Found found;
  defer_check(stream, found.check("first"));
  defer_check(stream, found.check("second"));
  defer_check(side, found.check("aside"));
  defer_check(other, found.check(nullptr));
  CHECK(found.calls == 0);
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("first"));
  CHECK(found.calls == 2);
  stream.synchronize();
  CHECK(found.calls == 2);
  CHECK_THROWS_WITH(synchronize("cuda:0"), ContainsSubstring("aside"));
  CHECK(found.calls == 3);
  synchronize("cuda:1");
  CHECK(found.calls == 4);
}

TEST_CASE("a copy to the host runs deferred checks, and checks of a CPU run immediately") {
  const testing::FakeGpus gpus(1);
  const Tensor x = empty({3}, {DType::f32, "cuda:0"});
  Found found;
  defer_check(current_stream("cuda:0"), found.check("late"));
  CHECK_THROWS_WITH(x.to("cpu"), ContainsSubstring("late"));
  CHECK_THROWS_WITH(defer_check(current_stream("cpu"), found.check("now")), ContainsSubstring("now"));
}

TEST_CASE("a check that is deferred during a wait runs at the next wait") {
  testing::FakeGpus gpus(1);
  const Stream stream = current_stream("cuda:0");
  Found found;
  const auto comes_now = [&] { defer_check(stream, found.check("late")); };  // runs during the wait
  gpus.launch(stream, comes_now);
  CHECK_NOTHROW(stream.synchronize());
  CHECK(found.calls == 0);
  gpus.launch(stream, comes_now);
  CHECK_THROWS_WITH(synchronize("cuda:0"), ContainsSubstring("late"));
  CHECK(found.calls == 1);
  CHECK_THROWS_WITH(stream.synchronize(), ContainsSubstring("late"));
  CHECK(found.calls == 2);
}
