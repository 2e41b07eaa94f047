#include "tapestry/apps/classifier/images.h"

#include "tapestry/data/formats/cifar10.h"
#include "tapestry/data/formats/fashion_mnist.h"
#include "tapestry/data/formats/synthetic.h"
#include "tapestry/data/transforms.h"

namespace apps {

namespace data = tapestry::data;

namespace {

constexpr std::int64_t kTestBatch = 500;

Images make(const Options& options, data::TensorDataset train, data::TensorDataset test,
            std::vector<data::BatchTransform<>> augment, std::vector<data::BatchTransform<>> always,
            std::vector<std::string> classes) {
  Images images;
  const tapestry::Shape& shape = train.input().sizes();
  images.spec = {shape[1], shape[2], shape[3], static_cast<std::int64_t>(classes.size())};
  images.classes = std::move(classes);
  augment.insert(augment.end(), always.begin(), always.end());
  images.train = std::make_unique<data::DataLoader<>>(
      std::move(train), data::DataLoaderOptions<>{.batch_size = options.batch_size,
                                                  .shuffle = true,
                                                  .seed = options.seed,
                                                  .num_workers = options.workers,
                                                  .transforms = std::move(augment)});
  images.test = std::make_unique<data::DataLoader<>>(
      std::move(test),
      data::DataLoaderOptions<>{
          .batch_size = kTestBatch, .num_workers = options.workers, .transforms = std::move(always)});
  return images;
}

}  // namespace

Images load_images(const Options& options) {
  if (options.data == "fashion-mnist")
    return make(options, data::fashion_mnist(true, options.data_dir),
                data::fashion_mnist(false, options.data_dir), {}, {data::normalize({0.2860f}, {0.3530f})},
                data::fashion_mnist_classes());
  if (options.data == "cifar10")
    return make(options, data::cifar10(true, options.data_dir), data::cifar10(false, options.data_dir),
                {data::random_crop(32, 32, 4), data::random_horizontal_flip()},
                {data::normalize({0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f})},
                data::cifar10_classes());
  // Noise with labels that are all zero, as in the demo that this goes back to.
  std::vector<std::string> classes;
  for (int i = 0; i < 10; ++i) classes.push_back(std::to_string(i));
  const bool grey = options.model == "cnn" || options.model == "mlp";
  data::RandomDataset::Options noise{.size = options.synthetic_size, .seed = options.seed};
  if (grey) noise.channels = 1, noise.height = 28, noise.width = 28;
  data::RandomDataset::Options held_out = noise;
  held_out.size = std::max<std::int64_t>(1, options.synthetic_size / 4);
  held_out.seed = options.seed + 1;
  return make(options, data::RandomDataset(noise), data::RandomDataset(held_out), {}, {}, classes);
}

}  // namespace apps
