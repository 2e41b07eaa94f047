#pragma once
// Ranks as processes: this test program again, running one hidden test case each. A new program rather than a
// fork, since threads do not survive one.
//
//   TEST_CASE("child of x", "[.]") { const auto rank = child_rank(); ... }
//   TEST_CASE("x") { RankProcesses ranks("child of x", 2); CHECK(ranks.wait(0).well()); }
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/store.h"

namespace distributed_test {

/// What became of a process.
struct Ended {
  int exit_code = -1;  ///< -1 unless it exited
  int signal = 0;      ///< that ended it
  std::string output;  ///< standard output and error
  bool well() const { return exit_code == 0; }
};

/// Its destructor kills and reaps what is left. Kills all after `limit`, whoever waits.
class RankProcesses {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  RankProcesses(const std::string& test_case, int size, const Variables& variables = {},
                std::chrono::seconds limit = std::chrono::seconds(60));
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void send_signal(int rank, int signal);
  /// Waits for its end; a process that outlives the limit is killed.
  const Ended& wait(int rank);
  /// Shared with the ranks.
  tapestry::distributed::Store& store() { return *store_; }

 private:
  struct Process {
    pid_t pid = -1;
    int output = -1;
    bool ended = false;
    Ended end;
  };
  std::filesystem::path folder_;
  std::shared_ptr<tapestry::distributed::Store> store_;
  std::chrono::steady_clock::time_point limit_;
  std::vector<Process> processes_;
};

/// In the child: who it is, and the store that it shares with its parent and the other ranks.
struct ChildRank {
  int rank = 0, size = 1;
  std::shared_ptr<tapestry::distributed::Store> store;
};
ChildRank child_rank();

}  // namespace distributed_test
