#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/checkpoint/checkpoint.h"
#include "tapestry/distributed/checkpoint/internal/boxes.h"
#include "tapestry/distributed/checkpoint/internal/one_file.h"
#include "tapestry/distributed/checkpoint/internal/state.h"
#include "tapestry/distributed/checkpoint/internal/writer.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/element_divided.h"
#include "tapestry/distributed/common/internal/rank_drift.h"
#include "tapestry/nn/internal/kernel_choices.h"

namespace tapestry::distributed {
namespace {

using namespace checkpoint;

/// Gives the elements of a piece from a writer's tensors.
Source source_of(const WriterState& state) {
  std::map<std::string, const Item*> items;
  for (const Item& item : state.items) items.emplace(item.name, &item);
  return [items](const std::string& name, const Piece& piece, const Sink& sink) {
    const Item& item = *items.at(name);
    std::size_t i = 0;  // the box that has the piece
    while (!(common(piece.box, item.boxes.all.at(i)) == piece.box)) ++i;
    const Tensor part = inside(piece.box, item.boxes.all[i]).of(item.boxes.view(item.local, i));
    sink(part.device().is_cpu() ? part : part.to(kCPU));
  };
}

/// The states of this process's writers and of all, and what follows from them for the checkpoint.
struct SavePlan {
  std::vector<WriterState> own, all;
  int first = 0;  // the number of this process's first writer
  Index index;
};

/// Collective. Throws on all ranks, before anything is written, if the ranks' states do not fit together.
SavePlan make_plan(const char* op, const std::shared_ptr<ProcessGroup>& group,
                   const ShardedTraining& training, const nn::Progress& progress, Share share) {
  SavePlan p;
  const bool alone = !group || group->size() == 1;
  p.first = alone ? 0 : group->rank();
  const int count = alone ? shards_of_process(training) : 1;
  auto* const divided = dynamic_cast<ElementDivided*>(training.optimizer);
  // The ranks of `group` are those that divide the state, or have several such groups between them: one for
  // each stage of a pipeline.
  if (divided && divided->process_group().size() <= (group ? group->size() : 1))
    divided->consolidate_state_dict(0);
  std::string description;
  const auto describe_own = [&] {
    check(progress.epoch >= 0 && progress.step >= 0, "[", op, "] the epoch is ", progress.epoch,
          " and the step ", progress.step, "; they cannot be negative");
    for (int i = 0; i < count; ++i) p.own.push_back(state_of(op, training, i));
    if (!alone) description = describe(p.own[0]);
  };
  if (alone) describe_own();
  else on_all_ranks(*group, op, describe_own);
  if (alone) p.all = p.own;
  else
    for (const std::string& text : all_gather_text(*group, description, "tensors of the checkpoint"))
      p.all.push_back(parse_description(text));
  p.index = plan(op, p.all, share);  // all ranks compute the same, or throw
  // Only one rank's optimizer state is saved, so all ranks must have taken the same steps.
  if (!alone && !training.part_of_model) RankDrift(op, group, training.parameters).compare_optimizers();
  if (alone) p.index.generators.resize(1);
  p.index.progress = progress;
  p.index.choices = training.choices;
  nn::put_kernel_choices(p.index.progress->extra);
  return p;
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
  const auto on_0 = [&](const std::function<void()>& task) {
    if (alone) task();
    else on_rank_0(*group, "save_sharded", task);
  };

  SavePlan p = make_plan("save_sharded", group, training, progress, Share::evenly);
  Index& index = p.index;
  const std::vector<WriterState>& own = p.own;
  const int first = p.first, count = static_cast<int>(own.size());

  std::string start;
  on_0([&] { start = random_id() + ' ' + std::to_string(prepare_folder(folder)); });
  if (!alone) start = broadcast_text(*group, start, 0, "id of the checkpoint");
  int generation = 0;
  std::istringstream(start) >> index.id >> generation;
  const int shards = static_cast<int>(p.all.size());
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

// ---- one file ----

namespace {

constexpr std::uint64_t kSendBytes = std::uint64_t{1} << 24;
constexpr std::uint32_t kSendTag = 0x5C17;

/// The first error of this rank, and tasks that are skipped after it.
struct FirstError {
  std::exception_ptr error;
  template <class F>
  void guard(const F& task) {
    if (error) return;
    try {
      task();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  }
  void rethrow() const {
    if (error) std::rethrow_exception(error);
  }
};

/// Calls fn(rows, pieces) for parts of a tensor of about 16 MiB in the order of their rows: `rows` is the box
/// of some rows, of which each of the pieces has some columns.
template <class F>
void for_each_part(const TensorRecord& tensor, const F& fn) {
  const nn::Region whole = tensor.whole();
  std::set<std::int64_t> ends;  // rows at which pieces begin or end
  for (const Piece& piece : tensor.pieces)
    for (const std::int64_t end : {piece.box.first[0], piece.box.first[0] + piece.box.sizes[0]})
      ends.insert(end);
  std::vector<const Piece*> pieces;
  auto next = tensor.pieces.begin();  // they are in the order of their first rows
  for (auto end = ends.begin(); end != ends.end() && std::next(end) != ends.end(); ++end) {
    std::erase_if(pieces, [&](const Piece* p) { return p->box.first[0] + p->box.sizes[0] <= *end; });
    for (; next != tensor.pieces.end() && next->box.first[0] <= *end; ++next) pieces.push_back(&*next);
    const auto most =
        static_cast<std::int64_t>(std::max<std::uint64_t>(kSendBytes / tensor.row_bytes(whole), 1));
    for (std::int64_t row = *end; row < *std::next(end); row += most)
      fn(rows_of(whole, row, (std::min)(most, *std::next(end) - row)), pieces);
  }
}

}  // namespace

// Rank 0 writes the file from front to back. The other ranks send it the rows that it lacks. A rank that
// fails goes on to send, and rank 0 to receive, until all ranks learn of the error.
void save_checkpoint(const std::string& path, const std::shared_ptr<ProcessGroup>& group,
                     const ShardedTraining& training, const nn::Progress& progress) {
  constexpr const char* op = "save_checkpoint";
  const NoGradGuard no_grad;
  const bool alone = !group || group->size() == 1;
  const SavePlan p = make_plan(op, group, training, progress, Share::by_lowest);
  const FileLayout layout = file_layout(op, path, p.index);
  const int last = p.first + static_cast<int>(p.own.size());  // one behind this process's writers
  std::vector<Source> sources;
  for (const WriterState& own : p.own) sources.push_back(source_of(own));
  const auto own_part = [&](const std::string& name, int writer, const nn::Region& box) {
    Tensor part;
    sources[static_cast<std::size_t>(writer - p.first)](name, {writer, box},
                                                        [&](const Tensor& t) { part = t.contiguous(); });
    return part.reshape(box.sizes);
  };

  FirstError failure;
  std::optional<SafetensorsWriter> writer;
  std::string order;  // the tensors as the file has them, by their numbers in layout.contents
  if (p.first == 0) {
    failure.guard([&] {
      writer.emplace(path, layout.entries(p.index), layout.metadata);
      std::map<std::string, std::size_t> numbers;
      for (const auto& [name, content] : layout.contents) numbers.emplace(name, numbers.size());
      for (const SafetensorsWriter::Entry& entry : writer->entries())
        order += std::to_string(numbers.at(entry.name)) + ' ';
    });
  }
  if (!alone) order = broadcast_text(*group, order, 0, "order of the checkpoint");
  std::vector<const FileLayout::Content*> contents;
  for (const auto& [name, content] : layout.contents) contents.push_back(&content);
  std::istringstream numbers(order);
  for (std::size_t number = 0; numbers >> number;) {
    const FileLayout::Content& content = *contents.at(number);
    if (content.value.defined()) {
      if (writer) failure.guard([&] { writer->write(content.value); });
      continue;
    }
    const TensorRecord& tensor = p.index.tensors.at(content.source);
    for_each_part(tensor, [&](const nn::Region& rows, const std::vector<const Piece*>& pieces) {
      Tensor all;  // on rank 0, if several pieces have columns of the rows
      if (writer && pieces.size() > 1) failure.guard([&] { all = empty(rows.sizes, {tensor.dtype, kCPU}); });
      for (const Piece* const piece : pieces) {
        const nn::Region box = common(rows, piece->box);
        const bool is_own = piece->shard >= p.first && piece->shard < last;
        Tensor part;
        if (is_own) failure.guard([&] { part = own_part(content.source, piece->shard, box); });
        if (is_own != (p.first == 0) && !part.defined()) part = zeros(box.sizes, {tensor.dtype, kCPU});
        if (p.first == 0 && !is_own)
          group->recv(part, piece->shard, kSendTag, "parts of the checkpoint").wait();
        if (p.first != 0 && is_own) group->send(part, 0, kSendTag, "parts of the checkpoint").wait();
        if (!writer) continue;
        failure.guard([&] {
          if (all.defined()) inside(box, rows).of(all).copy_(part);
          else writer->write(part);
        });
      }
      if (all.defined()) failure.guard([&] { writer->write(all); });
    });
  }
  if (alone) {
    failure.rethrow();
    return writer->commit();
  }
  on_all_ranks(*group, op, [&] { failure.rethrow(); });
  on_rank_0(*group, op, [&] { writer->commit(); });
}

}  // namespace tapestry::distributed
