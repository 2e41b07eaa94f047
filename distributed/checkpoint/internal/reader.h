#pragma once
// Reads boxes of the tensors of a sharded checkpoint, whichever files they are in.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/internal/index.h"

namespace tapestry::distributed::checkpoint {

/// An open checkpoint. Opens a shard when it is first read, and checks it against the index then. Throws
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
  /// Does the same with the shards that have elements of the box.
  void check_shards(const std::string& name, const nn::Region& box);
  /// Calls fn(elements, where) for parts of the box, which must exist, piece by piece. `where` is the part's
  /// box of the whole tensor. A part has at most about 16 MiB. The rows of a piece are read whole, also if
  /// the box has a part of each.
  using Receive = std::function<void(const Tensor& elements, const nn::Region& where)>;
  void read(const std::string& name, const nn::Region& box, const Receive& fn);
  /// Reads a box into one tensor, without dimensions if the checkpoint's has none. For small boxes.
  Tensor read(const std::string& name, const nn::Region& box);
  Tensor read(const std::string& name) { return read(name, find(name)->whole()); }
  /// Calls fn(rows) for the whole tensor in the order of its rows, about 16 MiB at a time.
  void read_in_order(const std::string& name, const std::function<void(const Tensor& rows)>& fn);
  /// Reads the blocks that have elements of the box, and throws IoError if the checksum of one is wrong. A
  /// piece without sums of blocks is one block.
  void verify(const std::string& name, const nn::Region& box);
  void verify(const std::string& name) { verify(name, find(name)->whole()); }

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
