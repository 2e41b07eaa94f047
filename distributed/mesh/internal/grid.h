#pragma once
// Which member of a mesh has which coordinates, as pure functions of sizes and names of hosts. Members are
// numbered in the order of the mesh.
#include <cstddef>
#include <string>
#include <vector>

#include "tapestry/distributed/mesh/mesh.h"

namespace tapestry::distributed::grid {

/// True for letters, digits and underscores.
bool is_name(const std::string& text);

/// Replaces a size of -1. Throws ValueError unless the axes are valid and their sizes multiply to `members`.
/// `what` names the members: "ranks".
std::vector<AxisSize> resolve(std::vector<AxisSize> axes, int members, const char* what);
/// "pipeline=2 shard=4"
std::string text(const std::vector<AxisSize>& axes);
/// "pipeline=1 shard=3"
std::string text(const std::vector<AxisSize>& axes, const std::vector<int>& coordinates);

std::vector<int> coordinates(const std::vector<AxisSize>& axes, int member);
/// The member's place along the joined axes (indices, ascending) together, the last one fastest.
int joint(const std::vector<AxisSize>& axes, const std::vector<std::size_t>& joined, int member);

/// Lists of members whose coordinates differ along the joined axes alone. Every member is in one list, at its
/// joint() coordinate.
std::vector<std::vector<int>> lines(const std::vector<AxisSize>& axes,
                                    const std::vector<std::size_t>& joined);
/// The name of such a list's group: "shard(pipeline=1)" has the member's coordinates along the axes that
/// `name` does not join and whose size is not 1.
std::string line_name(const std::string& name, const std::vector<AxisSize>& axes,
                      const std::vector<std::size_t>& joined, int member);

/// Ranks by host, then by rank. Hosts are in the order of their first ranks.
std::vector<int> order_by_host(const std::vector<std::string>& hosts);

/// Warnings for axes whose groups have ranks of several hosts. The outermost axis whose size is not 1 may
/// have such groups without a warning. `hosts` is by member.
std::vector<std::string> host_warnings(const std::vector<AxisSize>& axes,
                                       const std::vector<std::string>& hosts);

/// The columns below their titles: numbers and texts are aligned on the right.
std::string table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows);

}  // namespace tapestry::distributed::grid
