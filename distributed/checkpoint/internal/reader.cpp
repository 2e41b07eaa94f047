#include "tapestry/distributed/checkpoint/internal/reader.h"

#include <algorithm>
#include <filesystem>

#include "tapestry/distributed/checkpoint/internal/one_file.h"

namespace tapestry::distributed::checkpoint {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 24;
constexpr std::size_t kMaxOpen = 128;  // descriptors; a process may have 1024

}  // namespace

ShardReader::ShardReader(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  if (std::filesystem::is_regular_file(folder_, error)) {
    open_.push_back(std::make_unique<SafetensorsFile>(folder_));
    FileIndex found = index_of_file("load_checkpoint", folder_, *open_[0], 1);
    index_ = std::move(found.index);
    index_.shards.push_back({folder_, open_[0]->bytes()});
    sources_ = std::move(found.sources);
    return;
  }
  index_ = Index::read(folder_);
  pieces_.resize(index_.shards.size());
  for (const auto& [name, tensor] : index_.tensors)
    for (const Piece& piece : tensor.pieces)
      pieces_[static_cast<std::size_t>(piece.shard)].push_back({&name, &tensor, &piece});
  open_.resize(index_.shards.size());
}

const std::string& ShardReader::real_name(const std::string& name) const {
  const auto alias = index_.aliases.find(name);
  return alias == index_.aliases.end() ? name : alias->second;
}

const std::string& ShardReader::stored_name(const std::string& name) const {
  const auto source = sources_.find(name);
  return source == sources_.end() ? name : source->second;
}

const TensorRecord* ShardReader::find(const std::string& name) const {
  const auto it = index_.tensors.find(real_name(name));
  return it == index_.tensors.end() ? nullptr : &it->second;
}

const SafetensorsFile& ShardReader::shard(int number) {
  const auto at = static_cast<std::size_t>(number);
  if (open_[at]) return *open_[at];
  const ShardRecord& record = index_.shards[at];
  const std::string path = (std::filesystem::path(folder_) / record.file).string();
  std::error_code error;
  check<IoError>(std::filesystem::exists(path, error), "[load_sharded] ", path,
                 " is missing; the checkpoint needs all of its ", index_.shards.size(),
                 " shards, so restore the file or use another checkpoint");
  auto file = std::make_unique<SafetensorsFile>(path);
  const auto require = [&]<class... Parts>(bool ok, const Parts&... parts) {
    check<IoError>(ok, "[load_sharded] ", path, ": ", parts...,
                   "; restore the file or use another checkpoint");
  };
  require(file->bytes() == record.bytes, "has ", file->bytes(),
          " bytes, but the index of the checkpoint says ", record.bytes);
  for (const auto& [key, value] : shard_metadata(index_.id, number, static_cast<int>(index_.shards.size()))) {
    const auto found = file->metadata().find(key);
    require(found != file->metadata().end() && found->second == value, "belongs to another checkpoint: its ",
            key, " is \"", found == file->metadata().end() ? "" : found->second, "\", not \"", value, "\"");
  }
  require(file->entries().size() == pieces_[at].size(), "has ", file->entries().size(),
          " tensors, but the index lists ", pieces_[at].size());
  for (const Placed& placed : pieces_[at]) {
    const SafetensorsFile::Entry* const entry = file->find(*placed.name);
    require(entry != nullptr, "lacks the tensor \"", *placed.name, "\"");
    const Shape expected = placed.tensor->sizes_of(placed.piece->rows);
    require(entry->dtype == placed.tensor->dtype && entry->sizes == expected, "has \"", *placed.name,
            "\" of ", entry->dtype, " ", entry->sizes, ", but the index says ", placed.tensor->dtype, " ",
            expected);
    const auto where = file->metadata().find(piece_key(*placed.name));
    const std::string text = piece_text(*placed.tensor, placed.piece->first_row);
    require(where != file->metadata().end() && where->second == text, "says that \"", *placed.name, "\" is ",
            where == file->metadata().end() ? "nowhere" : where->second, ", but the index says ", text);
  }
  if (order_.size() == kMaxOpen) {
    open_[static_cast<std::size_t>(order_.front())].reset();
    order_.erase(order_.begin());
  }
  order_.push_back(number);
  open_[at] = std::move(file);
  return *open_[at];
}

void ShardReader::check_shards() {
  for (int i = 0; i < static_cast<int>(index_.shards.size()); ++i) shard(i);
}

void ShardReader::check_shards(const std::string& name, std::int64_t first, std::int64_t rows) {
  for (const Piece& piece : find(name)->pieces)
    if (piece.first_row < first + rows && first < piece.first_row + piece.rows) shard(piece.shard);
}

void ShardReader::read(const std::string& name, std::int64_t first, std::int64_t rows, const Receive& fn) {
  const std::string& real = real_name(name);
  const TensorRecord& tensor = index_.tensors.at(real);
  const std::uint64_t row_bytes = tensor.row_bytes();
  if (row_bytes == 0) return;
  const auto most = static_cast<std::int64_t>(std::max<std::uint64_t>(kReadBytes / row_bytes, 1));
  for (const Piece& piece : tensor.pieces) {
    const std::int64_t begin = std::max(first, piece.first_row),
                       end = (std::min)(first + rows, piece.first_row + piece.rows);
    for (std::int64_t row = begin; row < end; row += most)
      fn(shard(piece.shard).read_rows(stored_name(real), row - piece.first_row, (std::min)(most, end - row)),
         row);
  }
}

Tensor ShardReader::read(const std::string& name) {
  const TensorRecord& tensor = *find(name);
  // The shards are checked before memory is allocated that only the index claims.
  for (const Piece& piece : tensor.pieces) shard(piece.shard);
  const Tensor whole = empty(tensor.sizes, {tensor.dtype, kCPU});
  const std::uint64_t row_bytes = tensor.row_bytes();
  read(name, 0, tensor.rows(), [&](const Tensor& rows, std::int64_t first) {
    if (rows.nbytes() == 0) return;
    std::copy_n(static_cast<const char*>(rows.raw_data()), rows.nbytes(),
                static_cast<char*>(whole.raw_data()) + static_cast<std::uint64_t>(first) * row_bytes);
  });
  return whole;
}

void ShardReader::verify(const std::string& name, std::int64_t first, std::int64_t rows) {
  if (!sources_.empty()) return;
  const std::string& real = real_name(name);
  const TensorRecord& tensor = index_.tensors.at(real);
  for (const Piece& piece : tensor.pieces) {
    const std::int64_t size = piece.blocks.empty() ? piece.rows : tensor.block_rows,
                       end = piece.first_row + piece.rows;
    for (std::int64_t row = piece.first_row, block = 0; row < end; row += size, ++block) {
      const std::int64_t count = (std::min)(size, end - row);
      if (row + count <= first || row >= first + rows) continue;
      std::uint32_t crc = 0;
      read(real, row, count, [&](const Tensor& part, std::int64_t) { crc = crc32_of(crc, part); });
      const std::uint32_t expected =
          piece.blocks.empty() ? piece.crc32 : piece.blocks[static_cast<std::size_t>(block)];
      const ShardRecord& record = index_.shards[static_cast<std::size_t>(piece.shard)];
      check<IoError>(crc == expected, "[load_sharded] ",
                     (std::filesystem::path(folder_) / record.file).string(), ": the elements of \"", real,
                     "\" in the rows ", row, " to ", row + count - 1,
                     " are not those that were saved (checksum ", crc, ", not ", expected,
                     "); restore the file or use another checkpoint");
    }
  }
}

}  // namespace tapestry::distributed::checkpoint
