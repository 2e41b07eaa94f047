#pragma once
// A model with every kind of parameter, and training steps whose gradients are a formula of the parameter's
// name, row and step. An elementwise optimizer then gives the same values however the rows are divided.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/sharded.h"

namespace tapestry::test {

struct Mixed : nn::Module {
  nn::Embedding& embed = add<nn::Embedding>("embed", {.num_embeddings = 7, .embedding_dim = 5});
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 2, .out_channels = 6, .kernel_size = 3});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 6});
  nn::Linear& narrow = add<nn::Linear>("narrow", {.in_features = 5, .out_features = 3});  // 3 rows, 4 ranks
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 5, .out_features = 7, .bias = false});
  nn::Parameter& scale = param("scale", full({}, 1.5));
  nn::Parameter& none = param("none", empty({0, 4}));
  nn::Parameter& frozen = param("frozen", arange(20).to(DType::f32).reshape({10, 2}));
  nn::Buffer& table = buffer("table", arange(9));
  Mixed() {
    head.weight = embed.weight;
    fill_by_formula(*this);
    frozen.requires_grad_(false);
    bn.running_mean->copy_(linspace(0.1, 0.7, 6));
  }
};

/// The gradient of a parameter at a step. Full mantissas.
inline Tensor gradient(const std::string& name, const Shape& sizes, int step) {
  const Tensor g = empty(sizes, {DType::f32, kCPU});
  float* const x = g.data<float>();
  for (std::int64_t i = 0, count = g.numel(); i < count; ++i)
    x[i] = static_cast<float>(
        std::sin(0.31 * static_cast<double>(i) + static_cast<double>(name.size()) + 1.7 * step));
  return g;
}

/// One step with the rows of the gradients that this rank stores.
inline void formula_step(nn::Module& model, optim::Optimizer& optimizer, int step) {
  for (auto& [name, slot] : model.named_parameters()) {
    if (!slot.requires_grad()) continue;
    const auto& layout = slot.layout();
    Tensor g = gradient(name, layout ? layout->whole_sizes() : slot.sizes(), step);
    if (layout) g = layout->region(0).of(g).clone();
    slot.set_grad(g);
  }
  optimizer.step();
}

/// The values of the rows that this rank stores, by name: of parameters, buffers and the optimizer's state.
/// `whole` has the values of a process that stores all rows. Returns the names that differ.
struct Rows {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, nn::Region> where;
};

inline Rows rows_of(nn::Module& model, const optim::Optimizer& optimizer) {
  Rows out;
  const auto add = [&](const std::string& name, const nn::TensorSlot& slot, const Tensor& local) {
    out.tensors[name] = local.detach().clone();
    if (slot.layout()) out.where[name] = slot.layout()->region(0);
  };
  std::vector<nn::TensorSlot> slots;
  std::map<const void*, std::string> names;
  for (auto& [name, slot] : model.named_parameters()) {
    add(name, slot, slot.tensor());
    names[slot.id()] = name;
  }
  for (auto& [name, slot] : model.named_buffers()) add(name, slot, slot.tensor());
  const std::vector<nn::Parameter> params = optimizer.parameters();
  for (const optim::StateTensor& t : optimizer.state_tensors()) {
    if (t.param < 0) {
      out.tensors[t.key] = t.tensor;
      continue;
    }
    const nn::Parameter& p = params[static_cast<std::size_t>(t.param)];
    const std::string rest = t.key.substr(t.key.rfind('.'));
    if (t.like_param) add(names[p.id()] + rest, p, t.tensor);
    else out.tensors[names[p.id()] + rest] = t.tensor;
  }
  return out;
}

/// Returns the names whose values differ from those rows of `whole`, bit for bit.
inline std::string differences(const Rows& part, const Rows& whole) {
  std::string wrong;
  for (const auto& [name, tensor] : whole.tensors) {
    const auto found = part.tensors.find(name);
    if (found == part.tensors.end()) {
      wrong += " missing:" + name;
      continue;
    }
    Tensor expected = tensor;
    const auto where = part.where.find(name);
    if (where != part.where.end()) expected = where->second.of(tensor);
    if (found->second.sizes() != expected.sizes() || to_vector(found->second) != to_vector(expected))
      wrong += ' ' + name;
  }
  if (part.tensors.size() != whole.tensors.size()) wrong += " other names";
  return wrong;
}

}  // namespace tapestry::test
