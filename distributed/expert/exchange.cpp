#include "tapestry/distributed/expert/internal/exchange.h"

#include <memory>
#include <numeric>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/placement/internal/exchange_nodes.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed {
namespace {

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Consecutive rows of `t`, so many for each rank.
std::vector<Tensor> row_parts(const Tensor& t, const std::vector<std::int64_t>& counts) {
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    parts.push_back(t.narrow(0, count > 0 ? begin : 0, count));
    begin += count;
  }
  return parts;
}

struct RowExchange {
  std::shared_ptr<ProcessGroup> group;
  std::vector<std::int64_t> sent, received;
  std::shared_ptr<ConversionTraffic> traffic;

  RowExchange back() const { return {group, received, sent, traffic}; }
  RowExchange of_gradient(const Tensor&) const { return back(); }
  bool communicates() const { return true; }
  impl::SentTensor post(const Tensor& x) const {
    const NoGradGuard no_grad;
    const Tensor rows = x.contiguous();
    const Tensor out = empty({total(received), x.size(1)}, {x.dtype(), x.device()});
    return {out, group->all_to_all(row_parts(out, received), row_parts(rows, sent), "expert_parallel: rows"),
            static_cast<std::int64_t>(out.nbytes())};
  }
};

// Sends rows, and calls `meanwhile` while they travel. Each rank has rows of its own before and after, so the
// placement is `varying` on both sides.
Tensor sent_rows(const Axis& axis, const Tensor& x, const RowExchange& how,
                 const std::function<void()>& meanwhile = {}) {
  Tensor from = x;
  if (checks_placement() && placement_of(x, axis) == Placement::replicated())
    from = convert(x, axis, Placement::replicated(), Placement::varying());
  const auto check_rows = [&] {
    return impl::CheckedConversion(from, axis, Placement::varying(), Placement::varying(),
                                   /*if_placed=*/true);
  };
  const auto [begun, nodes] = [&] {
    const auto checked = check_rows();
    return impl::begin_exchange(from, how);
  }();
  if (meanwhile) meanwhile();
  const auto checked = check_rows();
  return checked.result(impl::finish_exchange(begun, nodes));
}

Tensor index_of(const std::vector<std::int64_t>& order, Device device) {
  return tensor(order, {static_cast<std::int64_t>(order.size())}).to(device);
}

}  // namespace

std::int64_t ExpertCounts::of_expert(std::int64_t e) const {
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < received.size(); ++r)
    sum += by_source[r * static_cast<std::size_t>(experts) + e];
  return sum;
}

ExpertCounts exchange_counts(const Axis& axis, const Tensor& counts) {
  const NoGradGuard no_grad;
  const int n = axis.size();
  const nn::Region all = nn::Region::whole(counts.sizes());
  const auto size = static_cast<std::size_t>(n);
  ExpertCounts result;
  result.experts = all.part(0, axis.coordinate(), n).sizes[0];
  const Tensor own = counts.detach().contiguous();
  tapestry::detail::check_host_reads("expert_parallel", own);
  const Tensor got = empty({n * result.experts}, {DType::i64, own.device()});
  std::vector<std::int64_t> parts;
  for (int r = 0; r < n; ++r) parts.push_back(all.part(0, r, n).sizes[0]);
  axis.group()
      ->all_to_all(row_parts(got, std::vector<std::int64_t>(size, result.experts)), row_parts(own, parts),
                   "expert_parallel: counts")
      .wait();
  const std::vector<std::int64_t> host = cat({own, got}, 0).to_vector<std::int64_t>();  // one wait
  auto at = host.begin();
  for (const std::int64_t part : parts) {
    result.sent.push_back(std::accumulate(at, at + part, std::int64_t{0}));
    at += part;
  }
  result.by_source.assign(at, host.end());
  for (; at != host.end(); at += result.experts)
    result.received.push_back(std::accumulate(at, at + result.experts, std::int64_t{0}));
  return result;
}

std::vector<std::int64_t> order_by_expert(const ExpertCounts& counts) {
  std::vector<std::int64_t> begins, order;  // begins: of the rows of each rank for each expert
  std::int64_t begin = 0;
  for (const std::int64_t count : counts.by_source) {
    begins.push_back(begin);
    begin += count;
  }
  order.reserve(static_cast<std::size_t>(begin));
  const auto experts = static_cast<std::size_t>(counts.experts);
  for (std::size_t e = 0; e < experts; ++e)
    for (std::size_t i = e; i < begins.size(); i += experts)
      for (std::int64_t row = 0; row < counts.by_source[i]; ++row) order.push_back(begins[i] + row);
  return order;
}

Tensor exchange_rows(const Axis& axis, const Tensor& x, const ExpertCounts& counts,
                     const std::function<Tensor(const Tensor& rows)>& compute,
                     const std::shared_ptr<ConversionTraffic>& waits,
                     const std::function<void()>& meanwhile) {
  check(x.dim() == 2 && x.size(0) == total(counts.sent), "[expert_parallel] the rows have shape ", x.sizes(),
        ", and the counts are of ", total(counts.sent), " rows; pass the rows that were counted");
  const RowExchange there{axis.group(), counts.sent, counts.received, waits};
  const Tensor rows = sent_rows(axis, x, there, meanwhile);
  Tensor y;
  if (counts.experts == 1) {
    y = compute(rows);
  } else {
    const std::vector<std::int64_t> order = order_by_expert(counts);
    std::vector<std::int64_t> back(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    y = compute(rows.index_select(0, index_of(order, x.device())))
            .index_select(0, index_of(back, x.device()));
  }
  return sent_rows(axis, y, there.back());
}

}  // namespace tapestry::distributed
