#pragma once
// How many ranks can divide units that stay together, such as heads.
#include <cstdint>

namespace tapestry::distributed {

/// True if ceil(units / ranks) units for each rank but the last leave it some.
inline bool all_have_some(std::int64_t units, int ranks) {
  return (units + ranks - 1) / ranks * (ranks - 1) < units;
}

}  // namespace tapestry::distributed
