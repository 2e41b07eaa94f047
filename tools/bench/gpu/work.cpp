#include "tapestry/tools/bench/gpu/work.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tapestry::bench {

namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 22;  // elements after which the random numbers repeat
constexpr std::int64_t kSamples = 256;
constexpr std::int64_t kChunks = 64;

float random_number(std::uint32_t i) {
  std::uint32_t h = i * 2654435761u;
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return static_cast<float>((h ^ h >> 16) >> 8) * 0x1p-23f - 1;
}

void append(std::string& text, double value) {
  char number[32];
  std::snprintf(number, sizeof number, " %.9g", value);
  text += number;
}

}  // namespace

std::int64_t Spec::operator[](std::size_t i) const {
  check(i < sizes.size(), "[bench] this benchmark needs more than ", sizes.size(), " sizes");
  return sizes[i];
}

Tensor random(const Spec& spec, const Shape& sizes, std::uint32_t salt, MemoryFormat format) {
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

Tensor class_targets(const Spec& spec, std::int64_t rows, std::int64_t classes) {
  const Tensor t = empty({rows}, DType::i64);
  for (std::int64_t i = 0; i < rows; ++i) t.data<std::int64_t>()[i] = i * 7919 % classes;
  return t.to(spec.device);
}

std::string describe(const Results& results) {
  std::string text;
  for (const auto& [name, tensor] : results.tensors()) {
    text += (text.empty() ? "" : " | ") + name + ":";
    Tensor y = tensor.detach();
    if (y.dim() == 4) y = y.permute({0, 2, 3, 1});
    y = y.reshape({y.numel()}).cpu().to(DType::f32);
    const float* values = y.data<float>();
    const std::int64_t n = y.numel(), count = std::min(n, kSamples), chunks = std::min(n, kChunks);
    for (std::int64_t i = 0; i < count; ++i)
      append(text, values[i * (n / count) + (i * 1000003 + 12345) % (n / count)]);
    // For each chunk, the sum of the positive elements and the sum of the magnitudes of the negative
    // elements, both divided by the length of the chunk. An error in the sign of an element changes both, and
    // the two kinds cannot cancel each other.
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t begin = i * n / chunks, end = (i + 1) * n / chunks;
      double sums[2] = {};
      for (std::int64_t j = begin; j < end; ++j) sums[!(values[j] >= 0)] += std::abs(values[j]);
      for (const double sum : sums) append(text, sum / static_cast<double>(end - begin));
    }
  }
  return text;
}

}  // namespace tapestry::bench
