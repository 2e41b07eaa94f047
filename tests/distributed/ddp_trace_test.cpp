// What DistributedDataParallel reports of its buckets, and the spans that it adds to a trace.
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

using distributed_test::Group, distributed_test::on_ranks;

TEST_CASE("the trace gives a parameter of the model itself the empty path") {
  const Timeline timeline;
  on_ranks<int>(2, [&](const Group& group) {
    nn::Linear net({.in_features = 2, .out_features = 2});
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp(ones({1, 2})).sum().backward();
    return 0;
  });
  int weights = 0;
  for (const Span& span : timeline.spans()) {
    if (span.name != "backward of weight") continue;
    ++weights;
    CHECK(span.subject.module.empty());
  }
  CHECK(weights == 2);
}

TEST_CASE("the report is consistent, and the trace has computation and communication of every rank") {
  const tests::TempDir folder;
  const std::string path = folder / "trace.json";
  const Timeline timeline;  // ranks are threads here, so they share it
  const auto reports = on_ranks<DdpReport>(2, [&](const Group& group) {
    SmallCnn net;
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 2e-4});
    const auto [x, labels] = formula_batch(0, 0, 2);
    cross_entropy(ddp(x.to(DType::f32)), labels).backward();
    write_trace(*group, timeline, path);
    return ddp.report();
  });
  for (const DdpReport& r : reports) {
    CHECK(r.buckets.size() > 1);
    CHECK(r.backward_s > 0);
    CHECK(r.exposed_s >= 0);
    CHECK(r.hidden_s <= r.communication_s + 1e-9);
    double last = 0;
    for (const BucketReport& b : r.buckets) {
      CHECK(b.posted >= 0);
      CHECK(b.started >= b.posted);
      CHECK(b.finished >= b.started);
      CHECK(b.started >= last);
      last = b.finished;
      CHECK_THAT(r.str(), ContainsSubstring(b.name));
    }
  }
  int waits = 0;
  for (const Span& span : timeline.spans()) {
    const SpanSubject& about = span.subject;
    if (span.name.starts_with("bucket ")) {
      const BucketReport& b = reports[0].buckets.at(static_cast<std::size_t>(about.bucket));
      CHECK(span.name == b.name);
      CHECK(about.bytes == static_cast<std::int64_t>(b.bytes));
    }
    if (span.name == "backward of conv1.weight") CHECK(about.module == "conv1");
    if (span.activity == Activity::communication) CHECK(about.axis == "world");
    waits += span.name == "wait for gradients";
  }
  CHECK(waits == 2);
  const std::string text = tests::read_file(path);
  for (const char* part :
       {"\"name\":\"rank 0\"", "\"name\":\"rank 1\"", "\"cpu:0 communication\"", "\"cpu:0\"",
        "\"thread_name\"", "\"cat\":\"backward\"", "backward of conv1.weight", "\"forward\"", "bucket 1"})
    CHECK_THAT(text, ContainsSubstring(part));
}
