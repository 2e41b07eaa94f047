// Compares every layer with PyTorch's (tests/golden/nn.py): names and shapes of the state, output, gradients,
// and buffers after the calls.
#include <cmath>
#include <optional>

#include "tests/nn/recorded_layer.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

RecordedLayers& recorded() {
  static RecordedLayers layers("layers");
  return layers;
}

template <class T>
void check_layer(const std::string& label, const typename T::Options& options, const Tensor& x,
                 bool train = true, int calls = 1) {
  T module(options);
  recorded().check_module(label, module, x, train, calls);
}

template <class T>
void check_loss(const std::string& label, const typename T::Options& options, const Tensor& x,
                const Tensor& target) {
  T module(options);
  recorded().check_layer(label, module, {x, target}, [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{module(in[0], in[1])};
  });
}

const Tensor& x() {
  static const Tensor t = formula({4, 5}, 50);
  return t;
}
const Tensor& image() {
  static const Tensor t = formula({2, 4, 7, 6}, 51, 2.0);
  return t;
}

}  // namespace

TEST_CASE("Linear and Conv2d give PyTorch's outputs and gradients") {
  check_layer<nn::Linear>("linear", {.in_features = 5, .out_features = 3}, x());
  check_layer<nn::Linear>("linear_3d", {.in_features = 5, .out_features = 3}, formula({2, 3, 5}, 52));
  check_layer<nn::Linear>("linear_no_bias", {.in_features = 5, .out_features = 3, .bias = false}, x());
  check_layer<nn::Conv2d>("conv", {.in_channels = 4, .out_channels = 6, .kernel_size = 3}, image());
  check_layer<nn::Conv2d>("conv_options",
                          {.in_channels = 4,
                           .out_channels = 6,
                           .kernel_size = {3, 2},
                           .stride = {2, 1},
                           .padding = {1, 2},
                           .dilation = {1, 2},
                           .groups = 2},
                          image());
  check_layer<nn::Conv2d>("conv_no_bias",
                          {.in_channels = 4, .out_channels = 3, .kernel_size = 1, .bias = false}, image());
}

TEST_CASE("batch norm and layer norm give PyTorch's outputs, gradients and statistics") {
  for (const bool train : {true, false}) {
    const std::string m = train ? "train" : "eval";
    check_layer<nn::BatchNorm1d>("bn1d_" + m, {.num_features = 5}, formula({6, 5}, 53), train, 2);
    check_layer<nn::BatchNorm1d>("bn1d_3d_" + m, {.num_features = 5, .eps = 1e-3, .momentum = 0.3},
                                 formula({3, 5, 4}, 54), train);
    check_layer<nn::BatchNorm2d>("bn2d_" + m, {.num_features = 4}, image(), train, 2);
    check_layer<nn::BatchNorm2d>("bn2d_average_" + m, {.num_features = 4, .momentum = {}}, image(), train, 3);
    check_layer<nn::BatchNorm2d>("bn2d_no_affine_" + m, {.num_features = 4, .affine = false}, image(), train);
    check_layer<nn::BatchNorm2d>("bn2d_no_track_" + m, {.num_features = 4, .track_running_stats = false},
                                 image(), train);
  }
  check_layer<nn::LayerNorm>("ln", {.normalized_shape = 5}, x());
  check_layer<nn::LayerNorm>("ln_2d", {.normalized_shape = {7, 6}, .eps = 1e-3}, image());
  check_layer<nn::LayerNorm>("ln_no_bias", {.normalized_shape = 5, .bias = false}, x());
  check_layer<nn::LayerNorm>("ln_no_affine", {.normalized_shape = 5, .elementwise_affine = false}, x());
}

