// The benchmarks of whole training steps: zero_grad, forward, loss, backward, optimizer. tools/gpu/peer.py
// has the same models with PyTorch, with the same names, initial values and inputs. Parameters are f32. With
// bf16 or f16, forward and loss run under autocast.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "tapestry/apps/common/basic_block.h"
#include "tapestry/core/cuda/capture.h"
#include "tapestry/tools/bench/gpu/work.h"

namespace tapestry::bench {

namespace {

struct Mlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 784, .out_features = 256});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 256, .out_features = 128});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 128, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    return nn::feed_forward(fc2, fc3, nn::linear_relu(fc1, x), Activation::relu);
  }
};

struct Cnn : nn::Module {
  nn::Conv2d& conv1 = add<nn::Conv2d>("conv1", {.in_channels = 1, .out_channels = 32, .kernel_size = 5});
  nn::Conv2d& conv2 = add<nn::Conv2d>("conv2", {.in_channels = 32, .out_channels = 64, .kernel_size = 5});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 1024, .out_features = 512});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 512, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    Tensor h = max_pool2d(nn::conv2d_relu(conv1, x), {.kernel_size = 2});
    h = max_pool2d(nn::conv2d_relu(conv2, h), {.kernel_size = 2});
    return nn::feed_forward(fc1, fc2, h.flatten(1), Activation::relu);
  }
};

/// ResNet-18 for ImageNet (He et al., "Deep residual learning", 2015).
struct ResNet18 : nn::Module {
  nn::Conv2d& conv1 = add<nn::Conv2d>(
      "conv1",
      {.in_channels = 3, .out_channels = 64, .kernel_size = 7, .stride = 2, .padding = 3, .bias = false});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 64});
  nn::Sequential& layer1 = stage("layer1", 64, 64, 1);
  nn::Sequential& layer2 = stage("layer2", 64, 128, 2);
  nn::Sequential& layer3 = stage("layer3", 128, 256, 2);
  nn::Sequential& layer4 = stage("layer4", 256, 512, 2);
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 512, .out_features = 1000});
  nn::Sequential& stage(const char* name, std::int64_t in, std::int64_t out, std::int64_t stride) {
    nn::Sequential& blocks = add<nn::Sequential>(name);
    blocks.append<apps::BasicBlock>(in, out, stride);
    blocks.append<apps::BasicBlock>(out, out, std::int64_t{1});
    return blocks;
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = nn::batch_norm_relu(bn1, conv1(x));
    h = max_pool2d(h, {.kernel_size = 3, .stride = 2, .padding = 1});
    h = layer4(layer3(layer2(layer1(h))));
    return fc(adaptive_avg_pool2d(h, 1).flatten(1));
  }
};

/// A block of GPT-2 124M: pre-norm, causal attention with 12 heads, GELU (tanh form).
struct Gpt2Block : nn::Module {
  static constexpr std::int64_t kWidth = 768, kHeads = 12;
  nn::LayerNorm& ln1 = add<nn::LayerNorm>("ln1", {.normalized_shape = {kWidth}});
  nn::Linear& qkv = add<nn::Linear>("qkv", {.in_features = kWidth, .out_features = 3 * kWidth});
  nn::Linear& proj = add<nn::Linear>("proj", {.in_features = kWidth, .out_features = kWidth});
  nn::LayerNorm& ln2 = add<nn::LayerNorm>("ln2", {.normalized_shape = {kWidth}});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = kWidth, .out_features = 4 * kWidth});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 4 * kWidth, .out_features = kWidth});
  Tensor attend(const Tensor& x) {
    const std::int64_t n = x.size(0), length = x.size(1);
    const auto parts = qkv(x).chunk(3, 2);
    const auto heads = [&](const Tensor& t) {
      return t.view({n, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const Tensor y =
        scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {.is_causal = true});
    return proj(y.transpose(1, 2).reshape({n, length, kWidth}));
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = x + attend(ln1(x));
    return h + fc2(gelu(fc1(ln2(h)), /*tanh_approximation=*/true));
  }
};

/// Gives the parameters the same initial values as peer.py. Weights have the standard deviation of He
/// initialisation (He et al. 2015). The scales of norms are near 1, and biases are near 0.
void initialize(nn::Module& model, const Spec& spec) {
  std::uint32_t salt = 100;
  const NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.named_parameters()) {
    const Tensor& p = parameter;
    const Tensor values = random({DType::f32, spec.device, {}}, p.sizes(), salt++);
    if (p.dim() > 1)
      p.copy_(values * std::sqrt(6.0 * static_cast<double>(p.size(0)) / static_cast<double>(p.numel())));
    else if (name.ends_with("weight")) p.copy_(values * 0.1 + 1.0);
    else p.copy_(values * 0.1);
  }
}

