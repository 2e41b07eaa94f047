#pragma once
// What the language models have in common: a call with tokens, a key/value cache, masks of packed documents.
#include <functional>
#include <vector>

#include "tapestry/core/packed_tensor.h"
#include "tapestry/nn/layers/attention.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// The keys and values of the tokens that a language model has seen, for all its layers: (N, key/value heads,
/// context, features of a head) for each, allocated as they are needed. One cache belongs to one batch.
class KvCache {
 public:
  /// Throws ValueError unless both are positive. LanguageModel::make_cache() passes the right numbers.
  KvCache(std::int64_t layers, std::int64_t capacity);
  std::size_t size() const { return layers_.size(); }
  KeyValueCache& layer(std::int64_t index) { return layers_.at(static_cast<std::size_t>(index)); }
  /// The number of tokens in the cache.
  std::int64_t length() const { return layers_[0].length(); }
  std::int64_t capacity() const { return layers_[0].capacity(); }
  /// Forgets all tokens but the first `length`, for example to go on from a common prompt.
  void truncate(std::int64_t length);

 private:
  std::vector<KeyValueCache> layers_;
};

/// The options of one call of a language model.
struct TokenContext {
  /// If set, the tokens follow those in the cache, to which their keys and values are appended.
  KvCache* cache = nullptr;
  /// Integers (L), or (N, L) for sequences with different positions. By default the tokens have the positions
  /// after those in the cache.
  Tensor positions = {};
  /// Which tokens see which: bool, broadcasting to (N, heads, L, S) with S tokens in cache and call. By
  /// default a token sees itself and all earlier ones. A mask must say that too; document_mask() does.
  Tensor mask = {};
  /// The document of each token, integers (N, L), in place of positions and mask: a token sees the earlier
  /// tokens of its own document, whose positions begin at 0. Tokens of a document are adjacent. Not with a
  /// cache.
  Tensor documents = {};
  /// The word after each token, integers (N, L). If set, the result is the mean cross-entropy, which
  /// linear_cross_entropy() computes without the whole matrix of logits. Targets of -100 do not count. A
  /// model may add a loss of its own in training mode; Olmoe does.
  Tensor targets = {};
  /// Computes the logits of the last token alone, (N, 1, vocab_size).
  bool last = false;
  /// Calls each block through checkpoint(): backward computes it again, and memory holds the blocks' inputs
  /// and the tensors of one block. Without effect if grad mode is off.
  bool checkpoint = false;
};

/// A model that predicts the next token. A derived class computes the features of each token; this class has
/// the head.
class LanguageModel : public Module, public SequenceModule {
 public:
  /// Takes token ids, integers (N, L), and returns logits (N, L, vocab_size), or the loss (TokenContext). N
  /// may be 0, as on a rank without samples: the loss is then the mean over no targets, NaN. Throws
  /// ValueError if L is 0, or if there are more tokens than the context or the cache has room for, and
  /// IndexError for an id outside the vocabulary. After an exception the cache is as it was.
  Tensor forward(const Tensor& ids) override { return forward(ids, TokenContext()); }
  Tensor forward(const Tensor& ids, const TokenContext& how);
  Tensor operator()(const Tensor& ids, const TokenContext& how = {});

  virtual std::int64_t vocab_size() const = 0;
  virtual std::int64_t num_layers() const = 0;
  /// The most tokens of a sequence.
  virtual std::int64_t context_length() const = 0;
  /// The weight of the head, (vocab_size, features), which may be that of the embedding. Undefined if it is
  /// packed.
  virtual const Parameter& output_weight() const = 0;
  /// The same weight if it stays in its blocks (load_packed_weights), else undefined.
  virtual const PackedTensor& packed_output_weight() const = 0;
  /// What follows the features of each token (N, L, features): the logits (N, L, vocab_size), those of the
  /// last token alone (TokenContext::last), or the loss (TokenContext::targets).
  Tensor head(const Tensor& features, const TokenContext& how = {});
  /// If set, head() gets its logits, or its loss without auxiliary_loss(), from this function: ranks divide
  /// the head's weight by words, and each has a part of the logits (distributed::tensor_parallel()).
  std::function<Tensor(const Tensor& features, const TokenContext& how)> divided_head;
  /// Returns `how` with the positions and the mask that follow from its documents. If ranks divide the
  /// sequences, `documents` becomes DividedSequence::document_mask() of the whole sequences, for all layers.
  /// This is collective.
  TokenContext resolved(TokenContext how) const;
  /// The device of the head's weight.
  Device device() const;
  /// A cache for `capacity` tokens, or for the whole context.
  KvCache make_cache(std::int64_t capacity = 0) const;

 protected:
  /// The features of each token (N, L, features), after the last norm. The arguments are checked.
  virtual Tensor features(const Tensor& ids, const TokenContext& how) = 0;
  /// What the last call of features() on this replica adds to the loss, such as a router's loss; undefined if
  /// nothing.
  virtual Tensor auxiliary_loss() { return {}; }
};

/// The mask of sequences that several documents were packed into: token i sees token j if j <= i and both
/// have the same document. `documents` (N, L) gives each token's document; the result is bool (N, 1, L, L).
Tensor document_mask(const Tensor& documents);
/// The position of each token in its document, i64 (N, L). Tokens of a document are adjacent.
Tensor document_positions(const Tensor& documents);

/// What a token sees: see LanguageModel::resolved().
struct Sight {
  Tensor mask = {};       ///< in place of the causal one
  Tensor documents = {};  ///< DividedSequence::document_mask(), if ranks divide the sequences
  const DividedSequence* sequence = nullptr;
};
/// scaled_dot_product_attention() of queries (N, heads, L, E) that are the last of keys and values (N,
/// groups, S, E): query i sees keys 0 to S - L + i unless a mask is given. With a divided sequence, the
/// queries of this rank see the keys of all ranks, and a mask is a ValueError.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Sight& sight = {},
                        double dropout = 0);

/// Fills the weights of all Linear and Embedding layers, routers and experts with normal numbers of mean 0,
/// and the biases with 0.
void init_language_model(Module& module, double std = 0.02);

}  // namespace tapestry::nn
