#pragma once
#include <functional>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

enum class LineSearch : std::uint8_t { none, strong_wolfe };

struct LBFGSOptions {
  double lr = 1;
  std::int64_t max_iter = 20;    ///< the largest number of iterations per step
  std::int64_t max_eval = 0;     ///< the largest number of calls of the closure per step; 0: max_iter * 5 / 4
  double tolerance_grad = 1e-7;  ///< a step ends if no element of the gradient is larger
  double tolerance_change = 1e-9;  ///< a step ends if neither the loss nor a parameter changes by more
  std::int64_t history_size = 100;
  LineSearch line_search_fn = LineSearch::none;  ///< not part of state_dict()
  bool maximize = false;

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"max_iter", max_iter},
            {"max_eval", max_eval},
            {"tolerance_grad", tolerance_grad},
            {"tolerance_change", tolerance_change},
            {"history_size", history_size},
            {"maximize", maximize}};
  }
};

/// L-BFGS, a quasi-Newton method for small problems and full batches (Nocedal, "Updating quasi-Newton
/// matrices with limited storage", 1980). The line search finds a step that satisfies the strong Wolfe
/// conditions (Nocedal and Wright, "Numerical optimization", 2006, section 3.5). As in PyTorch, there is one
/// parameter group, and the whole state belongs to the first parameter.
///
///   optim::LBFGS optimizer(net.parameters(), {.line_search_fn = optim::LineSearch::strong_wolfe});
///   optimizer.step([&] {
///     optimizer.zero_grad();
///     const Tensor loss = F::mse_loss(net(x), y);
///     loss.backward();
///     return loss;
///   });
///
/// The closure computes the gradients of all replicas and returns the loss. If several processes train, it
/// must return the same loss on all ranks, because the ranks must make the same decisions. Each call of the
/// closure makes the host wait for the device. Throws ValueError if a parameter is sharded, because its
/// products need the vector of all elements.
///
/// f16 and bf16 parameters have masters (LowPrecision::master), which the steps and the line search move; the
/// closure sees their nearest values. All vectors are f32. A pair of changes holds what the closure saw: the
/// change of the rounded parameters and that of the gradient. A pair is not used if its product is below
/// what the rounding of the two gradients can contribute, because its curvature has no correct digit then.
class LBFGS : public OptimizerWith<LBFGSOptions> {
 public:
  using Closure = std::function<Tensor()>;
  explicit LBFGS(std::vector<Parameter> params, const Options& options = {});
  const char* name() const override { return "LBFGS"; }

  /// Updates the parameters, and calls the closure at least once. Returns the loss of the first call. Throws
  /// ValueError if a loss is not one number.
  Tensor step(const Closure& closure);

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override;
  std::vector<StateTensor> state_tensors(int replica = 0) const override;

 protected:
  void check_options(std::size_t group) const override;
  void check_param(const Parameter& param) const override;
  std::vector<const char*> state_names() const override { return {}; }
  /// Throws ValueError, because a step needs a closure.
  void update_tensors(std::size_t group, const nn::ReplicaDevice& replica_device,
                      const std::vector<Update>& updates) override;

 private:
  /// The loss and the flattened gradient at a point.
  struct Point {
    double loss = 0;
    Tensor grad;
  };
  /// A point on the search line: its distance t and the derivative of the loss along the line.
  struct LinePoint : Point {
    double t = 0, slope = 0;
  };
  struct Memory {
    std::int64_t func_evals = 0, n_iter = 0;
    Tensor d;                                // the last direction; all vectors are flat
    double t = 0, H_diag = 1;                // the last step size; the initial inverse Hessian is H_diag * I
    std::vector<Tensor> old_dirs, old_stps;  // changes of the gradient and of the parameters
    std::vector<double> ro;                  // 1 / (old_dirs . old_stps)
    Tensor prev_flat_grad;
    Tensor prev_flat_param;  // of models with f16 or bf16 parameters
    double prev_loss = 0;
  };

  /// Calls the closure. Stores the loss that it returned in `returned` unless that is null.
  Point evaluate(const Closure& closure, Tensor* returned = nullptr);
  Tensor flat(const std::function<Tensor(const Tensor& param)>& part) const;
  Tensor flat_grad() const;
  Tensor flat_param() const;
  double rounding_of_product(const Tensor& s, const Tensor& grad) const;
  void prepare_masters();
  bool has_masters() const;
  Tensor value(std::size_t index) const;
  void publish(std::size_t index) const;
  std::vector<Tensor> copy_params() const;
  void set_params(const std::vector<Tensor>& values) const;
  void move_params(double t, const Tensor& direction) const;
  void update_direction(const Tensor& grad);
  LinePoint search(const Closure& closure, const Point& start, double t, double slope, std::int64_t max_ls);

  Memory memory_;
  std::vector<Tensor> masters_;  // by parameter; f32, undefined for parameters that have none
};

}  // namespace tapestry::optim
