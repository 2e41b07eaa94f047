#include "tapestry/distributed/comm/internal/rendezvous.h"

#include <unistd.h>

#include <string>

#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/sha256.h"

namespace tapestry::distributed {
namespace {

constexpr int kNamed = 16;  // ranks in a message
constexpr char kEnd = '\n';

/// For a message, and then what no other process has.
std::string this_process() {
  return concat({"process ", ::getpid(), " on ", host_name()}) + kEnd + random_bytes(16);
}

std::string rank_key(int rank) { return concat({"rank/", rank}); }

std::string missing_ranks(Store& store, int size) {
  std::string ranks;
  int missing = 0;
  for (int r = 0; r < size; ++r) {
    if (store.try_get(rank_key(r))) continue;
    if (missing++ < kNamed) ranks += concat({missing == 1 ? "" : ", ", r});
  }
  if (missing > kNamed) ranks += concat({" and ", missing - kNamed, " more"});
  return concat({missing, " of ", size, " ranks did not come (", ranks, ")"});
}

}  // namespace

void rendezvous(Store& store, int rank, int size, Milliseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  // The outcome for all: no text if all is well. What is set first stays.
  const auto fail_all = [&](const std::string& text) {
    store.compare_set("outcome", std::nullopt, text);
    fail<DistributedError>(text);
  };

  const std::string sizes = store.compare_set("size", std::nullopt, std::to_string(size));
  if (sizes != std::to_string(size))
    fail_all(concat({"[init_process_group] rank ", rank, " says that there are ", size, " ranks, others say ",
                     sizes, "; give all the same WORLD_SIZE"}));

  const std::string self = this_process();
  const std::string holder = store.compare_set(rank_key(rank), std::nullopt, self);
  if (holder != self)
    fail_all(
        concat({"[init_process_group] two processes say that they are rank ", rank, ": ",
                holder.substr(0, holder.find(kEnd)), ", and then ", self.substr(0, self.find(kEnd)), " (at ",
                store.str(), "); give each a RANK of its own, and each job a port or file of its own"}));

  if (store.add("arrived", 1) == size) store.compare_set("outcome", std::nullopt, "");
  std::string outcome;
  try {
    outcome = store.get("outcome", left_until(deadline));
  } catch (const TimeoutError&) {
    fail<TimeoutError>("[init_process_group] ", missing_ranks(store, size), " within ", timeout.count(),
                       " ms at ", store.str(),
                       "; have their processes started, with the same MASTER_ADDR and MASTER_PORT?");
  }
  check<DistributedError>(outcome.empty(), outcome);
}

}  // namespace tapestry::distributed
