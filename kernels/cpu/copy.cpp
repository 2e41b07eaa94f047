// CPU kernels that copy with conversion, and that fill.
#include "tapestry/kernels/ops/copy.h"

#include <algorithm>
#include <cstring>

#include "tapestry/kernels/cpu/loops.h"

namespace tapestry::kernels::cpu {
namespace {

// True if the copy repeats each element of the input a few times, as repeat_interleave does.
bool repeats_elements(const Elementwise<2>& e) {
  constexpr std::int64_t kFew = 64;  // longer runs of equal elements are fast rows
  return e.ndim == 2 && e.sizes[1] < kFew && e.strides[0][1] == 1 && e.strides[0][0] == e.sizes[1] &&
         e.strides[1][1] == 0;
}
template <class Bits>
void repeat_bits(const Elementwise<2>& e) {
  const std::int64_t times = e.sizes[1], step = e.strides[1][0];
  parallel_for(e.sizes[0], grain_of(times), [&](std::int64_t begin, std::int64_t end) {
    const Bits* const in = static_cast<const Bits*>(e.in[0]);
    Bits* to = static_cast<Bits*>(e.out) + begin * times;
    for (std::int64_t i = begin; i < end; ++i) {
      const Bits x = in[i * step];
      for (std::int64_t j = 0; j < times; ++j) *to++ = x;
    }
  });
}

// A block of rows, with the strides between rows and between the elements of a row.
template <class Bits>
struct Block {
  std::int64_t rows, n;
  Bits* out;
  std::int64_t out_row, out_stride;
  const Bits* in;
  std::int64_t in_row, in_stride;
};

// Rows of a few elements, whose number is known when the code is compiled.
template <int kCount, class Bits>
void copy_few(const Block<Bits>& b) {
  for (std::int64_t i = 0; i < b.rows; ++i)
    for (int j = 0; j < kCount; ++j)
      b.out[i * b.out_row + j * b.out_stride] = b.in[i * b.in_row + j * b.in_stride];
}
// Dense rows, without a call of memcpy() for each: pieces of 32 bytes, of which the last two may overlap.
template <class Bits>
void copy_dense(const Block<Bits>& b) {
  constexpr std::int64_t piece = 32 / sizeof(Bits);
  for (std::int64_t i = 0; i < b.rows; ++i) {
    Bits* const out = b.out + i * b.out_row;
    const Bits* const in = b.in + i * b.in_row;
    for (std::int64_t j = 0; j + piece <= b.n; j += piece) std::memcpy(out + j, in + j, 32);
    std::memcpy(out + b.n - piece, in + b.n - piece, 32);
  }
}
// A transposition: rows of the output are columns of the input. Tiles keep the lines of both in the L1 cache.
template <class Bits>
void copy_transposed(const Block<Bits>& b) {
  constexpr std::int64_t tile = 16;
  for (std::int64_t top = 0; top < b.rows; top += tile) {
    const std::int64_t bottom = std::min(top + tile, b.rows);
    for (std::int64_t left = 0; left < b.n; left += tile) {
      const std::int64_t right = std::min(left + tile, b.n);
      for (std::int64_t i = top; i < bottom; ++i)
        for (std::int64_t j = left; j < right; ++j) b.out[i * b.out_row + j] = b.in[i + j * b.in_stride];
    }
  }
}
template <class Bits>
void copy_row(std::int64_t n, Bits* out, std::int64_t out_stride, const Bits* in, std::int64_t in_stride) {
  if (out_stride == 1 && in_stride == 1) std::copy_n(in, n, out);
  else if (out_stride == 1 && in_stride == -1)  // with constant strides, the loop is vectorised
    for (std::int64_t j = 0; j < n; ++j) out[j] = in[-j];
  else
    for (std::int64_t j = 0; j < n; ++j) out[j * out_stride] = in[j * in_stride];
}
template <class Bits>
void copy_block(const Block<Bits>& b) {
  constexpr std::int64_t piece = 32 / sizeof(Bits);
  const bool dense = b.out_stride == 1 && b.in_stride == 1;
  if (b.n == 1) return copy_few<1>(b);
  if (b.n == 2) return copy_few<2>(b);
  if (b.n == 3) return copy_few<3>(b);
  if (b.n == 4) return copy_few<4>(b);
  if (dense && b.n >= piece) return copy_dense(b);
  if (b.out_stride == 1 && b.in_row == 1 && b.rows > 1) return copy_transposed(b);
  for (std::int64_t i = 0; i < b.rows; ++i)
    copy_row(b.n, b.out + i * b.out_row, b.out_stride, b.in + i * b.in_row, b.in_stride);
}

// Copies short rows in blocks along the last two dimensions.
template <class Bits>
void copy_short_rows(const Elementwise<2>& e) {
  const int last = e.ndim - 1, outer = last - 1;
  const std::int64_t n = e.sizes[last];
  parallel_for(e.numel / n, grain_of(n), [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      std::int64_t rest = begin, out = 0, in = 0, first = 0;
      for (int d = outer; d >= 0; --d) {
        const std::int64_t index = rest % e.sizes[d];
        rest /= e.sizes[d];
        out += index * e.strides[0][d];
        in += index * e.strides[1][d];
        if (d == outer) first = index;
      }
      const std::int64_t rows = std::min(e.sizes[outer] - first, end - begin);
      copy_block<Bits>({rows, n, static_cast<Bits*>(e.out) + out, e.strides[0][outer], e.strides[0][last],
                        static_cast<const Bits*>(e.in[0]) + in, e.strides[1][outer], e.strides[1][last]});
      begin += rows;
    }
  });
}

// Copies bits instead of values, which keeps a signalling NaN as it is.
template <class Bits>
void copy_bits(const Elementwise<2>& e) {
  constexpr std::int64_t kShort = 4096 / sizeof(Bits);  // memcpy() is faster for longer rows
  if (e.numel == 0) return;
  if (repeats_elements(e)) return repeat_bits<Bits>(e);
  const bool transposed = e.ndim > 1 && e.strides[0][e.ndim - 1] == 1 && e.strides[1][e.ndim - 2] == 1;
  if (e.ndim > 1 && (e.sizes[e.ndim - 1] < kShort || transposed)) return copy_short_rows<Bits>(e);
  constexpr std::int64_t element[] = {sizeof(Bits), sizeof(Bits)};
  const RowFn row = [](const void*, std::int64_t n, void* to, const void* const* from,
                       const std::int64_t* strides) {
    copy_row(n, static_cast<Bits*>(to), strides[0], static_cast<const Bits*>(from[0]), strides[1]);
  };
  for_all_rows(e, element, row, nullptr);
}

// Whether the copy converts between dense arrays of f32 and of a dtype that is only stored. Then one loop
// does it. It gives the same numbers as the two steps of other conversions, which go through i32.
bool copy_stored(const Elementwise<2>& e) {
  if (e.ndim != 1 || e.strides[0][0] != 1 || e.strides[1][0] != 1) return false;
  bool done = false;
  for_types<std::int16_t, std::int8_t, std::uint16_t>([&]<class Stored>() {
    const bool to = e.dtypes[0] == dtype_of<Stored> && e.dtypes[1] == DType::f32;
    const bool from = e.dtypes[1] == dtype_of<Stored> && e.dtypes[0] == DType::f32;
    if (!to && !from) return;
    done = true;
    parallel_for(e.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (to)
        simple_loop(
            end - begin, [](float x) { return static_cast<Stored>(static_cast<std::int32_t>(x)); },
            static_cast<Stored*>(e.out) + begin, static_cast<const float*>(e.in[0]) + begin);
      else
        simple_loop(
            end - begin, [](Stored x) { return static_cast<float>(x); }, static_cast<float*>(e.out) + begin,
            static_cast<const Stored*>(e.in[0]) + begin);
    });
  });
  return done;
}

