#pragma once
// Checkpoints that all ranks write, each its own part. They load at any number of ranks: a model that
// fully_shard() divided among four ranks loads into five, into DDP, into one process, into stages of a
// pipeline, and back.
//
//   distributed::save_sharded("step-1", world, {&net, &optimizer, &schedule}, {.step = 1});
//   nn::Progress progress =
//       distributed::load_sharded("step-1", {&net, &optimizer, &schedule}, {.rank = world->rank()});
//
// A checkpoint is a folder with one safetensors file per rank and index.json, which is written last.
// docs/reference/checkpoints.md describes the format, and the program tapestry-checkpoint, which converts it
// from and to one file.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/nn/checkpoint.h"

namespace tapestry::distributed {

/// What a sharded checkpoint saves and loads: named slots, and the optimizer and the schedule. A slot may be
/// whole on every rank (DDP, one process), on some ranks only (a pipeline), or divided
/// (TensorSlot::layout()).
struct ShardedTraining {
  using Slots = std::vector<std::pair<std::string, nn::TensorSlot>>;

  /// The slots of a model's state_dict(). Implicit, so that save({&net, &optimizer}, ...) compiles. All ranks
  /// have the same modules.
  ShardedTraining(const nn::Training& training);  // NOLINT
  ShardedTraining(nn::Module* model, optim::Optimizer* with = nullptr, optim::Scheduler* schedule = nullptr,
                  optim::GradScaler* grad_scaler = nullptr);
  /// The stages of a pipeline that this process computes (Pipeline::stages()), under the names that their
  /// tensors have in the unsplit model. Other ranks may have other slots.
  template <class Part>
  requires requires(const Part& part) {
    part.named_parameters();
    part.named_buffers();
    part.named_state();
  }
  ShardedTraining(const std::vector<Part>& stages, optim::Optimizer* with,
                  optim::Scheduler* schedule = nullptr, optim::GradScaler* grad_scaler = nullptr)
      : part_of_model(true), optimizer(with), scheduler(schedule), scaler(grad_scaler) {
    for (const Part& stage : stages)
      add(stage.named_parameters(), stage.named_buffers(), stage.named_state());
  }

  Slots parameters, buffers;                                 ///< each slot once
  std::vector<std::pair<std::string, std::string>> aliases;  ///< further names of slots, with the first one
  bool part_of_model = false;  ///< whether the checkpoint may have tensors that are not listed here
  optim::Optimizer* optimizer = nullptr;
  optim::Scheduler* scheduler = nullptr;
  optim::GradScaler* scaler = nullptr;
  /// By what a rank finds its generators in a checkpoint, on all ranks or none: Strategy::random_place(). By
  /// its number if there is no place. A checkpoint that was saved with another number of parts or stages has
  /// no generators for a place: they are derived from those of rank 0, and rank 0 prints a warning.
  std::optional<RandomPlace> place = {};
  /// Choices that change the bits of a run, such as {"precision", "bf16"} and those of Strategy::choices().
  /// A checkpoint has those of rank 0. If it has another value for one of them than the training that loads
  /// it, rank 0 prints a warning.
  StringMap choices = {};

  /// True if this process stores a part of some parameters only, or divides them among its devices.
  bool divided() const;

 private:
  void add(const std::vector<std::pair<std::string, nn::Parameter>>& all_parameters,
           const std::vector<std::pair<std::string, nn::Buffer>>& all_buffers, const Slots& state);
};

/// Writes a checkpoint to `folder`, which is created. Collective over the ranks of `group`; null stands for
/// one process. Each rank writes the part that it stores. Tensors that several ranks have are divided among
/// them, so that all ranks write about as many bytes; buffers are those of the lowest rank that has them. If
/// the folder has a complete checkpoint, it stays valid until the new one is complete.
///
/// If a rank cannot write, all ranks throw, the incomplete files are removed, and the folder's old checkpoint
/// is unchanged. Throws ValueError on all ranks if the ranks' tensors do not fit together: another dtype or
/// shape, elements that no rank stores, different optimizers, or parameters that should be equal on all ranks
/// and are not. The state of a ZeroRedundancyOptimizer over these ranks is collected first. Two jobs must not
/// write to one folder at the same time; Checkpointer sees to that.
void save_sharded(const std::string& folder, const std::shared_ptr<ProcessGroup>& group,
                  const ShardedTraining& training, const nn::Progress& progress);

struct LoadShardedOptions {
  /// The number of the caller among those that load, which selects the generators' states unless there is a
  /// ShardedTraining::place. The states of a rank that saved none are derived from those of rank 0.
  int rank = 0;
  /// Reads the data twice, first to compare the checksums. So damage is found before anything is changed. The
  /// first time, whole blocks of 1 MiB are read, of which the process may need a part only.
  bool verify = true;
};

/// Loads a checkpoint into slots that may be divided in any other way, without communication: each process
/// reads the part that it stores, from the files that have it, at most about 16 MiB at a time. Values are
/// converted to the slots' devices and dtypes. Returns the progress that was saved. `folder` may also be one
/// file, which save_checkpoint(), nn::save_checkpoint() or nn::save_model() wrote. Full tensors that exist
/// (FullyShard::unshard()) are gathered again, which is collective.
///
/// Throws IoError, which names the file, if one is missing, truncated, damaged, or belongs to another
/// checkpoint; and ValueError for a format version that this library does not know, for another model,
/// optimizer or list of parameter groups, or if the checkpoint has no state of the optimizer, schedule or
/// scaler that is passed. If it throws, nothing was loaded, unless a file became unreadable meanwhile. A
/// slot that is being used by forward() must not be loaded.
nn::Progress load_sharded(const std::string& folder, const ShardedTraining& training,
                          const LoadShardedOptions& options = {});

}  // namespace tapestry::distributed
