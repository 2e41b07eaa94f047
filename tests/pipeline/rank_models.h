#pragma once
// A model for tests of pipelines over ranks: a chain of layers, which can be unsplit or one rank's stage, and
// functions that compare the results.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/pipeline/pipeline.h"
#include "tapestry/tapestry.h"

namespace tapestry::test {

struct Part : nn::Module {
  Part(int number, std::int64_t in, std::int64_t out)
      : fc(add<nn::Linear>("fc", {.in_features = in, .out_features = out})) {
    to(DType::f64);
    for (auto& [name, slot] : named_parameters())
      for (std::int64_t i = 0; i < slot->numel(); ++i)
        slot->detach().view({-1})[i].fill_(std::sin(0.7 * static_cast<double>(i) + number) / 2);
  }
  nn::Linear& fc;
  Tensor forward(const Tensor& x) override { return fc(x).tanh(); }
};

inline constexpr int kParts = 4;

/// The parts of the model from `first` to before `last`.
class Chain {
 public:
  explicit Chain(int first = 0, int last = kParts) {
    constexpr std::int64_t widths[kParts + 1] = {6, 9, 5, 8, 4};
    for (int k = first; k < last; ++k) parts_.push_back(std::make_unique<Part>(k, widths[k], widths[k + 1]));
  }
  /// Returns the parts of stage number `stage` if the model is split into `stages` stages.
  static Chain stage(int stage, int stages) {
    return Chain(stage * kParts / stages, (stage + 1) * kParts / stages);
  }

  Tensor operator()(Tensor x) {
    for (auto& part : parts_) x = (*part)(x);
    return x;
  }
  distributed::Stage::Modules modules() {
    distributed::Stage::Modules list;
    for (auto& part : parts_) list.emplace_back(*part);
    return list;
  }
  std::vector<nn::Parameter> parameters() {
    std::vector<nn::Parameter> all;
    for (auto& part : parts_)
      for (const nn::Parameter& p : part->parameters()) all.push_back(p);
    return all;
  }

 private:
  std::vector<std::unique_ptr<Part>> parts_;
};

/// Returns batch number `step`: n samples, f64 (n, 6), and their labels, i64 (n).
inline std::pair<Tensor, Tensor> chain_batch(int step, int n) {
  const Tensor x = empty({n, 6}, {DType::f64, kCPU}), labels = empty({n}, {DType::i64, kCPU});
  for (int i = 0; i < n; ++i) {
    labels.data<std::int64_t>()[i] = (i + step) % 4;
    for (int k = 0; k < 6; ++k)
      x.data<double>()[i * 6 + k] = std::cos(0.37 * (i + 1) * (k + 1) + step) + (k == (i + step) % 4 ? 1 : 0);
  }
  return {x, labels};
}

inline Tensor chain_loss(const Tensor& scores, const Tensor& labels) { return cross_entropy(scores, labels); }

using Numbers = std::vector<double>;

inline void append(Numbers& to, const Tensor& t) {
  const Tensor values = t.detach().to(DType::f64).contiguous();
  to.insert(to.end(), values.data<double>(), values.data<double>() + values.numel());
}
inline Numbers values_of(const std::vector<nn::Parameter>& parameters) {
  Numbers all;
  for (const nn::Parameter& p : parameters) append(all, p.tensor());
  return all;
}
inline Numbers gradients_of(const std::vector<nn::Parameter>& parameters) {
  Numbers all;
  for (const nn::Parameter& p : parameters) append(all, p->grad().defined() ? p->grad() : zeros({}));
  return all;
}

/// Concatenates the numbers of all ranks.
inline Numbers joined(const std::vector<Numbers>& ranks) {
  Numbers all;
  for (const Numbers& part : ranks) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// The relative norm of the difference, |a - b| / |b|. Infinite for NaN or different sizes.
inline double apart(const Numbers& a, const Numbers& b) {
  if (a.size() != b.size()) return INFINITY;
  double off = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double relative = std::sqrt(off) / std::max(std::sqrt(norm), 1e-30);
  return std::isnan(relative) ? INFINITY : relative;
}

}  // namespace tapestry::test
