#pragma once
// A PTX module as its text says it. Nothing is laid out yet: decode.h gives registers and variables their
// places.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tapestry/tools/ptx/error.h"

namespace tapestry::ptx {

enum class Space : std::uint8_t { kGeneric, kGlobal, kShared, kLocal, kConst, kParam };

/// The type of a register, a variable or an instruction's operand.
struct Type {
  enum Kind : std::uint8_t { kBits, kUnsigned, kSigned, kFloat, kBFloat, kPredicate };
  Kind kind = kBits;
  /// 1, 2, 4 or 8; 0 for predicates.
  std::uint8_t bytes = 0;
  friend bool operator==(const Type&, const Type&) = default;
};
/// The type named by "u32", "bf16" and so on; false if there is no such type.
bool parse_type(std::string_view name, Type& type);

/// A variable in a state space: of the module, of a function, or a parameter.
struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  std::uint32_t align = 1;
  std::uint64_t bytes = 0;
  /// True for `.extern .shared x[]`, whose size the launch decides.
  bool dynamic = false;
  /// The initial bytes; the rest is zero. Empty if there is no initialiser.
  std::vector<std::uint8_t> initial;
  /// Addresses in the initialiser: at `offset`, the address of `symbol` + `addend`.
  struct Relocation {
    std::uint64_t offset;
    std::string symbol;
    std::int64_t addend;
    bool generic;
  };
  std::vector<Relocation> relocations;
};

struct Operand {
  enum Kind : std::uint8_t {
    kRegister,   // `index`
    kImmediate,  // `value`: an integer, or the bits of a float of `bytes` bytes
    kSymbol,     // a variable, function or special register, by `name`; + `value`
    kAddress,    // [base + value]; the base is a register `index`, or `name`, or neither
    kVector,     // {a, b, ...} or (a, b, ...)
    kPair,       // p|q: two elements
    kSink,       // _
  };
  Kind kind = kImmediate;
  bool negated = false;  // !p
  std::uint8_t bytes = 0;
  std::int32_t index = -1;
  std::uint64_t value = 0;
  std::string_view name;
  std::vector<Operand> elements;
};

struct Instruction {
  std::string_view opcode;  // "add.s32"
  std::int32_t line = 0;    // of the PTX text
  std::int32_t file = 0, source_line = 0;
  /// Where the outermost call stands, if the compiler has inlined the function that contains this line.
  std::int32_t call_file = 0, call_line = 0;
  std::int32_t predicate = -1;  // a register
  bool predicate_negated = false;
  std::vector<Operand> operands;
};

struct Register {
  Type type;
};

struct Function {
  std::string name;
  bool is_entry = false, has_body = false;
  int line = 0;
  std::vector<Variable> parameters, results;
  /// .shared, .local and .param variables that the body declares. "@" and a number follow each name, because
  /// scopes may repeat names.
  std::vector<Variable> variables;
  std::vector<Register> registers;  // one element per register
  std::vector<Instruction> instructions;
  std::unordered_map<std::string_view, std::uint32_t> labels;  // the index of the instruction that follows
  /// From .maxntid and .minnctapersm; 0 if there is none.
  std::uint32_t max_threads[3] = {0, 0, 0};
  std::uint32_t min_blocks = 0;
  /// .branchtargets by label.
  std::unordered_map<std::string_view, std::vector<std::string_view>> branch_targets;
  /// Set if the text of the function is wrong, or has what the machine does not know. Then it has only a
  /// name.
  std::optional<ParseError> refused;
};

struct Module {
  std::shared_ptr<const std::string> text;          // opcodes and labels point into it
  std::vector<std::shared_ptr<std::string>> names;  // and the names of scoped variables into these
  std::string version, target;
  std::map<int, std::string> files;  // .file
  std::vector<Variable> variables;
  std::vector<std::unique_ptr<Function>> functions;
  std::vector<std::string> unsupported;  // why declarations of variables were left out
  std::unordered_map<std::string, Function*> by_name;

  const Function* find(const std::string& name) const {
    const auto at = by_name.find(name);
    return at == by_name.end() ? nullptr : at->second;
  }
};

}  // namespace tapestry::ptx
