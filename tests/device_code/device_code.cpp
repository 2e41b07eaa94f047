#include "tests/device_code/device_code.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace device_code {
namespace {

constexpr int kElfMachineCuda = 190;
constexpr std::string_view kFatbinMagic = "\x50\xed\x55\xba";

/// Part of a file. Reading beyond its end throws.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  std::size_t size() const { return bytes_.size(); }
  template <class T>
  T at(std::uint64_t offset) const {
    T value;
    std::memcpy(&value, part(offset, sizeof value).bytes_.data(), sizeof value);
    return value;
  }
  Bytes part(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset)
      throw std::runtime_error("[device_code] an ELF file that ends too early");
    return Bytes(bytes_.substr(offset, size));
  }
  Bytes from(std::uint64_t offset) const { return part(offset, bytes_.size() - std::min(offset, size())); }
  /// The offset of the first place at or behind `from` that has these bytes; npos if there is none.
  std::size_t find(std::string_view bytes, std::size_t from = 0) const { return bytes_.find(bytes, from); }
  std::string text(std::uint64_t offset) const {
    const std::string_view rest = from(offset).bytes_;
    return std::string(rest.substr(0, rest.find('\0')));
  }

 private:
  std::string_view bytes_;
};

class Elf {
 public:
  struct Section {
    std::string name;
    Elf64_Shdr header;
  };
  explicit Elf(Bytes file) : file_(file), header_(file.at<Elf64_Ehdr>(0)) {
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 || header_.e_ident[EI_CLASS] != ELFCLASS64)
      throw std::runtime_error("[device_code] not a 64-bit ELF file");
    const auto section = [&](unsigned i) {
      return file_.at<Elf64_Shdr>(header_.e_shoff + std::uint64_t{i} * header_.e_shentsize);
    };
    const Elf64_Shdr names = section(header_.e_shstrndx);
    const Bytes text = file_.part(names.sh_offset, names.sh_size);
    for (unsigned i = 0; i < header_.e_shnum; ++i)
      sections_.push_back({text.text(section(i).sh_name), section(i)});
  }
  const Elf64_Ehdr& header() const { return header_; }
  const std::vector<Section>& sections() const { return sections_; }
  const Section* find(const std::string& name) const {
    const auto it = std::find_if(sections_.begin(), sections_.end(), [&](auto& s) { return s.name == name; });
    return it == sections_.end() ? nullptr : &*it;
  }
  Bytes content(const Section& s) const {
    return s.header.sh_type == SHT_NOBITS ? Bytes({}) : file_.part(s.header.sh_offset, s.header.sh_size);
  }
  std::string symbol(std::uint32_t index) const {
    const Section *const symbols = find(".symtab"), *const names = find(".strtab");
    if (!symbols || !names) throw std::runtime_error("[device_code] device code without symbols");
    return content(*names).text(
        content(*symbols).at<Elf64_Sym>(std::uint64_t{index} * sizeof(Elf64_Sym)).st_name);
  }

 private:
  Bytes file_;
  Elf64_Ehdr header_;
  std::vector<Section> sections_;
};

// The attributes of .nv.info sections, as `cuobjdump -elf` names them.
enum Attribute : std::uint8_t {
  kMaxThreads = 0x05,  // x, y, z
  kFrameSize = 0x11,   // symbol, bytes
  kMaxRegisters = 0x1b,
  kRegisters = 0x2f,  // symbol, count
};

/// Calls f(attribute, value) for each record: a byte for the value's format, a byte for the attribute, then
/// the value.
template <class F>
void each_attribute(Bytes info, F f) {
  for (std::uint64_t at = 0; at < info.size();) {
    const bool sized = info.at<std::uint8_t>(at) == 4;
    const auto attribute = static_cast<Attribute>(info.at<std::uint8_t>(at + 1));
    const auto value = info.at<std::uint16_t>(at + 2);
    f(attribute, sized ? info.part(at + 4, value) : info.part(at + 2, 2));
    at += 4 + (sized ? value : 0u);
  }
}

