#pragma once
// Asks the compiler which lines of code are valid. The lines are compiled together, once and without code
// generation.
#include <map>
#include <string>
#include <vector>

namespace structure {

/// Compiles a file that includes "tapestry/tapestry.h" and then has `lines`, each of which must be valid by
/// itself at namespace scope. Returns the first error of each line that has one, by the line's index. Throws
/// std::runtime_error if the compiler does not start, or if it reports an error elsewhere.
std::map<std::size_t, std::string> compile_errors(const std::vector<std::string>& lines);

/// A line that declares a function whose body is `code`. It may use these variables: Tensors x, y, w, v, i,
/// mask and loss; an int n; model and net (nn::Linear), optimizer (optim::SGD), samples
/// (data::TensorDataset), group (distributed::ProcessGroup) and merge (a collate function). The names of
/// tapestry and tapestry::indexing are visible, and F is nn::functional.
std::string as_function(std::size_t number, const std::string& code);

}  // namespace structure
