#include "tapestry/distributed/mesh/mesh.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/descriptor.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/replica_groups.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/mesh/internal/grid.h"

namespace tapestry::distributed {
namespace {

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;  // by local member

// The groups along some axes. They exist from the start, or the first use makes them.
class LineGroups {
 public:
  explicit LineGroups(Groups groups) : groups_(std::move(groups)) {}
  explicit LineGroups(std::function<Groups()> make) : make_(std::move(make)) {}

  const std::shared_ptr<ProcessGroup>& at(int local) {
    const std::lock_guard lock(mutex_);
    if (groups_.empty()) groups_ = make_();
    return groups_.at(static_cast<std::size_t>(local));
  }

 private:
  std::mutex mutex_;
  const std::function<Groups()> make_;
  Groups groups_;
};

// What each rank tells the others before groups are made.
struct Rank {
  std::string axes, error, host, machine;
};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::vector<Rank> exchange(ProcessGroup& world, const Rank& mine) {
  const std::string own = concat({one_line(mine.axes), "\n", one_line(mine.error), "\n", one_line(mine.host),
                                  "\n", one_line(mine.machine)});
  std::vector<Rank> ranks;
  for (const std::string& text : all_gather_text(world, own, "mesh")) {
    Rank& rank = ranks.emplace_back();
    std::size_t begin = 0;
    for (std::string* const field : {&rank.axes, &rank.error, &rank.host, &rank.machine}) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      *field = text.substr(begin, end - begin);
      begin = std::min(end + 1, text.size());
    }
  }
  return ranks;
}

// Throws ValueError on all ranks, with the same text, if one of them passed other or invalid axes.
void check_same(const std::vector<Rank>& ranks) {
  std::map<std::string, std::vector<int>> by_axes;
  for (std::size_t r = 0; r < ranks.size(); ++r) by_axes[ranks[r].axes].push_back(static_cast<int>(r));
  std::string parties;
  for (const auto& [axes, members] : by_axes)
    parties += concat({parties.empty() ? "" : ", ", rank_list(members),
                       members.size() == 1 ? " has " : " have ", axes.empty() ? "no axes" : axes});
  check(by_axes.size() == 1, "[Mesh] the ranks have different axes: ", parties,
        "; pass the same axes on every rank");
  const auto bad = std::find_if(ranks.begin(), ranks.end(), [](const Rank& r) { return !r.error.empty(); });
  if (bad == ranks.end()) return;
  const bool all =
      std::all_of(ranks.begin(), ranks.end(), [&](const Rank& r) { return r.error == bad->error; });
  fail(bad->error, all ? "" : concat({" (on rank ", bad - ranks.begin(), ")"}));
}

// The host of each rank. Hosts with one name, such as containers of two machines, get a part of the machine's
// identity too.
std::vector<std::string> host_labels(const std::vector<Rank>& ranks) {
  std::vector<std::string> labels;
  for (const Rank& rank : ranks) {
    const bool ambiguous = std::any_of(ranks.begin(), ranks.end(), [&](const Rank& other) {
      return other.host == rank.host && other.machine != rank.machine;
    });
    labels.push_back(ambiguous ? rank.host + "/" + rank.machine : rank.host);
  }
  return labels;
}

}  // namespace

struct Axis::State {
  std::string name;
  int size = 1;
  bool over_devices = false;
  std::vector<int> coordinates;              // by local member
  std::vector<std::vector<Device>> devices;  // by local member: those along the axis
  std::shared_ptr<LineGroups> groups;
};

const Axis::State& Axis::at(int local) const {
  check<IndexError>(local >= 0 && local < locals(), "[Axis] there is no local member ", local, " along ",
                    name(), "; this process has ", locals(), ", numbered from 0");
  return *state_;
}

const std::string& Axis::name() const { return state_->name; }
int Axis::size() const { return state_->size; }
int Axis::locals() const { return static_cast<int>(state_->coordinates.size()); }
int Axis::coordinate(int local) const { return at(local).coordinates[static_cast<std::size_t>(local)]; }
bool Axis::over_devices() const { return state_->over_devices; }
const std::shared_ptr<ProcessGroup>& Axis::group(int local) const { return at(local).groups->at(local); }
const std::vector<Device>& Axis::devices(int local) const {
  return at(local).devices[static_cast<std::size_t>(local)];
}

