#include "tapestry/tools/ptx/registers.h"

#include <algorithm>
#include <array>

namespace tapestry::ptx {
namespace {

/// Whether the first operand is written. The others never are, except the second half of a pair p|q, and the
/// results of a call.
bool writes_first(std::string_view opcode) {
  const std::string_view name = opcode.substr(0, opcode.find('.'));
  static constexpr std::array<std::string_view, 22> kNone = {"st",
                                                             "red",
                                                             "bra",
                                                             "brx",
                                                             "bar",
                                                             "barrier",
                                                             "membar",
                                                             "fence",
                                                             "ret",
                                                             "exit",
                                                             "trap",
                                                             "call",
                                                             "cp",
                                                             "prefetch",
                                                             "stmatrix",
                                                             "nanosleep",
                                                             "pmevent",
                                                             "brkpt",
                                                             "griddepcontrol",
                                                             "setmaxnreg",
                                                             "applypriority",
                                                             "discard"};
  if (opcode.starts_with("bar.red") || opcode.starts_with("barrier.red") ||
      opcode.starts_with("barrier.cta.red"))
    return true;
  return std::find(kNone.begin(), kNone.end(), name) == kNone.end();
}

template <class F>
void each_register(const Operand& operand, F f) {
  if (operand.index >= 0 && (operand.kind == Operand::kRegister || operand.kind == Operand::kAddress))
    f(operand.index);
  for (const Operand& e : operand.elements) each_register(e, f);
}

}  // namespace

std::vector<const Instruction*> reads_of_unwritten_registers(const Function& function) {
  // Whether an instruction writes a register without reading it, and which instruction writes it and reads
  // it.
  std::vector<bool> written(function.registers.size());
  std::vector<const Instruction*> updated(function.registers.size());
  for (const Instruction& i : function.instructions) {
    const bool is_call = i.opcode.starts_with("call");
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      if (!is_call && (k > 0 || !writes_first(i.opcode) || i.operands[0].kind == Operand::kAddress)) continue;
      each_register(i.operands[k], [&](std::int32_t r) {
        bool reads = !is_call && i.predicate == r;
        for (std::size_t s = 1; s < i.operands.size() && !is_call; ++s)
          each_register(i.operands[s], [&](std::int32_t other) { reads |= other == r; });
        if (reads) updated[static_cast<std::size_t>(r)] = &i;
        else written[static_cast<std::size_t>(r)] = true;
      });
    }
  }
  std::vector<const Instruction*> found;
  for (std::size_t r = 0; r < written.size(); ++r)
    if (updated[r] && !written[r] && (found.empty() || found.back() != updated[r]))
      found.push_back(updated[r]);
  return found;
}

}  // namespace tapestry::ptx
