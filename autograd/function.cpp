#include "tapestry/autograd/function.h"

#include <algorithm>

namespace tapestry::autograd {

Tensor FunctionContext::saved(std::size_t i) const {
  check<AutogradError>(backward_ != nullptr,
                       "[Function] saved() is for backward; use the tensor itself in forward");
  check<IndexError>(i < saved_.size(), "[", backward_->op_name(), "] saved(", i,
                    ") asked for, but forward saved ", saved_.size(), " tensors");
  return backward_->saved(saved_[i]);
}

bool FunctionContext::needs_input_grad(std::size_t argument) const {
  check<AutogradError>(backward_ != nullptr, "[Function] needs_input_grad() is for backward");
  check<IndexError>(argument < input_of_argument_.size(), "[", backward_->op_name(), "] needs_input_grad(",
                    argument, ") asked for, but forward has ", input_of_argument_.size(), " arguments");
  const int input = input_of_argument_[argument];
  return input >= 0 && backward_->needs(static_cast<std::uint32_t>(input));
}

std::vector<Tensor> apply_function(
    const char* name, std::unique_ptr<FunctionContext> ctx, const std::vector<Tensor>& inputs,
    std::vector<int> input_of_argument, std::vector<Tensor> outputs,
    std::vector<Tensor> (*backward)(FunctionContext&, const std::vector<Tensor>&), bool once_differentiable) {
  const auto same_as = [](const Tensor& t) { return [&t](const Tensor& o) { return o.is_same(t); }; };
  if (!recording(std::span<const Tensor>(inputs))) return outputs;

  // If forward returns an input as an output, the output becomes a new tensor. Recording the input itself
  // would replace its own history.
  std::vector<const Tensor*> out;
  for (Tensor& t : outputs) {
    if (t.defined() && std::any_of(inputs.begin(), inputs.end(), same_as(t))) t = t.detach();
    out.push_back(&t);
  }
  for (const Tensor& t : ctx->to_save_) {
    const auto output = std::find_if(outputs.begin(), outputs.end(), same_as(t));
    const bool is_output = t.defined() && output != outputs.end();
    ctx->saved_.push_back(is_output ? save_output(t, static_cast<std::uint32_t>(output - outputs.begin()))
                                    : save(t));
  }
  ctx->to_save_.clear();
  ctx->input_of_argument_ = std::move(input_of_argument);
  ctx->autocast_ = current_context().autocast;

  std::vector<const Tensor*> in;
  for (const Tensor& t : inputs) in.push_back(&t);
  const auto count = static_cast<std::uint32_t>(outputs.size());
  record(
      name, std::span<const Tensor* const>(out), std::span<const Tensor* const>(in),
      [ctx = std::move(ctx), backward, count](Backward& b) {
        std::vector<Tensor> grads;
        for (std::uint32_t i = 0; i < count; ++i) grads.push_back(b.grad_or_zeros(i));
        struct Entered {
          FunctionContext& ctx;
          ~Entered() { ctx.leave_backward(); }
        } entered{*ctx};
        ctx->backward_ = &b;
        Context as_in_forward = current_context();
        as_in_forward.autocast = ctx->autocast_;
        const ContextGuard guard(as_in_forward);
        const std::vector<Tensor> results = backward(*ctx, grads);
        const std::vector<int>& input_of = ctx->input_of_argument_;
        check<AutogradError>(results.size() == input_of.size(), "[", b.op_name(), "] backward returned ",
                             results.size(), " gradients; expected one for each of forward's ",
                             input_of.size(), " arguments (undefined where there is none)");
        for (std::size_t a = 0; a < results.size(); ++a)
          if (input_of[a] >= 0 && b.needs(static_cast<std::uint32_t>(input_of[a])))
            b.set(static_cast<std::uint32_t>(input_of[a]), results[a]);
      },
      !once_differentiable);
  // An output that shares storage with an input is marked as a view. A recorded in-place change of the output
  // would be missing from the input's history, so it must be refused.
  for (const Tensor& t : outputs)
    if (t.defined() && is_floating(t.dtype()) &&
        std::any_of(inputs.begin(), inputs.end(),
                    [&](const Tensor& input) { return input.defined() && input.storage() == t.storage(); }))
      mark_view(t);
  return outputs;
}

}  // namespace tapestry::autograd
