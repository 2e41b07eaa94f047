#include "tapestry/tools/ptx/laboratory/program_file.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

namespace tapestry::ptx {
namespace {

constexpr const char* kFlags =
    "nvcc -cudart shared --no-compress -lineinfo -gencode arch=compute_80,code=compute_80";

template <class T>
bool read_at(std::string_view file, std::uint64_t offset, T& to) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) return false;
  std::memcpy(&to, file.data() + offset, sizeof(T));
  return true;
}
std::string_view part(std::string_view file, std::uint64_t offset, std::uint64_t bytes) {
  return offset > file.size() ? std::string_view() : file.substr(offset, bytes);
}
std::string_view text_at(std::string_view table, std::uint64_t offset) {
  const std::string_view rest = part(table, offset, table.size());
  return rest.substr(0, rest.find('\0'));
}

// The layouts of fat binaries are not documented; fat_binary.cpp of the runtime reads the same fields.
void count_entries(std::string_view section, ProgramFile& found, std::vector<std::string>* texts) {
  struct Entry {
    std::uint16_t kind, version;
    std::uint32_t header_bytes;
    std::uint64_t bytes;
    std::uint32_t compressed_bytes;
  };
  constexpr std::uint32_t kMagic = 0xba55ed50;
  constexpr std::uint16_t kPtx = 1;
  std::uint32_t magic = 0;
  for (std::uint64_t at = 0; read_at(section, at, magic);) {
    std::uint16_t header_bytes = 0;
    std::uint64_t bytes = 0;
    if (magic != kMagic || !read_at(section, at + 6, header_bytes) || !read_at(section, at + 8, bytes)) {
      at += 8;  // padding between fat binaries
      continue;
    }
    const std::uint64_t end = at + header_bytes + std::min<std::uint64_t>(bytes, section.size());
    Entry entry;
    for (at += header_bytes; at < end && read_at(section, at, entry);
         at += entry.header_bytes + entry.bytes) {
      if (entry.header_bytes == 0) return;
      if (entry.kind != kPtx) ++found.machine_code;
      else if (entry.compressed_bytes != 0) ++found.compressed_ptx;
      else ++found.ptx;
      if (texts && entry.kind == kPtx && entry.compressed_bytes == 0)
        texts->emplace_back(text_at(part(section, at + entry.header_bytes, entry.bytes), 0));
    }
  }
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

ProgramFile read_file(const std::string& path, std::vector<std::string>* texts) {
  ProgramFile found;
  std::ifstream stream(path, std::ios::binary);
  std::stringstream content;
  if (!stream || !(content << stream.rdbuf())) return found;
  const std::string bytes = content.str();
  const std::string_view file = bytes;
  Elf64_Ehdr header;
  if (!read_at(file, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    return found;
  found.is_elf = true;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  for (std::size_t i = 0; i < sections.size(); ++i)
    if (!read_at(file, header.e_shoff + i * header.e_shentsize, sections[i])) return found;
  const auto content_of = [&](const Elf64_Shdr& s) { return part(file, s.sh_offset, s.sh_size); };
  const auto linked = [&](const Elf64_Shdr& s) {
    return s.sh_link < sections.size() ? content_of(sections[s.sh_link]) : std::string_view();
  };
  const std::string_view names =
      header.e_shstrndx < sections.size() ? content_of(sections[header.e_shstrndx]) : std::string_view();
  for (const Elf64_Shdr& section : sections) {
    const std::string_view data = content_of(section);
    if (section.sh_type == SHT_DYNAMIC) {
      found.is_dynamic = true;
      Elf64_Dyn entry;
      for (std::uint64_t at = 0; read_at(data, at, entry) && entry.d_tag != DT_NULL; at += sizeof entry) {
        if (entry.d_tag == DT_NEEDED) found.needed.emplace_back(text_at(linked(section), entry.d_un.d_val));
        if (entry.d_tag == DT_RPATH) found.has_rpath = true;
      }
    } else if (section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM) {
      Elf64_Sym symbol;
      for (std::uint64_t at = 0; read_at(data, at, symbol); at += sizeof symbol)
        if (symbol.st_shndx != SHN_UNDEF && text_at(linked(section), symbol.st_name) == "cudaLaunchKernel")
          found.defines_runtime = true;
    } else if (text_at(names, section.sh_name) == ".nv_fatbin") {
      found.has_fat_binary = true;
      count_entries(data, found, texts);
    }
  }
  return found;
}

}  // namespace

ProgramFile read_program_file(const std::string& path) { return read_file(path, nullptr); }
std::vector<std::string> ptx_texts(const std::string& path) {
  std::vector<std::string> texts;
  read_file(path, &texts);
  return texts;
}

std::string why_not(const std::string& path, const std::vector<std::string>& libraries,
                    const std::string& runtime) {
  std::vector<std::string> files = {path};
  files.insert(files.end(), libraries.begin(), libraries.end());
  bool any_kernels = false, loads_runtime = false, is_static = false;
  std::string reason, other_runtime;
  for (const std::string& name : files) {
    if (starts_with(base_name(name), "libcudart.so")) {
      loads_runtime = true;
      continue;
    }
    const ProgramFile file = read_program_file(name);
    for (const std::string& needed : file.needed)
      if (starts_with(needed, "libcudart.so")) {
        loads_runtime = true;
        if (needed != runtime) other_runtime = needed;
      }
    // The libraries of the toolkit have machine code for GPUs only; a program may link them and not call
    // them.
    if (!file.has_fat_binary || (name != path && starts_with(base_name(name), "libcu"))) continue;
    any_kernels = true;
    is_static |= file.defines_runtime;
    if (file.ptx > 0) continue;
    if (file.compressed_ptx > 0)
      reason = "the PTX in " + name +
               " is compressed, and the machine does not read it. Compile with --no-compress:\n  " + kFlags;
    else
      reason = "there is no PTX in " + name +
               ", only machine code of GPUs. Add PTX with -gencode arch=compute_80,code=compute_80:\n  " +
               kFlags;
  }
  if (!any_kernels) return "";  // a script, or a program without kernels of its own
  if (is_static || !loads_runtime)
    return path +
           " contains the static CUDA runtime, which cannot be replaced. Compile and link with -cudart "
           "shared:\n  " +
           kFlags;
  if (!other_runtime.empty())
    return path + " needs " + other_runtime + ", but this machine stands in for " + runtime +
           ". Compile it with the CUDA toolkit of that version.";
  return reason;
}

}  // namespace tapestry::ptx
