// Work on modules must be linear in the number of modules, parameters and names. No time is measured: if it
// were quadratic or cubic, these sizes would take hours, and a recursion without a limit would overflow the
// stack. Builds with a sanitizer use smaller sizes. Their stack frames are larger, so a recursion would still
// overflow the stack.
#include <algorithm>
#include <memory>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;

namespace {

constexpr int kDepth = kSanitized ? 30'000 : 100'000;

struct Link : nn::Module {
  static inline int alive = 0, with_child = 0;
  Link() { ++alive; }
  ~Link() override {
    --alive;
    with_child += static_cast<int>(children().size());
  }
};

// A chain of modules, of which the first and the last have a parameter. Returns the first module.
std::shared_ptr<Link> built_upwards(int depth = kDepth) {
  auto chain = std::make_shared<Link>();
  chain->param("last", ones({2}));
  for (int i = 1; i < depth; ++i) {
    auto parent = std::make_shared<Link>();
    parent->add("n", std::move(chain));
    chain = std::move(parent);
  }
  chain->param("first", ones({3}));
  return chain;
}
std::shared_ptr<Link> built_downwards() {
  auto chain = std::make_shared<Link>();
  chain->param("first", ones({3}));
  nn::Module* last = chain.get();
  for (int i = 1; i < kDepth; ++i) last = &last->add("n", std::make_shared<Link>());
  last->param("last", ones({2}));
  return chain;
}

}  // namespace

TEST_CASE("modules nested 100,000 deep can be built, listed, moved, saved, loaded and destroyed") {
  for (const bool upwards : {true, false}) {
    INFO((upwards ? "built upwards" : "built downwards"));
    Link::with_child = 0;
    std::shared_ptr<Link> chain = upwards ? built_upwards() : built_downwards();
    CHECK(Link::alive == kDepth);
    const std::vector<nn::Module*> modules = chain->modules();
    REQUIRE(modules.size() == kDepth);
    CHECK(modules.front() == chain.get());
    const std::size_t path_size = 2 * (kDepth - 1) - 1;  // "n.n. ... .n"
    CHECK(modules.back()->path().size() == path_size);
    CHECK(&modules.back()->root() == chain.get());
    CHECK(&chain->at(modules.back()->path()) == modules.back());

    CHECK(chain->parameters().size() == 2);
    const auto named = chain->named_parameters();
    REQUIRE(named.size() == 2);
    CHECK(named[0].first == "first");
    CHECK(named[1].first.size() == path_size + 5);
    CHECK(named[1].first.ends_with(".n.last"));
    CHECK(chain->buffers().empty());

    chain->to(DType::f64);
    CHECK(chain->parameters()[1]->dtype() == DType::f64);
    chain->zero_grad();
    chain->requires_grad_(false);
    CHECK_FALSE(chain->parameters()[1]->requires_grad());
    int applied = 0;
    const nn::Module* last = nullptr;
    chain->apply([&](nn::Module& m) { ++applied, last = &m; });
    CHECK(applied == kDepth);
    CHECK(last == chain.get());

    const nn::StateDict state = chain->state_dict();
    REQUIRE(state.size() == 2);
    CHECK(chain->load_state_dict(state).missing.empty());

    chain.reset();
    CHECK(Link::alive == 0);
    CHECK(Link::with_child == kDepth - 1);  // a destructor can still use the module's children
  }
}

