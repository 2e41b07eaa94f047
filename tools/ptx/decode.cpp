#include "tapestry/tools/ptx/decode.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "tapestry/tools/ptx/decode_barrier.h"
#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/races.h"

// The letters of a signature. Before '=' are destinations, after it sources; after '?' they may be missing.
//   h w l  a register or immediate of 16, 32, 64 bits     p  a predicate           q  a second predicate:
//   p|q, may be missing x      a register of any width, or an immediate       m  an address            v  a
//   register or vector of any width i      an immediate, stored in offset[0]     t  [tensor map,
//   {coordinates}] A number after a letter is the length of a vector: w4, w128.

namespace tapestry::ptx {
namespace {

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 120)) + "'"; }
std::uint64_t round_up(std::uint64_t value, std::uint64_t align) {
  return (value + align - 1) / align * align;
}

constexpr std::uint64_t kGap = 32;

class Decoder {
 public:
  Decoder(const Module& module, const AddressOf& address_of, Program& program)
      : module_(module), address_of_(address_of), p_(program) {}

  void run(const Function& entry) {
    p_.module = &module_;
    p_.entry = &entry;
    collect(entry, 0);
    for (const Variable& v : entry.parameters) {
      const std::uint64_t offset = round_up(p_.parameter_bytes, v.align);
      p_.parameters.push_back({v.name, offset, v.bytes});
      p_.parameter_bytes = offset + v.bytes;
    }
    for (const Function* f : order_) place(*f);
    for (const Function* f : order_)
      for (const Instruction& i : f->instructions)
        for (const Operand& o : i.operands) place_shared(*f, i, o);
    place_dynamic();
    for (const Function* f : order_) {
      function_ = f;
      frame_ = &frames_[f];
      frame_->first_pc = static_cast<std::uint32_t>(p_.code.size());
      frame_->uses.assign(f->registers.size(), 0);
      for (const Instruction& i : f->instructions) {
        if (i.predicate >= 0) ++frame_->uses[static_cast<std::size_t>(i.predicate)];
        count_uses(i.operands, frame_->uses);
      }
      if (f == &entry) p_.start = frame_->first_pc;
      for (const Instruction& i : f->instructions) {
        frame_->pcs.push_back(static_cast<std::uint32_t>(p_.code.size()));
        decode(i);
      }
      frame_->pcs.push_back(static_cast<std::uint32_t>(p_.code.size()));
      static const Instruction end = [] {  // a body need not end with ret
        Instruction i;
        i.opcode = "ret";
        return i;
      }();
      emit(end, f->is_entry ? &run_exit : &run_return).offset[0] = frame_->return_row;
      for (const auto& [pc, label] : frame_->branches) p_.code[pc].offset[0] = target(label);
      for (const auto& [index, labels] : frame_->tables)
        for (const std::string_view label : *labels) p_.jumps[index].push_back(target(label));
    }
    find_matrix_registers(p_);
  }

 private:
  struct Frame {
    std::vector<std::uint32_t> registers;  // offsets
    std::map<std::string_view, std::uint64_t, std::less<>> local;
    std::vector<std::uint32_t> uses;  // how often the instructions name each register
    std::uint32_t first_pc = 0;
    std::uint32_t return_row = 0;
    std::vector<std::uint32_t> pcs;  // of the instructions of the text
    std::vector<std::pair<std::uint32_t, std::string_view>> branches;
    std::vector<std::pair<std::size_t, const std::vector<std::string_view>*>> tables;
  };

  [[noreturn]] static void fail(const Instruction& i, const std::string& what) {
    throw ParseError(i.line, quoted(i.opcode) + " " + what);
  }
  std::uint32_t target(std::string_view label) const { return frame_->pcs[function_->labels.at(label)]; }

  static bool is_call(const Instruction& i) { return i.opcode == "call" || i.opcode == "call.uni"; }
  static bool is_provided(std::string_view name) { return name == "vprintf" || name == "__assertfail"; }
  static std::string_view callee(const Instruction& i) {
    for (const Operand& o : i.operands)
      if (o.kind == Operand::kSymbol) return o.name;
    return {};
  }

