#include "tapestry/autograd/checkpoint.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "tapestry/autograd/internal/graph_task.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"

namespace tapestry::autograd {
namespace {

thread_local bool recomputing_now = false;

// Ends a recomputation early. It is thrown through the user's function, so it does not derive from
// std::exception, which that function may catch.
struct EarlyStop {
  const void* repetition;
};

// An input of the function. If saved-tensor hooks are active, it is saved through them; otherwise it is kept
// together with its version, to detect in-place changes.
class Input {
 public:
  explicit Input(const Tensor& t) {
    if (!t.defined()) return;
    sizes_ = t.sizes(), dtype_ = t.dtype(), device_ = t.device();
    format_ = t.memory_format();
    dense_ = t.is_contiguous(format_);
    needs_grad_ = needs_grad(t);
    NoGradGuard no_grad;
    if (const SavedTensorHooks* hooks = SavedTensorHooks::current()) {
      packed_ = hooks->pack(t.detach());
      unpack_ = hooks->unpack;
    } else {
      tensor_ = t.detach();
      version_ = t.version();
    }
  }

  bool defined() const { return tensor_.defined() || unpack_; }
  Device device() const { return device_; }

  // Returns a new leaf tensor with the elements of input `i`. The recomputation uses it in place of the
  // input.
  Tensor restored(std::size_t i) const {
    if (!defined()) return {};
    Tensor t = tensor_;
    if (unpack_) {
      t = unpack_(packed_);
      tapestry::detail::check_defined("checkpoint", t, "what the unpack hook of saved tensors returned");
      check<AutogradError>(t.sizes() == sizes_ && t.dtype() == dtype_ && t.device() == device_,
                           "[checkpoint] the unpack hook of saved tensors returned a tensor of ", t.dtype(),
                           " ", t.sizes(), " on ", t.device(), " for input ", i,
                           "; expected what was packed, ", dtype_, " ", sizes_, " on ", device_);
      if (dense_) t = contiguous(t, format_);
    } else {
      check<AutogradError>(
          t.version() == version_, "[checkpoint] input ", i, ", a ", dtype_, " tensor of shape ", sizes_,
          ", was changed in place after the forward pass (version ", t.version(), ", kept at version ",
          version_, "), so backward cannot recompute from it; change a clone() of it");
    }
    t = t.detach();
    t.set_requires_grad(needs_grad_);
    return t;
  }

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
  std::shared_ptr<void> packed_;  // if saved-tensor hooks were active; tensor_ is undefined then
  SavedTensorHooks::Unpack unpack_;
  Shape sizes_;
  DType dtype_ = DType::f32;
  Device device_;
  MemoryFormat format_ = MemoryFormat::contiguous;
  bool dense_ = false, needs_grad_ = false;
};

// The states of the random generators at the call of checkpoint().
class RngState {
 public:
  using State = std::array<std::uint64_t, 2>;

  static RngState now() {
    RngState p;
    if (const Generator* own = current_context().generator) {
      p.own_ = own->state();
      return p;
    }
    for (int type = 0; type < kNumDeviceTypes; ++type)
      for (int i = 0; i < device_count(static_cast<DeviceType>(type)); ++i) {
        const Device device(static_cast<DeviceType>(type), i);
        p.defaults_.emplace_back(device, default_generator(device).state());
      }
    return p;
  }
  const std::optional<State>& own() const { return own_; }
  const std::vector<std::pair<Device, State>>& defaults() const { return defaults_; }

 private:
  std::optional<State> own_;  // the state of the context's generator, if the context had one
  std::vector<std::pair<Device, State>> defaults_;
};

// Rewinds the generators to these states until the guard is destroyed. The context's generator may not exist
// any more, so a new one in the same state replaces it. A default generator is rewound only if the function
// uses its device (`uses(device)`), because other threads may draw from the generators of other devices.
class RngStateGuard {
 public:
  template <class Uses>
  RngStateGuard(const RngState& positions, const Uses& uses, Context& context) {
    context.generator = nullptr;
    if (positions.own()) {
      own_.set_state(*positions.own());
      context.generator = &own_;
    }
    for (const auto& [device, state] : positions.defaults()) {
      if (!uses(device)) continue;
      outer_.emplace_back(device, default_generator(device).state());
      default_generator(device).set_state(state);
    }
  }
  ~RngStateGuard() {
    for (const auto& [device, state] : outer_) default_generator(device).set_state(state);
  }
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  Generator own_;
  std::vector<std::pair<Device, RngState::State>> outer_;
};

class RecomputingGuard {
 public:
  RecomputingGuard() : outer_(std::exchange(recomputing_now, true)) {}
  ~RecomputingGuard() { recomputing_now = outer_; }
  RecomputingGuard(const RecomputingGuard&) = delete;
  RecomputingGuard& operator=(const RecomputingGuard&) = delete;

