#include "tapestry/autograd/ops/packed_linear.h"

#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/packed_linear.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/file_mapping.h"
#include "tapestry/core/parallel.h"
#include "tapestry/core/storage.h"
#include "tapestry/kernels/ops/matmul.h"
#include "tapestry/kernels/ops/packed_linear.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::raw_contiguous;

const autograd::Op kPackedLinear("packed_linear", autograd::Grad::twice, bit(DType::f32));
const autograd::Op kPackedEmbedding("packed_embedding", autograd::Grad::none, kIntegers);

kernels::PackedMatrix matrix(const PackedTensor& w) {
  return {w.type(), w.rows(), w.row_elements(), w.data()};
}

// The panels of a weight, which its first product with int8 makes.
const std::uint8_t* panels_of(const PackedTensor& w) {
  const auto make = [&w]() -> std::shared_ptr<const void> {
    const kernels::PackedMatrix m = matrix(w);
    const std::int64_t bytes = kernels::panel_bytes(m);
    const StorageRef memory = Storage::allocate(kCPU, static_cast<std::size_t>(bytes));
    auto* const data = static_cast<std::uint8_t*>(memory->data());
    kernels::interleave(kCPU, DType::u8, {.weight = m, .panels = data});
    // Products without gradients read the panels alone, so the blocks need not stay in memory twice.
    detail::release_pages(w.data(), w.bytes());
    const auto owner = std::make_shared<const StorageRef>(memory);
    return {owner, data};
  };
  return static_cast<const std::uint8_t*>(w.derived(make).get());
}

// The elements of a weight of f32, or null if its memory is not aligned for them.
const float* plain(const PackedTensor& w) {
  if (w.type() != BlockType::f32 || reinterpret_cast<std::uintptr_t>(w.data()) % alignof(float) != 0)
    return nullptr;
  return reinterpret_cast<const float*>(w.data());
}

void check_weight(const char* op, const PackedTensor& weight) {
  check(weight.defined() && weight.sizes().size() == 2, "[", op, "] the weight ",
        weight.defined() ? concat({"has shape ", weight.sizes()}) : "is undefined",
        "; expected a packed matrix (out_features, in_features)");
}
void check_cpu(const char* op, const Tensor& x, const char* what) {
  check<DeviceError>(x.device().is_cpu() || x.device().is_meta(), "[", op, "] ", what, " is on ", x.device(),
                     "; packed weights are on the CPU, and so must it be: move it with to(kCPU)");
}

Tensor product(const Tensor& x, const PackedTensor& w, const Tensor& bias, bool int8) {
  Shape sizes = x.sizes();
  sizes.back() = w.rows();
  const Tensor y = empty(sizes, {DType::f32, x.device()});
  if (x.device().is_meta()) return y;
  const Tensor in = raw_contiguous(x), offset = autograd::contiguous_or_undefined(bias);
  const std::int64_t m = Shape(x.sizes().begin(), x.dim() - 1).numel();
  if (const float* const b = plain(w)) {
    kernels::GemmArgs g;
    g.m = m, g.n = w.rows(), g.k = w.row_elements();
    g.a = in, g.a_strides = {std::max<std::int64_t>(g.k, 1), 1};
    g.b = b, g.b_strides = {1, std::max<std::int64_t>(g.k, 1)};
    g.c = y, g.c_row = std::max<std::int64_t>(g.n, 1);
    g.bias = offset;
    kernels::gemm(kCPU, DType::f32, g);
    return y;
  }
  if (int8 && y.numel() > 0 && kernels::panel_bytes(matrix(w)) > 0) {
    kernels::packed_linear_int8(
        kCPU, DType::f32,
        {.m = m, .x = in, .weight = matrix(w), .panels = panels_of(w), .bias = offset, .y = y});
    return y;
  }
  kernels::packed_linear(kCPU, DType::f32, {.m = m, .x = in, .weight = matrix(w), .bias = offset, .y = y});
  return y;
}

}  // namespace

