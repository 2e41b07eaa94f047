// The benchmarks of single operations. tools/gpu/peer.py has the same with PyTorch, under the same names.
#include <memory>

#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/conv.h"
#include "tapestry/kernels/ops/matmul.h"
#include "tapestry/tools/bench/gpu/work.h"

namespace tapestry::bench {

namespace {

/// A tensor and the name of its gradient.
using Inputs = std::vector<std::pair<std::string, Tensor>>;

/// A benchmark of backward: computes the gradients of all inputs of y = forward(). The forward pass runs only
/// once. Each call runs the backward pass.
Work gradients(const Inputs& inputs, const std::function<Tensor()>& forward,
               const std::function<Tensor(const Tensor&)>& seed) {
  std::vector<Tensor> leaves;
  for (const auto& [name, tensor] : inputs) leaves.push_back(tensor.set_requires_grad());
  const Tensor y = forward(), dy = seed(y);
  return {[=] {
    const auto found = autograd::grad({y}, leaves, {dy}, true);
    Results results;
    for (std::size_t i = 0; i < found.size(); ++i) results.add(inputs[i].first, found[i]);
    return results;
  }};
}

/// The first half of a transformer's feed-forward network, with the argument of GELU that backward needs.
/// Calls the kernel directly, because no public operation fuses them.
Work linear_gelu(const Spec& s) {
  const Tensor x = random(s, {s[0], s[2]}, 1), w = random(s, {s[1], s[2]}, 2), bias = random(s, {s[1]}, 3);
  const Tensor y = empty({s[0], s[1]}, {s.dtype, s.device}), argument = empty_like(y);
  kernels::GemmArgs g;
  g.m = s[0], g.n = s[1], g.k = s[2];
  g.a = x, g.b = w, g.c = y, g.bias = bias, g.aux = argument;
  g.a_strides = {g.k, 1}, g.b_strides = {1, g.k}, g.c_row = g.n;
  g.epilogue = kernels::Epilogue::gelu_tanh;
  return {[=, inputs = std::vector{x, w, bias}] {
    kernels::gemm(y.device(), y.dtype(), g);
    Results results(y);
    results.add("argument", argument);
    return results;
  }};
}

Work conv(const Spec& s) {
  const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, MemoryFormat::channels_last);
  const Tensor weight = random(s, {s[4], s[1], s[5], s[5]}, 2);
  const Conv2dParams params{.stride = s[6], .padding = s[7]};
  return {[=] { return conv2d(x, weight, {}, params); }};
}

/// Calls the kernel directly, because no public operation fuses a convolution with bias and ReLU.
Work conv_bias_relu(const Spec& s) {
  const auto last = MemoryFormat::channels_last;
  const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, last),
               weight = random(s, {s[4], s[1], s[5], s[5]}, 2);
  const Tensor bias = random(s, {s[4]}, 3);
  kernels::Conv2dShape shape;
  shape.n = s[0], shape.c = s[1], shape.h = s[2], shape.w = s[3];
  shape.k = s[4], shape.r = shape.s = s[5];
  shape.stride_h = shape.stride_w = s[6], shape.padding_h = shape.padding_w = s[7];
  shape.p = (shape.h + 2 * shape.padding_h - shape.r) / shape.stride_h + 1;
  shape.q = (shape.w + 2 * shape.padding_w - shape.s) / shape.stride_w + 1;
  shape.channels_last = shape.relu = true;
  const Tensor y = empty({shape.n, shape.k, shape.p, shape.q}, {s.dtype, s.device}, last);
  return {[=] {
    kernels::conv2d(y.device(), y.dtype(), {.shape = shape, .x = x, .weight = weight, .bias = bias, .y = y});
    return y;
  }};
}

Work conv_backward(const Spec& s) {
  const auto last = MemoryFormat::channels_last;
  const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, last),
               weight = random(s, {s[4], s[1], s[5], s[5]}, 2), bias = random(s, {s[4]}, 3);
  return gradients(
      {{"dx", x}, {"dweight", weight}, {"dbias", bias}},
      [&] { return conv2d(x, weight, bias, {.stride = s[6], .padding = s[7]}); },
      [&](const Tensor& y) { return random(s, y.sizes(), 4, last); });
}

/// Query, key and value, shape (batch, heads, length, head size).
Inputs attention_inputs(const Spec& s) {
  const Shape sizes{s[0], s[1], s[2], s[3]};
  return {{"dq", random(s, sizes, 1)}, {"dk", random(s, sizes, 2)}, {"dv", random(s, sizes, 3)}};
}

