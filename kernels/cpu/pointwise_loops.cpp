// Copies blocks of strided, broadcast, 16-bit and stored-only operands to dense arrays of compute types, and
// back.
#include "tapestry/kernels/cpu/loops.h"

#include <algorithm>
#include <cstdint>

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kBlockBytes = 2048;  // of an operand in its compute type

bool converts(DType t) { return t == DType::f16 || t == DType::bf16 || is_stored_only(t); }
// The size of an element's compute type.
std::int64_t compute_size(DType t) { return converts(t) ? 4 : static_cast<std::int64_t>(dtype_size(t)); }

template <class Bits>
void gather(const void* from, std::int64_t stride, std::int64_t n, void* to) {
  const Bits* const in = static_cast<const Bits*>(from);
  Bits* const out = static_cast<Bits*>(to);
  if (stride == 0) std::fill_n(out, n, *in);
  else
    for (std::int64_t i = 0; i < n; ++i) out[i] = in[i * stride];
}
template <class Bits>
void scatter(const void* from, void* to, std::int64_t stride, std::int64_t n) {
  const Bits* const in = static_cast<const Bits*>(from);
  Bits* const out = static_cast<Bits*>(to);
  for (std::int64_t i = 0; i < n; ++i) out[i * stride] = in[i];
}
template <class Half16>
void gather_half(const void* from, std::int64_t stride, std::int64_t n, void* to) {
  const Half16* const in = static_cast<const Half16*>(from);
  float* const out = static_cast<float*>(to);
  if (stride == 1) return to_float(in, out, n);
  if (stride == 0) std::fill_n(out, n, static_cast<float>(*in));
  else
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i * stride]);
}
template <class Half16>
void scatter_half(const void* from, void* to, std::int64_t stride, std::int64_t n) {
  const float* const in = static_cast<const float*>(from);
  Half16* const out = static_cast<Half16*>(to);
  if (stride == 1) return from_float(in, out, n);
  for (std::int64_t i = 0; i < n; ++i) out[i * stride] = Half16(in[i]);
}

// The dtypes that are only stored are widened to i32 and cut to their low bits.
template <class Stored>
void gather_stored(const void* from, std::int64_t stride, std::int64_t n, void* to) {
  const Stored* const in = static_cast<const Stored*>(from);
  std::int32_t* const out = static_cast<std::int32_t*>(to);
  if (stride == 1) return static_cast<void>(std::copy_n(in, n, out));
  for (std::int64_t i = 0; i < n; ++i) out[i] = in[i * stride];
}
template <class Stored>
void scatter_stored(const void* from, void* to, std::int64_t stride, std::int64_t n) {
  const std::int32_t* const in = static_cast<const std::int32_t*>(from);
  Stored* const out = static_cast<Stored*>(to);
  if (stride == 1)  // with a constant stride, the loop is vectorised
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<Stored>(in[i]);
  else
    for (std::int64_t i = 0; i < n; ++i) out[i * stride] = static_cast<Stored>(in[i]);
}

// Copies n elements of dtype t to a dense array of its compute type.
void pack(DType t, const void* from, std::int64_t stride, std::int64_t n, void* to) {
  if (t == DType::f16) return gather_half<Half>(from, stride, n, to);
  if (t == DType::bf16) return gather_half<BFloat16>(from, stride, n, to);
  if (t == DType::i16) return gather_stored<std::int16_t>(from, stride, n, to);
  if (t == DType::i8) return gather_stored<std::int8_t>(from, stride, n, to);
  if (t == DType::u16) return gather_stored<std::uint16_t>(from, stride, n, to);
  switch (dtype_size(t)) {
    case 1:
      return gather<std::uint8_t>(from, stride, n, to);
    case 4:
      return gather<std::uint32_t>(from, stride, n, to);
    default:
      return gather<std::uint64_t>(from, stride, n, to);
  }
}
void unpack(DType t, const void* from, void* to, std::int64_t stride, std::int64_t n) {
  if (t == DType::f16) return scatter_half<Half>(from, to, stride, n);
  if (t == DType::bf16) return scatter_half<BFloat16>(from, to, stride, n);
  if (t == DType::i16) return scatter_stored<std::int16_t>(from, to, stride, n);
  if (t == DType::i8) return scatter_stored<std::int8_t>(from, to, stride, n);
  if (t == DType::u16) return scatter_stored<std::uint16_t>(from, to, stride, n);
  switch (dtype_size(t)) {
    case 1:
      return scatter<std::uint8_t>(from, to, stride, n);
    case 4:
      return scatter<std::uint32_t>(from, to, stride, n);
    default:
      return scatter<std::uint64_t>(from, to, stride, n);
  }
}

