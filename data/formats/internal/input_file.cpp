#include "tapestry/data/formats/internal/input_file.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "tapestry/core/error.h"

namespace tapestry::data {

struct InputFile::Impl {
  const char* format;
  std::string path;
  std::FILE* file = nullptr;
  std::uint64_t file_size = 0, consumed = 0;  // bytes of the file, before decompression
  bool gzip = false, member_ended = false;
  z_stream stream{};
  std::vector<unsigned char> buffer;

  ~Impl() {
    if (gzip) inflateEnd(&stream);
    if (file) std::fclose(file);
  }
  [[noreturn]] void broken(const std::string& what) const {
    fail<IoError>("[", format, "] ", path, ": ", what);
  }

  std::size_t read_raw(void* out, std::size_t bytes) {
    const std::size_t got = std::fread(out, 1, bytes, file);
    if (got < bytes && std::ferror(file)) broken("cannot be read: " + std::string(std::strerror(errno)));
    consumed += got;
    return got;
  }

  void refill() {
    if (stream.avail_in > 0) return;
    stream.next_in = buffer.data();
    stream.avail_in = static_cast<uInt>(read_raw(buffer.data(), buffer.size()));
  }

  /// Reads up to `bytes` bytes and returns how many there were.
  std::size_t read_gzip(void* out, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
      refill();
      if (member_ended) {
        if (stream.avail_in == 0) break;
        inflateReset(&stream);  // a gzip file may have several members
        member_ended = false;
      }
      const uInt step = static_cast<uInt>(std::min<std::size_t>(bytes - done, 1u << 30));
      stream.next_out = static_cast<Bytef*>(out) + done;
      stream.avail_out = step;
      const bool cut = stream.avail_in == 0;
      const int status = inflate(&stream, Z_NO_FLUSH);
      done += step - stream.avail_out;
      if (status == Z_STREAM_END) member_ended = true;
      else if (cut && status == Z_BUF_ERROR) broken("the gzip stream is cut off; fetch the file again");
      else if (status != Z_OK && status != Z_BUF_ERROR)
        broken(std::string("the gzip stream is damaged (") + (stream.msg ? stream.msg : "zlib error") +
               "); fetch the file again");
    }
    return done;
  }

  std::size_t read_some(void* out, std::size_t bytes) {
    return gzip ? read_gzip(out, bytes) : read_raw(out, bytes);
  }
};

InputFile::InputFile(const char* format, const std::string& path) : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  s.format = format;
  s.path = path;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  check<IoError>(!is_directory(status), "[", format, "] ", path, ": is a directory, not a file");
  // Opening a FIFO would block until another process opens it for writing.
  check<IoError>(!exists(status) || is_regular_file(status), "[", format, "] ", path,
                 ": is not a regular file");
  s.file = std::fopen(path.c_str(), "rb");
  if (!s.file) fail<IoError>("[", format, "] ", path, ": cannot be opened: ", std::strerror(errno));
  s.file_size = std::filesystem::file_size(path, error);
  if (error) s.broken("its size is unknown: " + error.message());
  unsigned char magic[2];
  const std::size_t got = std::fread(magic, 1, 2, s.file);
  std::rewind(s.file);
  if (got == 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
    constexpr int window = 15, gzip_format = 16;
    if (inflateInit2(&s.stream, window + gzip_format) != Z_OK) s.broken("zlib could not be started");
    s.gzip = true;
    s.buffer.resize(1 << 16);
  }
}

InputFile::~InputFile() = default;

void InputFile::read(void* out, std::size_t bytes, const char* what) {
  const std::size_t got = impl_->read_some(out, bytes);
  if (got < bytes)
    impl_->broken(concat({"ends after ", got, " of the ", bytes, " bytes of its ", what,
                          "; it is cut off or its header is wrong"}));
}

void InputFile::expect_end() {
  unsigned char extra;
  if (impl_->read_some(&extra, 1) != 0)
    impl_->broken("goes on after the end that its header gives; the header is wrong");
}

std::uint64_t InputFile::remaining() const {
  return impl_->file_size - std::min(impl_->file_size, impl_->consumed);
}

void InputFile::expect_room(std::uint64_t bytes, const char* what) const {
  constexpr std::uint64_t kDeflateBest = 1032;
  const std::uint64_t room = impl_->gzip ? (remaining() + impl_->buffer.size()) * kDeflateBest : remaining();
  if (bytes > room)
    impl_->broken(
        concat({"its header claims ", bytes, " bytes of ", what, ", but a file of ", impl_->file_size,
                " bytes cannot hold them; it is cut off or its header is wrong"}));
}

bool InputFile::compressed() const { return impl_->gzip; }
void InputFile::broken(const std::string& what) const { impl_->broken(what); }

}  // namespace tapestry::data
