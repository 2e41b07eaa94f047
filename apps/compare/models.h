#pragma once
// The models that are compared, as blocks one after another, so that they can be cut into parts; and the
// batch that they are trained on.
//
// What a sample gives must not depend on the others of its batch, or the modes, which cut batches
// differently, could not agree. So there is no dropout, and resnet18's batch norm has fixed statistics (mean
// 0, variance 1, as in evaluation): its weights are trained, and what it costs is nearly what it costs
// otherwise.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/nn/nn.h"

namespace apps::compare {

struct Block {
  std::string name;
  std::shared_ptr<tapestry::nn::Module> module;
};

/// "mlp", "cnn", "resnet18"
const std::vector<std::string>& model_names();

/// On the CPU, with initial weights that follow from the seed. Throws ValueError for an unknown model or
/// images too small for it.
std::vector<Block> make_blocks(const Workload& workload);
/// The blocks from `begin` to `end`, one after another.
std::shared_ptr<tapestry::nn::Sequential> joined(const std::vector<Block>& blocks, std::size_t begin,
                                                 std::size_t end);
/// All of them, on `device`.
std::shared_ptr<tapestry::nn::Sequential> make_model(const Workload& workload, tapestry::Device device);
/// One module a part, as `split` says: the first split[0] blocks, and so on. Throws ValueError unless it
/// has as many parts as there are devices, and all blocks.
std::vector<std::shared_ptr<tapestry::nn::Sequential>> make_parts(const Workload& workload);

struct Batch {
  tapestry::Tensor images, labels;
};
/// Random images of 3 channels and labels, on the CPU; they follow from the seed.
Batch make_batch(const Workload& workload);

}  // namespace apps::compare
