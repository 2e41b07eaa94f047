// Tapestry's side of tools/bench_low: operations of bf16 tensors, forward and backward, and the same of f32
// tensors as NAME_f32. PyTorch's side (low_ops.py) has the same names and shapes, in bf16.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;
using Leaves = std::vector<Tensor>;

namespace {

std::map<std::string, std::function<void()>> work;

DType dtype = DType::bf16;  // of the works that are added

Tensor low(const Shape& shape) { return randn(shape).to(dtype); }

/// Times f as `name`, and the gradients of its leaves as `name_backward`.
void add(const std::string& name, const Leaves& leaves, const std::function<Tensor()>& f) {
  for (const Tensor& t : leaves) t.set_requires_grad();
  const Tensor y = f(), dy = ones_like(y) * 0.5;
  const std::string suffix = dtype == DType::f32 ? "_f32" : "";
  work[name + suffix] = [f] {
    const NoGradGuard guard;
    f();
  };
  work[name + "_backward" + suffix] = [=] { autograd::grad({y}, leaves, Leaves{dy}, true); };
}

void add_rows() {
  const Tensor x = low({1024, 3072}), weight = low({3072}), bias = low({3072});
  const std::pair<const char*, Tensor (*)(const Tensor&)> functions[] = {
      {"relu", relu}, {"silu", silu}, {"tanh", tanh}, {"sigmoid", sigmoid}, {"exp", exp}, {"erf", erf}};
  for (const auto& [name, f] : functions) add(name, {x}, [=, f = f] { return f(x); });
  add("gelu", {x}, [=] { return gelu(x); });
  add("gelu_tanh", {x}, [=] { return gelu(x, true); });
  add("add", {x}, [=] { return x + x; });
  add("softmax", {x}, [=] { return softmax(x, 1); });
  add("log_softmax", {x}, [=] { return log_softmax(x, 1); });
  add("layer_norm", {x, weight, bias}, [=] { return layer_norm(x, {3072}, weight, bias); });
  add("rms_norm", {x, weight}, [=] { return rms_norm(x, {3072}, weight); });
  add("sum", {x}, [=] { return sum(x); });
  add("sum_rows", {x}, [=] { return sum(x, 1); });
  add("mean_columns", {x}, [=] { return mean(x, 0); });
  const Tensor classes = randint(0, 3072, {1024});
  add("cross_entropy", {x}, [=] { return cross_entropy(x, classes); });
}

void add_images() {
  for (const bool last : {false, true}) {
    const std::string suffix = last ? "_channels_last" : "";
    const auto image = [last](const Shape& shape) {
      const Tensor t = low(shape);
      return last ? t.contiguous(MemoryFormat::channels_last) : t;
    };
    const Tensor x = image({16, 64, 32, 32}), weight = low({64}), bias = low({64});
    const Tensor mean = zeros({64}).to(dtype), var = ones({64}).to(dtype);
    add("batch_norm" + suffix, {x, weight, bias},
        [=] { return batch_norm(x, mean, var, weight, bias, true); });
    add("max_pool2d" + suffix, {x}, [=] { return max_pool2d(x, {.kernel_size = 2}); });
    add("avg_pool2d" + suffix, {x}, [=] { return avg_pool2d(x, {.kernel_size = 2}); });
    const Tensor demo = image({64, 3, 32, 32}), w3 = low({16, 3, 3, 3}), b3 = low({16});
    add("conv_3_channels" + suffix, {w3, b3}, [=] { return conv2d(demo, w3, b3); });
    const Tensor digits = image({128, 1, 28, 28}), w5 = low({32, 1, 5, 5}), b5 = low({32});
    add("conv_1_channel" + suffix, {w5, b5}, [=] { return conv2d(digits, w5, b5); });
    const Tensor maps = image({128, 32, 12, 12}), w32 = low({64, 32, 5, 5}), b32 = low({64});
    add("conv_32_channels" + suffix, {maps, w32, b32}, [=] { return conv2d(maps, w32, b32); });
    const Tensor depth = low({64, 1, 3, 3}), point = low({128, 64, 1, 1});
    add("conv_depthwise" + suffix, {x, depth},
        [=] { return conv2d(x, depth, {}, {.padding = 1, .groups = 64}); });
    add("conv_point" + suffix, {x, point}, [=] { return conv2d(x, point); });
    // ResNet-18's layers for images of 64 x 64
    const Tensor first = image({32, 3, 64, 64}), w7 = low({64, 3, 7, 7});
    add("resnet_first" + suffix, {w7}, [=] { return conv2d(first, w7, {}, {.stride = 2, .padding = 3}); });
    for (const std::int64_t width : {64, 128, 256, 512}) {
      const std::string layer = "resnet_" + std::to_string(width);
      const Tensor in = image({32, width, 1024 / width, 1024 / width}), w = low({width, width, 3, 3});
      add(layer + suffix, {in, w}, [=] { return conv2d(in, w, {}, {.padding = 1}); });
      if (width == 512) break;
      const Tensor down = low({2 * width, width, 3, 3}), shortcut = low({2 * width, width, 1, 1});
      add(layer + "_down" + suffix, {in, down},
          [=] { return conv2d(in, down, {}, {.stride = 2, .padding = 1}); });
      add(layer + "_shortcut" + suffix, {in, shortcut},
          [=] { return conv2d(in, shortcut, {}, {.stride = 2}); });
    }
  }
}

void add_products() {
  const Tensor x = low({2048, 256}), weight = low({1024, 256}), bias = low({1024});
  add("linear", {x, weight, bias}, [=] { return linear(x, weight, bias); });
  const Tensor wide = low({64, 14400}), few = low({10, 14400}), b = low({10});
  add("linear_10_outputs", {wide, few, b}, [=] { return linear(wide, few, b); });
  const Tensor q = low({16, 8, 128, 32}), k = low({16, 8, 128, 32}), v = low({16, 8, 128, 32});
  add("attention", {q, k, v}, [=] { return scaled_dot_product_attention(q, k, v); });
  add("attention_causal", {q, k, v},
      [=] { return scaled_dot_product_attention(q, k, v, {.is_causal = true}); });
  const Tensor a = low({32, 128, 128}), c = low({32, 128, 128});
  add("bmm", {a, c}, [=] { return bmm(a, c); });
  for (const std::int64_t n : {8, 16, 32, 64, 128, 256, 512, 1024}) {
    const Tensor left = low({n, n}), right = low({n, n});
    add("matmul_" + std::to_string(n), {left, right}, [=] { return matmul(left, right); });
  }
}

template <class Layer>
void add_recurrent(const std::string& name) {
  const auto layer = std::make_shared<Layer>(typename Layer::Options{.input_size = 256, .hidden_size = 256});
  layer->to(dtype);
  Leaves leaves;
  for (const nn::Parameter& p : layer->parameters()) leaves.push_back(p.tensor());
  const Tensor x = low({64, 32, 256});
  add(name, leaves, [=] { return std::get<0>((*layer)(x)); });
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::stoi(argv[1]) : 2);
  manual_seed(0);
  for (const DType d : {DType::bf16, DType::f32}) {
    dtype = d;
    add_rows();
    add_images();
    add_products();
    add_recurrent<nn::RNN>("rnn");
    add_recurrent<nn::LSTM>("lstm");
    add_recurrent<nn::GRU>("gru");
  }
  return bench::take_turns(work);
}
