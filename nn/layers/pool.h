#pragma once
// Pools in one to three dimensions, and the inverse of maximum pools. PyTorch's names are at the end.
// autograd/ops/pool.h documents the functions.
#include <string>
#include <type_traits>
#include <utility>

#include "tapestry/autograd/ops/pool.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// The sizes of kDims dimensions, where one number stands for all of them.
template <int kDims>
using PoolSize = std::conditional_t<kDims == 1, std::int64_t, std::conditional_t<kDims == 2, Pair, Shape>>;

/// The common part of these layers: their names and the text of their options.
class PoolLayer : public Module {
 public:
  std::string type_name() const override { return name_; }
  std::string options_text() const override { return text_; }

 protected:
  PoolLayer(std::string name, std::string text) : name_(std::move(name)), text_(std::move(text)) {}

 private:
  const std::string name_, text_;
};

template <int kDims>
class MaxPool;
template <int kDims>
struct MaxPoolOptions {
  using Layer = MaxPool<kDims>;
  PoolSize<kDims> kernel_size = {};
  PoolSize<kDims> stride = {};  ///< 0 or empty means kernel_size
  PoolSize<kDims> padding = 0, dilation = 1;
  bool ceil_mode = false;
};
/// Returns the maximum of each window.
template <int kDims>
class MaxPool : public PoolLayer {
 public:
  using Options = MaxPoolOptions<kDims>;
  explicit MaxPool(const Options& options);
  Tensor forward(const Tensor& x) override;
  /// return_indices=True: also returns the maxima's indices, for MaxUnpool.
  std::pair<Tensor, Tensor> forward_with_indices(const Tensor& x);
  const Options options;
};

template <int kDims>
class AvgPool;
template <int kDims>
struct AvgPoolOptions {
  using Layer = AvgPool<kDims>;
  PoolSize<kDims> kernel_size = {};
  PoolSize<kDims> stride = {};  ///< 0 or empty means kernel_size
  PoolSize<kDims> padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;
};
/// Returns the mean of each window.
template <int kDims>
class AvgPool : public PoolLayer {
 public:
  using Options = AvgPoolOptions<kDims>;
  explicit AvgPool(const Options& options);
  Tensor forward(const Tensor& x) override;
  const Options options;
};

template <int kDims>
class LPPool;
template <int kDims>
struct LPPoolOptions {
  using Layer = LPPool<kDims>;
  double norm_type = 0;
  PoolSize<kDims> kernel_size = {};
  PoolSize<kDims> stride = {};  ///< 0 or empty means kernel_size
  bool ceil_mode = false;
};
/// Returns (sum of x^p)^(1 / p) over each window, with p = norm_type.
template <int kDims>
class LPPool : public PoolLayer {
 public:
  using Options = LPPoolOptions<kDims>;
  explicit LPPool(const Options& options);
  Tensor forward(const Tensor& x) override;
  const Options options;
};

template <int kDims>
class AdaptiveAvgPool;
template <int kDims>
struct AdaptiveAvgPoolOptions {
  using Layer = AdaptiveAvgPool<kDims>;
  PoolSize<kDims> output_size = {};
};
/// Returns means of windows that cover the input evenly, so that the output has size output_size.
template <int kDims>
class AdaptiveAvgPool : public PoolLayer {
 public:
  using Options = AdaptiveAvgPoolOptions<kDims>;
  explicit AdaptiveAvgPool(const Options& options);
  Tensor forward(const Tensor& x) override;
  const Options options;
};

template <int kDims>
class AdaptiveMaxPool;
template <int kDims>
struct AdaptiveMaxPoolOptions {
  using Layer = AdaptiveMaxPool<kDims>;
  PoolSize<kDims> output_size = {};
};
/// Returns the maxima of the same windows.
template <int kDims>
class AdaptiveMaxPool : public PoolLayer {
 public:
  using Options = AdaptiveMaxPoolOptions<kDims>;
  explicit AdaptiveMaxPool(const Options& options);
  Tensor forward(const Tensor& x) override;
  /// return_indices=True
  std::pair<Tensor, Tensor> forward_with_indices(const Tensor& x);
  const Options options;
};

template <int kDims>
class MaxUnpool;
template <int kDims>
struct MaxUnpoolOptions {
  using Layer = MaxUnpool<kDims>;
  PoolSize<kDims> kernel_size = {};
  PoolSize<kDims> stride = {};  ///< 0 or empty means kernel_size
  PoolSize<kDims> padding = 0;
};
/// Writes the maxima back to their indices in a tensor of zeros.
template <int kDims>
class MaxUnpool : public PoolLayer {
 public:
  using Options = MaxUnpoolOptions<kDims>;
  explicit MaxUnpool(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& indices, const Shape& output_size = {});
  Tensor operator()(const Tensor& x, const Tensor& indices, const Shape& output_size = {}) const;
  const Options options;
};

using MaxPool1d = MaxPool<1>;
using MaxPool2d = MaxPool<2>;
using MaxPool3d = MaxPool<3>;
using AvgPool1d = AvgPool<1>;
using AvgPool2d = AvgPool<2>;
using AvgPool3d = AvgPool<3>;
using LPPool1d = LPPool<1>;
using LPPool2d = LPPool<2>;
using LPPool3d = LPPool<3>;
using AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
using AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
using AdaptiveAvgPool3d = AdaptiveAvgPool<3>;
using AdaptiveMaxPool1d = AdaptiveMaxPool<1>;
using AdaptiveMaxPool2d = AdaptiveMaxPool<2>;
using AdaptiveMaxPool3d = AdaptiveMaxPool<3>;
using MaxUnpool1d = MaxUnpool<1>;
using MaxUnpool2d = MaxUnpool<2>;
using MaxUnpool3d = MaxUnpool<3>;

}  // namespace tapestry::nn
