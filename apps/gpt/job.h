#pragma once
// The devices or processes that train one language model: the options that say which, the wrappers around the
// model, and what the ranks agree on. Without a launcher, the process is a job of one rank.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/common/job_requests.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/ddp/ddp.h"
#include "tapestry/distributed/ddp/job.h"
#include "tapestry/distributed/fsdp/fsdp.h"
#include "tapestry/nn/models/language_model.h"

namespace apps::gpt {

struct JobOptions {
  const char* command;          ///< "gpt train", for errors
  std::string parallel;         ///< the value of --parallel
  std::string device;           ///< the value of --device
  int devices = 1;              ///< of this process, for modes that use several
  const char* devices_option;   ///< the option with this number
  bool restartable = false;     ///< a run that the launcher starts again goes on from its checkpoint
  std::int64_t batch_size = 1;  ///< sequences in a step or batch, over all ranks
  std::int64_t parts = 1;       ///< into which each rank divides its share of them
  std::string identity;         ///< what must be the same on all ranks: the options and the run folder
};

class Job {
 public:
  /// Joins the job. Throws UsageError if the options do not fit to the number of processes or to each other,
  /// or if the ranks have different options. Creates the logical devices, so it must come before any use of
  /// one.
  explicit Job(const JobOptions& options);

  const std::shared_ptr<tapestry::distributed::ProcessGroup>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  /// True on rank 0, which prints and writes files.
  bool first() const { return rank() == 0; }

  /// Replicates or shards the model, unless the mode does neither. A model that is to be sharded may be on
  /// the meta device.
  void wrap(tapestry::nn::LanguageModel& model);

  /// The full parameters, on rank 0. Collective.
  tapestry::nn::StateDict full_state(tapestry::nn::LanguageModel& model) const;
  /// The sum over the ranks. Collective.
  double sum(double own) const;
  /// JobRequests::agree().
  Request agree(const Request& own) { return requests_->agree(own); }

 protected:
  /// While it exists, backward passes keep their gradients on this rank.
  std::optional<tapestry::distributed::NoSync> quiet();

  const JobOptions job_;
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  std::vector<tapestry::Device> devices_;  // of the modes that use several in this process
  std::optional<tapestry::distributed::DistributedDataParallel<tapestry::nn::LanguageModel>> ddp_;
  std::optional<tapestry::distributed::DataParallel<tapestry::nn::LanguageModel>> dp_;
  std::optional<tapestry::distributed::FullyShard> fsdp_;
  std::optional<JobRequests> requests_;
};

/// The blocks of a model, each of which takes and returns features.
std::vector<tapestry::nn::Module*> blocks_of(tapestry::nn::LanguageModel& model);

}  // namespace apps::gpt
