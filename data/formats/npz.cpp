// The zip archives of NPZ files: PKWARE's APPNOTE.TXT 6.3, sections 4.3 and 4.5.
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/error.h"
#include "tapestry/data/collate.h"
#include "tapestry/data/formats/internal/npy_stream.h"
#include "tapestry/data/formats/npy.h"

namespace tapestry::data {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                        kLocator64 = 0x07064b50;
constexpr std::uint64_t kFull = 0xffffffff;
constexpr int kStored = 0, kDeflated = 8;

std::uint64_t number(const unsigned char* at, int bytes) {
  std::uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | at[i];
  return value;
}
void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 255);
}

struct Member {
  std::string name;
  int method = 0, flags = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0, size = 0, header = 0, data = 0;  // `header` and `data` are positions in the file
};

/// An open archive.
class Archive {
 public:
  explicit Archive(const std::string& path) : path_(path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    check<IoError>(!exists(status) || is_regular_file(status), "[load_npz] ", path,
                   ": is not a regular file");
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) fail<IoError>("[load_npz] ", path, ": cannot be opened: ", std::strerror(errno));
    size_ = std::filesystem::file_size(path, error);
    if (error) broken("its size is unknown: " + error.message());
    read_directory();
  }

  const std::vector<Member>& members() const { return members_; }
  [[noreturn]] void broken(const std::string& what) const { fail<IoError>("[load_npz] ", path_, ": ", what); }

  void read(std::uint64_t at, void* out, std::size_t bytes) {
    if (at > size_ || bytes > size_ - at) broken("is cut off");
    if (fseeko(file_.get(), static_cast<off_t>(at), SEEK_SET) != 0 ||
        std::fread(out, 1, bytes, file_.get()) != bytes)
      broken("cannot be read");
  }

 private:
  std::vector<unsigned char> bytes(std::uint64_t at, std::uint64_t count) {
    if (at > size_ || count > size_ - at) broken("is cut off, or its directory is damaged");
    std::vector<unsigned char> out(static_cast<std::size_t>(count));
    read(at, out.data(), out.size());
    return out;
  }

  void read_directory() {
    constexpr std::uint64_t kEndSize = 22, kLongestComment = 65535;
    const std::uint64_t tail_size = std::min(size_, kEndSize + kLongestComment);
    const std::vector<unsigned char> tail = bytes(size_ - tail_size, tail_size);
    std::size_t end = tail.size();
    for (std::size_t back = kEndSize; back <= tail.size() && end == tail.size(); ++back) {
      const std::size_t at = tail.size() - back;
      if (number(&tail[at], 4) == kEnd && number(&tail[at + 20], 2) == back - kEndSize) end = at;
    }
    if (end == tail.size()) broken("has no directory of a zip archive; it is cut off or not an NPZ file");
    std::uint64_t count = number(&tail[end + 10], 2), length = number(&tail[end + 12], 4),
                  start = number(&tail[end + 16], 4), limit = size_ - tail_size + end;
    if (number(&tail[end + 4], 2) != 0 && number(&tail[end + 4], 2) != 0xffff)
      broken("is a part of a split archive");
    if (count == 0xffff || length == kFull || start == kFull) {
      if (limit < 20) broken("its directory is damaged");
      const std::vector<unsigned char> locator = bytes(limit - 20, 20);
      if (number(&locator[0], 4) == kLocator64) {
        limit = number(&locator[8], 8);
        const std::vector<unsigned char> record = bytes(limit, 56);
        if (number(&record[0], 4) != kEnd64) broken("its directory is damaged");
        count = number(&record[32], 8), length = number(&record[40], 8), start = number(&record[48], 8);
      }
    }
    if (start > limit || length > limit - start) broken("its directory is damaged");
    parse_directory(bytes(start, length), count);
    locate(start);
  }

  void parse_directory(const std::vector<unsigned char>& directory, std::uint64_t count) {
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      constexpr std::size_t kEntry = 46;
      if (directory.size() - at < kEntry || number(&directory[at], 4) != kCentral)
        broken("its directory is damaged");
      const unsigned char* entry = &directory[at];
      const std::size_t name = number(entry + 28, 2), extra = number(entry + 30, 2),
                        comment = number(entry + 32, 2);
      if (directory.size() - at - kEntry < name + extra + comment) broken("its directory is damaged");
      Member member;
      member.name.assign(reinterpret_cast<const char*>(entry + kEntry), name);
      member.flags = static_cast<int>(number(entry + 8, 2));
      member.method = static_cast<int>(number(entry + 10, 2));
      member.crc = static_cast<std::uint32_t>(number(entry + 16, 4));
      member.packed = number(entry + 20, 4);
      member.size = number(entry + 24, 4);
      member.header = number(entry + 42, 4);
      read_sizes64(member, entry + kEntry + name, extra);
      members_.push_back(std::move(member));
      at += kEntry + name + extra + comment;
    }
  }

  /// Takes the sizes that do not fit in 32 bits from the extra field of type 1.
  void read_sizes64(Member& member, const unsigned char* extra, std::size_t length) const {
    while (length >= 4) {
      const std::size_t type = number(extra, 2), bytes = number(extra + 2, 2);
      extra += 4, length -= 4;
      if (bytes > length) broken("its directory is damaged");
      if (type == 1) {
        const unsigned char* at = extra;
        for (std::uint64_t* value : {&member.size, &member.packed, &member.header}) {
          if (*value != kFull) continue;
          if (extra + bytes - at < 8) broken("its directory is damaged");
          *value = number(at, 8);
          at += 8;
        }
      }
      extra += bytes, length -= bytes;
    }
  }

  /// Finds the data of each member. Members that overlap could expand to far more than the file holds.
  void locate(std::uint64_t directory) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (Member& member : members_) {
      const std::vector<unsigned char> header = bytes(member.header, 30);
      if (number(&header[0], 4) != kLocal) broken("the header of \"" + member.name + "\" is damaged");
      member.data = member.header + 30 + number(&header[26], 2) + number(&header[28], 2);
      if (member.data > directory || member.packed > directory - member.data)
        broken("the file \"" + member.name + "\" in it is cut off");
      ranges.emplace_back(member.header, member.data + member.packed);
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i)
      if (ranges[i].first < ranges[i - 1].second) broken("files in it overlap");
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t size_ = 0;
  std::vector<Member> members_;
};

