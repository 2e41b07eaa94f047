#pragma once
// Coordinates the launchers of several nodes through node 0's store.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/store.h"
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// Why an attempt ended. The first report wins and is the same on all nodes.
struct Ending {
  int status = 1;        ///< exit status of the job
  bool restart = false;  ///< restart if restarts are left; false after Ctrl-C
  std::string text;      ///< "node 1: rank 3 (pid 77) failed first: ..."
  bool lost = false;     ///< node 0's launcher does not answer, so this node must join again
};

/// Coordinates the launchers of several nodes through node 0's store. Each call makes one or two requests. If
/// the store does not answer, node 0's launcher is gone: `look` and `end` report that, and the other
/// functions throw DistributedError.
class Nodes {
 public:
  /// Sets a key of the store until the returned handle is destroyed or this process ends (hold_key). Null if
  /// the key exists.
  using Hold = std::function<std::shared_ptr<void>(const std::string& key, const std::string& value)>;
  Nodes(std::shared_ptr<Store> store, const LaunchOptions& options, const Hold& hold);

  /// Registers this node for as long as this object and its process live. Returns false if another launcher
  /// has the same node rank. Throws ValueError if node 0 was started with another number of nodes, ranks or
  /// restarts.
  bool join();
  /// Reports that this node is ready for an attempt. Returns true if the attempt begins: the launchers of all
  /// nodes are ready for it, and this one is among them. False, and it must be called again, if not yet.
  bool begin(int attempt);
  /// On node 0, after begin(): the nodes whose launchers are not ready, as "node 1, node 3".
  std::string missing() const;
  /// Returns the end of this attempt if a node has reported it. Node 0 reports the end itself if a launcher
  /// that took part in the attempt has disappeared, unless all ranks have exited successfully.
  std::optional<Ending> look(int attempt);
  /// The ending for a node whose request to node 0's launcher has failed.
  static Ending gone(const DistributedError& error);
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
  std::string key(const char* what, int number) const;
  std::string launcher_of(int node);
  void know(int attempt);

  std::shared_ptr<Store> store_;
  const Hold hold_;
  int node_, nodes_;
  const std::string launcher_;  // a random text that tells this launcher from others of its node
  std::string registered_;      // the value of this node's key: launcher_ and an attempt
  std::shared_ptr<void> registration_;
  std::vector<std::string> begun_with_;  // on node 0: the launchers of attempt begun_; "" if one is missing
  int begun_ = -1;
  std::string shape_;  // the options that must be equal on all nodes
  int known_ = -1;     // the last attempt whose end this node knows
};

}  // namespace tapestry::distributed::launch
