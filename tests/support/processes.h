#pragma once
// Runs ranks as processes. Each process executes this test program again with one hidden test case. fork()
// alone is not enough, because the child would lack the other threads.
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

/// How a process ended.
struct Ended {
  int exit_code = -1;  ///< -1 unless it exited normally
  int signal = 0;      ///< the signal that killed it, or 0
  std::string output;  ///< standard output and error
  bool well() const { return exit_code == 0; }
};

/// Processes of one test, one per rank. The destructor kills and reaps the remaining ones. wait() kills a
/// process that has not ended after `limit`.
class RankProcesses {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  RankProcesses(const std::string& test_case, int size, const Variables& variables = {},
                std::chrono::seconds limit = std::chrono::seconds(60));
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void send_signal(int rank, int signal);
  /// Waits until the process has exited, and kills it at the time limit.
  const Ended& wait(int rank);
  /// The store that the ranks share.
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

/// In a child: its rank, and the store that it shares with its parent and the other ranks.
struct ChildRank {
  int rank = 0, size = 1;
  std::shared_ptr<tapestry::distributed::Store> store;
};
ChildRank child_rank();

}  // namespace distributed_test
