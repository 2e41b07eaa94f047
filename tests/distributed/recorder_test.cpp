#include "tapestry/distributed/comm/recorder.h"

#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

TEST_CASE("str() and brief() describe a call") {
  CollectiveRecord r{
      .sequence = 42, .group = "world", .op = Op::all_reduce, .dtype = DType::f32, .shape = {1024}};
  CHECK(r.str() == "#42 all_reduce float32 [1024] sum");
  r.name = "bucket 1";
  r.site = "train.cpp:88";
  r.reduce = ReduceOp::mean;
  CHECK(r.brief() == "#42 all_reduce(bucket 1)");
  CHECK(r.str() == "#42 all_reduce(bucket 1) float32 [1024] mean at train.cpp:88");
  r.group = "world.1";
  r.op = Op::broadcast;
  r.peer = 3;
  CHECK(r.str() == "world.1#42 broadcast(bucket 1) float32 [1024] root 3 at train.cpp:88");
  r.op = Op::send;
  CHECK(r.str() == "world.1#42 send(bucket 1) float32 [1024] to 3 at train.cpp:88");
  r.op = Op::recv;
  r.shape = {};
  CHECK(r.str() == "world.1#42 recv(bucket 1) float32 [] from 3 at train.cpp:88");
  CHECK((CollectiveRecord{.sequence = 1, .group = "world", .op = Op::barrier}.str() == "#1 barrier"));
}

TEST_CASE("the recorder keeps the last calls in a ring buffer") {
  Recorder recorder;
  CHECK(recorder.records().empty());
  CHECK(recorder.running().empty());
  CHECK_FALSE(recorder.last());
  const auto record = [&](std::uint64_t i) { return recorder.enqueued({.sequence = i, .group = "world"}); };

  const auto first = record(1), second = record(2);
  CHECK(recorder.running().empty());
  recorder.started(first);
  recorder.started(second);
  REQUIRE(recorder.running().size() == 2);
  CHECK(recorder.running()[0].sequence == 1);
  recorder.finished(second, true);
  REQUIRE(recorder.last());
  CHECK(recorder.last()->sequence == 2);
  CHECK(recorder.last()->failed);
  recorder.finished(first);
  CHECK(recorder.last()->sequence == 1);
  CHECK(recorder.running().empty());
  const CollectiveRecord done = recorder.records()[0];
  CHECK(done.enqueued <= done.started);
  CHECK(done.started <= done.finished);
  CHECK_FALSE(done.failed);

  for (std::uint64_t i = 3; i <= Recorder::kKept + 2; ++i) record(i);
  const auto kept = recorder.records();
  REQUIRE(kept.size() == Recorder::kKept);
  for (std::size_t i = 0; i < kept.size(); ++i) REQUIRE(kept[i].sequence == i + 3);
  recorder.started(second);  // the record was overwritten, so no record may change
  recorder.finished(first, true);
  CHECK(recorder.running().empty());
  for (const CollectiveRecord& r : recorder.records()) REQUIRE_FALSE(r.failed);
}

TEST_CASE("the recorder is thread-safe") {
  Recorder recorder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto ticket = recorder.enqueued({.group = "world", .name = "some name that is not short"});
        recorder.started(ticket);
        if (i % 50 == 0) recorder.records();
        recorder.finished(ticket);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(recorder.records().size() == Recorder::kKept);
  CHECK(recorder.running().empty());
}

TEST_CASE("a group records its calls with their sites") {
  run_local_ranks(2, [](const Group& g) {
    const Tensor x = empty({2, 3}, DType::i64);
    g->broadcast(x, 1, "weights").wait();
    g->all_reduce(x, ReduceOp::max).wait();
    if (g->rank() == 0) g->send(x, 1, 4, "edge").wait();
    else g->recv(x, 0, 4, "edge").wait();
    const auto all = g->recorder().records();
    if (all.size() != 3) throw std::runtime_error("not three records");
    const auto expect = [](const std::string& is, const std::string& should) {
      if (!is.starts_with(should)) throw std::runtime_error(is + " instead of " + should);
    };
    expect(all[0].str(), "#1 broadcast(weights) int64 [2, 3] root 1 at recorder_test.cpp:");
    expect(all[1].str(), "#2 all_reduce int64 [2, 3] max at recorder_test.cpp:");
    expect(all[2].str(), g->rank() == 0 ? "#1 send(edge) int64 [2, 3] to 1 at recorder_test.cpp:"
                                        : "#1 recv(edge) int64 [2, 3] from 0 at recorder_test.cpp:");
    for (const CollectiveRecord& r : all)
      if (r.enqueued > r.started || r.started > r.finished || r.failed)
        throw std::runtime_error("times of " + r.str());
  });
}
