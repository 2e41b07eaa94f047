#pragma once
// A small CNN with weights and data from formulas, and functions that compare states.
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"

namespace tapestry::test {

struct SmallCnn : nn::Module {
  nn::Conv2d& conv1 =
      add<nn::Conv2d>("conv1", {.in_channels = 1, .out_channels = 3, .kernel_size = 3, .padding = 1});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 3});
  nn::Conv2d& conv2 = add<nn::Conv2d>("conv2", {.in_channels = 3, .out_channels = 5, .kernel_size = 3});
  nn::BatchNorm2d& bn2 = add<nn::BatchNorm2d>("bn2", {.num_features = 5});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 5 * 2 * 2, .out_features = 4});
  Tensor forward(const Tensor& x) override {
    const Tensor h = max_pool2d(bn1(conv1(x)).relu(), {.kernel_size = 2});
    return fc(bn2(conv2(h)).relu().flatten(1));
  }
};

/// Element i of the k-th parameter is sin(0.7 i + k) / (2 + k), plus 1 if the parameter has one dimension.
inline void fill_by_formula(nn::Module& module) {
  int k = 0;
  for (auto& [name, slot] : module.named_parameters()) {
    const Tensor values = empty(slot.tensor().sizes(), {DType::f64, kCPU});
    double* const x = values.data<double>();
    const double offset = slot->dim() == 1 ? 1 : 0;
    for (std::int64_t i = 0, count = values.numel(); i < count; ++i)
      x[i] = std::sin(0.7 * static_cast<double>(i) + k) / (2 + k) + offset;
    slot.tensor().detach().copy_(values);
    ++k;
  }
}

/// Samples [first, first + count) of a batch: f64 images (count, 1, 8, 8) and i64 labels (count).
inline std::pair<Tensor, Tensor> formula_batch(int batch, int first, int count) {
  const Tensor x = empty({count, 1, 8, 8}, {DType::f64, kCPU}), labels = empty({count}, {DType::i64, kCPU});
  double* const pixels = x.data<double>();
  for (int n = 0; n < count; ++n) {
    const int sample = batch * 64 + first + n;
    labels.data<std::int64_t>()[n] = sample % 4;
    for (int i = 0; i < 64; ++i)
      pixels[n * 64 + i] = std::cos(0.37 * sample * (i + 1)) + (i % 4 == sample % 4 ? 0.5 : 0);
  }
  return {x, labels};
}

using StateDictCopy = std::map<std::string, std::vector<double>>;

inline std::vector<double> to_vector(const Tensor& t) {
  const Tensor values = t.detach().to(DType::f64).contiguous();
  return {values.data<double>(), values.data<double>() + values.numel()};
}

inline StateDictCopy copy_state(const nn::Module& module) {
  StateDictCopy copy;
  for (const auto& [name, tensor] : module.state_dict()) copy[name] = to_vector(tensor);
  return copy;
}

/// The relative norm of the difference, |a - b| / |b|, of the tensor for which it is largest. Infinite for
/// NaN, or if names or sizes differ.
inline double distance(const StateDictCopy& a, const StateDictCopy& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, x] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != x.size()) return INFINITY;
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      off += (x[i] - found->second[i]) * (x[i] - found->second[i]);
      norm += found->second[i] * found->second[i];
    }
    const double relative = std::sqrt(off) / std::max(std::sqrt(norm), 1e-30);
    largest = relative >= largest ? relative : std::isnan(relative) ? INFINITY : largest;
  }
  return largest;
}

}  // namespace tapestry::test
