#include "tapestry/data/image_transform.h"

#include <algorithm>

#include "tapestry/core/philox.h"

namespace tapestry::data {

Tensor ImageTransform::operator()(const Tensor& images, std::span<Rng> random) const {
  check_cpu(name_.c_str(), images, "input");
  check(images.dim() == 4, "[", name_, "] expected a batch of images [N, C, H, W], got ", images.sizes());
  check(images.size(0) == static_cast<std::int64_t>(random.size()), "[", name_, "] the batch has ",
        images.size(0), " images of ", random.size(), " samples");
  return function_(dense(images), random);
}

Tensor ImageTransform::of_batch(const Tensor& images, const BatchContext& context) const {
  std::vector<Rng> random;
  random.reserve(context.indices.size());
  for (std::size_t i = 0; i < context.indices.size(); ++i) random.push_back(context.rng(i));
  return (*this)(images, random);
}

Tensor ImageTransform::operator()(const Tensor& images) const {
  check_cpu(name_.c_str(), images, "input");
  const bool one = images.dim() == 3;
  check(one || images.dim() == 4, "[", name_, "] expected an image [C, H, W] or images [N, C, H, W], got ",
        images.sizes());
  Shape sizes = images.sizes(), strides = images.strides();
  if (one) {
    sizes.insert(0, 1);
    strides.insert(0, images.numel());
  }
  const std::uint64_t count = static_cast<std::uint64_t>(sizes[0]);
  const PhiloxRange range = random_ ? current_generator(kCPU).take(count) : PhiloxRange{};
  std::vector<Rng> random;
  random.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Philox4 key = philox(range.seed, range.offset + i);
    random.emplace_back(static_cast<std::uint64_t>(key.v[0]) << 32 | key.v[1]);
  }
  const Tensor out =
      (*this)(tapestry::detail::raw_view(images, sizes, strides, images.storage_offset()), random);
  return one ? row(out, 0) : out;
}

ImageTransform compose(std::vector<ImageTransform> transforms) {
  const bool random = std::any_of(transforms.begin(), transforms.end(),
                                  [](const ImageTransform& t) { return t.is_random(); });
  return {"compose", random, [all = std::move(transforms)](const Tensor& images, std::span<Rng> rngs) {
            Tensor out = images;
            for (const ImageTransform& transform : all) out = transform(out, rngs);
            return out;
          }};
}

}  // namespace tapestry::data
