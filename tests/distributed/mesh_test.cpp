// Tests meshes over ranks and over devices, seeds by coordinate, and the text of strategies.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "tapestry/distributed/mesh/internal/grid.h"
#include "tapestry/tapestry.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

using Axes = std::vector<AxisSize>;

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const ValueError& e) {
    return std::string("ValueError ") + e.what();
  } catch (const IndexError& e) {
    return std::string("IndexError ") + e.what();
  } catch (const std::exception& e) {
    return std::string("another error: ") + e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The coordinates of member m, the last axis fastest, without the code under test.
std::vector<int> place_of(const Axes& axes, int m) {
  std::vector<int> place;
  int stride = 1;
  for (const AxisSize& a : axes) stride *= a.size;
  for (const AxisSize& a : axes) {
    stride /= a.size;
    place.push_back(m / stride % a.size);
  }
  return place;
}

// The members that have the coordinates of `me` along all axes but those named.
std::vector<float> expected_line(const Axes& axes, const std::set<std::string>& joined, int me) {
  int members = 1;
  for (const AxisSize& a : axes) members *= a.size;
  std::vector<float> line;
  for (int m = 0; m < members; ++m) {
    bool in = true;
    for (std::size_t i = 0; i < axes.size(); ++i)
      in = in && (joined.contains(axes[i].name) || place_of(axes, m)[i] == place_of(axes, me)[i]);
    if (in) line.push_back(static_cast<float>(m));
  }
  return line;
}

// Gathers the members' numbers in the axis's group and compares them with those that should be there.
void check_line(const Axis& axis, int local, int me, const std::vector<float>& expected) {
  ProcessGroup& group = *axis.group(local);
  const auto size = static_cast<std::int64_t>(expected.size());
  require(axis.size() == size && group.size() == size, axis.name(), " has the size ", axis.size());
  require(axis.coordinate(local) == group.rank(), axis.name(), ": the coordinate is ", axis.coordinate(local),
          " and the rank ", group.rank());
  const Tensor all = empty({size}, DType::f32), mine = full({1}, me, DType::f32);
  group.all_gather(all, mine).wait();
  for (std::int64_t i = 0; i < size; ++i)
    require(all.data<float>()[i] == expected[static_cast<std::size_t>(i)], axis.name(), ": member ", i,
            " is ", all.data<float>()[i], ", expected ", expected[static_cast<std::size_t>(i)]);
  require(expected[static_cast<std::size_t>(axis.coordinate(local))] == static_cast<float>(me), "who I am");
}

struct Case {
  Axes axes;
  std::vector<std::vector<std::string>> views;
};
const std::vector<Case> kCases{
    {{{"pipeline", 2}, {"replicate", 2}, {"shard", 2}}, {{"replicate", "shard"}, {"pipeline", "shard"}, {}}},
    {{{"replicate", 1}, {"shard", 4}}, {{"replicate", "shard"}}},
    {{{"a", 3}, {"b", 2}}, {{"a", "b"}, {"a"}}},
    {{{"a", 2}, {"b", 1}, {"c", 3}}, {{"a", "b"}, {"b", "c"}}},
    {{{"only", 5}}, {{"only"}}},
    {{{"a", 1}, {"b", 1}}, {{"a", "b"}}},
    {{}, {{}}},
};
int members_of(const Axes& axes) {
  int members = 1;
  for (const AxisSize& a : axes) members *= a.size;
  return members;
}

}  // namespace

TEST_CASE("the groups of a mesh have the ranks whose coordinates differ along the axis alone") {
  for (const Transport& transport : transports())
    for (const Case& c : kCases) {
      if (transport.name != "local" && c.axes.size() != 3) continue;
      run_ranks_well(
          transport, members_of(c.axes),
          [&](const Group& world) {
            const int me = world->rank();
            Mesh mesh(world, c.axes);
            require(mesh.world() == world && mesh.axes() == c.axes && mesh.size() == world->size(),
                    "the world");
            require(mesh.coordinates(me) == place_of(c.axes, me), "coordinates");
            for (std::size_t i = 0; i < c.axes.size(); ++i) {
              const Axis axis = mesh[c.axes[i].name];
              require(axis.name() == c.axes[i].name && axis.locals() == 1 && !axis.over_devices() &&
                          axis.devices().empty() && axis.coordinate() == place_of(c.axes, me)[i],
                      "axis");
              check_line(axis, 0, me, expected_line(c.axes, {axis.name()}, me));
            }
            for (std::size_t v = 0; v < c.views.size(); ++v) {
              const std::string name = "view" + std::to_string(v);
              require(!mesh.has(name), "has() before view()");
              const Axis view = mesh.view(name, c.views[v]);
              require(mesh.has(name) && mesh[name].group() == view.group(), "has() after view()");
              check_line(view, 0, me, expected_line(c.axes, {c.views[v].begin(), c.views[v].end()}, me));
            }
          },
          kBounded);
    }
}