// x W, the gradient of the input. It is linear in x, and its gradient is packed_linear(): so it records
// itself in a pass with create_graph.
Tensor autograd::packed_matmul(const Tensor& x, const PackedTensor& w) {
  Tensor y;
  {
    const NoGradGuard guard;
    Shape sizes = x.sizes();
    sizes.back() = w.row_elements();
    y = empty(sizes, {DType::f32, x.device()});
    const Tensor in = x.device().is_meta() ? Tensor() : raw_contiguous(x);
    const std::int64_t m = Shape(x.sizes().begin(), x.dim() - 1).numel();
    if (!in.defined()) {  // the meta device
    } else if (const float* const b = plain(w)) {
      kernels::GemmArgs g;
      g.m = m, g.n = w.row_elements(), g.k = w.rows();
      g.a = in, g.a_strides = {std::max<std::int64_t>(g.k, 1), 1};
      g.b = b, g.b_strides = {std::max<std::int64_t>(g.n, 1), 1};
      g.c = y, g.c_row = std::max<std::int64_t>(g.n, 1);
      kernels::gemm(kCPU, DType::f32, g);
    } else {
      kernels::packed_linear_backward(kCPU, DType::f32, {.m = m, .x = in, .weight = matrix(w), .y = y});
    }
  }
  if (autograd::recording(x))
    autograd::record(kPackedLinear, y, {&x},
                     [w](Backward& b) { b.set(0, packed_linear(b.grad(), w, {}, PackedActivations::f32)); });
  return y;
}

Tensor packed_linear(const Tensor& x, const PackedTensor& weight, const Tensor& bias,
                     PackedActivations activations) {
  const char* const op = kPackedLinear.name;
  detail::check_defined(op, x);
  check_weight(op, weight);
  kPackedLinear.check_dtype(x.dtype());
  check_cpu(op, x, "the input");
  autograd::check_matches(op, x, bias, "bias");
  check(x.dim() >= 1 && x.size(-1) == weight.row_elements(), "[", op, "] input of shape ", x.sizes(),
        " does not fit weight ", weight.sizes(), ": expected (..., ", weight.row_elements(), ")");
  autograd::check_vector(op, bias, "bias", weight.rows());
  const bool recording = autograd::recording(x, bias);
  check(!recording || activations != PackedActivations::int8, "[", op,
        "] rounding to int8 has no gradient; take f32 activations, or call it under NoGradGuard");
  const bool int8 = activations == PackedActivations::int8 ||
                    (activations == PackedActivations::automatic && !autograd::recording(x));
  const Tensor y = product(x, weight, bias, int8);
  if (recording)
    autograd::record(kPackedLinear, y, {&x, &bias}, [weight](Backward& b) {
      const Tensor& g = b.grad();
      if (b.needs(0)) b.set(0, autograd::packed_matmul(g, weight));
      if (b.needs(1)) b.set(1, sum(reshape(g, {-1, weight.rows()}), 0));
    });
  return y;
}

Tensor packed_embedding(const PackedTensor& weight, const Tensor& indices) {
  const char* const op = kPackedEmbedding.name;
  check_weight(op, weight);
  detail::check_defined(op, indices, "indices");
  kPackedEmbedding.check_dtype(indices.dtype());
  check_cpu(op, indices, "indices");
  const NoGradGuard guard;
  Shape sizes = indices.sizes();
  sizes.push_back(weight.row_elements());
  const Tensor y = empty(sizes, {DType::f32, indices.device()});
  if (y.device().is_meta()) return y;
  const Tensor rows = indices.to(DType::i64).contiguous();
  const std::int64_t n = rows.numel(), width = weight.row_elements();
  const std::int64_t* const at = rows.data<std::int64_t>();
  for (std::int64_t i = 0; i < n; ++i)
    check<IndexError>(at[i] >= 0 && at[i] < weight.rows(), "[", op, "] index ", at[i], " at position ", i,
                      " is outside [0, ", weight.rows(), ")");
  float* const to = y.data<float>();
  parallel_for(n, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(width, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) weight.unpack_rows(at[i], 1, to + i * width);
               });
  return y;
}

}  // namespace tapestry
