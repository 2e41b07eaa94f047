// tapestry-ptx: runs CUDA programs on the machine, and says which kernels of PTX files it can execute.
#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "tapestry/tools/ptx/decode.h"
#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/laboratory/run.h"
#include "tapestry/tools/ptx/parser.h"

using namespace tapestry::ptx;

namespace {

constexpr const char* kHelp =
    "tapestry-ptx run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
    "Runs a CUDA program without a GPU and reports its errors; tapestry-ptx run --help explains it.\n\n"
    "tapestry-ptx check FILE...\n"
    "Decodes all kernels of PTX files, or of the output of cuobjdump -ptx, and lists what the machine cannot "
    "execute.\n"
    "The exit status is 1 if there is anything.\n\n"
    "tapestry-ptx --version\n";

int check(int count, char** files) {
  std::size_t modules = 0, kernels = 0, instructions = 0;
  std::set<std::string> faults;
  for (int i = 0; i < count; ++i) {
    std::ifstream file(files[i], std::ios::binary);
    std::stringstream text;
    if (!file || !(text << file.rdbuf())) {
      std::cerr << "tapestry-ptx: cannot read " << files[i] << "\n";
      return 1;
    }
    for (const std::string& one : split_modules(text.str())) try {
        const Module module = parse(one);
        ++modules;
        for (const auto& f : module.functions) {
          if (!f->is_entry || !f->has_body) continue;
          ++kernels;
          instructions += f->instructions.size();
          try {
            decode(module, *f, [&](std::string_view name) {
              const auto named = [&](const Variable& v) { return v.name == name; };
              return std::uint64_t{std::any_of(module.variables.begin(), module.variables.end(), named) ? 256u
                                                                                                        : 0u};
            });
          } catch (const std::exception& e) {
            faults.insert("kernel '" + f->name + "': " + e.what());
          }
        }
      } catch (const std::exception& e) {
        faults.insert(std::string(files[i]) + ": " + e.what());
      }
  }
  for (const std::string& fault : faults) std::cout << fault << "\n";
  std::cout << modules << " modules, " << kernels << " kernels, " << instructions << " instructions; "
            << faults.size() << " of them cannot be executed\n";
  return faults.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && (std::strcmp(arguments[1], "--help") == 0 || std::strcmp(arguments[1], "-h") == 0)) {
    std::cout << kHelp;
    return 0;
  }
  if (count > 1 && std::strcmp(arguments[1], "--version") == 0) {
    std::cout << "tapestry-ptx " TAPESTRY_PTX_VERSION "\n";
    return 0;
  }
  if (count > 1 && std::strcmp(arguments[1], "run") == 0) return run({arguments + 2, arguments + count});
  if (count < 3 || std::strcmp(arguments[1], "check") != 0) {
    std::cerr << kHelp;
    return 2;
  }
  return check(count - 2, arguments + 2);
}
