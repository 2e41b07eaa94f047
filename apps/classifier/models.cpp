#include "tapestry/apps/classifier/models.h"

#include "tapestry/apps/common/basic_block.h"

namespace apps {

using namespace tapestry;

namespace {

// The height or width after a 5x5 convolution, 2x2 pooling, a 5x5 convolution and 2x2 pooling.
std::int64_t after_convs(std::int64_t size) { return ((size - 4) / 2 - 4) / 2; }

nn::Sequential& add_stage(nn::Module& net, const char* name, std::int64_t in, std::int64_t out,
                          std::int64_t stride) {
  nn::Sequential& stage = net.add<nn::Sequential>(name);
  stage.append<BasicBlock>(in, out, stride);
  stage.append<BasicBlock>(out, out, std::int64_t{1});
  return stage;
}

}  // namespace

Cnn::Cnn(const ImageSpec& spec)
    : conv1(add<nn::Conv2d>("conv1", {.in_channels = spec.channels, .out_channels = 32, .kernel_size = 5})),
      bn1(add<nn::BatchNorm2d>("bn1", {.num_features = 32})),
      conv2(add<nn::Conv2d>("conv2", {.in_channels = 32, .out_channels = 64, .kernel_size = 5})),
      bn2(add<nn::BatchNorm2d>("bn2", {.num_features = 64})),
      dropout1(add<nn::Dropout>("dropout1", {.p = 0.25})),
      fc1(add<nn::Linear>("fc1", {.in_features = 64 * after_convs(spec.height) * after_convs(spec.width),
                                  .out_features = 512})),
      dropout2(add<nn::Dropout>("dropout2", {.p = 0.25})),
      fc2(add<nn::Linear>("fc2", {.in_features = 512, .out_features = spec.classes})) {}

Tensor Cnn::forward(const Tensor& x) {
  Tensor h = max_pool2d(nn::batch_norm_relu(bn1, conv1(x)), {.kernel_size = 2});
  h = max_pool2d(nn::batch_norm_relu(bn2, conv2(h)), {.kernel_size = 2});
  return fc2(dropout2(nn::linear_relu(fc1, dropout1(h.flatten(1)))));
}

Mlp::Mlp(const ImageSpec& spec)
    : fc1(add<nn::Linear>("fc1",
                          {.in_features = spec.channels * spec.height * spec.width, .out_features = 256})),
      fc2(add<nn::Linear>("fc2", {.in_features = 256, .out_features = 128})),
      fc3(add<nn::Linear>("fc3", {.in_features = 128, .out_features = spec.classes})) {}

Tensor Mlp::forward(const Tensor& x) {
  return nn::feed_forward(fc2, fc3, nn::linear_relu(fc1, x.flatten(1)), Activation::relu);
}

ResNet18::ResNet18(const ImageSpec& spec)
    : conv1(add<nn::Conv2d>(
          "conv1",
          {.in_channels = spec.channels, .out_channels = 64, .kernel_size = 3, .padding = 1, .bias = false})),
      bn1(add<nn::BatchNorm2d>("bn1", {.num_features = 64})),
      layer1(add_stage(*this, "layer1", 64, 64, 1)),
      layer2(add_stage(*this, "layer2", 64, 128, 2)),
      layer3(add_stage(*this, "layer3", 128, 256, 2)),
      layer4(add_stage(*this, "layer4", 256, 512, 2)),
      fc(add<nn::Linear>("fc", {.in_features = 512, .out_features = spec.classes})) {}

Tensor ResNet18::forward(const Tensor& x) {
  const Tensor h = layer4(layer3(layer2(layer1(nn::batch_norm_relu(bn1, conv1(x))))));
  return fc(adaptive_avg_pool2d(h, 1).flatten(1));
}

Demo::Demo(const ImageSpec& spec)
    : conv2d(add<nn::Conv2d>("conv2d", {.in_channels = spec.channels, .out_channels = 16, .kernel_size = 3})),
      fc(add<nn::Linear>(
          "fc", {.in_features = 16 * (spec.height - 2) * (spec.width - 2), .out_features = spec.classes})),
      softmax(add<nn::Softmax>("softmax", {.dim = 1})) {}

Tensor Demo::forward(const Tensor& x) { return softmax(fc(conv2d(x).flatten(1))); }

std::unique_ptr<nn::Module> make_model(const std::string& name, const ImageSpec& spec) {
  const std::int64_t smallest = name == "cnn" ? 16 : name == "demo" ? 3 : 1;
  check(spec.height >= smallest && spec.width >= smallest, "[classifier] --model ", name,
        " needs images of at least ", smallest, "x", smallest, ", got ", spec.height, "x", spec.width);
  if (name == "cnn") return std::make_unique<Cnn>(spec);
  if (name == "mlp") return std::make_unique<Mlp>(spec);
  if (name == "resnet18") return std::make_unique<ResNet18>(spec);
  if (name == "demo") return std::make_unique<Demo>(spec);
  fail("[classifier] unknown --model ", name, "; choose cnn, mlp, resnet18 or demo");
}

std::vector<nn::Module*> units_of(nn::Module& model) {
  std::vector<nn::Module*> units;
  for (nn::Module* const child : model.children()) {
    if (dynamic_cast<nn::Sequential*>(child))
      for (nn::Module* const block : child->children()) units.push_back(block);
    else if (dynamic_cast<nn::Conv2d*>(child) || dynamic_cast<nn::Linear*>(child)) units.push_back(child);
  }
  return units;
}

distributed::TensorPlan tensor_plan_of(const nn::Module& model) {
  using distributed::TensorStyle;
  if (dynamic_cast<const Mlp*>(&model)) return {{{"fc1", TensorStyle::column}, {"fc2", TensorStyle::row}}};
  if (dynamic_cast<const Cnn*>(&model))
    return {{{"fc1", TensorStyle::column}, {"dropout2", TensorStyle::inside}, {"fc2", TensorStyle::row}}};
  return {};
}

}  // namespace apps
