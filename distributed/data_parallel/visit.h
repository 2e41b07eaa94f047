#pragma once
// The tensors in a value: a batch, the arguments of a forward, what it returned. Known are a Tensor; vectors,
// arrays, optionals, pairs, tuples and maps of what is known; plain structs of up to eight members. Of
// anything else visit_tensors sees nothing, and every replica gets it as it is.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/structure.h"

namespace tapestry::distributed {

/// A tensor that is not part of the batch: each replica gets the whole of it, as a Tensor.
///   dp(images, Whole{mask})
struct Whole {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }  // NOLINT: forward takes a Tensor
};

namespace structure {
using namespace tapestry::structure;
}

/// f(tensor, whole) for every tensor in `value`, in a fixed order; it may replace them. `whole`: it is not
/// part of the batch.
template <class T, class F>
void visit_tensors(T& value, const F& f) {
  structure::for_each<Tensor, Whole>(value, [&f]<class Part>(Part& part) {
    if constexpr (std::is_same_v<std::remove_const_t<Part>, Whole>) f(part.tensor, true);
    else f(part, false);
  });
}

/// Whether the maps in two values have the same keys: tensors that visit_tensors finds one after another then
/// belong together.
template <class T>
bool same_keys(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, Whole>) {
    return true;
  } else if constexpr (structure::is_a<T, std::vector>) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (!same_keys(a[i], b[i])) return false;
    return true;
  } else if constexpr (structure::is_a<T, std::optional>) {
    return !a || !b || same_keys(*a, *b);
  } else if constexpr (structure::is_a<T, std::map>) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
      return !(x.first < y.first) && !(y.first < x.first) && same_keys(x.second, y.second);
    });
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return (same_keys(std::get<i>(a), std::get<i>(b)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (structure::PlainStruct<T>) {
    return structure::with_members(a, [&](const auto&... of_a) {
      return structure::with_members(b, [&](const auto&... of_b) { return (same_keys(of_a, of_b) && ...); });
    });
  } else {
    return true;
  }
}

}  // namespace tapestry::distributed
