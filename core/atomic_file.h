#pragma once
// Files that are replaced atomically: a reader sees the old content or the new content, never a part of it.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tapestry {

/// Writes a temporary file in the folder of `path`. commit() syncs it (fsync), renames it to `path`, and
/// syncs the folder, so that after a crash at any moment `path` is the old file or the new one. Without
/// commit() the destructor deletes the temporary file. Throws IoError if the folder does not exist, a
/// permission is missing or the disk is full; `path` is then unchanged.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();
  /// The name of the temporary file: `path`, kTemporaryMark, the process id and a counter. A process that is
  /// killed leaves this file behind.
  const std::string& temporary_path() const;
  static constexpr std::string_view kTemporaryMark = ".tmp-";

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Replaces the content of `path` with `text`, through AtomicFile.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace tapestry
