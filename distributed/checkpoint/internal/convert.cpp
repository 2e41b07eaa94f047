#include <algorithm>
#include <filesystem>

#include "tapestry/core/atomic_file.h"
#include "tapestry/distributed/checkpoint/internal/one_file.h"
#include "tapestry/distributed/checkpoint/internal/program.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"
#include "tapestry/distributed/checkpoint/internal/writer.h"

namespace tapestry::distributed::checkpoint {
namespace {

constexpr std::uint64_t kConvertBytes = std::uint64_t{1} << 24;

}  // namespace

void merge_checkpoint(const std::string& folder, const std::string& file) {
  ShardReader reader(folder);
  reader.check_shards();
  const FileLayout layout = file_layout("tapestry-checkpoint", folder, reader.index());
  for (const auto& [name, content] : layout.contents)
    if (!content.value.defined()) reader.verify(content.source);
  SafetensorsWriter writer(file, layout.entries(reader.index()), layout.metadata);
  for (const SafetensorsWriter::Entry& entry : writer.entries()) {
    const FileLayout::Content& content = layout.contents.at(entry.name);
    if (content.value.defined()) writer.write(content.value);
    else reader.read_in_order(content.source, [&](const Tensor& rows) { writer.write(rows); });
  }
  writer.commit();
}

void split_checkpoint(const std::string& path, const std::string& folder, int ranks) {
  const SafetensorsFile file(path);
  FileIndex found = index_of_file("tapestry-checkpoint", path, file, ranks);
  Index& index = found.index;
  std::error_code error;
  check<IoError>(!std::filesystem::exists(std::filesystem::path(folder) / kIndexFile, error),
                 "[tapestry-checkpoint] ", folder, " contains a checkpoint already; choose another folder");
  prepare_folder(folder);
  for (int i = 0; i < ranks; ++i) index.shards.push_back({shard_file(i, ranks, 0)});
  try {
    for (int i = 0; i < ranks; ++i)
      write_shard(folder, index, i, [&](const std::string& name, const Piece& piece, const Sink& sink) {
        const std::uint64_t row_bytes = index.tensors.at(name).row_bytes(piece.box);
        const std::int64_t first = piece.box.first[0], rows = piece.box.sizes[0];
        const auto most = static_cast<std::int64_t>(std::max<std::uint64_t>(kConvertBytes / row_bytes, 1));
        for (std::int64_t row = 0; row < rows; row += most)
          sink(file.read_rows(found.sources.at(name), first + row, (std::min)(most, rows - row)));
      });
    write_file_atomically((std::filesystem::path(folder) / kIndexFile).string(), index.text());
  } catch (...) {
    remove_shards(folder, index);
    throw;
  }
}

}  // namespace tapestry::distributed::checkpoint
