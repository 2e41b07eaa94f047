// The Tapestry side of tools/gpu_check's benchmarks; tools/gpu/peer.py does the same work with PyTorch, and
// both take turns. Reads commands, answers each with one line:
//
//   start softmax f32 8192 8192    makes the inputs and runs once: `ok` and samples of the result, to be
//   compared;
//                                  `none why` where a kernel is missing, `failed why`
//   time 10                        the milliseconds of one call, the mean of 10
//
// Inputs are random numbers by a formula that both sides know. Usage: bench_gpu_ops [device = cuda]
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/kernels/ops/conv.h"
#include "tapestry/kernels/ops/elementwise.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 22;  // random numbers, then the same again
constexpr int kSamples = 256;

struct Spec {
  DType dtype = DType::f32;
  Device device;
  std::vector<std::int64_t> sizes;
  std::int64_t operator[](std::size_t i) const {
    check(i < sizes.size(), "[bench] this work needs more than ", sizes.size(), " numbers");
    return sizes[i];
  }
};

/// What is timed; its result is compared after the first call.
struct Work {
  std::function<Tensor()> call;
  int operations = 0;  ///< of the host, whose time is taken for one of them; 0: the device's time is taken
};

float random_number(std::uint32_t i) {
  std::uint32_t h = i * 2654435761u;
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return static_cast<float>((h ^ h >> 16) >> 8) * 0x1p-23f - 1;
}

/// Uniform in [-1, 1), in the order of memory; another `salt`, other numbers.
Tensor random(const Spec& spec, const Shape& sizes, std::uint32_t salt,
              MemoryFormat format = MemoryFormat::contiguous) {
  const bool last = format == MemoryFormat::channels_last;
  const Tensor x =
      empty(last ? Shape{sizes[0], sizes[2], sizes[3], sizes[1]} : sizes, {spec.dtype, spec.device});
  const std::int64_t n = x.numel(), size = std::min(n, kBlock);
  const Tensor numbers = empty({size});
  for (std::int64_t i = 0; i < size; ++i)
    numbers.data<float>()[i] =
        random_number(static_cast<std::uint32_t>(i) + salt * static_cast<std::uint32_t>(kBlock));
  const Tensor block = numbers.to(spec.dtype).to(spec.device), flat = x.view({n});
  for (std::int64_t at = 0; at < n; at += size) {
    const std::int64_t count = std::min(size, n - at);
    flat.narrow(0, at, count).copy_(block.narrow(0, 0, count));
  }
  return last ? x.permute({0, 3, 1, 2}) : x;
}

Tensor class_targets(const Spec& spec) {
  const Tensor t = empty({spec[0]}, DType::i64);
  for (std::int64_t i = 0; i < spec[0]; ++i) t.data<std::int64_t>()[i] = i * 7919 % spec[1];
  return t.to(spec.device);
}

/// The gradient of y, which `forward` makes from x; the graph is made once.
Work gradient(const Tensor& x, const std::vector<Tensor>& weights, const std::function<Tensor()>& forward,
              const std::function<Tensor(const Tensor&)>& seed) {
  std::vector<Tensor> inputs{x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  for (const Tensor& t : inputs) t.set_requires_grad();
  const Tensor y = forward(), dy = seed(y);
  return {[=] { return autograd::grad({y}, inputs, {dy}, true)[0]; }};
}

Work conv(const Spec& s) {
  const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, MemoryFormat::channels_last);
  const Tensor weight = random(s, {s[4], s[1], s[5], s[5]}, 2);
  const Conv2dParams params{.stride = s[6], .padding = s[7]};
  return {[=] { return conv2d(x, weight, {}, params); }};
}

/// By its kernel: no public operation has the ReLU in its epilogue.
Work conv_bias_relu(const Spec& s) {
  const auto last = MemoryFormat::channels_last;
  const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, last),
               weight = random(s, {s[4], s[1], s[5], s[5]}, 2);
  const Tensor bias = random(s, {s[4]}, 3);
  kernels::Conv2d shape;
  shape.n = s[0], shape.c = s[1], shape.h = s[2], shape.w = s[3];
  shape.k = s[4], shape.r = shape.s = s[5];
  shape.stride_h = shape.stride_w = s[6], shape.padding_h = shape.padding_w = s[7];
  shape.p = (shape.h + 2 * shape.padding_h - shape.r) / shape.stride_h + 1;
  shape.q = (shape.w + 2 * shape.padding_w - shape.s) / shape.stride_w + 1;
  shape.channels_last = shape.relu = true;
  shape.device = s.device;
  const Tensor y = empty({shape.n, shape.k, shape.p, shape.q}, {s.dtype, s.device}, last);
  return {[=] {
    kernels::conv2d(y.device(), y.dtype(), shape, x.raw_data(), weight.raw_data(), bias.raw_data(),
                    y.raw_data());
    return y;
  }};
}

Work conv_backward(const Spec& s) {
  const auto last = MemoryFormat::channels_last;
  const Tensor x = random(s, {s[0], s[1], s[2], s[3]}, 1, last),
               weight = random(s, {s[4], s[1], s[5], s[5]}, 2);
  return gradient(
      x, {weight}, [&] { return conv2d(x, weight, {}, {.stride = s[6], .padding = s[7]}); },
      [&](const Tensor& y) { return random(s, y.sizes(), 4, last); });
}

