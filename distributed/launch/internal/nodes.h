#pragma once
// Coordinates the launchers of several nodes through node 0's store.
#include <memory>
#include <optional>
#include <string>

#include "tapestry/distributed/comm/store.h"
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// Why an attempt ended. The first report wins and is the same on all nodes.
struct Ending {
  int status = 1;        ///< exit status of the job
  bool restart = false;  ///< restart if restarts are left; false after Ctrl-C
  std::string text;      ///< "node 1: rank 3 (pid 77) failed first: ..."
};

/// Coordinates the launchers of several nodes through node 0's store. Each call makes one or two requests. If
/// the store does not answer, node 0's launcher is gone: `look` and `end` report that, and the other
/// functions throw DistributedError.
class Nodes {
 public:
  Nodes(std::shared_ptr<Store> store, const LaunchOptions& options);

  /// Registers this node. Throws ValueError if another launcher has the same node rank, or if node 0 was
  /// started with another number of nodes, ranks or restarts.
  void join();
  /// Returns the end of this attempt if a node has reported it.
  std::optional<Ending> look(int attempt);
  /// Reports the end of this attempt. Returns the first report, which may be another node's.
  Ending end(int attempt, const Ending& ending);
  /// Reports that all ranks of this node have exited successfully.
  void done(int attempt);
  /// True if all ranks of all nodes have exited successfully.
  bool all_done(int attempt);

  /// Reports that this node no longer needs the store.
  void leave();
  /// The number of nodes that know the end of the last attempt that this node knows the end of (through look,
  /// end or all_done), and the number of nodes that have called leave().
  struct Left {
    std::int64_t know = 0, left = 0;
  };
  Left count_left();

 private:
  std::string key(const char* what, int attempt) const;
  void know(int attempt);
  Ending gone(const DistributedError& error) const;

  std::shared_ptr<Store> store_;
  int node_, nodes_;
  std::string shape_;  // the options that must be equal on all nodes
  int known_ = -1;     // the last attempt whose end this node knows
};

}  // namespace tapestry::distributed::launch
