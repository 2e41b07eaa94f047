#pragma once
// Helpers for the input and output files of a run.
#include <string>
#include <vector>

namespace tests {

/// Writes a small data set in Fashion-MNIST's format: noise with a bright stripe whose position depends on
/// the class.
void write_fashion_mnist(const std::string& folder, int train = 80, int test = 30);

/// Reads metrics.jsonl without `seconds`, which differs between runs. Throws unless each line is an object
/// with the expected keys, whose values are numbers or null.
std::string metrics(const std::string& run);

/// Reads the newest checkpoint: its name, the bytes of all tensors, and the metadata without `seconds`,
/// `options` and the choices, which differ between modes. Of a sharded checkpoint, the tensors are whole.
std::string last_checkpoint(const std::string& run);
/// The names and bytes of the model's tensors in the newest checkpoint, sharded or not.
std::string last_weights(const std::string& run);
/// The same of any checkpoint.
std::string weights_of(const std::string& path);
/// The path of the newest checkpoint.
std::string last_checkpoint_path(const std::string& run);

/// The names of the files in a folder except the lock file, sorted.
std::vector<std::string> names_in(const std::string& folder);

/// Returns the first error if `text` is not well-formed XML, otherwise an empty string.
std::string xml_fault(const std::string& text);

}  // namespace tests
