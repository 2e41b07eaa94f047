// Layers whose weights stay in the blocks of a GGUF file.
#include "tapestry/autograd/ops/packed_linear.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"

namespace tapestry::nn {

void Linear::set_packed_weight(const PackedTensor& packed) {
  check(packed.defined() && packed.sizes() == Shape({options.out_features, options.in_features}),
        "[Linear] the packed weight has shape ", packed.sizes(), "; expected ",
        Shape({options.out_features, options.in_features}));
  check(weight.replicas() <= 1 && !weight.layout(),
        "[Linear] the weight is sharded or replicated, and a "
        "packed weight is neither; call set_packed_weight() before fully_shard() or DataParallel");
  packed_ = packed;
  packed_product_ = [](const Tensor& x, const PackedTensor& w, const Tensor& b) {
    return packed_linear(x, w, b);
  };
  weight = Parameter();
}

void Linear::unpack_weight() {
  if (!packed_.defined()) return;
  weight = Parameter("weight", packed_.unpack());
  packed_ = PackedTensor();
}

void Embedding::set_packed_weight(const PackedTensor& packed) {
  const Shape expected{options.num_embeddings, options.embedding_dim};
  check(packed.defined() && packed.sizes() == expected, "[Embedding] the packed weight has shape ",
        packed.sizes(), "; expected ", expected);
  check(!options.max_norm, "[Embedding] max_norm changes the weight, and a packed weight cannot be changed");
  check(weight.replicas() <= 1 && !weight.layout(),
        "[Embedding] the weight is sharded or replicated, and a "
        "packed weight is neither; call set_packed_weight() before fully_shard() or DataParallel");
  packed_ = packed;
  weight = Parameter();
}

void Embedding::unpack_weight() {
  if (!packed_.defined()) return;
  weight = Parameter("weight", packed_.unpack());
  packed_ = PackedTensor();
}

}  // namespace tapestry::nn
