#pragma once
// The models that are compared, as chains of blocks that can be split, and the batch that they are trained
// on.
//
// The output of a sample must not depend on the other samples, because modes split the batch differently and
// must compute the same losses. So the models have no dropout, and the batch norm layers of resnet18 are in
// evaluation mode with mean 0 and variance 1. The weights of these layers are trained, and these layers
// cost nearly as much time as in training mode.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/common/tensor_plan.h"
#include "tapestry/nn/nn.h"

namespace apps::compare {

using planner::Block;

/// Returns the names of the models: "mlp", "cnn", "resnet18", "gpt". The blocks of "gpt" can have mixtures of
/// experts.
const std::vector<std::string>& model_names();

/// Whether the model reads images, or tokens.
bool reads_images(const Workload& workload);
/// Blocks on the CPU, with initial weights that depend on the seed only. Throws ValueError for an unknown
/// model or images that are too small for it.
std::vector<Block> make_blocks(const Workload& workload);
/// The blocks from `begin` to before `end` as one module.
std::shared_ptr<tapestry::nn::Sequential> joined(const std::vector<Block>& blocks, std::size_t begin,
                                                 std::size_t end);
/// The whole model on `device`.
std::shared_ptr<tapestry::nn::Sequential> make_model(const Workload& workload, tapestry::Device device);
/// One module per stage, on the CPU: the first split[0] blocks, the next split[1] blocks, and so on. Throws
/// ValueError unless the split has one stage per device and covers all blocks.
std::vector<std::shared_ptr<tapestry::nn::Sequential>> make_stages(const Workload& workload,
                                                                   const std::vector<Block>& blocks);

/// How the axis `tensor` divides the model, a module of all blocks. Throws ValueError for a model that it
/// cannot divide.
tapestry::distributed::TensorPlan tensor_plan_of(const Workload& workload);
/// Why the ranks of these axes (planner::layers_of()) cannot divide the model's layers, and what to do; empty
/// if they can.
std::string why_not_divided(const Workload& workload, const std::string& layers);
/// The ways to divide layers in meshes of `devices` devices: 2, 4 or 8 ranks along `tensor`, `context` or
/// `expert`, or 2 ranks along each of two of these. Leaves out ways that do not divide the devices, do not
/// fit on a host, or do not divide the model.
std::vector<std::string> layers_of_meshes(const Workload& workload, int devices);

struct Batch {
  /// Images (batch, 3, image_size, image_size), normally distributed, in workload.dtype; for "gpt" token ids
  /// (batch, length).
  tapestry::Tensor inputs;
  /// Class numbers (batch); for "gpt" the next token of each one, (batch, length).
  tapestry::Tensor targets;
};
/// The mean cross-entropy of the model's outputs, (batch, classes) or (batch, length, vocabulary).
tapestry::Tensor loss_of(const tapestry::Tensor& outputs, const tapestry::Tensor& targets);
/// A random batch on the CPU that depends on the seed only.
Batch make_batch(const Workload& workload);

/// The same model, batch and loss for the planner.
planner::Model planner_model(const Workload& workload);

}  // namespace apps::compare