Work adamw(const Spec& s) {
  std::vector<nn::Parameter> parameters;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(s[0]); ++i) {
    parameters.emplace_back("p" + std::to_string(i), random(s, {s[1]}, 2 * i));
    parameters.back()->set_grad(random(s, {s[1]}, 2 * i + 1));
  }
  const auto optimizer = std::make_shared<optim::AdamW>(parameters);
  return {[=] {
    optimizer->step();
    return parameters.back()->detach();
  }};
}

/// Of eager_mul what no framework can save: its kernel is launched, and there is neither a new tensor nor a
/// tape.
Work launch(const Spec& s) {
  const Tensor a = random(s, {1}, 1), b = random(s, {1}, 2), y = empty_like(a);
  const Tensor* const operands[] = {&y, &a, &b};
  const auto n = static_cast<int>(s[0]);
  return {[=, plan = kernels::plan(operands), inputs = std::vector{a, b}] {
            for (int i = 0; i < n; ++i) kernels::mul(y.device(), y.dtype(), plan);
            return y;
          },
          n};
}

using Maker = std::function<Work(const Spec&)>;
const std::map<std::string, Maker>& works() {
  static const std::map<std::string, Maker> all = {
      {"copy",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0]}, 1), y = empty_like(x);
         return {[=] { return y.copy_(x); }};
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
      {"layer_norm_backward",
       [](const Spec& s) {
         const Tensor x = random(s, {s[0], s[1]}, 1), w = random(s, {s[1]}, 2), b = random(s, {s[1]}, 3);
         return gradient(
             x, {w, b}, [=] { return layer_norm(x, {x.size(1)}, w, b); },
             [&](const Tensor& y) { return random(s, y.sizes(), 4); });
       }},
      {"batch_norm_backward",
       [](const Spec& s) {
         const auto last = MemoryFormat::channels_last;
         const Tensor x = random(s, {s[0], s[1], s[2], s[2]}, 1, last), w = random(s, {s[1]}, 2);
         const Tensor b = random(s, {s[1]}, 3);
         return gradient(
             x, {w, b}, [=] { return batch_norm(x, {}, {}, w, b, true); },
             [&](const Tensor& y) { return random(s, y.sizes(), 4, last); });
       }},
      {"cross_entropy",
       [](const Spec& s) -> Work {
         const Tensor x = random(s, {s[0], s[1]}, 1), target = class_targets(s);
         return {[=] { return cross_entropy(x, target); }};
       }},
      {"cross_entropy_backward",
       [](const Spec& s) {
         const Tensor x = random(s, {s[0], s[1]}, 1), target = class_targets(s);
         return gradient(
             x, {}, [=] { return cross_entropy(x, target); }, [](const Tensor& y) { return ones_like(y); });
       }},
      {"adamw", adamw},
      {"linear",
       [](const Spec& s) -> Work {  // (m, k) by (n, k)
         const Tensor x = random(s, {s[0], s[2]}, 1), w = random(s, {s[1], s[2]}, 2);
         return {[=] { return linear(x, w); }};
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

Spec parse_spec(std::istream& words, Device device) {
  Spec spec;
  spec.device = device;
  std::string dtype;
  words >> dtype;
  check(dtype == "f32" || dtype == "bf16", "[bench] dtype \"", dtype, "\"; it is f32 or bf16");
  spec.dtype = dtype == "f32" ? DType::f32 : DType::bf16;
  for (std::int64_t n; words >> n;) spec.sizes.push_back(n);
  return spec;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

/// Elements of the result spread over it, of all its rows and columns; of images channels last, whatever
/// their layout.
std::string samples(const Tensor& result) {
  Tensor y = result.detach();
  if (y.dim() == 4) y = y.permute({0, 2, 3, 1});
  y = y.reshape({y.numel()});
  std::string text;
  const std::int64_t n = y.numel(), count = std::min<std::int64_t>(n, kSamples);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = i * (n / count) + (i * 1000003 + 12345) % (n / count);
    text += " " + number(y.narrow(0, at, 1).cpu().item());
  }
  return text;
}

double milliseconds(const Work& work, int calls, Device device) {
  Event begin(true), end(true);
  const Stream stream = current_stream(device);
  synchronize(device);
  begin.record(stream);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) work.call();
  const std::chrono::duration<double, std::milli> host = std::chrono::steady_clock::now() - start;
  end.record(stream);
  synchronize(device);
  if (work.operations > 0) return host.count() / calls / work.operations;
  return (device.is_cpu() ? host.count() : end.milliseconds_since(begin)) / calls;
}

}  // namespace

int main(int argc, char** argv) {
  const Device device(argc > 1 ? argv[1] : "cuda");
  Work work;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command, name, answer;
    words >> command;
    try {
      if (command == "start") {
        words >> name;
        work = {};  // its memory first
        empty_cache(device.type);
        check(works().contains(name), "[bench] unknown work \"", name, "\"");
        work = works().at(name)(parse_spec(words, device));
        answer = "ok" + samples(work.call());
      } else {
        int calls = 0;
        check(command == "time" && words >> calls && calls > 0, "[bench] unknown command \"", line, "\"");
        check(static_cast<bool>(work.call), "[bench] nothing was started");
        answer = number(milliseconds(work, calls, device));
      }
    } catch (const MissingKernelError& e) {
      work = {};
      answer = std::string("none ") + e.what();
    } catch (const std::exception& e) {
      work = {};
      answer = std::string("failed ") + e.what();
    }
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }
}