TEST_CASE("a size of -1 is what is left, and a group that exists is not made again") {
  run_ranks_well(
      transports()[0], 4,
      [](const Group& world) {
        Mesh mesh(world, {{"pipeline", 1}, {"replicate", -1}, {"shard", 2}});
        require(mesh.axes() == Axes{{"pipeline", 1}, {"replicate", 2}, {"shard", 2}}, "what is left");
        const auto calls = [&] { return world->recorder().records().size(); };
        const std::size_t before = calls();
        require(mesh.view("data", {"replicate", "shard"}).group() == world, "a view of all ranks");
        require(mesh.view("loss", {"data"}).group() == world, "a view of a view");
        require(mesh.view("inner", {"pipeline", "shard"}).group() == mesh["shard"].group(),
                "an axis of size 1");
        require(mesh.view("inner", {"shard"}).size() == 2, "the same axes again");
        require(mesh.view("none", {}).group() == mesh["pipeline"].group(), "groups of one");
        require(mesh.view("shard", {"shard"}).group() == mesh["shard"].group(), "an axis as its own view");
        const Tensor x = ones({2});
        mesh["pipeline"].group()->all_reduce(x).wait();
        require(x.data<float>()[1] == 1 && calls() == before, "an axis of size 1 communicates");
        Mesh one_axis(world, {{"shard", 4}, {"tensor", 1}});
        require(one_axis["shard"].group() == world && calls() == before + 2, "one axis of all ranks");
      },
      kBounded);
}

TEST_CASE("ranks are ordered by host before they are laid out, and the host of rank 0 comes first") {
  run_ranks_well(
      transports()[0], 4,
      [](const Group& world) {
        const int me = world->rank();
        // Names are in no order: rank 0 is on "b".
        Mesh mesh(world, {{"replicate", 2}, {"shard", 2}}, {.host = me % 2 == 0 ? "b" : "a"});
        const int mine = std::vector{0, 2, 1, 3}[static_cast<std::size_t>(me)];
        require(mesh.world()->rank() == mine && mesh.world()->size() == 4, "rank in the mesh");
        check_line(mesh["shard"], 0, me, me % 2 == 0 ? std::vector<float>{0, 2} : std::vector<float>{1, 3});
        check_line(mesh["replicate"], 0, me, me < 2 ? std::vector<float>{0, 1} : std::vector<float>{2, 3});
        check_line(mesh.view("data", {"replicate", "shard"}), 0, me, {0, 2, 1, 3});
        require(mesh.str() ==
                    "rank  given rank  host  replicate  shard  data\n"
                    "   0           0     b          0      0     0\n"
                    "   1           2     b          0      1     1\n"
                    "   2           1     a          1      0     2\n"
                    "   3           3     a          1      1     3\n",
                mesh.str());
        require(mesh.at(2) == "replicate=1 shard=0", mesh.at(2));
      },
      kBounded);
}

TEST_CASE("an axis inside the outermost one that crosses hosts has a warning") {
  using grid::host_warnings;
  const Axes axes{{"pipeline", 1}, {"replicate", 2}, {"shard", 3}};
  CHECK(host_warnings(axes, {"a", "a", "a", "b", "b", "b"}).empty());
  CHECK(host_warnings({{"shard", 2}}, {"a", "b"}).empty());
  CHECK(host_warnings(axes, {"a", "a", "b", "b", "c", "d"}) ==
        std::vector<std::string>{"[Mesh] the axis shard of pipeline=1 replicate=2 shard=3 crosses hosts: "
                                 "ranks 0-2 are on a and b. Its "
                                 "collectives wait for the network; choose sizes so that the axes inside "
                                 "replicate fit on one host"});
  const Axes three{{"p", 2}, {"r", 2}, {"s", 2}};
  CHECK(host_warnings(three, {"a", "a", "a", "a", "b", "b", "b", "b"}).empty());
  CHECK(host_warnings(three, {"a", "a", "b", "b", "c", "c", "d", "d"}).size() == 1);  // r
  CHECK(host_warnings(three, {"a", "b", "c", "d", "a", "b", "c", "d"}).size() == 2);
  CHECK_THAT(host_warnings({{"p", 2}, {"s", 4}}, {"a", "a", "a", "a", "b", "c", "d", "d"}).at(0),
             ContainsSubstring("ranks 4-7 are on b and c and others"));
}