TEST_CASE("BatchNorm's running statistics follow batches that differ") {
  // Without a momentum they are the averages over all batches; otherwise new batches have the weight
  // `momentum`.
  for (const std::optional<double> momentum :
       {std::optional<double>(), std::optional(0.1), std::optional(0.75)}) {
    nn::BatchNorm2d images({.num_features = 3, .momentum = momentum});
    nn::BatchNorm1d rows({.num_features = 3, .momentum = momentum});
    images.to(DType::f64), rows.to(DType::f64);
    Tensor mean = zeros({3}, DType::f64), variance = ones({3}, DType::f64);
    for (int batch = 0; batch < 4; ++batch) {
      CAPTURE(batch);
      const Tensor x = formula({4, 3, 5, 2}, 60 + batch, 1.0 + batch) + 0.7 * (batch * batch + 1);
      const Tensor flat = x.permute({0, 2, 3, 1}).reshape({40, 3});
      images(x), rows(flat);
      const Tensor batch_mean = flat.mean(0), batch_variance = (flat - batch_mean).pow(2.0).sum(0) / 39.0;
      const double weight = momentum.value_or(1.0 / (batch + 1));
      mean = mean * (1 - weight) + batch_mean * weight;
      variance = variance * (1 - weight) + batch_variance * weight;
      CHECK(allclose(images.running_mean, mean, 1e-12, 1e-12));
      CHECK(allclose(images.running_var, variance, 1e-12, 1e-12));
      CHECK(allclose(rows.running_mean, mean, 1e-12, 1e-12));
      CHECK(allclose(rows.running_var, variance, 1e-12, 1e-12));
      CHECK(images.num_batches_tracked->item() == batch + 1);
    }
    images.eval();
    const Tensor x = formula({2, 3, 2, 2}, 70);
    const Tensor by_hand = (x - mean.view({1, 3, 1, 1})) / (variance.view({1, 3, 1, 1}) + 1e-5).sqrt();
    CHECK(allclose(images(x), by_hand, 1e-12, 1e-12));
  }
}

TEST_CASE("Embedding gives PyTorch's outputs and gradients, and its padding row starts at zero") {
  check_layer<nn::Embedding>("embedding", {.num_embeddings = 9, .embedding_dim = 4}, labels({2, 6}, 1, 9));
  check_layer<nn::Embedding>("embedding_padding",
                             {.num_embeddings = 9, .embedding_dim = 4, .padding_idx = -7},
                             labels({2, 6}, 1, 9));
  const nn::Embedding padded({.num_embeddings = 3, .embedding_dim = 4, .padding_idx = 1});
  CHECK(padded.weight->select(0, 1).abs().sum().item() == 0);
  CHECK(padded.weight->select(0, 2).abs().sum().item() > 0);
}

TEST_CASE("activations, pools, Flatten and Dropout give PyTorch's outputs and gradients") {
  const Tensor in = image() * 3;
  check_layer<nn::ReLU>("relu", {}, in);
  check_layer<nn::SiLU>("silu", {}, in);
  check_layer<nn::Tanh>("tanh", {}, in);
  check_layer<nn::Sigmoid>("sigmoid", {}, in);
  check_layer<nn::Identity>("identity", {}, in);
  check_layer<nn::GELU>("gelu", {}, in);
  check_layer<nn::GELU>("gelu_tanh", {.approximate = "tanh"}, in);
  check_layer<nn::LeakyReLU>("leaky_relu", {.negative_slope = 0.2}, in);
  check_layer<nn::Softmax>("softmax", {.dim = 1}, in);
  check_layer<nn::LogSoftmax>("log_softmax", {.dim = -1}, in);
  check_layer<nn::Flatten>("flatten", {}, in);
  check_layer<nn::Flatten>("flatten_some", {.start_dim = 0, .end_dim = 1}, in);
  check_layer<nn::Dropout>("dropout_zero", {.p = 0}, in);
  check_layer<nn::Dropout>("dropout_eval", {.p = 0.7}, x(), false);
  check_layer<nn::MaxPool2d>("max_pool", {.kernel_size = 2}, in);
  check_layer<nn::MaxPool2d>("max_pool_options",
                             {.kernel_size = {3, 2}, .stride = {2, 1}, .padding = 1, .ceil_mode = true}, in);
  check_layer<nn::MaxPool2d>("max_pool_dilation", {.kernel_size = 2, .stride = 1, .dilation = 2}, in);
  check_layer<nn::AvgPool2d>("avg_pool", {.kernel_size = 3}, in);
  check_layer<nn::AvgPool2d>(
      "avg_pool_options",
      {.kernel_size = 2, .stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false}, in);
  check_layer<nn::AdaptiveAvgPool2d>("adaptive_avg_pool", {.output_size = {3, 4}}, in);
}

