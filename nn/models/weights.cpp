#include "tapestry/nn/models/weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/parallel.h"
#include "tapestry/nn/models/internal/experts.h"

namespace tapestry::nn {
namespace {

using enum WeightLayout;

// Sources: tensor_mapping.py and convert_hf_to_gguf.py of llama.cpp.
const std::vector<WeightName> kLlama = {
    {"token_embd.weight", "model.embed_tokens.weight", same},
    {"output_norm.weight", "model.norm.weight", same},
    {"output.weight", "lm_head.weight", same},
    {"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", same},
    {"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", q_rows},
    {"blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", q_rows},
    {"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", k_rows},
    {"blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", k_rows},
    {"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", same},
    {"blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", same},
    {"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", same},
    {"blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", same},
    {"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", same},
    {"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", same},
    {"blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias", same},
    {"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", same},
    {"blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", same},
    {"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", same},
    {"blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", same},
};

// llama.cpp rotates halves in Qwen2, as transformers does.
const std::vector<WeightName> kQwen2 = [] {
  std::vector<WeightName> names = kLlama;
  for (WeightName& name : names) name.layout = same;
  return names;
}();

const std::vector<WeightName> kGpt2 = {
    {"token_embd.weight", "transformer.wte.weight", same},
    {"position_embd.weight", "transformer.wpe.weight", same},
    {"output_norm.weight", "transformer.ln_f.weight", same},
    {"output_norm.bias", "transformer.ln_f.bias", same},
    {"output.weight", "lm_head.weight", same},
    {"blk.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight", same},
    {"blk.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias", same},
    {"blk.{}.attn_qkv.weight", "transformer.h.{}.attn.c_attn.weight", transposed},
    {"blk.{}.attn_qkv.bias", "transformer.h.{}.attn.c_attn.bias", same},
    {"blk.{}.attn_output.weight", "transformer.h.{}.attn.c_proj.weight", transposed},
    {"blk.{}.attn_output.bias", "transformer.h.{}.attn.c_proj.bias", same},
    {"blk.{}.ffn_norm.weight", "transformer.h.{}.ln_2.weight", same},
    {"blk.{}.ffn_norm.bias", "transformer.h.{}.ln_2.bias", same},
    {"blk.{}.ffn_up.weight", "transformer.h.{}.mlp.c_fc.weight", transposed},
    {"blk.{}.ffn_up.bias", "transformer.h.{}.mlp.c_fc.bias", same},
    {"blk.{}.ffn_down.weight", "transformer.h.{}.mlp.c_proj.weight", transposed},
    {"blk.{}.ffn_down.bias", "transformer.h.{}.mlp.c_proj.bias", same},
};

// OLMoE's weights but those of its experts. A GGUF file of it is not supported, so these have no name there.
const std::vector<WeightName> kOlmoe = [] {
  std::vector<WeightName> names;
  for (const WeightName& name : kLlama)
    if (std::string_view(name.hf).find(".mlp.") == std::string_view::npos)
      names.push_back({"", name.hf, same});
  for (const char* hf : {"model.layers.{}.self_attn.q_norm.weight", "model.layers.{}.self_attn.k_norm.weight",
                         "model.layers.{}.mlp.gate.weight"})
    names.push_back({"", hf, same});
  return names;
}();

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kRopeFactors = "rope_freqs.weight";

/// What "{}" stands for in `name`, or nullopt if the name does not match. Empty for a pattern without "{}".
std::optional<std::string_view> layer_of(std::string_view pattern, std::string_view name) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos)
    return pattern == name ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, at), after = pattern.substr(at + 2);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
    return std::nullopt;
  const std::string_view layer = name.substr(before.size(), name.size() - before.size() - after.size());
  const bool digits = layer.find_first_not_of("0123456789") == std::string_view::npos;
  return digits ? std::optional<std::string_view>(layer) : std::nullopt;
}

std::string with_layer(std::string_view pattern, std::string_view layer) {
  const std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  return std::string(pattern.substr(0, at)).append(layer).append(pattern.substr(at + 2));
}

struct Match {
  const WeightName* rule = nullptr;
  std::string other;  // the name in the other format
};
Match match(const std::vector<WeightName>& table, const std::string& name, const char* WeightName::*from,
            const char* WeightName::*to) {
  for (const WeightName& rule : table)
    if (const auto layer = layer_of(rule.*from, name)) return {&rule, with_layer(rule.*to, *layer)};
  return {};
}

