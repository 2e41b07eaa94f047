#pragma once
// A model in several safetensors files, as Hugging Face's libraries write it:
// model-00001-of-00003.safetensors and so on, and model.safetensors.index.json, which says in which file each
// tensor is.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/safetensors.h"

namespace tapestry {

/// Tensors by name over all files of a model, memory-mapped. Copies share the mappings. No file may become
/// shorter while a SafetensorsShards or a tensor of it exists; a file may be replaced.
class SafetensorsShards {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape sizes;
  };
  /// `path` is a folder with model.safetensors or model.safetensors.index.json, such an index, or a
  /// safetensors file. The index decides which tensors there are: others in the files are left out. Checks
  /// each file as SafetensorsFile does. Throws IoError that names the file and the fault, also if the index
  /// is broken, names a file outside of its folder, or names a tensor that its file does not have.
  explicit SafetensorsShards(const std::string& path);

  /// All tensors, ordered by name.
  const std::vector<Entry>& entries() const;
  /// Null if no file has a tensor of this name.
  const Entry* find(const std::string& name) const;
  /// Returns a tensor that shares the memory of its file, so that nothing is read before it is used. Changes
  /// of it stay in this process and never reach the file. Booleans, and elements at addresses that are no
  /// multiple of their size, are copied instead. Throws IoError if there is no tensor of this name.
  Tensor read(const std::string& name) const;
  /// The number of files.
  std::size_t shards() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// A tensor that is read when it is needed, so that a file can be written that does not fit into memory.
struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  Shape sizes;
  std::function<Tensor()> read;  ///< returns a tensor of this dtype and these sizes on the CPU
};

struct SaveShardsOptions {
  /// The elements of one file have at most so many bytes, unless one tensor alone has more.
  std::uint64_t max_shard_bytes = 5'000'000'000;
};

/// Writes the tensors into a folder, which is created if it does not exist: model.safetensors if they fit
/// into one file, else several files and their index, which comes last. Every file is written through
/// AtomicFile, with the metadata {"format": "pt"}, which transformers asks for. A folder that has a model of
/// several files is refused (IoError), because a crash could leave files of both models under one index;
/// model.safetensors alone is replaced, if the new model is one file too. Throws ValueError if
/// max_shard_bytes is 0, a name occurs twice, or a source returns another dtype or shape than it says.
void save_safetensors_shards(const std::string& folder, const std::vector<TensorSource>& tensors,
                             const SaveShardsOptions& options = {});

}  // namespace tapestry
