#include "tapestry/tools/ptx/laboratory/resources.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tapestry/tools/ptx/gpu.h"
#include "tapestry/tools/ptx/laboratory/program_file.h"

namespace tapestry::ptx {

std::map<std::string, std::uint32_t> registers_by_ptxas(const std::string& program) {
  namespace fs = std::filesystem;
  const std::vector<std::string> texts = ptx_texts(program);
  std::map<std::string, std::uint32_t> all;
  char name[] = "/tmp/tapestry-ptx-XXXXXX";
  if (texts.empty() || !mkdtemp(name)) return all;
  const fs::path folder = name, file = folder / "kernels.ptx";
  for (const std::string& text : texts) {
    std::ofstream(file) << text;
    // PTX for sm_90a does not compile for sm_90.
    const bool specific = text.find(".target sm_90a") != text.npos;
    const std::string command = "PATH=\"$PATH:/usr/local/cuda/bin\" timeout 60 ptxas -v -arch=sm_90" +
                                std::string(specific ? "a" : "") + " -o /dev/null " + file.string() + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    if (!pipe) break;
    std::string output;
    char buffer[4096];
    while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
    pclose(pipe);
    for (const auto& [kernel, resources] : parse_resources(output, 90)) all[kernel] = resources.registers;
  }
  std::error_code error;
  fs::remove_all(folder, error);
  return all;
}

}  // namespace tapestry::ptx
