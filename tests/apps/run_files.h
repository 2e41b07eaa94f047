#pragma once
// What a run reads and leaves.
#include <string>
#include <vector>

namespace tests {

/// A small Fashion-MNIST in `folder`: images with a bright stripe where their class says, and noise.
void write_fashion_mnist(const std::string& folder, int train = 80, int test = 30);

/// metrics.jsonl without `seconds`, which no two runs share. Throws unless each line is an object of the
/// named keys with numbers or null.
std::string metrics(const std::string& run);

/// The newest checkpoint: its name, every tensor byte for byte, and the metadata but for `seconds`.
std::string last_checkpoint(const std::string& run);

/// Names of the files in a folder, sorted.
std::vector<std::string> names_in(const std::string& folder);

/// Why `text` is not well-formed XML; empty if it is.
std::string xml_fault(const std::string& text);

}  // namespace tests