TEST_CASE("a mesh that cannot be is the same error on all ranks, before any group is made") {
  const std::vector<std::pair<Axes, std::string>> bad{
      {{{"replicate", 3}, {"shard", 1}},
       "[Mesh] the sizes of replicate=3 shard=1 do not multiply to 4, the number of ranks"},
      {{{"a", 2}}, "[Mesh] the sizes of a=2 do not multiply to 4"},
      {{{"a", 8}}, "[Mesh] the sizes of a=8 do not multiply to 4"},
      {{{"a", 65536}, {"b", 65536}, {"c", 65536}, {"d", 65536}}, "do not multiply to 4"},
      {{{"a", 2147483647}, {"b", 2147483647}}, "do not multiply to 4"},
      {{}, "[Mesh] the sizes of no axis do not multiply to 4"},
      {{{"a", 3}, {"b", -1}}, "[Mesh] the sizes of a=3 b=-1 do not divide 4, the number of ranks"},
      {{{"a", 8}, {"b", -1}}, "do not divide 4"},
      {{{"a", -1}, {"b", -1}}, "[Mesh] two sizes are -1 in a=-1 b=-1"},
      {{{"a", 0}, {"b", 4}}, "[Mesh] the size of the axis a is 0; use at least 1, or -1"},
      {{{"a", -2}, {"b", -2}}, "[Mesh] the size of the axis a is -2"},
      {{{"", 4}}, "[Mesh] \"\" is not a name of an axis"},
      {{{"a b", 4}}, "[Mesh] \"a b\" is not a name"},
      {{{"a", 2}, {"a", 2}}, "[Mesh] the axis a occurs twice in a=2 a=2"},
  };
  std::vector<std::vector<std::string>> errors(4);
  run_ranks_well(
      transports()[0], 4,
      [&](const Group& world) {
        auto& mine = errors[static_cast<std::size_t>(world->rank())];
        for (const auto& [axes, text] : bad) mine.push_back(error_of([&] { Mesh(world, axes); }));
        // One rank passes other axes, one that is in error alone, or the same axes as -1.
        const bool other = world->rank() == 2;
        mine.push_back(error_of([&] {
          Mesh(world, {{"replicate", other ? 4 : 2}, {"shard", other ? 1 : 2}});
        }));
        mine.push_back(error_of([&] { Mesh(world, {{other ? "shard" : "replicate", 4}}); }));
        mine.push_back(error_of([&] { Mesh(world, {{"shard", other ? 3 : 4}}); }));
        mine.push_back(error_of([&] { Mesh(world, other ? Axes{} : Axes{{"shard", 4}}); }));
        mine.push_back(error_of([&] {
          Mesh(world, {{"shard", 4}}, {.devices = other ? std::vector<Device>{kCPU} : std::vector<Device>{}});
        }));
        mine.push_back(error_of([&] { Mesh(world, {{"shard", other ? -1 : 4}}); }));
        require(world->new_group({0, 1, 2, 3})->name() == "world.1", "a group was made");
      },
      kBounded);
  for (int r = 0; r < 4; ++r) CHECK(errors[static_cast<std::size_t>(r)] == errors[0]);
  for (std::size_t i = 0; i < bad.size(); ++i)
    CHECK_THAT(errors[0][i], ContainsSubstring("ValueError [Mesh] ") && ContainsSubstring(bad[i].second));
  const auto* const more = &errors[0][bad.size()];
  CHECK(more[0] ==
        "ValueError [Mesh] the ranks have different axes: ranks 0, 1, 3 have replicate=2 shard=2, rank 2 has "
        "replicate=4 shard=1; pass the same axes on every rank");
  CHECK_THAT(more[1], ContainsSubstring("rank 2 has shard=4"));
  CHECK_THAT(more[2], ContainsSubstring("rank 2 has shard=3"));
  CHECK_THAT(more[3], ContainsSubstring("rank 2 has no axes"));
  CHECK_THAT(more[4],
             ContainsSubstring("a world and devices were passed") && ContainsSubstring("(on rank 2)"));
  CHECK(more[5].empty());
  CHECK_THAT(error_of([] {
               Mesh(nullptr, {{"a", 1}});
             }),
             ContainsSubstring("ValueError [Mesh] there is no world"));
}

