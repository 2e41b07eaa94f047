#pragma once
// Preflight checks: finds problems of a job's machines before the first collective fails because of them.
// init_process_group() runs them, so tapestry.h does not include this header.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// One rank's view of its process and machine.
struct RankReport {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string host;           ///< the host's name
  std::string machine;        ///< identifies the machine, even if containers share a host name
  bool host_resolves = true;  ///< true if the name has an address
  std::string backend;        ///< "gloo", "nccl"
  std::string version;        ///< the version of this library
  int visible_gpus = 0;       ///< the number of GPUs that CUDA shows this process
  std::optional<std::string> cuda_visible_devices;
  std::string nccl;             ///< the version of NCCL, if the backend is "nccl" and NCCL was found
  std::int64_t shm_bytes = 0;   ///< size of /dev/shm; 0 if there is none
  std::int64_t shm_device = 0;  ///< the number of its file system, which differs between containers
  int cores = 1;                ///< cores that this process may use
  int threads = 1;              ///< compute threads of this process
};

/// A problem that was found.
struct Finding {
  bool failure = false;  ///< if false, a warning: the job can run, but probably slowly or not as intended
  std::string text;      ///< the problem, with the values found and the remedy
};

/// The findings of a check, in the order in which it adds them. `parts` form the text, as in check().
class Findings {
 public:
  template <class... Parts>
  void failure(const Parts&... parts) {
    add(true, parts...);
  }
  template <class... Parts>
  void warning(const Parts&... parts) {
    add(false, parts...);
  }
  template <class... Parts>
  void add(bool failure, const Parts&... parts) {
    findings_.push_back({failure, concat({Piece(parts)...})});
  }
  std::vector<Finding> take() { return std::move(findings_); }

 private:
  std::vector<Finding> findings_;
};

/// Inspects this process and its machine.
RankReport inspect_rank(const Environment& environment, const std::string& backend);

/// Compares the reports of the ranks of a job, or of one node. Reads no state of this machine except the
/// environment variable NCCL_HOSTID.
std::vector<Finding> preflight(const std::vector<RankReport>& ranks);

/// The check before the first collective, which all ranks must call. Every other rank publishes its report in
/// the store, and rank 0 compares them with its own. Rank 0 prints the warnings. Failures throw
/// DistributedError on every rank. If a report is missing after `timeout`, every rank throws TimeoutError; on
/// rank 0 it names the rank.
void preflight(Store& store, const RankReport& mine, Milliseconds timeout);

/// Converts a report to text and back. rank_report_from() throws ValueError for malformed text.
std::string to_text(const RankReport& report);
RankReport rank_report_from(const std::string& text);

}  // namespace tapestry::distributed
