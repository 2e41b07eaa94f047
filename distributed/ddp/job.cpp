#include "tapestry/distributed/ddp/job.h"

#include <algorithm>
#include <limits>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/generator_states.h"
#include "tapestry/distributed/common/internal/rank_drift.h"

namespace tapestry::distributed {
namespace {

const std::string kGenerators = "generators of rank ";
constexpr const char* kRanks = "ranks with generators";

template <class F>
void for_each_device(const F& fn) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
    for (int i = 0; i < device_count(type); ++i) fn(Device(type, i));
}

// Returns the number of ranks whose generator states are in a checkpoint: 0 if nn::Checkpointer wrote it.
// Throws IoError if the state of a rank is missing.
int ranks_with_generators(const StringMap& extra) {
  const auto entries = std::count_if(extra.begin(), extra.end(),
                                     [](const auto& entry) { return entry.first.starts_with(kGenerators); });
  const auto count = extra.find(kRanks);
  const std::string expected = count == extra.end() ? "0" : count->second;
  bool complete = std::to_string(entries) == expected;
  for (int r = 0; complete && r < entries; ++r) complete = extra.contains(kGenerators + std::to_string(r));
  check<IoError>(complete, "[resume] the checkpoint has generator states of ", entries,
                 " ranks and says that ", expected, " ranks saved theirs; resume from another checkpoint");
  return static_cast<int>(entries);
}

}  // namespace

double GlobalMean::reduce(ProcessGroup& group) {
  double parts[2] = {sum_, count_};
  group.all_reduce(from_blob(parts, {2}, DType::f64), ReduceOp::sum, "mean over ranks").wait();
  sum_ = count_ = 0;
  return parts[1] > 0 ? parts[0] / parts[1] : std::numeric_limits<double>::quiet_NaN();
}

DistributedCheckpointer::DistributedCheckpointer(std::shared_ptr<ProcessGroup> group,
                                                 const std::string& folder, const Options& options)
    : group_(std::move(group)) {
  check(group_ != nullptr,
        "[DistributedCheckpointer] the group is null; pass what init_process_group() returned");
  on_rank_0(*group_, "DistributedCheckpointer",
            [&] { files_ = std::make_unique<nn::Checkpointer>(folder, options); });
}

std::string DistributedCheckpointer::save(const nn::Training& training, const nn::Progress& progress) {
  if (training.model) {
    const auto parameters = training.model->named_parameters();
    check_ranks("save", group_, nn::NamedSlots(parameters.begin(), parameters.end()));
  }
  const std::vector<std::string> states = all_gather_text(*group_, generator_states(), "generators");
  std::string path;
  on_rank_0(*group_, "save", [&] {
    nn::Progress all = progress;
    for (std::size_t r = 0; r < states.size(); ++r) all.extra[kGenerators + std::to_string(r)] = states[r];
    all.extra[kRanks] = std::to_string(states.size());
    path = files_->save(training, all);
  });
  return broadcast_text(*group_, path, 0, "path of the checkpoint");
}

std::optional<nn::Progress> DistributedCheckpointer::resume(const nn::Training& training) {
  std::string latest;
  on_rank_0(*group_, "resume", [&] {
    files_->lock();
    latest = files_->latest().value_or("");
  });
  latest = broadcast_text(*group_, latest, 0, "path of the checkpoint");
  if (latest.empty()) return {};
  nn::Progress progress;
  on_all_ranks(*group_, "resume", [&] {
    progress = nn::load_checkpoint(latest, training);
    const int rank = group_->rank();
    if (rank < ranks_with_generators(progress.extra)) {
      set_generator_states(
          parse_generator_states("resume", progress.extra.at(kGenerators + std::to_string(rank))));
    } else {
      for_each_device([&](Device d) {
        const Generator& first = default_generator(d);  // load_checkpoint has restored it
        if (rank == 0) current_generator(d).set_state(first.state());
        else current_generator(d).manual_seed(rank_seed(first.seed(), rank));
      });
    }
    progress.extra.erase(kRanks);
    std::erase_if(progress.extra, [](const auto& entry) { return entry.first.starts_with(kGenerators); });
  });
  return progress;
}

}  // namespace tapestry::distributed
