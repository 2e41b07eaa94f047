#include "tapestry/nn/internal/many_gradients.h"

#include <cstring>
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"

namespace tapestry::nn {

std::optional<ManyGradients> ManyGradients::of(const std::vector<Tensor>& gradients) {
  if (gradients.empty() || !gradients[0].device().is_cuda()) return {};
  ManyGradients many;
  for (const Tensor& g : gradients) {
    const bool dense = g.is_contiguous() || g.is_contiguous(MemoryFormat::channels_last);
    const bool narrow = g.dtype() == DType::f32 || g.dtype() == DType::f16 || g.dtype() == DType::bf16;
    if (!dense || !narrow || g.numel() == 0 || g.device() != gradients[0].device()) return {};
    many.items_.push_back({.data = g.raw_data(),
                           .numel = g.numel(),
                           .first = static_cast<std::int32_t>(many.blocks_),
                           .dtype = g.dtype()});
    many.blocks_ += (g.numel() + kernels::kGradientBlock - 1) / kernels::kGradientBlock;
    if (many.blocks_ > std::numeric_limits<std::int32_t>::max()) return {};
  }
  many.gradients_ = gradients;
  if (static_cast<std::int64_t>(gradients.size()) > kernels::kGradientsInArguments) {
    // Through pinned memory, so that the host does not wait.
    const auto bytes = static_cast<std::int64_t>(many.items_.size() * sizeof(kernels::GradientItem));
    const Tensor pinned = empty_pinned({bytes}, DType::u8);
    std::memcpy(pinned.raw_data(), many.items_.data(), static_cast<std::size_t>(bytes));
    const Device device = gradients[0].device();
    many.on_device_ = empty({bytes}, {DType::u8, device});
    copy_async(many.on_device_, pinned, current_stream(device));
  }
  return many;
}

kernels::GradientItems ManyGradients::arguments() const {
  return {.items = items_.data(),
          .on_device = on_device_.defined() ? static_cast<const kernels::GradientItem*>(on_device_.raw_data())
                                            : nullptr,
          .count = static_cast<std::int64_t>(items_.size()),
          .blocks = blocks_};
}

void ManyGradients::changed() const {
  for (const Tensor& g : gradients_) g.storage()->bump_version();
}

ManyGradients::Norm ManyGradients::norm(double order, double max_norm) const {
  const TensorOptions options(DType::f32, gradients_[0].device());
  Norm norm{empty({}, options), empty({}, options)};
  kernels::gradient_norm(gradients_[0].device(), DType::f32,
                         {.gradients = arguments(),
                          .order = order,
                          .max_norm = max_norm,
                          .total = norm.total,
                          .factor = norm.factor});
  return norm;
}

void ManyGradients::scale(const Tensor& factor) const {
  kernels::scale_gradients(gradients_[0].device(), DType::f32, {.gradients = arguments(), .factor = factor});
  changed();
}

void ManyGradients::clamp(double limit) const {
  kernels::clamp_gradients(gradients_[0].device(), DType::f32, {.gradients = arguments(), .limit = limit});
  changed();
}

}  // namespace tapestry::nn