  // Callees come before their callers. The warp executes the lowest program counter first, so lanes in a
  // function catch up.
  void collect(const Function& f, int depth) {
    if (f.refused) throw *f.refused;
    if (depth > 64)
      throw ParseError(f.line, quoted(f.name) + " is recursive, or calls are nested too deeply");
    if (std::find(order_.begin(), order_.end(), &f) != order_.end()) return;
    for (const Instruction& i : f.instructions) {
      if (!is_call(i)) continue;
      const Function* called = module_.find(std::string(callee(i)));
      if (!called)
        fail(i, "calls " + quoted(callee(i)) +
                    ", which is no function of the module; indirect calls are not supported");
      if (is_provided(called->name)) continue;
      if (!called->has_body) fail(i, "calls " + quoted(called->name) + ", which has no body");
      if (called->is_entry) fail(i, "calls a kernel");
      collect(*called, depth + 1);
    }
    if (std::find(order_.begin(), order_.end(), &f) == order_.end()) order_.push_back(&f);
  }

  // Gives registers and variables of a function their places. There is no recursion, so all places are
  // static.
  void place(const Function& f) {
    Frame& frame = frames_[&f];
    std::uint32_t at = p_.register_bytes;
    for (const Register& r : f.registers) {
      if (r.type.bytes == 1)
        throw ParseError(f.line, "registers of 8 bits in " + quoted(f.name) + " are not supported");
      frame.registers.push_back(at);
      at += r.type.bytes == 0 ? 4u : 32u * r.type.bytes;
      if (r.type.bytes == 0 && at % 32 != 0) at = pack_predicates(f, r, at);
      if (at > (1u << 28)) throw ParseError(f.line, quoted(f.name) + " has too many registers");
    }
    at = static_cast<std::uint32_t>(round_up(at, 32));
    frame.return_row = at;
    p_.register_bytes = at + 128;
    const auto local = [&](const Variable& v) {
      const std::uint64_t offset = round_up(p_.local_bytes, std::max<std::uint32_t>(v.align, 8));
      frame.local[v.name] = offset;
      p_.local.push_back({v.name.substr(0, v.name.find('@')), offset, v.bytes});
      p_.local_bytes = offset + v.bytes;
      if (p_.local_bytes > (1u << 24))
        throw ParseError(f.line, "the local variables of " + quoted(f.name) + " are too large");
    };
    if (!f.is_entry)
      for (const Variable& v : f.parameters) local(v);
    for (const Variable& v : f.results) local(v);
    for (const Variable& v : f.variables)
      if (v.space == Space::kLocal || v.space == Space::kParam) local(v);
  }
  // Predicates are words. Rows of other registers begin at multiples of 32 bytes.
  static std::uint32_t pack_predicates(const Function& f, const Register& r, std::uint32_t at) {
    const auto index = static_cast<std::size_t>(&r - f.registers.data());
    const bool last = index + 1 == f.registers.size() || f.registers[index + 1].type.bytes != 0;
    return last ? static_cast<std::uint32_t>(round_up(at, 32)) : at;
  }

  // ---- symbols ----

