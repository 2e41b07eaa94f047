#pragma once
#include <string>
#include <typeinfo>

namespace tapestry {

/// The name of a type as in the source, without the namespaces in front: "Linear", "Block<b::C>".
std::string type_name(const std::type_info& type);

namespace detail {
/// type_name() of T.
template <class T>
const std::string& type_name_of() {
#ifdef __cpp_rtti  // without it, core/error.h reports the one error
  static const std::string name = type_name(typeid(T));
#else
  static const std::string name;
#endif
  return name;
}
}  // namespace detail

}  // namespace tapestry
