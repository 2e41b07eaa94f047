// Convolution by lowering (im2col). The windows of the input are copied to a matrix `cols`, for one image and
// group at a time, so that each thread needs a workspace for one image: it has C R S P Q elements, which stay
// in a cache if the image is small. The convolution then is a matrix product:
//   row-major       cols is (C R S, P Q), and y (K, P Q) = W (K, C R S) cols
//   channels-last   cols is (P Q, R S C), and y (P Q, K) = cols W'^T
// W' (K, R S C) is a permuted copy of W.
#include <algorithm>
#include <type_traits>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/conv.h"
#include "tapestry/kernels/cpu/matmul.h"
#include "tapestry/kernels/cpu/sums.h"

namespace tapestry::kernels::cpu {
namespace {

// Sizes of one group of one image.
struct Group {
  std::int64_t c, k, window, pixels;  // input and output channels of a group, C R S, P Q
  explicit Group(const Conv2dShape& s)
      : c(s.c / s.groups), k(s.k / s.groups), window(c * s.r * s.s), pixels(s.p * s.q) {}
};

// For one column of the window: the range [begin, end) of output columns q at which that window column lies
// inside the image.
struct Range {
  std::int64_t begin, end;
  Range(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t shift) {
    begin = shift < 0 ? std::min(out, (-shift + stride - 1) / stride) : 0;
    end = shift >= in ? begin : std::clamp((in - shift + stride - 1) / stride, begin, out);
  }
};

// Enumerates the copies between a row-major image x and `cols`. Calls f(col, at, begin, end) for each window
// element and output row: output q uses cols[col + q] and x[at + q stride_w]. If q is not in [begin, end),
// the element lies in the padding.
template <class F>
void each_row_major(const Conv2dShape& s, const Group& g, F&& f) {
  for (std::int64_t c = 0; c < g.c; ++c)
    for (std::int64_t r = 0; r < s.r; ++r)
      for (std::int64_t t = 0; t < s.s; ++t) {
        const std::int64_t row = ((c * s.r + r) * s.s + t) * g.pixels, shift = t * s.dilation_w - s.padding_w;
        const Range in_range(s.w, s.q, s.stride_w, shift);
        for (std::int64_t p = 0; p < s.p; ++p) {
          const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
          const bool inside = h >= 0 && h < s.h;
          f(row + p * s.q, (c * s.h + h) * s.w + shift, inside ? in_range.begin : s.q,
            inside ? in_range.end : s.q);
        }
      }
}

template <class T>
void lower_row_major(const Conv2dShape& s, const Group& g, const T* x, T* cols) {
  each_row_major(s, g, [&](std::int64_t col, std::int64_t at, std::int64_t begin, std::int64_t end) {
    T* const out = cols + col;
    std::fill(out, out + begin, T(0));
    if (s.stride_w == 1) std::copy(x + at + begin, x + at + end, out + begin);
    else
      for (std::int64_t q = begin; q < end; ++q) out[q] = x[at + q * s.stride_w];
    std::fill(out + end, out + s.q, T(0));
  });
}

template <class T>
void raise_row_major(const Conv2dShape& s, const Group& g, const T* cols, T* dx) {
  each_row_major(s, g, [&](std::int64_t col, std::int64_t at, std::int64_t begin, std::int64_t end) {
    const T* const in = cols + col;
    if (s.stride_w == 1)
      for (std::int64_t q = begin; q < end; ++q) dx[at + q] += in[q];
    else
      for (std::int64_t q = begin; q < end; ++q) dx[at + q * s.stride_w] += in[q];
  });
}

// Enumerates the copies between a channels-last image x and `cols`, in runs of contiguous elements. Calls
// f(index in cols, index in x, length) for each run. The index in x is -1 for a run in the padding.
template <class F>
void each_channels_last(const Conv2dShape& s, const Group& g, F&& f) {
  // Without dilation and groups, a row of a window is contiguous in x.
  const bool rows = s.dilation_w == 1 && s.groups == 1;
  std::int64_t col = 0;
  for (std::int64_t p = 0; p < s.p; ++p)
    for (std::int64_t q = 0; q < s.q; ++q)
      for (std::int64_t r = 0; r < s.r; ++r) {
        const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
        const std::int64_t w = q * s.stride_w - s.padding_w;
        const auto piece = [&](std::int64_t t, std::int64_t count, bool inside) {
          if (count > 0) f(col, inside ? (h * s.w + w + t * s.dilation_w) * s.c : -1, count * g.c);
          col += count * g.c;
        };
        if (h < 0 || h >= s.h) {
          piece(0, s.s, false);
        } else if (rows) {
          const std::int64_t begin = std::clamp<std::int64_t>(-w, 0, s.s),
                             end = std::clamp(s.w - w, begin, s.s);
          piece(0, begin, false);
          piece(begin, end - begin, true);
          piece(end, s.s - end, false);
        } else {
          for (std::int64_t t = 0; t < s.s; ++t)
            piece(t, 1, w + t * s.dilation_w >= 0 && w + t * s.dilation_w < s.w);
        }
      }
}

template <class T>
void lower_channels_last(const Conv2dShape& s, const Group& g, const T* x, T* cols) {
  each_channels_last(s, g, [&](std::int64_t col, std::int64_t at, std::int64_t count) {
    T* const out = cols + col;
    if (at < 0) std::fill_n(out, count, T(0));
    else
      for (std::int64_t i = 0; i < count; ++i) out[i] = x[at + i];
  });
}

template <class T>
void raise_channels_last(const Conv2dShape& s, const Group& g, const T* cols, T* dx) {
  each_channels_last(s, g, [&](std::int64_t col, std::int64_t at, std::int64_t count) {
    if (at < 0) return;
    for (std::int64_t i = 0; i < count; ++i) dx[at + i] += cols[col + i];
  });
}

template <class T>
void lower(const Conv2dShape& s, const Group& g, const T* x, T* cols) {
  if (s.channels_last) lower_channels_last(s, g, x, cols);
  else lower_row_major(s, g, x, cols);
}

// Permutes (K, C, R S) to (K, R S, C), or back.
template <class T>
void permute_weight(const Conv2dShape& s, const Group& g, const T* from, T* to, bool back = false) {
  const std::int64_t area = s.r * s.s;
  for (std::int64_t k = 0; k < s.k; ++k)
    for (std::int64_t c = 0; c < g.c; ++c)
      for (std::int64_t a = 0; a < area; ++a) {
        const std::int64_t plain = (k * g.c + c) * area + a, moved = (k * area + a) * g.c + c;
        if (back) to[plain] = from[moved];
        else to[moved] = from[plain];
      }
}

// The weight in the layout that the matrix product needs.
template <class T>
class WeightMatrix {
 public:
  WeightMatrix(Device device, const Conv2dShape& s, const Group& g, const T* weight) : data_(weight) {
    if (!s.channels_last || s.r * s.s == 1) return;
    copy_ = Scratch<T>(device, s.k * g.window);
    permute_weight(s, g, weight, copy_.data());
    data_ = copy_.data();
  }
  const T* data() const { return data_; }

