#pragma once
// Ranks as threads of the test, on every transport.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace distributed_test {

using namespace std::chrono_literals;
using tapestry::distributed::Backend;
using tapestry::distributed::GroupOptions;
using tapestry::distributed::ProcessGroup;

using Group = std::shared_ptr<ProcessGroup>;
using RankFunction = std::function<void(const Group&)>;

/// So that a test whose ranks do not meet fails before ctest ends it.
inline constexpr GroupOptions kBounded{.timeout = 20'000ms};

/// What each rank, a thread, found.
template <class T>
std::vector<T> on_ranks(int ranks, const std::function<T(const Group&)>& fn) {
  std::vector<T> results(static_cast<std::size_t>(ranks));
  run_local_ranks(
      ranks, [&](const Group& group) { results[static_cast<std::size_t>(group->rank())] = fn(group); },
      kBounded);
  return results;
}

/// A transport under test. Another one is another row of transports().
struct Transport {
  std::string name;
  /// One end a rank. May be called once for each job.
  std::function<std::vector<std::shared_ptr<Backend>>(int size)> connect;
};
const std::vector<Transport>& transports();
/// False, with a message, in a build without Gloo (ThreadSanitizer's).
bool has_gloo();

/// What became of a rank: empty, or the text of its exception.
struct Outcome {
  std::string error;
  bool timeout = false, distributed = false;  // its type
};

/// Runs fn on `size` ranks and waits for all. A rank's exception ends that rank alone: its group is destroyed
/// as if it had returned, and nobody else is told.
std::vector<Outcome> run_ranks(const Transport& transport, int size, const RankFunction& fn,
                               const GroupOptions& options = {});
/// As above, for ranks that must all end well: throws the first error otherwise.
void run_ranks_well(const Transport& transport, int size, const RankFunction& fn,
                    const GroupOptions& options = {});

}  // namespace distributed_test
