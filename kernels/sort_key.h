#pragma once
// Maps elements to unsigned integers whose order is that of the elements (kernels/ops/sort.h), for host and
// device code.
#include <bit>
#include <type_traits>

#include "tapestry/kernels/convert.h"

namespace tapestry::kernels {

template <class T>
using SortKey = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// The key of every NaN. No other element has this key, unless T is an integer type.
template <class T>
inline constexpr SortKey<T> kNaNKey = ~SortKey<T>{0};

/// T is not a 16-bit float: convert those to float first.
template <class T>
TAPESTRY_HOST_DEVICE inline SortKey<T> sort_key(T x) {
  using Key = SortKey<T>;
  constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
  if constexpr (std::is_floating_point_v<T>) {
    const Key bits = std::bit_cast<Key>(x + T(0));  // the addition turns -0 into 0
    return x != x ? kNaNKey<T> : bits & sign ? ~bits : bits | sign;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<Key>(x) ^ sign;
  } else {
    return static_cast<Key>(x);
  }
}

}  // namespace tapestry::kernels
