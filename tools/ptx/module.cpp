#include "tapestry/tools/ptx/module.h"

#include <algorithm>

#include "tapestry/tools/ptx/parser.h"

namespace tapestry::ptx {

bool parse_type(std::string_view name, Type& type) {
  struct Named {
    std::string_view name;
    Type type;
  };
  static constexpr Named kTypes[] = {
      {"b8", {Type::kBits, 1}},      {"b16", {Type::kBits, 2}},      {"b32", {Type::kBits, 4}},
      {"b64", {Type::kBits, 8}},     {"u8", {Type::kUnsigned, 1}},   {"u16", {Type::kUnsigned, 2}},
      {"u32", {Type::kUnsigned, 4}}, {"u64", {Type::kUnsigned, 8}},  {"s8", {Type::kSigned, 1}},
      {"s16", {Type::kSigned, 2}},   {"s32", {Type::kSigned, 4}},    {"s64", {Type::kSigned, 8}},
      {"f16", {Type::kFloat, 2}},    {"f32", {Type::kFloat, 4}},     {"f64", {Type::kFloat, 8}},
      {"bf16", {Type::kBFloat, 2}},  {"pred", {Type::kPredicate, 0}}};
  for (const Named& one : kTypes)
    if (one.name == name) {
      type = one.type;
      return true;
    }
  return false;
}

std::vector<std::string> split_modules(const std::string& text) {
  // cuobjdump writes a header of "name = value" lines before each module, whose first directive is .version.
  std::vector<std::string> modules;
  const std::string start = "\n.version";
  std::size_t at = text.starts_with(".version") ? 0 : text.find(start);
  if (at == text.npos || text.find("Fatbin ") == text.npos) return {text};
  while (at != text.npos) {
    std::size_t end = text.find("\nFatbin ", at + 1);
    modules.push_back(text.substr(at, std::min(end, text.size()) - at));
    at = end == text.npos ? end : text.find(start, end);
  }
  return modules;
}

}  // namespace tapestry::ptx
