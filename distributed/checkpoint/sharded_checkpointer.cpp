#include <algorithm>
#include <charconv>
#include <cmath>
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

std::string step_name(std::int64_t step) {
  char name[48];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

/// Returns 500 for "step-00000500", and nothing for other names.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step-")) return {};
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || step_name(step) != name) return {};
  return step;
}

/// Calls fn(step, path) for the folders of checkpoints, complete or not.
template <class F>
void for_each_checkpoint(const std::string& folder, const F& fn) {
  std::vector<std::pair<std::int64_t, std::string>> found;  // collected first, because fn may remove folders
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const auto step = step_of(entry->path().filename().string());
    if (step && entry->is_directory(ignored)) found.emplace_back(*step, entry->path().string());
  }
  check<IoError>(!error, "[ShardedCheckpointer] the folder ", folder, " cannot be read: ", error.message(),
                 "; choose one that can be read");
  std::sort(found.begin(), found.end());
  for (const auto& [step, path] : found) fn(step, path);
}

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

}  // namespace

ShardedCheckpointer::ShardedCheckpointer(std::string folder, std::shared_ptr<ProcessGroup> group,
                                         const Options& options)
    : folder_(std::move(folder)), group_(std::move(group)), options_(options) {
  check(options.keep_last >= 0, "[ShardedCheckpointer] keep_last is ", options.keep_last,
        "; it cannot be negative");
  on_0(group_, "ShardedCheckpointer", [&] {
    std::error_code error, unknown;
    fs::create_directories(folder_, error);
    check<IoError>(fs::is_directory(folder_, unknown), "[ShardedCheckpointer] the folder ", folder_,
                   " cannot be made: ", error.message(), "; choose one that can be written to");
  });
}

std::string ShardedCheckpointer::path_of(std::int64_t step) const {
  return (fs::path(folder_) / step_name(step)).string();
}

// Takes the lock, removes what dead jobs left incomplete, and lists the sound checkpoints.
void ShardedCheckpointer::lock() {
  if (lock_) return;
  auto lock = std::make_shared<FolderLock>("ShardedCheckpointer", folder_);
  entries_.clear();
  for_each_checkpoint(folder_, [&](std::int64_t step, const std::string& path) {
    if (!has_index(path)) return remove_checkpoint(path);
    try {
      ShardReader reader(path);
      reader.check_shards();
      const auto& progress = reader.index().progress;
      entries_.push_back({step, progress ? progress->metric : std::nullopt});
    } catch (const IoError& e) {
      warn_of_skipped(path, e.what());
    }
  });
  lock_ = std::move(lock);
}

std::string ShardedCheckpointer::save(const ShardedTraining& training, const nn::Progress& progress) {
  check(progress.step >= 0, "[ShardedCheckpointer] the step is ", progress.step, "; it cannot be negative");
  on_0(group_, "save", [&] {
    lock();
    check(entries_.empty() || entries_.back().step <= progress.step, "[ShardedCheckpointer] ", folder_,
          " has a checkpoint of step ", entries_.empty() ? 0 : entries_.back().step, ", later than step ",
          progress.step, "; resume from it, or choose another folder");
  });
  const std::string path = path_of(progress.step);
  save_sharded(path, group_, training, progress);
  on_0(group_, "save", [&] {
    if (!entries_.empty() && entries_.back().step == progress.step) entries_.pop_back();
    entries_.push_back({progress.step, progress.metric});
    remove_old();
  });
  return path;
}

void ShardedCheckpointer::remove_old() {
  if (options_.keep_last == 0) return;
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (!options_.keep_best || !entry.metric || std::isnan(*entry.metric)) continue;
    if (!best || (options_.higher_is_better ? *entry.metric > *best->metric : *entry.metric < *best->metric))
      best = &entry;
  }
  const auto keep = static_cast<std::size_t>(options_.keep_last);
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_.size() - i <= keep || &entries_[i] == best) kept.push_back(entries_[i]);
    else remove_checkpoint(path_of(entries_[i].step));
  }
  entries_ = std::move(kept);
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
      if (!entries_.empty()) path = path_of(entries_.back().step);
      const std::vector<std::int64_t> all = steps();
      check<IoError>(!path.empty() || all.empty(), "[ShardedCheckpointer] none of the ", all.size(),
                     " checkpoints in ", folder_,
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
      entries_.pop_back();
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
  std::vector<std::int64_t> steps;
  for_each_checkpoint(folder_, [&](std::int64_t step, const std::string& path) {
    if (has_index(path)) steps.push_back(step);
  });
  return steps;
}

}  // namespace tapestry::distributed
