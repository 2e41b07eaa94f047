#include "tapestry/distributed/comm/internal/rendezvous.h"

#include <unistd.h>

#include <cstdint>
#include <string>

#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/missing_ranks.h"
#include "tapestry/distributed/comm/internal/sha256.h"

namespace tapestry::distributed {
namespace {

constexpr char kEnd = '\n';

/// Identifies this process: a line that error messages show, followed by random bytes that no other process
/// has.
std::string this_process() {
  return concat({"process ", ::getpid(), " on ", host_name()}) + kEnd + random_bytes(16);
}

std::string rank_key(int rank) { return concat({"rank/", rank}); }

/// "3 of 5 ranks did not come (1, 3, 4)". The store counts the ranks that came, so that a large world needs
/// no request per rank.
std::string absence(Store& store, int size) {
  const std::int64_t missing = size - store.add("arrived", 0);
  const std::string names =
      missing_ranks(0, size, [&](int rank) { return store.try_get(rank_key(rank)).has_value(); });
  return concat({missing, " of ", size, " ranks did not come", names.empty() ? "" : " (" + names + ")"});
}

}  // namespace

void rendezvous(Store& store, int rank, int size, Milliseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  // The outcome is shared by all ranks: the empty text means success. The first outcome that is set stays.
  const auto fail_all = [&](const std::string& text) {
    store.compare_set("outcome", std::nullopt, text);
    fail<DistributedError>(text);
  };

  const std::string sizes = store.compare_set("size", std::nullopt, std::to_string(size));
  if (sizes != std::to_string(size))
    fail_all(concat({"[init_process_group] rank ", rank, " has a world size of ", size, ", other ranks have ",
                     sizes, "; give all ranks the same WORLD_SIZE"}));

  const std::string self = this_process();
  const std::string holder = store.compare_set(rank_key(rank), std::nullopt, self);
  if (holder != self)
    fail_all(concat({"[init_process_group] two processes have rank ", rank, ": ",
                     holder.substr(0, holder.find(kEnd)), " and ", self.substr(0, self.find(kEnd)), " (at ",
                     store.str(), "); give each process its own RANK, and each job its own port or file"}));

  if (store.add("arrived", 1) == size) store.compare_set("outcome", std::nullopt, "");
  std::string outcome;
  try {
    outcome = store.get("outcome", left_until(deadline));
  } catch (const TimeoutError&) {
    fail<TimeoutError>(
        "[init_process_group] ", absence(store, size), " within ", timeout.count(), " ms at ", store.str(),
        "; check that their processes have started, with the same MASTER_ADDR and MASTER_PORT");
  }
  check<DistributedError>(outcome.empty(), outcome);
}

}  // namespace tapestry::distributed
