#include "tapestry/nn/watch/internal/event_file.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "tapestry/core/error.h"

namespace tapestry::watch {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

// The wire types of protobuf.
constexpr std::uint64_t kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5;
std::uint64_t key(int field, std::uint64_t type) { return static_cast<std::uint64_t>(field) << 3 | type; }

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void Message::put_varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
  text_ += static_cast<char>(value);
}
template <class T>
void Message::put_fixed(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);  // x86 and ARM are little-endian
  text_ += little_endian(bits, sizeof value);
}
template void Message::put_fixed(double);

Message& Message::integer(int field, std::uint64_t value) {
  put_varint(key(field, kVarint));
  put_varint(value);
  return *this;
}
Message& Message::real(int field, double value) {
  put_varint(key(field, kFixed64));
  put_fixed(value);
  return *this;
}
Message& Message::real32(int field, float value) {
  put_varint(key(field, kFixed32));
  put_fixed(value);
  return *this;
}
Message& Message::bytes(int field, std::string_view value) {
  put_varint(key(field, kLength));
  put_varint(value.size());
  text_ += value;
  return *this;
}

EventFile::EventFile(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wbx")) {
  if (!file_) fail_with("create");
}

void EventFile::write(std::string_view record) {
  const std::string length = little_endian(record.size(), 8);
  std::string framed = length + little_endian(masked_crc32c(length), 4);
  framed += record;
  framed += little_endian(masked_crc32c(record), 4);
  if (std::fwrite(framed.data(), 1, framed.size(), file_.get()) != framed.size()) fail_with("write");
}

void EventFile::flush() {
  if (std::fflush(file_.get()) != 0) fail_with("write");
}

void EventFile::fail_with(const char* what) const {
  const std::string reason = std::strerror(errno);
  fail<IoError>("[SummaryWriter] cannot ", what, " ", path_, ": ", reason,
                "; choose a folder that can be written to, or make room");
}

}  // namespace tapestry::watch