/// Reorders `rows` rows of `row_bytes` bytes. See rows_to_interleaved().
void reorder(const std::uint8_t* from, std::uint8_t* to, std::int64_t rows, std::int64_t row_bytes,
             std::int64_t heads, bool to_interleaved) {
  const std::int64_t half = rows / heads / 2;
  for (std::int64_t head = 0; head < heads; ++head)
    for (std::int64_t j = 0; j < 2; ++j)
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t first = head * 2 * half, interleaved = first + 2 * i + j,
                           halves = first + i + j * half;
        std::memcpy(to + (to_interleaved ? interleaved : halves) * row_bytes,
                    from + (to_interleaved ? halves : interleaved) * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      }
}

void check_heads(const Shape& sizes, std::int64_t heads) {
  check(sizes.size() == 1 || sizes.size() == 2, "[rows_to_halves] a weight of q or k has the shape ", sizes,
        "; it must have one or two dimensions");
  check(heads >= 1 && sizes[0] % (2 * heads) == 0, "[rows_to_halves] ", sizes[0],
        " rows cannot be the rows of ", heads, " heads of an even size");
}

Tensor reordered(const Tensor& x, std::int64_t heads, bool to_interleaved) {
  tapestry::detail::check_defined("rows_to_halves", x);
  check<DeviceError>(x.device().is_cpu(), "[rows_to_halves] the tensor is on ", x.device(),
                     "; move it to the CPU");
  check(x.is_contiguous(), "[rows_to_halves] the tensor must be contiguous");
  check_heads(x.sizes(), heads);
  Tensor out = empty(x.sizes(), {x.dtype(), kCPU});
  if (x.numel() == 0) return out;
  reorder(static_cast<const std::uint8_t*>(x.raw_data()), static_cast<std::uint8_t*>(out.raw_data()),
          x.sizes()[0], static_cast<std::int64_t>(x.nbytes()) / x.sizes()[0], heads, to_interleaved);
  return out;
}

PackedTensor reordered(const PackedTensor& x, std::int64_t heads, bool to_interleaved) {
  check_heads(x.sizes(), heads);
  check(x.sizes().size() == 2 || block_layout(x.type()).elements == 1,
        "[rows_to_halves] the elements of a vector of ", block_layout(x.type()).name, " cannot be reordered");
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(x.bytes()));
  if (x.bytes() > 0)
    reorder(x.data(), bytes->data(), x.sizes()[0], static_cast<std::int64_t>(x.bytes()) / x.sizes()[0], heads,
            to_interleaved);
  return PackedTensor(x.type(), x.sizes(), bytes->data(), x.bytes(), bytes);
}

/// The transpose of a contiguous matrix of 2 or 4 bytes an element, copied in tiles that stay in the L1
/// cache.
template <class T>
void transpose_elements(const T* from, T* to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 32;
  parallel_for((columns + kTile - 1) / kTile, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c0 = begin * kTile; c0 < std::min(end * kTile, columns); c0 += kTile)
      for (std::int64_t r0 = 0; r0 < rows; r0 += kTile)
        for (std::int64_t c = c0; c < std::min(c0 + kTile, columns); ++c)
          for (std::int64_t r = r0; r < std::min(r0 + kTile, rows); ++r)
            to[c * rows + r] = from[r * columns + c];
  });
}

Tensor transposed_copy(const Tensor& x, const std::string& name) {
  check(x.sizes().size() == 2, "[weights] ", name, " has the shape ", x.sizes(), "; it must be a matrix");
  check(x.is_contiguous() && x.device().is_cpu(), "[weights] ", name, " must be contiguous and on the CPU");
  const std::int64_t rows = x.sizes()[0], columns = x.sizes()[1];
  Tensor out = empty({columns, rows}, {x.dtype(), kCPU});
  if (x.numel() == 0) return out;
  if (dtype_size(x.dtype()) == 2)
    transpose_elements(static_cast<const std::uint16_t*>(x.raw_data()),
                       static_cast<std::uint16_t*>(out.raw_data()), rows, columns);
  else if (dtype_size(x.dtype()) == 4)
    transpose_elements(static_cast<const std::uint32_t*>(x.raw_data()),
                       static_cast<std::uint32_t*>(out.raw_data()), rows, columns);
  else fail("[weights] ", name, " is of ", x.dtype(), "; f32, f16 and bf16 are supported");
  return out;
}

DType dtype_of_blocks(BlockType type) {
  return type == BlockType::f16 ? DType::f16 : type == BlockType::bf16 ? DType::bf16 : DType::f32;
}

bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

const std::vector<WeightName>& weight_names(const std::string& model_type) {
  if (model_type == "llama") return kLlama;
  if (model_type == "qwen2") return kQwen2;
  check(model_type == "gpt2", "[weights] there is no table of names for \"", model_type,
        "\"; there is for llama, qwen2 and gpt2");
  return kGpt2;
}

Tensor rows_to_interleaved(const Tensor& x, std::int64_t heads) { return reordered(x, heads, true); }
Tensor rows_to_halves(const Tensor& x, std::int64_t heads) { return reordered(x, heads, false); }
PackedTensor rows_to_interleaved(const PackedTensor& x, std::int64_t heads) {
  return reordered(x, heads, true);
}
PackedTensor rows_to_halves(const PackedTensor& x, std::int64_t heads) { return reordered(x, heads, false); }

// ---- reading ----

struct ModelWeights::Impl {
  struct Place {
    std::string stored;  // the name in the file
    WeightLayout layout = same;
  };
  std::optional<GgufFile> gguf;
  std::optional<SafetensorsShards> hf;
  std::int64_t heads = 1, kv_heads = 1;
  std::vector<Entry> entries;
  std::unordered_map<std::string, std::size_t> by_name;
  std::unordered_map<std::string, Place> places;

  void put(Entry entry, Place place) {
    by_name.emplace(entry.name, entries.size());
    places.emplace(entry.name, std::move(place));
    entries.push_back(std::move(entry));
  }

  void open_gguf(const std::string& path) {
    gguf.emplace(path);
    const GgufMetadata& m = gguf->metadata();
    const std::string& type = m.string("general.architecture");
    if (type != "llama" && type != "qwen2" && type != "gpt2")
      m.broken("general.architecture is \"", type, "\", which is not supported; llama, qwen2 and gpt2 are");
    heads = m.integer(type + ".attention.head_count");
    kv_heads = m.integer(type + ".attention.head_count_kv", heads);
    for (const GgufFile::Entry& entry : gguf->entries()) {
      if (entry.name == kRopeFactors) continue;  // belongs to the configuration
      const Match found = match(weight_names(type), entry.name, &WeightName::gguf, &WeightName::hf);
      if (!found.rule) m.broken("tensor \"", entry.name, "\" is unknown in a model of type ", type);
      const WeightLayout layout = found.rule->layout;
      Shape sizes = entry.tensor.sizes();
      if (layout == transposed) {
        if (sizes.size() != 2)
          m.broken("tensor \"", entry.name, "\" has the shape ", sizes, "; it must be a matrix");
        sizes = {sizes[1], sizes[0]};
      }
      if (layout == q_rows || layout == k_rows) {
        const std::int64_t count = layout == q_rows ? heads : kv_heads;
        const bool fits =
            (sizes.size() == 2 || (sizes.size() == 1 && block_layout(entry.tensor.type()).elements == 1)) &&
            count >= 1 && count <= sizes[0] && sizes[0] % (2 * count) == 0;
        if (!fits)
          m.broken("tensor \"", entry.name, "\" has the shape ", sizes, ", which does not fit to ", count,
                   " heads");
      }
      if (by_name.count(found.other)) m.broken("tensor \"", entry.name, "\" occurs twice");
      put({found.other, dtype_of_blocks(entry.tensor.type()), sizes}, {entry.name, layout});
    }
  }

  void open_hf(const std::string& path) {
    hf.emplace(path);
    std::string prefix;
    if (hf->find("wte.weight")) prefix = "transformer.";
    if (hf->find("embed_tokens.weight")) prefix = "model.";
    for (const SafetensorsShards::Entry& entry : hf->entries()) {
      if (is_buffer(entry.name)) continue;
      const std::string name = entry.name == kHead ? entry.name : prefix + entry.name;
      put({name, entry.dtype, entry.sizes}, {entry.name, same});
    }
  }

  const Place& place(const std::string& name) const {
    auto found = places.find(name);
    if (found == places.end() && name == kHead) {  // tied embeddings are stored once
      found = places.find("model.embed_tokens.weight");
      if (found == places.end()) found = places.find("transformer.wte.weight");
    }
    check<IoError>(found != places.end(), "[weights] the file has no tensor \"", name, "\"");
    return found->second;
  }

  PackedTensor packed(const Place& at) const {
    const PackedTensor& stored = gguf->packed(at.stored);
    if (at.layout == q_rows) return rows_to_halves(stored, heads);
    if (at.layout == k_rows) return rows_to_halves(stored, kv_heads);
    return stored;
  }
};

