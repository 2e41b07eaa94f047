// The check of placements on models of tensor_parallel(), in one process without peers: it passes right
// models, and names planted faults from forward alone.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/fake_group.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/distributed/tensor/vocabulary.h"
#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;
using Style = TensorStyle;

namespace {

Axis axis_of(int rank, int ranks) {
  return Mesh(fake_process_group(rank, ranks), {{"tensor", ranks}})["tensor"];
}

// 4 heads share 2 key and value heads. Ranks cannot divide 11 words or 7 inner features equally.
std::unique_ptr<nn::Llama> llama(bool adapters = false) {
  auto net = std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = 11,
                                                         .hidden_size = 6,
                                                         .intermediate_size = 7,
                                                         .num_hidden_layers = 1,
                                                         .num_attention_heads = 4,
                                                         .num_key_value_heads = 2,
                                                         .head_dim = 2,
                                                         .max_position_embeddings = 8,
                                                         .tie_word_embeddings = true,
                                                         .attention_bias = true,
                                                         .attention_output_bias = true,
                                                         .mlp_bias = true});
  if (adapters) nn::add_lora(*net, {.r = 2, .target_modules = {"all-linear"}});
  return net;
}
nn::LlamaDecoderLayer& block_of(nn::Llama& net) { return net.model.layers.get<nn::LlamaDecoderLayer>(0); }

Tensor loss_of(nn::LanguageModel& net) {
  return net(ints({1, 2, 3, 4, 5, 6}, {2, 3}), {.targets = ints({2, 3, 4, 5, 6, 7}, {2, 3})});
}

}  // namespace

TEST_CASE("the check passes divided models on each rank, without peers") {
  const auto passes = [](const std::function<std::unique_ptr<nn::LanguageModel>()>& make, int ranks) {
    for (const bool sequence : {false, true})
      for (int rank = 0; rank < ranks; ++rank) {
        const auto net = make();
        const Axis tensor = axis_of(rank, ranks);
        INFO(net->type_name() << ", rank " << rank << " of " << ranks << ", sequence " << sequence);
        tensor_parallel(*net, tensor, tensor_plan(*net, ranks), {.sequence = sequence});
        CHECK_NOTHROW(require_placement(loss_of(*net), tensor, Placement::invariant()));
        const Tensor logits = (*net)(ints({1, 2, 3}, {1, 3}));
        CHECK_NOTHROW(require_placement(logits, tensor, Placement::invariant()));
      }
  };
  for (const bool adapters : {false, true})
    for (const int ranks : {2, 4})  // on 4 ranks, pairs share key and value heads
      passes([&] { return llama(adapters); }, ranks);
  passes(
      [] {
        auto net = std::make_unique<nn::Gpt2>(nn::Gpt2Config{
            .vocab_size = 11, .n_positions = 8, .n_embd = 6, .n_layer = 1, .n_head = 3, .n_inner = 7});
        nn::add_lora(*net, {.r = 2, .target_modules = {"all-linear"}});
        return net;
      },
      2);
}

