#include "tapestry/tools/ptx/program.h"

namespace tapestry::ptx {

std::string Program::line_of(const Instruction& i) const {
  const auto place = [&](int file, int line) {
    const auto found = module->files.find(file);
    return found == module->files.end() || line <= 0 ? "" : found->second + ":" + std::to_string(line);
  };
  const std::string here = place(i.file, i.source_line), call = place(i.call_file, i.call_line);
  if (here.empty()) return "line " + std::to_string(i.line) + " of the PTX";
  return call.empty() ? here : call + ", which calls " + here.substr(here.find_last_of('/') + 1);
}
std::string Program::line_of(std::uint32_t pc) const { return line_of(*code[pc].source); }

}  // namespace tapestry::ptx
