#pragma once
// The weights of language models under Hugging Face's names, whatever file they come from, and files of both
// kinds.
//
//   const ModelWeights weights("SmolLM2-135M-Instruct.Q4_1.gguf");
//   load_weights(model, weights);
//
// GGUF and Hugging Face name tensors differently, and store some of them differently: weights.cpp has the
// table. Two differences change values without changing shapes, so that mixing them gives wrong logits
// silently:
//   - llama.cpp rotates neighbours (2i, 2i + 1) of a head, and transformers rotates halves (i, i +
//   head_dim/2).
//     GGUF files of the architecture llama therefore have the rows of q and k in another order.
//   - GPT-2's linear layers in transformers are [in, out] (Conv1D), those in GGUF are [out, in].
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/packed_tensor.h"
#include "tapestry/core/safetensors_shards.h"
#include "tapestry/nn/models/config.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// A row of the table between the two formats. "{}" in names stands for the number of a layer.
enum class WeightLayout : std::uint8_t {
  same,
  q_rows,      ///< the rows of each query head are in the order of interleaved RoPE in GGUF, with model_type
               ///< llama
  k_rows,      ///< the same for key heads
  transposed,  ///< [out, in] in GGUF, [in, out] in Hugging Face's files
};
struct WeightName {
  const char* gguf;
  const char* hf;
  WeightLayout layout;
};
/// The table of "llama", "qwen2" or "gpt2". Throws ValueError for another model.
const std::vector<WeightName>& weight_names(const std::string& model_type);

/// Reorders the rows of q or k of `heads` heads: row 2i + j of a head of the result is row i + j * n/2 of a
/// head of `x`, where n is the rows of a head and j is 0 or 1. `x` is [rows] or [rows, n] in any dtype, on
/// the CPU. Throws ValueError unless the rows are a multiple of 2 * heads.
Tensor rows_to_interleaved(const Tensor& x, std::int64_t heads);
/// The inverse.
Tensor rows_to_halves(const Tensor& x, std::int64_t heads);
/// The same for packed rows, which stay packed.
PackedTensor rows_to_interleaved(const PackedTensor& x, std::int64_t heads);
PackedTensor rows_to_halves(const PackedTensor& x, std::int64_t heads);

/// The weights in a GGUF file or in Hugging Face's files, memory-mapped. Copies share everything.
class ModelWeights {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::f32;  ///< of read(): f32 for the types of blocks
    Shape sizes;               ///< in Hugging Face's layout
  };
  /// `path` is a GGUF file, a safetensors file, an index of several ones, or a folder of Hugging Face.
  /// GPT-2's names get the prefix "transformer." if the file has none, and buffers that older files contain
  /// (attn.bias, attn.masked_bias, rotary_emb.inv_freq) are left out. Throws IoError if the file is broken,
  /// if the architecture of a GGUF file is not in the table, or if it has a tensor that the table does not
  /// have.
  explicit ModelWeights(const std::string& path);

  /// All tensors. Embeddings that are tied have one entry, that of the input.
  const std::vector<Entry>& entries() const;
  const Entry* find(const std::string& name) const;
  /// Returns a tensor in Hugging Face's layout. "lm_head.weight" is the input embedding if the file has no
  /// other. Throws IoError if there is no tensor of this name.
  Tensor read(const std::string& name) const;
  /// Returns a tensor of a GGUF file in its blocks and in Hugging Face's order of rows. Throws IoError if
  /// there is no tensor of this name, and ValueError if the weights are no GGUF file or the tensor would have
  /// to be transposed.
  PackedTensor packed(const std::string& name) const;
  /// Null unless the weights are a GGUF file.
  const GgufFile* gguf() const;
  /// All tensors, read one by one when they are written.
  std::vector<TensorSource> sources() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Loads weights into a module whose parameters have Hugging Face's names, one tensor at a time, so that the
/// memory of one tensor is needed beyond the module's. The linear layers of a Gpt2 are transposed, and the
/// matrices of experts, which files have one by one, are joined (GroupedExperts). Names and shapes are
/// checked first. Throws one ValueError that lists every wrong shape and, if `strict`, every missing and
/// unexpected name; nothing was loaded then.
LoadResult load_weights(Module& module, const ModelWeights& weights, bool strict = true);

namespace detail {
/// True for a head that the file stores although it has the elements of the input embedding: nothing is lost
/// if a model with tied embeddings leaves it out.
bool is_copy_of_embedding(const ModelWeights& weights, const std::string& name);
}  // namespace detail

/// The tensors of a state dict as sources. Tensors on other devices are copied to the CPU when they are read.
std::vector<TensorSource> weight_sources(const StateDict& dict);

struct SaveGgufOptions {
  /// The type of matrices: F32, F16, BF16 or Q8_0. Vectors are F32, and so are, for Q8_0, matrices whose rows
  /// are no whole blocks.
  BlockType type = BlockType::f32;
  /// Further metadata, such as that of the tokenizer. If the model's vocabulary is padded, unused tokens are
  /// added to the tokenizer's. For keys that the configuration sets too (put_gguf), the values of the
  /// configuration are written.
  GgufMetadata metadata = GgufMetadata();
  /// Further weights, as packed_weights() returns them. They are written in the blocks that they have, and
  /// `type` does not apply to them.
  std::vector<std::pair<std::string, PackedTensor>> packed = {};
};
/// Writes weights with Hugging Face's names to a GGUF file. lm_head.weight is left out if the embeddings are
/// tied. Throws ValueError if a name is not in the table, a weight of the configuration's layers is missing,
/// a shape does not fit to the number of heads, the tokenizer has more tokens than the model, or llama.cpp
/// would not read the file: Qwen2 with Llama 3's scaling of RoPE.
void save_gguf(const std::string& path, const LlamaConfig& config, const std::vector<TensorSource>& weights,
               const SaveGgufOptions& options = {});
void save_gguf(const std::string& path, const Gpt2Config& config, const std::vector<TensorSource>& weights,
               const SaveGgufOptions& options = {});
/// Writes config.json and the weights (save_safetensors_shards) into a folder of Hugging Face. lm_head.weight
/// is left out if the embeddings are tied.
void save_hf(const std::string& folder, const LlamaConfig& config, const std::vector<TensorSource>& weights,
             const SaveShardsOptions& options = {});
void save_hf(const std::string& folder, const Gpt2Config& config, const std::vector<TensorSource>& weights,
             const SaveShardsOptions& options = {});
void save_hf(const std::string& folder, const OlmoeConfig& config, const std::vector<TensorSource>& weights,
             const SaveShardsOptions& options = {});

}  // namespace tapestry::nn
