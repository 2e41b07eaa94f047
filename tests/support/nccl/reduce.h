#pragma once
// Computes the reductions of the stand-in NCCL in host memory.
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace standin {

inline std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

template <class T>
T combined(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

/// out[i] = in[0][i] op in[1][i] op ..., in order of rank. `Wide` is the type of the arithmetic.
template <class T, class Wide, class Load, class Store>
void reduce_as(void* out, const std::vector<const void*>& in, std::size_t count, ncclRedOp_t op, Load load,
               Store store) {
  std::vector<T> result(count);  // `out` may be one of the inputs
  for (std::size_t i = 0; i < count; ++i) {
    Wide value = load(static_cast<const T*>(in[0])[i]);
    for (std::size_t r = 1; r < in.size(); ++r)
      value = combined<Wide>(op, value, load(static_cast<const T*>(in[r])[i]));
    if (op == ncclAvg) value = static_cast<Wide>(value / static_cast<Wide>(in.size()));
    result[i] = store(value);
  }
  if (count > 0) std::memcpy(out, result.data(), count * sizeof(T));
}
template <class T, class Wide>
void reduce_plain(void* out, const std::vector<const void*>& in, std::size_t count, ncclRedOp_t op) {
  reduce_as<T, Wide>(
      out, in, count, op, [](T x) { return static_cast<Wide>(x); }, [](Wide x) { return static_cast<T>(x); });
}
inline void reduce(void* out, const std::vector<const void*>& in, std::size_t count, ncclDataType_t type,
                   ncclRedOp_t op) {
  switch (type) {
    case ncclInt8:
      return reduce_plain<std::int8_t, std::int8_t>(out, in, count, op);
    case ncclUint8:
      return reduce_plain<std::uint8_t, std::uint8_t>(out, in, count, op);
    case ncclInt32:
      return reduce_plain<std::int32_t, std::int32_t>(out, in, count, op);
    case ncclUint32:
      return reduce_plain<std::uint32_t, std::uint32_t>(out, in, count, op);
    case ncclInt64:
      return reduce_plain<std::int64_t, std::int64_t>(out, in, count, op);
    case ncclUint64:
      return reduce_plain<std::uint64_t, std::uint64_t>(out, in, count, op);
    case ncclFloat32:
      return reduce_plain<float, double>(out, in, count, op);
    case ncclFloat64:
      return reduce_plain<double, double>(out, in, count, op);
    case ncclFloat16:
      return reduce_as<__half, float>(
          out, in, count, op, [](__half x) { return __half2float(x); },
          [](float x) { return __float2half(x); });
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16, float>(
          out, in, count, op, [](__nv_bfloat16 x) { return __bfloat162float(x); },
          [](float x) { return __float2bfloat16(x); });
    default:
      return;
  }
}

}  // namespace standin
