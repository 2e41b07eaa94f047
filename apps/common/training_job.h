#pragma once
// The devices or processes that train one model: what --parallel selects, and what the ranks agree on.
// Without a launcher, the process is a job of one rank.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/job_requests.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/strategy/strategy.h"

namespace apps {

/// The help of --live.
inline constexpr const char* kLiveHelp =
    "Show the run in a browser on this machine while it trains: loss, accuracy,\n"
    "speed, memory, every rank and samples. The page stays in the run folder";

struct JobOptions {
  std::string command;         ///< "gpt train", for errors
  std::string parallel;        ///< the value of --parallel
  std::string compress = {};   ///< the value of --compress, such as "bf16"; empty if it is not given
  std::string device = "cpu";  ///< the value of --device
  /// Devices of this process, for modes over devices only, if --parallel does not say how many. 0: all of the
  /// type.
  int devices = 0;
  std::string devices_option = {};  ///< the option with this number
  bool restartable = false;         ///< a run that the launcher starts again goes on from its checkpoint
  int parts = 1;                    ///< of a step: see distributed::StrategyOptions
  bool has_stages = false;          ///< the program sets ModelParts::stages
  bool live = false;                ///< --live: rank 0's counts
  /// What must be the same on all ranks: the options and the run folder. Empty: the program compares itself.
  std::string identity = {};
};

class TrainingJob {
 public:
  /// Joins the job. Throws UsageError if the options do not fit to the number of processes or to each other,
  /// or if the ranks have different options, and DeviceError if there is no such device. Creates the logical
  /// devices, so it must come before any use of one.
  explicit TrainingJob(const JobOptions& options);

  const std::shared_ptr<tapestry::distributed::ProcessGroup>& group() const { return group_; }
  tapestry::distributed::Strategy& strategy() { return *strategy_; }
  const tapestry::distributed::Strategy& strategy() const { return *strategy_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  /// True on rank 0, which prints and writes files.
  bool first() const { return rank() == 0; }
  /// Gives each rank the dropout masks of its coordinate: see distributed::manual_seed_by_coordinate(). Call
  /// it when the model is built.
  void seed_dropout(std::uint64_t seed) const;
  /// What a checkpoint of the run saves: the training, this rank's place and the choices that change bits.
  tapestry::distributed::ShardedTraining saved(const tapestry::nn::Training& training,
                                               const std::string& precision) const;
  /// Prints what each axis sent in the last step, and the most that the devices of this process held. Prints
  /// nothing if there is one device. All ranks call it.
  void print_report(Progress& progress) const;
  /// JobRequests::agree().
  Request agree(const Request& own);

  // ---- with --live ----
  /// True on all ranks if rank 0 shows a page.
  bool is_live() const { return rows_.has_value(); }
  /// Tells the other ranks of a step, with the next agree().
  void share(RankRow row);
  /// agree() calls this function at its end.
  void after_agree(std::function<void()> fn) { after_agree_ = std::move(fn); }
  /// JobRequests::rows().
  const std::vector<RankRow>& rows() const { return requests_->rows(); }
  /// The memory of each device of this process.
  const std::vector<MemoryByKind>& memory() const { return rows_->memory(); }

 private:
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  std::unique_ptr<tapestry::distributed::Strategy> strategy_;
  std::optional<JobRequests> requests_;
  std::optional<RankRows> rows_;
  std::function<void()> after_agree_;
};

/// Accepts the values of --parallel: the text of a strategy, or an older name of one.
Check parallel_text();
}  // namespace apps
