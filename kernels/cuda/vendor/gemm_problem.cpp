#include "tapestry/kernels/cuda/vendor/gemm_problem.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>

#include "tapestry/core/kernel_policy.h"

namespace tapestry::kernels::cuda {
namespace {

constexpr double kLarge = 1 << 26;

/// The largest power of 2 up to 256 that divides all addresses of the operand at which calls begin.
int alignment(const void* data, const std::vector<GemmBatch>& calls, std::int64_t GemmBatch::*stride,
              std::int64_t element) {
  auto bits = reinterpret_cast<std::uintptr_t>(data) | 256;
  for (const GemmBatch& call : calls)
    if (call.size > 1) bits |= static_cast<std::uintptr_t>(call.*stride * element);
  return 1 << std::countr_zero(bits);
}

std::int64_t size_class(std::int64_t n) {
  const auto u = static_cast<std::uint64_t>(n);
  const int low = std::max(static_cast<int>(std::bit_width(u)) - 3, 0);
  return static_cast<std::int64_t>(u >> low << low);
}

class Text {
 public:
  void add(const char* name, std::int64_t value) {
    text_ += name;
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  void add(const char* word) { text_ += word; }
  std::string text_;
};

void add_options(Text& t, const GemmProblem& p) {
  constexpr const char* kEpilogues[] = {
      "", " relu", " gelu", " gelu_tanh", " relu_backward", " gelu_backward", " gelu_tanh_backward"};
  t.add(p.a_along_k ? " a=row" : " a=column");
  t.add(p.b_along_k ? " b=column" : " b=row");
  if (p.accumulate) t.add(" accumulate");
  if (p.bias) t.add(" bias");
  t.add(kEpilogues[static_cast<int>(p.epilogue)]);
  if (p.aux) t.add(" aux");
  if (p.row_sums) t.add(" row_sums");
}

}  // namespace

std::int64_t GemmProblem::call_count() const {
  std::int64_t count = 1;
  for (const GemmBatch& call : calls) count *= call.size;
  return count;
}

GemmProblem gemm_problem(DType dtype, const GemmArgs& g) {
  GemmProblem p;
  p.dtype = dtype;
  p.m = g.m, p.n = g.n, p.k = g.k;
  p.a_along_k = g.a_strides.row_major(g.k);
  p.b_along_k = !g.b_strides.row_major(g.n);
  p.lda = p.a_along_k ? g.a_strides.row : g.a_strides.col;
  p.ldb = p.b_along_k ? g.b_strides.col : g.b_strides.row;
  p.ldc = g.c_row;
  p.accumulate = g.accumulate;
  p.bias = static_cast<bool>(g.bias);
  p.aux = static_cast<bool>(g.aux);
  p.row_sums = static_cast<bool>(g.row_sums);
  p.tf32 = dtype == DType::f32 && allow_tf32_matmul();
  p.epilogue = g.epilogue;

  std::vector<GemmBatch>& dims = p.calls;  // innermost first
  for (int d = g.batch_ndim - 1; d >= 0; --d) {
    const GemmBatch dim{g.batch_sizes[d], g.a_batch[d], g.b_batch[d], g.c_batch[d]};
    if (dim.size == 1) continue;
    if (!dims.empty()) {
      GemmBatch& in = dims.back();
      if (dim.a == in.size * in.a && dim.b == in.size * in.b && dim.c == in.size * in.c) {
        in.size *= dim.size;
        continue;
      }
    }
    dims.push_back(dim);
  }
  if (!dims.empty()) {
    const auto largest = std::max_element(
        dims.begin(), dims.end(), [](const GemmBatch& x, const GemmBatch& y) { return x.size < y.size; });
    p.batch = *largest;
    dims.erase(largest);
  }
  const auto element = static_cast<std::int64_t>(dtype_size(dtype));
  p.a_align = alignment(g.a.address(), dims, &GemmBatch::a, element);
  p.b_align = alignment(g.b.address(), dims, &GemmBatch::b, element);
  p.c_align = alignment(g.c.address(), dims, &GemmBatch::c, element);
  if (p.bias) p.bias_align = alignment(g.bias.address(), {}, &GemmBatch::a, element);
  if (p.aux) p.aux_align = alignment(g.aux.address(), dims, &GemmBatch::c, element);
  if (p.row_sums) p.row_sums_align = alignment(g.row_sums.address(), {}, &GemmBatch::a, element);
  return p;
}

std::string exact_key(const GemmProblem& p) {
  Text t;
  t.add(p.tf32 ? "tf32" : dtype_name(p.dtype));
  t.add(" m=", p.m), t.add(" n=", p.n), t.add(" k=", p.k);
  t.add(" lda=", p.lda), t.add(" ldb=", p.ldb), t.add(" ldc=", p.ldc);
  add_options(t, p);
  const auto add_batch = [&](const char* name, const GemmBatch& b) {
    t.add(name, b.size), t.add(":", b.a), t.add(":", b.b), t.add(":", b.c);
  };
  if (p.batch.size > 1) add_batch(" batch=", p.batch);
  for (const GemmBatch& call : p.calls) add_batch(" calls=", call);
  t.add(" align=", p.a_align), t.add(",", p.b_align), t.add(",", p.c_align);
  if (p.bias) t.add(" bias_align=", p.bias_align);
  if (p.aux) t.add(" aux_align=", p.aux_align);
  if (p.row_sums) t.add(" row_sums_align=", p.row_sums_align);
  return std::move(t.text_);
}

bool has_exact_choice(const GemmProblem& p) {
  return static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
             static_cast<double>(p.batch.size) * static_cast<double>(p.call_count()) >=
         kLarge;
}

std::string choice_key(const GemmProblem& p) {
  if (has_exact_choice(p)) return exact_key(p);
  Text t;
  t.add(p.tf32 ? "tf32" : dtype_name(p.dtype));
  const auto add_size = [&](const char* name, std::int64_t size) {
    t.add(name, size_class(size));
    if (size % 8 != 0) t.add("+");
  };
  add_size(" m~", p.m), add_size(" n~", p.n), add_size(" k~", p.k);
  t.add(" batch~", size_class(p.batch.size));
  if (p.call_count() > 1) t.add(" calls=", p.call_count());
  add_options(t, p);
  // Operands whose lines do not all begin at multiples of 16 bytes take slower loads.
  const auto element = static_cast<std::int64_t>(dtype_size(p.dtype));
  const bool packs = p.a_align >= 16 && p.b_align >= 16 && p.c_align >= 16 && p.lda * element % 16 == 0 &&
                     p.ldb * element % 16 == 0 && p.ldc * element % 16 == 0;
  if (!packs) t.add(" unaligned");
  return std::move(t.text_);
}

}  // namespace tapestry::kernels::cuda
