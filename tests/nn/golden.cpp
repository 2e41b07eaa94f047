#include "tests/nn/golden.h"
#include "tests/support/source.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace tapestry::test {

// Gives the test program two logical CPU devices. The variable must be set before the first use of a device.
// Tests of replicas and of moves need a second device.
static const int kTwoDevices = setenv("TAPESTRY_LOGICAL_DEVICES", "2", 1);

NnGolden::NnGolden(const std::string& name) {
  const std::string path = tests::source_path("tests/golden/nn_" + name + ".txt");
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string key, word;
    words >> key;
    Record record;
    while (words >> word && word != "|") record.sizes.push_back(std::stoll(word));
    while (words >> word) record.values.push_back(std::strtod(word.c_str(), nullptr));
    if (static_cast<std::int64_t>(record.values.size()) != record.sizes.numel())
      throw std::runtime_error(path + ": " + key + " has " + std::to_string(record.values.size()) +
                               " values");
    lines_.emplace_back(key, std::move(record));
  }
}

const Record& NnGolden::at(const std::string& key) const {
  for (const auto& [name, record] : lines_)
    if (name == key) return record;
  throw std::runtime_error("no golden value " + key);
}

std::vector<std::pair<std::string, Record>> NnGolden::under(const std::string& prefix) const {
  std::vector<std::pair<std::string, Record>> found;
  for (const auto& [name, record] : lines_)
    if (name.starts_with(prefix)) found.emplace_back(name.substr(prefix.size()), record);
  return found;
}

Tensor formula(const Shape& sizes, int seed, double scale, DType dtype) {
  std::vector<double> values(static_cast<std::size_t>(sizes.numel()));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const std::int64_t p = 1000003, i = static_cast<std::int64_t>(n) % p;
    const std::int64_t h = (i * i % p * 31 + i * 611953 + std::int64_t{seed} * 7919 + 12345) % p;
    values[n] = (static_cast<double>(h) / static_cast<double>(p) - 0.5) * scale;
  }
  return tensor(values, sizes, DType::f64).to(dtype);
}

Tensor labels(const Shape& sizes, int seed, int classes) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(sizes.numel()));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const auto i = static_cast<std::int64_t>(n);
    values[n] = (i * 7 + i * i + seed * 3) % classes;
  }
  return tensor(values, sizes);
}

void fill(nn::Module& module, double scale) {
  module.to(DType::f64);
  const NoGradGuard no_grad;
  int k = 0;
  for (const auto& [name, t] : module.state_dict()) {
    ++k;
    if (is_floating(t.dtype()))
      t.copy_(formula(t.sizes(), k, scale) + (name.ends_with("running_var") ? 1.0 : 0.0));
  }
}

std::vector<double> values_of(const Tensor& t) {
  const Tensor dense = t.detach().to(kCPU, DType::f64).contiguous();
  const double* p = dense.data<double>();
  return {p, p + dense.numel()};
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / (size > 0 ? size : 1));
}

std::string difference(const Tensor& got, const Record& wanted, double tolerance) {
  if (!got.defined()) return "undefined";
  if (got.sizes() != wanted.sizes) return "shape " + got.sizes().str() + ", not " + wanted.sizes.str();
  const std::vector<double> values = values_of(got);
  double largest = 1;
  for (const double v : wanted.values)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool both_nan = std::isnan(values[i]) && std::isnan(wanted.values[i]);
    if (!both_nan && values[i] != wanted.values[i] &&
        !(std::abs(values[i] - wanted.values[i]) <= tolerance * largest)) {
      std::ostringstream text;
      text.precision(17);
      text << "element " << i << " is " << values[i] << ", not " << wanted.values[i];
      return text.str();
    }
  }
  return {};
}

}  // namespace tapestry::test
