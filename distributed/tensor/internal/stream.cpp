#include "tapestry/distributed/tensor/internal/stream.h"

#include <memory>
#include <numeric>
#include <utility>

#include "tapestry/autograd/internal/nested.h"
#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed {

int ResidualStream::dim_of(const Tensor& x) const {
  const int dim = x.dim() + sequence_dim_;
  check(dim >= 0, "[tensor_parallel] the residual stream has shape ", x.sizes(),
        ", and its sequence is dimension ", sequence_dim_,
        "; pass features of shape (..., sequence, features), or another sequence_dim");
  return dim;
}

Tensor ResidualStream::converted(const Tensor& x, Placement from, Placement to,
                                 std::optional<std::int64_t> whole_size) const {
  return convert(x, axis, from, to, {.whole_size = whole_size, .traffic = traffic});
}

void ResidualStream::see(std::int64_t length) {
  if (in_call_) of_call_.see(length);
  of_all_.see(length);
}

std::int64_t ResidualStream::length_of(const Tensor& x, int dim) {
  if (in_call_ && of_call_.is_known()) return of_call_.value;
  // What backward recomputes is outside of the call. It had the length that all calls had, if they had one.
  if (!in_call_ && autograd::pass_in_progress() && of_all_.is_known()) return of_all_.value;
  const std::int64_t own = x.size(dim);
  const std::vector<std::int64_t> parts =
      all_gather_numbers(*axis.group(), {&own, 1}, "tensor_parallel: parts of the sequence");
  const std::int64_t length = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::int64_t expected =
        nn::Region::whole({length}).part(0, static_cast<int>(r), axis.size()).sizes[0];
    check(parts[r] == expected, "[tensor_parallel] rank ", r, " of ", axis.size(), " has ", parts[r],
          " elements of a sequence of ", length, ", but its part is ", expected,
          "; divide the residual stream as nn::Region::part() does");
  }
  see(length);
  return length;
}

namespace {
// While it exists, the lengths of one call are seen.
struct LengthsOfCall {
  bool& in_call;
  OneLength& of_call;
  const bool was_in_call = std::exchange(in_call, true);
  const OneLength before = std::exchange(of_call, {});

  LengthsOfCall(bool& in_call, OneLength& of_call) : in_call(in_call), of_call(of_call) {}
  ~LengthsOfCall() { in_call = was_in_call, of_call = before; }
  LengthsOfCall(const LengthsOfCall&) = delete;
  LengthsOfCall& operator=(const LengthsOfCall&) = delete;
};
}  // namespace

std::shared_ptr<void> ResidualStream::call() { return std::make_shared<LengthsOfCall>(in_call_, of_call_); }
std::shared_ptr<void> TensorParallel::call() const { return stream_->call(); }

Tensor ResidualStream::into_region(const Tensor& x) {
  if (!sequence) return converted(x, Placement::invariant(), Placement::replicated());
  const int dim = dim_of(x);
  const std::int64_t length = length_of(x, dim);
  return converted(x, Placement::sharded(dim), Placement::replicated(), length);
}

Tensor ResidualStream::from_parts(const Tensor& x) {
  if (!sequence) return converted(x, Placement::partial(), Placement::invariant());
  const int dim = dim_of(x);
  see(x.size(dim));
  return converted(x, Placement::partial(), Placement::sharded(dim), x.size(dim));
}

Tensor ResidualStream::gathered(const Tensor& x, std::int64_t whole_size) {
  return converted(x, Placement::sharded(x.dim() - 1), Placement::invariant(), whole_size);
}

Tensor ResidualStream::from_invariant(const Tensor& x) {
  if (!sequence) return x;
  const int dim = dim_of(x);
  see(x.size(dim));
  return converted(x, Placement::invariant(), Placement::sharded(dim), x.size(dim));
}

Tensor ResidualStream::replicated(const Tensor& p) {
  return converted(p, Placement::invariant(), Placement::replicated());
}

namespace {

// While it exists, slots give converted tensors. fully_shard() may have given them full tensors before.
class ConvertedParameters {
 public:
  ConvertedParameters(const std::vector<nn::Parameter>& slots,
                      const std::function<Tensor(const Tensor&)>& convert)
      : replica_(current_context().replica) {
    std::vector<Tensor> converted;  // a conversion may throw; then no slot has changed
    for (const nn::Parameter& slot : slots) converted.push_back(convert(slot));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      before_.emplace_back(slots[i], slots[i].is_full(replica_) ? slots[i].tensor() : Tensor());
      before_.back().first.set_full(replica_, converted[i]);
    }
  }
  ~ConvertedParameters() {
    for (auto& [slot, tensor] : before_) slot.set_full(replica_, tensor);
  }
  ConvertedParameters(const ConvertedParameters&) = delete;
  ConvertedParameters& operator=(const ConvertedParameters&) = delete;

 private:
  const int replica_;
  std::vector<std::pair<nn::TensorSlot, Tensor>> before_;
};

}  // namespace

void convert_parameters_in_calls(nn::Module& module, std::vector<nn::Parameter> parameters,
                                 std::function<Tensor(const Tensor&)> converted) {
  if (parameters.empty()) return;
  module.register_forward_scope(
      [slots = std::move(parameters), convert = std::move(converted)](nn::Module&) -> std::shared_ptr<void> {
        return std::make_shared<ConvertedParameters>(slots, convert);
      });
}

namespace {

// The context outside the outermost scope of own numbers on this thread; null outside all of them.
thread_local constinit const Context* common = nullptr;

// Draws from `generator` in this scope, inside or outside the scopes of own numbers.
class Numbers {
 public:
  Numbers(Generator* generator, bool own)
      : outer_(current_context()),
        before_(std::exchange(common, own ? &outer_ : nullptr)),
        guard_(with(generator)) {}
  ~Numbers() { common = before_; }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

 private:
  static Context with(Generator* generator) {
    Context context = current_context();
    context.generator = generator;
    return context;
  }
  const Context outer_;
  const Context* const before_;
  const ContextGuard guard_;
};

Device device_of_model(const nn::Module& module) {
  const std::vector<nn::Parameter> all = module.root().parameters();
  return all.empty() ? current_context().device : all[0].device();
}

}  // namespace

std::shared_ptr<void> ResidualStream::own_numbers(Device device) {
  if (common) return nullptr;
  const PhiloxRange next = current_generator(device).take(1);
  own_.manual_seed(
      rank_seed(rank_seed(next.seed, static_cast<int>(next.offset & 0x7fffffff)), axis.coordinate()));
  return std::make_shared<Numbers>(&own_, /*own=*/true);
}

void draw_own_numbers(nn::Module& module, const std::shared_ptr<ResidualStream>& stream) {
  module.register_forward_scope([stream](nn::Module& m) -> std::shared_ptr<void> {
    return m.is_training() ? stream->own_numbers(device_of_model(m)) : nullptr;
  });
}

void draw_common_numbers(nn::Module& module) {
  module.register_forward_scope([](nn::Module&) -> std::shared_ptr<void> {
    return common ? std::make_shared<Numbers>(common->generator, /*own=*/false) : nullptr;
  });
}

}  // namespace tapestry::distributed
