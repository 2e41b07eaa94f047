#pragma once
// Mixtures of experts: a router sends each token to a few of many feed-forward networks.
//
//   nn::MixtureOfExperts moe({.embed_dim = 64, .hidden_dim = 128, .num_experts = 8, .top_k = 2});
//   Tensor loss = mse_loss(moe(x), target) + moe.auxiliary_loss();
//
// distributed::expert_parallel() divides the experts among ranks, which then exchange the tokens.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/router_balance.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// How the router makes scores of its logits.
enum class RouterScore : std::uint8_t {
  softmax,  ///< over all experts, as in Switch, Mixtral and OLMoE
  sigmoid,  ///< of each expert by itself, as in DeepSeek-V3
};

/// What keeps the router from sending most tokens to few experts.
enum class RouterBalance : std::uint8_t {
  none,
  auxiliary_loss,  ///< load_balancing_loss(), which the program adds to its loss
  bias,            ///< a number per expert that is added to its scores when experts are chosen, and that
                   ///< update_router_bias() changes (Wang et al. 2024, "Auxiliary-loss-free load balancing")
};

struct RouterOptions {
  using Layer = class TopKRouter;
  std::int64_t embed_dim = 0, num_experts = 0;
  std::int64_t top_k = 2;  ///< experts of a token
  RouterScore score = RouterScore::softmax;
  bool norm_topk_prob = true;  ///< divides the weights of a token by their sum
  double route_scale = 1;      ///< multiplies all weights
  bool bias = false;           ///< see RouterBalance::bias
};

/// Where T tokens go.
struct Routing {
  Tensor logits;   ///< (T, num_experts), f32, or f64 for tokens of f64
  Tensor scores;   ///< (T, num_experts)
  Tensor experts;  ///< (T, top_k), i64: the experts of each token, the best first
  Tensor weights;  ///< (T, top_k): the factors of their results
  /// i64 (num_experts): how many tokens chose each expert. A token that is dropped later counts.
  Tensor counts() const;
};

/// Chooses the top_k experts of each row of logits (T, num_experts) by score + bias. `bias` (num_experts) may
/// be undefined, and gets no gradient. The weights are the scores without the bias. Of equal scores, the
/// first expert wins. Logits of 16 bits are converted to f32 first.
Routing route_tokens(const Tensor& logits, const RouterOptions& options, const Tensor& bias = {});

/// The rows of the experts: those of expert 0 first, and of one expert in the order of the tokens.
struct Dispatch {
  Tensor tokens;  ///< (rows), i64: the token of each row
  Tensor places;  ///< (rows), i64: its place in the flattened weights (T * top_k)
  Tensor counts;  ///< (num_experts), i64: the rows of each expert
};
/// Sorts the tokens by expert. With a capacity, an expert gets at most so many rows, and those with the
/// smallest weights are dropped; of equal weights, the last tokens are. (That is Megatron-LM's policy
/// "probs".) The host waits for a GPU if there is a capacity.
Dispatch dispatch_tokens(const Routing& routing, std::optional<std::int64_t> capacity = {});
/// The results of all tokens, (T, features), in y's dtype: the sum over a token's rows of y (rows, features),
/// times their weights. A token without rows gets 0. The sum is taken in the dtype of the weights.
Tensor combine_tokens(const Tensor& y, const Routing& routing, const Dispatch& dispatch);

/// num_experts times the sum of f_i P_i over all experts i. f_i is the part of all choices that chose expert
/// i. P_i is the mean of expert i's score over the tokens, where each row of scores (T, num_experts) is first
/// divided by its sum. The result is 1 if all experts are chosen equally often, and 0 if there are no
/// tokens. `counts` is Routing::counts(), and has no gradient. Scores of 16 bits are converted to f32 first,
/// and so is the loss.
/// Source: Fedus et al. 2021, "Switch Transformers", for top_k choices divided by top_k.
Tensor load_balancing_loss(const Tensor& scores, const Tensor& counts);
/// The mean of logsumexp(logits)^2 over tokens; 0 if there are none. In f32 for logits of 16 bits. Source:
/// Zoph et al. 2022, "ST-MoE".
Tensor router_z_loss(const Tensor& logits);

/// The router: x W^T for tokens x (T, embed_dim). Computes in f32, also under autocast and with weights of 16
/// bits, and in f64 for tokens of f64. Parameter: weight (num_experts, embed_dim), which starts as Linear's.
/// Buffer: expert_bias (num_experts), 0 at first, if options.bias.
class TopKRouter : public Module {
 public:
  using Options = RouterOptions;
  /// Throws ValueError unless the sizes are positive and top_k is at most num_experts.
  explicit TopKRouter(const Options& options);
  /// Returns the logits (T, num_experts).
  Tensor forward(const Tensor& x) override;
  /// route_tokens() with the options and the bias of this router.
  Routing route(const Tensor& logits) const;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Buffer& expert_bias;
};

struct GroupedExpertsOptions {
  using Layer = class GroupedExperts;
  std::int64_t num_experts = 0, embed_dim = 0, hidden_dim = 0;
};