 private:
  const bool outer_;
};

}  // namespace

bool recomputing() { return recomputing_now; }

namespace impl {

// The state of one checkpoint() call. The graph holds a token for each tensor that the function saved, and
// the tokens own this object, so it is destroyed when the last node of the function has run or is destroyed.
class Recomputation : public std::enable_shared_from_this<Recomputation> {
 public:
  Recomputation(std::unique_ptr<RepeatableCall> call, const std::vector<Tensor>& inputs,
                const CheckpointOptions& options)
      : call_(std::move(call)),
        options_(options),
        context_(current_context()),
        inputs_(inputs.begin(), inputs.end()) {
    if (options.preserve_rng_state) random_ = RngState::now();
  }

  // pack() and unpack() are the saved-tensor hooks during the function's first run. pack() stores the
  // properties of `t`, such as its shape, but not its elements.
  std::shared_ptr<void> pack(const Tensor& t);
  static Tensor unpack(const std::shared_ptr<void>& token);
  // Must be called when the first run of the function has ended. From then on, saved_ describes all tensors
  // that the function saves.
  void complete() { complete_ = true; }

 private:
  struct Token {
    std::shared_ptr<Recomputation> of;
    std::size_t index;
    ~Token() { of->drop(index, /*for_good=*/true); }
  };
  // A tensor that the first run saved.
  struct Saved {
    Shape sizes;
    DType dtype;
    Device device;
    const Storage* storage;  // only for comparison; it may not exist any more
    std::uint32_t version;
    bool wanted = true;  // the current pass still needs the tensor
    bool alive = true;   // the token still exists
    Tensor tensor = {};  // the recomputed tensor
    std::uint32_t tensor_version = 0;
  };
  struct Found {
    Tensor tensor;
    std::uint32_t version = 0;  // the version when the recomputation saved it
  };

  Tensor get(std::size_t index);
  void enter_pass(GraphTask& pass);
  void drop(std::size_t index, bool for_good);
  std::vector<Found> compute_again(const std::vector<bool>& missing, std::size_t last);
  void compare(const Tensor& t, std::size_t index) const;
  bool uses(Device device) const;

  const std::unique_ptr<RepeatableCall> call_;
  const CheckpointOptions options_;
  const Context context_;
  const std::vector<Input> inputs_;
  RngState random_;
  bool complete_ = false;
  // Two threads may run backward through different outputs of the function, if their graphs share nothing
  // else. The mutex is never held while the function runs.
  std::mutex mutex_;
  std::vector<Saved> saved_;
  std::uint64_t pass_ = 0;  // the id of the pass that the recomputed tensors belong to
};

std::shared_ptr<void> Recomputation::pack(const Tensor& t) {
  const std::lock_guard lock(mutex_);
  saved_.push_back({t.sizes(), t.dtype(), t.device(), t.storage().get(), t.version()});
  return std::shared_ptr<Token>(new Token{shared_from_this(), saved_.size() - 1});
}

Tensor Recomputation::unpack(const std::shared_ptr<void>& token) {
  const Token& t = *static_cast<const Token*>(token.get());
  return t.of->get(t.index);
}

Tensor Recomputation::get(std::size_t index) {
  GraphTask& pass = *GraphTask::current();
  std::unique_lock lock(mutex_);
  enter_pass(pass);
  if (!saved_[index].tensor.defined()) {
    std::vector<bool> missing(saved_.size());
    std::size_t last = index;
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      const Saved& s = saved_[i];
      missing[i] = i == index || (s.wanted && s.alive && !s.tensor.defined());
      if (missing[i]) last = std::max(last, i);
    }
    lock.unlock();
    const std::vector<Found> found = compute_again(missing, last);
    lock.lock();
    enter_pass(pass);
    for (std::size_t i = 0; i < found.size(); ++i)
      if (saved_[i].alive && found[i].tensor.defined())
        saved_[i].tensor = found[i].tensor, saved_[i].tensor_version = found[i].version;
  }
  const Tensor& t = saved_[index].tensor;
  const std::uint32_t version = saved_[index].tensor_version;
  check<AutogradError>(t.version() == version, "[checkpoint] a saved ", t.dtype(), " tensor of shape ",
                       t.sizes(), " was changed in place after it had been saved (version ", t.version(),
                       ", saved at version ", version,
                       "); change a clone() of it, or use the out-of-place operation");
  pass.after_node.push_back([of = shared_from_this(), index] { of->drop(index, /*for_good=*/false); });
  return t;
}

// Drops the recomputed tensors of an earlier pass, and registers a callback that drops those of this pass at
// its end.
void Recomputation::enter_pass(GraphTask& pass) {
  if (pass_ == pass.pass().id) return;
  pass_ = pass.pass().id;
  for (Saved& s : saved_) s.tensor = Tensor(), s.wanted = true;
  pass.callbacks.push_back([of = weak_from_this(), id = pass_] {
    const std::shared_ptr<Recomputation> self = of.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->pass_ == id)
      for (Saved& s : self->saved_) s.tensor = Tensor();
  });
}

