#pragma once
// Runs and records the functions of one tensor that have a row (kernels/ops/pointwise.h).
#include <array>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/composed.h"
#include "tapestry/autograd/ops/internal/own_gradient.h"

namespace tapestry::autograd {

/// The Op of a function's row.
template <class F>
const Op& function_op() {
  return row_op<F>;
}

template <std::size_t kParams>
using Params = std::array<Scalar, kParams>;
template <std::size_t kParams>
using Composed = Tensor (*)(const Tensor& dy, const Tensor& t, const Params<kParams>& params);
// composed<Row>() of the row of the gradient, or null if it has no gradient.
template <class F>
constexpr Composed<F::kParams> composed_or_null() {
  if constexpr (!F::kTwice) return nullptr;
  else
    return [](const Tensor& dy, const Tensor& t, const Params<F::kParams>& params) {
      if constexpr (F::kGradientFrom == kernels::GradientFrom::neither)
        return composed<kernels::GradientRowOf<F>>(dy);
      else
        return std::apply([&](const auto&... p) { return composed<kernels::GradientRowOf<F>>(dy, t, p...); },
                          params);
    };
}

// A row without its type, so that the code below is compiled once for all rows with the same number of
// parameters.
template <class Slot, class GradientSlot, std::size_t kParams>
struct FunctionRow {
  // GradientFrom::neither, known when the code is compiled: the gradient is a function of dy alone.
  static constexpr bool kOfDyAlone = std::is_same_v<GradientSlot, kernels::Slot<kernels::Elementwise<2>>>;
  const Op& op;
  const Slot& slot;
  const GradientSlot& gradient;
  Composed<kParams> composed;
  kernels::Takes takes;
  kernels::GradientFrom gradient_from;
};
template <class F>
auto row_of() {
  const auto& slot = kernels::slot<F>;
  const auto& gradient = kernels::slot<kernels::GradientRowOf<F>>;
  return FunctionRow<std::decay_t<decltype(slot)>, std::decay_t<decltype(gradient)>, F::kParams>{
      function_op<F>(), slot, gradient, composed_or_null<F>(), F::kTakes, F::kGradientFrom};
}

// slot(y, inputs..., params...)
template <class Slot, std::size_t kParams, class... T>
void run(const Slot& slot, const Params<kParams>& params, const Tensor& y, const T&... inputs) {
  if constexpr (kParams == 0) slot(y.device(), y.dtype(), planned(y, inputs...));
  else slot(y.device(), y.dtype(), {planned(y, inputs...), params});
}

template <class Row, std::size_t kParams>
Tensor call(const Row& row, const Params<kParams>& params, const Tensor& x) {
  if (const Autocast cast(row.op, x); cast) return call(row, params, cast(x));
  tapestry::detail::check_defined(row.op.name, x);
  row.op.check_dtype(x.dtype());
  const bool as_f32 = row.takes == kernels::Takes::all_as_f32 && !is_floating(x.dtype());
  const Tensor in = as_f32 ? converted(x, DType::f32) : x;
  Tensor y = result_like(in.sizes(), in.dtype(), {&in});
  run(row.slot, params, y, in);
  if (y.device().is_meta()) [[unlikely]]
    defer_values(row.op.name, y, {x}, [row, params](const Tensor& t, const std::vector<Tensor>& v) {
      t.copy_(call(row, params, v[0]));
    });
  if (!recording(x)) return y;
  if constexpr (Row::kOfDyAlone) {
    record(row.op, y, {&x}, [&gradient = row.gradient, composed = row.composed, params](Backward& g) {
      g.set(0, g.create_graph() ? composed(g.grad(), Tensor(), params) : apply(gradient, g.grad()));
    });
  } else {
    const auto record_with = [&](SavedTensor saved) {
      const auto& gradient = row.gradient;
      const auto composed = row.composed;
      record(row.op, y, {&x}, [saved = std::move(saved), &gradient, composed, params](Backward& g) {
        const Tensor t = g.saved(saved);
        if (g.create_graph()) return g.set(0, composed(g.grad(), t, params));
        Tensor dx = own_gradient(g, t);
        if (!dx.defined()) dx = result_like(t.sizes(), t.dtype(), {&g.grad(), &t});
        run(gradient, params, dx, g.grad(), t);
        g.set(0, std::move(dx));
      });
    };
    record_with(row.gradient_from == kernels::GradientFrom::input ? save(x) : save_output(y));
  }
  return y;
}

template <class Row>
const Tensor& call_in_place(const Row& row, const Tensor& target) {
  tapestry::detail::check_defined(row.op.name, target, "the tensor to change");
  row.op.check_dtype(target.dtype());
  if (row.takes == kernels::Takes::all_as_f32) check_stores(row.op, target, DType::f32);
  in_place(
      row.op, target, {},
      [&] {
        if (target.device().is_meta())
          return defer_change(row.op.name, target, {},
                              [row](const Tensor& t, const std::vector<Tensor>&) { call_in_place(row, t); });
        run(row.slot, Params<0>(), target, target);
      },
      // A gradient that is computed from the input needs the old elements.
      [&](const Tensor& old) {
        const bool copies = row.gradient_from == kernels::GradientFrom::input;
        return call(row, Params<0>(), copies ? tapestry::clone(old) : old);
      });
  return target;
}

/// Computes F(x, params...). There are F::kParams parameters.
template <class F>
Tensor function(const Tensor& x, std::initializer_list<double> params) {
  const auto values = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return Params<F::kParams>{params.begin()[I]...};
  };
  return call(row_of<F>(), values(std::make_index_sequence<F::kParams>()), x);
}
/// Changes target to F(target).
template <class F>
const Tensor& function_in_place(const Tensor& target) {
  return call_in_place(row_of<F>(), target);
}

}  // namespace tapestry::autograd