struct Mesh::State {
  using Joined = std::vector<std::size_t>;  // indices of axes, ascending

  std::shared_ptr<ProcessGroup> world;
  MeshOptions options;
  std::vector<AxisSize> axes;
  std::vector<std::string> places;  // by member: its host, or its device
  std::vector<int> order;           // by member: its rank in the world that was given
  std::map<std::string, std::pair<Joined, Axis>, std::less<>> named;
  std::map<Joined, std::shared_ptr<LineGroups>> groups;  // by the axes whose size is not 1

  int size() const { return static_cast<int>(places.size()); }
  int locals() const { return world ? 1 : size(); }
  int member(int local) const { return world ? world->rank() : local; }

  bool is_axis(const std::string& name) const {
    return std::any_of(axes.begin(), axes.end(), [&](const AxisSize& a) { return a.name == name; });
  }
  std::vector<std::string> views() const {
    std::vector<std::string> all;
    for (const auto& [name, view] : named)
      if (!is_axis(name)) all.push_back(name);
    return all;
  }
  std::string names() const {
    std::string all;
    for (const AxisSize& a : axes) all += (all.empty() ? "" : ", ") + a.name;
    for (const std::string& view : views()) all += (all.empty() ? "" : ", ") + view;
    return all.empty() ? "none" : all;
  }

  Joined without_ones(Joined joined) const {
    std::erase_if(joined, [&](std::size_t i) { return axes[i].size == 1; });
    return joined;
  }

  // Collective over ranks, if groups have to be made.
  std::shared_ptr<LineGroups> groups_along(const std::string& name, const Joined& all) {
    const Joined joined = without_ones(all);
    std::shared_ptr<LineGroups>& made = groups[joined];
    if (made) return made;
    const auto lines = grid::lines(axes, joined);
    if (!world) {
      made = std::make_shared<LineGroups>([name, joined, lines, all_axes = axes, devices = options.devices,
                                           backend = options.backend, group_options = options.groups] {
        Groups by_local(devices.size());
        for (const std::vector<int>& line : lines) {
          std::vector<Device> own;
          for (const int m : line) own.push_back(devices[static_cast<std::size_t>(m)]);
          const ReplicaGroups ranks = make_replica_groups(own, backend, group_options,
                                                          grid::line_name(name, all_axes, joined, line[0]));
          for (std::size_t i = 0; i < line.size(); ++i)
            by_local[static_cast<std::size_t>(line[i])] = ranks[i];
        }
        return by_local;
      });
    } else if (lines.size() == 1) {
      made = std::make_shared<LineGroups>(Groups{world});
    } else if (joined.empty()) {
      GroupOptions alone = options.groups;
      alone.timeout = world->timeout();
      made = std::make_shared<LineGroups>([alone] {
        return Groups{make_process_group(local_backends(1)[0], memory_store(), alone, "one rank")};
      });
    } else {
      made = std::make_shared<LineGroups>(
          Groups{world->split_group(lines, grid::line_name(name, axes, joined, world->rank()))});
    }
    return made;
  }

  const Axis& add(const std::string& name, const Joined& joined) {
    auto state = std::make_shared<Axis::State>();
    state->name = name;
    state->over_devices = !world;
    for (const std::size_t i : joined) state->size *= axes[i].size;
    state->groups = groups_along(name, joined);
    for (int local = 0; local < locals(); ++local) {
      state->coordinates.push_back(grid::joint(axes, joined, member(local)));
      state->devices.emplace_back();
    }
    for (const std::vector<int>& line : grid::lines(axes, joined))
      for (const int m : line)
        for (const int other : line)
          if (!world)
            state->devices[static_cast<std::size_t>(m)].push_back(
                options.devices[static_cast<std::size_t>(other)]);
    return named.insert_or_assign(name, std::pair(joined, Axis(std::move(state)))).first->second.second;
  }
};