Tensor attend(const Inputs& in) {
  return scaled_dot_product_attention(in[0].second, in[1].second, in[2].second, {.is_causal = true});
}

/// The gradient of the CTC loss of `s[1]` samples with `s[0]` steps, `s[2]` classes and `s[3]` labels each.
Work ctc_loss_backward(const Spec& s) {
  const Tensor x = log_softmax(random(s, {s[0], s[1], s[2]}, 1), 2);
  const Spec host{DType::i64, kCPU, {}};
  const Tensor labels = class_targets(host, s[1] * s[3], s[2] - 1).add(1).reshape({s[1], s[3]});
  return gradients(
      {{"dx", x}},
      [&] { return ctc_loss(x, labels, full({s[1]}, s[0], kInt64), full({s[1]}, s[3], kInt64)); },
      [](const Tensor& y) { return ones_like(y); });
}

/// The gradient of an embedding of s[0] rows with s[2] columns, for s[1] tokens. Token ids below 2^e are as
/// frequent as those from 2^e to 2^(e+1) - 1, about as words are by Zipf's law: of 16 tokens, one is token 0.
Work embedding_backward(const Spec& s) {
  const Tensor host = empty({s[1]}, DType::i64), w = random(s, {s[0], s[2]}, 1);
  for (std::int64_t i = 0; i < s[1]; ++i) {
    const std::int64_t octave = std::int64_t{1} << i % 16;
    host.data<std::int64_t>()[i] = (octave - 1 + i / 16 * 7919 % octave) % s[0];
  }
  return gradients(
      {{"dweight", w}}, [tokens = host.to(s.device), w] { return embedding(w, tokens); },
      [&](const Tensor& y) { return random(s, y.sizes(), 2); });
}

/// s[0] parameters of s[1] elements, with gradients.
std::vector<nn::Parameter> trained_parameters(const Spec& s) {
  std::vector<nn::Parameter> parameters;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(s[0]); ++i) {
    parameters.emplace_back("p" + std::to_string(i), random(s, {s[1]}, 2 * i));
    parameters.back()->set_grad(random(s, {s[1]}, 2 * i + 1));
  }
  return parameters;
}

/// Clips to a norm of 1. After the first call the norm is 1, and the factor is still a little less than 1, so
/// that each call scales.
Work clip_grad_norm(const Spec& s) {
  const std::vector<nn::Parameter> parameters = trained_parameters(s);
  const auto norm = std::make_shared<Tensor>();
  return {[=] {
            *norm = nn::clip_grad_norm_(parameters, 1);
            return Results();
          },
          0,
          [=] {
            Results results(*norm);
            for (std::size_t i = 0; i < parameters.size(); ++i)
              results.add("g" + std::to_string(i), parameters[i]->grad());
            return results;
          }};
}

Work adamw(const Spec& s) {
  const std::vector<nn::Parameter> parameters = trained_parameters(s);
  const auto optimizer = std::make_shared<optim::AdamW>(parameters);
  return {[=] {
            optimizer->step();
            return Results();
          },
          0,
          [=] {
            Results results;
            for (std::size_t i = 0; i < parameters.size(); ++i)
              results.add("p" + std::to_string(i), parameters[i]->detach());
            return results;
          }};
}

/// Launches the kernel of eager_mul without allocating a tensor and without the tape. This is the part of its
/// cost that every framework has.
Work launch(const Spec& s) {
  const Tensor a = random(s, {1}, 1), b = random(s, {1}, 2), y = empty_like(a);
  const Tensor* const operands[] = {&y, &a, &b};
  const auto n = static_cast<int>(s[0]);
  return {[=, plan = kernels::plan(operands), inputs = std::vector{a, b}] {
            for (int i = 0; i < n; ++i) kernels::slot<kernels::Mul>(y.device(), y.dtype(), plan);
            return y;
          },
          n};
}

}  // namespace

