#pragma once
// Context parallelism of a model: the ranks of an axis divide each sequence, and the layers of attention
// communicate.
//
//   distributed::Mesh mesh(world, {{"context", 4}});
//   nn::Llama model(config);
//   const auto context = distributed::context_parallel(model, mesh["context"]);
//   // The same batch on all ranks, and each computes with its rows. Its loss is the mean of its own targets.
//   model(context.own_part(ids, 1), {.targets = context.own_part(next_ids, 1)}).backward();
//
// The gradient of a parameter on a rank is that of this rank's loss, so the ranks add them, as ranks that
// read different samples do. The axis `context` of a Strategy does all of it.
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/context/sequence.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/nn/layers/divided_sequence.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// The functions of attention.h. `automatic`: see choose_attention().
enum class ContextAttention : std::uint8_t { automatic, gathered, ring, all_to_all };
/// "auto", "gathered", "ring" or "all-to-all".
const char* name_of(ContextAttention attention);
/// Throws ValueError for another name.
ContextAttention context_attention_of(std::string_view name);

struct ContextParallelOptions {
  ContextAttention attention = ContextAttention::automatic;
  /// The ranks that divide the heads of attentions, beside this axis: the size of a tensor axis, if
  /// tensor_parallel() was called before. An attention whose parameters it left whole has all heads.
  int head_ranks = 1;
  /// Calls may have documents (TokenContext::documents). Then `automatic` leaves out the ring, which has no
  /// masks of them.
  bool documents = false;
};

class DividedAttention;

/// A handle to a model whose sequences ranks divide. It may be dropped.
class ContextParallel {
 public:
  explicit ContextParallel(std::shared_ptr<DividedAttention> attention) : attention_(std::move(attention)) {}
  /// The form that was chosen; not `automatic`.
  ContextAttention attention() const;
  SequenceOrder order() const;
  /// The rows of `whole`, which is equal on all ranks, that this rank computes; `dim` is the dimension of the
  /// sequence. Throws ValueError if the ranks cannot divide it equally.
  Tensor own_part(const Tensor& whole, std::int64_t dim) const;
  /// The bytes that attention sends on this rank since the last reset_report(). It is counted when forward
  /// runs, and includes the backward of what grad mode would record: see attention.h. Layers that
  /// checkpoint() recomputes count twice.
  std::int64_t bytes_sent() const;
  /// The part of bytes_sent() that forward sends.
  std::int64_t forward_bytes_sent() const;
  /// How long the host has waited for what attention communicates, in forward and in backward.
  double exposed_s() const;
  void reset_report() const;

 private:
  std::shared_ptr<DividedAttention> attention_;
};

/// From now on each call of the module gets this rank's rows of its sequences, and its layers of
/// self-attention attend to the rows of all ranks: LlamaAttention, Gpt2Attention, OlmoeAttention, and
/// MultiheadAttention without masks. Layers that know positions, such as rotary embeddings, compute with
/// those of this rank's rows. A position that a model of your own computes must come with the batch.
///
/// All other code sees the rows of this rank alone. A model that sums, shifts or attends along the sequence
/// outside of these layers, such as by `x.mean(1)`, computes wrong values without an error, and so does a
/// loss that shifts the logits itself: shift the targets before own_part() divides them. MixtureOfExperts
/// balances the tokens of each rank, as it does where ranks read different samples.
///
/// A call with a cache computes whole sequences on each rank and communicates nothing, so that models can
/// generate text. All other calls are collective over the axis.
///
/// Throws ValueError, on every rank, for a module without self-attention, and for layers that would mix the
/// rows of one rank as if they were the whole sequence: recurrent layers, convolutions, pools, pads,
/// Upsample, Unfold, Fold, PixelShuffle, PixelUnshuffle, BatchNorm (SyncBatchNorm is right), GroupNorm,
/// InstanceNorm, EmbeddingBag, and decoder layers with cross-attention. The call of an attention with dropout
/// throws ValueError too.
ContextParallel context_parallel(nn::Module& module, const Axis& axis,
                                 const ContextParallelOptions& options = {});

/// Chooses the form of attention for layers with these heads, over `ranks` ranks: of the forms that give all
/// ranks equal work, the one that sends the fewest elements in forward and backward. Without a causal mask,
/// all forms give equal work. With one, only the ring and the all-to-all do, because the last of contiguous
/// parts sees most keys. The all-to-all needs heads that the ranks divide. The ring needs causal layers
/// without documents, so that all can have the zigzag order. If no form is left, the result is `gathered`.
ContextAttention choose_attention(const std::vector<nn::SequenceModule::Heads>& layers, int ranks,
                                  bool documents);

/// Elements that a rank sends for one row and one feature of a head, in forward and in backward, by
/// attention.h: of an attention with so many heads. `automatic` is no form.
std::array<double, 2> elements_sent(ContextAttention form, const nn::SequenceModule::Heads& heads, int ranks);

}  // namespace tapestry::distributed
