#pragma once
// The launchers of a job on several nodes, by the store of node 0's. Not in tapestry.h: for the launcher and
// its tests.
#include <memory>
#include <optional>
#include <string>

#include "tapestry/distributed/comm/store.h"
#include "tapestry/distributed/launch/options.h"

namespace tapestry::distributed::launch {

/// Why an attempt ended, for all nodes the same: what was said first.
struct Ending {
  int status = 1;        ///< exit status of the job
  bool restart = false;  ///< if there are restarts left; not after Ctrl-C
  std::string text;      ///< "node 1: rank 3 (pid 77) failed first: ..."
};

/// Every call is a request or two to the store. One that does not answer means that node 0's launcher is
/// gone: then `look` and `end` say that, and the others throw DistributedError.
class Nodes {
 public:
  Nodes(std::shared_ptr<Store> store, const LaunchOptions& options);

  /// Throws ValueError if there is a launcher of this node's number already, or if it was started with
  /// another number of nodes, ranks or restarts than node 0's.
  void join();
  /// The end of this attempt, if some node has said it.
  std::optional<Ending> look(int attempt);
  /// Says that it has ended, and returns who said so first.
  Ending end(int attempt, const Ending& ending);
  /// This node's ranks have all ended well.
  void done(int attempt);
  /// Whether those of all nodes have.
  bool all_done(int attempt);

  /// This node's launcher needs the store no more.
  void leave();
  /// How many know how the last attempt ended that this one knows of, by look, end or all_done; and how many
  /// of them have left.
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
  std::string shape_;  // what must be the same on all nodes
  int known_ = -1;     // the last attempt whose end is known here
};

}  // namespace tapestry::distributed::launch
