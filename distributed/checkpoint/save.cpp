#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/checkpoint/internal/state.h"
#include "tapestry/distributed/checkpoint/internal/writer.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/nn/internal/kernel_choices.h"

namespace tapestry::distributed {
namespace {

using namespace checkpoint;

/// Gives the rows of a piece from a writer's tensors.
Source source_of(const WriterState& state) {
  std::map<std::string, const Item*> items;
  for (const Item& item : state.items) items.emplace(item.name, &item);
  return [items](const std::string& name, const Piece& piece, const Sink& sink) {
    const Item& item = *items.at(name);
    Tensor rows = item.local;
    if (item.local.dim() > 0 && (piece.first_row != item.first_row || piece.rows != item.local.size(0)))
      rows = rows.narrow(0, piece.first_row - item.first_row, piece.rows);
    sink(rows.device().is_cpu() ? rows : rows.to(kCPU));
  };
}

/// The length and the checksums of the shards that this rank has written, as text.
std::string results_of(const Index& index, int first, int count) {
  std::string text;
  for (int shard = first; shard < first + count; ++shard) {
    text += std::to_string(index.shards[static_cast<std::size_t>(shard)].bytes);
    for (const auto& [name, tensor] : index.tensors)
      for (const Piece& piece : tensor.pieces)
        if (piece.shard == shard) {
          text += ' ' + std::to_string(piece.crc32);
          for (const std::uint32_t sum : piece.blocks) text += ' ' + std::to_string(sum);
        }
  }
  return text;
}

void set_results(Index& index, int shard, const std::string& text) {
  std::istringstream in(text);
  in >> index.shards[static_cast<std::size_t>(shard)].bytes;
  for (auto& [name, tensor] : index.tensors)
    for (Piece& piece : tensor.pieces)
      if (piece.shard == shard) {
        in >> piece.crc32;
        piece.blocks.resize(tensor.num_blocks(piece));
        for (std::uint32_t& sum : piece.blocks) in >> sum;
      }
  check<IoError>(!in.fail(), "[save_sharded] rank ", shard, " did not say what it has written");
}

/// Rank 0 looks for the shards that the ranks say they have written. They may have written to a disk of their
/// own, whose folder has the same name.
void check_written(const std::string& folder, const Index& index) {
  for (std::size_t r = 0; r < index.shards.size(); ++r) {
    const std::filesystem::path path = std::filesystem::path(folder) / index.shards[r].file;
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    check<IoError>(!error && bytes == index.shards[r].bytes, "[save_sharded] rank ", r, " has written ",
                   index.shards[r].bytes, " bytes to ", path.string(), ", but rank 0 finds ",
                   error ? error.message() : std::to_string(bytes) + " bytes",
                   " there; choose a folder that all ranks share");
  }
}

}  // namespace

void save_sharded(const std::string& folder, const std::shared_ptr<ProcessGroup>& group,
                  const ShardedTraining& training, const nn::Progress& progress) {
  const NoGradGuard no_grad;
  const bool alone = !group || group->size() == 1;
  const int first = alone ? 0 : group->rank(), count = alone ? shards_of_process(training) : 1;
  const auto on_all = [&](const std::function<void()>& task) {
    if (alone) task();
    else on_all_ranks(*group, "save_sharded", task);
  };
  const auto on_0 = [&](const std::function<void()>& task) {
    if (alone) task();
    else on_rank_0(*group, "save_sharded", task);
  };

  std::vector<WriterState> own, all;
  std::string description;
  on_all([&] {
    check(progress.epoch >= 0 && progress.step >= 0, "[save_sharded] the epoch is ", progress.epoch,
          " and the step ", progress.step, "; they cannot be negative");
    for (int i = 0; i < count; ++i) own.push_back(state_of(training, i));
    if (!alone) description = describe(own[0]);
  });
  if (alone) all = own;
  else
    for (const std::string& text : all_gather_text(*group, description, "tensors of the checkpoint"))
      all.push_back(parse_description(text));
  Index index = plan(all);  // all ranks compute the same, or throw
  if (alone) index.generators.resize(1);
  index.progress = progress;
  nn::put_kernel_choices(index.progress->extra);

  std::string start;
  on_0([&] { start = random_id() + ' ' + std::to_string(prepare_folder(folder)); });
  if (!alone) start = broadcast_text(*group, start, 0, "id of the checkpoint");
  int generation = 0;
  std::istringstream(start) >> index.id >> generation;
  const int shards = static_cast<int>(all.size());
  for (int i = 0; i < shards; ++i) index.shards.push_back({shard_file(i, shards, generation)});

  // Rank 0 removes all files of a checkpoint that cannot be completed. No other rank may remove its own,
  // because it may not know whether rank 0 has completed the checkpoint.
  std::string error;
  std::exception_ptr thrown;
  try {
    for (int i = 0; i < count; ++i)
      write_shard(folder, index, first + i, source_of(own[static_cast<std::size_t>(i)]));
  } catch (const std::exception& e) {
    error = e.what();
    thrown = std::current_exception();
  }
  std::vector<std::string> results(1);
  if (!alone) {
    const std::string mine = error.empty() ? '+' + results_of(index, first, count) : '-' + error;
    results = all_gather_text(*group, mine, "shards of the checkpoint");
  }
  for (std::size_t r = 0; r < results.size(); ++r) {
    const bool failed = alone ? thrown != nullptr : results[r].starts_with('-');
    if (!failed) continue;
    if (first == 0) remove_shards(folder, index);
    if (thrown) std::rethrow_exception(thrown);
    fail<DistributedError>("[save_sharded] failed on rank ", r, ": ", results[r].substr(1));
  }
  on_0([&] {
    try {
      if (!alone)
        for (int r = 0; r < shards; ++r)
          set_results(index, r, results[static_cast<std::size_t>(r)].substr(1));
      check_written(folder, index);
      write_file_atomically(folder + '/' + kIndexFile, index.text());
    } catch (...) {
      remove_shards(folder, index);
      throw;
    }
    remove_other_shards(folder, &index);
  });
}

}  // namespace tapestry::distributed
