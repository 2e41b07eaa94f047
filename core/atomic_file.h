#pragma once
// Files that appear whole or not at all.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tapestry {

/// A file being written aside, in the same folder. commit() makes it take the place of `path`: it is synced,
/// renamed, and the folder synced, so that after a crash at any moment `path` is the old file or the new one.
/// Without commit() nothing of it stays. Throws IoError (no such folder, no permission, disk full); `path` is
/// then as it was.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();
  /// Where it is written until commit(): `path` + kTemporaryMark + process and number. A killed process
  /// leaves it behind.
  const std::string& temporary_path() const;
  static constexpr std::string_view kTemporaryMark = ".tmp-";

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes `text` as the whole of `path`, by AtomicFile.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace tapestry
