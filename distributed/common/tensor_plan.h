#pragma once
// How the ranks of a tensor axis divide the layers of a model (distributed/tensor): styles for the paths of
// modules, as in PyTorch's parallelize_module.
#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::distributed {

/// What the ranks do with a module. The residual stream is what flows between the divided regions of a model:
/// equal on all ranks, or divided along the sequence (TensorParallelOptions::sequence).
enum class TensorStyle : std::uint8_t {
  /// nn::Linear: each rank has some of the outputs. The result is this rank's part of the last dimension.
  column,
  /// The same, and the parts are gathered: the result is whole.
  gathered_column,
  /// nn::Linear behind a column layer: each rank has some of the inputs, takes its part of the last
  /// dimension, and computes a part of each sum. The results are added, and then the bias.
  row,
  /// nn::Embedding: each rank has some of the words (rows). The results are added.
  vocabulary,
  /// nn::Embedding: each rank has some of the features (columns). The parts are gathered.
  embedding_column,
  /// A module that contains column layers, such as an attention: its inputs enter the divided region once for
  /// all of them. Without it, each column layer converts its own input. Modules inside it that have
  /// parameters need a style. Each rank draws random numbers of its own inside, as its heads are other ones.
  input,
  /// nn::MultiheadAttention: as `input`, and each rank has some of the heads, and their rows of the input
  /// projection. The output projection needs a rule for `row` with the features of a head as its unit.
  attention,
  /// A module without parameters inside a divided region, but in no module of style `input`, such as a
  /// dropout between a column and a row layer: it draws random numbers of each rank.
  inside,
  /// A module on the residual stream, such as a norm or a dropout. Each rank has all of its parameters. A
  /// module without parameters draws the random numbers that all ranks draw, unless they divide the stream.
  residual,
  /// A module whose result enters the residual stream, such as an embedding of positions. Each rank has all
  /// of its parameters, and computes the whole result.
  enter,
  /// nn::LanguageModel: its head, whose weight is divided by words. No rank computes a loss from all logits.
  head,
};

struct TensorRule {
  /// The paths of modules: names between dots, in which `*` stands for any characters but a dot:
  /// "layers.*.mlp.up". The empty text is the model itself.
  std::string path;
  TensorStyle style;
  /// Of a column or row layer: the outputs or inputs that stay together, such as the features of a head. A
  /// rank gets ceil(units / ranks) of them, and the last ranks may get fewer. If the ranks are more than the
  /// units of a column layer, they share them: with 2 units, ranks 0 and 1 of 4 have copies of the first one,
  /// and the gradients of the copies are summed. So fewer key and value heads than ranks are possible.
  std::int64_t unit = 1;
  /// Of a column layer: its outputs are this many equal blocks, such as queries, keys and values, and each
  /// rank has its part of each block.
  int blocks = 1;
};

/// The first rule that matches a module counts. Each rank keeps equal copies of the parameters of modules
/// that no rule matches.
struct TensorPlan {
  std::vector<TensorRule> rules;
};

}  // namespace tapestry::distributed