std::vector<Kernel> kernels_of(const Elf& elf) {
  const Elf64_Ehdr& header = elf.header();
  const unsigned arch =
      header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff;
  const bool counts_what_gpu_keeps = elf.find(".nv.shared.reserved.0");
  std::map<std::string, Kernel> found;
  const std::string prefix = ".nv.info.";
  for (const auto& section : elf.sections()) {
    if (!section.name.starts_with(prefix)) continue;
    Kernel k;
    k.symbol = section.name.substr(prefix.size());
    k.arch = static_cast<int>(arch);
    each_attribute(elf.content(section), [&](Attribute a, Bytes value) {
      if (a == kMaxThreads)
        k.threads = value.at<std::int32_t>(0) * value.at<std::int32_t>(4) * value.at<std::int32_t>(8);
      if (a == kMaxRegisters) k.max_registers = value.at<std::uint16_t>(0);
    });
    if (const auto* const shared = elf.find(".nv.shared." + k.symbol))
      k.shared = static_cast<int>(shared->header.sh_size);
    if (!counts_what_gpu_keeps || k.shared == 0) k.shared += 1024;
    found.emplace(k.symbol, k);
  }
  if (const auto* const info = elf.find(".nv.info"))
    each_attribute(elf.content(*info), [&](Attribute a, Bytes value) {
      if (a != kFrameSize && a != kRegisters) return;
      const auto it = found.find(elf.symbol(value.at<std::uint32_t>(0)));
      if (it == found.end()) return;  // a function that kernels call
      (a == kFrameSize ? it->second.stack : it->second.registers) = value.at<std::int32_t>(4);
    });
  std::vector<Kernel> kernels;
  for (const auto& [symbol, kernel] : found) kernels.push_back(kernel);
  return kernels;
}

struct Multiprocessor {
  int shared, warps, blocks, registers = 65536;
};
Multiprocessor multiprocessor(int arch) {
  if (arch == 80 || arch == 87) return {164 << 10, 64, 32};
  if (arch == 86 || arch == 89) return {100 << 10, 48, arch == 86 ? 16 : 24};
  if (arch >= 90 && arch < 120) return {228 << 10, 64, 32};
  return {100 << 10, 48, 24};
}

std::string short_name(const std::string& name) {
  const std::string plain = name.substr(0, name.find('<'));
  return plain.substr(plain.find_last_of(": ") + 1);
}

}  // namespace

std::string Kernel::name() const {
  char* const readable = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, nullptr);
  std::string text = readable ? readable : symbol;
  std::free(readable);
  if (!text.ends_with(')')) return text;
  int depth = 0;  // finds the parenthesis that opens the parameters
  for (std::size_t i = text.size(); i-- > 0;) {
    depth += text[i] == ')' ? 1 : text[i] == '(' ? -1 : 0;
    if (depth == 0) return text.substr(0, i);
  }
  return text;
}

int Kernel::blocks() const {
  const int warps = (threads + 31) / 32;
  return threads == 0 || max_registers == 0 || max_registers >= 255
             ? 1
             : std::max(1, 65536 / (max_registers * warps * 32));
}

int Kernel::resident() const {
  const Multiprocessor gpu = multiprocessor(arch);
  const int warps = std::max(1, (threads + 31) / 32);
  const int registers_a_warp = (registers * 32 + 255) / 256 * 256;
  return std::min({gpu.blocks, gpu.warps / warps, gpu.shared / shared,
                   gpu.registers / std::max(1, registers_a_warp * warps)});
}

double Kernel::occupancy() const {
  return static_cast<double>(resident()) * ((threads + 31) / 32) / multiprocessor(arch).warps;
}