Mesh::Mesh(std::shared_ptr<ProcessGroup> world, std::vector<AxisSize> axes, MeshOptions options)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.options = std::move(options);
  const std::vector<Device>& devices = s.options.devices;
  check(world || !devices.empty(), "[Mesh] there is no world and there are no devices; pass one of them");
  if (!world) {
    check_replica_devices("Mesh", devices);
    s.axes = grid::resolve(std::move(axes), static_cast<int>(devices.size()), "devices");
    for (const Device d : devices) s.places.push_back(d.str());
  } else {
    Rank mine{.axes = grid::text(axes),
              .host = s.options.host.empty() ? host_name() : s.options.host,
              .machine = s.options.host.empty() ? machine_id() : ""};
    try {
      check(devices.empty(), "[Mesh] a world and devices were passed; a mesh is over ranks or over devices");
      s.axes = grid::resolve(std::move(axes), world->size(), "ranks");
      mine.axes = grid::text(s.axes);
    } catch (const ValueError& e) {
      mine.error = e.what();
    }
    const std::vector<Rank> ranks = exchange(*world, mine);
    check_same(ranks);
    const std::vector<std::string> hosts = host_labels(ranks);
    s.order = grid::order_by_host(hosts);
    for (const int rank : s.order) s.places.push_back(hosts[static_cast<std::size_t>(rank)]);
    if (world->rank() == 0)
      for (const std::string& warning : grid::host_warnings(s.axes, s.places))
        std::fprintf(stderr, "tapestry: warning: %s\n", warning.c_str());
    const bool in_order = std::is_sorted(s.order.begin(), s.order.end());
    s.world = in_order ? std::move(world) : world->split_group({s.order}, "mesh");
  }
  for (std::size_t i = 0; i < s.axes.size(); ++i) s.add(s.axes[i].name, {i});
}

Axis Mesh::operator[](std::string_view axis_or_view) const {
  const auto found = state_->named.find(axis_or_view);
  check(found != state_->named.end(), "[Mesh] there is no axis or view \"", axis_or_view, "\"; there are ",
        state_->names());
  return found->second.second;
}

bool Mesh::has(std::string_view axis_or_view) const { return state_->named.contains(axis_or_view); }

Axis Mesh::view(std::string name, const std::vector<std::string>& axes) {
  State& s = *state_;
  check(grid::is_name(name), "[Mesh] \"", name,
        "\" is not a name of a view; use letters, digits and underscores");
  State::Joined joined;
  for (const std::string& axis : axes) {
    const auto found = s.named.find(axis);
    check(found != s.named.end(), "[Mesh] the view ", name, " joins \"", axis,
          "\", which is not an axis; there are ", s.names());
    for (const std::size_t i : found->second.first) {
      check(joined.empty() || joined.back() < i, "[Mesh] the view ", name, " names ", axis,
            " after an axis that is inside it, or twice; the order of the mesh is ", grid::text(s.axes));
      joined.push_back(i);
    }
  }
  if (const auto found = s.named.find(name); found != s.named.end()) {
    check(s.without_ones(found->second.first) == s.without_ones(joined), "[Mesh] the name ", name,
          " means other axes already; choose another name for the view");
    return found->second.second;
  }
  return s.add(name, joined);
}

const std::vector<AxisSize>& Mesh::axes() const { return state_->axes; }
int Mesh::size() const { return state_->size(); }
const std::shared_ptr<ProcessGroup>& Mesh::world() const { return state_->world; }

std::vector<int> Mesh::coordinates(int rank) const {
  check<IndexError>(rank >= 0 && rank < size(), "[Mesh] there is no rank ", rank, " in a mesh of ", size(),
                    "; ranks count from 0");
  return grid::coordinates(axes(), rank);
}

std::string Mesh::at(int rank) const { return grid::text(axes(), coordinates(rank)); }

std::string Mesh::str() const {
  const State& s = *state_;
  const bool reordered = !std::is_sorted(s.order.begin(), s.order.end());
  const std::vector<std::string> views = s.views();
  std::vector<std::string> titles{s.world ? "rank" : "local"};
  if (reordered) titles.emplace_back("given rank");
  titles.emplace_back(s.world ? "host" : "device");
  for (const AxisSize& a : s.axes) titles.push_back(a.name);
  titles.insert(titles.end(), views.begin(), views.end());
  std::vector<std::vector<std::string>> rows;
  for (int member = 0; member < s.size(); ++member) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(std::to_string(member));
    if (reordered) row.push_back(std::to_string(s.order[static_cast<std::size_t>(member)]));
    row.push_back(s.places[static_cast<std::size_t>(member)]);
    for (const int c : grid::coordinates(s.axes, member)) row.push_back(std::to_string(c));
    for (const std::string& view : views)
      row.push_back(std::to_string(grid::joint(s.axes, s.named.at(view).first, member)));
  }
  return grid::table(titles, rows);
}

}  // namespace tapestry::distributed
