#include "tapestry/core/profiler.h"

#include <algorithm>
#include <thread>

#include "tapestry/core/trace.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using profiler::Operation;
using profiler::SortBy;

namespace {

Operation find(const std::vector<Operation>& all, const std::string& name, Activity activity) {
  for (const Operation& o : all)
    if (o.name == name && o.activity == activity) return o;
  return {};
}

void wait(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace

TEST_CASE("a profile counts kernels of forward, backward and the optimizer") {
  nn::Linear net({.in_features = 8, .out_features = 4});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const Tensor x = randn({16, 8});
  const auto step = [&] {
    optimizer.zero_grad();
    net(x).tanh().sum().backward();
    optimizer.step();
  };
  step();
  CHECK_FALSE(Timeline::keeps_kernels());
  const profiler::Profile profile;
  CHECK(Timeline::keeps_kernels());
  for (int i = 0; i < 3; ++i) step();
  const std::vector<Operation> all = profile.operations();
  CHECK(find(all, "tanh", Activity::kernel).calls == 3);
  CHECK(find(all, "tanh_backward", Activity::kernel).calls == 3);
  const Operation backward = find(all, "tanh backward", Activity::backward);
  CHECK(backward.calls == 3);
  CHECK(backward.row == "cpu:0");
  // The kernel runs inside of the backward of the operation.
  CHECK(backward.self_time < backward.total_time);
  CHECK(backward.total_time >= find(all, "tanh_backward", Activity::kernel).total_time);
  for (const Operation& o : all) {
    INFO(o.name);
    CHECK(o.self_time >= 0);
    CHECK(o.self_time <= o.total_time);
  }
  CHECK(std::any_of(all.begin(), all.end(),
                    [](const Operation& o) { return o.activity == Activity::optimizer; }));
}

TEST_CASE("a scope has the time and the memory of what is inside of it") {
  const profiler::Profile profile;
  Tensor kept;
  {
    const profiler::Scope outer("outer");
    wait(4);
    {
      const profiler::Scope inner("inner");
      wait(20);
      kept = empty({1 << 20});
    }
    // Another thread does not take time from this one.
    std::thread([] {
      const profiler::Scope other("other");
      wait(20);
    }).join();
  }
  const std::vector<Operation> all = profile.operations(SortBy::total_time);
  const Operation outer = find(all, "outer", Activity::other), inner = find(all, "inner", Activity::other);
  CHECK(all[0].name == "outer");
  CHECK(outer.total_time >= 0.044);
  CHECK(outer.self_time == Approx(outer.total_time - inner.total_time));
  CHECK(inner.self_time == inner.total_time);
  CHECK(find(all, "other", Activity::other).self_time >= 0.02);
  CHECK(inner.memory == 4 << 20);
  CHECK(outer.memory == 4 << 20);
  CHECK(profile.operations(SortBy::name)[0].name == "inner");
  const std::string table = profile.table(SortBy::memory, 1);
  CHECK_THAT(table, ContainsSubstring("4.0 MiB") && ContainsSubstring("2 not shown") &&
                        ContainsSubstring("self ms"));
}

TEST_CASE("a trace has an event for each span, and only the newest profile records") {
  const tests::TempDir folder;
  const profiler::Profile older;
  {
    const profiler::Profile newer;
    { const profiler::Scope scope("a \"name\""); }
    newer.write_trace(folder / "trace.json");
    CHECK(older.operations().empty());
  }
  CHECK(Timeline::keeps_kernels());
  const std::string trace = tests::read_file(folder / "trace.json");
  CHECK_THAT(trace, ContainsSubstring(R"("ph":"X","name":"a \"name\"","cat":"other")"));
  CHECK(trace.front() == '[');
  CHECK_THROWS_AS(older.write_trace(folder / "none/trace.json"), IoError);
  // A Timeline that keeps phases only turns kernels off.
  const Timeline phases;
  CHECK_FALSE(Timeline::keeps_kernels());
  ones({3}).tanh();
  CHECK(phases.spans().empty());
}
