#include "tests/support/agreement.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tapestry/kernels/ops/elementary.h"
#include "tapestry/kernels/ops/functions.h"
#include "tapestry/kernels/ops/loss.h"
#include "tapestry/kernels/ops/swiglu.h"
#include "tests/support/dtypes.h"

namespace tapestry::test {
namespace {

std::ofstream* record() {
  static std::ofstream file = [] {
    const char* const name = std::getenv("TAPESTRY_GOLDEN_RESULTS");
    return name ? std::ofstream(name) : std::ofstream();
  }();
  return file.is_open() ? &file : nullptr;
}

// nvcc takes functions such as exp from CUDA's library and g++ from the C library. Both are within the
// tolerance, with other last bits. Rows of kernels/ops say it by kElementary; these operations have no row.
constexpr const char* kFunctions =
    "cross_entropy cross_entropy_ ctc_loss feed_forward gru linalg.matrix_norm "
    "linalg.vector_norm linear_cross_entropy linear_gelu log_softmax logcumsumexp logit "
    "logsigmoid logsumexp lp_pool1d lp_pool2d lp_pool3d lstm norm rnn_tanh "
    "scaled_dot_product_attention softmax";
// nvcc contracts products and sums to fused multiply-adds. Where the numbers of the cases make products
// exact, as in most matrix products, contraction changes nothing. What linalg computes on the host is the
// same in both programs, but its gradients contain products on the device.
constexpr const char* kContracted =
    "adaptive_avg_pool2d adaptive_avg_pool3d add_layer_norm add_rms_norm affine_grid "
    "avg_pool1d avg_pool2d avg_pool3d batch_norm batch_norm_relu cdist cumprod grid_sample "
    "group_norm instance_norm interpolate layer_norm linalg.cholesky linalg.eigh "
    "linalg.eigvalsh linalg.inv linalg.lstsq linalg.matrix_power linalg.pinv linalg.qr "
    "linalg.solve linalg.solve_triangular linalg.svd linalg.svdvals linear rms_norm";
// rsqrt.approx has an error on GPUs. The machine gives the nearest number, and the emulator rounds twice.
constexpr const char* kApproximate = "rsqrt";

constexpr double kPartOfTolerance = 0.5;

// The bits of a tensor's elements in row-major order.
std::vector<std::uint64_t> bits_of(const Tensor& t) {
  std::vector<std::uint64_t> all;
  tests::for_dtype(t.dtype(), [&]<class T>() {
    const T* const p = t.data<T>();
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      std::int64_t offset = 0, rest = i;
      for (int d = t.dim() - 1; d >= 0; --d) {
        offset += rest % t.sizes()[d] * t.strides()[d];
        rest /= t.sizes()[d];
      }
      T value = p[offset];
      if (std::isnan(tests::to_double(value))) value = tests::from_double<T>(std::nan(""));
      std::uint64_t bits = 0;
      std::memcpy(&bits, &value, sizeof value);
      all.push_back(bits);
    }
  });
  return all;
}
double value_of(std::uint64_t bits, DType dtype) {
  return tests::for_dtype(dtype, [&]<class T>() {
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
    return tests::to_double(value);
  });
}

struct Result {
  std::string op;
  DType dtype;
  std::string bits, tolerances;
};
std::vector<std::string> words_of(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, separator);) words.push_back(word);
  return words;
}
std::map<std::string, Result> read_results(const std::string& folder, Failures& failures) {
  std::map<std::string, Result> results;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      std::vector<std::string> fields = words_of(line, '\t');
      fields.resize(5);
      std::string name = fields[1];
      // A case may run several times with the same name; the order of its runs is always the same.
      for (int n = 2; results.contains(name); ++n) name = fields[1] + " (" + std::to_string(n) + ")";
      results[name] = {fields[0], static_cast<DType>(std::stoi(fields[2])), fields[3], fields[4]};
    }
  }
  if (results.empty()) failures.push_back("no results in " + folder);
  return results;
}

// The largest difference in parts of the tolerance; infinity if one is NaN or infinite and the other is not.
double distance(const Result& a, const Result& b) {
  const auto x = words_of(a.bits, ' '), y = words_of(b.bits, ' '), tolerances = words_of(a.tolerances, ' ');
  if (x.size() != y.size() || tolerances.size() != x.size()) return HUGE_VAL;
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;
    const double v = value_of(std::stoull(x[i], nullptr, 16), a.dtype),
                 w = value_of(std::stoull(y[i], nullptr, 16), a.dtype), d = std::fabs(v - w);
    if (d == 0) continue;  // zeros of both signs
    const double part = d / std::stod(tolerances[i]);
    largest = part <= HUGE_VAL ? std::max(largest, part) : HUGE_VAL;
  }
  return largest;
}

}  // namespace

bool may_round(const std::string& op) {
  static const std::set<std::string> listed = [] {
    std::set<std::string> all;
    for (const char* const list : {kFunctions, kContracted, kApproximate})
      for (std::string& name : words_of(list, ' ')) all.insert(std::move(name));
    const auto add = [&]<class Row>() {
      if (Row::kElementary) all.insert(Row::kSlotName.text);
    };
    kernels::for_rows_of(kernels::Functions(), add);
    kernels::for_rows_of(kernels::Elementary(), add);
    kernels::for_rows_of(kernels::Arithmetic(), add);
    kernels::for_rows_of(kernels::RareArithmetic(), add);
    kernels::for_rows_of(kernels::BinaryLosses(), add);
    kernels::for_rows_of(kernels::SwigluRows(), add);
    return all;
  }();
  return listed.contains(op.substr(0, op.find('/')));
}

void record_result(const std::string& op, const std::string& name, const Tensor& t,
                   const std::vector<double>& tolerances) {
  std::ofstream* const file = record();
  if (!file) return;
  std::string line = op + '\t' + name + '\t' + std::to_string(static_cast<int>(t.dtype())) + '\t';
  char text[32];
  const auto add = [&](std::uint64_t bits) {
    std::snprintf(text, sizeof text, "%llx ", static_cast<unsigned long long>(bits));
    line += text;
  };
  const bool values = is_floating(t.dtype()) && may_round(op);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, of words
  for (const std::uint64_t bits : bits_of(t)) {
    if (values) add(bits);
    hash = (hash ^ bits) * 0x100000001b3;
  }
  if (!values) add(hash);
  line += '\t';
  if (values)
    for (const double tolerance : tolerances) {
      std::snprintf(text, sizeof text, "%.3g ", tolerance);
      line += text;
    }
  *file << line << '\n';
}

Agreement compare_results(const std::string& folder, const std::string& other) {
  Agreement all;
  auto results = read_results(folder, all.failures);
  for (const auto& [name, b] : read_results(other, all.failures)) {
    const auto found = results.find(name);
    if (found == results.end()) {
      all.failures.push_back(name + ": only in " + other);
      continue;
    }
    const Result a = std::move(found->second);
    results.erase(found);
    if (a.dtype == b.dtype && a.bits == b.bits) {
      ++all.equal;
      continue;
    }
    std::ostringstream text;
    text << name << ": the bits differ";
    if (a.dtype == b.dtype && is_floating(a.dtype) && may_round(a.op)) {
      const double d = distance(a, b);
      if (d <= kPartOfTolerance) {
        ++all.within;
        all.largest = std::max(all.largest, d);
        continue;
      }
      text << ", by " << d << " of the tolerance";
    }
    all.failures.push_back(text.str());
  }
  for (const auto& [name, a] : results) all.failures.push_back(name + ": only in " + folder);
  return all;
}

}  // namespace tapestry::test
