#pragma once
// Writes shards and removes files of checkpoints.
#include <functional>
#include <string>

#include "tapestry/distributed/checkpoint/internal/index.h"

namespace tapestry::distributed::checkpoint {

/// Gives the rows of a piece's box, in CPU tensors, one after another.
using Sink = std::function<void(const Tensor& rows)>;
using Source = std::function<void(const std::string& name, const Piece& piece, const Sink& sink)>;

/// Writes the pieces of the index that belong to a shard, and sets their checksums and the shard's record.
/// Sets the size of the blocks of all tensors.
void write_shard(const std::string& folder, Index& index, int shard, const Source& source);

/// Creates the folder of a checkpoint. Returns the generation for its shards, whose files do not exist yet:
/// 0 if the folder has no index; what a dead writer left is then removed.
int prepare_folder(const std::string& folder);
/// Removes the shards in the folder that the index does not name, and abandoned temporary files. Null stands
/// for an index that names none.
void remove_other_shards(const std::string& folder, const Index* index);
/// Removes the shards that the index names, for a checkpoint that was not completed. Then removes the folder
/// if it is empty.
void remove_shards(const std::string& folder, const Index& index);
/// Removes a checkpoint: the index first, so that a crash leaves no checkpoint that lacks shards. Files that
/// are not part of a checkpoint stay, and so does their folder. Errors are ignored.
void remove_checkpoint(const std::string& folder);

}  // namespace tapestry::distributed::checkpoint
