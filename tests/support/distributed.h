#pragma once
// Runs ranks as threads of the test, on every transport.
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/process_group.h"

namespace distributed_test {

using namespace std::chrono_literals;
using tapestry::distributed::Backend;
using tapestry::distributed::GroupOptions;
using tapestry::distributed::ProcessGroup;

using Group = std::shared_ptr<ProcessGroup>;
using RankFunction = std::function<void(const Group&)>;

/// Throws unless `ok`. Ranks call it instead of REQUIRE, because Catch2's checks are not thread-safe.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) throw std::runtime_error(tapestry::concat({tapestry::Piece(parts)...}));
}

/// Options with a short timeout, so that a test whose ranks never rendezvous fails before ctest's time limit.
inline constexpr GroupOptions kBounded{.timeout = 20'000ms};

/// Runs fn on each rank (one thread per rank) and returns the results by rank.
template <class T>
std::vector<T> on_ranks(int ranks, const std::function<T(const Group&)>& fn) {
  static_assert(!std::is_same_v<T, bool>, "ranks would write the bits of one word; return an int");
  std::vector<T> results(static_cast<std::size_t>(ranks));
  run_local_ranks(
      ranks, [&](const Group& group) { results[static_cast<std::size_t>(group->rank())] = fn(group); },
      kBounded);
  return results;
}

/// A transport on which the tests run. To test another transport, add a row to transports().
struct Transport {
  std::string name;
  /// Returns one backend per rank. May be called once per job.
  std::function<std::vector<std::shared_ptr<Backend>>(int size)> connect;
};
const std::vector<Transport>& transports();
/// Returns false and prints a message in a build without Gloo, such as the ThreadSanitizer build.
bool has_gloo();

/// How a rank ended: `error` is empty, or the text of its exception.
struct Outcome {
  std::string error;
  bool timeout = false, distributed = false;  // type of the exception
};

/// Runs fn on `size` ranks and waits for all of them. An exception ends only its own rank: the rank's group
/// is destroyed as after a normal return, and other ranks are not notified.
std::vector<Outcome> run_ranks(const Transport& transport, int size, const RankFunction& fn,
                               const GroupOptions& options = {});
/// Like run_ranks(), but throws the first error of any rank.
void run_ranks_well(const Transport& transport, int size, const RankFunction& fn,
                    const GroupOptions& options = {});

}  // namespace distributed_test
