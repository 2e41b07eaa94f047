#include "tapestry/kernels/view.h"

#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/core/tensor.h"

namespace tapestry::kernels {
namespace {

// True if all operands are row-major and have the sizes of operand 0. A single dimension then describes them.
template <int N>
bool all_row_major(const Tensor* const (&t)[N]) {
  if (!t[0]->is_contiguous()) return false;
  for (int n = 1; n < N; ++n)
    if (!t[n]->is_contiguous() || t[n]->sizes() != t[0]->sizes()) return false;
  return true;
}

// Whether dimension a is slower than dimension b: the output has a larger stride along a. If the output's
// strides are equal, the inputs' strides decide in order.
template <int N>
bool slower(const Elementwise<N>& e, int a, int b) {
  for (int n = 0; n < N; ++n)
    if (e.strides[n][a] != e.strides[n][b]) return e.strides[n][a] > e.strides[n][b];
  return false;
}

template <int N>
void swap_dims(Elementwise<N>& e, int a, int b) {
  std::swap(e.sizes[a], e.sizes[b]);
  for (int n = 0; n < N; ++n) std::swap(e.strides[n][a], e.strides[n][b]);
}

template <int N>
bool mergeable(const Elementwise<N>& e, int outer, int inner) {
  for (int n = 0; n < N; ++n)
    if (e.strides[n][outer] != e.strides[n][inner] * e.sizes[inner]) return false;
  return true;
}

// Computes the dimensions of `e` in the general case: an operand is broadcast, or the dimensions do not merge
// into one.
template <int N>
[[gnu::noinline]] void plan_dims(Elementwise<N>& e, const Tensor* const (&operands)[N]) {
  const Tensor& out = *operands[0];
  int ndim = 0;
  for (int d = 0; d < out.dim(); ++d) {
    if (out.sizes()[d] == 1) continue;
    e.sizes[ndim] = out.sizes()[d];
    for (int n = 0; n < N; ++n) {
      const int own = d - (out.dim() - operands[n]->dim());
      const bool broadcast = own < 0 || operands[n]->sizes()[own] == 1;
      e.strides[n][ndim] = broadcast ? 0 : operands[n]->strides()[own];
    }
    for (int i = ndim; i > 0 && slower(e, i, i - 1); --i) swap_dims(e, i, i - 1);
    ++ndim;
  }
  if (ndim == 0) return;  // one element

  int last = 0;
  for (int d = 1; d < ndim; ++d) {
    if (mergeable(e, last, d)) {
      e.sizes[last] *= e.sizes[d];
      for (int n = 0; n < N; ++n) e.strides[n][last] = e.strides[n][d];
    } else {
      ++last;
      e.sizes[last] = e.sizes[d];
      for (int n = 0; n < N; ++n) e.strides[n][last] = e.strides[n][d];
    }
  }
  e.ndim = last + 1;
}

}  // namespace

void detail::wrong_array_type(DType has, DType asked) {
  fail<TypeError>("[kernel] an array of dtype ", has, " was read as ", asked,
                  "; give the kernel a tensor of the dtype that its contract names");
}

template <int N>
Elementwise<N> plan(const Tensor* const (&operands)[N]) {
  Elementwise<N> e;
  e.ndim = 1;
  e.numel = e.sizes[0] = operands[0]->numel();
  e.out = operands[0]->raw_data();
  for (int n = 0; n < N; ++n) {
    if (n > 0) e.in[n - 1] = operands[n]->raw_data();
    e.dtypes[n] = operands[n]->dtype();
    e.strides[n][0] = 1;
  }
  if (e.numel > 0 && !all_row_major(operands)) plan_dims(e, operands);
  return e;
}

template Elementwise<1> plan(const Tensor* const (&)[1]);
template Elementwise<2> plan(const Tensor* const (&)[2]);
template Elementwise<3> plan(const Tensor* const (&)[3]);
template Elementwise<4> plan(const Tensor* const (&)[4]);

}  // namespace tapestry::kernels
