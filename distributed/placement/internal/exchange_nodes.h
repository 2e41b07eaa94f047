#pragma once
// A communication that autograd records as two nodes. The first node returns its input, and the second one
// has the result. In backward the second node sends the gradient and returns the tensor that receives it, and
// the first one waits for that tensor. Nodes that were recorded between the two run meanwhile.
#include <any>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/function.h"
#include "tapestry/autograd/internal/delay.h"
#include "tapestry/distributed/placement/convert.h"

namespace tapestry::distributed::impl {

/// A tensor on its way between ranks: `result` has its values when `work` is done.
struct SentTensor {
  Tensor result;
  Work work = {};
  std::int64_t bytes = 0;  ///< that the timeline shows for it

  // Padded parts leave gaps between the rows of the result, so it is copied.
  template <class Way>
  Tensor wait(const Way& way) const {
    if (!work.state()) return result;
    if (way.traffic) way.traffic->wait(work, result.device(), {.bytes = bytes, .axis = way.group->name()});
    else work.wait();
    return result.contiguous();
  }
};

/// What the two nodes share. A Way is how tensors travel. It has the members `group` and `traffic`, which may
/// be null, and three functions: SentTensor post(x) begins the communication without recording it, Way
/// of_gradient(x) is the way of the gradient of x, and communicates() tells whether ranks exchange anything.
template <class Way>
struct ExchangeNodes {
  Way way, of_gradient;
  SentTensor forward;
  SentTensor backward = {};  // the gradient on its way from the second node to the first, without its result
};

template <class Way>
Tensor exchanged(const Tensor& x, const Way& way);

template <class Way>
struct BeginExchange : autograd::Function<BeginExchange<Way>> {
  static constexpr const char* kName = "begin_exchange";
  using Nodes = std::shared_ptr<ExchangeNodes<Way>>;
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x, const Nodes& nodes) {
    ctx.data = nodes;
    return x;
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const Nodes& nodes = *std::any_cast<Nodes>(&ctx.data);
    SentTensor dx = std::exchange(nodes->backward, {});
    dx.result = grads[0];
    return {dx.wait(nodes->of_gradient), {}};
  }
};

template <class Way>
struct FinishExchange : autograd::Function<FinishExchange<Way>> {
  static constexpr const char* kName = "finish_exchange";
  using Nodes = std::shared_ptr<ExchangeNodes<Way>>;
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x, const Nodes& nodes) {
    ctx.data = nodes;
    const Tensor y = std::exchange(nodes->forward, {}).wait(nodes->way);
    return y.storage() == x.storage() ? x : y;
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const Nodes& nodes = *std::any_cast<Nodes>(&ctx.data);
    if (grad_enabled()) return {exchanged(grads[0], nodes->of_gradient), {}};
    const SentTensor dx = nodes->of_gradient.post(grads[0]);
    if (autograd::DetectAnomaly::active())  // the engine reads the elements
      return {dx.wait(nodes->of_gradient), {}};
    nodes->backward = {{}, dx.work, dx.bytes};
    return {dx.result, {}};
  }
};

/// Posts `x` and records the first node. Before this node waits in backward, the pass computes delayed weight
/// gradients if `fills_wait`. The wait for a leaf's gradient is delayed, because nothing else in the pass
/// needs it. All ranks must mark the same nodes, so sizes do not decide which nodes are marked.
template <class Way>
std::pair<Tensor, std::shared_ptr<ExchangeNodes<Way>>> begin_exchange(const Tensor& x, const Way& way,
                                                                      bool fills_wait = true) {
  const auto nodes =
      std::make_shared<ExchangeNodes<Way>>(ExchangeNodes<Way>{way, way.of_gradient(x), way.post(x)});
  const Tensor begun = BeginExchange<Way>::apply(x, nodes);
  if (!begun.is_same(x) && nodes->of_gradient.communicates()) {  // x itself if nothing is recorded
    if (fills_wait) autograd::mark_wait(begun);
    autograd::delay_leaf_gradients(begun);
  }
  return {begun, nodes};
}

/// Waits, and records the second node.
template <class Way>
Tensor finish_exchange(const Tensor& begun, const std::shared_ptr<ExchangeNodes<Way>>& nodes) {
  return FinishExchange<Way>::apply(begun, nodes);
}

template <class Way>
Tensor exchanged(const Tensor& x, const Way& way) {
  const auto [begun, nodes] = begin_exchange(x, way);
  return finish_exchange(begun, nodes);
}

}  // namespace tapestry::distributed::impl
