#include "tapestry/tools/ptx/parser.h"

#include <array>
#include <utility>

#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/lexer.h"
#include "tapestry/tools/ptx/parser_tokens.h"
#include "tapestry/tools/ptx/parser_variables.h"

namespace tapestry::ptx {
namespace {

constexpr std::size_t kMaxRegisters = std::size_t{1} << 20;
constexpr int kMaxScopes = 100;

class Parser : private Tokens {
 public:
  explicit Parser(Module& module) : Tokens(*module.text), module_(module) {}

  void run() {
    while (peek().kind != Token::kEnd) parse_directive();
    if (module_.version.empty()) fail(peek(), "the text has no .version");
  }

 private:
  // The names that one { } declares. Registers that a number names ("%r<94>") are found by their prefix.
  struct Scope {
    int number = 0;
    struct Range {
      std::int32_t first;
      std::uint64_t count;
    };
    std::unordered_map<std::string_view, std::int32_t> registers;
    std::unordered_map<std::string_view, Range> ranges;
    std::unordered_map<std::string_view, std::string_view> variables;  // to the unique names
  };

  // ---- directives of the module ----

  void parse_directive() {
    const Token token = next();
    const std::string_view t = token.text;
    if (token.kind != Token::kWord) fail(token, "expected a directive, found " + quoted(t));
    if (t == ".version") {
      module_.version = std::string(next().text);
    } else if (t == ".target") {
      module_.target = std::string(expect_word("a target").text);
      while (accept(",")) expect_word("a target");
    } else if (t == ".address_size") {
      if (expect_number() != 64) fail(token, "only .address_size 64 is supported");
    } else if (t == ".file") {
      parse_file();
    } else if (t == ".section") {
      skip_section();
    } else if (t == ".visible" || t == ".weak" || t == ".extern" || t == ".common") {
      external_ = external_ || t == ".extern";
    } else if (t == ".entry" || t == ".func") {
      parse_function(t == ".entry");
      external_ = false;
    } else if (t == ".global" || t == ".const" || t == ".shared") {
      const Lexer begin = lexer_;
      try {
        parse_variables(named_space(t), module_.variables, nullptr);
      } catch (const Unsupported& e) {  // it refuses the kernels that use the variable, not the module
        module_.unsupported.emplace_back(e.what());
        lexer_ = begin;
        skip_to_semicolon();
      }
      external_ = false;
    } else if (t == ".pragma" || t == ".alias") {
      skip_to_semicolon();
    } else {
      fail(token, "unknown directive " + quoted(t));
    }
  }

  void parse_file() {
    const int number = static_cast<int>(expect_small());
    const Token name = next();
    if (name.kind != Token::kString) fail(name, "expected a file name in quotes, found " + quoted(name.text));
    module_.files[number] = std::string(name.text);
    while (accept(",")) expect_number();  // time and size
  }
  void skip_section() {
    const Token name = expect_word("a section");
    expect("{");
    for (int depth = 1; depth > 0;) {
      const Token token = next();
      if (token.kind == Token::kEnd) fail(name, "the section " + quoted(name.text) + " has no end");
      depth += token.is("{") ? 1 : token.is("}") ? -1 : 0;
    }
  }
  // ---- variables ----

  // Variables of the module (scope null), or of a function's body.
  void parse_variables(Space space, std::vector<Variable>& to, Scope* scope) {
    const Token begin = peek();
    do {
      Variable v = parse_variable(*this, space);
      v.dynamic = space == Space::kShared && v.bytes == 0;
      if (scope) {
        const std::string_view name = intern(v.name);
        v.name =
            v.name + "@" + std::to_string(function_->variables.size());  // names may repeat in other scopes
        scope->variables[name] = intern(v.name);
      } else if (external_ && !v.dynamic) {
        continue;  // a variable of another module: an instruction that uses it is refused when it is decoded
      }
      to.push_back(std::move(v));
    } while (accept(","));
    if (!peek().is(";"))
      fail(peek(), "expected ';' after the variable of line " + std::to_string(begin.line));
    next();
  }
  // A view that lives as long as the module.
  std::string_view intern(const std::string& name) {
    names_.push_back(std::make_shared<std::string>(name));
    return *names_.back();
  }

  // ---- functions ----

  std::vector<Variable> parse_parameters() {
    std::vector<Variable> list;
    expect("(");
    while (!accept(")")) {
      const Token token = peek();
      if (accept(".reg")) fail(token, "parameters in registers are not supported");
      expect(".param");
      list.push_back(parse_parameter(*this));
      if (!peek().is(")")) expect(",");
    }
    return list;
  }

