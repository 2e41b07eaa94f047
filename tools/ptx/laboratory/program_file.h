#pragma once
// What tapestry-ptx must know of a program before it runs it: whether the shared CUDA runtime and PTX are
// there.
#include <string>
#include <vector>

namespace tapestry::ptx {

/// What an ELF file contains for CUDA.
struct ProgramFile {
  bool is_elf = false;
  bool is_dynamic = false;
  std::vector<std::string> needed;  // libraries by their names, such as libcudart.so.13
  bool has_rpath = false;           // DT_RPATH, which comes before LD_LIBRARY_PATH
  bool has_fat_binary = false;
  /// Entries of its fat binaries.
  int ptx = 0, compressed_ptx = 0, machine_code = 0;
  /// Whether it defines cudaLaunchKernel, and so contains the static runtime.
  bool defines_runtime = false;
};
/// Reads a 64-bit little-endian ELF file. Other files give `is_elf` == false.
ProgramFile read_program_file(const std::string& path);

/// The uncompressed PTX texts in its fat binaries.
std::vector<std::string> ptx_texts(const std::string& path);

/// Why the program at this path cannot run on the machine, and how to build it so that it can; empty if it
/// can. `libraries` are the shared libraries that it loads. `runtime` is the name of the library that takes
/// the place of the CUDA runtime.
std::string why_not(const std::string& path, const std::vector<std::string>& libraries,
                    const std::string& runtime);

}  // namespace tapestry::ptx
