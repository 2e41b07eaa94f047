#pragma once
// Reads rows of the tensors of a sharded checkpoint, whichever files they are in.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/internal/index.h"

namespace tapestry::distributed::checkpoint {

/// An open checkpoint. Opens a shard when its first row is read, and checks it against the index then. Throws
/// IoError, which names the shard and the fault. One thread at a time may use it.
class ShardReader {
 public:
  /// `folder` may also be one file (index_of_file()). It has no checksums, so verify() compares none.
  explicit ShardReader(std::string folder);

  const Index& index() const { return index_; }
  const std::string& folder() const { return folder_; }
  /// Returns the record of a tensor or of an alias, or null.
  const TensorRecord* find(const std::string& name) const;
  /// Throws IoError unless every shard exists, has its length, and belongs to this checkpoint.
  void check_shards();
  /// Does the same with the shards that have some of the rows [first, first + rows).
  void check_shards(const std::string& name, std::int64_t first, std::int64_t rows);
  /// Calls fn(rows, first) for consecutive parts of the rows [first, first + rows), which must exist. A part
  /// has at most about 16 MiB.
  using Receive = std::function<void(const Tensor& rows, std::int64_t first)>;
  void read(const std::string& name, std::int64_t first, std::int64_t rows, const Receive& fn);
  /// Reads the whole tensor. For small tensors.
  Tensor read(const std::string& name);
  /// Reads the blocks that have some of the rows [first, first + rows), and throws IoError if the checksum of
  /// one is wrong. A piece without sums of blocks is one block.
  void verify(const std::string& name, std::int64_t first, std::int64_t rows);

 private:
  struct Placed {
    const std::string* name;
    const TensorRecord* tensor;
    const Piece* piece;
  };
  const SafetensorsFile& shard(int number);
  const std::string& real_name(const std::string& name) const;
  const std::string& stored_name(const std::string& name) const;

  std::string folder_;
  std::map<std::string, std::string> sources_;  // of one file: the names in it
  Index index_;
  std::vector<std::vector<Placed>> pieces_;  // by shard
  std::vector<std::unique_ptr<SafetensorsFile>> open_;
  std::vector<int> order_;  // the open shards, the oldest first
};

}  // namespace tapestry::distributed::checkpoint
