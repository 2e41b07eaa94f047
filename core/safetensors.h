#pragma once
// The safetensors file format (huggingface/safetensors): named tensors in one file. The file has 8 bytes of
// header length, a JSON header, then the elements of all tensors, row-major and little-endian.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using StringMap = std::map<std::string, std::string>;

/// An open safetensors file. The constructor checks the header: sizes against shapes, and offsets against
/// each other and the file's length. Throws IoError, which names the file, the tensor and the fault. Never
/// allocates more memory than the file's length justifies, whatever the header claims.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape sizes;
    std::uint64_t begin = 0, end = 0;  ///< byte offsets from the end of the header
  };
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  /// All tensors, in the order of their data in the file.
  const std::vector<Entry>& entries() const;
  /// Null if the file has no tensor of this name.
  const Entry* find(const std::string& name) const;
  const StringMap& metadata() const;
  /// Reads one tensor to the CPU. Throws IoError if the file has no tensor of this name.
  Tensor read(const std::string& name) const;
  Tensor read(const Entry& entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The whole content of a file; all tensors are on the CPU.
struct Safetensors {
  std::map<std::string, Tensor> tensors;
  StringMap metadata;
};
Safetensors load_safetensors(const std::string& path);

/// Writes tensors of any dtype and layout. The file is the same, byte for byte, as that of the reference
/// implementation, and it is replaced atomically (AtomicFile). Throws ValueError if a name occurs twice, is
/// "__metadata__" or is not UTF-8, DeviceError if a tensor is not on the CPU, and IoError if the file cannot
/// be written.
void save_safetensors(const std::string& path, const NamedTensors& tensors, const StringMap& metadata = {});

}  // namespace tapestry
