#pragma once
#include <functional>
#include <optional>

#include "tapestry/autograd/ops/embedding_bag.h"
#include "tapestry/core/packed_tensor.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct EmbeddingOptions {
  using Layer = class Embedding;
  std::int64_t num_embeddings = 0, embedding_dim = 0;
  std::optional<std::int64_t> padding_idx = {};  ///< a row that starts at zero and gets no gradient
  /// Rows of a larger norm are scaled down when they are looked up. Models that are divided among several
  /// ranks or devices cannot have it, because each would scale down other rows.
  std::optional<double> max_norm = {};
  double norm_type = 2;             ///< the p of that norm
  bool scale_grad_by_freq = false;  ///< divides the gradient of a row by its number of lookups
};

/// Looks up rows of weight (num_embeddings, embedding_dim) by integer indices. The weight starts with a
/// standard normal distribution.
class Embedding : public Module {
 public:
  using Options = EmbeddingOptions;
  explicit Embedding(const Options& options);
  Tensor forward(const Tensor& indices) override;
  std::string options_text() const override;
  std::string why_not_divided() const override;

  /// Replaces the weight by one that stays in its blocks and is not trained: `weight` becomes undefined, and
  /// parameters() and state_dict() no longer have it. forward() then gives f32 on the CPU (packed_embedding).
  /// Throws ValueError unless the shape is (num_embeddings, embedding_dim), and if max_norm is set, which
  /// changes the weight.
  void set_packed_weight(const PackedTensor& packed);
  /// Undefined unless set_packed_weight() was called.
  const PackedTensor& packed_weight() const { return packed_; }
  /// Makes `weight` a parameter again, with the elements of the packed weight in f32. Does nothing if there
  /// is none.
  void unpack_weight();

  const Options options;
  Parameter& weight;
  /// If set, forward() is this function: ranks divide the weight (distributed::tensor_parallel()).
  std::function<Tensor(const Tensor& indices)> divided_forward;

 private:
  PackedTensor packed_;
};

struct EmbeddingBagOptions {
  using Layer = class EmbeddingBag;
  std::int64_t num_embeddings = 0, embedding_dim = 0;
  EmbeddingBagMode mode = EmbeddingBagMode::mean;
  bool include_last_offset = false;              ///< offsets end with the number of indices
  std::optional<std::int64_t> padding_idx = {};  ///< a row that starts at zero and is left out of all bags
};

/// Reduces bags of rows of weight (num_embeddings, embedding_dim) by embedding_bag(). The weight starts with
/// a standard normal distribution.
class EmbeddingBag : public Module {
 public:
  using Options = EmbeddingBagOptions;
  explicit EmbeddingBag(const Options& options);
  /// Takes indices (B, L).
  Tensor forward(const Tensor& indices) override;
  /// Takes indices (n) with offsets (B), or (B, L) without. per_sample_weights has the indices' shape.
  Tensor forward(const Tensor& indices, const Tensor& offsets, const Tensor& per_sample_weights = {});
  using Module::operator();
  Tensor operator()(const Tensor& indices, const Tensor& offsets,
                    const Tensor& per_sample_weights = {}) const;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
};

}  // namespace tapestry::nn