  // The address of a variable. `space` becomes the space in which the address is an offset.
  std::uint64_t address(const Instruction& i, std::string_view name, Space& space) {
    if (const auto found = frame_->local.find(name); found != frame_->local.end()) {
      space = Space::kLocal;
      return found->second;
    }
    if (function_->is_entry)
      for (const Program::Place& v : p_.parameters)
        if (v.name == name) {
          space = Space::kParam;
          return v.offset;
        }
    for (const auto* list : {&function_->variables, &module_.variables})
      for (const Variable& v : *list)
        if (v.name == name && v.space == Space::kShared) {
          space = Space::kShared;
          return shared(i, v);
        }
    if (const std::uint64_t found = address_of_ ? address_of_(name) : 0) {
      space = Space::kGlobal;
      return found;
    }
    std::string what = "uses " + quoted(name.substr(0, name.find('@'))) + ", which was not declared";
    for (const std::string& reason : module_.unsupported) what += "; a declaration was left out: " + reason;
    fail(i, what);
  }
  // Static shared variables get their places before instructions are decoded, because dynamic shared memory
  // lies behind them.
  void place_shared(const Function& f, const Instruction& i, const Operand& o) {
    for (const Operand& element : o.elements) place_shared(f, i, element);
    if ((o.kind != Operand::kSymbol && o.kind != Operand::kAddress) || o.name.empty()) return;
    for (const auto* list : {&f.variables, &module_.variables})
      for (const Variable& v : *list)
        if (v.name == o.name && v.space == Space::kShared) {
          if (!v.dynamic) shared(i, v);
          else dynamic_align_ = std::max(dynamic_align_, v.align);
          return;
        }
  }
  // No more than 16 bytes of alignment can be relied on, unless the variable asks for more.
  void place_dynamic() { p_.dynamic_offset = round_up(p_.shared_bytes, dynamic_align_); }
  std::uint64_t shared(const Instruction& i, const Variable& v) {
    if (const auto found = shared_.find(&v); found != shared_.end()) return found->second;
    if (v.dynamic) {
      p_.dynamic_shared = v.name;
      return p_.dynamic_offset;
    }
    const std::uint64_t offset = round_up(p_.shared_bytes, std::max<std::uint32_t>(v.align, 16));
    p_.shared.push_back({v.name.substr(0, v.name.find('@')), offset, v.bytes});
    p_.shared_without_gaps = round_up(p_.shared_without_gaps, v.align) + v.bytes;
    p_.shared_bytes = offset + v.bytes + kGap;
    if (p_.shared_bytes > (1u << 24)) fail(i, "uses too much shared memory");
    return shared_[&v] = offset;
  }

  // ---- operands ----