 private:
  Scratch<T> copy_;
  const T* data_;
};

// The offset of a group of image n in the input.
std::int64_t input_at(const Conv2dShape& s, const Group& g, std::int64_t n, std::int64_t group) {
  return n * s.c * s.h * s.w + group * g.c * (s.channels_last ? 1 : s.h * s.w);
}
std::int64_t output_at(const Conv2dShape& s, const Group& g, std::int64_t n, std::int64_t group) {
  return n * s.k * g.pixels + group * g.k * (s.channels_last ? 1 : g.pixels);
}

// The lowered image: the image itself if the convolution is a product, else a copy in `cols`.
template <class T>
const T* lowered(const Conv2dShape& s, const Group& g, const T* x, T* cols) {
  if (is_product(s)) return x;
  lower(s, g, x, cols);
  return cols;
}

// Divides the images among threads and calls f(first image, last image) on each. If there are fewer images
// than threads, it calls f once, and the threads divide each matrix product instead.
template <class F>
void over_images(const Conv2dShape& s, F&& f) {
  if (s.n < compute_threads()) f(std::int64_t{0}, s.n);
  else parallel_for(s.n, 1, f);
}

template <class T>
GemmArgs product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, MatrixStrides sa, const T* b,
                 MatrixStrides sb, T* c, std::int64_t c_row, bool accumulate = false) {
  GemmArgs g;
  g.m = m, g.n = n, g.k = k;
  g.a = a, g.b = b, g.c = c;
  g.a_strides = sa, g.b_strides = sb, g.c_row = c_row;
  g.accumulate = accumulate;
  return g;
}

template <class T>
void sum_bias(const Conv2dShape& s, const T* dy, T* dbias) {
  const std::int64_t pixels = s.p * s.q;
  if (s.channels_last) {
    column_sum(kCPU, dtype_of<T>, {.rows = s.n * pixels, .cols = s.k, .x = dy, .y = dbias});
    return;
  }
  parallel_for(s.k, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      T total = 0;
      for (std::int64_t n = 0; n < s.n; ++n) {
        const T* const plane = dy + (n * s.k + k) * pixels;
        total += sum_lanes<T>(pixels, [=](std::int64_t i) { return plane[i]; });
      }
      dbias[k] = total;
    }
  });
}

}  // namespace

bool is_product(const Conv2dShape& s) {
  return !s.channels_last && s.groups == 1 && s.r == 1 && s.s == 1 && s.stride_h == 1 && s.stride_w == 1 &&
         s.padding_h == 0 && s.padding_w == 0 && s.p == s.h && s.q == s.w;
}

