#pragma once
// The files that TensorBoard reads: records in TFRecord framing, each of which holds one message in protobuf
// encoding.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace tapestry::watch {

/// The CRC-32C of the bytes (Castagnoli polynomial, RFC 3720 appendix B.4), masked as TFRecord files store
/// it.
std::uint32_t masked_crc32c(std::string_view bytes);

/// A message in protobuf encoding (protobuf.dev/programming-guides/encoding). Fields are written in the order
/// of the calls.
class Message {
 public:
  Message& integer(int field, std::uint64_t value);
  Message& real(int field, double value);
  Message& real32(int field, float value);
  Message& bytes(int field, std::string_view value);
  Message& message(int field, const Message& value) { return bytes(field, value.text_); }
  /// A packed list of doubles.
  template <class List>
  Message& reals(int field, const List& values) {
    Message packed;
    for (const double value : values) packed.put_fixed(value);
    return message(field, packed);
  }
  const std::string& str() const { return text_; }

 private:
  void put_varint(std::uint64_t value);
  template <class T>
  void put_fixed(T value);
  std::string text_;
};

/// An event file that grows at its end. A record is: u64 length, u32 masked CRC of the length, the bytes, u32
/// masked CRC of the bytes; numbers are little-endian (tensorflow/core/lib/io/record_writer.cc).
class EventFile {
 public:
  /// Creates a new file. Throws IoError.
  explicit EventFile(std::string path);
  void write(std::string_view record);
  void flush();
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail_with(const char* what) const;
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace tapestry::watch