  Ref constant(std::uint8_t width, std::uint64_t value) {
    if (width == 0) value = value != 0 ? 0xffffffffu : 0;
    const auto [found, is_new] = constants_.try_emplace({width, value}, p_.constants.size());
    if (is_new) {
      const std::size_t bytes = width == 0 ? 32 : 32u * width, at = p_.constants.size();
      p_.constants.resize(at + bytes);
      for (std::size_t lane = 0; lane < (width == 0 ? 1u : 32u); ++lane)
        std::memcpy(&p_.constants[at + lane * width], &value, width == 0 ? 4 : width);
    }
    return {static_cast<std::uint32_t>(found->second), 1, width, false};
  }
  Ref reg(const Operand& o) const {
    const auto index = static_cast<std::size_t>(o.index);
    return {frame_->registers[index], 0, function_->registers[index].type.bytes, o.negated};
  }
  Ref operand(const Instruction& i, const Operand& o, char kind, bool destination) {
    const int width = kind == 'h' ? 2 : kind == 'w' ? 4 : kind == 'l' ? 8 : kind == 'p' ? 0 : -1;
    if (o.kind == Operand::kSink && destination)
      return {kTrash, 0, static_cast<std::uint8_t>(width < 0 ? 8 : width), false};
    if (o.kind == Operand::kRegister) {
      const Ref r = reg(o);
      if (width >= 0 ? r.width != width : r.width == 0) fail(i, "has an operand of the wrong width");
      if (o.negated && (destination || r.width != 0)) fail(i, "negates an operand that is no predicate");
      return r;
    }
    if (destination) fail(i, "has a destination that is no register");
    if (o.kind == Operand::kImmediate) {
      std::uint64_t value = o.value;
      if (o.bytes == 8 && width == 4) {
        double number = 0;
        std::memcpy(&number, &value, 8);
        const auto single = static_cast<float>(number);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &single, 4);
        value = bits;
      } else if (o.bytes != 0 && width >= 0 && o.bytes != width) {
        fail(i, "has an immediate of the wrong width");
      }
      return constant(static_cast<std::uint8_t>(width < 0 ? 8 : width), value);
    }
    if (o.kind == Operand::kSymbol) {
      if (o.name.starts_with("%")) {
        Special special;
        if (!find_special(o.name, width, special))
          fail(i, "reads " + quoted(o.name) +
                      ", which was not declared, or is a special register that is not supported");
        if (width >= 0 && width != special.width) fail(i, "reads a special register in a wrong width");
        return {special.row * 128u, 0, special.width, false};
      }
      if (width != 4 && width != 8) fail(i, "reads an address in a wrong width");
      Space space{};
      return constant(static_cast<std::uint8_t>(width), address(i, o.name, space) + o.value);
    }
    fail(i, "has a wrong operand");
  }
  // An address: its base becomes a Ref, its constant part an offset. Changes the space of a parameter of a
  // function.
  void memory(const Instruction& i, Code& c, const Operand& o, int number, Space* space) {
    if (o.kind != Operand::kAddress) fail(i, "needs an address in brackets");
    // A third address has its constant part in another Ref.
    std::int64_t third = 0;
    std::int64_t& offset = number < 2 ? c.offset[number] : third;
    offset = static_cast<std::int64_t>(o.value);
    if (o.index >= 0) {
      const Ref base = reg(o);
      if (base.width != 4 && base.width != 8) fail(i, "has an address that is no register of 32 or 64 bits");
      if (space && *space == Space::kParam && !function_->is_entry) *space = Space::kLocal;
      p_.refs.push_back(base);
      if (number >= 2) p_.refs.push_back(constant(8, static_cast<std::uint64_t>(offset)));
      return;
    }
    p_.refs.push_back(constant(8, 0));
    Space found{};
    if (!o.name.empty()) offset += static_cast<std::int64_t>(address(i, o.name, found));
    if (number >= 2) p_.refs.push_back(constant(8, static_cast<std::uint64_t>(offset)));
    if (!space || o.name.empty()) return;
    if (*space == Space::kGeneric) {
      const std::uint64_t window = found == Space::kShared  ? kSharedWindow
                                   : found == Space::kLocal ? kLocalWindow
                                   : found == Space::kParam ? kParamWindow
                                                            : 0;
      offset += static_cast<std::int64_t>(window);
      return;
    }
    const bool global = *space == Space::kGlobal || *space == Space::kConst;
    if (*space == Space::kParam && (found == Space::kLocal || found == Space::kParam)) *space = found;
    else if (!(global && found == Space::kGlobal) && *space != found)
      fail(i, "addresses a variable of another space");
  }

  Code& emit(const Instruction& i, Handler handler) {
    Code c;
    c.run = handler;
    c.source = &i;
    c.first = static_cast<std::uint32_t>(p_.refs.size());
    if (i.predicate >= 0) {
      c.predicate = frame_->registers[static_cast<std::size_t>(i.predicate)];
      c.guard = i.predicate_negated ? -1 : 1;
    }
    return p_.code.emplace_back(c);
  }

  static bool reads_clock(const std::vector<Operand>& operands) {
    return std::any_of(operands.begin(), operands.end(), [](const Operand& o) {
      Special special;
      return o.kind == Operand::kSymbol
                 ? o.name.starts_with('%') && find_special(o.name, -1, special) && special.is_clock
                 : reads_clock(o.elements);
    });
  }
  void decode(const Instruction& i) {
    if (reads_clock(i.operands)) emit(i, &run_clock);
    if (decode_control(i) || decode_mov(i)) return;
    Entry e;
    if (!find_entry(i.opcode, e)) throw ParseError(i.line, "unknown instruction " + quoted(i.opcode));
    if (e.signature.find('*') != e.signature.npos)
      choose_wgmma_operands(e, i.operands.size() > 1 && i.operands[1].kind == Operand::kVector);
    Code& c = emit(i, e.run);
    c.flags = e.flags;
    p_.uses_async = p_.uses_async || e.uses_async;
    c.order = e.order;
    // nvcc writes atom for an atomic whose result no one reads.
    if ((e.order & kObserves) != 0 && !i.operands.empty() && i.operands[0].kind == Operand::kRegister &&
        frame_->uses[static_cast<std::size_t>(i.operands[0].index)] == 1)
      c.order ^= kObserves | kReduces;
    apply(i, c, e.signature);
  }
  static void count_uses(const std::vector<Operand>& operands, std::vector<std::uint32_t>& uses) {
    for (const Operand& o : operands) {
      if (o.index >= 0) ++uses[static_cast<std::size_t>(o.index)];
      count_uses(o.elements, uses);
    }
  }
  void apply(const Instruction& i, Code& c, const std::string& signature) {
    std::vector<const Operand*> given;
    for (const Operand& o : i.operands) given.push_back(&o);
    std::size_t at = 0;
    bool destination = signature.find('=') != signature.npos, optional = false;
    int addresses = 0;
    for (std::size_t s = 0; s < signature.size(); ++s) {
      const char kind = signature[s];
      if (kind == '=' || kind == '?') {
        destination = destination && kind != '=';
        if (kind == '=') c.destinations = static_cast<std::uint16_t>(p_.refs.size() - c.first);
        optional = optional || kind == '?';
        continue;
      }
      if (kind == 'q') continue;  // 'p' before it has handled it
      const bool has_count = s + 1 < signature.size() && signature[s + 1] >= '1' && signature[s + 1] <= '9';
      if (at >= given.size()) {
        if (optional) break;
        fail(i, "has too few operands");
      }
      const Operand& o = *given[at++];
      const bool pair_allowed = s + 1 < signature.size() && signature[s + 1] == 'q';
      if (pair_allowed || (s + 2 < signature.size() && signature[s + 1] == '|')) {
        decode_pair(i, o, kind);
      } else if (kind == 'm') {
        Space space = static_cast<Space>(c.flags & 7);
        memory(i, c, o, addresses, addresses == 0 ? &space : nullptr);
        if (addresses++ == 0) c.flags = (c.flags & ~7u) | static_cast<std::uint32_t>(space);
      } else if (kind == 't') {
        const auto rank = static_cast<std::size_t>(signature[++s] - '0');
        Space space = Space::kGeneric;
        memory(i, c, o, addresses++, &space);
        if (o.elements.size() != 1 || o.elements[0].elements.size() != rank)
          fail(i, "needs [tensor map, {" + std::to_string(rank) + " coordinates}]");
        for (const Operand& x : o.elements[0].elements) p_.refs.push_back(operand(i, x, 'w', false));
      } else if (kind == 'i') {
        if (o.kind != Operand::kImmediate || o.bytes != 0) fail(i, "needs an integer");
        c.offset[0] = static_cast<std::int64_t>(o.value);
      } else if (kind == 'v') {
        decode_vector(i, c, o, destination);
      } else if (has_count) {
        std::size_t count = 0;
        for (; s + 1 < signature.size() && signature[s + 1] >= '0' && signature[s + 1] <= '9'; ++s)
          count = 10 * count + static_cast<std::size_t>(signature[s + 1] - '0');
        const bool one = count == 1 && o.kind != Operand::kVector;
        if (!one && (o.kind != Operand::kVector || o.elements.size() != count))
          fail(i, "has a vector of the wrong length");
        if (one) p_.refs.push_back(operand(i, o, kind, destination));
        for (const Operand& element : o.elements) p_.refs.push_back(operand(i, element, kind, destination));
      } else {
        p_.refs.push_back(operand(i, o, kind, destination));
      }
    }
    if (at != given.size()) fail(i, "has too many operands");
    c.count = static_cast<std::uint32_t>(p_.refs.size()) - c.first;
  }
  // d or d|p. Two operands follow; the second is the trash if it is missing.
  void decode_pair(const Instruction& i, const Operand& o, char kind) {
    const bool pair = o.kind == Operand::kPair;
    p_.refs.push_back(operand(i, pair ? o.elements[0] : o, kind, true));
    p_.refs.push_back(pair ? operand(i, o.elements[1], 'p', true) : Ref{kTrash, 0, 0, false});
  }
  // Bits 3 to 6 of the flags are the bytes of an element, bits 7 to 10 their number.
  void decode_vector(const Instruction& i, const Code& c, const Operand& o, bool destination) {
    const std::uint32_t bytes = (c.flags >> 3) & 15, count = (c.flags >> 7) & 15;
    const bool vector = o.kind == Operand::kVector;
    if (vector ? o.elements.size() != count : count != 1) fail(i, "has a vector of the wrong length");
    for (std::size_t e = 0; e < count; ++e) {
      const Operand& element = vector ? o.elements[e] : o;
      Ref r = operand(i, element, 'x', destination);
      if (element.kind == Operand::kImmediate && element.bytes == 8 && bytes == 4)
        r = operand(i, element, 'w', false);
      if (r.width < bytes) fail(i, "has a register that is too narrow");
      p_.refs.push_back(r);
    }
  }

  bool decode_mov(const Instruction& i) {
    if (!i.opcode.starts_with("mov.") || i.operands.size() != 2) return false;
    Type type;
    if (!parse_type(i.opcode.substr(4), type) || type.bytes == 1) return false;
    const char* const letters = type.bytes == 2 ? "h" : type.bytes == 4 ? "w" : type.bytes == 8 ? "l" : "p";
    const bool to_vector = i.operands[0].kind == Operand::kVector,
               from_vector = i.operands[1].kind == Operand::kVector;
    std::string name = "mov." + std::string(letters), signature = std::string(letters) + "=" + letters;
    if (to_vector || from_vector) {
      const std::size_t count = i.operands[to_vector ? 0 : 1].elements.size();
      if (to_vector == from_vector || count == 0 || type.bytes % count != 0) fail(i, "has wrong vectors");
      const std::size_t part = type.bytes / count;
      if (part != 2 && part != 4) fail(i, "has wrong vectors");
      const std::string vector = std::string(part == 2 ? "h" : "w") + std::to_string(count);
      name = (to_vector ? "unpack." : "pack.") + vector + letters;
      signature = to_vector ? vector + "=" + letters : std::string(letters) + "=" + vector;
    }
    const auto found = opcode_table().find(name);
    if (found == opcode_table().end()) return false;
    Code& c = emit(i, found->second.run);
    apply(i, c, signature);
    if (!to_vector && !from_vector && type.bytes == 4)
      c.touches = Code::kMatrixMove;  // until find_matrix_registers
    return true;
  }

  bool decode_control(const Instruction& i) {
    const std::string_view op = i.opcode;
    if (op == "bra" || op == "bra.uni") {
      if (i.operands.size() != 1 || i.operands[0].kind != Operand::kSymbol) fail(i, "needs a label");
      if (!function_->labels.contains(i.operands[0].name)) fail(i, "needs a label");
      frame_->branches.emplace_back(static_cast<std::uint32_t>(p_.code.size()), i.operands[0].name);
      emit(i, &run_branch);
    } else if (op == "brx.idx" || op == "brx.idx.uni") {
      if (i.operands.size() != 2) fail(i, "needs an index and a label");
      const auto found = function_->branch_targets.find(i.operands[1].name);
      if (found == function_->branch_targets.end()) fail(i, "needs the label of .branchtargets");
      Code& c = emit(i, &run_indexed_branch);
      c.offset[0] = static_cast<std::int64_t>(p_.jumps.size());
      p_.refs.push_back(operand(i, i.operands[0], 'w', false));
      frame_->tables.emplace_back(p_.jumps.size(), &found->second);
      p_.jumps.emplace_back();
    } else if (op == "exit" || op == "ret" || op == "ret.uni") {
      if (!i.operands.empty()) fail(i, "has operands");
      const bool leaves = op == "exit" || function_->is_entry;
      emit(i, leaves ? &run_exit : &run_return).offset[0] = frame_->return_row;
    } else if (op == "trap" || op == "brkpt") {
      emit(i, &run_trap);
    } else if (op == "call" || op == "call.uni") {
      decode_call(i);
    } else if (const BarrierName barrier = barrier_name(op); barrier.is && barrier.kind == "sync") {
      apply(i, emit(i, &run_barrier), "w?w");
    } else if (barrier.is && barrier.kind == "arrive") {
      apply(i, emit(i, &run_barrier_arrive), "ww");
    } else if (barrier.is) {
      const std::string threads = i.operands.size() > 3 ? "w" : "";
      Code& c = emit(i, &run_barrier_reduction);
      c.flags = barrier.operation == "popc"  ? kReducePopc
                : barrier.operation == "and" ? kReduceAnd
                                             : kReduceOr;
      apply(i, c, (c.flags == kReducePopc ? "w=w" : "p=w") + threads + "p");
    } else if (op.starts_with("membar.") || op.starts_with("fence.") || op.starts_with("prefetch.") ||
               op.starts_with("nanosleep.") || op.starts_with("griddepcontrol.") ||
               op.starts_with("prefetchu.")) {
      if (op.find("mbarrier") != op.npos || op.find("proxy") != op.npos) return false;
      const bool membar = op.starts_with("membar."), fence = op.starts_with("fence.");
      Code& c = emit(i, membar || fence ? &run_fence : &run_nothing);
      const auto has = [&](std::string_view part) {
        const std::size_t at = op.find(part);
        return at != op.npos && (at + part.size() == op.size() || op[at + part.size()] == '.');
      };
      c.order = has(".cta") ? kScopeBlock : has(".sys") ? kScopeSystem : kScopeDevice;
      c.flags = membar || has(".sc") ? 1 : 0;  // sequentially consistent
    } else {
      return false;
    }
    return true;
  }
  // The arguments of vprintf and __assertfail become the places of their .param variables.
  void decode_provided(const Instruction& i, const Function& called) {
    std::vector<Program::Copy> places;
    for (const Operand& o : i.operands)
      if (o.kind == Operand::kVector)
        for (const Operand& element : o.elements) {
          const auto own = frame_->local.find(element.name);
          if (element.kind != Operand::kSymbol || own == frame_->local.end())
            fail(i, "passes a value that is no .param variable");
          places.push_back({0, own->second, 8});
        }
    const bool prints = called.name == "vprintf";
    if (prints ? places.size() != 3 : places.size() < 4) fail(i, "passes a wrong number of values");
    emit(i, prints ? &run_print : &run_assert).offset[0] = static_cast<std::int64_t>(p_.copies.size());
    p_.copies.push_back(std::move(places));
  }
  void decode_call(const Instruction& i) {
    const Function& called = *module_.find(std::string(callee(i)));
    if (is_provided(called.name)) return decode_provided(i, called);
    const Frame& other = frames_[&called];
    std::vector<Program::Copy> to, back;
    bool after_name = false;
    for (const Operand& o : i.operands) {
      if (o.kind == Operand::kSymbol) {
        after_name = true;
        continue;
      }
      if (o.kind != Operand::kVector) fail(i, "has a wrong operand");
      const std::vector<Variable>& formal = after_name ? called.parameters : called.results;
      if (o.elements.size() != formal.size())
        fail(i, "passes a wrong number of values to " + quoted(called.name));
      for (std::size_t k = 0; k < formal.size(); ++k) {
        const auto own = frame_->local.find(o.elements[k].name);
        if (o.elements[k].kind != Operand::kSymbol || own == frame_->local.end())
          fail(i, "passes a value that is no .param variable");
        const std::uint64_t there = other.local.find(formal[k].name)->second;
        if (after_name) to.push_back({there, own->second, formal[k].bytes});
        else back.push_back({own->second, there, formal[k].bytes});
        for (const Variable& v : function_->variables)
          if (v.name == own->first && v.bytes < formal[k].bytes) fail(i, "passes a value that is too small");
      }
    }
    if (!after_name) fail(i, "names no function");
    emit(i, &run_copies).offset[0] = static_cast<std::int64_t>(p_.copies.size());
    p_.copies.push_back(std::move(to));
    Code& c = emit(i, &run_call);
    c.offset[0] = other.first_pc;
    c.offset[1] = other.return_row;
    emit(i, &run_copies).offset[0] = static_cast<std::int64_t>(p_.copies.size());
    p_.copies.push_back(std::move(back));
  }

  const Module& module_;
  const AddressOf& address_of_;
  Program& p_;
  std::vector<const Function*> order_;
  std::map<const Function*, Frame> frames_;
  std::map<const Variable*, std::uint64_t> shared_;
  std::uint32_t dynamic_align_ = 16;
  std::map<std::pair<std::uint8_t, std::uint64_t>, std::size_t> constants_;
  const Function* function_ = nullptr;
  Frame* frame_ = nullptr;
};

}  // namespace

Program decode(const Module& module, const Function& function, const AddressOf& address_of) {
  if (!function.is_entry || !function.has_body)
    throw UsageError("[ptx] " + quoted(function.name) + " is no kernel");
  Program program;
  Decoder decoder(module, address_of, program);
  decoder.run(function);
  if (!program.dynamic_shared.empty() && program.shared_bytes > kMaxSharedAddress)
    throw ParseError(function.line, quoted(function.name) + " has too much static shared memory");
  return program;
}

}  // namespace tapestry::ptx
