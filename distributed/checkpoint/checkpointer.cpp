#include "tapestry/distributed/checkpoint/checkpointer.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tapestry/distributed/checkpoint/checkpoint.h"
#include "tapestry/distributed/checkpoint/internal/load.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"
#include "tapestry/distributed/checkpoint/internal/writer.h"
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
  std::fprintf(stderr, "[Checkpointer] warning: %s\nthe checkpoint %s is skipped\n", damage.c_str(),
               path.c_str());
}

void on_0(const std::shared_ptr<ProcessGroup>& group, const char* op, const std::function<void()>& task) {
  if (group) on_rank_0(*group, op, task);
  else task();
}

std::string text_of_0(const std::shared_ptr<ProcessGroup>& group, const std::string& text, const char* what) {
  return group ? broadcast_text(*group, text, 0, what) : text;
}

bool is_complete(const std::string& path) {
  std::error_code ignored;
  try {
    if (!fs::is_directory(path, ignored)) return SafetensorsFile(path), true;
    const Index index = Index::read(path);
    return std::all_of(index.shards.begin(), index.shards.end(), [&](const ShardRecord& shard) {
      std::error_code error;
      return fs::file_size(fs::path(path) / shard.file, error) == shard.bytes && !error;
    });
  } catch (const IoError&) {
    return false;  // the error is reported when a user loads this checkpoint
  }
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

const Checkpointer::Format Checkpointer::kShards{"", read_shards, remove_checkpoint};

Checkpointer::Checkpointer(const std::string& folder, std::shared_ptr<ProcessGroup> group,
                           const Options& options, std::optional<CheckpointFiles> files)
    : nn::Checkpointer({&kOneFile, &kShards}, text_of_0(group, folder, "folder of the checkpoints"), options),
      group_(std::move(group)),
      files_(files) {
  on_0(group_, "Checkpointer", [&] { create_folder(); });
}

std::string Checkpointer::save(const ShardedTraining& training, const nn::Progress& progress) {
  const bool in_parts = files_ ? *files_ == CheckpointFiles::sharded : training.divided();
  const Format& format = in_parts ? kShards : kOneFile;
  std::string path;
  on_0(group_, "save", [&] { path = begin_save(progress, format); });
  path = text_of_0(group_, path, "path of the checkpoint");
  // The kind that rank 0 has chosen: with other slots, a rank would choose another one.
  if (path.ends_with(kOneFile.suffix)) save_checkpoint(path, group_, training, progress);
  else save_sharded(path, group_, training, progress);
  on_0(group_, "save", [&] { end_save(progress, format); });
  return path;
}

std::optional<nn::Progress> Checkpointer::resume(const ShardedTraining& training) {
  const auto on_all = [&](const std::function<void()>& task) {
    if (group_) on_all_ranks(*group_, "resume", task);
    else task();
  };
  std::string skipped, fault;  // the last checkpoint that was tried
  for (;;) {
    std::string path;
    on_0(group_, "resume", [&] {
      lock();
      path = nn::Checkpointer::latest().value_or("");
      const std::vector<std::int64_t> all = steps();
      check<IoError>(!path.empty() || all.empty(), "[Checkpointer] none of the ", all.size(),
                     " checkpoints in ", folder(), " is complete and undamaged",
                     fault.empty() ? " (see the warnings above)" : ": ", fault,
                     "; restore one, or choose another folder to start again");
      if (!fault.empty()) warn_of_skipped(skipped, fault);
    });
    path = text_of_0(group_, path, "path of the checkpoint");
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
    fault = group_ ? concat({"rank ", found - damage.begin(), ": ", *found}) : *found;
    skipped = path;
    on_0(group_, "resume", [&] { skip_latest(); });
  }
}

std::optional<std::string> Checkpointer::latest() const {
  std::vector<Entry> all = names_in_folder();
  for (; !all.empty(); all.pop_back())
    if (const std::string path = path_of(all.back()); is_complete(path)) return path;
  return {};
}

std::vector<std::int64_t> Checkpointer::steps() const {
  std::vector<std::int64_t> steps;
  for (const Entry& entry : names_in_folder()) {
    const bool complete = entry.format == &kOneFile || has_index(path_of(entry));
    if (complete && (steps.empty() || steps.back() != entry.step)) steps.push_back(entry.step);
  }
  return steps;
}

}  // namespace tapestry::distributed
