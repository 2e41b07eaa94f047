#pragma once
// Tensor: an intrusive handle to shape, strides, dtype, device, storage, and an optional gradient record,
// which autograd defines. The second half of the methods are operations. They are declared here, so that
// users can write `x.relu()`, but defined in autograd/ops. This is the only place where core refers to a
// higher layer.
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/context.h"
#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/core/error.h"
#include "tapestry/core/intrusive.h"
#include "tapestry/core/scalar.h"
#include "tapestry/core/shape.h"
#include "tapestry/core/storage.h"
#include "tapestry/core/tensor_fwd.h"
#include "tapestry/core/tensor_impl.h"

namespace tapestry {

/// A handle to a tensor. Copies refer to the same tensor. A default-constructed Tensor is undefined: all
/// methods except defined(), requires_grad(), is_same(), impl() and str() then throw an Error. It is a
/// ValueError, except that retain_grad() and the methods that register hooks throw AutogradError.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  // ---- properties (defined in core) ----
  /// False for a default-constructed handle.
  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const = delete;  // ambiguous: call defined() or item()
  DType dtype() const { return self().dtype; }
  Device device() const { return self().device; }
  const Shape& sizes() const { return self().sizes; }
  const Shape& shape() const { return self().sizes; }
  const Shape& strides() const { return self().strides; }
  /// The size of one dimension. A negative `dim` counts from the end. Throws IndexError.
  std::int64_t size(std::int64_t dim) const;
  std::int64_t stride(std::int64_t dim) const;
  int dim() const { return self().sizes.size(); }
  int ndim() const { return self().sizes.size(); }
  std::int64_t numel() const { return self().numel; }
  std::size_t element_size() const { return dtype_size(dtype()); }  // in bytes
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * dtype_size(dtype()); }
  bool is_floating_point() const { return is_floating(dtype()); }
  std::int64_t storage_offset() const { return self().offset; }
  const StorageRef& storage() const { return self().storage; }
  /// The number of in-place changes of the storage.
  std::uint32_t version() const { return self().storage->version(); }
  /// True if the elements are dense in row-major (or channels-last) order. The strides of dimensions of size
  /// 1, and of tensors without elements, are ignored. A tensor with C = 1 or H = W = 1 can therefore be
  /// contiguous and channels-last at once; memory_format() then decides by the strides.
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const {
    return format == MemoryFormat::contiguous ? self().row_major : is_channels_last();
  }
  /// The format that operations give their results. channels_last if the tensor is dense in that format only.
  /// If it is dense in both formats, channels_last if all its strides, also those of dimensions of size 1,
  /// are those of channels_last: (H * W, 1, W, 1) for (N, 1, H, W). Otherwise contiguous. The formats of (N,
  /// 1, 1, 1) have the same strides; such a tensor is contiguous.
  MemoryFormat memory_format() const;
  /// The address of the first element, without a dtype check. Null on the meta device. Throws ValueError if
  /// the memory is released (Storage::release_memory).
  void* raw_data() const {
    const TensorImpl& t = self();
    if (!t.storage->data()) [[unlikely]]
      return no_data();
    return static_cast<char*>(t.storage->data()) + t.offset * static_cast<std::int64_t>(dtype_size(t.dtype));
  }
  /// The address of the first element; a device address if the tensor is on a GPU. Throws TypeError unless T
  /// is the element type of the dtype, and DeviceError if the tensor is on the meta device.
  template <class T>
  T* data() const {
    if (dtype_of<T> != dtype()) [[unlikely]]
      throw_wrong_dtype(dtype_of<T>);
    void* const address = raw_data();
    if (!address) [[unlikely]]
      check_has_elements("data");
    return static_cast<T*>(address);
  }
  /// Throws DeviceError, naming `op`, if the tensor is on the meta device and has elements in its shape.
  void check_has_elements(const char* op) const;
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  TensorImpl* impl() const { return impl_.get(); }
  /// The elements as text in PyTorch's format: aligned, and summarised beyond 1000 elements. The text
  /// includes dtype and device if they are not the default, and requires_grad=True or the grad_fn of a
  /// recorded tensor. On the meta device it has the shape instead of the elements.
  std::string str() const;

  // ---- autograd (defined in autograd/tensor_grad.cpp) ----
  bool requires_grad() const;
  /// Returns *this. Throws AutogradError if this tensor is not a leaf, and TypeError if its dtype is not
  /// floating.
  const Tensor& set_requires_grad(bool on = true) const;
  const Tensor& requires_grad_(bool on = true) const { return set_requires_grad(on); }
  bool is_leaf() const;
  /// The accumulated gradient; an undefined tensor if there is none.
  Tensor grad() const;
  /// Sets the gradient, or clears it if `grad` is undefined. Throws AutogradError unless this tensor is a
  /// leaf, and `grad` has its shape, dtype and device.
  void set_grad(const Tensor& grad) const;
  /// Clears the gradient if `set_to_none`, otherwise fills it with zeros.
  void zero_grad(bool set_to_none = true) const;
  /// Makes backward keep the gradient of this non-leaf tensor in grad().
  void retain_grad() const;
  /// A tensor that shares the storage but is not part of the graph.
  Tensor detach() const;
  /// Computes the gradients of this tensor with respect to all leaves it was computed from, and adds them to
  /// their grad(). `gradient`, the gradient with respect to this tensor, may be omitted if this tensor has
  /// one element. Throws AutogradError, which names the operation, on misuse; see autograd/engine.h, which
  /// also explains retain_graph and create_graph.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  /// `hook` is called with the gradient of this tensor when backward has computed it. If `hook` returns a
  /// defined tensor, that tensor replaces the gradient.
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// Only leaves have this hook. `hook` is called with this tensor after backward has accumulated its
  /// complete gradient in grad(), while backward of the other tensors still runs.
  HookHandle register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;

  // ---- operations (defined in autograd/ops) ----
  // Each is documented at the free function of the same name in autograd/ops/*.h.
  // views and shape
  Tensor view(const Shape& sizes) const;
  Tensor reshape(const Shape& sizes) const;
  Tensor flatten(std::int64_t start = 0, std::int64_t end = -1) const;
  Tensor transpose(std::int64_t a, std::int64_t b) const;
  Tensor t() const;
  Tensor permute(const Dims& dims) const;
  Tensor squeeze() const;
  Tensor squeeze(std::int64_t dim) const;
  Tensor unsqueeze(std::int64_t dim) const;
  Tensor expand(const Shape& sizes) const;
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  Tensor slice(std::int64_t dim, std::optional<std::int64_t> start = {}, std::optional<std::int64_t> end = {},
               std::int64_t step = 1) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
  Tensor operator[](std::int64_t index) const;  // select(0, index)
  std::vector<Tensor> split(std::int64_t size, std::int64_t dim = 0) const;
  std::vector<Tensor> split(const std::vector<std::int64_t>& sizes, std::int64_t dim = 0) const;
  std::vector<Tensor> chunk(std::int64_t chunks, std::int64_t dim = 0) const;
  std::vector<Tensor> tensor_split(std::int64_t sections, std::int64_t dim = 0) const;
  std::vector<Tensor> tensor_split(const std::vector<std::int64_t>& indices, std::int64_t dim = 0) const;
  std::vector<Tensor> unbind(std::int64_t dim = 0) const;
  std::vector<Tensor> hsplit(std::int64_t sections) const;
  std::vector<Tensor> hsplit(const std::vector<std::int64_t>& indices) const;
  std::vector<Tensor> vsplit(std::int64_t sections) const;
  std::vector<Tensor> vsplit(const std::vector<std::int64_t>& indices) const;
  std::vector<Tensor> dsplit(std::int64_t sections) const;
  std::vector<Tensor> dsplit(const std::vector<std::int64_t>& indices) const;
  Tensor unflatten(std::int64_t dim, const Shape& sizes) const;
  Tensor ravel() const;
  Tensor view_as(const Tensor& other) const;
  Tensor reshape_as(const Tensor& other) const;
  Tensor expand_as(const Tensor& other) const;
  Tensor broadcast_to(const Shape& sizes) const;
  Tensor movedim(const Dims& source, const Dims& destination) const;
  Tensor moveaxis(const Dims& source, const Dims& destination) const;
  Tensor swapaxes(std::int64_t a, std::int64_t b) const;
  Tensor swapdims(std::int64_t a, std::int64_t b) const;
  Tensor diagonal(std::int64_t offset = 0, std::int64_t dim1 = 0, std::int64_t dim2 = 1) const;
  Tensor unfold(std::int64_t dim, std::int64_t size, std::int64_t step) const;
  Tensor as_strided(const Shape& sizes, const Shape& strides,
                    std::optional<std::int64_t> storage_offset = {}) const;
  // copies with elements in other places
  Tensor flip(const Dims& dims) const;
  Tensor roll(const Shape& shifts, const Dims& dims = {}) const;
  Tensor rot90(std::int64_t k = 1, const Dims& dims = {0, 1}) const;
  Tensor repeat(const Shape& repeats) const;
  Tensor tile(const Shape& repeats) const;
  Tensor repeat_interleave(std::int64_t repeats, std::optional<std::int64_t> dim = {}) const;
  Tensor repeat_interleave(const Tensor& repeats, std::optional<std::int64_t> dim = {}) const;
  Tensor diag(std::int64_t diagonal = 0) const;
  Tensor diag_embed(std::int64_t offset = 0, std::int64_t dim1 = -2, std::int64_t dim2 = -1) const;
  Tensor tril(std::int64_t diagonal = 0) const;
  Tensor triu(std::int64_t diagonal = 0) const;
  // indexing; the methods with an underscore change this tensor in place
  Tensor index_select(std::int64_t dim, const Tensor& index) const;
  Tensor index_add(std::int64_t dim, const Tensor& index, const Tensor& source,
                   const Scalar& alpha = 1) const;
  Tensor index_copy(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor index_fill(std::int64_t dim, const Tensor& index, const Scalar& value) const;
  const Tensor& index_add_(std::int64_t dim, const Tensor& index, const Tensor& source,
                           const Scalar& alpha = 1) const;
  const Tensor& index_copy_(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  const Tensor& index_fill_(std::int64_t dim, const Tensor& index, const Scalar& value) const;
  Tensor gather(std::int64_t dim, const Tensor& index) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, const Scalar& value) const;
  Tensor scatter_add(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  Tensor scatter_reduce(std::int64_t dim, const Tensor& index, const Tensor& src, std::string_view reduce,
                        bool include_self = true) const;
  const Tensor& scatter_(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  const Tensor& scatter_(std::int64_t dim, const Tensor& index, const Scalar& value) const;
  const Tensor& scatter_add_(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  const Tensor& scatter_reduce_(std::int64_t dim, const Tensor& index, const Tensor& src,
                                std::string_view reduce, bool include_self = true) const;
  Tensor take_along_dim(const Tensor& indices, std::optional<std::int64_t> dim = {}) const;
  Tensor index(const std::vector<indexing::TensorIndex>& indices) const;
  Tensor index_put(const std::vector<indexing::TensorIndex>& indices, const Tensor& values,
                   bool accumulate = false) const;
  const Tensor& index_put_(const std::vector<indexing::TensorIndex>& indices, const Tensor& values,
                           bool accumulate = false) const;
  const Tensor& index_put_(const std::vector<indexing::TensorIndex>& indices, const Scalar& value) const;
  Tensor operator[](const Tensor& index) const;  // index({index})
  Tensor masked_select(const Tensor& mask) const;
  Tensor nonzero() const;
  Tensor argwhere() const;
  Tensor take(const Tensor& index) const;
  Tensor masked_scatter(const Tensor& mask, const Tensor& source) const;
  const Tensor& masked_scatter_(const Tensor& mask, const Tensor& source) const;
  // copies
  Tensor clone() const;
  Tensor contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor to(Device device, DType dtype) const;
  Tensor to(const char* device) const { return to(Device(device)); }
  Tensor cpu() const { return to(kCPU); }
  Tensor cuda(int index = 0) const { return to(Device(DeviceType::cuda, index)); }
  // Conversions to a dtype. PyTorch's float(), double(), long(), int() and bool() are named after keywords of
  // C++, so they have the prefix to_ here.
  Tensor to_float() const { return to(DType::f32); }
  Tensor to_double() const { return to(DType::f64); }
  Tensor half() const { return to(DType::f16); }
  Tensor bfloat16() const { return to(DType::bf16); }
  Tensor to_long() const { return to(DType::i64); }
  Tensor to_int() const { return to(DType::i32); }
  Tensor byte() const { return to(DType::u8); }
  Tensor to_bool() const { return to(DType::boolean); }
  Tensor type_as(const Tensor& other) const { return to(other.device(), other.dtype()); }
  /// The only element, as a C++ number. An integer T truncates a real element. Throws ValueError unless the
  /// tensor has exactly one element, or if an integer T cannot hold it (NaN, infinities, 300 in a uint8_t).
  template <class T = double>
  T item() const;
  Scalar item_scalar() const;
  /// A copy of all elements in row-major order, converted to T, on the host. T is the element type of a
  /// dtype.
  template <class T = double>
  std::vector<T> to_vector() const;
  // new tensors with this tensor's dtype and device, unless `options` say otherwise
  Tensor new_empty(const Shape& sizes, const TensorOptions& options = {}) const;
  Tensor new_zeros(const Shape& sizes, const TensorOptions& options = {}) const;
  Tensor new_ones(const Shape& sizes, const TensorOptions& options = {}) const;
  Tensor new_full(const Shape& sizes, const Scalar& value, const TensorOptions& options = {}) const;
  // elementwise
  Tensor add(const Tensor& other) const;
  Tensor sub(const Tensor& other) const;
  Tensor mul(const Tensor& other) const;
  Tensor div(const Tensor& other) const;
  Tensor add(const Scalar& other) const;
  Tensor sub(const Scalar& other) const;
  Tensor mul(const Scalar& other) const;
  Tensor div(const Scalar& other) const;
  Tensor pow(const Scalar& exponent) const;
  Tensor pow(const Tensor& exponent) const;
  Tensor atan2(const Tensor& other) const;
  Tensor neg() const;
  Tensor abs() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor tanh() const;
  Tensor sigmoid() const;
  Tensor relu() const;
  Tensor gelu(bool tanh_approximation = false) const;
  Tensor silu() const;
  Tensor prelu(const Tensor& weight) const;
  Tensor clamp(std::optional<Scalar> min, std::optional<Scalar> max = {}) const;
  Tensor clamp_min(const Scalar& bound) const { return clamp(bound); }
  Tensor clamp_max(const Scalar& bound) const { return clamp({}, bound); }
  Tensor operator-() const { return neg(); }
  Tensor sin() const;
  Tensor cos() const;
  Tensor tan() const;
  Tensor asin() const;
  Tensor acos() const;
  Tensor atan() const;
  Tensor sinh() const;
  Tensor cosh() const;
  Tensor asinh() const;
  Tensor acosh() const;
  Tensor atanh() const;
  Tensor erf() const;
  Tensor erfinv() const;
  Tensor erfc() const;
  Tensor logit(std::optional<double> eps = {}) const;
  Tensor lgamma() const;
  Tensor digamma() const;
  Tensor expm1() const;
  Tensor exp2() const;
  Tensor log1p() const;
  Tensor log2() const;
  Tensor log10() const;
  Tensor floor() const;
  Tensor ceil() const;
  Tensor trunc() const;
  Tensor sign() const;
  Tensor square() const;
  Tensor reciprocal() const;
  Tensor frac() const;
  Tensor round(std::int64_t decimals = 0) const;
  Tensor fmod(const Tensor& other) const;
  Tensor remainder(const Tensor& other) const;
  Tensor floor_divide(const Tensor& other) const;
  Tensor fmod(const Scalar& other) const;
  Tensor remainder(const Scalar& other) const;
  Tensor floor_divide(const Scalar& other) const;
  Tensor div(const Tensor& other, std::string_view rounding_mode) const;
  Tensor div(const Scalar& other, std::string_view rounding_mode) const;
  Tensor xlogy(const Tensor& other) const;
  Tensor hypot(const Tensor& other) const;
  Tensor logaddexp(const Tensor& other) const;
  Tensor maximum(const Tensor& other) const;
  Tensor minimum(const Tensor& other) const;
  Tensor lerp(const Tensor& end, double weight) const;
  Tensor lerp(const Tensor& end, const Tensor& weight) const;
  Tensor addcmul(const Tensor& a, const Tensor& b, const Scalar& value = 1) const;
  Tensor addcdiv(const Tensor& a, const Tensor& b, const Scalar& value = 1) const;
  Tensor where(const Tensor& condition, const Tensor& other) const;
  Tensor where(const Tensor& condition, const Scalar& other) const;
  Tensor masked_fill(const Tensor& mask, const Scalar& value) const;
  Tensor masked_fill(const Tensor& mask, const Tensor& value) const;
  Tensor nan_to_num(double nan = 0, std::optional<double> posinf = {},
                    std::optional<double> neginf = {}) const;
  Tensor isfinite() const;
  Tensor isinf() const;
  Tensor isnan() const;
  Tensor logical_and(const Tensor& other) const;
  Tensor logical_or(const Tensor& other) const;
  Tensor logical_xor(const Tensor& other) const;
  Tensor logical_not() const;
  Tensor bitwise_and(const Tensor& other) const;
  Tensor bitwise_and(const Scalar& other) const;
  Tensor bitwise_or(const Tensor& other) const;
  Tensor bitwise_or(const Scalar& other) const;
  Tensor bitwise_xor(const Tensor& other) const;
  Tensor bitwise_xor(const Scalar& other) const;
  Tensor bitwise_left_shift(const Tensor& other) const;
  Tensor bitwise_left_shift(const Scalar& other) const;
  Tensor bitwise_right_shift(const Tensor& other) const;
  Tensor bitwise_right_shift(const Scalar& other) const;
  Tensor bitwise_not() const;
  // comparisons give bool tensors
  Tensor eq(const Tensor& other) const;
  Tensor ne(const Tensor& other) const;
  Tensor lt(const Tensor& other) const;
  Tensor le(const Tensor& other) const;
  Tensor gt(const Tensor& other) const;
  Tensor ge(const Tensor& other) const;
  Tensor eq(const Scalar& other) const;
  Tensor ne(const Scalar& other) const;
  Tensor lt(const Scalar& other) const;
  Tensor le(const Scalar& other) const;
  Tensor gt(const Scalar& other) const;
  Tensor ge(const Scalar& other) const;
  bool equal(const Tensor& other) const;
  Tensor isclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false) const;
  bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false) const;
  // In-place operations change this tensor's elements and return *this. They throw AutogradError if the
  // operation must be recorded and this tensor is a leaf that requires gradients.
  const Tensor& add_(const Tensor& other) const;
  const Tensor& sub_(const Tensor& other) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& add_(const Scalar& other) const;
  const Tensor& sub_(const Scalar& other) const;
  const Tensor& mul_(const Scalar& other) const;
  const Tensor& div_(const Scalar& other) const;
  const Tensor& pow_(const Scalar& exponent) const;
  const Tensor& pow_(const Tensor& exponent) const;
  const Tensor& atan2_(const Tensor& other) const;
  const Tensor& neg_() const;
  const Tensor& abs_() const;
  const Tensor& exp_() const;
  const Tensor& log_() const;
  const Tensor& sqrt_() const;
  const Tensor& rsqrt_() const;
  const Tensor& tanh_() const;
  const Tensor& sigmoid_() const;
  const Tensor& relu_() const;
  const Tensor& clamp_(std::optional<Scalar> min, std::optional<Scalar> max = {}) const;
  const Tensor& clamp_min_(const Scalar& bound) const { return clamp_(bound); }
  const Tensor& clamp_max_(const Scalar& bound) const { return clamp_({}, bound); }
  const Tensor& sin_() const;
  const Tensor& cos_() const;
  const Tensor& tan_() const;
  const Tensor& asin_() const;
  const Tensor& acos_() const;
  const Tensor& atan_() const;
  const Tensor& sinh_() const;
  const Tensor& cosh_() const;
  const Tensor& asinh_() const;
  const Tensor& acosh_() const;
  const Tensor& atanh_() const;
  const Tensor& erf_() const;
  const Tensor& erfinv_() const;
  const Tensor& erfc_() const;
  const Tensor& logit_(std::optional<double> eps = {}) const;
  const Tensor& lgamma_() const;
  const Tensor& digamma_() const;
  const Tensor& expm1_() const;
  const Tensor& exp2_() const;
  const Tensor& log1p_() const;
  const Tensor& log2_() const;
  const Tensor& log10_() const;
  const Tensor& floor_() const;
  const Tensor& ceil_() const;
  const Tensor& trunc_() const;
  const Tensor& sign_() const;
  const Tensor& square_() const;
  const Tensor& reciprocal_() const;
  const Tensor& frac_() const;
  const Tensor& round_(std::int64_t decimals = 0) const;
  const Tensor& fmod_(const Tensor& other) const;
  const Tensor& remainder_(const Tensor& other) const;
  const Tensor& floor_divide_(const Tensor& other) const;
  const Tensor& fmod_(const Scalar& other) const;
  const Tensor& remainder_(const Scalar& other) const;
  const Tensor& floor_divide_(const Scalar& other) const;
  const Tensor& xlogy_(const Tensor& other) const;
  const Tensor& hypot_(const Tensor& other) const;
  const Tensor& lerp_(const Tensor& end, double weight) const;
  const Tensor& lerp_(const Tensor& end, const Tensor& weight) const;
  const Tensor& addcmul_(const Tensor& a, const Tensor& b, const Scalar& value = 1) const;
  const Tensor& addcdiv_(const Tensor& a, const Tensor& b, const Scalar& value = 1) const;
  const Tensor& masked_fill_(const Tensor& mask, const Scalar& value) const;
  const Tensor& masked_fill_(const Tensor& mask, const Tensor& value) const;
  const Tensor& nan_to_num_(double nan = 0, std::optional<double> posinf = {},
                            std::optional<double> neginf = {}) const;
  const Tensor& logical_and_(const Tensor& other) const;
  const Tensor& logical_or_(const Tensor& other) const;
  const Tensor& logical_xor_(const Tensor& other) const;
  const Tensor& logical_not_() const;
  const Tensor& bitwise_and_(const Tensor& other) const;
  const Tensor& bitwise_and_(const Scalar& other) const;
  const Tensor& bitwise_or_(const Tensor& other) const;
  const Tensor& bitwise_or_(const Scalar& other) const;
  const Tensor& bitwise_xor_(const Tensor& other) const;
  const Tensor& bitwise_xor_(const Scalar& other) const;
  const Tensor& bitwise_left_shift_(const Tensor& other) const;
  const Tensor& bitwise_left_shift_(const Scalar& other) const;
  const Tensor& bitwise_right_shift_(const Tensor& other) const;
  const Tensor& bitwise_right_shift_(const Scalar& other) const;
  const Tensor& bitwise_not_() const;
  // Comparisons in place write 1 or 0 in this tensor's dtype. `other` is a tensor or a number.
  const Tensor& eq_(const auto& other) const { return copy_(eq(other)); }
  const Tensor& ne_(const auto& other) const { return copy_(ne(other)); }
  const Tensor& lt_(const auto& other) const { return copy_(lt(other)); }
  const Tensor& le_(const auto& other) const { return copy_(le(other)); }
  const Tensor& gt_(const auto& other) const { return copy_(gt(other)); }
  const Tensor& ge_(const auto& other) const { return copy_(ge(other)); }
  const Tensor& cumsum_(std::int64_t dim) const;
  const Tensor& cumprod_(std::int64_t dim) const;
  const Tensor& tril_(std::int64_t diagonal = 0) const;
  const Tensor& triu_(std::int64_t diagonal = 0) const;
  const Tensor& addmm_(const Tensor& a, const Tensor& b, const Scalar& beta = 1,
                       const Scalar& alpha = 1) const;
  const Tensor& baddbmm_(const Tensor& a, const Tensor& b, const Scalar& beta = 1,
                         const Scalar& alpha = 1) const;
  const Tensor& fill_diagonal_(const Scalar& value, bool wrap = false) const;
  const Tensor& copy_(const Tensor& source) const;  // broadcasts, casts, crosses devices
  const Tensor& fill_(const Scalar& value) const;
  const Tensor& zero_() const;
  const Tensor& uniform_(double low = 0, double high = 1) const;
  const Tensor& normal_(double mean = 0, double std = 1) const;
  const Tensor& exponential_(double lambd = 1) const;
  const Tensor& bernoulli_(double p = 0.5) const;
  const Tensor& bernoulli_(const Tensor& p) const;
  const Tensor& random_() const;
  const Tensor& random_(std::int64_t to) const;
  const Tensor& random_(std::int64_t from, std::int64_t to) const;
  // Change the shape and strides that all handles of this tensor share. Like other changes in place, they
  // invalidate what backward has saved, and throw AutogradError for a leaf that requires gradients.
  const Tensor& squeeze_() const;
  const Tensor& squeeze_(std::int64_t dim) const;
  const Tensor& unsqueeze_(std::int64_t dim) const;
  const Tensor& transpose_(std::int64_t a, std::int64_t b) const;
  const Tensor& swapaxes_(std::int64_t a, std::int64_t b) const { return transpose_(a, b); }
  const Tensor& swapdims_(std::int64_t a, std::int64_t b) const { return transpose_(a, b); }
  const Tensor& t_() const;
  const Tensor& as_strided_(const Shape& sizes, const Shape& strides,
                            std::optional<std::int64_t> storage_offset = {}) const;
  const Tensor& detach_() const;  // ends the history; a leaf no longer requires gradients
  const Tensor& operator+=(const Tensor& other) const { return add_(other); }
  const Tensor& operator-=(const Tensor& other) const { return sub_(other); }
  const Tensor& operator*=(const Tensor& other) const { return mul_(other); }
  const Tensor& operator/=(const Tensor& other) const { return div_(other); }
  const Tensor& operator+=(const Scalar& other) const { return add_(other); }
  const Tensor& operator-=(const Scalar& other) const { return sub_(other); }
  const Tensor& operator*=(const Scalar& other) const { return mul_(other); }
  const Tensor& operator/=(const Scalar& other) const { return div_(other); }
  // reductions; an empty list of dimensions means all dimensions
  Tensor sum(const Dims& dims = {}, bool keepdim = false) const;
  Tensor mean(const Dims& dims = {}, bool keepdim = false) const;
  Tensor var(const Dims& dims = {}, bool unbiased = true, bool keepdim = false) const;
  Tensor(max)() const;
  Tensor(min)() const;
  std::pair<Tensor, Tensor>(max)(std::int64_t dim, bool keepdim = false) const;  // values, indices
  std::pair<Tensor, Tensor>(min)(std::int64_t dim, bool keepdim = false) const;
  Tensor amax(const Dims& dims = {}, bool keepdim = false) const;
  Tensor amin(const Dims& dims = {}, bool keepdim = false) const;
  std::pair<Tensor, Tensor> aminmax(std::optional<std::int64_t> dim = {}, bool keepdim = false) const;
  Tensor argmax(std::optional<std::int64_t> dim = {}, bool keepdim = false) const;
  Tensor argmin(std::optional<std::int64_t> dim = {}, bool keepdim = false) const;
  Tensor std(const Dims& dims = {}, bool unbiased = true, bool keepdim = false) const;
  Tensor prod() const;
  Tensor prod(std::int64_t dim, bool keepdim = false) const;
  Tensor any(const Dims& dims = {}, bool keepdim = false) const;
  Tensor all(const Dims& dims = {}, bool keepdim = false) const;
  Tensor count_nonzero(const Dims& dims = {}) const;
  Tensor nansum(const Dims& dims = {}, bool keepdim = false) const;
  Tensor nanmean(const Dims& dims = {}, bool keepdim = false) const;
  Tensor logsumexp(const Dims& dims, bool keepdim = false) const;
  Tensor norm(double p = 2, const Dims& dims = {}, bool keepdim = false) const;
  // order, scans and sampling; pairs are values and indices
  std::pair<Tensor, Tensor> sort(std::int64_t dim = -1, bool descending = false) const;
  Tensor argsort(std::int64_t dim = -1, bool descending = false) const;
  std::pair<Tensor, Tensor> topk(std::int64_t k, std::int64_t dim = -1, bool largest = true,
                                 bool sorted = true) const;
  std::pair<Tensor, Tensor> kthvalue(std::int64_t k, std::int64_t dim = -1, bool keepdim = false) const;
  Tensor median() const;
  std::pair<Tensor, Tensor> median(std::int64_t dim, bool keepdim = false) const;
  std::pair<Tensor, Tensor> mode(std::int64_t dim = -1, bool keepdim = false) const;
  Tensor quantile(double q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                  const std::string& interpolation = "linear") const;
  Tensor quantile(const Tensor& q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                  const std::string& interpolation = "linear") const;
  Tensor nanquantile(double q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                     const std::string& interpolation = "linear") const;
  Tensor nanquantile(const Tensor& q, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                     const std::string& interpolation = "linear") const;
  Unique unique() const;
  Unique unique(const UniqueOptions& options) const;
  Unique unique_consecutive() const;
  Unique unique_consecutive(const UniqueOptions& options) const;
  Tensor histc(std::int64_t bins = 100, double low = 0, double high = 0) const;
  Tensor cumsum(std::int64_t dim) const;
  Tensor cumprod(std::int64_t dim) const;
  std::pair<Tensor, Tensor> cummax(std::int64_t dim) const;
  std::pair<Tensor, Tensor> cummin(std::int64_t dim) const;
  Tensor logcumsumexp(std::int64_t dim) const;
  Tensor diff(std::int64_t n = 1, std::int64_t dim = -1, const Tensor& prepend = {},
              const Tensor& append = {}) const;
  Tensor bincount(const Tensor& weights = {}, std::int64_t minlength = 0) const;
  Tensor multinomial(std::int64_t num_samples, bool replacement = false) const;
  Tensor bernoulli() const;
  Tensor softmax(std::int64_t dim) const;
  Tensor log_softmax(std::int64_t dim) const;
  Tensor matmul(const Tensor& other) const;
  Tensor mm(const Tensor& other) const;
  Tensor bmm(const Tensor& other) const;
  Tensor mv(const Tensor& vector) const;
  Tensor dot(const Tensor& other) const;
  Tensor outer(const Tensor& other) const;
  Tensor addmm(const Tensor& a, const Tensor& b, const Scalar& beta = 1, const Scalar& alpha = 1) const;
  Tensor baddbmm(const Tensor& a, const Tensor& b, const Scalar& beta = 1, const Scalar& alpha = 1) const;
  Tensor kron(const Tensor& other) const;
  Tensor cross(const Tensor& other, std::optional<std::int64_t> dim = {}) const;
  Tensor det() const;
  std::pair<Tensor, Tensor> slogdet() const;  // sign, logarithm of the absolute value
  Tensor inverse() const;
  Tensor pinverse(double rcond = 1e-15) const;
  Tensor matrix_power(std::int64_t n) const;
  Tensor cholesky(bool upper = false) const;
  std::pair<Tensor, Tensor> qr(bool some = true) const;  // Q, R

 private:
  TensorImpl& self() const {
    if (!impl_) [[unlikely]]
      throw_undefined();
    return *impl_;
  }
  bool is_channels_last() const;
  [[noreturn, gnu::cold]] static void throw_undefined();
  [[noreturn]] void throw_wrong_dtype(DType asked) const;
  void* no_data() const;  // raw_data() of a tensor without memory
  // Implements item() for integer types: truncates `value`, and throws if the result does not fit.
  static std::int64_t truncated(const Scalar& value);
  [[noreturn, gnu::cold]] static void throw_does_not_fit(const Scalar& value);
  Ref<TensorImpl> impl_;
};

}  // namespace tapestry

#include "tapestry/core/tensor_inline.h"