  // What the machine does not know refuses the function and the kernels that call it, not the module.
  void parse_function(bool is_entry) {
    auto owned = std::make_unique<Function>();
    Function& f = *owned;
    const Lexer begin = lexer_;
    const int line = peek().line;
    try {
      parse_function(f);
    } catch (const ParseError& e) {
      function_ = nullptr;
      scopes_ = nullptr;
      std::string name = f.name;
      lexer_ = begin;
      bool has_body = false;
      if (name.empty() || !skip_function(has_body)) throw;
      f = Function();
      f.name = std::move(name);
      f.has_body = has_body;
      f.refused = e;
    }
    f.is_entry = is_entry;
    f.line = line;
    Function*& known = module_.by_name[f.name];
    if (known && known->has_body) {
      if (f.has_body) throw ParseError(f.line, "the function " + quoted(f.name) + " is defined twice");
      return;
    }
    known = &f;
    module_.functions.push_back(std::move(owned));
  }
  void parse_function(Function& f) {
    if (peek().is("(")) f.results = parse_parameters();
    f.name = std::string(expect_word("the name of a function").text);
    if (peek().is("(")) f.parameters = parse_parameters();
    parse_attributes(f);
    if (accept(";")) return;
    f.has_body = true;
    function_ = &f;
    file_ = source_line_ = call_file_ = call_line_ = 0;
    calls_.clear();
    parse_body(f);
    function_ = nullptr;
  }
  // False if the function has no end.
  bool skip_function(bool& has_body) {
    try {
      int depth = 0;
      do {
        const Token token = next();
        if (token.kind == Token::kEnd) return false;
        if (depth == 0 && token.is(";")) return true;
        depth += token.is("{") ? 1 : token.is("}") ? -1 : 0;
        has_body = has_body || depth > 0;
      } while (depth > 0 || !has_body);
      return true;
    } catch (const ParseError&) {  // the text has no such token
      return false;
    }
  }
  void parse_attributes(Function& f) {
    for (;;) {
      const Token token = peek();
      if (!token.is(".maxntid") && !token.is(".reqntid") && !token.is(".minnctapersm") &&
          !token.is(".maxnreg") && !token.is(".noreturn") && !token.is(".pragma") &&
          !token.is(".explicitcluster") && !token.is(".reqnctapercluster") && !token.is(".maxclusterrank"))
        return;
      next();
      if (token.is(".noreturn") || token.is(".explicitcluster")) continue;
      if (token.is(".pragma")) {
        skip_to_semicolon();
        continue;
      }
      const std::uint32_t first = expect_small();
      if (token.is(".minnctapersm")) f.min_blocks = first;
      if (token.is(".reqnctapercluster")) {
        bool several = first > 1;
        while (accept(",")) several = (expect_small() > 1) || several;
        if (several) fail(token, "clusters of several blocks are not supported");
      }
      if (!token.is(".maxntid") && !token.is(".reqntid")) continue;
      f.max_threads[0] = first;
      f.max_threads[1] = f.max_threads[2] = 1;
      for (int i = 1; i < 3 && accept(","); ++i) f.max_threads[i] = expect_small();
    }
  }

