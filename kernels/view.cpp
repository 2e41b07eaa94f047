#include "tapestry/kernels/view.h"

#include <utility>

namespace tapestry::kernels {
namespace {

// True if all operands have operand 0's sizes and strides, and these are row-major: one dimension then.
template <int N>
bool all_row_major(const Tensor* const (&t)[N]) {
  const Shape& sizes = t[0]->sizes();
  const Shape& strides = t[0]->strides();
  std::int64_t expected = 1;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  for (int n = 1; n < N; ++n) {
    if (t[n]->dim() != sizes.size()) return false;
    for (int d = 0; d < sizes.size(); ++d)
      if (t[n]->sizes()[d] != sizes[d] || (sizes[d] != 1 && t[n]->strides()[d] != strides[d])) return false;
  }
  return true;
}

// Whether dimension a is slower than b: by the output's strides, then by the other operands'.
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

}  // namespace

template <int N>
Elementwise<N> plan(const Tensor* const (&operands)[N]) {
  Elementwise<N> e;
  const Tensor& out = *operands[0];
  e.numel = out.numel();
  for (int n = 0; n < N; ++n) {
    e.data[n] = operands[n]->raw_data();
    e.dtypes[n] = operands[n]->dtype();
  }
  e.ndim = 1;
  e.sizes[0] = e.numel;
  if (e.numel == 0) return e;
  if (all_row_major(operands)) {
    for (int n = 0; n < N; ++n) e.strides[n][0] = 1;
    return e;
  }

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
  if (ndim == 0) return e;  // one element: size 1, strides 0

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
  return e;
}

template Elementwise<1> plan(const Tensor* const (&)[1]);
template Elementwise<2> plan(const Tensor* const (&)[2]);
template Elementwise<3> plan(const Tensor* const (&)[3]);
template Elementwise<4> plan(const Tensor* const (&)[4]);

}  // namespace tapestry::kernels