ModelWeights::ModelWeights(const std::string& path) {
  auto impl = std::make_shared<Impl>();
  char magic[4] = {};
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) std::ifstream(path, std::ios::binary).read(magic, 4);
  if (std::string_view(magic, 4) == "GGUF" || path.ends_with(".gguf")) impl->open_gguf(path);
  else impl->open_hf(path);
  impl_ = std::move(impl);
}

const std::vector<ModelWeights::Entry>& ModelWeights::entries() const { return impl_->entries; }
const GgufFile* ModelWeights::gguf() const { return impl_->gguf ? &*impl_->gguf : nullptr; }

const ModelWeights::Entry* ModelWeights::find(const std::string& name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->entries[found->second];
}

Tensor ModelWeights::read(const std::string& name) const {
  const Impl::Place& at = impl_->place(name);
  if (!impl_->gguf) return impl_->hf->read(at.stored);
  const PackedTensor packed = impl_->packed(at);
  const Tensor out = block_layout(packed.type()).elements == 1 ? packed.tensor() : packed.unpack();
  return at.layout == transposed ? transposed_copy(out, name) : out;
}

PackedTensor ModelWeights::packed(const std::string& name) const {
  check(impl_->gguf.has_value(), "[ModelWeights::packed] the weights are no GGUF file; use read()");
  const Impl::Place& at = impl_->place(name);
  check(at.layout != transposed, "[ModelWeights::packed] ", name,
        " is stored as [out, in], and blocks cannot be transposed; use read(), or gguf()->packed(\"",
        at.stored, "\")");
  return impl_->packed(at);
}

std::vector<TensorSource> ModelWeights::sources() const {
  std::vector<TensorSource> all;
  for (const Entry& entry : impl_->entries)
    all.push_back({entry.name, entry.dtype, entry.sizes,
                   [copy = *this, name = entry.name] { return copy.read(name); }});
  return all;
}

// ---- writing ----

std::vector<TensorSource> weight_sources(const StateDict& dict) {
  std::vector<TensorSource> all;
  for (const auto& [name, tensor] : dict)
    all.push_back({name, tensor.dtype(), tensor.sizes(),
                   [tensor = tensor] { return tensor.detach().to(kCPU).contiguous(); }});
  return all;
}

