#pragma once
// The tensors in a value of any type: arguments, batches, results. They are found in vectors, arrays,
// optionals, pairs, tuples and maps, and in plain structs, to any depth. Not in tapestry.h: for those who
// write functions of anything (checkpoint, DataParallel, Pipeline).
#include <array>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::structure {

template <class T, template <class...> class Template>
inline constexpr bool is_a = false;
template <class... Args, template <class...> class Template>
inline constexpr bool is_a<Template<Args...>, Template> = true;

template <class T>
inline constexpr bool is_array = std::is_array_v<T>;
template <class T, std::size_t n>
inline constexpr bool is_array<std::array<T, n>> = true;

/// True of what leads to tensors that for_each does not find: pointers, and class templates of them.
template <class T>
inline constexpr bool hides_tensors = false;
template <>
inline constexpr bool hides_tensors<Tensor*> = true;
template <>
inline constexpr bool hides_tensors<const Tensor*> = true;
template <class T, std::size_t n>
inline constexpr bool hides_tensors<std::span<T, n>> = std::is_same_v<std::remove_const_t<T>, Tensor>;
template <class... Args, template <class...> class Template>
inline constexpr bool hides_tensors<Template<Args...>> = (std::is_same_v<std::remove_const_t<Args>, Tensor> ||
                                                          ...);

/// Converts to whatever a member of a struct is.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT
};
/// Converts to base classes of T.
template <class T>
struct BaseOf {
  template <class Base>
  requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>) operator Base() const;  // NOLINT
};

/// How many members a plain struct has: as many values as it can be made from.
inline constexpr int kMostMembers = 8;
template <class T, class... Members>
constexpr int count_members() {
  if constexpr (sizeof...(Members) <= kMostMembers && requires { T{Members{}..., Anything{}}; })
    return count_members<T, Members..., Anything>();
  else return sizeof...(Members);
}

/// True if the elements of an array that is member number `before` were counted instead of itself: then it
/// can be made from {}, but leaves no room for `after` more.
template <class T, std::size_t... before, std::size_t... after>
constexpr bool array_counted(std::index_sequence<before...>, std::index_sequence<after...>) {
  return requires { T{(void(before), Anything{})..., {}}; }
  &&!requires { T{(void(before), Anything{})..., {}, (void(after), Anything{})...}; };
}

/// True if what count_members says are the members of a structured binding.
template <class T>
constexpr bool can_be_taken_apart() {
  constexpr int n = count_members<T>();
  if constexpr (n > kMostMembers || requires { T{BaseOf<T>{}}; }) return false;
  else return []<std::size_t... i>(std::index_sequence<i...>) {
      return !(array_counted<T>(std::make_index_sequence<i>(), std::make_index_sequence<n - 1 - i>()) || ...);
    }
  (std::make_index_sequence<n>());
}

/// f(member...) for a plain struct.
template <class T, class F>
decltype(auto) with_members(T& value, const F& f) {
  using V = std::remove_const_t<T>;
  static_assert(
      can_be_taken_apart<V>(),
      "tensors are looked for in a struct of at most eight members that are no C arrays (std::array "
      "is fine), and without base classes: make this one so, or capture it in the function");
  constexpr int n = count_members<V>();
  if constexpr (!can_be_taken_apart<V>() || n == 0) {
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

/// f(part) for every part of `value` whose type is one of `Wanted`, in a fixed order; it may replace them.
template <class... Wanted, class T, class F>
void for_each(T& value, const F& f) {
  using V = std::remove_const_t<T>;
  const auto each = [&f](auto&... parts) { (for_each<Wanted...>(parts, f), ...); };
  if constexpr ((std::is_same_v<V, Wanted> || ...)) {
    f(value);
  } else if constexpr (is_a<V, std::vector> || is_array<V>) {
    if constexpr (!std::is_same_v<V, std::vector<bool>>)
      for (auto& part : value) for_each<Wanted...>(part, f);
  } else if constexpr (is_a<V, std::optional>) {
    if (value) for_each<Wanted...>(*value, f);
  } else if constexpr (is_a<V, std::map>) {
    for (auto& [key, part] : value) for_each<Wanted...>(part, f);
  } else if constexpr (requires { std::tuple_size<V>::value; }) {
    std::apply(each, value);
  } else if constexpr (PlainStruct<V>) {
    with_members(value, each);
  } else {
    static_assert(
        !hides_tensors<V>,
        "tensors are not found behind pointers and references, nor in containers but vectors, arrays, "
        "optionals, pairs, tuples and maps: use one of these, or capture it in the function");
  }
}

}  // namespace tapestry::structure