template <class T>
void Im2col<T>::forward(const LaunchContext& context, const Conv2dShape& s, const T* x, const T* weight,
                        const T* bias, T* y) {
  const Group g(s);
  const WeightMatrix<T> matrix(context.device, s, g, weight);
  over_images(s, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<T> memory(context.device, is_product(s) ? 0 : g.window * g.pixels);
    T* const cols = memory.data();
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t group = 0; group < s.groups; ++group) {
        const T* const in = lowered(s, g, x + input_at(s, g, n, group), cols);
        const T* const w = matrix.data() + group * g.k * g.window;
        T* const out = y + output_at(s, g, n, group);
        if (bias) {  // accumulation starts from the bias
          const T* const b = bias + group * g.k;
          if (s.channels_last)
            for (std::int64_t i = 0; i < g.pixels; ++i) std::copy_n(b, g.k, out + i * s.k);
          else
            for (std::int64_t k = 0; k < g.k; ++k) std::fill_n(out + k * g.pixels, g.pixels, b[k]);
        }
        const bool sum = bias != nullptr;
        multiply<T>(
            s.channels_last
                ? product(g.pixels, g.k, g.window, in, {g.window, 1}, w, {1, g.window}, out, s.k, sum)
                : product(g.k, g.pixels, g.window, w, {g.window, 1}, in, {g.pixels, 1}, out, g.pixels, sum));
      }
  });
}

template <class T>
void Im2col<T>::backward_input(const LaunchContext& context, const Conv2dShape& s, const T* dy,
                               const T* weight, T* dx) {
  const Group g(s);
  const WeightMatrix<T> matrix(context.device, s, g, weight);
  over_images(s, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<T> memory(context.device, is_product(s) ? 0 : g.window * g.pixels);
    T* const cols = memory.data();
    for (std::int64_t n = begin; n < end; ++n) {
      if (is_product(s)) {
        multiply<T>(product(s.c, g.pixels, s.k, weight, {1, s.c}, dy + n * s.k * g.pixels, {g.pixels, 1},
                            dx + n * s.c * g.pixels, g.pixels));
        continue;
      }
      std::fill_n(dx + n * s.c * s.h * s.w, s.c * s.h * s.w, T(0));
      for (std::int64_t group = 0; group < s.groups; ++group) {
        const T* const w = matrix.data() + group * g.k * g.window;
        const T* const in = dy + output_at(s, g, n, group);
        T* const out = dx + input_at(s, g, n, group);
        if (s.channels_last) {
          multiply<T>(product(g.pixels, g.window, g.k, in, {s.k, 1}, w, {g.window, 1}, cols, g.window));
          raise_channels_last(s, g, cols, out);
        } else {
          multiply<T>(product(g.window, g.pixels, g.k, w, {1, g.window}, in, {g.pixels, 1}, cols, g.pixels));
          raise_row_major(s, g, cols, out);
        }
      }
    }
  });
}

template <class T>
void Im2col<T>::backward_weight(const LaunchContext& context, const Conv2dShape& s, const T* dy, const T* x,
                                T* dweight, T* dbias) {
  const Group g(s);
  if (dbias) sum_bias(s, dy, dbias);
  if (!dweight) return;
  const std::int64_t size = s.k * g.window;
  // Each thread sums the weight gradient of its part of the batch, and then the parts are added in order. If
  // the weight is large, there is only one part, which saves memory, and all threads work on each matrix
  // product.
  const int threads = size <= 65536 && s.n > 1 ? compute_threads() : 1;
  const Partition parts(s.n, 1, threads);
  const Scratch<T> partial(context.device, std::max(parts.count, 1) * size);
  const auto piece = [&](std::int64_t begin, std::int64_t end, T* sum) {
    std::fill_n(sum, size, T(0));
    const Scratch<T> memory(context.device, is_product(s) ? 0 : g.window * g.pixels);
    T* const cols = memory.data();
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t group = 0; group < s.groups; ++group) {
        const T* const columns = lowered(s, g, x + input_at(s, g, n, group), cols);
        const T* const in = dy + output_at(s, g, n, group);
        T* const out = sum + group * g.k * g.window;
        const MatrixStrides transposed = s.channels_last ? MatrixStrides{1, s.k} : MatrixStrides{g.pixels, 1};
        const MatrixStrides strides =
            s.channels_last ? MatrixStrides{g.window, 1} : MatrixStrides{1, g.pixels};
        multiply<T>(product(g.k, g.window, g.pixels, in, transposed, columns, strides, out, g.window, true));
      }
  };
  if (parts.count <= 1) piece(0, s.n, partial.data());
  else
    parallel_for(parts.count, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        piece(parts.begin(static_cast<int>(i)), parts.end(static_cast<int>(i)), partial.data() + i * size);
    });
  T* const total = partial.data();
  for (int i = 1; i < parts.count; ++i)
    for (std::int64_t j = 0; j < size; ++j) total[j] += total[i * size + j];
  if (s.channels_last) permute_weight(s, g, total, dweight, true);
  else std::copy_n(total, size, dweight);
}

template struct Im2col<float>;
template struct Im2col<double>;

}  // namespace tapestry::kernels::cpu