/// Reads the uncompressed bytes of one member in order.
class MemberReader {
 public:
  MemberReader(Archive& archive, const Member& member)
      : archive_(archive),
        member_(member),
        left_(member.size),
        packed_left_(member.packed),
        at_(member.data) {
    if (member.flags & 1) broken("is encrypted");
    if (member.method != kStored && member.method != kDeflated)
      broken(
          concat({"is compressed by method ", member.method, "; stored and deflated files are supported"}));
    if (member.method == kStored && member.packed != member.size) broken("has two sizes");
    // Deflate expands by at most 1032 to 1.
    if (member.size / 1032 > member.packed + 64)
      broken("claims more bytes than its compressed data can hold");
    if (member.method == kDeflated) {
      constexpr int kRaw = -15;
      if (inflateInit2(&stream_, kRaw) != Z_OK) broken("cannot be decompressed: zlib could not be started");
      started_ = true;
      buffer_.resize(1 << 16);
    }
  }
  ~MemberReader() {
    if (started_) inflateEnd(&stream_);
  }
  MemberReader(const MemberReader&) = delete;
  MemberReader& operator=(const MemberReader&) = delete;

  [[noreturn]] void broken(const std::string& what) const {
    archive_.broken("the file \"" + member_.name + "\" in it " + what);
  }
  void expect_room(std::uint64_t bytes, const char* what) const {
    if (bytes != left_)
      broken(concat({"claims ", bytes, " bytes of ", what, " in its header, and has ", left_}));
  }
  void read(void* out, std::size_t bytes, const char* what) {
    if (bytes > left_) broken(concat({"ends before its ", what, " is complete"}));
    left_ -= bytes;
    if (started_) inflate_bytes(out, bytes);
    else raw(out, bytes);
    // For a null pointer, which an empty tensor may have, crc32_z() returns its initial value.
    if (bytes > 0) crc_ = static_cast<std::uint32_t>(crc32_z(crc_, static_cast<const Bytef*>(out), bytes));
  }
  void expect_end() {
    if (left_ > 0) broken("goes on after its last element");
    if (crc_ != member_.crc) broken("is damaged: its checksum is wrong");
  }

 private:
  void raw(void* out, std::size_t bytes) {
    archive_.read(at_, out, bytes);
    at_ += bytes;
    packed_left_ -= bytes;
  }
  void inflate_bytes(void* out, std::size_t bytes) {
    Bytef* to = static_cast<Bytef*>(out);
    while (bytes > 0) {
      if (stream_.avail_in == 0 && packed_left_ > 0) {
        const std::size_t step =
            static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), packed_left_));
        raw(buffer_.data(), step);
        stream_.next_in = buffer_.data();
        stream_.avail_in = static_cast<uInt>(step);
      }
      const uInt step = static_cast<uInt>(std::min<std::size_t>(bytes, 1u << 30));
      stream_.next_out = to;
      stream_.avail_out = step;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      const uInt got = step - stream_.avail_out;
      to += got;
      bytes -= got;
      if (status != Z_OK && !(status == Z_STREAM_END && bytes == 0))
        broken("is damaged: its compressed data ends early or is wrong");
    }
  }

  Archive& archive_;
  const Member& member_;
  std::uint64_t left_, packed_left_, at_;
  std::uint32_t crc_ = 0;
  bool started_ = false;
  z_stream stream_{};
  std::vector<unsigned char> buffer_;
};

