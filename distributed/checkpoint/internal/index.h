#pragma once
// The index of a sharded checkpoint: which box of which tensor is in which file.
// docs/reference/checkpoints.md describes the format.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/safetensors.h"
#include "tapestry/nn/internal/checkpoint_file.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed::checkpoint {

inline constexpr const char* kIndexFile = "index.json";
using nn::checkpoint_file::kTraining, nn::checkpoint_file::kOptimizer, nn::checkpoint_file::kScheduler,
    nn::checkpoint_file::kScaler, nn::checkpoint_file::kGenerator;
// Options of the optimizer are "training/optimizer/groups.0.lr". State that is divided as its parameter is
// "training/optimizer/state/<parameter>/exp_avg", and other state
// "training/optimizer/extra/<parameter>/step".
inline const std::string kState = kOptimizer + "state/", kExtra = kOptimizer + "extra/",
                         kOptions = kOptimizer + "groups.";

/// A box of a tensor that is in one shard. A tensor without dimensions counts as one of shape [1].
struct Piece {
  int shard = 0;
  nn::Region box = {};
  std::uint32_t crc32 = 0;                 ///< of the elements' bytes, as zlib computes it
  std::vector<std::uint32_t> blocks = {};  ///< the same of each block; see TensorRecord::block_rows
};

/// A tensor and its pieces in order of their first elements. Each element is in one piece, and each piece has
/// elements.
struct TensorRecord {
  DType dtype = DType::f32;
  Shape sizes;
  std::vector<Piece> pieces = {};
  /// The rows of a block: elements of dimension 0. A piece with more rows has a checksum for each of its
  /// blocks, so that a reader of a few rows checks only their blocks. The last block may be shorter. 0 in
  /// checkpoints without block checksums.
  std::int64_t block_rows = 0;

  nn::Region whole() const { return nn::Region::whole(sizes); }
  /// The shape of a box in a file: without dimensions if the tensor has none.
  const Shape& sizes_of(const nn::Region& box) const { return sizes.empty() ? sizes : box.sizes; }
  /// The size in bytes of a box, and of one of its rows.
  std::uint64_t bytes(const nn::Region& box) const;
  std::uint64_t row_bytes(const nn::Region& box) const;
  /// The number of checksums that a piece has beside its own: 0 if it is one block.
  std::size_t num_blocks(const Piece& piece) const;
};

struct ShardRecord {
  std::string file;
  std::uint64_t bytes = 0;
};

struct Index {
  std::string id;  ///< 16 random hexadecimal digits, which the shards repeat
  std::optional<nn::Progress> progress = {};
  std::string optimizer = {};                         ///< Optimizer::name(), or empty
  std::vector<std::vector<std::string>> groups = {};  ///< the names of the optimizer's parameters, by group
  bool scheduler = false;                             ///< whether there is a schedule's state
  std::vector<std::string> generators = {};           ///< by rank; see generator_states()
  StringMap choices = {};                             ///< ShardedTraining::choices
  std::map<std::string, std::string> aliases = {};    ///< further names of tied tensors
  std::vector<ShardRecord> shards = {};
  std::map<std::string, TensorRecord> tensors = {};

  std::string text() const;
  /// Parses and checks the text of a file. Throws IoError, which names `path` and the fault.
  static Index parse(const std::string& path, const std::string& text);
  /// Reads and checks the index of a checkpoint's folder. Throws IoError.
  static Index read(const std::string& folder);
};

/// "shard-00001-of-00004.safetensors". A checkpoint that replaces one of the same step has another
/// generation, and "shard-00001-of-00004.2.safetensors".
std::string shard_file(int shard, int shards, int generation);
/// True for the name of a shard of any checkpoint.
bool is_shard_file(const std::string& name);

/// The metadata of a shard's file, and the key and the text that say where a tensor of the file belongs.
StringMap shard_metadata(const std::string& id, int shard, int shards);
std::string piece_key(const std::string& name);
/// The name of a piece of `tensor.pieces` in its shard: that of the tensor, or "name#2" for the second piece
/// of the tensor in the same shard, which a rank has that stores several boxes.
std::string piece_name(const std::string& name, const TensorRecord& tensor, const Piece& piece);
std::string piece_text(const TensorRecord& tensor, const nn::Region& box);

std::uint32_t crc32_of(std::uint32_t crc, const Tensor& contiguous);
std::string random_id();

}  // namespace tapestry::distributed::checkpoint
