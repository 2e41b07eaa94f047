#pragma once
#include <string>
#include <typeinfo>

namespace tapestry {

/// The name of a type as its author wrote it, without namespaces: "Linear", "Block<b::C>".
std::string type_name(const std::type_info& type);

}  // namespace tapestry