TEST_CASE("names that a mesh does not have, and views that cannot be") {
  run_ranks_well(
      transports()[0], 4,
      [](const Group& world) {
        Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
        const auto says = [&](const std::string& text, const std::function<void()>& fn) {
          const std::string error = error_of(fn);
          require(contains(error, text), "\"", error, "\" does not say \"", text, "\"");
        };
        says("ValueError [Mesh] there is no axis or view \"data\"; there are replicate, shard",
             [&] { mesh["data"]; });
        mesh.view("data", {"replicate", "shard"});
        says("there are replicate, shard, data", [&] { mesh["pipeline"]; });
        says("the view x joins \"pipeline\", which is not an axis; there are replicate, shard, data", [&] {
          mesh.view("x", {"pipeline", "shard"});
        });
        says(
            "names replicate after an axis that is inside it, or twice; the order of the mesh is replicate=2 "
            "shard=2",
            [&] {
              mesh.view("x", {"shard", "replicate"});
            });
        says("or twice", [&] { mesh.view("x", {"shard", "shard"}); });
        says("or twice", [&] { mesh.view("x", {"data", "shard"}); });
        says("the name data means other axes already", [&] { mesh.view("data", {"shard"}); });
        says("the name shard means other axes already", [&] { mesh.view("shard", {"replicate"}); });
        says("\"a=b\" is not a name of a view", [&] { mesh.view("a=b", {"shard"}); });
        says("IndexError [Mesh] there is no rank 4 in a mesh of 4", [&] { mesh.at(4); });
        says("IndexError [Mesh] there is no rank -1", [&] { mesh.coordinates(-1); });
        says("IndexError [Axis] there is no local member 1 along shard; this process has 1",
             [&] { mesh["shard"].group(1); });
        says("IndexError", [&] { mesh["shard"].coordinate(-1); });
        require(!mesh.has("x"), "a view that failed");
      },
      kBounded);
}

TEST_CASE("errors of collectives name the axis and the coordinates of the group") {
  const std::vector<Outcome> outcomes = run_ranks(
      transports()[0], 4,
      [](const Group& world) {
        const Mesh mesh(world, {{"pipeline", 1}, {"replicate", 2}, {"shard", 2}});
        const Axis axis = mesh["replicate"];
        if (world->rank() == 3) axis.group()->barrier().wait();
        else axis.group()->all_reduce(ones({2})).wait();
        world->barrier().wait();
      },
      kBounded);
  for (const Outcome& o : outcomes)
    CHECK_THAT(o.error, ContainsSubstring("the ranks of replicate(shard=1) are not in the same call"));
}

TEST_CASE("a handle to an axis works after its mesh and its world are gone") {
  for (const Transport& transport : transports())
    run_ranks_well(
        transport, 4,
        [](Group world) {
          const int me = world->rank();
          std::optional<Axis> shard, data;
          {
            Mesh mesh(world, {{"replicate", 2}, {"shard", 2}}, {.host = me % 2 == 0 ? "a" : "b"});
            shard = mesh["shard"];
            const Mesh copy = mesh;
            data = mesh.view("data", {"replicate", "shard"});
            require(copy.has("data"), "copies are one mesh");
          }
          const Axis copy = *shard;
          shard.reset();
          check_line(copy, 0, me, me % 2 == 0 ? std::vector<float>{0, 2} : std::vector<float>{1, 3});
          check_line(*data, 0, me, {0, 2, 1, 3});
        },
        kBounded);
}

