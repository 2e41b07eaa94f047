#pragma once
// A checkpoint as one safetensors file: the tensors that nn::save_checkpoint() writes, and their names in an
// index.
#include <map>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/internal/index.h"

namespace tapestry::distributed::checkpoint {

/// The content of the file for an index.
struct FileLayout {
  /// A tensor of the file: the name of its source in the index, or its value.
  struct Content {
    std::string source;
    Tensor value = {};
  };
  std::map<std::string, Content> contents;  ///< by name in the file
  StringMap metadata;

  /// The entries for a SafetensorsWriter.
  std::vector<SafetensorsFile::Entry> entries(const Index& index) const;
};
/// Throws IoError, which names `origin`, if the index has the state of a parameter that no group lists. `op`
/// is the name in the text.
FileLayout file_layout(const char* op, const std::string& origin, const Index& index);

/// The index of a file that nn::save_checkpoint(), save_checkpoint() or nn::save_model() wrote, without
/// shards and checksums: the rows of each tensor are divided among `ranks` shards.
struct FileIndex {
  Index index;
  std::map<std::string, std::string> sources;  ///< the names in the file, by name in the index
};
/// Throws IoError, which names the file and the fault.
FileIndex index_of_file(const char* op, const std::string& path, const SafetensorsFile& file, int ranks);

}  // namespace tapestry::distributed::checkpoint