  void parse_body(Function& f) {
    const Token open = expect("{");
    std::vector<Scope> scopes(1);
    scopes_ = &scopes;
    uses_.clear();
    labels_.clear();
    parents_.assign(1, -1);
    while (!scopes.empty()) {
      const Token token = peek();
      if (token.kind == Token::kEnd) fail(open, "the body of " + quoted(f.name) + " has no end");
      if (accept("{")) {
        if (scopes.size() >= kMaxScopes) fail(token, "scopes are nested too deeply");
        parents_.push_back(scopes.back().number);
        scopes.emplace_back().number = static_cast<int>(parents_.size()) - 1;
      } else if (accept("}")) {
        scopes.pop_back();
      } else if (token.is("@") || (token.kind == Token::kWord && token.text[0] != '.')) {
        parse_statement(f);
      } else {
        parse_body_directive(f);
      }
    }
    for (const Use& use : uses_) {
      std::string_view& name = use.table.empty() ? f.instructions[use.instruction].operands[use.operand].name
                                                 : f.branch_targets[use.table][use.operand];
      if (!resolve_label(name, use.scope) && !f.branch_targets.contains(name))
        throw ParseError(use.line, "the label " + quoted(name) + " does not exist");
    }
  }
  // Labels are local to their scope. Two scopes of a function may have a label of the same name, as inline
  // assembly in a loop does that is unrolled.
  bool resolve_label(std::string_view& name, int scope) const {
    for (; scope >= 0; scope = parents_[static_cast<std::size_t>(scope)])
      if (const auto found = labels_.find({scope, name}); found != labels_.end()) {
        name = found->second;
        return true;
      }
    return false;
  }
  void define_label(Function& f, const Token& label) {
    const int scope = scopes_->back().number;
    const std::string_view unique =
        scope == 0 ? label.text : intern(std::string(label.text) + "@" + std::to_string(scope));
    if (!labels_.emplace(std::pair(scope, label.text), unique).second)
      fail(label, "the label " + quoted(label.text) + " exists twice");
    f.labels[unique] = static_cast<std::uint32_t>(f.instructions.size());
  }
  void parse_body_directive(Function& f) {
    const Token token = next();
    const std::string_view t = token.text;
    if (t == ".reg") {
      parse_registers(f);
    } else if (t == ".loc") {
      file_ = static_cast<int>(expect_small());
      source_line_ = static_cast<int>(expect_small());
      const Position here{file_, source_line_, static_cast<int>(expect_small())};
      call_file_ = call_line_ = 0;
      if (accept(",")) {  // function_name $L [+ n], inlined_at file line column
        expect("function_name");
        expect_word("a label");
        if (accept("+")) expect_number();
        expect(",");
        expect("inlined_at");
        Position call;
        for (int& n : call) n = static_cast<int>(expect_small());
        calls_[here] = call;
        // The call may be inlined itself.
        for (int depth = 0; depth < 64; ++depth) {
          const auto outer = calls_.find(call);
          if (outer == calls_.end() || outer->second == call) break;
          call = outer->second;
        }
        call_file_ = call[0];
        call_line_ = call[1];
      }
    } else if (t == ".pragma") {
      skip_to_semicolon();
    } else if (t == ".local" || t == ".shared" || t == ".param") {
      parse_variables(named_space(t), f.variables, &scopes_->back());
    } else {
      fail(token, "unknown directive " + quoted(t) + " in the body of " + quoted(f.name));
    }
  }
  void parse_registers(Function& f) {
    const Token token = expect_word("a type");
    Type type;
    if (!parse_type(token.text.substr(1), type))
      fail(token, "unknown type of registers " + quoted(token.text));
    Scope& scope = scopes_->back();
    do {
      const Token name = expect_word("the name of a register");
      std::uint64_t count = 1;
      const auto first = static_cast<std::int32_t>(f.registers.size());
      if (accept("<")) {
        count = expect_number();
        expect(">");
        scope.ranges[name.text] = {first, count};
      } else {
        scope.registers[name.text] = first;
      }
      if (count > kMaxRegisters || f.registers.size() + count > kMaxRegisters)
        fail(name, "too many registers");
      for (std::uint64_t i = 0; i < count; ++i) f.registers.push_back({type});
    } while (accept(","));
    expect(";");
  }

  // ---- instructions ----

  void parse_statement(Function& f) {
    Instruction i;
    const Token begin = peek();
    if (accept("@")) {
      i.predicate_negated = accept("!");
      const Token p = expect_word("a predicate");
      i.predicate = find_register(p.text);
      if (i.predicate < 0) fail(p, "the predicate " + quoted(p.text) + " was not declared");
      if (f.registers[static_cast<std::size_t>(i.predicate)].type.kind != Type::kPredicate)
        fail(p, quoted(p.text) + " is not a predicate");
    }
    const Token opcode = expect_word("an instruction");
    if (i.predicate < 0 && accept(":")) {
      if (peek().is(".branchtargets")) {
        next();
        auto& targets = f.branch_targets[opcode.text];
        do {
          const Token target = expect_word("a label");
          uses_.push_back({0, targets.size(), opcode.text, scopes_->back().number, target.line});
          targets.push_back(target.text);
        } while (accept(","));
        expect(";");
        return;
      }
      define_label(f, opcode);
      return;
    }
    i.opcode = opcode.text;
    i.line = opcode.line;
    i.file = file_;
    i.source_line = source_line_;
    i.call_file = call_file_;
    i.call_line = call_line_;
    const bool branch = i.opcode == "bra" || i.opcode.starts_with("bra.") || i.opcode.starts_with("brx.");
    while (!peek().is(";")) {
      i.operands.push_back(parse_operand(0));
      Operand& last = i.operands.back();
      if (branch && last.kind == Operand::kSymbol)
        uses_.push_back(
            {f.instructions.size(), i.operands.size() - 1, {}, scopes_->back().number, begin.line});
      if (i.operands.size() > 64) fail(begin, "the instruction has too many operands");
      if (!accept(",") && !peek().is(";")) fail(peek(), "expected ',' or ';', found " + quoted(peek().text));
    }
    next();
    f.instructions.push_back(std::move(i));
  }