template <class To>
void copy_kernel(const LaunchContext&, const Elementwise<2>& e) {
  const auto from = [&]<class From>() { map<To, From>(e, [](From x) { return convert<To>(x); }); };
  if (e.dtypes[0] == e.dtypes[1]) {
    switch (dtype_size(e.dtypes[0])) {
      case 1:
        return copy_bits<std::uint8_t>(e);
      case 2:
        return copy_bits<std::uint16_t>(e);
      case 4:
        return copy_bits<std::uint32_t>(e);
      default:
        return copy_bits<std::uint64_t>(e);
    }
  }
  if (copy_stored(e)) return;
  switch (e.dtypes[1]) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return from.template operator()<float>();
    case DType::f64:
      return from.template operator()<double>();
    case DType::i64:
      return from.template operator()<std::int64_t>();
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u16:
      return from.template operator()<std::int32_t>();
    case DType::u8:
      return from.template operator()<std::uint8_t>();
    case DType::boolean:
      return from.template operator()<bool>();
  }
}

template <class C>
void fill_kernel(const LaunchContext&, const FillArgs& a) {
  map<C>(a.out, [c = convert_scalar<C>(a.value)]() { return c; });
}

void join_kernel(const LaunchContext&, const JoinArgs& a) {
  std::int64_t line = 0;
  for (std::int64_t i = 0; i < a.count; ++i) line += a.pieces[i].bytes;
  if (line == 0) return;
  // Threads divide the bytes of the output, so that a few long pieces keep them all busy.
  parallel_for(a.lines * line, 4 * kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t l = begin / line, i = 0, at = begin % line;  // at: the place in piece i of line l
    for (; at >= a.pieces[i].bytes; ++i) at -= a.pieces[i].bytes;
    for (std::int64_t to = begin; to < end;) {
      const JoinPiece& piece = a.pieces[i];
      const std::int64_t bytes = std::min(piece.bytes - at, end - to);
      if (bytes > 0)
        std::memcpy(static_cast<char*>(a.out) + to,
                    static_cast<const char*>(piece.data) + l * piece.bytes + at,
                    static_cast<std::size_t>(bytes));
      to += bytes;
      at = 0;
      if (++i == a.count) i = 0, ++l;
    }
  });
}

[[maybe_unused]] const bool joins = [] {
  join.set(DeviceType::cpu, DType::u8, &join_kernel);
  return true;
}();
const bool filled = for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool,
                              std::int16_t, std::int8_t, std::uint16_t>([]<class T>() {
  copy.set(DeviceType::cpu, dtype_of<T>, &copy_kernel<Compute<T>>);
  fill.set(DeviceType::cpu, dtype_of<T>, &fill_kernel<Compute<T>>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
