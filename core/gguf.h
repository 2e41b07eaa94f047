#pragma once
// The GGUF file format of llama.cpp: metadata and tensors of one model in one file. Versions 2 and 3,
// little-endian. Source: docs/gguf.md of ggml.
//
//   GgufFile file("SmolLM2-135M-Instruct.Q4_1.gguf");
//   std::int64_t layers = file.metadata().integer("llama.block_count");
//   Tensor norm = file.packed("output_norm.weight").unpack();
//
// A file has, in this order: "GGUF", the version (u32), the numbers of tensors and of metadata (u64 each);
// for each metadata its key, type and value; for each tensor its name, dimensions (u32, then u64 each, the
// fastest first), type and offset; and, from the next multiple of the alignment on, the data.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "tapestry/core/packed_tensor.h"
#include "tapestry/core/safetensors.h"

namespace tapestry {

/// An array of metadata. The index of an alternative is the number of its type in the file.
using GgufArray =
    std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>,
                 std::vector<std::int16_t>, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                 std::vector<float>, std::vector<bool>, std::vector<std::string>, std::monostate,
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;
/// A value of metadata. The index of an alternative is the number of its type in the file.
using GgufValue =
    std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float,
                 bool, std::string, GgufArray, std::uint64_t, std::int64_t, double>;

/// The metadata of a file, in its order. The functions that take a fallback return it if the key is absent;
/// the others then throw IoError. All throw IoError if the value is of another kind. Errors name the file and
/// the key.
class GgufMetadata {
 public:
  using Entry = std::pair<std::string, GgufValue>;
  /// Errors name `source`.
  explicit GgufMetadata(std::string source = "metadata");
  // Not inline: each file that includes this header would compile the code of GgufValue.
  GgufMetadata(const GgufMetadata&);
  GgufMetadata(GgufMetadata&&) noexcept;
  GgufMetadata& operator=(const GgufMetadata&);
  GgufMetadata& operator=(GgufMetadata&&) noexcept;
  ~GgufMetadata();
  /// Adds a value, or replaces that of the same key.
  void set(const std::string& key, GgufValue value);
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Null if there is no such key.
  const GgufValue* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  const std::string& source() const { return source_; }

  /// An integer of any size and sign.
  std::int64_t integer(std::string_view key) const;
  std::int64_t integer(std::string_view key, std::int64_t fallback) const;
  /// A floating number or an integer.
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  const std::string& string(std::string_view key) const;
  std::string string(std::string_view key, const std::string& fallback) const;
  const std::vector<std::string>& strings(std::string_view key) const;
  /// An array of integers of any size and sign.
  std::vector<std::int64_t> integers(std::string_view key) const;

  /// Throws IoError that begins with [gguf] and the source.
  template <class... Parts>
  [[noreturn]] void broken(const Parts&... parts) const {
    fail<IoError>("[gguf] ", source_, ": ", parts...);
  }

 private:
  const GgufValue& at(std::string_view key) const;
  [[noreturn]] void wrong_kind(std::string_view key, const char* wanted) const;
  std::string source_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> by_key_;
};

/// A memory-mapped GGUF file. Copies share it. The constructor reads the header and checks everything in it:
/// counts, lengths, types, sizes against shapes, and offsets against each other and against the file's
/// length. Throws IoError, which names the file and the fault. Never allocates more memory than a small
/// multiple of the file's length, whatever the header claims. Refused are big-endian files, version 1, nested
/// arrays (as by llama.cpp), and the types of blocks that BlockType lacks. The file must not become shorter
/// while it is open.
class GgufFile {
 public:
  struct Entry {
    std::string name;
    PackedTensor tensor;
  };
  explicit GgufFile(const std::string& path);

  std::uint32_t version() const;
  const GgufMetadata& metadata() const;
  /// All tensors, in the order of the header.
  const std::vector<Entry>& entries() const;
  /// Null if the file has no tensor of this name.
  const PackedTensor* find(const std::string& name) const;
  /// Throws IoError if the file has no tensor of this name.
  const PackedTensor& packed(const std::string& name) const;
  /// The length of the file in bytes.
  std::uint64_t bytes() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Writes a GGUF file of version 3 piece by piece, so that its tensors need not be in memory together. The
/// file appears with commit() (AtomicFile). The constructor throws ValueError if a name or a key occurs twice
/// or is longer than 65,535 bytes, a tensor has no or more than 4 dimensions, or its rows are no whole number
/// of blocks; IoError if the file cannot be written. Metadata "general.alignment" (u32) sets the alignment,
/// which is 32 otherwise.
class GgufWriter {
 public:
  struct Entry {
    std::string name;
    BlockType type = BlockType::f32;
    Shape sizes;
  };
  GgufWriter(const std::string& path, std::vector<Entry> tensors, const GgufMetadata& metadata);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  const std::vector<Entry>& entries() const;
  /// Writes the next tensor of entries(): a CPU tensor of f32, f16 or bf16 is converted to f32, f16, bf16 or
  /// Q8_0 (PackedTensor::pack). Throws ValueError if the shape is another one.
  void write(const Tensor& tensor);
  /// Writes the next tensor of entries() as it is. Throws ValueError if its type or shape is another one.
  void write(const PackedTensor& tensor);
  /// Throws ValueError if tensors are missing.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry
