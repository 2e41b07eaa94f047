#pragma once
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/autograd/ops/pad.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

template <int kDims>
class Conv;

/// Options of Conv1d, Conv2d and Conv3d. Those with an Extent take one number for all dimensions, or one for
/// each of them.
template <int kDims>
struct ConvOptions {
  using Layer = Conv<kDims>;
  std::int64_t in_channels = 0, out_channels = 0;
  Extent<kDims> kernel_size = 0;
  Extent<kDims> stride = 1;
  ConvPadding<kDims> padding = 0;  ///< numbers, "same" or "valid"
  Extent<kDims> dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  PadMode padding_mode = PadMode::constant;  ///< constant inserts zeros, which PyTorch calls "zeros"
};

/// Convolution of (N, C, L) in 1, (N, C, H, W) in 2 or (N, C, D, H, W) in 3 dimensions; N may be absent.
/// Parameters: weight (out, in / groups, kernel size) and bias (out). Both start uniform in [-b, b] with b =
/// 1 / sqrt(fan-in). A padding_mode other than PadMode::constant pads a copy of the input first.
template <int kDims>
class Conv : public Module {
 public:
  using Options = ConvOptions<kDims>;
  explicit Conv(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

using Conv1d = Conv<1>;
using Conv2d = Conv<2>;
using Conv3d = Conv<3>;
extern template class Conv<1>;
extern template class Conv<2>;
extern template class Conv<3>;

template <int kDims>
class ConvTranspose;

/// Options of ConvTranspose1d, ConvTranspose2d and ConvTranspose3d.
template <int kDims>
struct ConvTransposeOptions {
  using Layer = ConvTranspose<kDims>;
  std::int64_t in_channels = 0, out_channels = 0;
  Extent<kDims> kernel_size = 0;
  Extent<kDims> stride = 1, padding = 0;
  Extent<kDims> output_padding = 0;  ///< added to the size of the result; less than stride or dilation
  std::int64_t groups = 1;
  bool bias = true;
  Extent<kDims> dilation = 1;
};

/// Transposed convolution (conv_transpose2d()) of (N, C, L) in 1, (N, C, H, W) in 2 or (N, C, D, H, W) in 3
/// dimensions; N may be absent. Parameters: weight (in, out / groups, kernel size) and bias (out). Both start
/// uniform in [-b, b] with b = 1 / sqrt(out / groups * product of kernel_size), as in PyTorch.
template <int kDims>
class ConvTranspose : public Module {
 public:
  using Options = ConvTransposeOptions<kDims>;
  explicit ConvTranspose(const Options& options);
  Tensor forward(const Tensor& x) override;
  /// Chooses output_padding so that the result has the spatial dimensions `output_size`; N and C may precede
  /// them. Throws ValueError if that needs an output_padding below 0 or of stride or more.
  Tensor forward(const Tensor& x, const Shape& output_size);
  using Module::operator();
  Tensor operator()(const Tensor& x, const Shape& output_size) const;
  std::string type_name() const override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

using ConvTranspose1d = ConvTranspose<1>;
using ConvTranspose2d = ConvTranspose<2>;
using ConvTranspose3d = ConvTranspose<3>;
extern template class ConvTranspose<1>;
extern template class ConvTranspose<2>;
extern template class ConvTranspose<3>;

}  // namespace tapestry::nn