// The RowFns of a BlockLoop. All rows of a tensor have the same strides, so run_loop() chooses one of them.
void run_dense(const void* loop, std::int64_t n, void* out, const void* const* in, const std::int64_t*) {
  const auto& l = *static_cast<const BlockLoop*>(loop);
  l.block(l.f, n, out, in);
}
void run_constant_first(const void* loop, std::int64_t n, void* out, const void* const* in,
                        const std::int64_t*) {
  const auto& l = *static_cast<const BlockLoop*>(loop);
  l.constant_first(l.f, n, out, in);
}
void run_constant_second(const void* loop, std::int64_t n, void* out, const void* const* in,
                         const std::int64_t*) {
  const auto& l = *static_cast<const BlockLoop*>(loop);
  l.constant_second(l.f, n, out, in);
}
template <int N>
void run_blocks(const void* loop, std::int64_t n, void* out, const void* const* in,
                const std::int64_t* strides) {
  const auto& l = *static_cast<const BlockLoop*>(loop);
  alignas(64) char buffers[N][kBlockBytes];
  const void* inputs[N];
  bool dense[N];
  std::int64_t widest = 1;
  for (int i = 0; i < N; ++i) widest = std::max(widest, compute_size(l.dtypes[i]));
  const std::int64_t block = kBlockBytes / widest;
  for (int i = 0; i < N; ++i) dense[i] = strides[i] == 1 && !converts(l.dtypes[i]);
  for (int i = 1; i < N; ++i)
    if (strides[i] == 0) pack(l.dtypes[i], in[i - 1], 0, std::min(n, block), buffers[i]);
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t m = std::min(block, n - begin);
    const auto offset = [&](int i) {
      return begin * strides[i] * static_cast<std::int64_t>(dtype_size(l.dtypes[i]));
    };
    for (int i = 1; i < N; ++i) {
      const char* const at = static_cast<const char*>(in[i - 1]) + offset(i);
      inputs[i - 1] = dense[i] ? at : buffers[i];
      if (!dense[i] && strides[i] != 0) pack(l.dtypes[i], at, strides[i], m, buffers[i]);
    }
    char* const to = static_cast<char*>(out) + offset(0);
    l.block(l.f, m, dense[0] ? to : buffers[0], inputs);
    if (!dense[0]) unpack(l.dtypes[0], buffers[0], to, strides[0], m);
  }
}

}  // namespace

template <int N>
void run_loop(const Elementwise<N>& e, const BlockLoop& loop) {
  std::int64_t element[N];
  bool dense[N], constant[N], all_dense = true;
  for (int i = 0; i < N; ++i) {
    element[i] = e.element_size(i);
    const std::int64_t stride = e.strides[i][e.ndim - 1];
    const bool as_is = !converts(e.dtypes[i]);
    dense[i] = as_is && stride == 1;
    constant[i] = as_is && stride == 0;
    all_dense = all_dense && dense[i];
  }
  RowFn row = &run_blocks<N>;
  if (all_dense) row = &run_dense;
  if constexpr (N == 3) {
    if (loop.constant_first && dense[0] && constant[1] && dense[2]) row = &run_constant_first;
    if (loop.constant_second && dense[0] && dense[1] && constant[2]) row = &run_constant_second;
  }
  for_all_rows(e, element, row, &loop);
}
template void run_loop(const Elementwise<1>&, const BlockLoop&);
template void run_loop(const Elementwise<2>&, const BlockLoop&);
template void run_loop(const Elementwise<3>&, const BlockLoop&);
template void run_loop(const Elementwise<4>&, const BlockLoop&);

}  // namespace tapestry::kernels::cpu
