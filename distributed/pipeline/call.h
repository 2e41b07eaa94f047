#pragma once
// Tensors as the arguments of a function, however it takes them: one by one, or within vectors, tuples,
// pairs, arrays and plain structs.
#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/distributed/data_parallel/visit.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed::structure {

/// How many tensors a T holds: a number, or kAnyNumber if that depends on the value, or kNotTensors.
inline constexpr int kAnyNumber = -1, kNotTensors = -2;
template <class T>
constexpr int tensors_held();

template <class T, std::size_t... I>
constexpr int tensors_in_parts(std::index_sequence<I...>) {
  const std::array<int, sizeof...(I)> parts{tensors_held<std::tuple_element_t<I, T>>()...};
  int sum = 0;
  for (const int n : parts) {
    // What takes the rest has to be last.
    if (n == kNotTensors || sum == kAnyNumber) return kNotTensors;
    sum = n == kAnyNumber ? kAnyNumber : sum + n;
  }
  return sum;
}

template <class T>
constexpr int tensors_held() {
  if constexpr (std::is_same_v<T, Tensor>) {
    return 1;
  } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
    return kAnyNumber;
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return tensors_in_parts<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (PlainStruct<T>) {
    using Members = decltype(with_members(std::declval<T&>(), [](auto&... members) {
      return std::tuple<std::remove_cvref_t<decltype(members)>...>();
    }));
    return tensors_held<Members>();
  } else {
    return kNotTensors;
  }
}

template <class T>
void fill_with(T& value, const std::vector<Tensor>& tensors, std::size_t& at) {
  const auto each = [&](auto&... parts) { (fill_with(parts, tensors, at), ...); };
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

/// The types of the parameters of something that can be called and is not overloaded.
template <class>
struct Signature;
template <class R, bool n, class... A>
struct Signature<R (*)(A...) noexcept(n)> {
  using Parameters = std::tuple<std::remove_cvref_t<A>...>;
};
template <class C, class R, bool n, class... A>
struct Signature<R (C::*)(A...) noexcept(n)> : Signature<R (*)(A...)> {};
template <class C, class R, bool n, class... A>
struct Signature<R (C::*)(A...) const noexcept(n)> : Signature<R (*)(A...)> {};

template <class F>
struct ParametersOf {
  using type = std::tuple<>;  // overloaded, or a template: only what it can be called with is known
};
template <class F>
requires requires { typename Signature<F>::Parameters; }
struct ParametersOf<F> : std::type_identity<typename Signature<F>::Parameters> {};
template <class F>
requires requires { &F::operator(); }
struct ParametersOf<F> : std::type_identity<typename Signature<decltype(&F::operator())>::Parameters> {};

/// A module as a function of what its forward takes.
template <class M>
struct ModuleCall {
  M* module;
  template <class... Args>
  requires requires(M& m, const Args&... args) { m.forward(args...); }
  auto operator()(const Args&... args) const { return nn::call(*module, args...); }
};
template <class M>
requires requires { &M::forward; }
struct ParametersOf<ModuleCall<M>>
    : std::type_identity<typename Signature<decltype(&M::forward)>::Parameters> {};

/// All but the last `n` types of a tuple.
template <class Tuple, std::size_t n>
struct Leading {
  using type = void;
};
template <class... T, std::size_t n>
requires(sizeof...(T) > n) struct Leading<std::tuple<T...>, n> {
  template <std::size_t... I>
  static std::tuple<std::tuple_element_t<I, std::tuple<T...>>...> first(std::index_sequence<I...>);
  using type = decltype(first(std::make_index_sequence<sizeof...(T) - n>()));
};

/// True if fn(tensor, ... as many as I, rest...) is possible.
template <class F, class... Rest, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<const F&, decltype((void(I), std::declval<const Tensor&>()))..., const Rest&...>;
}

/// True if fn(parts of Tuple..., rest...) is possible.
template <class F, class Tuple, class... Rest>
inline constexpr bool takes_parts = false;
template <class F, class... Parts, class... Rest>
inline constexpr bool takes_parts<F, std::tuple<Parts...>, Rest...> =
    std::is_invocable_v<const F&, const Parts&..., const Rest&...>;

inline constexpr std::size_t kMostTensors = 8;

/// Calls `fn` with `tensors` and then `rest`. ValueError that says how many tensors it takes if it does not
/// take as many.
template <class F, class... Rest>
class TensorCall {
  // The tensors among its parameters as they are declared, or void.
  using Declared = typename Leading<typename ParametersOf<F>::type, sizeof...(Rest)>::type;
  static constexpr int declared_count() {
    if constexpr (takes_parts<F, Declared, Rest...>) return tensors_held<Declared>();
    else return kNotTensors;
  }
  template <std::size_t n>
  static constexpr bool takes_one_by_one = takes<F, Rest...>(std::make_index_sequence<n>());
  template <std::size_t... N>
  static constexpr bool takes_some(std::index_sequence<N...>) {
    return (takes_one_by_one<N + 1> || ...);
  }

 public:
  static constexpr bool is_possible =
      takes_some(std::make_index_sequence<kMostTensors>()) || declared_count() != kNotTensors;

  template <class Then>
  static void run(const F& fn, const std::vector<Tensor>& tensors, const Rest&... rest, const Then& then) {
    static_assert(is_possible,
                  "it takes something else than tensors: wrap it in a function of tensors, "
                  "[&](const Tensor& x, const Tensor& y) { return net.forward({x, y}, 2); }");
    if (one_by_one<1>(fn, tensors, rest..., then)) return;
    if constexpr (declared_count() != kNotTensors) {
      if (declared_count() == kAnyNumber || declared_count() == static_cast<int>(tensors.size())) {
        Declared arguments;
        std::size_t at = 0;
        fill_with(arguments, tensors, at);
        return then(std::apply([&](const auto&... a) { return fn(a..., rest...); }, arguments));
      }
    }
    fail("[Pipeline] ", tensors.size(), tensors.size() == 1 ? " tensor arrives" : " tensors arrive",
         ", but what is called takes ", accepted(), "; let one side fit the other");
  }

 private:
  template <std::size_t n, class Then>
  static bool one_by_one(const F& fn, const std::vector<Tensor>& tensors, const Rest&... rest,
                         const Then& then) {
    if constexpr (n > kMostTensors) {
      return false;
    } else {
      if constexpr (takes_one_by_one<n>) {
        if (tensors.size() == n) {
          spread(fn, tensors, rest..., then, std::make_index_sequence<n>());
          return true;
        }
      }
      return one_by_one<n + 1>(fn, tensors, rest..., then);
    }
  }
  template <class Then, std::size_t... I>
  static void spread(const F& fn, const std::vector<Tensor>& tensors, const Rest&... rest, const Then& then,
                     std::index_sequence<I...>) {
    then(fn(tensors[I]..., rest...));
  }
  static std::string accepted() {
    std::string text;
    const auto add = [&](std::size_t n) { text += (text.empty() ? "" : " or ") + std::to_string(n); };
    [&]<std::size_t... N>(std::index_sequence<N...>) {
      ((takes_one_by_one<N + 1> ? add(N + 1) : void()), ...);
    }
    (std::make_index_sequence<kMostTensors>());
    if (text.empty()) add(static_cast<std::size_t>(declared_count()));
    return text;
  }
};

}  // namespace tapestry::distributed::structure
