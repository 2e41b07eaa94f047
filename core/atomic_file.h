#pragma once
// Files that are replaced atomically: a reader sees the old content or the new content, never a part of it.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tapestry {

/// Writes a temporary file in the folder of `path`. commit() syncs it (fsync), renames it to `path`, and
/// syncs the folder, so that after a crash at any moment `path` is the old file or the new one. Without
/// commit() the destructor deletes the temporary file. Throws IoError if the folder does not exist, a
/// permission is missing or the disk is full; `path` is then unchanged. If `path` is a symbolic link, the
/// new file replaces the link.
///
/// The temporary file is created with O_EXCL under a random name, so links that others plant in the folder
/// are never followed. It is locked until commit() returns or this object is destroyed. The kernel drops the
/// lock if the process dies, and remove_abandoned_files() then deletes the file.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();
  /// The name of the temporary file: `path`, kTemporaryMark and 16 random hexadecimal digits.
  const std::string& temporary_path() const;
  static constexpr std::string_view kTemporaryMark = ".tmp-";

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Replaces the content of `path` with `text`, through AtomicFile.
void write_file_atomically(const std::string& path, std::string_view text);

/// Deletes temporary files of AtomicFile in `folder` whose writers ended without commit(). `is_target` gets
/// the name, without the folder, of the file that the temporary file was to become; files for which it
/// returns false stay. A file stays as well if its writer still holds the lock, in this container, another
/// one, or on another host; or if the file system has no locks, because nothing shows then whether the writer
/// lives. Errors are ignored.
void remove_abandoned_files(const std::string& folder,
                            const std::function<bool(const std::string&)>& is_target);

}  // namespace tapestry
