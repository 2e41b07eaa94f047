#pragma once
// The classifier's models. Each is a plain nn::Module that you can copy as a start for your own model.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"

namespace apps {

namespace nn = tapestry::nn;

/// The size of the images and the number of classes.
struct ImageSpec {
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
};

/// Two convolutions with batch norm, two fully connected layers.
struct Cnn : nn::Module {
  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  nn::Conv2d& conv2;
  nn::BatchNorm2d& bn2;
  nn::Dropout& dropout1;
  nn::Linear& fc1;
  nn::Dropout& dropout2;
  nn::Linear& fc2;
  explicit Cnn(const ImageSpec& spec);
  tapestry::Tensor forward(const tapestry::Tensor& x) override;
};

/// Three fully connected layers.
struct Mlp : nn::Module {
  nn::Linear& fc1;
  nn::Linear& fc2;
  nn::Linear& fc3;
  explicit Mlp(const ImageSpec& spec);
  tapestry::Tensor forward(const tapestry::Tensor& x) override;
};

/// Residual network of 18 layers (He et al., "Deep residual learning", 2015). As is usual for images of
/// 32x32, the first convolution is 3x3, and there is no pooling before the first stage.
struct ResNet18 : nn::Module {
  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  nn::Sequential& layer1;
  nn::Sequential& layer2;
  nn::Sequential& layer3;
  nn::Sequential& layer4;
  nn::Linear& fc;
  explicit ResNet18(const ImageSpec& spec);
  tapestry::Tensor forward(const tapestry::Tensor& x) override;
};

/// A convolution, a linear layer and a softmax. The demo then applies cross_entropy, which contains another
/// softmax. Widely copied examples have this mistake; docs/tutorials/quickstart.md shows its effect.
struct Demo : nn::Module {
  nn::Conv2d& conv2d;
  nn::Linear& fc;
  nn::Softmax& softmax;
  explicit Demo(const ImageSpec& spec);
  tapestry::Tensor forward(const tapestry::Tensor& x) override;
};

/// "cnn", "mlp", "resnet18" or "demo". Throws ValueError for another name or if the images are too small for
/// the model.
std::unique_ptr<nn::Module> make_model(const std::string& name, const ImageSpec& spec);

/// The parts of a model that fully_shard() makes units of: the blocks of each stage, and other layers with
/// weights. Batch norm outside of blocks is too small to be sent by itself, and stays with the model.
std::vector<nn::Module*> units_of(nn::Module& model);

/// How tensor ranks divide the fully connected layers of the model. Without rules, they cannot.
tapestry::distributed::TensorPlan tensor_plan_of(const nn::Module& model);

}  // namespace apps
