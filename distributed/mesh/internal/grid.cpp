#include "tapestry/distributed/mesh/internal/grid.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/descriptor.h"

namespace tapestry::distributed::grid {
bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

std::string text(const std::vector<AxisSize>& axes) {
  std::string all;
  for (const AxisSize& a : axes) all += concat({all.empty() ? "" : " ", a.name, "=", a.size});
  return all;
}

std::string text(const std::vector<AxisSize>& axes, const std::vector<int>& coordinates) {
  std::vector<AxisSize> place;
  for (std::size_t i = 0; i < axes.size(); ++i) place.push_back({axes[i].name, coordinates[i]});
  return text(place);
}

std::vector<AxisSize> resolve(std::vector<AxisSize> axes, int members, const char* what) {
  std::set<std::string> names;
  AxisSize* rest = nullptr;
  for (AxisSize& a : axes) {
    check(is_name(a.name), "[Mesh] \"", a.name,
          "\" is not a name of an axis; use letters, digits and underscores");
    check(names.insert(a.name).second, "[Mesh] the axis ", a.name, " occurs twice in ", text(axes),
          "; name each axis once");
    check(a.size >= 1 || a.size == -1, "[Mesh] the size of the axis ", a.name, " is ", a.size,
          "; use at least 1, or -1 for the ", what, " that are left");
    if (a.size != -1) continue;
    check(!rest, "[Mesh] two sizes are -1 in ", text(axes), "; only one of them can be what is left");
    rest = &a;
  }
  // Sizes are divided out one by one, so that their product, which may overflow, is not needed.
  int left = members;
  bool fits = true;
  for (const AxisSize& a : axes) {
    if (a.size == -1) continue;
    fits = fits && left % a.size == 0;
    left /= a.size;
  }
  if (rest && fits) rest->size = std::exchange(left, 1);
  check(fits && left == 1, "[Mesh] the sizes of ", axes.empty() ? "no axis" : text(axes),
        rest ? " do not divide " : " do not multiply to ", members, ", the number of ", what,
        "; choose other sizes, or another number of ", what);
  return axes;
}

std::vector<int> coordinates(const std::vector<AxisSize>& axes, int member) {
  std::vector<int> place(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    place[i] = member % axes[i].size;
    member /= axes[i].size;
  }
  return place;
}

int joint(const std::vector<AxisSize>& axes, const std::vector<std::size_t>& joined, int member) {
  const std::vector<int> place = coordinates(axes, member);
  int at = 0;
  for (const std::size_t i : joined) at = at * axes[i].size + place[i];
  return at;
}

std::vector<std::vector<int>> lines(const std::vector<AxisSize>& axes,
                                    const std::vector<std::size_t>& joined) {
  int members = 1, length = 1;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    members *= axes[i].size;
    if (std::find(joined.begin(), joined.end(), i) != joined.end()) length *= axes[i].size;
    else others.push_back(i);
  }
  // The joint coordinate ascends with the number of the member, so members are appended in their order.
  std::vector<std::vector<int>> all(static_cast<std::size_t>(members / length));
  for (int m = 0; m < members; ++m) all[static_cast<std::size_t>(joint(axes, others, m))].push_back(m);
  return all;
}

std::string line_name(const std::string& name, const std::vector<AxisSize>& axes,
                      const std::vector<std::size_t>& joined, int member) {
  const std::vector<int> place = coordinates(axes, member);
  std::vector<AxisSize> others;
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].size > 1 && std::find(joined.begin(), joined.end(), i) == joined.end())
      others.push_back({axes[i].name, place[i]});
  return others.empty() ? name : concat({name, "(", text(others), ")"});
}

std::vector<int> order_by_host(const std::vector<std::string>& hosts) {
  const auto first_of = [&](int rank) {
    return std::find(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(rank)]) - hosts.begin();
  };
  std::vector<int> order(hosts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return first_of(a) < first_of(b); });
  return order;
}

std::vector<std::string> host_warnings(const std::vector<AxisSize>& axes,
                                       const std::vector<std::string>& hosts) {
  std::vector<std::string> warnings;
  const AxisSize* outermost = nullptr;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].size == 1) continue;
    if (!outermost) {
      outermost = &axes[i];
      continue;
    }
    for (const std::vector<int>& line : lines(axes, {i})) {
      std::vector<std::string> several;
      for (const int m : line) {
        const std::string& host = hosts[static_cast<std::size_t>(m)];
        if (std::find(several.begin(), several.end(), host) == several.end()) several.push_back(host);
      }
      if (several.size() == 1) continue;
      warnings.push_back(
          concat({"[Mesh] the axis ", axes[i].name, " of ", text(axes), " crosses hosts: ", rank_list(line),
                  " are on ", several[0], " and ", several[1], several.size() > 2 ? " and others" : "",
                  ". Its collectives wait for the network; choose sizes so that the axes inside ",
                  outermost->name, " fit on one host"}));
      break;
    }
  }
  return warnings;
}

std::string table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < titles.size(); ++c) {
    widths.push_back(titles[c].size());
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string all;
  const auto add = [&](const std::vector<std::string>& row) {
    for (std::size_t c = 0; c < row.size(); ++c)
      all += std::string(widths[c] - row[c].size() + (c == 0 ? 0 : 2), ' ') + row[c];
    all += '\n';
  };
  add(titles);
  for (const auto& row : rows) add(row);
  return all;
}

}  // namespace tapestry::distributed::grid
