// Saving and loading the state of an optimizer must be linear in the number of parameters. The tests compare
// the processor time for n and for 4 n parameters: linear work takes about 4 times as long, and a search
// through all names per name 16 times.
#include <time.h>

#include <algorithm>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

std::vector<nn::Parameter> many(int count) {
  std::vector<nn::Parameter> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.emplace_back("p", full({1}, static_cast<double>(i)));
    parameters.back()->set_grad(full({1}, 1.0 + i % 3));
  }
  return parameters;
}

/// The processor time of this thread in seconds. Unlike the time of day, it does not count other programs.
double processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Returns how many times longer f() takes for 4 n than for n. prepare(n) returns f and is not timed.
/// Disturbances only lengthen a time, so the shortest times of several attempts count.
template <class F>
double growth(int n, const F& prepare) {
  double small = 1e30, large = 1e30;
  for (int attempt = 0; attempt < 3 && (attempt == 0 || large > 7 * small); ++attempt)
    for (const int size : {n, 4 * n}) {
      const auto f = prepare(size);
      const double start = processor_time();
      f();
      double& shortest = size == n ? small : large;
      shortest = std::min(shortest, processor_time() - start);
    }
  return large / small;
}

constexpr double kMostGrowth = 8;

}  // namespace

TEST_CASE("saving and loading the state of AdamW take time in proportion to the number of parameters") {
  const double times = growth(3'000, [](int count) {
    auto optimizer = std::make_shared<optim::AdamW>(many(count));
    optimizer->step();
    const auto loaded = std::make_shared<optim::AdamW>(many(count), optim::AdamW::Options{.lr = 0.5});
    return [=] {
      const nn::StateDict state = optimizer->state_dict();
      CHECK(state.size() == 3 * static_cast<std::size_t>(count) + 8);
      loaded->load_state_dict(state);
      CHECK(loaded->lr() == optimizer->lr());
      const nn::StateDict again = loaded->state_dict();
      REQUIRE(again.size() == state.size());
      for (const std::size_t i : {state.size() - 1, state.size() / 2}) {
        CHECK(again[i].first == state[i].first);
        CHECK(equal(again[i].second, state[i].second));
      }
    };
  });
  CHECK(times < kMostGrowth);
}

TEST_CASE("an optimizer with many groups takes time in proportion to their number") {
  const double times = growth(500, [](int count) {
    std::vector<optim::ParamGroup<optim::SGD::Options>> groups;
    for (const nn::Parameter& p : many(count)) groups.push_back({{p}, {.lr = 0.1, .momentum = 0.9}});
    return [groups, count] {
      optim::SGD optimizer(groups);
      CHECK(optimizer.num_groups() == static_cast<std::size_t>(count));
      CHECK_THROWS_WITH(optimizer.add_param_group(groups[7]), ContainsSubstring("is given twice"));
      optimizer.step();
      optim::SGD loaded(groups);
      loaded.load_state_dict(optimizer.state_dict());
      CHECK(loaded.option(static_cast<std::size_t>(count) - 1, "momentum") == 0.9);
    };
  });
  CHECK(times < kMostGrowth);
}

TEST_CASE("a StateDictIndex finds what find() finds") {
  const nn::StateDict dict{{"a", ones({1})}, {"b", ones({2})}, {"a", ones({3})}, {"", ones({4})}};
  const nn::StateDictIndex index(dict);
  for (const char* name : {"a", "b", "", "c"}) CHECK(index.find(name) == nn::find(dict, name));
}
