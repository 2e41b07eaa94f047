// Saving and loading the state of an optimizer must take time linear in the number of parameters. If each
// name were searched for among all names, these sizes would exceed the test's time limit
// (tests/CMakeLists.txt). Builds with a sanitizer use smaller sizes, to find errors in memory accesses only.
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;

namespace {
std::vector<nn::Parameter> many(int count) {
  const std::vector<Tensor> grads{full({1}, 1.0), full({1}, 2.0), full({1}, 3.0)};
  std::vector<nn::Parameter> parameters;
  for (int i = 0; i < count; ++i) {
    parameters.emplace_back("p", full({1}, static_cast<double>(i)));
    parameters.back()->set_grad(grads[static_cast<std::size_t>(i % 3)]);
  }
  return parameters;
}
}  // namespace

TEST_CASE("the state of AdamW over 75,000 parameters is saved and loaded") {
  constexpr int kCount = kSanitized ? 3'000 : 75'000;
  optim::AdamW optimizer(many(kCount));
  optimizer.step();
  const nn::StateDict state = optimizer.state_dict();
  CHECK(state.size() == 3 * kCount + 8);
  optim::AdamW loaded(many(kCount), {.lr = 0.5});
  loaded.load_state_dict(state);
  CHECK(loaded.lr() == optimizer.lr());
  const nn::StateDict again = loaded.state_dict();
  REQUIRE(again.size() == state.size());
  for (const std::size_t i : {state.size() - 1, state.size() / 2}) {
    CHECK(again[i].first == state[i].first);
    CHECK(equal(again[i].second, state[i].second));
  }
}

TEST_CASE("an optimizer may have 20,000 groups of one parameter each") {
  constexpr int kCount = kSanitized ? 1'000 : 20'000;
  std::vector<optim::ParamGroup<optim::SGD::Options>> groups;
  for (const nn::Parameter& p : many(kCount)) groups.push_back({{p}, {.lr = 0.1, .momentum = 0.9}});
  optim::SGD optimizer(groups);
  CHECK(optimizer.num_groups() == kCount);
  CHECK_THROWS_WITH(optimizer.add_param_group(groups[7]), ContainsSubstring("is given twice"));
  optimizer.step();
  optim::SGD loaded(groups);
  loaded.load_state_dict(optimizer.state_dict());
  CHECK(loaded.option(kCount - 1, "momentum") == 0.9);
}

TEST_CASE("a StateDictIndex finds what find() finds") {
  const nn::StateDict dict{{"a", ones({1})}, {"b", ones({2})}, {"a", ones({3})}, {"", ones({4})}};
  const nn::StateDictIndex index(dict);
  for (const char* name : {"a", "b", "", "c"}) CHECK(index.find(name) == nn::find(dict, name));
}
