// Language models whose weights stay in the blocks of their file.
#include "tapestry/nn/models/packed_weights.h"

#include <cstring>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/nn/models/generate.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::nn;
using tests::TempDir;

namespace {

LlamaConfig config_of(bool tied) {
  LlamaConfig c;
  c.vocab_size = 48, c.hidden_size = 64, c.intermediate_size = 96, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 16, c.max_position_embeddings = 64;
  c.tie_word_embeddings = tied;
  return c;
}

template <class M, class Config>
std::unique_ptr<M> on_meta(const Config& config) {
  const DeviceGuard guard("meta");
  return std::make_unique<M>(config);
}

// Larger weights than the initial ones, so that logits differ.
void enlarge(Module& model) {
  const NoGradGuard no_grad;
  for (const Parameter& p : model.parameters())
    if (p->dim() > 1) p->mul_(10);
}

void write_model(const std::string& path, const LlamaConfig& config, BlockType type) {
  manual_seed(3);
  Llama model(config);
  enlarge(model);
  save_gguf(path, config, weight_sources(model.state_dict()), {.type = type});
}

double largest(const Tensor& x) { return x.detach().abs().max().item<double>(); }

}  // namespace

TEST_CASE("packed weights: a model computes with the blocks of its file") {
  const TempDir dir;
  for (const bool tied : {true, false})
    for (const BlockType type : {BlockType::q8_0, BlockType::f16, BlockType::f32}) {
      CAPTURE(tied, block_layout(type).name);
      const std::string path = dir / "model.gguf";
      write_model(path, config_of(tied), type);
      const ModelWeights weights(path);
      Llama dense(config_of(tied));
      load_weights(dense, weights);
      reset_peak_memory(kCPU);
      const auto before = memory_stats(kCPU).allocated;
      const auto packed = on_meta<Llama>(config_of(tied));
      load_packed_weights(*packed, weights);
      CHECK(memory_stats(kCPU).peak_allocated - before < 64 * 1024);  // the norms, and tables of the rotation
      CHECK_FALSE(packed->output_weight().defined());
      CHECK(packed->device() == kCPU);
      CHECK(packed->named_parameters().size() == 5);  // the norms
      CHECK(packed->state_dict().size() == 5);
      CHECK(packed_weights(*packed).size() == (tied ? 15 : 16));

      const Tensor ids = randint(0, 48, {2, 11}), targets = randint(0, 48, {2, 11});
      {
        const NoGradGuard no_grad;
        const Tensor want = dense(ids), got = (*packed)(ids);
        CHECK(largest(got - want) < (type == BlockType::q8_0 ? 0.05 : 1e-4) * largest(want));
        const std::vector<std::int64_t> prompt{1, 2, 3};
        CHECK(generate(*packed, prompt, {.max_new_tokens = 4}).size() == 4);
      }
      // While gradients are recorded, activations stay f32.
      const Tensor want = dense(ids, {.targets = targets}), got = (*packed)(ids, {.targets = targets});
      CHECK(std::abs(want.item<double>() - got.item<double>()) < 1e-4 * want.item<double>());
      want.backward();
      got.backward();
      for (const auto& [name, p] : packed->named_parameters()) {
        const Module& owner = dense.at(name.substr(0, name.rfind('.')));
        const Tensor grad = owner.parameters()[0].grad();
        CHECK(largest(p.grad() - grad) < 1e-3 * largest(grad));
      }
    }
}

