#pragma once
#include <string>
#include <typeinfo>

namespace tapestry {

/// The name of a type as in the source, without the namespaces in front: "Linear", "Block<b::C>".
std::string type_name(const std::type_info& type);

}  // namespace tapestry
