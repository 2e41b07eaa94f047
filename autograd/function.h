#pragma once
// Function: a user-defined operation with its own forward and backward, as torch.autograd.Function.
//
//   struct Cube : autograd::Function<Cube> {
//     static constexpr const char* kName = "cube";
//     static Tensor forward(FunctionContext& ctx, const Tensor& x) {
//       ctx.save_for_backward({x});
//       return x * x * x;
//     }
//     static std::vector<Tensor> backward(FunctionContext& ctx, const std::vector<Tensor>& grads) {
//       return {grads[0] * 3 * ctx.saved(0) * ctx.saved(0)};
//     }
//   };
//   Tensor y = Cube::apply(x);
#include <any>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/type_name.h"

namespace tapestry::autograd {

/// Carries saved tensors and other data from a Function's forward to its backward.
class FunctionContext {
 public:
  /// For forward: saves inputs or outputs for backward. A second call replaces the first.
  void save_for_backward(const std::vector<Tensor>& tensors) { to_save_ = tensors; }
  /// For backward: the i-th saved tensor. Throws IndexError if there is no such tensor, and AutogradError if
  /// it was changed in place after forward.
  Tensor saved(std::size_t i) const;
  /// For backward: true if the gradient of this argument of forward is needed.
  bool needs_input_grad(std::size_t argument) const;
  /// Other data for backward.
  std::any data;

 private:
  AutocastState autocast_;
  template <class>
  friend class Function;
  friend std::vector<Tensor> apply_function(
      const char*, std::unique_ptr<FunctionContext>, const std::vector<Tensor>&, std::vector<int>,
      std::vector<Tensor>, std::vector<Tensor> (*)(FunctionContext&, const std::vector<Tensor>&), bool);
  void leave_backward() { backward_ = nullptr; }
  std::vector<Tensor> to_save_;
  std::vector<SavedTensor> saved_;
  std::vector<int> input_of_argument_;  // -1 for arguments that are not tensors
  const Backward* backward_ = nullptr;  // null except while backward runs
};

/// Records the outputs of a Function. `input_of_argument` maps the arguments of forward to indices of
/// `inputs`, or to -1 for an argument that is not a tensor.
std::vector<Tensor> apply_function(const char* name, std::unique_ptr<FunctionContext> ctx,
                                   const std::vector<Tensor>& inputs, std::vector<int> input_of_argument,
                                   std::vector<Tensor> outputs,
                                   std::vector<Tensor> (*backward)(FunctionContext&,
                                                                   const std::vector<Tensor>&),
                                   bool once_differentiable = false);

/// The base class of user-defined operations. `forward(ctx, args...)` returns a Tensor or a vector of
/// Tensors; the operations in it are not recorded. `backward(ctx, grads)` gets one gradient per output, which
/// is zero if the output was not used. It returns one gradient per argument of forward: an undefined tensor
/// for an argument that is not a tensor or needs no gradient.
///
/// Under AutocastGuard, the operations in forward and in backward are cast as everywhere; backward runs with
/// the autocast state of forward, as with torch.amp.custom_fwd and custom_bwd. A Derived with `static
/// constexpr DType kCastInputs = DType::f32;` gets its floating inputs (except f64) in that dtype instead,
/// and runs both functions with autocast off. Outside of an AutocastGuard kCastInputs does nothing.
///
/// In a pass with create_graph, the operations in backward are recorded. A backward that computes gradients
/// in another way, such as by data(), would give wrong gradients of gradients. It must say so by `static
/// constexpr bool kOnceDifferentiable = true;`, and such a pass then throws AutogradError.
template <class Derived>
class Function {
 public:
  template <class... Args>
  static auto apply(Args&&... args) {
    if constexpr (requires { Derived::kCastInputs; })
      if (current_context().autocast.active()) {
        const auto cast = [](auto&& argument) -> decltype(auto) {
          using Argument = decltype(argument);
          if constexpr (std::is_same_v<std::decay_t<Argument>, Tensor>)
            return impl::autocast_input(argument, Derived::kCastInputs);
          else return std::forward<Argument>(argument);
        };
        // The inputs are cast before the guard turns autocast off, because only an active one casts them.
        const auto run = [](auto&&... casted) {
          const AutocastGuard off(false);
          return apply_as_is(std::forward<decltype(casted)>(casted)...);
        };
        return run(cast(std::forward<Args>(args))...);
      }
    return apply_as_is(std::forward<Args>(args)...);
  }

 private:
  template <class... Args>
  static auto apply_as_is(Args&&... args) {
    auto ctx = std::make_unique<FunctionContext>();
    std::vector<Tensor> inputs;
    std::vector<int> input_of_argument;
    auto note = [&](const auto& argument) {
      if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, Tensor>) {
        input_of_argument.push_back(static_cast<int>(inputs.size()));
        inputs.push_back(argument);
      } else {
        input_of_argument.push_back(-1);
      }
    };
    (note(args), ...);
    auto forward = [&] {
      NoGradGuard no_grad;
      return Derived::forward(*ctx, std::forward<Args>(args)...);
    };
    using Result = decltype(forward());
    Result result = forward();
    std::vector<Tensor> outputs;
    if constexpr (std::is_same_v<Result, Tensor>) outputs.push_back(std::move(result));
    else outputs = std::move(result);
    outputs = apply_function(name(), std::move(ctx), inputs, std::move(input_of_argument), std::move(outputs),
                             &Derived::backward, once_differentiable());
    if constexpr (std::is_same_v<Result, Tensor>) return outputs[0];
    else return outputs;
  }

  static constexpr bool once_differentiable() {
    if constexpr (requires { Derived::kOnceDifferentiable; }) return Derived::kOnceDifferentiable;
    else return false;
  }
  static const char* name() {
    if constexpr (requires { Derived::kName; }) return Derived::kName;
    else return tapestry::detail::type_name_of<Derived>().c_str();
  }
};

}  // namespace tapestry::autograd
