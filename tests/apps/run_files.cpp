#include "tests/apps/run_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "tapestry/core/safetensors.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"
#include "tests/support/files.h"

namespace tests {

namespace fs = std::filesystem;

namespace {

std::string idx_header(const std::vector<int>& sizes) {
  std::string out = {0, 0, 8, static_cast<char>(sizes.size())};
  for (const int n : sizes)
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(n >> shift);
  return out;
}

void write_part(const std::string& prefix, int count, unsigned seed) {
  std::mt19937 random(seed);
  std::string images = idx_header({count, 28, 28}), labels = idx_header({count});
  for (int i = 0; i < count; ++i) {
    const int label = static_cast<int>(random() % 10);
    labels += static_cast<char>(label);
    for (int y = 0; y < 28; ++y)
      for (int x = 0; x < 28; ++x)
        images += static_cast<char>(random() % 128 + (y / 2 == label + 2 ? 127 : 0));
  }
  write_file(prefix + "-images-idx3-ubyte", images);
  write_file(prefix + "-labels-idx1-ubyte", labels);
}

}  // namespace

void write_fashion_mnist(const std::string& folder, int train, int test) {
  fs::create_directories(folder);
  write_part(folder + "/train", train, 1);
  write_part(folder + "/t10k", test, 2);
}

std::string metrics(const std::string& run) {
  const std::string number = R"((?:-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|null))";
  const std::regex line_of_metrics(R"((\{"epoch":\d+,"train_loss":)" + number +
                                   ",\"train_accuracy\":" + number + ",\"test_loss\":" + number +
                                   ",\"test_accuracy\":" + number + "),\"seconds\":" + number + R"(\})");
  std::istringstream lines(read_file(run + "/metrics.jsonl"));
  std::string line, out;
  while (std::getline(lines, line)) {
    std::smatch match;
    if (!std::regex_match(line, match, line_of_metrics)) throw std::runtime_error("not metrics: " + line);
    out += match[1].str() + "\n";
  }
  return out;
}

std::string last_checkpoint_path(const std::string& run) {
  const std::vector<std::string> names = names_in(run + "/checkpoints");
  if (names.empty()) throw std::runtime_error(run + " has no checkpoint");
  return run + "/checkpoints/" + names.back();
}

namespace {

std::string bytes_of(const std::string& name, const tapestry::Tensor& tensor) {
  return name + "\n" + std::string(static_cast<const char*>(tensor.raw_data()), tensor.nbytes());
}

// The same of a sharded checkpoint, whose tensors are read from all shards.
std::string sharded_checkpoint(const std::string& path) {
  tapestry::distributed::checkpoint::ShardReader reader(path);
  const auto& index = reader.index();
  const tapestry::nn::Progress progress = index.progress.value();
  std::string out = fs::path(path).filename().string() + "\n" + std::to_string(progress.epoch) + " " +
                    std::to_string(progress.step) + "\n";
  for (const std::string& generator : index.generators) out += generator + "\n";
  for (const auto& [key, value] : progress.extra)
    if (key != "seconds" && key != "options") out += key + "=" + value + "\n";
  for (const auto& [name, record] : index.tensors) out += bytes_of(name, reader.read(name));
  return out;
}

}  // namespace

std::string last_weights(const std::string& run) { return weights_of(last_checkpoint_path(run)); }

std::string weights_of(const std::string& path) {
  std::map<std::string, tapestry::Tensor> tensors;
  if (fs::is_directory(path)) {
    tapestry::distributed::checkpoint::ShardReader reader(path);
    for (const auto& [name, record] : reader.index().tensors) tensors[name] = reader.read(name);
  } else {
    for (const auto& [name, tensor] : tapestry::load_safetensors(path).tensors) tensors[name] = tensor;
  }
  std::string out;
  for (const auto& [name, tensor] : tensors)
    if (!name.starts_with("training/")) out += bytes_of(name, tensor);
  return out;
}

std::string last_checkpoint(const std::string& run) {
  const std::string path = last_checkpoint_path(run);
  if (fs::is_directory(path)) return sharded_checkpoint(path);
  const tapestry::Safetensors file = tapestry::load_safetensors(path);
  std::string out = fs::path(path).filename().string() + "\n";
  for (const auto& [key, value] : file.metadata)
    if (key != "extra.seconds" && key != "extra.options" && !key.starts_with("tapestry.choices."))
      out += key + "=" + value + "\n";
  for (const auto& [name, tensor] : file.tensors) {
    out += bytes_of(name, tensor);
  }
  return out;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(folder))
    if (file.path().filename() != ".lock") names.push_back(file.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string xml_fault(const std::string& text) {
  const std::regex tag(R"(<(/?)([A-Za-z][\w:-]*)((?:\s+[\w:-]+\s*=\s*(?:'[^'<&]*'|"[^"<&]*"))*)\s*(/?)>)");
  const std::regex words(R"((?:[^<>&]|&(?:lt|gt|amp|quot|apos|#\d+);)*)");
  std::vector<std::string> open;
  bool root_ended = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = std::min(text.find('<', at), text.size());
    const std::string between = text.substr(at, next - at);
    if (!std::regex_match(between, words)) return "bad text: " + between;
    if (open.empty() && between.find_first_not_of(" \n") != std::string::npos) return "outside: " + between;
    if (next == text.size()) break;
    const std::size_t close = text.find('>', next);
    if (close == std::string::npos) return "an open tag at the end";
    const std::string whole = text.substr(next, close - next + 1);
    std::smatch match;
    if (!std::regex_match(whole, match, tag)) return "bad tag: " + whole;
    if (match[1].length() > 0) {
      if (open.empty() || open.back() != match[2]) return "unexpected " + whole;
      open.pop_back();
      root_ended = open.empty();
    } else {
      if (root_ended) return "a second root: " + whole;
      if (match[4].length() == 0) open.push_back(match[2]);
    }
    at = close + 1;
  }
  if (!open.empty()) return "not closed: " + open.back();
  return root_ended ? "" : "no root element";
}

}  // namespace tests
