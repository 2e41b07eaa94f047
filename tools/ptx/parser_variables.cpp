#include "tapestry/tools/ptx/parser_variables.h"

#include <algorithm>
#include <string>

namespace tapestry::ptx {
namespace {

constexpr std::uint64_t kMaxVariable = std::uint64_t{1} << 32;

// .attribute(.managed), .attribute(.unified(1, 2))
void parse_variable_attributes(Tokens& tokens) {
  const Token open = tokens.expect("(");
  for (int depth = 1; depth > 0;) {
    const Token token = tokens.next();
    if (token.kind == Token::kEnd) tokens.fail(open, "expected ')' before the end of the text");
    if (token.is(".managed"))
      throw Unsupported(token.line, "variables that are __managed__ are not supported");
    depth += token.is("(") ? 1 : token.is(")") ? -1 : 0;
  }
}

// The type and name of a variable, without its initialiser.
Variable parse_declaration(Tokens& tokens, Space space, int& element_bytes) {
  Variable v;
  v.space = space;
  Type type;
  bool typed = false, pointer = false;
  std::uint64_t vector = 1;
  for (;;) {
    const Token token = tokens.expect_word("the type or name of a variable");
    const std::string_view t = token.text;
    if (t == ".align") {
      const std::uint32_t align = tokens.expect_small();
      if (align == 0 || (align & (align - 1)) != 0 || align > 4096)
        tokens.fail(token, "an alignment must be a power of 2");
      if (!pointer) v.align = align;  // after .ptr, it is that of what the parameter points to
    } else if (t == ".v2" || t == ".v4") {
      vector = t == ".v2" ? 2 : 4;
    } else if (t == ".ptr" || named_space(t) != Space::kGeneric || t == ".managed" || t == ".attribute") {
      pointer = pointer || t == ".ptr";
      if (t == ".attribute") parse_variable_attributes(tokens);
    } else if (t[0] == '.') {
      if (typed || !parse_type(t.substr(1), type) || type.bytes == 0)
        throw Unsupported(token.line, "unknown type or directive " + quoted(t));
      typed = true;
    } else {
      if (!typed) tokens.fail(token, "the variable " + quoted(t) + " has no type");
      v.name = std::string(t);
      break;
    }
  }
  element_bytes = type.bytes;
  v.align = std::max<std::uint32_t>(v.align, type.bytes * static_cast<std::uint32_t>(vector));
  v.bytes = type.bytes * vector;
  while (tokens.peek().is("[")) {
    const Token open = tokens.next();
    const std::uint64_t count = tokens.peek().is("]") ? 0 : tokens.expect_number();
    tokens.expect("]");
    if (count != 0 && v.bytes > kMaxVariable / count)
      tokens.fail(open, "the variable " + quoted(v.name) + " is too large");
    v.bytes *= count;
  }
  return v;
}

void parse_initialiser(Tokens& tokens, Variable& v, int element_bytes) {
  if (tokens.peek().is("{")) {
    tokens.next();
    if (!tokens.peek().is("}")) do
        parse_initialiser(tokens, v, element_bytes);
      while (tokens.accept(","));
    tokens.expect("}");
    return;
  }
  const Token token = tokens.peek();
  std::uint64_t value = 0;
  std::int64_t addend = 0;
  if (token.kind == Token::kWord) {
    tokens.next();
    std::string_view name = token.text;
    const bool generic = name == "generic";
    if (generic) {
      tokens.expect("(");
      name = tokens.expect_word("a variable").text;
      tokens.expect(")");
    }
    if (tokens.accept("+")) addend = static_cast<std::int64_t>(tokens.expect_number());
    if (element_bytes != 8) tokens.fail(token, "an address needs an element of 8 bytes");
    v.relocations.push_back({v.initial.size(), std::string(name), addend, generic});
  } else {
    std::uint8_t bytes = 0;
    value = tokens.parse_immediate(bytes);
    if (bytes != 0 && bytes != element_bytes)
      tokens.fail(token, quoted(token.text) + " does not have the type of its variable");
  }
  for (int i = 0; i < element_bytes; ++i) v.initial.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  if (v.initial.size() > v.bytes && v.bytes != 0)
    tokens.fail(token, "the initialiser is larger than its variable");
}

}  // namespace

Space named_space(std::string_view directive) {
  if (directive == ".global") return Space::kGlobal;
  if (directive == ".const") return Space::kConst;
  if (directive == ".shared") return Space::kShared;
  if (directive == ".local") return Space::kLocal;
  if (directive == ".param") return Space::kParam;
  return Space::kGeneric;
}

Variable parse_parameter(Tokens& tokens) {
  int element_bytes = 1;
  return parse_declaration(tokens, Space::kParam, element_bytes);
}

Variable parse_variable(Tokens& tokens, Space space) {
  int element_bytes = 1;
  Variable v = parse_declaration(tokens, space, element_bytes);
  if (tokens.accept("=")) {
    parse_initialiser(tokens, v, element_bytes);
    if (v.bytes == 0) v.bytes = v.initial.size();
  }
  return v;
}

}  // namespace tapestry::ptx