const std::map<std::string, Maker>& single_operations() {
  static const std::map<std::string, Maker> all = {
      {"copy",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0]}, 1), y = empty_like(x);
         return {[=] { return y.copy_(x); }};
       }},
      {"transpose",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0], s[1]}, 1), y = empty({s[1], s[0]}, {s.dtype, s.device});
         return {[=] { return y.copy_(x.transpose(0, 1)); }};
       }},
      {"cat",
       [](const Spec& s) -> Work {  // s[0] matrices side by side
         std::vector<Tensor> parts;
         for (std::int64_t i = 0; i < s[0]; ++i)
           parts.push_back(random(s, {s[1], s[2]}, static_cast<std::uint32_t>(i)));
         return {[=] { return cat(parts, 1); }};
       }},
      {"add",
       [](const Spec& s) -> Work {
         const Tensor a = random(s, {s[0]}, 1), b = random(s, {s[0]}, 2);
         return {[=] { return a + b; }};
       }},
      {"gelu",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0]}, 1);
         return {[=] { return x.gelu(); }};
       }},
      {"softmax",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0], s[1]}, 1);
         return {[=] { return x.softmax(1); }};
       }},
      {"layer_norm",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0], s[1]}, 1), w = random(s, {s[1]}, 2), b = random(s, {s[1]}, 3);
         return {[=] { return layer_norm(x, {x.size(1)}, w, b); }};
       }},
      {"rms_norm",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0], s[1]}, 1), w = random(s, {s[1]}, 2);
         return {[=] { return rms_norm(x, {x.size(1)}, w, 1e-5); }};
       }},
      {"layer_norm_backward",
       [](const Spec& s) {
         const Tensor x = random(s, {s[0], s[1]}, 1), w = random(s, {s[1]}, 2), b = random(s, {s[1]}, 3);
         return gradients(
             {{"dx", x}, {"dweight", w}, {"dbias", b}}, [=] { return layer_norm(x, {x.size(1)}, w, b); },
             [&](const Tensor& y) { return random(s, y.sizes(), 4); });
       }},
      {"batch_norm_backward",
       [](const Spec& s) {
         const auto last = MemoryFormat::channels_last;
         const Tensor x = random(s, {s[0], s[1], s[2], s[2]}, 1, last), w = random(s, {s[1]}, 2);
         const Tensor b = random(s, {s[1]}, 3);
         return gradients(
             {{"dx", x}, {"dweight", w}, {"dbias", b}}, [=] { return batch_norm(x, {}, {}, w, b, true); },
             [&](const Tensor& y) { return random(s, y.sizes(), 4, last); });
       }},
      {"cross_entropy",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0], s[1]}, 1), target = class_targets(s, s[0], s[1]);
         return {[=] { return cross_entropy(x, target); }};
       }},
      {"cross_entropy_backward",
       [](const Spec& s) {
         const Tensor x = random(s, {s[0], s[1]}, 1), target = class_targets(s, s[0], s[1]);
         return gradients(
             {{"dx", x}}, [=] { return cross_entropy(x, target); },
             [](const Tensor& y) { return ones_like(y); });
       }},
      {"ctc_loss_backward", ctc_loss_backward},
      {"clip_grad_norm", clip_grad_norm},
      {"embedding_backward", embedding_backward},
      {"adamw", adamw},
      {"linear",
       [](const Spec& s) -> Work {  // the product of an (m, k) matrix and a transposed (n, k) matrix
         const Tensor x = random(s, {s[0], s[2]}, 1), w = random(s, {s[1], s[2]}, 2);
         return {[=] { return linear(x, w); }};
       }},
      {"linear_gelu", linear_gelu},
      {"linear_backward",
       [](const Spec& s) {
         const Tensor x = random(s, {s[0], s[2]}, 1), w = random(s, {s[1], s[2]}, 2),
                      b = random(s, {s[1]}, 3);
         return gradients(
             {{"dx", x}, {"dweight", w}, {"dbias", b}}, [=] { return linear(x, w, b); },
             [&](const Tensor& y) { return random(s, y.sizes(), 4); });
       }},
      {"attention",
       [](const Spec& s) -> Work { return {[in = attention_inputs(s)] { return attend(in); }}; }},
      {"attention_backward",
       [](const Spec& s) {
         const Inputs in = attention_inputs(s);
         return gradients(
             in, [=] { return attend(in); }, [&](const Tensor& y) { return random(s, y.sizes(), 4); });
       }},
      {"conv2d", conv},
      {"conv2d_bias_relu", conv_bias_relu},
      {"conv2d_backward", conv_backward},
      {"launch", launch},
      {"eager_mul",
       [](const Spec& s) -> Work {
         const Tensor a = random(s, {1}, 1), b = random(s, {1}, 2);
         const auto n = static_cast<int>(s[0]);
         return {[=] {
                   for (int i = 1; i < n; ++i) a* b;
                   return a * b;
                 },
                 n};
       }},
      {"eager_mul_backward",
       [](const Spec& s) -> Work {
         const Tensor a = random(s, {1}, 1).set_requires_grad(), b = random(s, {1}, 2);
         const auto n = static_cast<int>(s[0]);
         return {[=] {
                   Tensor y = a;
                   for (int i = 0; i < n; ++i) y = y * b;
                   return autograd::grad({y}, {a}, {ones_like(y)})[0];
                 },
                 n};
       }},
  };
  return all;
}

}  // namespace tapestry::bench
