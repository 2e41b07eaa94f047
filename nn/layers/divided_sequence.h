#pragma once
// What layers of attention ask if ranks divide their sequences: see distributed::context_parallel().
#include <cstdint>
#include <memory>

#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// How the ranks of an axis divide the sequences of a model: each has some rows of all of them, and equally
/// many.
class DividedSequence {
 public:
  struct Call {
    bool is_causal = false;
    double dropout_p = 0;
    Tensor mask = {};  ///< of document_mask(); undefined: all rows are of one document
  };
  virtual ~DividedSequence() = default;
  /// The positions in the whole sequence of this rank's rows: i64 (rows).
  virtual Tensor positions(std::int64_t rows, Device device) const = 0;
  /// The whole sequences (N, length), in order, of which `rows` (N, rows) are this rank's. Collective, and
  /// without gradients.
  virtual Tensor whole(const Tensor& rows) const = 0;
  /// The mask of the queries that attention() computes on this rank: they see the earlier tokens of their own
  /// document. `documents` is i64, for the whole sequences. The layers of one call share the result.
  virtual Tensor document_mask(const Tensor& documents) const = 0;
  /// scaled_dot_product_attention() of this rank's queries (N, heads, rows, E) to the keys and values of all
  /// ranks, of which k and v (N, groups, rows, E) are this rank's. Collective.
  virtual Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Call& how) const = 0;
};

/// A base of modules that compute with the positions of the rows of a sequence. A call with a cache computes
/// whole sequences on each rank, also if `divided_sequence` is set.
class SequenceModule {
 public:
  /// The heads of a whole attention; none in a module that computes no attention itself.
  struct Heads {
    std::int64_t queries = 0, keys = 0;
    bool always_causal = false;  ///< false: the caller of the layer says it
  };
  virtual ~SequenceModule() = default;
  virtual Heads heads() const { return {}; }
  /// If set, the rows of a call are this rank's part of the sequences.
  std::shared_ptr<const DividedSequence> divided_sequence = {};

 protected:
  /// What divides the sequences of a call; null if each call has whole sequences.
  const DividedSequence* divided(const void* cache) const { return cache ? nullptr : divided_sequence.get(); }
};

}  // namespace tapestry::nn
