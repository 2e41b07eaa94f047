#include "tapestry/nn/optim/adaptive.h"

#include "tapestry/core/error.h"
#include "tapestry/kernels/ops/optim_rules.h"

namespace tapestry::optim::detail {

namespace {

// The parts that differ between the optimizers: Traits<O> has the name, the names of the states, and check(),
// which checks the options that not all optimizers have. run() calls the kernel.
template <class O>
struct Traits;
template <>
struct Traits<RMSpropOptions> {
  static constexpr const char* kName = "RMSprop";
  static std::vector<const char*> states() { return {"square_avg", "grad_avg", "momentum_buffer"}; }
  static bool uses(const RMSpropOptions& o, std::size_t state) {
    return state == 0 || (state == 1 ? o.centered : o.momentum != 0);
  }
  static void check_own(const RMSpropOptions& o) {
    check(o.alpha >= 0, "[RMSprop] alpha must not be negative but is ", o.alpha);
    check(o.momentum >= 0, "[RMSprop] momentum must not be negative but is ", o.momentum);
  }
  static void set(kernels::RmspropArgs& a, const RMSpropOptions& o) {
    a.alpha = o.alpha;
    a.momentum = o.momentum;
    a.centered = o.centered;
  }
  static constexpr const auto& kSlot = kernels::rmsprop_step;
};
template <>
struct Traits<AdagradOptions> {
  static constexpr const char* kName = "Adagrad";
  static std::vector<const char*> states() { return {"sum"}; }
  static void check_own(const AdagradOptions& o) {
    check(o.lr_decay >= 0, "[Adagrad] lr_decay must not be negative but is ", o.lr_decay);
    check(o.initial_accumulator_value >= 0,
          "[Adagrad] initial_accumulator_value must not be negative but is ", o.initial_accumulator_value);
  }
  static void set(kernels::AdagradArgs& a, const AdagradOptions& o) { a.lr_decay = o.lr_decay; }
  static constexpr const auto& kSlot = kernels::adagrad_step;
};
template <>
struct Traits<AdadeltaOptions> {
  static constexpr const char* kName = "Adadelta";
  static std::vector<const char*> states() { return {"square_avg", "acc_delta"}; }
  static void check_own(const AdadeltaOptions& o) {
    check(o.rho >= 0 && o.rho <= 1, "[Adadelta] rho must lie in [0, 1] but is ", o.rho);
  }
  static void set(kernels::AdadeltaArgs& a, const AdadeltaOptions& o) { a.rho = o.rho; }
  static constexpr const auto& kSlot = kernels::adadelta_step;
};
template <>
struct Traits<AdamaxOptions> {
  static constexpr const char* kName = "Adamax";
  static std::vector<const char*> states() { return {"exp_avg", "exp_inf"}; }
  static constexpr const auto& kSlot = kernels::adamax_step;
};
template <>
struct Traits<NAdamOptions> {
  static constexpr const char* kName = "NAdam";
  static constexpr const char* kNumber = "mu_product";
  static std::vector<const char*> states() { return {"exp_avg", "exp_avg_sq"}; }
  static void check_own(const NAdamOptions& o) {
    check(o.momentum_decay >= 0, "[NAdam] momentum_decay must not be negative but is ", o.momentum_decay);
  }
  static void set(kernels::NAdamArgs& a, const NAdamOptions& o) { a.momentum_decay = o.momentum_decay; }
  static constexpr const auto& kSlot = kernels::nadam_step;
};
template <>
struct Traits<RAdamOptions> {
  static constexpr const char* kName = "RAdam";
  static std::vector<const char*> states() { return {"exp_avg", "exp_avg_sq"}; }
  static constexpr const auto& kSlot = kernels::radam_step;
};
template <>
struct Traits<LionOptions> {
  static constexpr const char* kName = "Lion";
  static std::vector<const char*> states() { return {"exp_avg"}; }
  static constexpr const auto& kSlot = kernels::lion_step;
};

}  // namespace

template <class O>
const char* Adaptive<O>::name() const {
  return Traits<O>::kName;
}

template <class O>
void Adaptive<O>::check_options(std::size_t group) const {
  const O& o = this->options(group);
  check(o.lr >= 0, "[", name(), "] lr must not be negative but is ", o.lr);
  check(o.weight_decay >= 0, "[", name(), "] weight_decay must not be negative but is ", o.weight_decay);
  if constexpr (requires { o.eps; })
    check(o.eps >= 0, "[", name(), "] eps must not be negative but is ", o.eps);
  if constexpr (requires { o.betas; })
    for (const double beta : o.betas)
      check(beta >= 0 && beta < 1, "[", name(), "] betas must lie in [0, 1) but are ", o.betas[0], " and ",
            o.betas[1]);
  if constexpr (requires { Traits<O>::check_own(o); }) Traits<O>::check_own(o);
}

template <class O>
std::vector<const char*> Adaptive<O>::state_names() const {
  return Traits<O>::states();
}

template <class O>
bool Adaptive<O>::uses_state(std::size_t group, std::size_t index) const {
  if constexpr (requires { &Traits<O>::uses; }) return Traits<O>::uses(this->options(group), index);
  return true;
}

template <class O>
double Adaptive<O>::initial_state(std::size_t group) const {
  if constexpr (requires(O o) { o.initial_accumulator_value; })
    return this->options(group).initial_accumulator_value;
  return 0;
}

template <class O>
const char* Adaptive<O>::number_name() const {
  if constexpr (requires { Traits<O>::kNumber; }) return Traits<O>::kNumber;
  return nullptr;
}

template <class O>
void Adaptive<O>::update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) {
  const O& o = this->options(group);
  const auto run = [&]<class Args>(const kernels::Slot<Args>& slot) {
    Args args;
    args.tensors = items;
    args.weight_decay = o.weight_decay;
    args.maximize = o.maximize;
    if constexpr (requires { o.eps; }) args.eps = o.eps;
    if constexpr (requires { o.betas; }) {
      args.beta1 = o.betas[0];
      args.beta2 = o.betas[1];
    }
    if constexpr (requires { o.decoupled_weight_decay; }) args.decoupled = o.decoupled_weight_decay;
    if constexpr (requires { Traits<O>::set(args, o); }) Traits<O>::set(args, o);
    slot(device, dtype, args);
  };
  run(Traits<O>::kSlot);
}

template class Adaptive<RMSpropOptions>;
template class Adaptive<AdagradOptions>;
template class Adaptive<AdadeltaOptions>;
template class Adaptive<AdamaxOptions>;
template class Adaptive<NAdamOptions>;
template class Adaptive<RAdamOptions>;
template class Adaptive<LionOptions>;

}  // namespace tapestry::optim::detail