TEST_CASE("Dropout drops in training only") {
  nn::Dropout dropout({.p = 0.25});
  manual_seed(3);
  const Tensor ones_in = ones({200, 100});
  const std::vector<double> y = values_of(dropout(ones_in));
  std::size_t dropped = 0;
  for (const double v : y) {
    CHECK((v == 0 || v == Approx(1 / 0.75)));
    dropped += v == 0;
  }
  // With 20000 draws of probability 1/4, the standard deviation of the fraction is 0.0031.
  CHECK(static_cast<double>(dropped) / 20000 == Approx(0.25).margin(5 * 0.0031));
  dropout.eval();
  CHECK(equal(dropout(ones_in), ones_in));
}

TEST_CASE("Sequential gives PyTorch's outputs and gradients") {
  nn::Sequential net(nn::Conv2d::Options{.in_channels = 4, .out_channels = 3, .kernel_size = 3},
                     nn::BatchNorm2d::Options{.num_features = 3}, nn::ReLU::Options{}, nn::Flatten::Options{},
                     nn::Linear::Options{.in_features = 3 * 5 * 4, .out_features = 2});
  recorded().check_module("sequential", net, image());
}

TEST_CASE("losses give PyTorch's values and gradients for every reduction and option") {
  const Tensor logits = formula({6, 5}, 55, 4.0), target = labels({6}, 2, 5);
  const std::pair<const char*, Reduction> reductions[] = {
      {"none", Reduction::none}, {"mean", Reduction::mean}, {"sum", Reduction::sum}};
  for (const auto& [name, reduction] : reductions) {
    check_loss<nn::CrossEntropyLoss>(std::string("ce_") + name, {.reduction = reduction}, logits, target);
    check_loss<nn::NLLLoss>(std::string("nll_") + name, {.reduction = reduction}, logits.log_softmax(1),
                            target);
    nn::MSELoss mse({.reduction = reduction});
    recorded().check_layer(
        std::string("mse_") + name, mse, {logits, formula({6, 5}, 57)},
        [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{mse(in[0], in[1])}; });
  }
  const Tensor weight = ones({5});  // the buffer must exist before fill() writes the recorded weights to it
  check_loss<nn::CrossEntropyLoss>(
      "ce_options", {.weight = weight, .ignore_index = 3, .label_smoothing = 0.1}, logits, target);
  check_loss<nn::CrossEntropyLoss>("ce_probabilities", {}, logits, formula({6, 5}, 58).softmax(1));
  check_loss<nn::NLLLoss>("nll_options", {.weight = weight, .ignore_index = 3}, logits.log_softmax(1),
                          target);
}

namespace {
// Contains the attention module as its child `attn`, as in tests/golden/nn.py, so that the parameter names
// agree.
struct Attention : nn::Module {
  explicit Attention(const nn::MultiheadAttention::Options& options)
      : attn(add<nn::MultiheadAttention>("attn", options)) {}
  nn::MultiheadAttention& attn;
};

void check_attention(const std::string& label, nn::MultiheadAttention::Options options,
                     const nn::AttendOptions& how, std::vector<Tensor> inputs = {}) {
  options.embed_dim = 8;
  options.num_heads = 4;
  if (inputs.empty())
    inputs = {formula({3, 2, 8}, 60, 2.0), formula({5, 2, 8}, 61, 2.0), formula({5, 2, 8}, 62, 2.0)};
  Attention module(options);
  recorded().check_layer("mha_" + label, module, inputs, [&](const std::vector<Tensor>& in) {
    const auto [out, weights] = module.attn(in[0], in[1], in[2], how);
    return std::vector<Tensor>{out, weights};
  });
}
}  // namespace