TEST_CASE("split_group makes groups of ranks in the order given") {
  for (const Transport& transport : transports())
    run_ranks_well(
        transport, 5,
        [](const Group& world) {
          const auto me = static_cast<std::size_t>(world->rank());
          const Group part = world->split_group({{3, 0}, {1, 2}});
          require((part == nullptr) == (me == 4), "rank 4 is in no list");
          if (part) {
            require(part->rank() == std::vector{1, 0, 1, 0}[me] && part->size() == 2, "rank in its list");
            require(part->name() == (me == 0 || me == 3 ? "world.1[0]" : "world.1[1]"), part->name());
            const Tensor x = full({1}, static_cast<double>(me), DType::f32);
            part->all_reduce(x).wait();
            require(x.data<float>()[0] == 3, "the sum of ", me);
            part->store().set("key", "of " + std::to_string(me));
            part->barrier().wait();
            require(part->store().get("key", 1s) != "", "a store of its own");
          }
          const auto says = [&](const std::string& text, const std::function<void()>& fn) {
            const std::string error = error_of(fn);
            require(contains(error, text), "\"", error, "\" does not say \"", text, "\"");
          };
          says("ValueError [split_group] a rank appears twice in [0, 1] [1]", [&] {
            world->split_group({{0, 1}, {1}});
          });
          says("ValueError [split_group] the list of ranks is empty", [&] { world->split_group({{0}, {}}); });
          says("ValueError [split_group] there are no lists of ranks", [&] { world->split_group({}); });
          says("IndexError [split_group] rank 5 of a group of 5", [&] { world->split_group({{5}}); });
        },
        kBounded);
}

TEST_CASE("groups of the same ranks and name have stores, connections and call numbers of their own") {
  for (const Transport& transport : transports())
    run_ranks_well(
        transport, 4,
        [](const Group& world) {
          std::vector<Group> pairs;
          for (int i = 0; i < 2; ++i) pairs.push_back(world->split_group({{0, 1}, {2, 3}}, "pair"));
          for (int i = 0; i < 2; ++i)
            pairs.push_back(pairs[static_cast<std::size_t>(i)]->split_group({{0, 1}}, "pair"));
          std::vector<Tensor> sums;
          std::vector<Work> works;
          for (std::size_t i = 0; i < pairs.size(); ++i) {
            require(pairs[i]->name() == "pair", pairs[i]->name());
            if (pairs[i]->rank() == 0) pairs[i]->store().set("key", concat({i, " of ", world->rank()}));
            sums.push_back(full({1}, static_cast<double>(i + 1), DType::f32));
            works.push_back(pairs[i]->all_reduce(sums.back()));
          }
          world->barrier();
          for (std::size_t i = pairs.size(); i-- > 0;) {
            works[i].wait();
            require(sums[i].item() == 2.0 * static_cast<double>(i + 1), "the sum of pair ", i);
            require(pairs[i]->store().get("key", 1s) == concat({i, " of ", world->rank() / 2 * 2}), "pair ",
                    i, " has the key of another");
          }
          std::set<std::uint64_t> keys;
          for (const CollectiveRecord& record : world->recorder().records())
            if (record.op == Op::all_reduce) keys.insert(record.group_key);
          require(keys.size() == pairs.size(), "records of two pairs have one key");
        },
        kBounded);
}

