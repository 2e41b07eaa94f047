#include "tapestry/core/structure.h"

#include <any>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::structure;

namespace {

struct Sample {
  Tensor x;
  int n = 0;
  std::string text = {};
};
template <class T>
struct Wrapped {
  T value;
};
template <class T>
class Closed {
  T value_;
};
enum class Colour { red };
struct Mixed {
  Colour colour = {};
  std::optional<Tensor> maybe = {};
  std::map<std::string, Tensor> named = {};
  std::function<Tensor(const Tensor&)> f = {};
  const char* text = nullptr;
  double number = 0;
};
struct Nested {
  Sample one;
  std::vector<Sample> many = {};
  std::array<Tensor, 3> three = {};
  std::vector<bool> flags = {};
};
struct NoDefault {
  explicit NoDefault(int) {}
};
struct Nothing {};
struct Eight {
  int a, b, c, d, e, f, g, h;
};
struct Nine {
  int a, b, c, d, e, f, g, h, i;
};
struct OfNothing : Nothing {
  Tensor x;
};
struct OfSample : Sample {};
struct FirstArray {
  int numbers[3];
  Tensor x;
};
struct LastArray {
  Tensor x, pair[2];
};
struct OneElement {
  Tensor x[1];
};

template <class T>
int count(T value) {
  int all = 0, of_const = 0;
  for_each<Tensor>(value, [&](Tensor& t) {
    t = Tensor();
    ++all;
  });
  const T& fixed = value;
  for_each<Tensor>(fixed, [&](const Tensor& t) { of_const += !t.defined(); });
  CHECK(all == of_const);
  return all;
}

}  // namespace

TEST_CASE("for_each finds the tensors in a value, to any depth") {
  const Tensor t = empty({2});
  CHECK(count(t) == 1);
  CHECK(count(3) == 0);
  CHECK(count(std::string("text")) == 0);
  CHECK(count(Nothing()) == 0);
  CHECK(count(Sample{t}) == 1);
  CHECK(count(std::vector<Tensor>(5, t)) == 5);
  CHECK(count(std::optional<Tensor>()) == 0);
  CHECK(count(std::optional<Sample>(Sample{t})) == 1);
  CHECK(count(std::pair(t, 3)) == 1);
  CHECK(count(std::tuple(Sample{t}, 1, std::vector{t, t})) == 3);
  CHECK(count(std::vector<std::map<int, Wrapped<Tensor>>>{{{1, {t}}, {2, {t}}}, {{3, {t}}}}) == 3);
  CHECK(count(Mixed{.maybe = t, .named = {{"a", t}, {"b", t}}}) == 3);
  CHECK(count(Nested{{t}, {{t}, {t}}, {t, t, t}, {true}}) == 6);
  CHECK(count(OneElement{{t}}) == 1);
  CHECK(count(Wrapped<NoDefault>{NoDefault(1)}) == 0);
}

TEST_CASE("for_each visits several leaf types in a fixed order") {
  std::tuple<std::string, Tensor, std::map<int, std::string>> value{"first", Tensor(), {{2, "b"}, {1, "a"}}};
  std::string order;
  for_each<Tensor, std::string>(value, [&]<class T>(T& part) {
    if constexpr (std::is_same_v<T, Tensor>) order += "tensor ";
    else order += part + " ";
  });
  CHECK(order == "first tensor a b ");
}

