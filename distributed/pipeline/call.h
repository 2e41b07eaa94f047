#pragma once
// Calls a function with a list of tensors. The function may take them one by one, or within vectors, tuples,
// pairs, arrays and plain structs.
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/structure.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed::tensor_call {

/// The parameter types of a function or function object that is not overloaded.
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
  using type = std::tuple<>;  // An overloaded function or a template has no known parameter types.
};
template <class F>
requires requires { typename Signature<F>::Parameters; }
struct ParametersOf<F> : std::type_identity<typename Signature<F>::Parameters> {};
template <class F>
requires requires { &F::operator(); }
struct ParametersOf<F> : std::type_identity<typename Signature<decltype(&F::operator())>::Parameters> {};

/// Calls a module with the arguments of its forward().
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

/// Removes the last `n` types of a tuple. The result is void if the tuple has no more than `n`.
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

/// True if fn can be called with sizeof...(I) tensors followed by `rest`.
template <class F, class... Rest, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<const F&, decltype((void(I), std::declval<const Tensor&>()))..., const Rest&...>;
}

/// True if fn can be called with values of the types in Tuple, followed by `rest`.
template <class F, class Tuple, class... Rest>
inline constexpr bool takes_parts = false;
template <class F, class... Parts, class... Rest>
inline constexpr bool takes_parts<F, std::tuple<Parts...>, Rest...> =
    std::is_invocable_v<const F&, const Parts&..., const Rest&...>;

inline constexpr std::size_t kMostTensors = 8;

/// Calls `fn` with `tensors` followed by `rest`. Throws ValueError with the accepted numbers of tensors if fn
/// does not take that many.
template <class F, class... Rest>
class TensorCall {
  // The declared types of the parameters before `rest`, or void if they are unknown.
  using Declared = typename Leading<typename ParametersOf<F>::type, sizeof...(Rest)>::type;
  static constexpr int declared_count() {
    if constexpr (takes_parts<F, Declared, Rest...>) return structure::tensor_count<Declared>();
    else return structure::kNotOnlyTensors;
  }
  template <std::size_t n>
  static constexpr bool takes_one_by_one = takes<F, Rest...>(std::make_index_sequence<n>());
  template <std::size_t... N>
  static constexpr bool takes_some(std::index_sequence<N...>) {
    return (takes_one_by_one<N + 1> || ...);
  }

 public:
  static constexpr bool is_possible =
      takes_some(std::make_index_sequence<kMostTensors>()) || declared_count() != structure::kNotOnlyTensors;

  template <class Then>
  static void run(const F& fn, const std::vector<Tensor>& tensors, const Rest&... rest, const Then& then) {
    static_assert(is_possible,
                  "the function takes other arguments than tensors: wrap it in a function of tensors, "
                  "[&](const Tensor& x, const Tensor& y) { return net.forward({x, y}, 2); }");
    if (one_by_one<1>(fn, tensors, rest..., then)) return;
    if constexpr (declared_count() != structure::kNotOnlyTensors) {
      if (declared_count() == structure::kAnyCount || declared_count() == static_cast<int>(tensors.size())) {
        Declared arguments;
        std::size_t at = 0;
        structure::assign_tensors(arguments, tensors, at);
        return then(std::apply([&](const auto&... a) { return fn(a..., rest...); }, arguments));
      }
    }
    (fail)("[Pipeline] ", tensors.size(), tensors.size() == 1 ? " tensor arrives" : " tensors arrive",
           ", but the function takes ", accepted(), "; change the function or what is passed to it");
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

}  // namespace tapestry::distributed::tensor_call