std::vector<Kernel> read_kernels(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("[device_code] cannot read " + file.string());
  std::string whole(static_cast<std::size_t>(fs::file_size(file)), '\0');
  in.read(whole.data(), static_cast<std::streamsize>(whole.size()));
  const Elf host{Bytes(whole)};
  const Elf::Section* const section = host.find(".nv_fatbin");
  if (!section) return {};
  const Bytes fatbin = host.content(*section);
  std::vector<Kernel> kernels;
  const bool any = fatbin.find(kFatbinMagic) != std::string_view::npos;
  for (std::size_t at = 0; (at = fatbin.find(ELFMAG, at)) != std::string_view::npos; ++at) {
    if (at % 8 != 0 || at + sizeof(Elf64_Ehdr) > fatbin.size() ||
        fatbin.at<Elf64_Ehdr>(at).e_machine != kElfMachineCuda)
      continue;
    const std::vector<Kernel> more = kernels_of(Elf(fatbin.from(at)));
    kernels.insert(kernels.end(), more.begin(), more.end());
  }
  if (any && kernels.empty())
    throw std::runtime_error("[device_code] the device code in " + file.string() +
                             " is compressed; compile it with nvcc's --compress-mode=none to have it read");
  std::sort(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) {
    return std::tie(a.symbol, a.arch) < std::tie(b.symbol, b.arch);
  });
  return kernels;
}

int add_launches(std::vector<Kernel>& kernels, const fs::path& folder) {
  std::map<std::string, std::pair<int, int>> largest;  // threads, bytes
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        std::istringstream fields(line);
        std::string symbol;
        int threads = 0, bytes = 0;
        if (!(fields >> symbol >> threads >> bytes)) continue;  // a kernel without a symbol
        auto& [most_threads, most_bytes] = largest[symbol];
        most_threads = std::max(most_threads, threads);
        most_bytes = std::max(most_bytes, bytes);
      }
    }
  int known = 0;
  for (Kernel& k : kernels)
    if (const auto it = largest.find(k.symbol); it != largest.end()) {
      k.block = it->second.first;
      k.shared += it->second.second;
      ++known;
    }
  return known;
}

fs::path file_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) throw std::runtime_error("[device_code] an address of no file");
  return fs::canonical(info.dli_fname);
}

std::vector<std::string> faults(const std::vector<Kernel>& kernels, const std::vector<Exception>& on_stack) {
  std::vector<std::string> found;
  std::set<int> archs;
  std::map<std::string, std::set<int>> archs_of;
  std::set<std::string> used;
  for (const Kernel& k : kernels) {
    archs.insert(k.arch);
    archs_of[k.symbol].insert(k.arch);
    const std::string who = k.name() + " (sm_" + std::to_string(k.arch) + "): ";
    if (k.stack > 0) {
      const std::string name = short_name(k.name());
      const bool allowed =
          std::any_of(on_stack.begin(), on_stack.end(), [&](const Exception& e) { return e.kernel == name; });
      if (allowed) used.insert(name);
      else
        found.push_back(
            who + std::to_string(k.stack) + " bytes of stack with " + std::to_string(k.registers) +
            " registers of at most " + std::to_string(k.max_registers) +
            ": an array that is indexed at run time, or spilled registers; unroll the loops over it, "
            "or ask for fewer blocks in __launch_bounds__. A kernel that is not hot may go into "
            "kOnStack of tests/device_code/resources_test.cpp, with its reason");
    }
    if (k.threads == 0)
      found.push_back(who +
                      "no launch bounds; say __launch_bounds__(threads, blocks) for the largest block it is "
                      "launched with and the blocks that a multiprocessor should hold at a time");
    else if (k.block > k.threads)
      found.push_back(who + "launched with " + std::to_string(k.block) +
                      " threads, and its launch bounds say " + std::to_string(k.threads) +
                      ": a GPU refuses that");
    const int capacity = multiprocessor(k.arch).shared;
    if (k.blocks() * k.shared > capacity)
      found.push_back(who + std::to_string(k.blocks()) + " blocks with " + std::to_string(k.shared) +
                      " bytes of shared memory each do not fit into the " + std::to_string(capacity) +
                      " of a multiprocessor, though its launch bounds promise it");
  }
  for (const auto& [symbol, has] : archs_of)
    if (has != archs)
      found.push_back(Kernel{.symbol = symbol}.name() + ": compiled for " + std::to_string(has.size()) +
                      " of " + std::to_string(archs.size()) + " kinds of GPU");
  for (const Exception& e : on_stack)
    if (!used.contains(e.kernel))
      found.push_back(e.kernel + ": this exception is not needed; remove it from kOnStack");
  return found;
}

}  // namespace device_code
