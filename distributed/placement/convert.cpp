#include "tapestry/distributed/placement/convert.h"

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/placement/internal/exchange_nodes.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed {
namespace {

using Kind = Placement::Kind;
using Collective = ConversionTraffic::Kind;
using impl::SentTensor;

bool is_equal(Placement p) { return p.is(Kind::invariant) || p.is(Kind::replicated); }

// A conversion between the ranks of `group`. `whole_size` is the size of the dimension that `from` divides,
// or -1 if all ranks have equal parts.
struct Job {
  std::shared_ptr<ProcessGroup> group;
  Placement from, to;
  std::int64_t whole_size = -1;
  std::shared_ptr<ConversionTraffic> traffic = {};

  void count(ConversionTraffic::Kind kind, std::size_t bytes) const {
    if (traffic) traffic->add(kind, bytes, size());
  }
  int size() const { return group->size(); }
  bool is(Kind a, Kind b) const { return from.is(a) && to.is(b); }
  nn::Region part(const Shape& whole, int dim, int rank) const {
    return nn::Region::whole(whole).part(dim, rank, size());
  }
  nn::Region my_part(const Shape& whole, int dim) const { return part(whole, dim, group->rank()); }
  // The shape of the whole tensor of which `x` is this rank's part of dimension `dim`.
  Shape whole_of(const Tensor& x, int dim) const {
    Shape whole = x.sizes();
    whole[dim] = whole_size < 0 ? x.size(dim) * size() : whole_size;
    const std::int64_t mine = my_part(whole, dim).sizes[dim];
    check(mine == x.size(dim), "[convert] dimension ", dim, " has ", x.size(dim), " elements, but rank ",
          group->rank(), " of ", size(), " has ", mine, " of ", whole[dim],
          "; pass the size of the whole dimension as whole_size");
    return whole;
  }
  // The conversion of the gradient, if this one converts `x`.
  Job of_gradient(const Tensor& x) const {
    return {group, to.of_gradient(), from.of_gradient(), to.is(Kind::sharded) ? x.size(to.dim()) : -1,
            traffic};
  }
  SentTensor post(const Tensor& x) const;
  bool communicates() const;
};

Tensor empty_for(const Tensor& x, const Shape& sizes) {
  return empty(sizes, TensorOptions(x.dtype(), x.device()));
}

// The views of all parts of a tensor along a dimension.
std::vector<Tensor> parts_of(const Job& job, const Tensor& whole, int dim) {
  std::vector<Tensor> parts;
  for (int r = 0; r < job.size(); ++r) parts.push_back(job.part(whole.sizes(), dim, r).of(whole));
  return parts;
}

std::int64_t bytes_of(const Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

SentTensor gather(const Tensor& x, const Job& job) {
  const int dim = job.from.dim();
  const Tensor all = empty_for(x, job.whole_of(x, dim));
  job.count(Collective::all_gather, x.nbytes());
  if (all.size(dim) == x.size(dim) * job.size())
    return {all, job.group->all_gather(all, x, dim, "convert"), bytes_of(all)};
  const std::vector<Tensor> same(static_cast<std::size_t>(job.size()), x);
  return {all, job.group->all_to_all(parts_of(job, all, dim), same, "convert"), bytes_of(all)};
}

SentTensor reduce_scatter(const Tensor& x, const Job& job) {
  const int dim = job.to.dim();
  const std::int64_t longest = job.part(x.sizes(), dim, 0).sizes[dim];
  Shape sizes = x.sizes();
  sizes[dim] = longest;
  const Tensor mine = empty_for(x, sizes);
  job.count(Collective::reduce_scatter, mine.nbytes());
  Tensor all = x;
  if (x.size(dim) != longest * job.size()) {  // only the last parts are padded
    sizes[dim] *= job.size();
    all = zeros(sizes, TensorOptions(x.dtype(), x.device()));
    all.narrow(dim, 0, x.size(dim)).copy_(x);
  }
  return {mine.narrow(dim, 0, job.my_part(x.sizes(), dim).sizes[dim]),
          job.group->reduce_scatter(mine, all, dim, ReduceOp::sum, "convert"), bytes_of(x)};
}

// From parts of one dimension to parts of another.
SentTensor exchange(const Tensor& x, const Job& job) {
  const Shape whole = job.whole_of(x, job.from.dim());
  const Tensor out = empty_for(x, job.my_part(whole, job.to.dim()).sizes);
  job.count(Collective::all_to_all, x.nbytes() - job.my_part(x.sizes(), job.to.dim()).of(x).nbytes());
  const Work work =
      job.group->all_to_all(parts_of(job, out, job.from.dim()), parts_of(job, x, job.to.dim()), "convert");
  return {out, work, whole.numel() * static_cast<std::int64_t>(x.element_size())};
}

// Begins a conversion. The result may be `x`.
SentTensor post_conversion(const Tensor& x, const Job& job) {
  const NoGradGuard no_grad;
  const bool sums = job.from.is(Kind::partial);
  if (sums && is_equal(job.to)) {
    const Tensor sum = x.clone();
    job.count(Collective::all_reduce, sum.nbytes());
    return {sum, job.group->all_reduce(sum, ReduceOp::sum, "convert"), bytes_of(sum)};
  }
  if (job.is(Kind::partial, Kind::sharded)) return reduce_scatter(x, job);
  if (is_equal(job.from) && job.to.is(Kind::sharded))
    return {job.my_part(x.sizes(), job.to.dim()).of(x).clone()};
  if (job.from.is(Kind::sharded) && is_equal(job.to)) return gather(x, job);
  if (job.is(Kind::sharded, Kind::partial)) {
    const Shape whole = job.whole_of(x, job.from.dim());
    const Tensor out = zeros(whole, TensorOptions(x.dtype(), x.device()));
    job.my_part(whole, job.from.dim()).of(out).copy_(x);
    return {out};
  }
  if (job.is(Kind::sharded, Kind::sharded)) return exchange(x, job);
  return {x};
}

SentTensor Job::post(const Tensor& x) const { return post_conversion(x, *this); }

bool Job::communicates() const {
  return (from.is(Kind::partial) && (is_equal(to) || to.is(Kind::sharded))) ||
         (from.is(Kind::sharded) && (is_equal(to) || to.is(Kind::sharded)));
}

bool is_conversion(Placement from, Placement to) {
  switch (from.kind()) {
    case Kind::invariant:
      return to.is(Kind::replicated) || to.is(Kind::varying) || to.is(Kind::sharded);
    case Kind::replicated:
      return to.is(Kind::varying) || to.is(Kind::sharded);
    case Kind::varying:
      return to.is(Kind::partial) || to.is(Kind::sharded);
    case Kind::partial:
      return is_equal(to) || to.is(Kind::sharded);
    case Kind::sharded:
      return true;
  }
  return false;
}

}  // namespace

struct PendingConversion::State {
  std::function<Tensor()> finish;  // empty after the call
};

PendingConversion begin_convert(const Tensor& x, const Axis& axis, Placement from, Placement to,
                                const ConvertOptions& options) {
  detail::check_defined("convert", x);
  check(!axis.over_devices(), "[convert] axis ", axis.name(),
        " is over devices of one process; use one over ranks");
  for (const Placement p : {from, to})
    check<IndexError>(!p.is(Kind::sharded) || (p.dim() >= 0 && p.dim() < x.dim()), "[convert] ", p.str(),
                      " of a tensor of ", x.dim(), " dimensions; choose one of its dimensions");
  const bool if_placed = options.check_if_placed;
  const impl::CheckedConversion checked(x, axis, from, to, if_placed);
  check(from == to || is_conversion(from, to), "[convert] ", from.str(), " cannot become ", to.str(),
        "; see the table in convert.h");
  PendingConversion pending;
  pending.state_ = std::make_shared<PendingConversion::State>();
  pending.state_->finish = [x] { return x; };
  if (from == to || axis.size() == 1) return pending;
  if (to.is(Kind::sharded) && !from.is(Kind::varying)) {
    const std::int64_t size = x.size(to.dim());
    const bool unequal = options.whole_size && (from.is(Kind::sharded) || *options.whole_size == size);
    check(unequal || (!options.whole_size && size % axis.size() == 0), "[convert] dimension ", to.dim(),
          " has ", size, " elements, which ", axis.size(), " ranks cannot divide equally",
          options.whole_size ? concat({", and whole_size is ", *options.whole_size}) : "",
          "; pass the size of the divided dimension as whole_size if unequal parts are meant");
  }
  const Placement wanted = to;
  // An invariant tensor's copies become one rank's own by way of replicated ones: their gradients are summed.
  if (from.is(Kind::invariant) && to.is(Kind::varying)) to = Placement::replicated();
  const std::int64_t whole = from.is(Kind::sharded) ? options.whole_size.value_or(-1) : -1;
  const auto [begun, nodes] =
      impl::begin_exchange(x, Job{axis.group(), from, to, whole, options.traffic}, options.fills_wait);
  pending.state_->finish = [=, begun = begun, nodes = nodes] {
    const impl::CheckedConversion finished(x, axis, from, wanted, if_placed);
    return finished.result(impl::finish_exchange(begun, nodes));
  };
  return pending;
}

std::int64_t ConversionTraffic::Counts::bytes() const {
  std::int64_t sum = 0;
  for (const Sent& s : *this) sum += s.bytes;
  return sum;
}

ConversionTraffic::Counts ConversionTraffic::Counts::operator-(const Counts& before) const {
  Counts since = *this;
  for (std::size_t i = 0; i < size(); ++i) {
    since[i].calls -= before[i].calls;
    since[i].bytes -= before[i].bytes;
  }
  since.exposed_s -= before.exposed_s;
  return since;
}

void ConversionTraffic::add(Kind kind, std::size_t bytes, int ranks) {
  const std::lock_guard lock(mutex_);
  Sent& sent = counts_[static_cast<std::size_t>(kind)];
  const auto all = static_cast<std::int64_t>(bytes);
  ++sent.calls;
  sent.bytes += kind == Kind::all_reduce   ? 2 * (ranks - 1) * all / ranks
                : kind == Kind::all_to_all ? all
                                           : (ranks - 1) * all;
}

void ConversionTraffic::wait(const Work& work, Device device, SpanSubject subject) {
  SpanScope span(device, Activity::communication, "wait for activations");
  span.set_subject(std::move(subject));
  const auto began = std::chrono::steady_clock::now();
  work.wait();
  const std::lock_guard lock(mutex_);
  counts_.exposed_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

ConversionTraffic::Counts ConversionTraffic::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void ConversionTraffic::reset() {
  const std::lock_guard lock(mutex_);
  counts_ = {};
}

Tensor PendingConversion::finish() {
  check(state_ != nullptr && state_->finish != nullptr,
        "[convert] there is no conversion to finish; call finish() once for each begin_convert()");
  return std::exchange(state_->finish, nullptr)();
}

Tensor convert(const Tensor& x, const Axis& axis, Placement from, Placement to,
               const ConvertOptions& options) {
  return begin_convert(x, axis, from, to, options).finish();
}

Placement Placement::of_gradient() const {
  if (kind_ == Kind::replicated) return partial();
  if (kind_ == Kind::partial) return replicated();
  return *this;
}

std::string Placement::str() const {
  switch (kind_) {
    case Kind::invariant:
      return "invariant";
    case Kind::replicated:
      return "replicated";
    case Kind::varying:
      return "varying";
    case Kind::partial:
      return "partial";
    case Kind::sharded:
      return "sharded(" + std::to_string(dim_) + ")";
  }
  return {};
}

}  // namespace tapestry::distributed
