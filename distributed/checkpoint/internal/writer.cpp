#include "tapestry/distributed/checkpoint/internal/writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tapestry/core/atomic_file.h"

namespace tapestry::distributed::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

bool is_own_file(const std::string& name) { return name == kIndexFile || is_shard_file(name); }

/// Makes a new entry of a folder durable. A failure is ignored: some network file systems cannot sync
/// folders.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator file(folder, error); !error && file != fs::directory_iterator();
       file.increment(error))
    names.push_back(file->path().filename().string());
  return names;
}

/// Adds the next rows of a piece to its checksum and to those of its blocks. `done` counts the rows before.
void add_to_sums(const TensorRecord& tensor, Piece& piece, const Tensor& dense, std::int64_t& done) {
  const std::uint64_t row_bytes = tensor.row_bytes(piece.box);
  const auto* const bytes = static_cast<const Bytef*>(dense.raw_data());
  const auto rows = static_cast<std::int64_t>(dense.nbytes() / row_bytes);
  for (std::int64_t row = 0; row < rows;) {
    const std::int64_t count = (std::min)(rows - row, tensor.block_rows - done % tensor.block_rows);
    const std::uint64_t length = static_cast<std::uint64_t>(count) * row_bytes;
    const uLong crc = crc32_z(0, bytes + static_cast<std::uint64_t>(row) * row_bytes, length);
    const auto append = [&](std::uint32_t& sum) {
      sum = static_cast<std::uint32_t>(crc32_combine(sum, crc, static_cast<z_off_t>(length)));
    };
    append(piece.crc32);
    if (!piece.blocks.empty()) append(piece.blocks[static_cast<std::size_t>(done / tensor.block_rows)]);
    row += count;
    done += count;
  }
}

}  // namespace

void write_shard(const std::string& folder, Index& index, int shard, const Source& source) {
  const int shards = static_cast<int>(index.shards.size());
  ShardRecord& record = index.shards[static_cast<std::size_t>(shard)];
  StringMap metadata = shard_metadata(index.id, shard, shards);
  std::vector<SafetensorsWriter::Entry> entries;
  struct Entry {
    const std::string* name;  // of the tensor
    const TensorRecord* tensor;
    Piece* piece;
  };
  std::map<std::string, Entry> pieces;  // by their names in the shard
  for (auto& [name, tensor] : index.tensors) {
    tensor.block_rows = static_cast<std::int64_t>(std::max<std::uint64_t>(
        kBlockBytes / std::max<std::uint64_t>(tensor.row_bytes(tensor.whole()), 1), 1));
    for (Piece& piece : tensor.pieces) {
      if (piece.shard != shard) continue;
      const std::string here = piece_name(name, tensor, piece);
      entries.push_back({here, tensor.dtype, tensor.sizes_of(piece.box)});
      metadata[piece_key(here)] = piece_text(tensor, piece.box);
      pieces.emplace(here, Entry{&name, &tensor, &piece});
    }
  }
  const std::string path = (fs::path(folder) / record.file).string();
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const SafetensorsWriter::Entry& entry : writer.entries()) {
    const Entry& own = pieces.at(entry.name);
    const TensorRecord& tensor = *own.tensor;
    Piece& piece = *own.piece;
    std::int64_t rows_done = 0;
    piece.crc32 = 0;
    piece.blocks.assign(tensor.num_blocks(piece), 0);
    source(*own.name, piece, [&](const Tensor& rows) {
      const Tensor dense = rows.contiguous();
      add_to_sums(tensor, piece, dense, rows_done);
      writer.write(dense);
    });
  }
  writer.commit();
  std::error_code error;
  record.bytes = fs::file_size(path, error);
  check<IoError>(!error, "[save_sharded] ", path, " was written, but cannot be read: ", error.message());
}

int prepare_folder(const std::string& folder) {
  std::error_code error, unknown;
  fs::create_directories(folder, error);
  check<IoError>(fs::is_directory(folder, unknown), "[save_sharded] the folder ", folder,
                 " cannot be made: ", error.message(), "; choose one that can be written to");
  sync_folder(fs::absolute(folder, error).parent_path());
  if (!fs::exists(fs::path(folder) / kIndexFile, error)) {
    remove_other_shards(folder, nullptr);
    return 0;
  }
  // The files of an older checkpoint are never overwritten, because it stays valid until the new index
  // replaces its own.
  for (int generation = 1;; ++generation) {
    bool used = false;
    const std::string mark = "." + std::to_string(generation) + ".safetensors";
    for (const std::string& name : names_in(folder))
      used = used || (is_shard_file(name) && name.ends_with(mark));
    if (!used) return generation;
  }
}

void remove_other_shards(const std::string& folder, const Index* index) {
  std::set<std::string> keep;
  if (index)
    for (const ShardRecord& shard : index->shards) keep.insert(shard.file);
  std::error_code error;
  for (const std::string& name : names_in(folder))
    if (is_shard_file(name) && !keep.contains(name)) fs::remove(fs::path(folder) / name, error);
  remove_abandoned_files(folder, is_own_file);
}

void remove_shards(const std::string& folder, const Index& index) {
  std::error_code error;
  for (const ShardRecord& shard : index.shards) fs::remove(fs::path(folder) / shard.file, error);
  remove_abandoned_files(folder, is_own_file);
  fs::remove(folder, error);  // fails unless the folder is empty
}

void remove_checkpoint(const std::string& folder) {
  std::error_code error;
  fs::remove(fs::path(folder) / kIndexFile, error);
  sync_folder(folder);
  remove_other_shards(folder, nullptr);
  fs::remove(folder, error);  // fails unless the folder is empty
}

}  // namespace tapestry::distributed::checkpoint
