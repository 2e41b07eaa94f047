#pragma once
// Models that are hard to replicate. Each has its own batches and its own loss. The argument of `call` is the
// model itself or a DataParallel around it.
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"

namespace tapestry::test {

/// Element i is sin(0.3 i + seed).
inline Tensor wave(const Shape& sizes, double seed) {
  const Tensor t = empty(sizes, {DType::f64, kCPU});
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<double>()[i] = std::sin(0.3 * static_cast<double>(i) + seed);
  return t;
}

inline Tensor labels_of(std::int64_t count, int classes, int seed) {
  const Tensor t = empty({count}, {DType::i64, kCPU});
  for (std::int64_t i = 0; i < count; ++i) t.data<std::int64_t>()[i] = (i * 7 + seed) % classes;
  return t;
}

/// The result of a training run.
struct TrainResult {
  std::vector<double> losses;
  StateDictCopy weights;
};

/// The largest relative difference between two runs' losses. Infinite if a loss is NaN or missing.
inline double distance_of_losses(const TrainResult& a, const TrainResult& b) {
  double most = a.losses.size() == b.losses.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    const double off = std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]);
    most = off <= most ? most : std::isnan(off) ? INFINITY : off;
  }
  return most;
}

/// The identity, whose backward throws.
struct BadBackward : autograd::Function<BadBackward> {
  static constexpr const char* kName = "bad_backward";
  static Tensor forward(autograd::FunctionContext&, const Tensor& x) { return x.clone(); }
  static std::vector<Tensor> backward(autograd::FunctionContext&, const std::vector<Tensor>&) {
    fail<AutogradError>("[bad_backward] as planned");
  }
};

/// A CNN with plain members. Replicas share these.
struct PlainMembers : nn::Module {
  struct Batch {
    Tensor x, labels;
  };
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 1, .out_channels = 3, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 27, .out_features = 4});
  double scale = 0.5;
  std::vector<std::string> notes{"read", "by", "all"};
  Tensor forward(const Tensor& x) override {
    const Tensor h = max_pool2d(conv(x).relu(), {.kernel_size = 2});
    return fc(h.flatten(1)) * (scale * static_cast<double>(notes.size()));
  }
  static Batch batch(int step, std::int64_t n) { return {wave({n, 1, 8, 8}, step), labels_of(n, 4, step)}; }
  template <class F>
  static Tensor call(const F& model, const Batch& b) {
    return model(b.x);
  }
  static Tensor loss(const Tensor& scores, const Batch& b) { return cross_entropy(scores, b.labels); }
};

/// A model in which two layers share a weight, one parameter and one layer are not used, and the last layer
/// is frozen.
struct SharedAndUnused : nn::Module {
  using Batch = std::pair<Tensor, Tensor>;
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 5, .out_features = 5});
  nn::Linear& unused = add<nn::Linear>("unused", {.in_features = 5, .out_features = 5});
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 5, .out_features = 5});
  nn::Parameter& nobodys = param("nobodys", ones({3}));
  nn::Linear& frozen = add<nn::Linear>("frozen", {.in_features = 5, .out_features = 2});
  SharedAndUnused() {
    second.weight = first.weight;
    frozen.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) override { return frozen(second(first(x).tanh()).tanh()); }
  static Batch batch(int step, std::int64_t n) { return {wave({n, 5}, step), wave({n, 2}, 2 * step)}; }
  template <class F>
  static Tensor call(const F& model, const Batch& b) {
    return model(b.first);
  }
  static Tensor loss(const Tensor& y, const Batch& b) { return mse_loss(y, b.second); }
};

/// A model that takes and returns several tensors in tuples, vectors and maps. `shift` is a tensor that is
/// not split, and `power` is a number.
struct ManyInAndOut : nn::Module {
  struct Batch {
    std::vector<Tensor> xs;
    std::map<std::string, Tensor> targets;
  };
  using Output = std::tuple<Tensor, std::map<std::string, std::vector<Tensor>>, int>;
  nn::Linear& left = add<nn::Linear>("left", {.in_features = 3, .out_features = 4});
  nn::Linear& right = add<nn::Linear>("right", {.in_features = 6, .out_features = 4});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 4, .out_features = 2});
  using nn::Module::forward;
  Output forward(const std::pair<Tensor, Tensor>& xs, const Tensor& shift, int power) {
    const Tensor h = (left(xs.first) + right(xs.second)).sigmoid();
    const Tensor y = head(h) + shift;
    return {y, {{"hidden", {h, pow(h, power)}}}, power};
  }
  static Batch batch(int step, std::int64_t n) {
    return {{wave({n, 3}, step), wave({n, 6}, step + 0.5)},
            {{"y", wave({n, 2}, 3 * step)}, {"h", wave({n, 4}, step)}}};
  }
  template <class F>
  static Output call(const F& model, const Batch& b) {
    const Tensor shift = wave({2}, 1).to(b.xs[0].device());
    return model(std::pair(b.xs[0], b.xs[1]), distributed::Whole{shift}, 2);
  }
  static Tensor loss(const Output& output, const Batch& b) {
    const auto& [y, hidden, power] = output;
    return mse_loss(y, b.targets.at("y")) * power + mse_loss(hidden.at("hidden")[1], b.targets.at("h")) +
           hidden.at("hidden")[0].mean();
  }
};

}  // namespace tapestry::test
