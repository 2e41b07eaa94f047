#pragma once
// Finds the tensors in a value of any type: arguments, batches, results. PyTorch calls this a pytree. The
// functions look into vectors, arrays, optionals, pairs, tuples, maps and plain structs, to any depth.
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

/// True for types through which a tensor can be reached but that for_each() does not look into: pointers to
/// tensors, and class templates with a tensor among their arguments.
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

/// Converts to any type, so it can stand for any member in an aggregate initialization.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT
};
/// Converts to the base classes of T only.
template <class T>
struct BaseOf {
  template <class Base>
  requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>) operator Base() const;  // NOLINT
};

/// The largest number of members of a struct that with_members() can take apart.
inline constexpr int kMostMembers = 8;
/// Counts the members of a plain struct: the largest number of values that can initialize it. Stops counting
/// after kMostMembers + 1.
template <class T, class... Members>
constexpr int count_members() {
  if constexpr (sizeof...(Members) <= kMostMembers && requires { T{Members{}..., Anything{}}; })
    return count_members<T, Members..., Anything>();
  else return sizeof...(Members);
}

/// True if the value after the first sizeof...(before) values of the initializer belongs to a C array with
/// several elements, and is the array's first element. Because of brace elision, count_members() counts each
/// element of such an array as a member. The test replaces the value by {}, which initializes the whole
/// array. Then the sizeof...(after) values that follow are too many.
template <class T, std::size_t... before, std::size_t... after>
constexpr bool array_counted(std::index_sequence<before...>, std::index_sequence<after...>) {
  return requires { T{(void(before), Anything{})..., {}}; }
  &&!requires { T{(void(before), Anything{})..., {}, (void(after), Anything{})...}; };
}

/// True if a structured binding of T has exactly count_members<T>() names.
template <class T>
constexpr bool can_be_taken_apart() {
  constexpr int n = count_members<T>();
  if constexpr (n > kMostMembers || requires { T{BaseOf<T>{}}; }) return false;
  else return []<std::size_t... i>(std::index_sequence<i...>) {
      return !(array_counted<T>(std::make_index_sequence<i>(), std::make_index_sequence<n - 1 - i>()) || ...);
    }
  (std::make_index_sequence<n>());
}

