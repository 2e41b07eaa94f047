#pragma once
// Models in four parts, with batches and losses. cut() distributes the parts over stages and devices;
// run_all() runs them in sequence, which is the unsplit model.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/data_parallel/models.h"

namespace tapestry::test {

using distributed::Stage;

/// The parts of a model, one stage per part.
using Parts = std::vector<Stage>;

/// Joins `parts` into `stages` stages. Stage i is on cpu:(i modulo devices).
inline std::vector<Stage> cut(const Parts& parts, std::size_t stages, int devices) {
  std::vector<Stage> made;
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t begin = parts.size() * s / stages, end = parts.size() * (s + 1) / stages;
    const Device device(DeviceType::cpu, static_cast<int>(s) % devices);
    Stage::Modules modules;
    for (std::size_t i = begin; i < end; ++i)
      modules.insert(modules.end(), parts[i].modules().begin(), parts[i].modules().end());
    const std::vector<Stage> mine(parts.begin() + static_cast<std::ptrdiff_t>(begin),
                                  parts.begin() + static_cast<std::ptrdiff_t>(end));
    made.emplace_back(
        [mine](std::vector<Tensor> x) {
          for (const Stage& part : mine) x = part(x);
          return x;
        },
        device, modules);
  }
  return made;
}

/// Runs all parts in sequence, which is the unsplit model.
inline std::vector<Tensor> run_all(const Parts& parts, std::vector<Tensor> x) {
  for (const Stage& part : parts) x = part(x);
  return x;
}

/// A CNN whose first part has plain members.
struct CnnParts : nn::Module {
  struct Convolution : nn::Module {
    nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 1, .out_channels = 3, .kernel_size = 3});
    double scale = 0.5;
    std::vector<std::string> notes{"read", "by", "all"};
    Tensor forward(const Tensor& x) override { return conv(x) * (scale * static_cast<double>(notes.size())); }
  };
  struct Batch {
    Tensor inputs, targets;
  };
  Convolution& first = add<Convolution>("first");
  nn::MaxPool2d& pool = add<nn::MaxPool2d>("pool", {.kernel_size = 2});
  nn::Linear& hidden = add<nn::Linear>("hidden", {.in_features = 27, .out_features = 8});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 8, .out_features = 4});
  Parts parts() {
    return {{first, kCPU},
            {{pool}, kCPU},
            {[this](const Tensor& x) { return hidden(x.relu().flatten(1)); }, kCPU, {hidden}},
            {[this](const Tensor& x) { return head(x.relu()); }, kCPU, {head}}};
  }
  static Batch batch(int step, std::int64_t n) { return {wave({n, 1, 8, 8}, step), labels_of(n, 4, step)}; }
  static Tensor loss(const Tensor& scores, const Tensor& labels) { return cross_entropy(scores, labels); }
};

/// A model in which two parts share a weight and a bias. Another part has an unused layer and an unused
/// parameter, and the last layer is frozen.
struct SharedParts : nn::Module {
  struct Unused : nn::Module {
    nn::Parameter& nobodys = param("nobodys", ones({3}));
    nn::Linear& never = add<nn::Linear>("never", {.in_features = 5, .out_features = 5});
    Tensor forward(const Tensor& x) override { return x.tanh(); }
  };
  struct Batch {
    Tensor inputs, targets;
  };
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 5, .out_features = 5});
  Unused& unused = add<Unused>("unused");
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 5, .out_features = 5});
  nn::Linear& frozen = add<nn::Linear>("frozen", {.in_features = 5, .out_features = 2});
  SharedParts() {
    second.weight = first.weight;
    second.bias = first.bias;
    frozen.requires_grad_(false);
  }
  Parts parts() {
    return {{first, kCPU},
            {unused, kCPU},
            {second, kCPU},
            {[this](const Tensor& x) { return frozen(x.tanh()); }, kCPU, {frozen, second}}};
  }
  static Batch batch(int step, std::int64_t n) { return {wave({n, 5}, step), wave({n, 2}, 2 * step)}; }
  static Tensor loss(const Tensor& y, const Tensor& target) { return mse_loss(y, target); }
};

/// A model whose stages exchange several tensors in structs, tuples, maps and vectors. Among them are
/// integers, a tensor that all stages pass on unchanged, a tensor that is not split, and an output that the
/// loss does not use. The loss is a sum of several losses.
struct ManyParts : nn::Module {
  struct Hidden {
    Tensor h;
    std::pair<Tensor, Tensor> rest;  // the shift, which is not split, and class numbers
  };
  struct Batch {
    std::tuple<std::vector<Tensor>, Tensor, distributed::Whole> inputs;
    std::map<std::string, Tensor> targets;
  };
  struct Embed : nn::Module {
    nn::Linear& left = add<nn::Linear>("left", {.in_features = 3, .out_features = 4});
    nn::Linear& right = add<nn::Linear>("right", {.in_features = 6, .out_features = 4});
    using nn::Module::forward;
    Hidden forward(const Tensor& a, const Tensor& b, const Tensor& classes, const Tensor& shift) {
      return {(left(a) + right(b)).sigmoid(), {shift, classes}};
    }
  };
  struct Middle : nn::Module {
    nn::Embedding& table = add<nn::Embedding>("table", {.num_embeddings = 5, .embedding_dim = 4});
    std::tuple<Tensor, std::map<std::string, Tensor>, std::vector<Tensor>> forward(const Hidden& in) {
      const Tensor h = in.h + table(in.rest.second);
      return {h, {{"all", in.rest.first}, {"one", in.h}}, {(h * 2).exp()}};
    }
  };
  struct Head : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 4, .out_features = 2});
    std::vector<Tensor> forward(const std::pair<Tensor, std::array<Tensor, 2>>& in, const Tensor& unused) {
      return {fc(in.first) + in.second[0], in.first, in.second[1], unused};
    }
  };
  Embed& embed = add<Embed>("embed");
  Middle& middle = add<Middle>("middle");
  Head& head = add<Head>("head");
  nn::Parameter& power = param("power", ones({1}));
  Parts parts() {
    return {{embed, kCPU}, {middle, kCPU}, {head, kCPU}, {[](std::vector<Tensor> x) { return x; }, kCPU}};
  }
  static Batch batch(int step, std::int64_t n) {
    return {{{wave({n, 3}, step), wave({n, 6}, step + 0.5)}, labels_of(n, 5, step), {wave({2}, 1)}},
            {{"y", wave({n, 2}, 3 * step)}, {"h", wave({n, 4}, step)}}};
  }
  static Tensor loss(const std::vector<Tensor>& out, const std::map<std::string, Tensor>& targets) {
    return mse_loss(out[0], targets.at("y")) * 2 + mse_loss(out[1], targets.at("h")) + out[2].mean();
  }
};

}  // namespace tapestry::test
