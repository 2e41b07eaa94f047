#include "tapestry/distributed/checkpoint/internal/reader.h"

#include <algorithm>
#include <filesystem>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/distributed/checkpoint/internal/boxes.h"
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
    const std::string name = piece_name(*placed.name, *placed.tensor, *placed.piece);
    const SafetensorsFile::Entry* const entry = file->find(name);
    require(entry != nullptr, "lacks the tensor \"", name, "\"");
    const Shape expected = placed.tensor->sizes_of(placed.piece->box);
    require(entry->dtype == placed.tensor->dtype && entry->sizes == expected, "has \"", name, "\" of ",
            entry->dtype, " ", entry->sizes, ", but the index says ", placed.tensor->dtype, " ", expected);
    const auto where = file->metadata().find(piece_key(name));
    const std::string text = piece_text(*placed.tensor, placed.piece->box);
    require(where != file->metadata().end() && where->second == text, "says that \"", name, "\" is ",
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

void ShardReader::check_shards(const std::string& name, const nn::Region& box) {
  for (const Piece& piece : find(name)->pieces)
    if (common(box, piece.box).sizes.numel() > 0) shard(piece.shard);
}

void ShardReader::read(const std::string& name, const nn::Region& box, const Receive& fn) {
  const std::string& real = real_name(name);
  const TensorRecord& tensor = index_.tensors.at(real);
  for (const Piece& piece : tensor.pieces) {
    const nn::Region part = common(box, piece.box);
    if (part.sizes.numel() == 0) continue;
    const auto most =
        static_cast<std::int64_t>(std::max<std::uint64_t>(kReadBytes / tensor.row_bytes(piece.box), 1));
    for (std::int64_t row = 0; row < part.sizes[0]; row += most) {
      const nn::Region where = rows_of(part, row, (std::min)(most, part.sizes[0] - row));
      const Tensor rows = shard(piece.shard)
                              .read_rows(piece_name(stored_name(real), tensor, piece),
                                         where.first[0] - piece.box.first[0], where.sizes[0]);
      nn::Region in_rows = inside(where, piece.box);
      in_rows.first[0] = 0;
      fn(in_rows.of(rows), where);
    }
  }
}

Tensor ShardReader::read(const std::string& name, const nn::Region& box) {
  const TensorRecord& tensor = *find(name);
  // The shards are checked before memory is allocated that only the index claims.
  check_shards(name, box);
  const Tensor all = empty(tensor.sizes_of(box), {tensor.dtype, kCPU});
  read(name, box,
       [&](const Tensor& elements, const nn::Region& where) { inside(where, box).of(all).copy_(elements); });
  return all;
}

void ShardReader::read_in_order(const std::string& name, const std::function<void(const Tensor&)>& fn) {
  const nn::Region whole = find(name)->whole();
  if (whole.sizes.numel() == 0) return;
  const auto most =
      static_cast<std::int64_t>(std::max<std::uint64_t>(kReadBytes / find(name)->row_bytes(whole), 1));
  for (std::int64_t row = 0; row < whole.sizes[0]; row += most)
    fn(read(name, rows_of(whole, row, (std::min)(most, whole.sizes[0] - row))));
}

void ShardReader::verify(const std::string& name, const nn::Region& box) {
  if (!sources_.empty()) return;
  const std::string& real = real_name(name);
  const TensorRecord& tensor = index_.tensors.at(real);
  for (const Piece& piece : tensor.pieces) {
    const std::int64_t rows = piece.box.sizes[0], size = piece.blocks.empty() ? rows : tensor.block_rows;
    for (std::int64_t row = 0, block = 0; row < rows; row += size, ++block) {
      const nn::Region part = rows_of(piece.box, row, (std::min)(size, rows - row));
      if (common(part, box).sizes.numel() == 0) continue;
      std::uint32_t crc = 0;
      read(real, part, [&](const Tensor& elements, const nn::Region&) { crc = crc32_of(crc, elements); });
      const std::uint32_t expected =
          piece.blocks.empty() ? piece.crc32 : piece.blocks[static_cast<std::size_t>(block)];
      const ShardRecord& record = index_.shards[static_cast<std::size_t>(piece.shard)];
      check<IoError>(crc == expected, "[load_sharded] ",
                     (std::filesystem::path(folder_) / record.file).string(), ": the elements of \"", real,
                     "\" in ", part.str(), " are not those that were saved (checksum ", crc, ", not ",
                     expected, "); restore the file or use another checkpoint");
    }
  }
}

}  // namespace tapestry::distributed::checkpoint
