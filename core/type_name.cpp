#include "tapestry/core/type_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace tapestry {

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  const std::string name = status == 0 ? text.get() : type.name();
  std::size_t start = 0;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<' || name[i] == '(' || name[i] == '{') ++depth;
    if (name[i] == '>' || name[i] == ')' || name[i] == '}') --depth;
    if (depth == 0 && name[i] == ':') start = i + 1;
  }
  return name.substr(start);
}

}  // namespace tapestry