void Recomputation::drop(std::size_t index, bool for_good) {
  const std::lock_guard lock(mutex_);
  Saved& s = saved_[index];
  s.tensor = Tensor();
  s.wanted = false;
  if (for_good) s.alive = false;
}

// Runs the function again and returns the tensors that it saves at the indices marked in `missing`. With
// early_stop, it stops after index `last`.
std::vector<Recomputation::Found> Recomputation::compute_again(const std::vector<bool>& missing,
                                                               std::size_t last) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < inputs_.size(); ++i) inputs.push_back(inputs_[i].restored(i));

  std::vector<Found> found(missing.size());
  std::size_t count = 0;
  {
    Context context = context_;
    const RngStateGuard replay(
        random_, [&](Device d) { return uses(d); }, context);
    const ContextGuard context_guard(context);
    const RecomputingGuard recomputing_guard;
    const SavedTensorHooks hooks(
        [&](const Tensor& t) -> std::shared_ptr<void> {
          const std::size_t index = count++;
          if (index < missing.size()) {
            compare(t, index);
            if (missing[index]) found[index] = {t, t.version()};
            if (index == last && options_.early_stop) throw EarlyStop{&found};
          }
          // Keep the tensor, because the function itself may run a backward pass that reads it.
          return std::make_shared<Tensor>(t);
        },
        [](const std::shared_ptr<void>& t) { return *static_cast<const Tensor*>(t.get()); });
    try {
      call_->repeat(inputs);
    } catch (const EarlyStop& stop) {
      if (stop.repetition != &found) throw;
    }
  }
  const bool all = count > last, more = complete_ && count > missing.size();
  check<AutogradError>(
      all && !more, "[checkpoint] the recomputation in backward saved ", count,
      " tensors; the forward pass saved ", missing.size(),
      "; make the function compute the same in both runs: keep everything it depends on unchanged");
  return found;
}

void Recomputation::compare(const Tensor& t, std::size_t index) const {
  const Saved& s = saved_[index];
  check<AutogradError>(
      t.sizes() == s.sizes && t.dtype() == s.dtype && t.device() == s.device,
      "[checkpoint] the recomputation in backward saved as tensor ", index, " a ", t.dtype(), " ", t.sizes(),
      " on ", t.device(), "; in the forward pass it was a ", s.dtype, " ", s.sizes, " on ", s.device,
      "; make the function compute the same in both runs: keep everything it depends on unchanged");
  // Throws if the function uses a tensor from outside, such as a parameter, that was changed in place between
  // the two runs. Such a tensor has the same storage but another version. A tensor that the function creates
  // may get the same storage address by chance, but it has the same version in both runs.
  check<AutogradError>(t.storage().get() != s.storage || t.version() == s.version,
                       "[checkpoint] the function uses a ", s.dtype, " tensor of shape ", s.sizes,
                       " that was changed in place after the forward pass (version ", t.version(),
                       ", used at version ", s.version,
                       "), so backward cannot recompute with it; run backward before the change");
}

bool Recomputation::uses(Device device) const {
  const auto here = [device](const auto& t) { return t.device == device; };
  return context_.device == device || std::any_of(saved_.begin(), saved_.end(), here) ||
         std::any_of(inputs_.begin(), inputs_.end(),
                     [device](const Input& i) { return i.defined() && i.device() == device; });
}

CheckpointScope::CheckpointScope(std::unique_ptr<RepeatableCall> call, const std::vector<Tensor>& inputs,
                                 const CheckpointOptions& options)
    : recomputation_(std::make_shared<Recomputation>(std::move(call), inputs, options)),
      hooks_([r = recomputation_.get()](const Tensor& t) { return r->pack(t); }, &Recomputation::unpack) {}

CheckpointScope::~CheckpointScope() { recomputation_->complete(); }

}  // namespace impl
}  // namespace tapestry::autograd
