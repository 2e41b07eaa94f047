#include "tapestry/distributed/planner/internal/buckets.h"

#include <algorithm>
#include <chrono>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/context.h"
#include "tapestry/core/stream.h"

namespace tapestry::distributed::planner {

Buckets::Buckets(ProfiledModel& model, ProcessGroup& group) : model_(model), group_(group) {
  for (std::size_t k = 0; k < model.count(); ++k) {
    const std::vector<nn::Parameter> parameters = model.block(k).module->parameters();
    std::int64_t elements = 0;
    for (const nn::Parameter& p : parameters) elements += p->numel();
    buckets_.push_back(zeros({elements}, {parameters[0]->dtype(), model.device()}));
    views_.emplace_back();
    std::int64_t begin = 0;
    for (const nn::Parameter& p : parameters) {
      views_[k].push_back(buckets_[k].narrow(0, begin, p->numel()).reshape(p->sizes()));
      begin += p->numel();
    }
  }
}

void Buckets::enter(Activity activity, std::size_t k) {
  if (activity == Activity::forward && k == 0) works_.clear();
  if (activity != Activity::backward || k + 1 >= model_.count()) return;
  fill(k + 1);
  if (overlaps) launch(k + 1);
}

void Buckets::backward() {
  model_.backward();
  fill(0);
  synchronize(model_.device());
}

void Buckets::fill(std::size_t k) {
  const NoGradGuard no_grad;
  const std::vector<nn::Parameter> parameters = model_.block(k).module->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    views_[k][i].copy_(parameters[i]->grad());
    parameters[i]->set_grad(views_[k][i]);
  }
}

void Buckets::launch(std::size_t k) {
  const auto now = std::chrono::steady_clock::now();
  works_.push_back({group_.all_reduce(buckets_[k], ReduceOp::mean), now});
}

void Buckets::average_all() {
  for (std::size_t k = model_.count(); k-- > 0;) launch(k);
  for (const Launched& launched : works_) launched.work.wait();
  synchronize(model_.device());
}

double Buckets::overlapped_s() const {
  // An all-reduce can begin only when the last rank has launched it. The last rank measures the shortest
  // duration. It is found as the maximum of the negated durations, because largest_of() computes a maximum
  // over the ranks.
  std::vector<double> negated;
  std::chrono::steady_clock::time_point free{};
  for (const auto& [work, launched] : works_) {
    work.wait();
    negated.push_back(-std::chrono::duration<double>(work.finished() - std::max(launched, free)).count());
    free = work.finished();
  }
  double sum = 0;
  if (!negated.empty())
    for (const double s : largest_of(group_, model_.device(), negated)) sum -= s;
  return sum;
}

double Buckets::overlapped_bytes() const {
  double bytes = 0;
  for (std::size_t k = 1; k < buckets_.size(); ++k) bytes += static_cast<double>(buckets_[k].nbytes());
  return bytes;
}

std::vector<double> largest_of(ProcessGroup& group, Device device, const std::vector<double>& values) {
  const Tensor all = tensor(values, {DType::f64, device});
  group.all_reduce(all, ReduceOp::max).wait();
  std::vector<double> largest;
  for (std::int64_t i = 0; i < all.numel(); ++i) largest.push_back(all.select(0, i).item());
  return largest;
}

}  // namespace tapestry::distributed::planner
