#include "tapestry/tools/ptx/runtime/fat_binary.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <regex>
#include <sstream>
#include <string_view>

namespace stand_in {
namespace {

// The layouts of fat binaries, which nvcc writes and cuobjdump reads. NVIDIA does not document them.
struct FatBinaryHeader {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;
};
struct EntryHeader {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes;
};
constexpr std::uint32_t kFatBinaryMagic = 0xba55ed50;
constexpr std::uint16_t kPtx = 1;

template <class T>
T read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class... Args>
std::string text_of(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Calls f with each part until it returns true.
template <class F>
void each_entry(const void* fat_binary, F f) {
  const char* const start = static_cast<const char*>(fat_binary);
  const auto header = read<FatBinaryHeader>(start);
  if (header.magic != kFatBinaryMagic) return;
  const char* at = start + header.header_bytes;
  for (const char* const end = at + header.bytes; at + sizeof(EntryHeader) <= end;) {
    const auto entry = read<EntryHeader>(at);
    const char* const bytes = at + entry.header_bytes;
    if (f(entry, std::string_view(bytes, entry.bytes))) return;
    at = bytes + entry.bytes;
  }
}
// Calls f with each uncompressed PTX text until it returns true.
template <class F>
void each_ptx(const void* fat_binary, F f) {
  each_entry(fat_binary, [&](const EntryHeader& entry, std::string_view bytes) {
    return entry.kind == kPtx && entry.compressed_bytes == 0 && f(bytes);
  });
}

// The number in ".target sm_90a".
int target_of(std::string_view ptx) {
  const std::string_view word = ".target sm_";
  const std::size_t at = ptx.find(word);
  int number = 0;
  if (at != ptx.npos) std::from_chars(ptx.data() + at + word.size(), ptx.data() + ptx.size(), number);
  return number;
}

// Parses the declaration of one parameter. ".param .u64 .ptr .align 1 name" has 8 bytes; ".param .align 8 .b8
// name[24]" has 24 bytes, aligned to 8.
std::optional<Parameter> parse(const std::string& text, std::size_t end_of_last) {
  static const std::regex array(R"(\.align\s+(\d+)\s+\.b8\s+[\w$%]+\[(\d+)\])"),
      scalar(R"(\.param\s+\.[subf](\d+)\b)");
  std::smatch match;
  std::size_t align = 0, bytes = 0;
  if (std::regex_search(text, match, array)) {
    align = std::stoul(match[1]);
    bytes = std::stoul(match[2]);
  } else if (std::regex_search(text, match, scalar)) {
    align = bytes = std::stoul(match[1]) / 8;
  }
  if (align == 0) return std::nullopt;
  return Parameter{(end_of_last + align - 1) / align * align, bytes};
}

}  // namespace

FoundPtx find_ptx(const void* fat_binary, int major, int minor) {
  FoundPtx found;
  int best = -1, newer = 0;
  bool compressed = false, machine_code = false;
  each_entry(fat_binary, [&](const EntryHeader& entry, std::string_view bytes) {
    if (entry.kind != kPtx) {
      machine_code = true;
    } else if (entry.compressed_bytes != 0) {
      compressed = true;
    } else {
      const std::string_view text = bytes.substr(0, bytes.find('\0'));  // padded with zeros
      const int target = target_of(text);
      if (target > 10 * major + minor) {
        newer = target;
      } else if (target > best) {
        best = target;
        found.text = text;
      }
    }
    return false;
  });
  if (best >= 0) return found;
  if (compressed) found.why = "its PTX is compressed: compile it with nvcc's --no-compress";
  else if (newer != 0)
    found.why = text_of("its PTX is for sm_", newer, ", and this GPU has compute capability ", major, ".",
                        minor, ": compile it with -arch=sm_", major, minor);
  else if (machine_code)
    found.why = text_of("it contains machine code only, which cannot be run here: compile it with -arch=sm_",
                        major, minor, ", which embeds PTX too");
  else found.why = "its fat binary contains nothing that this runtime can read";
  return found;
}

void read_entry(Kernel& kernel) {
  each_ptx(kernel.fat_binary, [&](std::string_view ptx) {
    const std::string start = ".entry " + kernel.symbol + "(";
    const std::size_t at = ptx.find(start);
    if (at == ptx.npos) return false;
    const std::size_t from = at + start.size(), to = ptx.find(')', from);
    std::vector<Parameter> parameters;
    std::size_t end = 0;
    for (std::size_t begin = from; begin < to;) {
      const std::size_t comma = std::min(ptx.find(',', begin), to);
      const std::string text(ptx.substr(begin, comma - begin));
      begin = comma + 1;
      if (text.find(".param") == text.npos) continue;
      const std::optional<Parameter> parameter = parse(text, end);
      if (!parameter) return false;
      parameters.push_back(*parameter);
      end = parameter->offset + parameter->bytes;
    }
    kernel.parameters = std::move(parameters);
    const std::string head(ptx.substr(to, std::min(ptx.find('{', to), ptx.size()) - to));
    static const std::regex bounds(R"(\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?)");
    std::smatch match;
    if (std::regex_search(head, match, bounds)) {
      kernel.max_threads = 1;
      for (int i = 1; i <= 3; ++i)
        if (match[i].matched) kernel.max_threads *= static_cast<unsigned>(std::stoul(match[i]));
    }
    return true;
  });
}

}  // namespace stand_in
