#pragma once
// ImageTransform: a function of images that works on a tensor, on a sample and on the batches of a
// DataLoader.
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/data/dataloader.h"

namespace tapestry::data {

/// Transforms images. The functions of transforms.h return ImageTransforms.
///
///   const ImageTransform augment = compose({random_resized_crop(224), random_horizontal_flip()});
///   Tensor x = augment(image);                                    // one image [C, H, W], or [N, C, H, W]
///   ImageFolder train("photos/train", {.transform = augment});    // each image when it is loaded
///   DataLoader loader(dataset, {.transforms = {augment}});        // each batch
///
/// Each image draws its own random numbers. In a DataLoader they depend on the seed, the epoch and the sample
/// alone, so the batches do not depend on the number of workers. A call on a tensor draws from the current
/// generator, which manual_seed() sets. The input is never changed.
class ImageTransform {
 public:
  /// Gets contiguous images [N, C, H, W] on the CPU and the random numbers of each image.
  using Function = std::function<Tensor(const Tensor& images, std::span<Rng> random)>;

  /// `name` begins the errors. `random` says whether `function` draws random numbers.
  ImageTransform(std::string name, bool random, Function function)
      : name_(std::move(name)), random_(random), function_(std::move(function)) {}

  /// Transforms one image [C, H, W] or several [N, C, H, W]. Throws ValueError for other shapes.
  Tensor operator()(const Tensor& images) const;
  /// Transforms images [N, C, H, W] with the given random numbers, one Rng per image.
  Tensor operator()(const Tensor& images, std::span<Rng> random) const;
  /// Transforms the images of a batch: an Example's input, a Tensor, or the first part of a pair or tuple.
  /// Use on() for structs.
  void operator()(Example& batch, const BatchContext& context) const {
    batch.input = of_batch(batch.input, context);
  }
  void operator()(Tensor& batch, const BatchContext& context) const { batch = of_batch(batch, context); }
  template <class... Parts>
  void operator()(std::pair<Tensor, Parts...>& batch, const BatchContext& context) const {
    batch.first = of_batch(batch.first, context);
  }
  template <class... Parts>
  void operator()(std::tuple<Tensor, Parts...>& batch, const BatchContext& context) const {
    std::get<0>(batch) = of_batch(std::get<0>(batch), context);
  }

  const std::string& name() const { return name_; }
  bool is_random() const { return random_; }

 private:
  Tensor of_batch(const Tensor& images, const BatchContext& context) const;

  std::string name_;
  bool random_;
  Function function_;
};

/// Transforms one member of a batch that is a struct: `.transforms = {on(&Scene::photo, normalize(...))}`.
template <class B>
BatchTransform<B> on(Tensor B::*images, ImageTransform transform) {
  return [images, transform = std::move(transform)](B& batch, const BatchContext& context) {
    transform(batch.*images, context);
  };
}

/// Applies the transforms one after the other.
ImageTransform compose(std::vector<ImageTransform> transforms);

}  // namespace tapestry::data