TEST_CASE("child: a mesh over devices", "[.child]") {
  const Axes axes{{"replicate", 2}, {"shard", 2}};
  const std::vector<Device> devices{"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
  Mesh mesh(nullptr, axes, {.devices = devices, .groups = kBounded});
  CHECK(mesh.world() == nullptr);
  CHECK(mesh.size() == 4);
  const Axis data = mesh.view("data", {"replicate", "shard"});
  for (const Axis& axis : {mesh["replicate"], mesh["shard"], data}) {
    std::set<std::string> joined{axis.name()};
    if (axis.name() == "data") joined = {"replicate", "shard"};
    CHECK(axis.over_devices());
    REQUIRE(axis.locals() == 4);
    std::vector<std::string> errors(4);
    std::vector<std::thread> members;
    for (int local = 0; local < 4; ++local)
      members.emplace_back([&, local] {
        errors[static_cast<std::size_t>(local)] = error_of([&] {
          const std::vector<float> line = expected_line(axes, joined, local);
          check_line(axis, local, local, line);
          for (std::size_t i = 0; i < line.size(); ++i)
            require(axis.devices(local).at(i) == devices[static_cast<std::size_t>(line[i])], "device ", i);
        });
      });
    for (std::thread& member : members) member.join();
    CHECK(errors == std::vector<std::string>(4));
  }
  CHECK(mesh["shard"].group(2)->name() == "shard(replicate=1)");
  CHECK(mesh.at(1) == "replicate=0 shard=1");
  CHECK(mesh.str() ==
        "local  device  replicate  shard  data\n"
        "    0   cpu:0          0      0     0\n"
        "    1   cpu:1          0      1     1\n"
        "    2   cpu:2          1      0     2\n"
        "    3   cpu:3          1      1     3\n");
  CHECK(Mesh(nullptr, {{"replicate", -1}}, {.devices = {kCPU}})["replicate"].size() == 1);
  CHECK_THAT(error_of([&] {
               Mesh(nullptr, {{"shard", 3}}, {.devices = devices});
             }),
             ContainsSubstring("[Mesh] the sizes of shard=3 do not multiply to 4, the number of devices"));
  CHECK_THAT(error_of([&] {
               Mesh(nullptr, {{"shard", 2}}, {.devices = {kCPU, kCPU}});
             }),
             ContainsSubstring("[Mesh] cpu:0 is named twice"));
  CHECK_THROWS_AS(Mesh(nullptr, {{"shard", 1}}, {.devices = {"cpu:9"}}), DeviceError);
}
TEST_CASE("a mesh over the devices of one process has a group for each of them") {
  const ChildResult child = run_child("child: a mesh over devices", "TAPESTRY_LOGICAL_DEVICES=4");
  INFO(child.output);
  CHECK(child.status == 0);
}

TEST_CASE("seeds follow the data and the stage, and not the other axes") {
  constexpr std::uint64_t seed = 42;
  const auto seeds = [](const Axes& axes) {
    std::vector<std::uint64_t> all;
    run_local_ranks(members_of(axes), [&](const Group& world) {
      const Mesh mesh(world, axes);
      if (world->rank() != 0) return;
      for (int r = 0; r < world->size(); ++r) all.push_back(coordinate_seed(mesh, seed, r));
    });
    return all;
  };
  std::vector<std::uint64_t> by_rank;
  for (int r = 0; r < 4; ++r) by_rank.push_back(rank_seed(seed, r));
  CHECK(seeds({{"replicate", 4}}) == by_rank);
  CHECK(seeds({{"shard", 4}}) == by_rank);
  CHECK(seeds({{"replicate", 2}, {"shard", 2}}) == by_rank);
  CHECK(seeds({{"pipeline", 1}, {"shard", 4}}) == by_rank);
  CHECK(seeds({}) == std::vector<std::uint64_t>{seed});
  CHECK(seeds({{"pipeline", 3}}) == std::vector<std::uint64_t>{seed, rank_seed(seed, 1), rank_seed(seed, 2)});
  CHECK(seeds({{"shard", 2}, {"tensor", 2}}) ==
        std::vector<std::uint64_t>{by_rank[0], by_rank[0], by_rank[1], by_rank[1]});
  CHECK(seeds({{"pipeline", 2}, {"replicate", 2}, {"tensor", 2}}) ==
        std::vector<std::uint64_t>{by_rank[0], by_rank[0], by_rank[1], by_rank[1], rank_seed(by_rank[0], 1),
                                   rank_seed(by_rank[0], 1), rank_seed(by_rank[1], 1),
                                   rank_seed(by_rank[1], 1)});
}

TEST_CASE("the text of a strategy is read, and written in one order") {
  using Options = std::map<std::string, std::string>;
  const auto parse = parse_strategy;
  CHECK(parse("replicate=4:zero=2") == std::vector<AxisSpec>{{"replicate", 4, Options{{"zero", "2"}}}});
  CHECK(parse(" shard = -1 , pipeline = 2 : schedule = 1f1b ") ==
        std::vector<AxisSpec>{{"pipeline", 2, Options{{"schedule", "1f1b"}}}, {"shard", -1}});
  CHECK(parse("replicate=2:devices") == std::vector<AxisSpec>{{"replicate", 2, Options{{"devices", ""}}}});
  CHECK(to_string(parse("tensor=2,context=2,shard=3,replicate=1:zero=1:bucket=2.5:devices,pipeline=2")) ==
        "pipeline=2,replicate=1:bucket=2.5:devices:zero=1,shard=3,context=2,tensor=2");
  CHECK(to_string({}) == "single");
  CHECK(parse("single").empty());
  CHECK(parse("none").empty());
  for (const StrategyAlias& alias : strategy_aliases()) {
    const std::vector<AxisSpec> axes = parse(alias.name);
    CHECK(to_string(axes) == (*alias.text ? alias.text : "single"));
    CHECK(parse(to_string(axes)) == axes);
  }

  const std::vector<std::pair<std::string, std::string>> bad{
      {"", "the text is empty; write axes, such as replicate=2, or a short name: single, none, ddp,"},
      {"  ", "the text is empty"},
      {"row=2",
       "there is no axis \"row\"; the axes are pipeline, replicate, shard, expert, context, tensor, and the "},
      {"DDP", "there is no axis \"DDP\""},
      {"replicate", "the axis replicate has no size; write replicate=SIZE, or replicate=-1"},
      {"replicate:zero=1", "the axis replicate has no size"},
      {"replicate=", "the size of the axis replicate is \"\"; write a number"},
      {"replicate=two", "the size of the axis replicate is \"two\""},
      {"replicate=2x", "is \"2x\""},
      {"replicate=+2", "is \"+2\""},
      {"replicate=2=3", "is \"2=3\""},
      {"replicate=99999999999", "is \"99999999999\"; write a number from 1 to 2147483647"},
      {"replicate=0", "the size of the axis replicate is 0; write a number from 1, or -1"},
      {"replicate=-2", "is -2"},
      {"replicate=2,replicate=2", "the axis replicate occurs twice"},
      {"replicate=2:zero", "the option zero of the axis replicate has no value; write zero=VALUE"},
      {"replicate=2:zero=", "the option \"zero\" of the axis replicate has no value"},
      {"replicate=2:zero=1=2", "has the value \"1=2\""},
      {"replicate=2:zero=a b", "has the value \"a b\""},
      {"replicate=2:devices=3", "the option devices of the axis replicate takes no value, but has \"3\""},
      {"replicate=2:zero=1:zero=1", "the option zero of the axis replicate occurs twice"},
      {"replicate=2:", "\"\" is not an option of the axis replicate"},
      {"replicate=2:=1", "\"\" is not an option"},
      {"replicate=2,", "there is no axis \"\""},
      {",", "there is no axis \"\""},
      {"ddp,pipeline=2", "ddp in \"ddp\" is a short name, which stands alone; it means replicate=-1"},
      {"fsdp:zero=1", "fsdp in \"fsdp:zero=1\" is a short name, which stands alone; it means shard=-1"},
      {"single,shard=2", "it means no axes"},
      {"pipeline:schedule=1f1b", "the axis pipeline has no size"},
  };
  for (const auto& [text, error] : bad) {
    INFO(text);
    CHECK_THAT(error_of([&] { parse_strategy(text); }),
               ContainsSubstring("ValueError [parse_strategy] ") && ContainsSubstring(error));
  }
  CHECK_THAT(error_of([] {
               to_string({{"row", 2}});
             }),
             ContainsSubstring("[to_string] there is no axis \"row\""));
  CHECK_THAT(error_of([] { to_string({{"shard", 2}, {"shard", 2}}); }), ContainsSubstring("occurs twice"));
  CHECK_THAT(error_of([] {
               to_string({{"shard", 2, {{"a,b", "1"}}}});
             }),
             ContainsSubstring("\"a,b\" is not an option"));
}

TEST_CASE("any text is either refused or means the axes of its canonical text") {
  const std::vector<std::string> pieces{"pipeline", "replicate",
                                        "shard",    "tensor",
                                        "zero",     "devices",
                                        "schedule", "ddp",
                                        "1f1b",     "=",
                                        "=",        "=",
                                        ":",        ":",
                                        ",",        "1",
                                        "2",        "-1",
                                        "0",        " ",
                                        "x",        std::string(1, '\0'),
                                        "\xff",     "\n"};
  std::mt19937 random(20261129);
  const auto draw = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  int good = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    if (i % 2 == 0) {
      for (std::size_t n = draw(12); n > 0; --n) text += pieces[draw(pieces.size())];
    } else {  // a valid text with one piece replaced
      std::vector<std::string> parts{"shard", "=", "2", ":", "a", "=", "b", ",", "pipeline", "=", "-1"};
      parts[draw(parts.size())] = pieces[draw(pieces.size())];
      for (const std::string& part : parts) text += part;
    }
    std::vector<AxisSpec> axes;
    try {
      axes = parse_strategy(text);
    } catch (const ValueError&) {
      continue;
    }
    ++good;
    const std::string canonical = to_string(axes);
    if (parse_strategy(canonical) != axes || to_string(parse_strategy(canonical)) != canonical)
      FAIL_CHECK(text);
  }
  CHECK(good > 1000);
}