TEST_CASE("structs that cannot be taken apart and types that hide tensors are recognized") {
  CHECK(can_be_taken_apart<Eight>());
  CHECK(can_be_taken_apart<Mixed>());
  CHECK(can_be_taken_apart<Nested>());
  CHECK(can_be_taken_apart<OneElement>());
  CHECK(can_be_taken_apart<Wrapped<NoDefault>>());
  CHECK_FALSE(can_be_taken_apart<Nine>());
  CHECK_FALSE(can_be_taken_apart<OfNothing>());
  CHECK_FALSE(can_be_taken_apart<OfSample>());
  CHECK_FALSE(can_be_taken_apart<FirstArray>());
  CHECK_FALSE(can_be_taken_apart<LastArray>());
  CHECK(hides_tensors<std::deque<Tensor>>);
  CHECK(hides_tensors<std::shared_ptr<const Tensor>>);
  CHECK(hides_tensors<std::reference_wrapper<const Tensor>>);
  CHECK(hides_tensors<std::span<const Tensor>>);
  CHECK(hides_tensors<const Tensor*>);
  CHECK(hides_tensors<Closed<Tensor>>);
  CHECK_FALSE(hides_tensors<Closed<int>>);
  CHECK_FALSE(hides_tensors<std::span<int>>);
  CHECK_FALSE(hides_tensors<std::function<Tensor(const Tensor&)>>);
}

TEST_CASE("same_keys compares the keys of maps at any depth") {
  const Tensor t = empty({2});
  using Map = std::map<std::string, std::optional<Sample>>;
  using Value = std::tuple<std::vector<Map>, Wrapped<std::map<int, Tensor>>>;
  const Value value{{{{"a", Sample{t}}}, {{"b", {}}}}, {{{1, t}}}};
  CHECK(same_keys<Tensor>(value, value));
  CHECK(same_keys<Tensor>(value, Value{{{{"a", {}}}, {{"b", Sample{t}}}}, {{{1, Tensor()}}}}));
  CHECK_FALSE(same_keys<Tensor>(value, Value{{{{"a", Sample{t}}}, {{"c", {}}}}, {{{1, t}}}}));
  CHECK_FALSE(same_keys<Tensor>(value, Value{{{{"a", Sample{t}}}, {{"b", {}}}}, {{{2, t}}}}));
  CHECK_FALSE(same_keys<Tensor>(value, Value{{{{"a", Sample{t}}}, {{"b", {}}}}, {{}}}));
  CHECK_FALSE(same_keys<Tensor>(value, Value{{{{"a", Sample{t}}}, {{"b", {}}}}, {{{1, t}, {2, t}}}}));
}

TEST_CASE("tensor_count says how many tensors a type holds, and assign_tensors fills them in order") {
  struct Pair {
    Tensor a;
    std::array<Tensor, 2> b;
  };
  CHECK(tensor_count<Tensor>() == 1);
  CHECK(tensor_count<Pair>() == 3);
  CHECK(tensor_count<std::tuple<Tensor, Pair>>() == 4);
  CHECK(tensor_count<std::pair<Tensor, std::vector<Tensor>>>() == kAnyCount);
  CHECK(tensor_count<std::pair<std::vector<Tensor>, Tensor>>() == kNotOnlyTensors);
  CHECK(tensor_count<std::pair<Tensor, int>>() == kNotOnlyTensors);
  std::vector<Tensor> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back(empty({i}));
  std::tuple<Pair, std::vector<Tensor>> value;
  std::size_t at = 1;
  assign_tensors(value, tensors, at);
  CHECK(at == 6);
  CHECK(std::get<0>(value).a.is_same(tensors[1]));
  CHECK(std::get<0>(value).b[1].is_same(tensors[3]));
  REQUIRE(std::get<1>(value).size() == 2);
  CHECK(std::get<1>(value)[1].is_same(tensors[5]));
}

TEST_CASE("Owned removes references inside tuples and pairs, except to what cannot be copied") {
  struct NotCopied {
    NotCopied() = default;
    NotCopied(const NotCopied&) = delete;
  };
  CHECK(std::is_same_v<Owned<std::tuple<const Tensor&, std::pair<int&, Tensor&>>>,
                       std::tuple<Tensor, std::pair<int, Tensor>>>);
  CHECK(std::is_same_v<Owned<std::tuple<NotCopied&>>, std::tuple<NotCopied&>>);
}
