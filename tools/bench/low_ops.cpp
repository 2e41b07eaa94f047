// Tapestry's side of tools/bench_low: operations of bf16 tensors, forward and backward. PyTorch's side
// (low_ops.py) has the same names and shapes.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;
using Leaves = std::vector<Tensor>;

namespace {

std::map<std::string, std::function<void()>> work;

Tensor low(const Shape& shape) { return randn(shape).to(DType::bf16); }

/// Times f as `name`, and the gradients of its leaves as `name_backward`.
void add(const std::string& name, const Leaves& leaves, const std::function<Tensor()>& f) {
  for (const Tensor& t : leaves) t.set_requires_grad();
  const Tensor y = f(), dy = ones_like(y) * 0.5;
  work[name] = [f] {
    const NoGradGuard guard;
    f();
  };
  work[name + "_backward"] = [=] { autograd::grad({y}, leaves, Leaves{dy}, true); };
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
    const Tensor mean = zeros({64}).to(DType::bf16), var = ones({64}).to(DType::bf16);
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
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::stoi(argv[1]) : 2);
  manual_seed(0);
  add_rows();
  add_images();
  add_products();
  return bench::take_turns(work);
}