std::string deflated(const std::string& header, const Tensor& elements) {
  z_stream stream{};
  constexpr int kRaw = -15;
  check<Error>(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kRaw, 8, Z_DEFAULT_STRATEGY) == Z_OK,
               "[save_npz] zlib could not be started");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, deflateEnd);
  std::string out;
  std::vector<unsigned char> buffer(1 << 16);
  const auto run = [&](const void* data, std::size_t bytes, int flush) {
    stream.next_in = static_cast<Bytef*>(const_cast<void*>(data));
    stream.avail_in = static_cast<uInt>(bytes);
    do {
      stream.next_out = buffer.data();
      stream.avail_out = static_cast<uInt>(buffer.size());
      deflate(&stream, flush);
      out.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  };
  run(header.data(), header.size(), Z_NO_FLUSH);
  run(elements.raw_data(), elements.nbytes(), Z_FINISH);
  return out;
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

}  // namespace

std::map<std::string, Tensor> load_npz(const std::string& path) {
  Archive archive(path);
  std::map<std::string, Tensor> out;
  for (const Member& member : archive.members()) {
    if (member.name.ends_with("/")) continue;  // a folder
    MemberReader reader(archive, member);
    const NpySource source{
        [&](void* to, std::size_t bytes, const char* what) { reader.read(to, bytes, what); },
        [&](std::uint64_t bytes, const char* what) { reader.expect_room(bytes, what); },
        [&](const std::string& what) { reader.broken(what); }};
    const Tensor tensor = read_npy(source);
    reader.expect_end();
    std::string name = member.name;
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    if (!out.emplace(name, tensor).second) archive.broken("the name \"" + name + "\" occurs twice");
  }
  return out;
}

void save_npz(const std::string& path, const NamedTensors& tensors, SaveNpzOptions options) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    check(!name.empty() && name.size() < 60000 && name.find('\0') == std::string::npos,
          "[save_npz] the name \"", name, "\" is empty, too long, or contains a zero byte");
    check(names.insert(name).second, "[save_npz] the name \"", name, "\" occurs twice");
  }
  check(tensors.size() < 0xffff, "[save_npz] ", tensors.size(),
        " tensors are too many; use save_safetensors()");
  AtomicFile file(path);
  std::string directory;
  std::uint64_t at = 0;
  const auto check_position = [&](std::uint64_t next) {
    check(next < kFull, "[save_npz] the file would have 4 GiB or more; use save_safetensors()");
  };
  for (const auto& [name, tensor] : tensors) {
    const Tensor elements = npy_elements("save_npz", tensor, false);
    const std::string header = npy_header(tensor, false), member = name + ".npy";
    const std::uint64_t size = header.size() + elements.nbytes();
    check_position(at + size);
    uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
    if (elements.nbytes() > 0)
      crc = crc32_z(crc, static_cast<const Bytef*>(elements.raw_data()), elements.nbytes());
    const std::string packed = options.compressed ? deflated(header, elements) : std::string();
    const std::uint64_t packed_size = options.compressed ? packed.size() : size;
    std::string common;  // the fields that the header of a member and its entry in the directory share
    put(common, 20, 2);  // the version of zip that can read it
    put(common, is_ascii(member) ? 0 : 1 << 11, 2);
    put(common, options.compressed ? kDeflated : kStored, 2);
    put(common, 0x00210000, 4);  // January 1, 1980, so that equal tensors give equal files
    put(common, crc, 4);
    put(common, packed_size, 4);
    put(common, size, 4);
    put(common, member.size(), 2);
    put(common, 0, 2);
    std::string local;
    put(local, kLocal, 4);
    local += common + member;
    put(directory, kCentral, 4);
    put(directory, 20, 2);
    directory += common;
    put(directory, 0, 8);  // no comment, first disk, no attributes
    put(directory, 0, 2);
    put(directory, at, 4);
    directory += member;
    file.write(local);
    if (options.compressed) {
      file.write(packed);
    } else {
      file.write(header);
      if (elements.nbytes() > 0) file.write(elements.raw_data(), elements.nbytes());
    }
    at += local.size() + packed_size;
    check_position(at + directory.size());
  }
  std::string end;
  put(end, kEnd, 4);
  put(end, 0, 4);
  put(end, tensors.size(), 2);
  put(end, tensors.size(), 2);
  put(end, directory.size(), 4);
  put(end, at, 4);
  put(end, 0, 2);
  file.write(directory);
  file.write(end);
  file.commit();
}

}  // namespace tapestry::data
