#pragma once
// safetensors: named tensors in one file that PyTorch and others read. 8 bytes of header length, a JSON
// header, then the elements, row-major and little-endian.
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

/// An open file whose header has been checked: sizes against shapes, offsets against one another and the
/// file. Throws IoError that names the file, the tensor and what is wrong. Never allocates by what a header
/// merely claims.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape sizes;
    std::uint64_t begin = 0, end = 0;  ///< bytes, from the end of the header
  };
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  /// In the order of their elements in the file.
  const std::vector<Entry>& entries() const;
  /// Null if there is no such tensor.
  const Entry* find(const std::string& name) const;
  const StringMap& metadata() const;
  /// Reads one tensor, to the CPU. Throws IoError if there is none of that name.
  Tensor read(const std::string& name) const;
  Tensor read(const Entry& entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What a file holds, all read to the CPU.
struct Safetensors {
  std::map<std::string, Tensor> tensors;
  StringMap metadata;
};
Safetensors load_safetensors(const std::string& path);

/// Writes all dtypes, strided tensors too, byte for byte as the reference implementation does; whole or not
/// at all (AtomicFile). Throws ValueError for a name that comes twice, is "__metadata__" or not UTF-8,
/// DeviceError for tensors that are not on the CPU, IoError if it cannot be written.
void save_safetensors(const std::string& path, const NamedTensors& tensors, const StringMap& metadata = {});

}  // namespace tapestry
