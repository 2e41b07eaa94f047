// Tests what tapestry-compare reads from a recorded step: the critical path, and which device holds which
// part.
#include "tapestry/apps/compare/critical_path.h"
#include "tapestry/apps/compare/holdings.h"
#include "tests/apps/compare_results.h"
#include "tests/support/catch.h"

using namespace apps::compare;
using tapestry::Activity;
using tapestry::MemoryKind;
using tapestry::Span;

namespace {

std::vector<std::string> names(const Result& r, const std::vector<std::size_t>& spans) {
  std::vector<std::string> all;
  for (const std::size_t i : spans) all.push_back(r.spans[i].row + " " + r.spans[i].name);
  return all;
}

const Holding& held(const std::vector<Holding>& all, int device, MemoryKind kind) {
  return *std::find_if(all.begin(), all.end(),
                       [&](const Holding& h) { return h.device == device && h.kind == kind; });
}

}  // namespace

TEST_CASE("the critical path goes through the device that joins a collective last") {
  // Rank 1 computes longer. Rank 0 waits for it inside its backward pass, and the all-reduce ends at 8.
  const Result r =
      tests::result_of("ddp", 10, {"rank 0", "rank 1"},
                       {{"rank 0", Activity::forward, "forward", 0, 2},
                        {"rank 0", Activity::backward, "backward", 2, 8},
                        {"rank 0", Activity::communication, "wait", 4, 8},
                        {"rank 0", Activity::optimizer, "SGD", 8, 10},
                        {"rank 0 communication", Activity::communication, "bucket 0", 3, 8},
                        {"rank 1", Activity::forward, "forward", 0, 3},
                        {"rank 1", Activity::backward, "backward", 3, 8},
                        {"rank 1", Activity::communication, "wait", 7, 8},
                        {"rank 1", Activity::optimizer, "SGD", 8, 9.5},
                        {"rank 1 communication", Activity::communication, "bucket 0", 6, 8}});
  const Dependencies d = dependencies_of(r);
  CHECK(names(r, d.critical_path) ==
        std::vector<std::string>{"rank 0 SGD", "rank 0 wait", "rank 0 communication bucket 0",
                                 "rank 1 communication bucket 0", "rank 1 backward", "rank 1 forward"});
  CHECK(names(r, d.needs[2]) == std::vector<std::string>{"rank 0 communication bucket 0"});
  CHECK(names(r, d.needs[8]) == std::vector<std::string>{"rank 1 wait"});
}

TEST_CASE("the critical path of stages follows micro-batches from device to device") {
  const Result r =
      tests::result_of("model", 8, {"cpu:0", "cpu:1"},
                       {{"cpu:0", Activity::forward, "forward 0", 0, 2},
                        {"cpu:0", Activity::forward, "forward 1", 2, 4},
                        {"cpu:0", Activity::backward, "backward 0", 4.5, 6},
                        {"cpu:0", Activity::backward, "backward 1", 6.5, 8},
                        {"cpu:1", Activity::forward, "forward 0", 2, 3},
                        {"cpu:1", Activity::backward, "backward 0", 3, 4.5},
                        {"cpu:1", Activity::forward, "forward 1", 4.5, 5.5},
                        {"cpu:1", Activity::backward, "backward 1", 5.5, 6.5}});
  CHECK(names(r, dependencies_of(r).critical_path) ==
        std::vector<std::string>{"cpu:0 backward 1", "cpu:1 backward 1", "cpu:1 forward 1",
                                 "cpu:1 backward 0", "cpu:1 forward 0", "cpu:0 forward 0"});
  CHECK(dependencies_of(Result()).critical_path.empty());
}

TEST_CASE("times that contradict each other end the critical path") {
  Result r;
  r.rows = {"rank 0", "rank 1"};
  r.step_s = 4;
  for (const std::string row : {"rank 0", "rank 1"})
    r.spans.insert(r.spans.end(), {{row, Activity::communication, "wait", 1, 4},
                                   {row + " communication", Activity::communication, "bucket 0", 3.9, 3.9},
                                   {row + " communication", Activity::communication, "bucket 0", -1, 9}});
  CHECK(dependencies_of(r).critical_path.size() <= r.spans.size());
}

TEST_CASE("holdings tell replicas from parts, and what is kept from what is borrowed") {
  Report report;
  report.workload.devices = 2;
  report.workload.split = {1, 3};
  const std::vector<double> phases = {0, 1, 2, 3};
  Result single;
  single.memory = {
      tests::memory_of("cpu:0", {{0, 100, 0, 200, 0}, {1, 100, 50, 200, 80}, {2, 100, 100, 200, 0}}, phases)};
  Result sharded;
  sharded.family = "data";
  for (const std::string row : {"rank 0", "rank 1"})
    sharded.memory.push_back(
        tests::memory_of(row, {{0, 50, 0, 100, 0}, {1, 90, 100, 100, 40}, {2, 50, 50, 100, 0}}, phases));
  Result replicas = sharded;
  for (MemoryHistory& h : replicas.memory)
    h = tests::memory_of(h.row, {{0, 100, 100, 200, 0}, {1, 100, 100, 200, 40}}, phases);
  Result stages = sharded;
  stages.family = "stages";
  report.results = {single, sharded, replicas, stages};

  const auto parts = holdings_of(report, sharded);
  CHECK(parts.size() == 8);
  const Holding& second = held(parts, 1, MemoryKind::parameters);
  CHECK(second.first == Approx(0.5));
  CHECK(second.last == Approx(1));
  CHECK(second.resident_bytes == 50);
  CHECK(second.borrowed_bytes == 40);                                 // gathered for a moment
  CHECK(held(parts, 0, MemoryKind::gradients).resident_bytes == 50);  // at the end
  CHECK(held(parts, 0, MemoryKind::gradients).borrowed_bytes == 50);
  CHECK(held(parts, 0, MemoryKind::activations).last == Approx(0.5));
  CHECK(held(parts, 0, MemoryKind::parameters).last_block == 4);
  const auto whole = holdings_of(report, replicas);
  for (const int device : {0, 1}) CHECK(held(whole, device, MemoryKind::optimizer).last == 1);
  const auto layers = holdings_of(report, stages);
  CHECK(held(layers, 1, MemoryKind::parameters).first_block == 1);
  CHECK(held(layers, 1, MemoryKind::parameters).last_block == 4);
  CHECK(held(layers, 1, MemoryKind::parameters).first == 0);
}