Work step(const Spec& spec, std::shared_ptr<nn::Module> model, std::shared_ptr<optim::Optimizer> optimizer,
          const std::function<Tensor()>& loss_of) {
  const auto last_loss = std::make_shared<Tensor>();
  Work work{[=] {
              optimizer->zero_grad();
              *last_loss = loss_of();
              last_loss->backward();
              optimizer->step();
              return Results();
            },
            0,
            [=] {
              Results results(last_loss->detach());
              for (const auto& [name, parameter] : model->named_parameters())
                results.add(name, parameter->grad());
              return results;
            }};
  if (!spec.captured || !spec.device.is_cuda()) return work;
  // The warm-up must not change the parameters, because the gradients of the first replay are compared with
  // those of PyTorch's first step.
  const double lr = optimizer->lr();
  optimizer->set_lr(0);
  const auto captured = std::make_shared<cuda::CapturedStep>(
      cuda::capture([&] { static_cast<void>(work.call()); }, {.device = spec.device}));
  optimizer->set_lr(lr);
  work.call = [captured, step = work.call] {  // the step owns the optimizer and the inputs
    captured->replay();
    return Results();
  };
  return work;
}

/// loss(), under autocast unless the dtype is f32.
Tensor lowered(const Spec& spec, const std::function<Tensor()>& loss) {
  std::optional<AutocastGuard> low;
  if (spec.dtype != DType::f32) low.emplace(spec.dtype);
  return loss();
}

template <class Model, class Optimizer>
Work train(const Spec& spec, const typename Optimizer::Options& options, const Tensor& x,
           const std::function<Tensor(const Tensor& y)>& loss) {
  const auto model = std::make_shared<Model>();
  model->to(spec.device);
  initialize(*model, spec);
  return step(spec, model, std::make_shared<Optimizer>(model->parameters(), options),
              [=] { return lowered(spec, [&] { return loss((*model)(x)); }); });
}

/// GPT-2 with its head, without dropout.
Work gpt2(const Spec& spec) {
  const std::int64_t batch = spec[0], length = spec[1], width = spec[3];
  const auto model =
      std::make_shared<nn::Gpt2>(nn::Gpt2Config{.vocab_size = spec[4],
                                                .n_positions = length,
                                                .n_embd = width,
                                                .n_layer = spec[2],
                                                .n_head = std::max<std::int64_t>(width / 64, 1),
                                                .n_inner = 4 * width,
                                                .embd_pdrop = 0,
                                                .attn_pdrop = 0,
                                                .resid_pdrop = 0,
                                                .bos_token_id = -1,
                                                .eos_token_id = -1});
  model->to(spec.device);
  initialize(*model, spec);
  const Tensor words = class_targets(spec, batch * length + 1, spec[4]);
  const Tensor ids = words.narrow(0, 0, batch * length).view({batch, length}),
               next = words.narrow(0, 1, batch * length).view({batch, length});
  return step(spec, model,
              std::make_shared<optim::AdamW>(model->parameters(), optim::AdamW::Options{.lr = 1e-4}),
              [=] { return lowered(spec, [&] { return (*model)(ids, {.targets = next}); }); });
}

std::function<Tensor(const Tensor&)> classification(const Spec& spec, std::int64_t classes) {
  return [spec, target = class_targets(spec, spec[0], classes)](const Tensor& y) {
    return spec.dtype == DType::f32 ? cross_entropy_(y, target) : cross_entropy(y, target);
  };
}

/// Adds a benchmark of the captured step to each benchmark: step_mlp_captured to step_mlp.
std::map<std::string, Maker> with_captured(std::map<std::string, Maker> all) {
  for (const auto& [name, make] : std::map<std::string, Maker>(all))
    all[name + "_captured"] = [make = make](Spec spec) {
      spec.captured = true;
      return make(spec);
    };
  return all;
}

}  // namespace

const std::map<std::string, Maker>& training_steps() {
  static const std::map<std::string, Maker> all = with_captured({
      {"step_mlp",  // size: batch
       [](const Spec& s) {
         return train<Mlp, optim::AdamW>(s, {.lr = 1e-3}, random(s, {s[0], 784}, 1), classification(s, 10));
       }},
      {"step_cnn",  // size: batch
       [](const Spec& s) {
         return train<Cnn, optim::SGD>(s, {.lr = 1e-3, .momentum = 0.9}, random(s, {s[0], 1, 28, 28}, 1),
                                       classification(s, 10));
       }},
      {"step_resnet18",  // sizes: batch, side of the square images
       [](const Spec& s) {
         return train<ResNet18, optim::SGD>(s, {.lr = 1e-3, .momentum = 0.9},
                                            random(s, {s[0], 3, s[1], s[1]}, 1, MemoryFormat::channels_last),
                                            classification(s, 1000));
       }},
      {"step_gpt2_block",  // sizes: batch, sequence length
       [](const Spec& s) {
         const Shape sizes{s[0], s[1], Gpt2Block::kWidth};
         return train<Gpt2Block, optim::AdamW>(
             s, {.lr = 1e-3}, random(s, sizes, 1),
             [target = random(s, sizes, 2)](const Tensor& y) { return mse_loss(y, target); });
       }},
      {"step_gpt2", &gpt2},  // sizes: batch, sequence length, layers, width, vocabulary
  });
  return all;
}

}  // namespace tapestry::bench