TEST_CASE("MultiheadAttention gives PyTorch's outputs, weights and gradients for every option") {
  std::vector<Tensor> swapped, single;
  for (const int k : {60, 61, 62}) {
    const Tensor t = formula({k == 60 ? 3 : 5, 2, 8}, k, 2.0);
    swapped.push_back(t.transpose(0, 1).contiguous());
    single.push_back(t.select(1, 0));
  }
  check_attention("plain", {}, {});
  check_attention("no_weights", {}, {.need_weights = false});
  check_attention("per_head_weights", {}, {.average_attn_weights = false});
  check_attention("no_bias", {.bias = false}, {});
  check_attention("batch_first", {.batch_first = true}, {}, swapped);
  check_attention("batch_first_no_weights", {.batch_first = true}, {.need_weights = false}, swapped);
  check_attention("kdim", {.kdim = 6, .vdim = 7}, {},
                  {formula({3, 2, 8}, 60, 2.0), formula({5, 2, 6}, 65), formula({5, 2, 7}, 66)});
  check_attention("unbatched", {}, {}, single);
}

TEST_CASE("MultiheadAttention gives PyTorch's outputs, weights and gradients for every kind of mask") {
  const Tensor causal = tensor(std::vector<bool>{0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1}, {3, 5});
  const Tensor padding = tensor(std::vector<bool>{0, 0, 1, 0, 1, 0, 1, 0, 0, 0}, {2, 5});
  for (const bool need : {true, false}) {
    const std::string w = need ? "" : "_no_weights";
    check_attention("bool_mask" + w, {}, {.need_weights = need, .attn_mask = causal});
    check_attention("float_mask" + w, {}, {.need_weights = need, .attn_mask = formula({3, 5}, 63, 3.0)});
    check_attention("head_mask" + w, {}, {.need_weights = need, .attn_mask = formula({8, 3, 5}, 64, 3.0)});
    check_attention("padding" + w, {}, {.key_padding_mask = padding, .need_weights = need});
    check_attention("both" + w, {}, {.key_padding_mask = padding, .need_weights = need, .attn_mask = causal});
    // Unlike PyTorch, is_causal needs no mask.
    check_attention("causal" + w, {}, {.need_weights = need, .is_causal = true});
  }
}

TEST_CASE("self-attention equals attention with three separate projections") {
  nn::MultiheadAttention attn({.embed_dim = 8, .num_heads = 2, .batch_first = true});
  fill(attn);
  const Tensor in = formula({2, 3, 8}, 9);
  // If query, key and value are the same tensor, one packed matrix product projects all three. The result
  // must equal that of three separate projections.
  const Tensor packed = attn(in, in, in).first, apart = attn(in, in.clone(), in.clone()).first;
  CHECK(packed.allclose(apart, 1e-13, 1e-13));
  CHECK(attn(in).allclose(packed, 1e-13, 1e-13));
}

TEST_CASE("all recorded layers are tested") {
  // This test runs after all others in this file. It is skipped if only some of them were selected.
  if (recorded().tested() < 10) return;
  CHECK(recorded().untested() == "");
}

TEST_CASE("set_training_function replaces batch_norm in training only") {
  nn::BatchNorm1d bn(nn::BatchNorm1d::Options{.num_features = 2, .momentum = 0.25});
  double momentum = 0;
  bn.set_training_function("OtherNorm", [&](const Tensor& x, const Tensor&, const Tensor&,
                                            const Tensor& weight, const Tensor&, double m, double) {
    momentum = m;
    return x * weight * 2;
  });
  const Tensor x = full({3, 2}, 5.0);
  CHECK(bn(x).allclose(full({3, 2}, 10.0)));
  CHECK(momentum == 0.25);
  CHECK(bn.num_batches_tracked->item<std::int64_t>() == 1);
  CHECK(bn.type_name() == "OtherNorm");
  bn.eval();
  CHECK(bn(x).allclose(full({3, 2}, 5 / std::sqrt(1 + 1e-5))));
  bn.train();
  bn.set_training_function("", {});
  CHECK(bn.type_name() == "BatchNorm1d");
  CHECK(bn(x).allclose(zeros({3, 2})));
}