namespace {

struct Model {
  std::string type;
  std::int64_t layers = 0, heads = 1, kv_heads = 1;
  bool tied = false;
  std::int64_t vocab = 0;
  Shape gate_up = {}, down = {};  // of a layer's experts
};
Model model_of(const LlamaConfig& c) {
  return {c.model_type,          c.num_hidden_layers,   c.num_attention_heads,
          c.num_key_value_heads, c.tie_word_embeddings, c.vocab_size};
}
Model model_of(const Gpt2Config& c) {
  return {"gpt2", c.n_layer, c.n_head, c.n_head, c.tie_word_embeddings, c.vocab_size};
}
Model model_of(const OlmoeConfig& c) {
  return {"olmoe",
          c.num_hidden_layers,
          c.num_attention_heads,
          c.num_key_value_heads,
          c.tie_word_embeddings,
          c.vocab_size,
          {c.num_experts, 2 * c.intermediate_size, c.hidden_size},
          {c.num_experts, c.hidden_size, c.intermediate_size}};
}

/// llama.cpp takes the size of the vocabulary from the tokens, and refuses a file whose embedding has more
/// rows. The rows that pad it get unused tokens, named as by llama.cpp's converter.
void pad_tokens(GgufMetadata& metadata, std::int64_t vocab) {
  constexpr const char *kTokens = "tokenizer.ggml.tokens", *kTypes = "tokenizer.ggml.token_type",
                       *kScores = "tokenizer.ggml.scores";
  constexpr std::int32_t kNormal = 1, kUnused = 5;
  if (!metadata.has(kTokens)) return;
  std::vector<std::string> tokens = metadata.strings(kTokens);
  const std::size_t given = tokens.size(), size = static_cast<std::size_t>(vocab);
  check(given <= size, "[save_gguf] the tokenizer has ", given, " tokens, but the model knows ", vocab,
        "; pass the tokenizer that belongs to the model");
  if (given == size) return;
  const std::set<std::string> taken(tokens.begin(), tokens.end());
  std::vector<std::int32_t> types(given, kNormal);
  if (metadata.has(kTypes)) {
    const std::vector<std::int64_t> all = metadata.integers(kTypes);
    check(all.size() == given, "[save_gguf] there are ", given, " tokens, but ", all.size(),
          " types of tokens");
    for (std::size_t i = 0; i < given; ++i) types[i] = static_cast<std::int32_t>(all[i]);
  }
  types.resize(size, kUnused);
  while (tokens.size() < size) {
    std::string name = "[PAD" + std::to_string(tokens.size()) + "]";
    while (taken.contains(name)) name += "_";
    tokens.push_back(std::move(name));
  }
  metadata.set(kTokens, GgufArray(std::move(tokens)));
  metadata.set(kTypes, GgufArray(std::move(types)));
  if (const GgufValue* const value = metadata.find(kScores)) {
    const auto* const array = std::get_if<GgufArray>(value);
    const auto* const old = array ? std::get_if<std::vector<float>>(array) : nullptr;
    check(old != nullptr, "[save_gguf] ", kScores, " is no array of f32");
    std::vector<float> scores = *old;
    scores.resize(size);
    metadata.set(kScores, GgufArray(std::move(scores)));
  }
}

std::vector<TensorSource> without_tied(const Model& model, const std::vector<TensorSource>& weights) {
  std::vector<TensorSource> kept;
  for (const TensorSource& source : weights)
    if (!model.tied || source.name != kHead) kept.push_back(source);
  return kept;
}

/// Throws unless all layers have all weights. Llama's biases are optional.
void check_complete(const Model& model, const std::vector<TensorSource>& weights,
                    const std::vector<std::pair<std::string, PackedTensor>>& packed = {}) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : packed) names.insert(name);
  for (const TensorSource& source : weights) names.insert(source.name);
  const auto expect = [&](const std::string& name) {
    check(names.count(name) > 0, "[weights] ", name, " is missing");
  };
  for (const WeightName& rule : model.type == "olmoe" ? kOlmoe : weight_names(model.type)) {
    const std::string_view hf = rule.hf;
    if ((model.tied && hf == kHead) || (model.type != "gpt2" && hf.ends_with(".bias"))) continue;
    const bool layered = hf.find("{}") != std::string_view::npos;
    for (std::int64_t i = 0; i < (layered ? model.layers : 1); ++i) expect(with_layer(hf, std::to_string(i)));
  }
  if (model.gate_up.empty()) return;
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".mlp.experts.";
    for (const auto& m : detail::expert_matrices(layer + "gate_up_proj", model.gate_up)) expect(m.name);
    for (const auto& m : detail::expert_matrices(layer + "down_proj", model.down)) expect(m.name);
  }
}

void write_gguf(const std::string& path, const Model& model, GgufMetadata metadata,
                const SaveGgufOptions& options, const std::vector<TensorSource>& weights,
                const std::vector<TensorSource>& extra) {
  check_complete(model, weights, options.packed);
  for (const auto& [key, value] : options.metadata.entries())
    if (!metadata.has(key)) metadata.set(key, value);
  pad_tokens(metadata, model.vocab);
  const bool f16 = options.type == BlockType::f16, q8 = options.type == BlockType::q8_0;
  check(f16 || q8 || options.type == BlockType::f32 || options.type == BlockType::bf16,
        "[save_gguf] the type is ", block_layout(options.type).name,
        "; F32, F16, BF16 and Q8_0 can be written");
  // The numbers of llama.cpp's enum llama_ftype.
  metadata.set("general.file_type", static_cast<std::uint32_t>(f16                               ? 1
                                                               : q8                              ? 7
                                                               : options.type == BlockType::bf16 ? 32
                                                                                                 : 0));
  if (q8) metadata.set("general.quantization_version", std::uint32_t{2});
  struct Item {
    const TensorSource* source;
    WeightLayout layout;
  };
  std::vector<GgufWriter::Entry> entries;
  std::vector<Item> items;
  for (const TensorSource& source : extra) {
    entries.push_back({source.name, BlockType::f32, source.sizes});
    items.push_back({&source, same});
  }
  for (const TensorSource& source : weights) {
    const Match found = match(weight_names(model.type), source.name, &WeightName::hf, &WeightName::gguf);
    check(found.rule, "[save_gguf] ", source.name, " is no weight of a model of type ", model.type);
    Shape sizes = source.sizes;
    const WeightLayout layout = found.rule->layout;
    if (layout == transposed) {
      check(sizes.size() == 2, "[save_gguf] ", source.name, " has the shape ", sizes,
            "; it must be a matrix");
      sizes = {sizes[1], sizes[0]};
    }
    BlockType type = sizes.size() < 2 ? BlockType::f32 : options.type;
    if (!tapestry::detail::packed_bytes(type, sizes)) type = BlockType::f32;
    entries.push_back({found.other, type, sizes});
    items.push_back({&source, layout});
  }
  std::vector<PackedTensor> blocks;
  for (const auto& [name, tensor] : options.packed) {
    if (model.tied && name == kHead) continue;
    const Match found = match(weight_names(model.type), name, &WeightName::hf, &WeightName::gguf);
    check(found.rule, "[save_gguf] ", name, " is no weight of a model of type ", model.type);
    const WeightLayout layout = found.rule->layout;  // a layer's weight is (out, in), as in GGUF
    blocks.push_back(layout == q_rows   ? rows_to_interleaved(tensor, model.heads)
                     : layout == k_rows ? rows_to_interleaved(tensor, model.kv_heads)
                                        : tensor);
    entries.push_back({found.other, tensor.type(), tensor.sizes()});
  }
  GgufWriter writer(path, std::move(entries), metadata);
  for (const Item& item : items) {
    Tensor tensor = item.source->read();
    check(tensor.sizes() == item.source->sizes, "[save_gguf] the source of ", item.source->name,
          " gave the shape ", tensor.sizes(), " instead of ", item.source->sizes);
    if (item.layout == q_rows) tensor = rows_to_interleaved(tensor, model.heads);
    if (item.layout == k_rows) tensor = rows_to_interleaved(tensor, model.kv_heads);
    if (item.layout == transposed) tensor = transposed_copy(tensor, item.source->name);
    writer.write(tensor);
  }
  for (const PackedTensor& tensor : blocks) writer.write(tensor);
  writer.commit();
}