namespace {

struct Fault {
  const char* what;
  bool sequence;
  std::function<void(nn::Llama&, const Axis&)> plant;
  std::vector<std::string> message;
};

// Each one computes the right loss, or one that looks right.
std::vector<Fault> faults() {
  const Placement I = Placement::invariant(), R = Placement::replicated(), P = Placement::partial();
  const auto replace = [](nn::Linear& layer, const std::function<Tensor(const Tensor&)>& forward) {
    layer.divided_forward = forward;
  };
  return {
      {"a row layer does not add the ranks' parts",
       false,
       [=](nn::Llama& net, const Axis&) {
         nn::Linear& down = block_of(net).mlp.down_proj;
         replace(down, [&down](const Tensor& x) { return linear(x, down.weight) + down.bias; });
       },
       {"[add]", "is partial", "partial, invariant)", "layers.0.mlp.down_proj"}},
      {"a row layer adds its bias on each rank",
       false,
       [=](nn::Llama& net, const Axis& t) {
         nn::Linear& down = block_of(net).mlp.down_proj;
         replace(down, [&down, t, P, I](const Tensor& x) {
           return convert(linear(x, down.weight, down.bias), t, P, I);
         });
       },
       {"[linear]", "each rank would add the bias", "down_proj"}},
      {"a row layer adds the parts twice",
       false,
       [=](nn::Llama& net, const Axis& t) {
         nn::Linear& down = block_of(net).mlp.down_proj;
         const auto right = down.divided_forward;
         replace(down, [right, t, P, I](const Tensor& x) { return convert(right(x), t, P, I); });
       },
       {"[convert]", "is invariant", "is placed so already", "down_proj"}},
      {"a column layer takes an input whose gradient nobody sums",
       false,
       [=](nn::Llama& net, const Axis& t) {
         nn::Linear& down = block_of(net).mlp.down_proj;
         const auto right = down.divided_forward;
         nn::Linear& up = block_of(net).mlp.up_proj;
         // The output of another region goes into this one as it is.
         replace(up, [&up, right, t](const Tensor& x) {
           const Tensor first = linear(x, up.weight, up.bias);
           return linear(right(first), up.weight, up.bias);
         });
       },
       {"[linear]", "is invariant", "invariant, replicated)", "up_proj"}},
      {"a column layer takes this rank's tokens alone",
       true,
       [=](nn::Llama& net, const Axis&) {
         nn::Linear& down = block_of(net).mlp.down_proj;
         const auto right = down.divided_forward;
         nn::Linear& up = block_of(net).mlp.up_proj;
         replace(up, [&up, right](const Tensor& x) {
           return linear(right(linear(x, up.weight, up.bias)), up.weight, up.bias);
         });
       },
       {"[linear]", "sharded(1)", "replicated)", "up_proj"}},
      {"ranks that share a key head keep its gradient to themselves",
       false,
       [=](nn::Llama& net, const Axis&) {
         nn::Linear& k = block_of(net).self_attn.k_proj;
         replace(k, [&k](const Tensor& x) { return linear(x, k.weight, k.bias); });
       },
       {"[linear]", "is invariant", "invariant, replicated)", "k_proj"}},
      {"the gradient of an adapter's first matrix is not summed",
       false,
       [=](nn::Llama& net, const Axis&) {
         nn::Linear& up = block_of(net).mlp.up_proj;
         nn::LoraAdapter& adapter = *nn::lora_adapters(up)[0].second;
         replace(up, [&up, &adapter](const Tensor& x) {
           return linear(x, up.weight, up.bias) + linear(linear(x, adapter.A), adapter.B);
         });
       },
       {"[linear]", "operand 1", "is invariant", "invariant, replicated)", "up_proj"}},
      {"the embeddings of the ranks' words are not added",
       false,
       [=](nn::Llama& net, const Axis& t) {
         nn::Embedding& words = net.model.embed_tokens;
         words.divided_forward = [&words, t](const Tensor& ids) {
           return vocab_parallel_embedding(words.weight, ids, t, 11);
         };
       },
       {"[rms_norm]", "is partial", "input_layernorm"}},
      {"other ranks' words are not masked",
       false,
       [=](nn::Llama& net, const Axis& t) {
         nn::Embedding& words = net.model.embed_tokens;
         words.divided_forward = [&words, t, P, I](const Tensor& ids) {
           return convert(embedding(words.weight, ids % words.weight.size(0)), t, P, I);
         };
       },
       {"[convert]", "is varying", "is converted from partial", "embed_tokens"}},
      {"the loss is that of this rank's words",
       false,
       [=](nn::Llama& net, const Axis& t) {
         net.divided_head = [&net, t, I, R](const Tensor& x, const nn::TokenContext& how) {
           const Tensor own = linear(convert(x, t, I, R), net.output_weight());
           return cross_entropy(own.flatten(0, 1), how.targets.flatten() % own.size(-1));
         };
       },
       {"[cross_entropy]", "sharded(1)", "the classes are divided"}},
      {"the loss's gradient of the features is not summed",
       false,
       [=](nn::Llama& net, const Axis& t) {
         net.divided_head = [&net, t](const Tensor& x, const nn::TokenContext& how) {
           return vocab_parallel_linear_cross_entropy(x, net.output_weight(), how.targets, t, 11);
         };
       },
       {"[vocab_parallel_cross_entropy]", "operand 0", "is invariant", "invariant, replicated)"}},
  };
}

}  // namespace

TEST_CASE("the check names a planted fault of a divided model from forward alone") {
  for (const Fault& fault : faults()) {
    INFO(fault.what);
    const auto net = llama(/*adapters=*/true);
    net->requires_grad_();
    const Axis tensor = axis_of(1, 4);
    tensor_parallel(*net, tensor, tensor_plan(*net, 4), {.sequence = fault.sequence});
    fault.plant(*net, tensor);
    std::string error;
    try {
      loss_of(*net);
    } catch (const PlacementError& e) {
      error = e.what();
    }
    for (const std::string& part : fault.message) {
      INFO("expected \"" << part << "\": " << error);
      CHECK(error.find(part) != std::string::npos);
    }
    CHECK(error.find("tensor") != std::string::npos);
    const PlacementCheck off(false);
    if (!fault.sequence) CHECK_NOTHROW(loss_of(*net));  // nothing else finds it
  }
}

TEST_CASE("the check names a norm whose gradient is not summed over parts of the sequence") {
  const auto net = llama();
  TensorPlan plan = tensor_plan(*net, 2);
  for (TensorRule& rule : plan.rules)
    if (rule.path == "model.norm") rule.style = Style::enter;  // instead of residual
  const Axis tensor = axis_of(0, 2);
  tensor_parallel(*net, tensor, plan, {.sequence = true});
  CHECK_THROWS_WITH(loss_of(*net), Catch::Matchers::Contains("[rms_norm]") &&
                                       Catch::Matchers::Contains("is invariant along axis tensor") &&
                                       Catch::Matchers::Contains("nobody the sum") &&
                                       Catch::Matchers::Contains("model.norm"));
}
