#include "tapestry/apps/classifier/images.h"

#include <algorithm>

#include "tapestry/data/formats/cifar10.h"
#include "tapestry/data/formats/fashion_mnist.h"
#include "tapestry/data/formats/synthetic.h"
#include "tapestry/data/transforms.h"

namespace apps {

namespace data = tapestry::data;

namespace {

constexpr std::int64_t kTestBatch = 500;

// Yields the first images of a data set again and again, in the same order.
class FirstImages : public data::Sampler {
 public:
  FirstImages(std::int64_t size, std::int64_t first, std::int64_t count, int ranks)
      : size_(size), first_(first), count_(count), ranks_(ranks) {}
  std::int64_t size() const override { return size_; }
  int ranks() const override { return ranks_; }
  std::vector<std::int64_t> indices(std::int64_t) const override {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < size_; ++i) all.push_back(first_ + i % count_);
    return all;
  }

 private:
  std::int64_t size_, first_, count_;
  int ranks_;
};

Images make(const Options& options, int rank, int world_size, data::TensorDataset train,
            data::TensorDataset test, std::vector<data::BatchTransform<>> augment,
            std::vector<data::BatchTransform<>> always, std::vector<std::string> classes) {
  tapestry::check(train.size() > 0 && test.size() > 0, "[classifier] the training set has ", train.size(),
                  " images and the test set has ", test.size(),
                  "; both need at least one, see --data and --data-dir");
  Images images;
  const tapestry::Shape& shape = train.input().sizes();
  images.spec = {shape[1], shape[2], shape[3], static_cast<std::int64_t>(classes.size())};
  images.classes = std::move(classes);
  if (options.overfit_batch) augment.clear();
  augment.insert(augment.end(), always.begin(), always.end());
  tapestry::check(options.batch_size % world_size == 0, "[classifier] --batch-size ", options.batch_size,
                  " is not a multiple of the ", world_size,
                  " ranks; choose a multiple of the number of ranks");
  data::DataLoaderOptions<> training{.batch_size = options.batch_size / world_size,
                                     .shuffle = world_size == 1,
                                     .seed = options.seed,
                                     .num_workers = options.workers,
                                     .transforms = std::move(augment),
                                     .device = tapestry::Device(options.device)};
  if (world_size > 1)
    training.sampler = std::make_shared<data::DistributedSampler>(
        train.size(), rank, world_size, data::DistributedSampler::Options{.seed = options.seed});
  if (options.overfit_batch) {
    const std::int64_t count = std::min(options.batch_size, train.size()) / world_size;
    tapestry::check(count > 0, "[classifier] the training set has ", train.size(), " images for ", world_size,
                    " ranks; use more images");
    training.shuffle = false;
    training.sampler =
        std::make_shared<FirstImages>(train.size() / world_size, rank * count, count, world_size);
  }
  images.train = std::make_unique<data::DataLoader<>>(std::move(train), std::move(training));
  const std::int64_t most_test_images = (test.size() + world_size - 1) / world_size;
  images.most_test_batches = (most_test_images + kTestBatch - 1) / kTestBatch;
  std::vector<std::int64_t> own;
  for (std::int64_t i = rank; i < test.size(); i += world_size) own.push_back(i);
  images.test = std::make_unique<data::DataLoader<>>(
      data::Subset<>(std::make_shared<data::TensorDataset>(std::move(test)), std::move(own)),
      data::DataLoaderOptions<>{
          .batch_size = kTestBatch, .num_workers = options.workers, .transforms = std::move(always)});
  return images;
}

}  // namespace

Images load_images(const Options& options, int rank, int world_size) {
  if (options.data == "fashion-mnist")
    return make(options, rank, world_size, data::fashion_mnist(true, options.data_dir),
                data::fashion_mnist(false, options.data_dir), {}, {data::normalize({0.2860f}, {0.3530f})},
                data::fashion_mnist_classes());
  if (options.data == "cifar10")
    return make(options, rank, world_size, data::cifar10(true, options.data_dir),
                data::cifar10(false, options.data_dir),
                {data::random_crop(32, 32, 4), data::random_horizontal_flip()},
                {data::normalize({0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f})},
                data::cifar10_classes());
  // Random images whose labels are all zero, like those of apps/ddp_demo.
  std::vector<std::string> classes;
  for (int i = 0; i < 10; ++i) classes.push_back(std::to_string(i));
  const bool grey = options.model == "cnn" || options.model == "mlp";
  data::RandomDataset::Options noise{.size = options.synthetic_size, .seed = options.seed};
  if (grey) noise.channels = 1, noise.height = 28, noise.width = 28;
  data::RandomDataset::Options held_out = noise;
  held_out.size = std::max<std::int64_t>(1, options.synthetic_size / 4);
  held_out.seed = options.seed + 1;
  return make(options, rank, world_size, data::RandomDataset(noise), data::RandomDataset(held_out), {}, {},
              classes);
}

}  // namespace apps
