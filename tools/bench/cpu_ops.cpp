// Tapestry's side of tools/bench_ops. PyTorch's side (cpu_ops.py) has the same names, shapes and values.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;
using F1 = Tensor (*)(const Tensor&);
using F2 = Tensor (*)(const Tensor&, const Tensor&);

namespace {

std::map<std::string, std::function<void()>> work;

void add(const std::string& name, std::function<void()> f) { work[name] = std::move(f); }

/// Times forward and backward of f, whose inputs and parameters are leaves.
void add_training(const std::string& name, std::vector<Tensor> leaves, std::function<Tensor()> f) {
  for (const Tensor& t : leaves) t.set_requires_grad();
  work[name] = [leaves, f = std::move(f)] {
    const Tensor y = f();
    autograd::grad({y}, leaves, std::vector<Tensor>{ones_like(y)});
  };
}

void add_elementwise() {
  const Tensor x = randn({1000000}), y = randn({1000000}), p = rand({1000000}) * 0.8 + 0.1, big = p + 1.5;
  const Tensor i = randint(0, 100, {1000000}), j = randint(1, 100, {1000000}), mask = x > 0;
  const std::pair<const char*, F1> functions[] = {{"sin", sin},
                                                  {"cos", cos},
                                                  {"tan", tan},
                                                  {"atan", atan},
                                                  {"sinh", sinh},
                                                  {"cosh", cosh},
                                                  {"asinh", asinh},
                                                  {"erf", erf},
                                                  {"expm1", expm1},
                                                  {"exp2", exp2},
                                                  {"floor", floor},
                                                  {"ceil", ceil},
                                                  {"trunc", trunc},
                                                  {"sign", sign},
                                                  {"frac", frac},
                                                  {"square", square},
                                                  {"reciprocal", reciprocal},
                                                  {"isfinite", isfinite},
                                                  {"isinf", isinf}};
  for (const auto& [name, f] : functions) add(name, [=, f = f] { f(x); });
  const std::pair<const char*, F1> positive[] = {{"asin", asin},     {"acos", acos},   {"atanh", atanh},
                                                 {"erfinv", erfinv}, {"log1p", log1p}, {"log2", log2},
                                                 {"log10", log10}};
  for (const auto& [name, f] : positive) add(name, [=, f = f] { f(p); });
  add("acosh", [=] { acosh(big); });
  add("round", [=] { round(x); });
  add("nan_to_num", [=] { nan_to_num(x); });
  const std::pair<const char*, F2> binary[] = {
      {"atan2", atan2}, {"fmod", fmod}, {"remainder", remainder}, {"logical_and", logical_and}};
  for (const auto& [name, f] : binary) add(name, [=, f = f] { f(x, y); });
  add("pow", [=] { pow(p, y); });
  add("floor_divide", [=] { floor_divide(i, j); });
  add("bitwise_and", [=] { bitwise_and(i, j); });
  add("logical_not", [=] { logical_not(mask); });
  add("lerp", [=] { lerp(x, y, 0.3); });
  add("addcmul", [=] { addcmul(x, y, p, 2); });
  add("addcdiv", [=] { addcdiv(x, y, p, 2); });
  add("masked_fill", [=] { masked_fill(x, mask, 0); });
  add("where_number", [=] { where(mask, x, 0); });
  add("cast_int8", [=] { x.to(kInt8); });
  const Tensor bytes = x.to(kInt8);
  add("cast_from_int8", [=] { bytes.to(kFloat32); });
  for (const auto& [name, f] : {std::pair<const char*, F1>{"mish", mish},
                                {"hardswish", hardswish},
                                {"hardsigmoid", hardsigmoid},
                                {"softsign", softsign},
                                {"logsigmoid", logsigmoid}})
    add(name, [=, f = f] { f(x); });
  add("elu", [=] { elu(x); });
  add("softplus", [=] { softplus(x); });
  add("leaky_relu", [=] { leaky_relu(x); });
  add("selu", [=] { selu(x); });
  add("glu", [m = x.reshape({1000, 1000})] { glu(m); });
}

void add_indexing() {
  const Tensor m = randn({1000, 1000}), v = randn({1000000}), to = randint(0, 1000, {1000, 1000});
  const Tensor rows = randint(0, 1000, {1000}), flat = randint(0, 1000000, {1000000}), mask = m > 0;
  add("gather", [=] { gather(m, 1, to); });
  add("gather_rows", [=] { gather(m, 0, to); });
  add("scatter", [=] { scatter(m, 1, to, m); });
  add("scatter_add", [=] { scatter_add(m, 1, to, m); });
  add("scatter_add_line", [=] { scatter_add(v, 0, flat, v); });
  add("scatter_reduce_amax", [=] { scatter_reduce(m, 1, to, m, "amax"); });
  add("index_select", [=] { index_select(m, 0, rows); });
  add("index_add", [=] { index_add(m, 0, rows, m); });
  add("index_tensor", [=] { m.index({rows}); });
  add("index_put", [=] { index_put(m, {rows}, m); });
  add("masked_select", [=] { masked_select(m, mask); });
  add("nonzero", [=] { nonzero(m > 1.5); });
  add("one_hot", [=] { one_hot(rows, 1000); });
  add("sort", [=] { sort(m, 1); });
  add("sort_line", [=] { sort(v); });
  add("argsort", [=] { argsort(m, 1); });
  add("topk", [=] { topk(m, 10, 1); });
  add("kthvalue", [=] { kthvalue(m, 500, 1); });
  add("median", [=] { median(m, 1); });
  add("cumsum", [=] { cumsum(m, 1); });
  add("cumsum_columns", [=] { cumsum(m, 0); });
  add("cumprod", [=] { cumprod(m, 1); });
  add("cummax", [=] { cummax(m, 1); });
  add("unique", [=] { unique(rows); });
  add("unique_line", [=] { unique(flat); });
  add("searchsorted", [=, sorted = sort(v).first] { searchsorted(sorted, m); });
  add("bincount", [=] { bincount(flat, {}, 1000000); });
  add("multinomial", [p = rand({1000, 1000})] { multinomial(p, 1); });
}

void add_shape_and_reductions() {
  const Tensor m = randn({1000, 1000}), images = randn({16, 16, 64, 64});
  add("tril", [=] { tril(m); });
  add("flip", [=] { flip(m, {1}); });
  add("roll", [=] { roll(m, {10, 20}, {0, 1}); });
  add("repeat", [small = randn({100, 100})] { repeat(small, {10, 10}); });
  add("repeat_interleave", [small = randn({1000, 100})] { repeat_interleave(small, 10, 1); });
  add("pad_constant", [=] { pad(images, {2, 2, 2, 2}); });
  add("pad_reflect", [=] { pad(images, {2, 2, 2, 2}, PadMode::reflect); });
  add("prod", [=] { prod(m, 1); });
  add("nansum", [=] { nansum(m); });
  add("std", [=] { tapestry::std(m, 1); });
  add("any", [b = m > 10] { any(b); });
  add("count_nonzero", [=] { count_nonzero(m); });
  add("argmax", [=] { argmax(m, 1); });
  add("quantile", [=] { quantile(m, 0.3, 1); });
  add("norm", [=] { norm(m, 2, {1}); });
  add("normalize", [=] { normalize(m); });
  add("cosine_similarity", [=] { cosine_similarity(m, m); });
  add("cdist", [a = randn({500, 64}), b = randn({500, 64})] { cdist(a, b); });
  add("bmm", [a = randn({32, 128, 128}), b = randn({32, 128, 128})] { bmm(a, b); });
  add("outer", [a = randn({1000}), b = randn({1000})] { outer(a, b); });
  add("einsum", [a = randn({32, 8, 64, 32}), b = randn({32, 8, 64, 32})] {
    einsum("bhid,bhjd->bhij", {a, b});
  });
  add("kron", [a = randn({30, 30}), b = randn({30, 30})] { kron(a, b); });
}

void add_linalg() {
  const Tensor a = randn({200, 200}), spd = matmul(a, a.t()) + 200 * eye(200), many = randn({1000, 8, 8});
  add("linalg_inv", [=] { linalg::inv(a); });
  add("linalg_inv_batch", [=] { linalg::inv(many); });
  add("linalg_solve", [=] { linalg::solve(a, a); });
  add("linalg_cholesky", [=] { linalg::cholesky(spd); });
  add("linalg_qr", [=] { linalg::qr(a); });
  add("linalg_svd", [=] { linalg::svd(a); });
  add("linalg_eigh", [=] { linalg::eigh(spd); });
  add("linalg_det", [=] { linalg::det(a); });
}

void add_layers() {
  const Tensor images = randn({16, 64, 32, 32});
  add_training("group_norm", {images}, [=] { return group_norm(images, 8); });
  add_training("instance_norm", {images}, [=] { return instance_norm(images); });
  const Tensor tokens = randn({2048, 512});
  add_training("rms_norm", {tokens}, [=] { return rms_norm(tokens, {512}); });
  const Tensor q = randn({4, 12, 512, 64}), k = randn({4, 12, 512, 64}), v = randn({4, 12, 512, 64});
  add_training("attention", {q, k, v}, [=] { return scaled_dot_product_attention(q, k, v); });
  add_training("attention_causal", {q, k, v},
               [=] { return scaled_dot_product_attention(q, k, v, {.is_causal = true}); });
  const Tensor token = randn({4, 12, 1, 64}), keys = k.detach(), values = v.detach();
  add("attention_one_query", [=] { return scaled_dot_product_attention(token, keys, values); });
  const Tensor line = randn({16, 64, 512}), w1 = randn({64, 64, 3});
  add_training("conv1d", {line, w1}, [=] { return conv1d(line, w1, {}, {.padding = 1}); });
  const Tensor volume = randn({2, 16, 16, 32, 32}), w3 = randn({16, 16, 3, 3, 3});
  add_training("conv3d", {volume, w3}, [=] { return conv3d(volume, w3, {}, {.padding = 1}); });
  const Tensor code = randn({16, 64, 16, 16}), wt = randn({64, 32, 4, 4});
  add_training("conv_transpose2d", {code, wt},
               [=] { return conv_transpose2d(code, wt, {}, {.stride = 2, .padding = 1}); });
  const Tensor small = randn({16, 32, 32, 32});
  add_training("interpolate_nearest", {small}, [=] { return interpolate(small, {.scale_factor = 2}); });
  add_training("interpolate_bilinear", {small},
               [=] { return interpolate(small, {.scale_factor = 2, .mode = InterpolateMode::bilinear}); });
  add_training("interpolate_bicubic", {small},
               [=] { return interpolate(small, {.scale_factor = 2, .mode = InterpolateMode::bicubic}); });
  const Tensor grid = rand({16, 32, 32, 2}) * 2 - 1;
  add_training("grid_sample", {small, grid}, [=] { return grid_sample(small, grid); });
  const Tensor plane = randn({16, 16, 64, 64}), columns = randn({16, 144, 4096});
  const FoldParams windows{.kernel_size = 3, .padding = 1};
  add_training("unfold", {plane}, [=] { return im2col(plane, windows); });
  add_training("fold", {columns}, [=] { return col2im(columns, 64, windows); });
  add_training("max_pool3d", {volume}, [=] { return max_pool3d(volume, {.kernel_size = 2}); });
  add_training("avg_pool1d", {line}, [=] { return avg_pool1d(line, {.kernel_size = 2}); });
  const auto [pooled, where] = max_pool2d_with_indices(plane, {.kernel_size = 2});
  const Tensor half = pooled.detach();
  add_training("max_unpool2d", {half},
               [=, at = where] { return max_unpool2d(half, at, {.kernel_size = 2}); });
  const Tensor table = randn({10000, 64}), bags = randint(0, 10000, {1000, 20});
  add_training("embedding_bag", {table}, [=] { return embedding_bag(table, bags); });
  const Tensor sequence = randn({128, 32, 256});
  const auto lstm = std::make_shared<nn::LSTM>(nn::LSTM::Options{.input_size = 256, .hidden_size = 256});
  const auto gru = std::make_shared<nn::GRU>(nn::GRU::Options{.input_size = 256, .hidden_size = 256});
  const auto rnn = std::make_shared<nn::RNN>(nn::RNN::Options{.input_size = 256, .hidden_size = 256});
  std::vector<Tensor> lstm_leaves, gru_leaves, rnn_leaves;
  for (const nn::Parameter& p : lstm->parameters()) lstm_leaves.push_back(p.tensor());
  for (const nn::Parameter& p : gru->parameters()) gru_leaves.push_back(p.tensor());
  for (const nn::Parameter& p : rnn->parameters()) rnn_leaves.push_back(p.tensor());
  add_training("rnn", rnn_leaves, [=] { return std::get<0>((*rnn)(sequence)); });
  add_training("lstm", lstm_leaves, [=] { return std::get<0>((*lstm)(sequence)); });
  add_training("gru", gru_leaves, [=] { return std::get<0>((*gru)(sequence)); });
}

void add_losses() {
  const Tensor x = randn({1000, 1000}), t = rand({1000, 1000});
  namespace fn = nn::functional;
  const Tensor p = rand({1000, 1000}) * 0.8 + 0.1;
  add_training("l1_loss", {x}, [=] { return fn::l1_loss(x, t); });
  add_training("smooth_l1_loss", {x}, [=] { return fn::smooth_l1_loss(x, t); });
  add_training("huber_loss", {x}, [=] { return fn::huber_loss(x, t); });
  add_training("bce", {p}, [=] { return fn::binary_cross_entropy(p, t); });
  add_training("bce_with_logits", {x}, [=] { return fn::binary_cross_entropy_with_logits(x, t); });
  add_training("kl_div", {x}, [=] { return fn::kl_div(x, t); });
  const Tensor classes = softmax(t, 1);
  add_training("cross_entropy_probabilities", {x}, [=] { return cross_entropy(x, classes); });
  const Tensor hidden = randn({256, 256}), output = randn({16384, 256}), words = randint(0, 16384, {256});
  add_training("linear_cross_entropy", {hidden, output},
               [=] { return linear_cross_entropy(hidden, output, words); });
  const Tensor steps = log_softmax(randn({50, 16, 20}), 2), labels = randint(1, 20, {16, 10});
  const Tensor in = full({16}, 50, kInt64), out = full({16}, 10, kInt64);
  add_training("ctc_loss", {steps}, [=] { return ctc_loss(steps, labels, in, out); });
}

/// Times a step of an optimizer with one parameter of a million elements.
template <class Optimizer>
void add_optimizer(const std::string& name) {
  const nn::Parameter p("p", randn({1000000}));
  p.set_grad(randn({1000000}));
  add(name, [optimizer = std::make_shared<Optimizer>(std::vector{p})] { optimizer->step(); });
}
void add_optimizers() {
  add_optimizer<optim::RMSprop>("rmsprop");
  add_optimizer<optim::Adagrad>("adagrad");
  add_optimizer<optim::Adamax>("adamax");
  add_optimizer<optim::NAdam>("nadam");
  add_optimizer<optim::RAdam>("radam");
  add_optimizer<optim::SGD>("sgd");
  add_optimizer<optim::AdamW>("adamw");
}

// What models call in every step.
void add_basics() {
  const Tensor x = randn({1000000}), y = randn({1000000}), m = randn({1000, 1000});
  add("add", [=] { x.add(y); });
  add("mul", [=] { x.mul(y); });
  add("exp", [=] { exp(x); });
  add("transpose_copy", [=] { m.t().contiguous(); });
  add("sum", [=] { sum(m, 1); });
  add("sum_columns", [=] { sum(m, 0); });
  add("mean", [=] { mean(m); });
  add("max_rows", [=] { amax(m, 1); });
  add("cat", [=] { cat({m, m}, 1); });
  for (const auto& [name, f] :
       {std::pair<const char*, Tensor (*)(const Tensor&)>{"gelu", [](const Tensor& t) { return gelu(t); }},
        {"silu", [](const Tensor& t) { return silu(t); }},
        {"relu", [](const Tensor& t) { return relu(t); }},
        {"sigmoid", [](const Tensor& t) { return sigmoid(t); }},
        {"tanh", [](const Tensor& t) { return tanh(t); }}}) {
    add(name, [=, f = f] { f(x); });
    const Tensor leaf = randn({1000000});
    add_training(std::string(name) + "_backward", {leaf}, [=, f = f] { return f(leaf); });
  }
  const Tensor leaf = randn({1000000});
  add_training("gelu_tanh_backward", {leaf}, [=] { return gelu(leaf, true); });
  const Tensor scores = randn({1000, 1000}), tokens = randn({2048, 512});
  add_training("softmax", {scores}, [=] { return softmax(scores, 1); });
  add_training("log_softmax", {scores}, [=] { return log_softmax(scores, 1); });
  const Tensor weight = ones({512}), bias = zeros({512});
  add_training("layer_norm", {tokens, weight, bias}, [=] { return layer_norm(tokens, {512}, weight, bias); });
  const Tensor images = randn({16, 64, 32, 32}), plain = images.detach(), scale = ones({64}),
               shift = zeros({64});
  add_training("batch_norm", {images, scale, shift},
               [=] { return batch_norm(images, {}, {}, scale, shift, true); });
  add_training("max_pool2d", {images}, [=] { return max_pool2d(images, {.kernel_size = 2}); });
  add_training("avg_pool2d", {images}, [=] { return avg_pool2d(images, {.kernel_size = 2}); });
  add_training("adaptive_avg_pool2d", {images}, [=] { return adaptive_avg_pool2d(images, 1); });
  add("adaptive_avg_pool2d_forward", [=] { adaptive_avg_pool2d(plain, 1); });
  const Tensor square = randn({64, 64, 3, 3}), depth = randn({64, 1, 3, 3}), point = randn({64, 64, 1, 1});
  add_training("conv2d", {images, square}, [=] { return conv2d(images, square, {}, {.padding = 1}); });
  add_training("conv2d_strided", {images, square},
               [=] { return conv2d(images, square, {}, {.stride = 2, .padding = 1}); });
  add_training("conv2d_dilated", {images, square},
               [=] { return conv2d(images, square, {}, {.padding = 2, .dilation = 2}); });
  add_training("conv2d_point", {images, point}, [=] { return conv2d(images, point); });
  add_training("conv2d_depthwise", {images, depth},
               [=] { return conv2d(images, depth, {}, {.padding = 1, .groups = 64}); });
  add_training("conv2d_depthwise_strided", {images, depth},
               [=] { return conv2d(images, depth, {}, {.stride = 2, .padding = 1, .groups = 64}); });
  const Tensor deep = randn({32, 512, 2, 2}), window = randn({512, 512, 3, 3});
  add_training("conv2d_small", {deep, window}, [=] { return conv2d(deep, window, {}, {.padding = 1}); });
  const Tensor small = randn({16, 32, 32, 32});
  add_training("upsample_expand", {small}, [=] {
    return small.unsqueeze(3).unsqueeze(5).expand({16, 32, 32, 2, 32, 2}).reshape({16, 32, 64, 64});
  });
  const Tensor rows = randn({2048, 256}), w1 = randn({1024, 256}), b1 = randn({1024});
  add_training("linear", {rows, w1, b1}, [=] { return linear(rows, w1, b1); });
  const Tensor table = randn({10000, 256}), ids = randint(0, 10000, {4096});
  add_training("embedding", {table}, [=] { return embedding(table, ids); });
  const Tensor logits = randn({2048, 1000}), classes = randint(0, 1000, {2048});
  add_training("cross_entropy", {logits}, [=] { return cross_entropy(logits, classes); });
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::stoi(argv[1]) : 2);
  manual_seed(0);
  add_elementwise();
  add_indexing();
  add_shape_and_reductions();
  add_linalg();
  add_layers();
  add_losses();
  add_optimizers();
  add_basics();
  return bench::take_turns(work);
}
