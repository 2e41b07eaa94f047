#pragma once
// A user's own operation, forward and backward given:
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

#include "tapestry/autograd/tape.h"
#include "tapestry/core/type_name.h"

namespace tapestry::autograd {

/// Passes from a Function's forward to its backward.
class FunctionContext {
 public:
  /// Keeps tensors, inputs or outputs, for backward. Once, in forward.
  void save_for_backward(const std::vector<Tensor>& tensors) { to_save_ = tensors; }
  /// In backward: the i-th tensor kept. Throws IndexError; AutogradError if it was changed in place since.
  Tensor saved(std::size_t i) const;
  /// In backward: whether the gradient of forward's i-th argument is wanted.
  bool needs_input_grad(std::size_t argument) const;
  /// In forward: these outputs have no gradient.
  void mark_non_differentiable(const std::vector<Tensor>& outputs) { non_differentiable_ = outputs; }
  /// Anything else to keep.
  std::any data;

 private:
  template <class>
  friend class Function;
  friend std::vector<Tensor> apply_function(const char*, std::unique_ptr<FunctionContext>,
                                            const std::vector<Tensor>&, std::vector<int>, std::vector<Tensor>,
                                            std::vector<Tensor> (*)(FunctionContext&,
                                                                    const std::vector<Tensor>&));
  void leave_backward() { backward_ = nullptr; }
  std::vector<Tensor> to_save_, non_differentiable_;
  std::vector<SavedTensor> saved_;
  std::vector<int> input_of_argument_;  // -1 for arguments that are no tensors
  const Backward* backward_ = nullptr;  // while backward runs
};

/// Records a Function's outputs. `input_of_argument` maps forward's arguments to `inputs`, -1 for what is no
/// tensor.
std::vector<Tensor> apply_function(const char* name, std::unique_ptr<FunctionContext> ctx,
                                   const std::vector<Tensor>& inputs, std::vector<int> input_of_argument,
                                   std::vector<Tensor> outputs,
                                   std::vector<Tensor> (*backward)(FunctionContext&,
                                                                   const std::vector<Tensor>&));

/// Base of user-defined operations. `forward(ctx, args...)` returns a Tensor or a vector of them, and runs
/// unrecorded; `backward(ctx, grads)` gets one gradient an output (zeros where nothing came back) and returns
/// one an argument of forward, undefined for arguments that are no tensors or need none.
template <class Derived>
class Function {
 public:
  template <class... Args>
  static auto apply(Args&&... args) {
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
                             &Derived::backward);
    if constexpr (std::is_same_v<Result, Tensor>) return outputs[0];
    else return outputs;
  }

 private:
  static const std::string& type_text() {
    static const std::string text = tapestry::type_name(typeid(Derived));
    return text;
  }
  static const char* name() {
    if constexpr (requires { Derived::kName; }) return Derived::kName;
    else return type_text().c_str();
  }
};

}  // namespace tapestry::autograd