/// SwiGLU networks, one per expert, without biases: down(silu(gate(x)) up(x)), as grouped_mm(). Parameters:
/// gate_up_proj (num_experts, 2 hidden_dim, embed_dim), of which the first hidden_dim rows are gate's, and
/// down_proj (num_experts, embed_dim, hidden_dim). Each starts as Linear's. Under autocast the products
/// compute in the low dtype. An expert without rows has the gradient 0.
class GroupedExperts : public Callable<GroupedExperts> {
 public:
  using Options = GroupedExpertsOptions;
  explicit GroupedExperts(const Options& options);
  using Module::forward;
  /// x (rows, embed_dim) is sorted by expert: the rows of expert 0 come first. `counts`, integers
  /// (num_experts), says how many rows each expert has. The host reads `counts`, and waits for the GPU if
  /// they are on one. Calls meanwhile() once, if it is given. If ranks divide the experts, x travels then.
  Tensor forward(const Tensor& x, const Tensor& counts, const std::function<void()>& meanwhile = {});
  /// The same without divided_forward: of the experts whose weights this rank has.
  Tensor products(const Tensor& x, const Tensor& counts);
  std::string options_text() const override;

  const Options options;
  Parameter &gate_up_proj, &down_proj;
  /// If set, forward() is this function: ranks divide the experts (distributed::expert_parallel()), and
  /// exchange the rows of x. Its arguments are those of forward(). It must call meanwhile() once, if it is
  /// given: a MixtureOfExperts computes its shared expert there, and throws ValueError otherwise.
  std::function<Tensor(const Tensor& x, const Tensor& counts, const std::function<void()>& meanwhile)>
      divided_forward;
};

/// A SwiGLU network without biases, for all tokens.
class SharedExpert : public Module {
 public:
  SharedExpert(std::int64_t embed_dim, std::int64_t hidden_dim);
  Tensor forward(const Tensor& x) override;
  Linear &gate_proj, &up_proj, &down_proj;
};

struct MixtureOfExpertsOptions {
  using Layer = class MixtureOfExperts;
  std::int64_t embed_dim = 0, hidden_dim = 0, num_experts = 0;
  std::int64_t top_k = 2;
  RouterScore score = RouterScore::softmax;
  bool norm_topk_prob = true;  ///< divides the weights of a token by their sum
  double route_scale = 1;      ///< multiplies all weights
  /// The hidden size of a network that all tokens pass through, in addition; 0 for none.
  std::int64_t shared_hidden_dim = 0;
  /// An expert gets at most ceil(factor * T * top_k / num_experts) of a call's T tokens (dispatch_tokens()).
  /// Without it, no token is dropped.
  std::optional<double> capacity_factor = {};
  RouterBalance balance = RouterBalance::none;
  double aux_loss_coef = 0.01;      ///< factor of the loss of RouterBalance::auxiliary_loss
  double z_loss_coef = 0;           ///< factor of router_z_loss(), with any balance
  double bias_update_rate = 0.001;  ///< of RouterBalance::bias
};

/// A mixture of experts (Shazeer et al. 2017): each token passes through the top_k of num_experts SwiGLU
/// networks that the router chooses, and the results are added with the router's weights. Children: gate
/// (TopKRouter), experts (GroupedExperts), and shared_expert if there is one.
///
/// On several ranks or replicas, each part of the batch has its own auxiliary loss and its own capacities, as
/// in Megatron-LM, so that the results are not those of one process with the whole batch.
class MixtureOfExperts : public Callable<MixtureOfExperts>, public BiasBalanced {
 public:
  using Options = MixtureOfExpertsOptions;
  /// Throws ValueError for sizes and factors that are out of range.
  explicit MixtureOfExperts(const Options& options);

  /// x is (..., embed_dim), with any number of tokens, also none.
  Tensor forward(const Tensor& x) override { return forward(x, nullptr); }
  /// Also stores where the tokens went, for losses over several layers; not in the recomputation of
  /// checkpoint().
  Tensor forward(const Tensor& x, Routing* routing);

  /// Returns the losses of the last call in training mode on this replica, times their factors: add it to the
  /// loss. Each call of forward() replaces it, and this function takes it away; without one it is 0.
  Tensor auxiliary_loss();
  /// i64 (num_experts): how many tokens chose each expert in training mode since update_router_bias(), over
  /// all replicas.
  Tensor tokens_per_expert() const override;
  bool has_router_bias() const override { return options.balance == RouterBalance::bias; }
  /// Adds bias_update_rate * (s - mean(s)) to the bias, where s = sign(mean(counts) - counts), and begins to
  /// count anew. Call it before each step of the optimizer; a distributed::Strategy does it itself. A bias of
  /// 16 bits becomes f32, because the steps are too small for 16 bits.
  ///
  /// `counts` are tokens_per_expert() of this process if there is no argument. If other ranks train other
  /// samples, or other positions of the same ones (the axis context), pass the sum over all these ranks:
  /// distributed::update_router_bias() does it. The layer cannot see that DistributedDataParallel or
  /// context_parallel() copies it. Without the sum, each rank's bias moves by its own counts, and the copies
  /// differ. If buffers are broadcast, all copies move by the counts of rank 0 alone. Throws ValueError
  /// unless balance is `bias`. Without an argument, throws ValueError also if ranks divide parameters of the
  /// layer.
  void update_router_bias(const Tensor& counts = {}) override;
  std::string options_text() const override;

  const Options options;
  TopKRouter& gate;
  GroupedExperts& experts;
  SharedExpert* const shared_expert;  ///< null if shared_hidden_dim is 0

 private:
  PerReplica<Tensor> auxiliary_loss_, tokens_per_expert_;
};

}  // namespace tapestry::nn