  std::int32_t find_register(std::string_view name) const {
    for (auto scope = scopes_->rbegin(); scope != scopes_->rend(); ++scope) {
      if (const auto found = scope->registers.find(name); found != scope->registers.end())
        return found->second;
      std::size_t digits = name.size();
      while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
      if (digits == name.size() || name.size() - digits > 9) continue;
      std::uint64_t number = 0;
      for (const char c : name.substr(digits)) number = number * 10 + static_cast<std::uint64_t>(c - '0');
      const auto range = scope->ranges.find(name.substr(0, digits));
      if (range != scope->ranges.end() && number < range->second.count)
        return range->second.first + static_cast<std::int32_t>(number);
    }
    return -1;
  }
  // A register or a variable.
  void parse_name(Operand& o) {
    const Token token = expect_word("an operand");
    if (token.text == "_") {
      o.kind = Operand::kSink;
      return;
    }
    if (token.text == "WARP_SZ") {
      o.value = kWarpSize;
      return;
    }
    o.index = find_register(token.text);
    o.kind = o.index >= 0 ? Operand::kRegister : Operand::kSymbol;
    if (o.index >= 0) return;
    o.name = token.text;
    for (auto scope = scopes_->rbegin(); scope != scopes_->rend(); ++scope)
      if (const auto found = scope->variables.find(token.text); found != scope->variables.end()) {
        o.name = found->second;
        return;
      }
  }
  void parse_offset(Operand& o) {
    std::uint8_t bytes = 0;
    if (peek().is("-")) o.value = parse_immediate(bytes);
    else if (accept("+")) o.value = parse_immediate(bytes);
  }
  Operand parse_operand(int depth) {
    Operand o;
    const Token token = peek();
    if (token.is("{") || token.is("(")) {
      if (depth > 2) fail(token, "operands are nested too deeply");
      next();
      o.kind = Operand::kVector;
      const std::string_view close = token.is("{") ? "}" : ")";
      while (!accept(close)) {
        o.elements.push_back(parse_operand(depth + 1));
        if (o.elements.size() > 256) fail(token, "the vector has too many elements");
        if (!peek().is(close)) expect(",");
      }
      return o;
    }
    if (accept("[")) {
      if (peek().kind == Token::kNumber || peek().is("-")) {
        o.value = parse_immediate(o.bytes);
      } else {
        parse_name(o);
        parse_offset(o);
      }
      o.kind = Operand::kAddress;
      if (accept(",")) o.elements.push_back(parse_operand(depth + 1));  // [tensor map, {coordinates}]
      expect("]");
      return o;
    }
    if (accept("!")) {
      parse_name(o);
      o.negated = true;
      return o;
    }
    if (token.kind == Token::kNumber || token.is("-")) {
      o.value = parse_immediate(o.bytes);
      return o;
    }
    parse_name(o);
    if (o.kind == Operand::kSymbol) parse_offset(o);
    if (peek().is("|")) {
      next();
      Operand pair;
      pair.kind = Operand::kPair;
      pair.elements.push_back(std::move(o));
      parse_name(pair.elements.emplace_back());
      return pair;
    }
    return o;
  }

 public:
  std::vector<std::shared_ptr<std::string>> names_;

 private:
  Module& module_;
  Function* function_ = nullptr;
  std::vector<Scope>* scopes_ = nullptr;
  // A label that an operand of an instruction names, or an element of a .branchtargets.
  struct Use {
    std::size_t instruction, operand;
    std::string_view table;
    int scope, line;
  };
  std::vector<Use> uses_;
  std::map<std::pair<int, std::string_view>, std::string_view> labels_;  // by scope
  std::vector<int> parents_;                                             // of scopes
  bool external_ = false;
  int file_ = 0, source_line_ = 0, call_file_ = 0, call_line_ = 0;
  using Position = std::array<int, 3>;  // file, line, column
  std::map<Position, Position> calls_;  // of inlined positions
};

}  // namespace

Module parse(std::string text) {
  Module module;
  module.text = std::make_shared<const std::string>(std::move(text));
  Parser parser(module);
  parser.run();
  module.names = std::move(parser.names_);
  return module;
}

}  // namespace tapestry::ptx