/// Calls f(members...) with all members of a plain struct.
template <class T, class F>
decltype(auto) with_members(T& value, const F& f) {
  using V = std::remove_const_t<T>;
  static_assert(
      can_be_taken_apart<V>(),
      "tensors are found only in structs that have at most eight members, no C arrays (std::array is fine) "
      "and no base classes: change the struct, or capture it in the function");
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

/// Calls f(leaf) for every part of `value` whose type is one of `Leaves`, in a fixed order. f may replace the
/// leaf.
template <class... Leaves, class T, class F>
void for_each(T& value, const F& f) {
  using V = std::remove_const_t<T>;
  const auto each = [&f](auto&... parts) { (for_each<Leaves...>(parts, f), ...); };
  if constexpr ((std::is_same_v<V, Leaves> || ...)) {
    f(value);
  } else if constexpr (is_a<V, std::vector> || is_array<V>) {
    if constexpr (!std::is_same_v<V, std::vector<bool>>)
      for (auto& part : value) for_each<Leaves...>(part, f);
  } else if constexpr (is_a<V, std::optional>) {
    if (value) for_each<Leaves...>(*value, f);
  } else if constexpr (is_a<V, std::map>) {
    for (auto& [key, part] : value) for_each<Leaves...>(part, f);
  } else if constexpr (requires { std::tuple_size<V>::value; }) {
    std::apply(each, value);
  } else if constexpr (PlainStruct<V>) {
    with_members(value, each);
  } else {
    static_assert(
        !hides_tensors<V>,
        "tensors are not found behind pointers and references, and in no containers but vectors, arrays, "
        "optionals, pairs, tuples and maps: use one of these, or capture it in the function");
  }
}

/// True if the maps in two values have the same keys. Then the n-th leaf of one value corresponds to the n-th
/// leaf of the other.
template <class... Leaves, class T>
bool same_keys(const T& a, const T& b) {
  if constexpr ((std::is_same_v<T, Leaves> || ...)) {
    return true;
  } else if constexpr (is_a<T, std::vector>) {
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
      if (!same_keys<Leaves...>(a[i], b[i])) return false;
    return true;
  } else if constexpr (is_a<T, std::optional>) {
    return !a || !b || same_keys<Leaves...>(*a, *b);
  } else if constexpr (is_a<T, std::map>) {
    auto in_b = b.begin();
    for (const auto& [key, part] : a) {
      if (in_b == b.end() || key < in_b->first || in_b->first < key) return false;
      if (!same_keys<Leaves...>(part, (in_b++)->second)) return false;
    }
    return in_b == b.end();
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return (same_keys<Leaves...>(std::get<i>(a), std::get<i>(b)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (PlainStruct<T>) {
    return with_members(a, [&](const auto&... of_a) {
      return with_members(b, [&](const auto&... of_b) { return (same_keys<Leaves...>(of_a, of_b) && ...); });
    });
  } else {
    return true;
  }
}

/// The number of tensors in a value of type T. It is kAnyCount if it depends on the value (as for a vector),
/// and kNotOnlyTensors if T holds anything besides tensors.
inline constexpr int kAnyCount = -1, kNotOnlyTensors = -2;
template <class T>
constexpr int tensor_count();

template <class T, std::size_t... i>
constexpr int tensor_count_of_parts(std::index_sequence<i...>) {
  const std::array<int, sizeof...(i)> parts{tensor_count<std::tuple_element_t<i, T>>()...};
  int sum = 0;
  for (const int n : parts) {
    // A vector takes all tensors that are left, so it must be the last part.
    if (n == kNotOnlyTensors || sum == kAnyCount) return kNotOnlyTensors;
    sum = n == kAnyCount ? kAnyCount : sum + n;
  }
  return sum;
}

template <class T>
constexpr int tensor_count() {
  if constexpr (std::is_same_v<T, Tensor>) {
    return 1;
  } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
    return kAnyCount;
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return tensor_count_of_parts<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (PlainStruct<T>) {
    using Members = decltype(with_members(std::declval<T&>(), [](auto&... members) {
      return std::tuple<std::remove_cvref_t<decltype(members)>...>();
    }));
    return tensor_count<Members>();
  } else {
    return kNotOnlyTensors;
  }
}

/// Assigns tensors[at], tensors[at + 1], ... to the tensors in `value` and advances `at`. A vector takes all
/// that are left. Requires tensor_count<T>() != kNotOnlyTensors and enough tensors.
template <class T>
void assign_tensors(T& value, const std::vector<Tensor>& tensors, std::size_t& at) {
  const auto each = [&](auto&... parts) { (assign_tensors(parts, tensors, at), ...); };
  if constexpr (std::is_same_v<T, Tensor>) {
    value = tensors[at++];
  } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
    value.assign(tensors.begin() + static_cast<std::ptrdiff_t>(at), tensors.end());
    at = tensors.size();
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply(each, value);
  } else {
    with_members(value, each);
  }
}

/// The type T with references replaced by values, also inside tuples and pairs, so that a copy of the value
/// can be changed. A reference to a type that cannot be copied stays a reference.
template <class T>
struct OwnedValue {
  using type = std::conditional_t<std::is_copy_constructible_v<T>, T, T&>;
};
template <class... T>
struct OwnedValue<std::tuple<T...>> {
  using type = std::tuple<typename OwnedValue<std::remove_cvref_t<T>>::type...>;
};
template <class A, class B>
struct OwnedValue<std::pair<A, B>> {
  using type = std::pair<typename OwnedValue<std::remove_cvref_t<A>>::type,
                         typename OwnedValue<std::remove_cvref_t<B>>::type>;
};
template <class T>
using Owned = typename OwnedValue<std::remove_cvref_t<T>>::type;

}  // namespace tapestry::structure
