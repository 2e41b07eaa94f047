#include "tapestry/distributed/comm/internal/missing_ranks.h"

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/deadline.h"

namespace tapestry::distributed {
namespace {

constexpr int kNamed = 16;
constexpr Milliseconds kLongest{500};

}  // namespace

std::string missing_ranks(int first, int size, const std::function<bool(int)>& came) {
  const Deadline deadline = deadline_after(kLongest);
  std::string names;
  int named = 0;
  for (int rank = first; rank < size; ++rank) {
    if (named == kNamed || Clock::now() >= deadline) return names.empty() ? names : names + " and more";
    if (came(rank)) continue;
    names += concat({named++ == 0 ? "" : ", ", rank});
  }
  return names;
}

}  // namespace tapestry::distributed
