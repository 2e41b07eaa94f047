#pragma once
// The tensors in a value: a batch, the arguments of a forward, what it returned. Known are a Tensor; vectors,
// arrays, optionals, pairs, tuples and maps of what is known; plain structs of up to eight members. Of
// anything else visit_tensors sees nothing, and every replica gets it as it is.
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

/// A tensor that is not part of the batch: each replica gets the whole of it, as a Tensor.
///   dp(images, Whole{mask})
struct Whole {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }  // NOLINT: forward takes a Tensor
};

namespace structure {

template <class T, template <class...> class Template>
inline constexpr bool is_a = false;
template <class... Args, template <class...> class Template>
inline constexpr bool is_a<Template<Args...>, Template> = true;

/// Converts to whatever a member of a struct is.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT
};

/// How many members a plain struct has: as many values as it can be made from.
template <class T, class... Members>
constexpr int count_members() {
  if constexpr (sizeof...(Members) <= 8 && requires { T{Members{}..., Anything{}}; })
    return count_members<T, Members..., Anything>();
  else return sizeof...(Members);
}

/// f(member...) for a plain struct.
template <class T, class F>
decltype(auto) with_members(T& value, const F& f) {
  constexpr int n = count_members<std::remove_const_t<T>>();
  static_assert(n <= 8, "a struct that holds a batch has at most eight members; put several into one");
  if constexpr (n == 0) {
    return f();
  } else if constexpr (n == 1) {
    auto& [a] = value;
    return f(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = value;
    return f(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = value;
    return f(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = value;
    return f(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = value;
    return f(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, g] = value;
    return f(a, b, c, d, e, g);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, g, h] = value;
    return f(a, b, c, d, e, g, h);
  } else {
    auto& [a, b, c, d, e, g, h, i] = value;
    return f(a, b, c, d, e, g, h, i);
  }
}

template <class T>
concept PlainStruct = std::is_class_v<T> && std::is_aggregate_v<T> && std::is_copy_constructible_v<T>;

}  // namespace structure

/// f(tensor, whole) for every tensor in `value`, in a fixed order; it may replace them. `whole`: it is not
/// part of the batch.
template <class T, class F>
void visit_tensors(T& value, const F& f) {
  using V = std::remove_const_t<T>;
  const auto each = [&f](auto&... parts) { (visit_tensors(parts, f), ...); };
  if constexpr (std::is_same_v<V, Tensor>) {
    f(value, false);
  } else if constexpr (std::is_same_v<V, Whole>) {
    f(value.tensor, true);
  } else if constexpr (structure::is_a<V, std::vector>) {
    if constexpr (!std::is_same_v<V, std::vector<bool>>)
      for (auto& part : value) visit_tensors(part, f);
  } else if constexpr (structure::is_a<V, std::optional>) {
    if (value) visit_tensors(*value, f);
  } else if constexpr (structure::is_a<V, std::map>) {
    for (auto& [key, part] : value) visit_tensors(part, f);
  } else if constexpr (requires { std::tuple_size<V>::value; }) {
    std::apply(each, value);
  } else if constexpr (structure::PlainStruct<V>) {
    structure::with_members(value, each);
  }
}

}  // namespace tapestry::distributed