TEST_CASE("packed weights: they are written in their blocks") {
  const TempDir dir;
  const std::string first = dir / "first.gguf", second = dir / "second.gguf";
  write_model(first, config_of(false), BlockType::q8_0);
  const auto model = on_meta<Llama>(config_of(false));
  load_packed_weights(*model, ModelWeights(first));
  save_gguf(second, config_of(false), weight_sources(model->state_dict()),
            {.packed = packed_weights(*model)});
  const GgufFile a(first), b(second);
  CHECK(a.entries().size() == b.entries().size());
  for (const GgufFile::Entry& entry : a.entries()) {
    CAPTURE(entry.name);
    const PackedTensor* const other = b.find(entry.name);
    REQUIRE(other);
    CHECK((other->type() == entry.tensor.type() && other->sizes() == entry.tensor.sizes()));
    CHECK(std::memcmp(other->data(), entry.tensor.data(), entry.tensor.bytes()) == 0);
  }
  // Unpacked, the layers are trainable again.
  model->apply([](Module& m) {
    if (auto* layer = dynamic_cast<Linear*>(&m)) layer->unpack_weight();
    if (auto* layer = dynamic_cast<Embedding*>(&m)) layer->unpack_weight();
  });
  CHECK(packed_weights(*model).empty());
  Llama dense(config_of(false));
  load_weights(dense, ModelWeights(first));
  const Tensor ids = randint(0, 48, {1, 5});
  CHECK((*model)(ids).equal(dense(ids)));
}

TEST_CASE("packed weights: GPT-2's linear layers are not transposed") {
  const TempDir dir;
  Gpt2Config config;
  config.vocab_size = 40, config.n_positions = 16, config.n_embd = 32, config.n_layer = 2, config.n_head = 4;
  config.n_inner = 96;
  manual_seed(4);
  Gpt2 model(config);
  enlarge(model);
  StateDict dict = model.state_dict();
  for (auto& [name, tensor] : dict)
    if (tensor.dim() == 2 && name.find(".h.") != std::string::npos) tensor = tensor.t().contiguous();
  const std::string path = dir / "gpt2.gguf";
  save_gguf(path, config, weight_sources(dict), {.type = BlockType::f16});
  const auto packed = on_meta<Gpt2>(config);
  load_packed_weights(*packed, ModelWeights(path));
  CHECK(packed_weights(*packed).size() == 10);
  const NoGradGuard no_grad;
  model.eval(), packed->eval();
  const Tensor ids = randint(0, 40, {2, 7});
  const Tensor want = model(ids);
  CHECK(largest((*packed)(ids)-want) < 0.01 * largest(want));
}

TEST_CASE("packed weights: wrong weights are refused before anything is changed") {
  const TempDir dir;
  const std::string path = dir / "model.gguf";
  write_model(path, config_of(true), BlockType::q8_0);
  LlamaConfig other = config_of(true);
  other.intermediate_size = 128;
  Llama model(other);
  CHECK_THROWS_WITH(
      load_packed_weights(model, ModelWeights(path)),
      ContainsSubstring("mlp.up_proj.weight has the shape [96, 64], but the module's is [128, 64]"));
  CHECK(packed_weights(model).empty());
  Llama untied(config_of(false));
  load_packed_weights(untied, ModelWeights(path));  // the head takes the embedding
  CHECK(untied.lm_head->packed_weight().defined());
  LlamaConfig deeper = config_of(true);
  deeper.num_hidden_layers = 3;
  Llama deep(deeper);
  CHECK_THROWS_WITH(load_packed_weights(deep, ModelWeights(path)),
                    ContainsSubstring("model.layers.2.self_attn.q_proj.weight is missing"));
  Linear layer({.in_features = 32, .out_features = 3});
  CHECK_THROWS_WITH(layer.set_packed_weight(PackedTensor::pack(zeros({32, 3}), BlockType::f32)),
                    ContainsSubstring("expected [3, 32]"));
  CHECK_THROWS_AS(layer.set_packed_weight(PackedTensor()), ValueError);
  CHECK(layer.weight.defined());
  layer.set_packed_weight(PackedTensor::pack(zeros({3, 32}), BlockType::q8_0));
  CHECK_THROWS_WITH(layer(zeros({1, 31})), ContainsSubstring("expected an input of shape (..., 32)"));
  CHECK_THROWS_AS(layer(zeros({1, 32}, DType::bf16)), TypeError);
  Embedding rows({.num_embeddings = 3, .embedding_dim = 32, .max_norm = 1.0});
  CHECK_THROWS_WITH(rows.set_packed_weight(PackedTensor::pack(zeros({3, 32}), BlockType::q8_0)),
                    ContainsSubstring("max_norm"));
}
