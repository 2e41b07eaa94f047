#include "tapestry/core/timeline.h"

#include <optional>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;

namespace {
void busy(Device device, const char* name, int number = -1) {
  const SpanScope span(device, Activity::forward, name, number);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}
}  // namespace

TEST_CASE("spans are kept only while a Timeline exists") {
  CHECK_FALSE(Timeline::active());
  busy("cpu:0", "before");
  const Timeline timeline;
  CHECK(Timeline::active());
  busy("cpu:0", "step", 3);
  {
    SpanScope span("cpu:0", Activity::communication, "bucket", 0, "link");
    span.set_subject({.module = "blocks.3", .bucket = 2, .bytes = 96, .axis = "shard"});
  }
  std::thread other([] { busy("cpu:0", "thread"); });
  other.join();
  const SpanScope open("cpu:0", Activity::other, "not over");
  const auto spans = timeline.spans();
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].row == "cpu:0");
  CHECK(spans[0].name == "step 3");
  CHECK(spans[0].activity == Activity::forward);
  CHECK(spans[0].begin >= 0);
  CHECK(spans[0].end - spans[0].begin >= 0.002);
  CHECK(spans[1].name == "thread");
  CHECK(spans[1].begin >= spans[0].end);
  CHECK(spans[2].row == "link");
  CHECK(activity_name(spans[2].activity) == std::string("communication"));
  const SpanSubject& about = spans[2].subject;
  CHECK((about.module == "blocks.3" && about.bucket == 2 && about.bytes == 96 && about.axis == "shard"));
  CHECK((spans[0].subject.module.empty() && spans[0].subject.bucket == -1 && spans[0].subject.bytes == 0));
  SpanScope("cpu:0", Activity::other, "after").set_subject({.bytes = 1});  // a scope without a Timeline
}

TEST_CASE("add_span() adds a span with its times") {
  using namespace std::chrono_literals;
  const auto before = std::chrono::steady_clock::now();
  add_span("link", Activity::communication, "unseen", before, before + 1ms);
  const Timeline timeline;
  const auto began = std::chrono::steady_clock::now();
  CHECK(timeline.began() >= before);
  CHECK(timeline.began() <= began);
  add_span("link", Activity::communication, "bucket 1", began + 2ms, began + 5ms, {.bucket = 1, .bytes = 8});
  const auto spans = timeline.spans();
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].row == "link");
  CHECK(spans[0].name == "bucket 1");
  CHECK(spans[0].activity == Activity::communication);
  CHECK(spans[0].begin >= 0.002);
  CHECK(spans[0].end - spans[0].begin == Approx(0.003));
  CHECK((spans[0].subject.bucket == 1 && spans[0].subject.bytes == 8));
}

TEST_CASE("only the newest of several Timelines keeps spans") {
  const Timeline outer;
  {
    const Timeline inner;
    busy("cpu:0", "inner");
    CHECK(inner.spans().size() == 1);
  }
  busy("cpu:0", "outer");
  REQUIRE(outer.spans().size() == 1);
  CHECK(outer.spans()[0].name == "outer");
}

TEST_CASE("a scope may end after its Timeline") {
  std::optional<Timeline> timeline(std::in_place);
  const SpanScope open("cpu:0", Activity::other, "late");
  timeline.reset();
  CHECK_FALSE(Timeline::active());
}

TEST_CASE("spans on a GPU are measured with its events") {
  const testing::FakeGpus gpus(2);
  const Timeline timeline;
  busy("cuda:1", "kernel");
  busy("cuda:1", "kernel");
  const auto spans = timeline.spans();
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].row == "cuda:1");
  CHECK(spans[0].begin >= 0);
  CHECK(spans[0].end >= spans[0].begin);
  CHECK(spans[1].begin >= spans[0].end);
}
