#include "tapestry/data/transforms.h"

#include <algorithm>
#include <cstring>

namespace tapestry::data {
namespace {

/// Returns the contiguous input of `batch`. Throws unless it is a batch of images.
Tensor images_of(const char* op, const Example& batch, const BatchContext& context) {
  check_cpu(op, batch.input, "input");
  check(batch.input.dim() == 4, "[", op, "] expected a batch of images [N, C, H, W], got ",
        batch.input.sizes());
  check(batch.input.size(0) == static_cast<std::int64_t>(context.indices.size()), "[", op, "] the batch has ",
        batch.input.size(0), " images of ", context.indices.size(), " samples");
  return dense(batch.input);
}

/// Calls fn with an unsigned integer type of the element's size. Moving elements depends only on their size.
template <class F>
void with_item(DType dtype, F&& fn) {
  switch (dtype_size(dtype)) {
    case 1:
      return fn(std::uint8_t{});
    case 2:
      return fn(std::uint16_t{});
    case 4:
      return fn(std::uint32_t{});
    default:
      return fn(std::uint64_t{});
  }
}

float channel(const std::vector<float>& values, std::int64_t c) {
  return values[values.size() == 1 ? 0 : static_cast<std::size_t>(c)];
}

Tensor normalized(const char* op, const Tensor& in, const std::vector<float>& mean,
                  const std::vector<float>& std) {
  check<TypeError>(in.dtype() == DType::u8 || in.dtype() == DType::f32, "[", op, "] images are ", in.dtype(),
                   "; uint8 and float32 are supported");
  const std::int64_t n = in.size(0), channels = in.size(1), plane = in.size(2) * in.size(3);
  for (const auto* values : {&mean, &std})
    check(values->size() == 1 || static_cast<std::int64_t>(values->size()) == channels, "[", op, "] ",
          values->size(), " values for ", channels, " channels; give one, or one each");
  Tensor out = empty(in.sizes(), {DType::f32, kCPU});
  for (std::int64_t c = 0; c < channels; ++c) {
    const float m = channel(mean, c), s = channel(std, c);
    float table[256];  // the result for every byte value
    for (int v = 0; v < 256; ++v) table[v] = (static_cast<float>(v) / 255.0f - m) / s;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = (i * channels + c) * plane;
      float* to = out.data<float>() + at;
      if (in.dtype() == DType::u8) {
        const std::uint8_t* from = in.data<std::uint8_t>() + at;
        for (std::int64_t j = 0; j < plane; ++j) to[j] = table[from[j]];
      } else {
        const float* from = in.data<float>() + at;
        for (std::int64_t j = 0; j < plane; ++j) to[j] = (from[j] - m) / s;
      }
    }
  }
  return out;
}

}  // namespace

BatchTransform<> normalize(std::vector<float> mean, std::vector<float> std) {
  check(!mean.empty() && !std.empty(), "[normalize] mean or std is empty; give one value, or one a channel");
  for (float s : std) check(s != 0, "[normalize] a std of 0 divides by zero");
  return [mean = std::move(mean), std = std::move(std)](Example& batch, const BatchContext& context) {
    batch.input = normalized("normalize", images_of("normalize", batch, context), mean, std);
  };
}

BatchTransform<> to_float() {
  return [](Example& batch, const BatchContext& context) {
    batch.input = normalized("to_float", images_of("to_float", batch, context), {0.0f}, {1.0f});
  };
}

BatchTransform<> random_crop(std::int64_t height, std::int64_t width, std::int64_t padding) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check(height >= 1 && height <= kMost && width >= 1 && width <= kMost && padding >= 0 && padding <= kMost,
        "[random_crop] a window of ", height, "x", width, " with padding ", padding, " is impossible");
  return [=](Example& batch, const BatchContext& context) {
    const Tensor in = images_of("random_crop", batch, context);
    const std::int64_t n = in.size(0), channels = in.size(1), h = in.size(2), w = in.size(3);
    check(height <= h + 2 * padding && width <= w + 2 * padding, "[random_crop] a window of ", height, "x",
          width, " does not fit in images of ", h, "x", w, " with padding ", padding);
    Tensor out = empty({n, channels, height, width}, {in.dtype(), kCPU});
    const std::int64_t item = static_cast<std::int64_t>(dtype_size(in.dtype()));
    const char* from = static_cast<const char*>(in.raw_data());
    char* to = static_cast<char*>(out.raw_data());
    for (std::int64_t i = 0; i < n; ++i) {
      Rng rng = context.rng(static_cast<std::size_t>(i));
      const std::int64_t top = rng.below(h + 2 * padding - height + 1) - padding;
      const std::int64_t left = rng.below(w + 2 * padding - width + 1) - padding;
      // Columns [begin, end) of the window lie inside the image.
      const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, width),
                         end = std::clamp<std::int64_t>(w - left, begin, width);
      for (std::int64_t c = 0; c < channels; ++c) {
        for (std::int64_t y = 0; y < height; ++y, to += width * item) {
          const std::int64_t row = top + y;
          if (row < 0 || row >= h) {
            std::memset(to, 0, static_cast<std::size_t>(width * item));
            continue;
          }
          const char* line = from + ((i * channels + c) * h + row) * w * item;
          std::memset(to, 0, static_cast<std::size_t>(begin * item));
          if (end > begin)
            std::memcpy(to + begin * item, line + (left + begin) * item,
                        static_cast<std::size_t>((end - begin) * item));
          std::memset(to + end * item, 0, static_cast<std::size_t>((width - end) * item));
        }
      }
    }
    batch.input = out;
  };
}

BatchTransform<> random_horizontal_flip(double p) {
  check(p >= 0 && p <= 1, "[random_horizontal_flip] p is ", p, "; it must be in [0, 1]");
  return [=](Example& batch, const BatchContext& context) {
    const Tensor in = images_of("random_horizontal_flip", batch, context);
    Tensor out = empty(in.sizes(), {in.dtype(), kCPU});
    const std::int64_t n = in.size(0), rows = in.size(1) * in.size(2), w = in.size(3);
    with_item(in.dtype(), [&](auto item) {
      using Item = decltype(item);
      const Item* from = static_cast<const Item*>(in.raw_data());
      Item* to = static_cast<Item*>(out.raw_data());
      for (std::int64_t i = 0; i < n; ++i, from += rows * w, to += rows * w) {
        if (context.rng(static_cast<std::size_t>(i)).uniform() >= p) {
          std::copy_n(from, rows * w, to);
          continue;
        }
        for (std::int64_t r = 0; r < rows; ++r)
          std::reverse_copy(from + r * w, from + (r + 1) * w, to + r * w);
      }
    });
    batch.input = out;
  };
}

}  // namespace tapestry::data