TEST_CASE("train() and eval() reach every module of a chain of 10,000") {
  const std::shared_ptr<Link> chain = built_upwards(10'000);
  chain->eval();
  CHECK_FALSE(chain->modules().back()->is_training());
  chain->train();
  CHECK(chain->modules().back()->is_training());
}

TEST_CASE("train() and eval() of modules that are nested more than 10,000 deep throw an error") {
  for (const int depth : {10'001, kDepth}) {
    const std::shared_ptr<Link> chain = built_upwards(depth);
    CHECK_THROWS_WITH(chain->eval(), ContainsSubstring("[train] modules are nested more than 10000 deep"));
    CHECK_THROWS_AS(chain->train(), ValueError);
    Link other;
    other.eval();
    CHECK_FALSE(other.is_training());
  }
  CHECK_THROWS_AS(built_upwards(10'001)->summary([] {}), ValueError);
}

TEST_CASE("the text of modules that are nested deep ends at 1,000 levels") {
  const auto levels = [](const nn::Module& module) {
    const std::string text = module.str();
    return std::count(text.begin(), text.end(), '(') - std::count(text.begin(), text.end(), ':');
  };
  const std::shared_ptr<Link> shown = built_upwards(1'001);
  CHECK(levels(*shown) == 1'001);
  CHECK_THAT(shown->str(), !ContainsSubstring("..."));
  const std::shared_ptr<Link> deeper = built_upwards(kDepth);
  CHECK(levels(*deeper) == 1'001);
  CHECK_THAT(deeper->str(), ContainsSubstring("(n): ...\n"));
  CHECK(built_upwards(1'000)->summary().size() > 1'000);
  const std::string table = deeper->summary();
  CHECK(std::count(table.begin(), table.end(), '\n') == 1'001 + 1 + 5);  // modules, "...", head, rules and sums
  CHECK_THAT(table, ContainsSubstring(" ... "));
  CHECK_THAT(table, ContainsSubstring("Parameters: 5 (5 trained)"));
}

TEST_CASE("one module may have 100,000 parameters, buffers and children, with unique names") {
  constexpr int kCount = kSanitized ? 2'000 : 25'000;
  Link wide;
  for (int i = 0; i < 2 * kCount; ++i) wide.param("p" + std::to_string(i), Tensor());
  for (int i = 0; i < kCount; ++i) wide.buffer("b" + std::to_string(i), Tensor());
  for (int i = 0; i < kCount; ++i) wide.add("m" + std::to_string(i), std::make_shared<Link>());
  CHECK(wide.children().size() == kCount);
  CHECK_THROWS_WITH(wide.param("m7", Tensor()), ContainsSubstring("already has a 'm7'"));
  CHECK_THROWS_WITH(wide.buffer("p1999", Tensor()), ContainsSubstring("already has a 'p1999'"));
  CHECK_THROWS_WITH(wide.add("b0", std::make_shared<Link>()), ContainsSubstring("already has a 'b0'"));
}

TEST_CASE("a module that cannot be added leaves its name free") {
  Link root;
  CHECK_THROWS_AS(root.add("child", std::shared_ptr<Link>()), ValueError);
  root.add("child", std::make_shared<Link>());
  CHECK_THROWS_WITH(root.buffer("child", ones({1})), ContainsSubstring("already has a 'child'"));
}

TEST_CASE("a module cannot be added to itself or to a descendant, however they are shared") {
  const auto root = std::make_shared<Link>(), middle = std::make_shared<Link>(),
             leaf = std::make_shared<Link>();
  root->add("middle", middle);
  middle->add("leaf", leaf);
  CHECK_THROWS_WITH(leaf->add("root", root), ContainsSubstring("contains the module that it is added to"));
  CHECK_THROWS_WITH(leaf->add("middle", middle),
                    ContainsSubstring("contains the module that it is added to"));
  CHECK_THROWS_WITH(leaf->add("leaf", leaf), ContainsSubstring("contains the module that it is added to"));
  {
    Link other;
    other.add("leaf", leaf);  // a second parent, which dies first
  }
  CHECK_THROWS_WITH(leaf->add("root", root), ContainsSubstring("contains the module that it is added to"));
  root->add("again", leaf);
  CHECK(root->modules().size() == 3);
}

TEST_CASE("60 levels of shared modules are visited once each") {
  auto top = std::make_shared<Link>();
  for (int i = 0; i < 60; ++i) {  // 2^60 paths
    auto parent = std::make_shared<Link>();
    parent->add("left", top);
    parent->add("right", top);
    top = std::move(parent);
  }
  CHECK(top->modules().size() == 61);
  CHECK(top->parameters().empty());
}

TEST_CASE("a child may outlive its parent") {
  const auto child = std::make_shared<nn::Linear>(nn::Linear::Options{.in_features = 2, .out_features = 1});
  {
    nn::Sequential parent(child);
    CHECK(child->path() == "0");
  }
  CHECK(child->path().empty());
  CHECK((*child)(zeros({1, 2})).sizes() == Shape{1, 1});
}
