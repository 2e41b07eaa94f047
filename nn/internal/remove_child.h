#pragma once
#include <string>

namespace tapestry::nn {
class Module;
}

namespace tapestry::nn::detail {

/// Removes a direct child, which is destroyed unless others own it. Does nothing if there is none.
void remove_child(Module& module, const std::string& name);

}  // namespace tapestry::nn::detail