template <class Config>
void write_hf(const std::string& folder, const Config& config, const std::vector<TensorSource>& weights,
              const SaveShardsOptions& options) {
  const Model model = model_of(config);
  const std::vector<TensorSource> kept = without_tied(model, weights);
  check_complete(model, kept);
  // Norms may have another dtype than the matrices.
  const auto largest = std::max_element(
      kept.begin(), kept.end(),
      [](const TensorSource& a, const TensorSource& b) { return a.sizes.numel() < b.sizes.numel(); });
  const std::string text = config.to_hf_json(largest->dtype);
  save_safetensors_shards(folder, kept, options);
  write_file_atomically((std::filesystem::path(folder) / "config.json").string(), text);
}

}  // namespace

void save_gguf(const std::string& path, const LlamaConfig& config, const std::vector<TensorSource>& weights,
               const SaveGgufOptions& options) {
  GgufMetadata metadata;
  config.put_gguf(metadata);
  std::vector<TensorSource> extra;
  if (config.rope_scaling.type == RopeScalingType::llama3) {
    check(config.model_type == "llama",
          "[save_gguf] llama.cpp has Llama 3's scaling of RoPE for models of type llama, ",
          "and this one is ", config.model_type, "; save_hf() writes it");
    const std::vector<double> factors = config.rope_factors();
    Tensor stored = empty({static_cast<std::int64_t>(factors.size())});
    for (std::size_t i = 0; i < factors.size(); ++i) stored.data<float>()[i] = static_cast<float>(factors[i]);
    extra.push_back({kRopeFactors, DType::f32, stored.sizes(), [stored] { return stored; }});
  }
  const Model model = model_of(config);
  write_gguf(path, model, std::move(metadata), options, without_tied(model, weights), extra);
}

void save_gguf(const std::string& path, const Gpt2Config& config, const std::vector<TensorSource>& weights,
               const SaveGgufOptions& options) {
  GgufMetadata metadata;
  config.put_gguf(metadata);
  const Model model = model_of(config);
  write_gguf(path, model, std::move(metadata), options, without_tied(model, weights), {});
}

void save_hf(const std::string& folder, const LlamaConfig& config, const std::vector<TensorSource>& weights,
             const SaveShardsOptions& options) {
  write_hf(folder, config, weights, options);
}

void save_hf(const std::string& folder, const Gpt2Config& config, const std::vector<TensorSource>& weights,
             const SaveShardsOptions& options) {
  write_hf(folder, config, weights, options);
}

void save_hf(const std::string& folder, const OlmoeConfig& config, const std::vector<TensorSource>& weights,
             const SaveShardsOptions& options) {
  write_hf(folder, config, weights, options);
}

}  // namespace tapestry::nn
