#include "tapestry/autograd/ops/internal/common.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry::autograd {
namespace {

// Writes the sizes and strides of the dimensions of size 2 or more, in order of falling stride. Returns their
// number.
int sorted_dims(const Tensor& t, std::int64_t (&sizes)[kMaxDims], std::int64_t (&strides)[kMaxDims]) {
  int n = 0;
  for (int d = 0; d < t.dim(); ++d) {
    if (t.sizes()[d] == 1) continue;
    int i = n++;
    for (; i > 0 && strides[i - 1] < t.strides()[d]; --i)
      sizes[i] = sizes[i - 1], strides[i] = strides[i - 1];
    sizes[i] = t.sizes()[d];
    strides[i] = t.strides()[d];
  }
  return n;
}

// True if the elements fill their memory without holes, in any order of dimensions.
bool is_dense(const Tensor& t) {
  std::int64_t sizes[kMaxDims], strides[kMaxDims], expected = 1;
  for (int i = sorted_dims(t, sizes, strides) - 1; i >= 0; --i) {
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  for (int d = 0; d < a.dim(); ++d)
    if (a.sizes()[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

int category(DType t) { return is_floating(t) ? 2 : t == DType::boolean ? 0 : 1; }

// The number of bytes from the beginning of the first element to the end of the last.
std::int64_t extent(const Tensor& t) {
  std::int64_t last = 0;
  for (int d = 0; d < t.dim(); ++d) last += (t.sizes()[d] - 1) * t.strides()[d];
  return (last + 1) * static_cast<std::int64_t>(dtype_size(t.dtype()));
}

}  // namespace

DType promoted(const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return a.dtype();
  if ((a.dim() == 0) != (b.dim() == 0)) {
    const DType ranked = a.dim() ? a.dtype() : b.dtype(), lone = a.dim() ? b.dtype() : a.dtype();
    if (category(lone) <= category(ranked)) return ranked;
  }
  return promote(a.dtype(), b.dtype());
}

Tensor number_like(const Scalar& number, const Tensor& x) {
  // An integer wraps around in x's dtype, as in PyTorch.
  const DType dtype = number.promote_with(x.dtype());
  const bool wraps = contains(kStoredDTypes & ~kFloats, dtype) && dtype != DType::boolean;
  if (!wraps || dtype == DType::i64) return scalar_tensor(number, {dtype, x.device()});
  const auto bits = static_cast<std::uint64_t>(number.to_int());
  const std::uint64_t unused = 64 - 8 * dtype_size(dtype);
  const bool is_unsigned = dtype == DType::u8 || dtype == DType::u16;
  const std::int64_t element = is_unsigned ? static_cast<std::int64_t>(bits << unused >> unused)
                                           : static_cast<std::int64_t>(bits << unused) >> unused;
  return scalar_tensor(element, {dtype, x.device()});
}

Scalar as_element(const char* op, const Scalar& number, DType dtype) {
  const double value = number.to_double();
  if (is_floating(dtype)) {
    // The limit is the halfway point beyond the largest f32, from which numbers round to infinity.
    check(dtype != DType::f32 || std::isinf(value) || !(std::abs(value) >= 0x1.ffffffp127), "[", op, "] ",
          value, " is too large for f32; give a smaller number or an infinity, or use f64");
    return number;
  }
  if (dtype == DType::boolean) return number.is_real() ? Scalar(value != 0) : Scalar(number.to_int() != 0);
  const auto [lowest, highest] = integer_range(dtype);
  bool fits = false;
  if (number.is_real()) {
    // Both limits are exact in f64 except the highest i64, which is below 2^63.
    const double whole = std::trunc(value);
    fits = whole >= static_cast<double>(lowest) && !(lowest == 0 && value < 0) &&
           (dtype == DType::i64 ? whole < 0x1p63 : whole <= static_cast<double>(highest));
  } else {
    const std::int64_t least = lowest == 0 ? -highest : lowest;
    fits = number.to_int() >= least && number.to_int() <= highest;
  }
  if (number.is_real()) {
    check(fits, "[", op, "] ", dtype, " cannot hold ", value, "; give a number from ", lowest, " to ",
          highest, ", or another dtype");
  } else {
    check(fits, "[", op, "] ", dtype, " cannot hold ", number.to_int(), "; give a number from ", lowest,
          " to ", highest, ", or another dtype");
  }
  const std::int64_t integer = number.to_int();
  return integer < 0 && lowest == 0 ? integer + highest + 1 : integer;
}

IntegerRange integer_range(DType dtype) {
  const auto up_to_power = [](int bits) -> IntegerRange {
    return {-(std::int64_t{1} << bits), std::int64_t{1} << bits};
  };
  switch (dtype) {
    case DType::u8:
      return {0, 255};
    case DType::u16:
      return {0, 65535};
    case DType::i8:
      return {-128, 127};
    case DType::i16:
      return {-32768, 32767};
    case DType::i32:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    case DType::f16:
      return up_to_power(11);
    case DType::bf16:
      return up_to_power(8);
    case DType::f32:
      return up_to_power(24);
    case DType::f64:
      return up_to_power(53);
    default:
      return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  }
}

Tensor result_like(const Shape& sizes, DType dtype, std::initializer_list<const Tensor*> operands) {
  const Tensor* model = nullptr;
  for (const Tensor* t : operands) {
    if (t->sizes() != sizes) continue;
    if (!model) {
      model = t;
    } else if (!same_layout(*model, *t)) {
      model = nullptr;
      break;
    } else if (t->dim() == 4 && t->memory_format() == MemoryFormat::channels_last) {
      model = t;  // the other one may be dense in both formats
    }
  }
  const Device device = (*operands.begin())->device();
  if (!model) return empty(sizes, {dtype, device});
  const MemoryFormat format = sizes.size() == 4 ? model->memory_format() : MemoryFormat::contiguous;
  if (model->is_contiguous(format)) return empty(sizes, {dtype, device}, format);
  if (!is_dense(*model)) return empty(sizes, {dtype, device});
  StorageRef storage =
      Storage::allocate(device, static_cast<std::size_t>(model->numel()) * dtype_size(dtype));
  return tapestry::detail::make_tensor(std::move(storage), dtype, sizes, model->strides(), 0);
}

void copy_elements(const Tensor& y, const Tensor& x) {
  const DType to = y.dtype(), from = x.dtype();
  const bool direct = y.device().is_cpu() || to == from || to == DType::i32 || from == DType::i32 ||
                      (contains(kAllDTypes, to) && contains(kAllDTypes, from));
  kernels::copy(y.device(), to, planned(y, direct ? x : converted(x, DType::i32)));
}

Tensor converted(Tensor x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = result_like(x.sizes(), dtype, {&x});
  copy_elements(y, x);
  return y;
}

Tensor operand_for(const Tensor& target, const Tensor& x, DType dtype) {
  if (x.dtype() != dtype) return converted(x, dtype);
  return overlap_partly(target, x) ? apply(kernels::copy, x) : x;
}

void check_stores(const Op& op, const Tensor& target, DType dtype) {
  check<TypeError>(category(dtype) <= category(target.dtype()), "[", op.name, "] a result of type ", dtype,
                   " cannot be stored in place in a ", target.dtype(),
                   " tensor; use the out-of-place operation, or convert first");
}

Tensor reduce_to(const Tensor& grad, const Shape& sizes, DType dtype) {
  if (grad.sizes() == sizes) return to(grad, grad.device(), dtype);
  const int leading = grad.dim() - sizes.size();
  Dims dims;
  for (int d = 0; d < grad.dim(); ++d)
    if (d < leading || (sizes[d - leading] == 1 && grad.sizes()[d] != 1)) dims.push_back(d);
  const Tensor summed = dims.empty() ? grad : sum(grad, dims, true);
  return to(reshape(summed, sizes), grad.device(), dtype);
}

bool elements_overlap(const Tensor& t) {
  if (t.is_contiguous()) return false;
  // Go through the dimensions from the smallest stride to the largest. No two elements share memory if each
  // stride is larger than the span of all dimensions before it. Strides of views satisfy this if their
  // elements are distinct, except for unusual strides of as_strided().
  std::int64_t sizes[kMaxDims], strides[kMaxDims], reached = 0;
  for (int i = sorted_dims(t, sizes, strides) - 1; i >= 0; --i) {
    if (strides[i] <= reached) return true;
    reached += (sizes[i] - 1) * strides[i];
  }
  return false;
}

void check_writable(const Op& op, const Tensor& target) {
  check(!elements_overlap(target), "[", op.name, "] changes in place a tensor of shape ", target.sizes(),
        " and strides ", target.strides(),
        " whose elements share memory (expand() makes such); change a clone() of it");
}

bool overlap_partly(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  if (a.device().is_meta() || b.device().is_meta()) {  // they have no addresses
    if (a.storage().get() != b.storage().get()) return false;
    if (a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
        same_layout(a, b))
      return false;
    const auto first = [](const Tensor& t) {
      return t.storage_offset() * static_cast<std::int64_t>(dtype_size(t.dtype()));
    };
    return first(a) < first(b) + extent(b) && first(b) < first(a) + extent(a);
  }
  const char* const first_a = static_cast<const char*>(a.raw_data());
  const char* const first_b = static_cast<const char*>(b.raw_data());
  if (first_a == first_b && a.dtype() == b.dtype() && a.sizes() == b.sizes() && same_layout(a, b))
    return false;
  return a.device().type == b.device().type && first_a < first_b + extent(b) && first_b < first_a + extent(a);
}

Tensor none_of(const Tensor& dy) { return zeros({}, {dy.dtype(), dy.device()}); }

}  // namespace tapestry::autograd
