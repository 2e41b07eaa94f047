#pragma once
// A small training that tests run on any mesh: a language model of one word, in two stages, with tied
// weights.
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include "tapestry/tapestry.h"

namespace tapestry::mesh_training {

using Tensors = std::vector<Tensor>;
using distributed::Batch, distributed::Loss, distributed::ModelParts, distributed::Samples,
    distributed::Stage;

inline constexpr std::int64_t kSamples = 13, kWords = 11, kWidth = 6;

// A language model of one word, whose head has the weights of the embedding.
struct Net : nn::Module {
  nn::Embedding& words = add<nn::Embedding>("words", {.num_embeddings = kWords, .embedding_dim = kWidth});
  nn::Linear& a = add<nn::Linear>("a", {.in_features = kWidth, .out_features = 9});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 9, .out_features = kWidth});
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = {kWidth}});
  nn::Linear& head =
      add<nn::Linear>("head", {.in_features = kWidth, .out_features = kWords, .bias = false});
  Net() { head.weight = words.weight; }
  bool recomputes = false;  // what comes behind the words, in backward
  Tensor first(const Tensor& x) {
    return computed([this](const Tensor& h) { return tanh(a(h)); }, words(x));
  }
  Tensor second(const Tensor& h) {
    return computed([this](const Tensor& t) { return head(norm(b(t))); }, h);
  }
  template <class F>
  Tensor computed(const F& fn, const Tensor& x) {
    return recomputes ? checkpoint(fn, x) : fn(x);
  }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
};

inline std::unique_ptr<Net> make_net() {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  manual_seed(5);
  auto net = std::make_unique<Net>();
  net->to(DType::f64);
  return net;
}

inline Batch samples_of(std::int64_t step, const Samples& s) {
  std::vector<std::int64_t> x, y;
  for (std::int64_t i = s.first; i < s.first + s.count; ++i) {
    x.push_back((i * 5 + step * 3) % kWords);
    y.push_back((i * 7 + step) % kWords);
  }
  return {{tensor(x, {s.count})}, {tensor(y, {s.count})}};
}

inline ModelParts parts_of(Net& net) {
  return {.units = {&net.a, &net.b},
          .forward = [&net](const Tensors& in) { return Tensors{net(in[0])}; },
          .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
            return {cross_entropy(out[0], targets[0]), static_cast<double>(targets[0].numel())};
          },
          .stages =
              [&net](const std::vector<Device>& devices) {
                std::vector<Stage> stages;
                stages.emplace_back([&net](const Tensor& x) { return net.first(x); }, devices.at(0),
                                    Stage::Modules{net.words, net.a});
                stages.emplace_back([&net](const Tensor& h) { return net.second(h); }, devices.at(1),
                                    Stage::Modules{net.b, net.norm, net.head});
                return stages;
              }};
}

// The distance of all weights, relative to their norm. Infinite if the names differ.
inline double distance(const nn::StateDict& a, const nn::StateDict& b) {
  double off = 0, norm = 0;
  if (a.size() != b.size()) return INFINITY;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first) return INFINITY;
    off += (a[i].second - b[i].second).square().sum().item();
    norm += b[i].second.square().sum().item();
  }
  return std::sqrt(off / norm);
}

}  // namespace tapestry::mesh_training
