#pragma once
// The functions that public headers declare.
#include <set>
#include <string>

namespace tapestry::test::divided {

/// Adds the declared functions that take parameters, modules, optimizers or their state, and all public
/// functions of the classes that are these, as "Class::function".
void add_functions(const std::string& code, std::set<std::string>& to);
/// Those of the public headers of nn and distributed.
std::set<std::string> functions_of_headers();

}  // namespace tapestry::test::divided
