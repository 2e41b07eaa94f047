#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tapestry/distributed/checkpoint/internal/load.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"
#include "tapestry/distributed/checkpoint/internal/writer.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

bool has_index(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::path(path) / kIndexFile, error);
}

void warn_of_skipped(const std::string& path, const std::string& damage) {
  std::fprintf(stderr, "[ShardedCheckpointer] warning: %s\nthe checkpoint %s is skipped\n", damage.c_str(),
               path.c_str());
}

void on_0(const std::shared_ptr<ProcessGroup>& group, const char* op, const std::function<void()>& task) {
  if (group) on_rank_0(*group, op, task);
  else task();
}

// Removes what a dead job left incomplete, and skips what is damaged.
bool read_shards(const std::string& path, std::optional<double>& metric) {
  if (!has_index(path)) {
    remove_checkpoint(path);
    return false;
  }
  try {
    ShardReader reader(path);
    reader.check_shards();
    if (reader.index().progress) metric = reader.index().progress->metric;
    return true;
  } catch (const IoError& e) {
    warn_of_skipped(path, e.what());
    return false;
  }
}

}  // namespace

ShardedCheckpointer::ShardedCheckpointer(std::string folder, std::shared_ptr<ProcessGroup> group,
                                         const Options& options)
    : KeptCheckpoints({"ShardedCheckpointer", "", read_shards, remove_checkpoint}, std::move(folder),
                      options),
      group_(std::move(group)) {
  on_0(group_, "ShardedCheckpointer", [&] { create_folder(); });
}

std::string ShardedCheckpointer::save(const ShardedTraining& training, const nn::Progress& progress) {
  on_0(group_, "save", [&] { begin_save(progress); });
  const std::string path = path_of(progress.step);
  save_sharded(path, group_, training, progress);
  on_0(group_, "save", [&] { end_save(progress); });
  return path;
}

std::optional<nn::Progress> ShardedCheckpointer::resume(const ShardedTraining& training) {
  const auto on_all = [&](const std::function<void()>& task) {
    if (group_) on_all_ranks(*group_, "resume", task);
    else task();
  };
  for (;;) {
    std::string path;
    on_0(group_, "resume", [&] {
      lock();
      path = KeptCheckpoints::latest().value_or("");
      const std::vector<std::int64_t> all = steps();
      check<IoError>(!path.empty() || all.empty(), "[ShardedCheckpointer] none of the ", all.size(),
                     " checkpoints in ", folder(),
                     " is complete and undamaged (see the warnings above); restore one, or choose another "
                     "folder to start again");
    });
    if (group_) path = broadcast_text(*group_, path, 0, "path of the checkpoint");
    if (path.empty()) return {};

    // Each rank checks what it will read. Damage that one rank finds makes all ranks take the checkpoint
    // before.
    std::function<nn::Progress()> load;
    std::vector<std::string> damage(1);
    on_all([&] {
      try {
        load = prepare_load(path, training, {.rank = group_ ? group_->rank() : 0});
      } catch (const IoError& e) {
        damage[0] = e.what();
      }
    });
    if (group_) damage = all_gather_text(*group_, damage[0], "damage of the checkpoint");
    const auto found =
        std::find_if(damage.begin(), damage.end(), [](const auto& text) { return !text.empty(); });
    if (found == damage.end()) {
      nn::Progress progress;
      on_all([&] { progress = load(); });
      return progress;
    }
    on_0(group_, "resume", [&] {
      const auto rank = found - damage.begin();
      warn_of_skipped(path, group_ ? concat({"rank ", rank, ": ", *found}) : *found);
      skip_latest();
    });
  }
}

std::optional<std::string> ShardedCheckpointer::latest() const {
  std::vector<std::int64_t> all = steps();
  for (; !all.empty(); all.pop_back()) {
    const std::string path = path_of(all.back());
    try {
      const Index index = Index::read(path);
      const bool complete =
          std::all_of(index.shards.begin(), index.shards.end(), [&](const ShardRecord& shard) {
            std::error_code error;
            return fs::file_size(fs::path(path) / shard.file, error) == shard.bytes && !error;
          });
      if (complete) return path;
    } catch (const IoError&) {
      // The error is reported when a user loads this checkpoint.
    }
  }
  return {};
}

std::vector<std::int64_t> ShardedCheckpointer::steps() const {
  std::vector<std::int64_t> steps = steps_in_folder();
  std::erase_if(steps, [&](std::int64_t step) { return !has_index(path_of(step)); });
  return steps;
}

}  // namespace tapestry::distributed
