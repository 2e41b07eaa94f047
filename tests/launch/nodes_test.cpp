#include "tapestry/distributed/launch/internal/nodes.h"

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry::distributed;
using namespace tapestry::distributed::launch;

namespace {

LaunchOptions node(int rank, int nproc = 2) {
  LaunchOptions o;
  o.nnodes = 2;
  o.node_rank = rank;
  o.nproc_per_node = nproc;
  return o;
}

/// Holds keys of a store in memory.
Nodes::Hold hold_in(const std::shared_ptr<Store>& store) {
  return [store](const std::string& key, const std::string& value) -> std::shared_ptr<void> {
    if (store->compare_set(key, std::nullopt, value) != value) return nullptr;
    return {new char, [store, key](char* handle) { store->erase(key), delete handle; }};
  };
}

/// The launcher of a node.
struct Launcher : Nodes {
  Launcher(const std::shared_ptr<Store>& store, const LaunchOptions& o) : Nodes(store, o, hold_in(store)) {}
};

/// A store whose calls throw, as those of a client do after the server has closed.
class GoneStore : public Store {
 public:
  void set(std::string_view, std::string_view) override { gone(); }
  std::string get(std::string_view, Milliseconds) override { gone(); }
  std::optional<std::string> try_get(std::string_view) override { gone(); }
  std::int64_t add(std::string_view, std::int64_t) override { gone(); }
  std::string compare_set(std::string_view, std::optional<std::string_view>, std::string_view) override {
    gone();
  }
  bool erase(std::string_view) override { gone(); }
  std::string str() const override { return "gone"; }

 private:
  [[noreturn]] static void gone() { throw DistributedError("connection refused"); }
};

}  // namespace

TEST_CASE("a node has one launcher at a time, and all have the same options") {
  const auto store = memory_store();
  Launcher zero(store, node(0));
  auto one = std::make_unique<Launcher>(store, node(1));
  CHECK(zero.join());
  CHECK(one->join());
  Launcher another(store, node(1));
  CHECK_FALSE(another.join());
  CHECK_THROWS_AS(Launcher(store, node(1, 3)).join(), tapestry::ValueError);
  CHECK_THROWS_WITH(Launcher(store, node(1, 3)).join(), ContainsSubstring("--nproc-per-node 3"));
  one.reset();
  CHECK(another.join());
}

TEST_CASE("an attempt begins when all launchers are ready, and ends when one of them is replaced") {
  const auto store = memory_store();
  Launcher zero(store, node(0));
  auto one = std::make_unique<Launcher>(store, node(1));
  REQUIRE((zero.join() && one->join()));
  CHECK_FALSE(zero.begin(0));
  CHECK(zero.missing() == "node 1");
  CHECK_FALSE(one->begin(0));  // node 0 decides
  CHECK(zero.begin(0));
  CHECK(zero.missing() == "");
  CHECK(one->begin(0));
  CHECK_FALSE(zero.look(0));
  SECTION("it is replaced before node 0 looks") {
    one.reset();
    Launcher another(store, node(1));
    REQUIRE(another.join());
    CHECK_FALSE(another.look(0));
    CHECK_FALSE(another.begin(0));  // this attempt has begun with its predecessor
    const auto ending = zero.look(0);
    REQUIRE(ending);
    CHECK(ending->restart);
    CHECK(ending->text == "node 1: its launcher has ended, or node 0 cannot reach it");
    CHECK(another.look(0)->text == ending->text);
    CHECK_FALSE(zero.begin(1));
    CHECK_FALSE(another.begin(1));
    CHECK(zero.begin(1));
    CHECK(another.begin(1));
    CHECK_FALSE(zero.look(1));
  }
  SECTION("it ends, and node 0 waits for another") {
    one.reset();
    CHECK(zero.look(0)->restart);
    CHECK_FALSE(zero.begin(1));
    CHECK(zero.missing() == "node 1");
    CHECK_FALSE(zero.look(1));
  }
  SECTION("it ends after all ranks have exited successfully") {
    zero.done(0);
    one->done(0);
    one.reset();
    CHECK_FALSE(zero.look(0));
  }
  SECTION("its registration ends while it waits") {
    store->erase("launch/node/1");
    CHECK_THROWS_AS(one->begin(1), DistributedError);
  }
}

TEST_CASE("all nodes see the first reported end of each attempt") {
  const auto store = memory_store();
  Launcher zero(store, node(0)), one(store, node(1));
  CHECK_FALSE(zero.look(0));
  const Ending first = one.end(0, {139, true, "node 1: rank 3 failed\nbadly"});
  CHECK(first.status == 139);
  const Ending second = zero.end(0, {1, false, "node 0: rank 0 lost rank 3"});
  CHECK(second.status == 139);
  CHECK(second.restart);
  CHECK(second.text == "node 1: rank 3 failed\nbadly");
  const auto seen = zero.look(0);
  REQUIRE(seen);
  CHECK(seen->text == first.text);
  CHECK_FALSE(zero.look(1));
  CHECK(zero.end(1, {130, false, ""}).status == 130);
  CHECK_FALSE(one.look(1)->restart);
}

TEST_CASE("the job is done when all nodes are done") {
  const auto store = memory_store();
  Launcher zero(store, node(0)), one(store, node(1));
  zero.done(0);
  CHECK_FALSE(zero.all_done(0));
  one.done(0);
  CHECK(zero.all_done(0));
  CHECK(one.all_done(0));
  CHECK_FALSE(zero.all_done(1));
}

TEST_CASE("count_left counts the nodes that know of the end and those that have left") {
  const auto store = memory_store();
  LaunchOptions o = node(0);
  o.nnodes = 3;
  Launcher zero(store, o), one(store, o), two(store, o);
  zero.end(0, {1, true, "first"});
  CHECK(one.look(0));
  CHECK(one.look(0));  // a node that looks twice must be counted once
  CHECK(zero.count_left().know == 2);
  zero.end(1, {1, false, "second"});
  CHECK(zero.count_left().know == 1);
  CHECK(one.look(1));
  zero.leave();
  CHECK(zero.count_left().know == 2);
  CHECK(zero.count_left().left == 1);
  one.leave();
  CHECK(zero.count_left().left == 2);
  CHECK(two.look(1));
  CHECK(zero.count_left().know == 3);
}

TEST_CASE("without node 0's store, this attempt has ended") {
  Launcher one(std::make_shared<GoneStore>(), node(1));
  const auto ending = one.look(0);
  REQUIRE(ending);
  CHECK(ending->status == 1);
  CHECK(ending->lost);
  CHECK_THAT(ending->text, ContainsSubstring("node 0 does not answer: connection refused"));
  CHECK(one.end(0, {5, true, "mine"}).text == "mine");
  CHECK_THROWS_AS(one.done(0), DistributedError);
}
