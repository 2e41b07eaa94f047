#pragma once
// The exchange of rows between ranks that divide experts.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/convert.h"

namespace tapestry::distributed {

/// How many rows the ranks of an axis exchange, as one of them sees it.
struct ExpertCounts {
  std::vector<std::int64_t> sent, received;  ///< by rank
  /// Of the received rows: [rank * experts + e] of them are of that rank and for this rank's expert e.
  std::vector<std::int64_t> by_source;
  std::int64_t experts = 0;  ///< of this rank

  std::int64_t of_expert(std::int64_t e) const;
};

/// Collective over the axis. `counts`, i64 (num_experts), are the rows that this rank has for each expert;
/// the ranks divide the experts as Region::part() says. The host waits for a GPU.
ExpertCounts exchange_counts(const Axis& axis, const Tensor& counts);

/// The order by expert of received rows, which are in the order of ranks and of each rank by expert: row i is
/// the received row result[i].
std::vector<std::int64_t> order_by_expert(const ExpertCounts& counts);

/// Collective over the axis: x (rows, features) is sorted by expert, and counts.sent says how many of the
/// rows each rank gets. Calls compute(rows) with this rank's rows (received, features), those of its first
/// expert first. Sends the rows of the result back, and returns them in the order of x. Differentiable, also
/// twice: gradients take the same way back. `waits`, if it is not null, counts how long the host waits. Calls
/// meanwhile(), if it is given, once while x travels; the backward of what it records runs while the gradient
/// of x travels.
Tensor exchange_rows(const Axis& axis, const Tensor& x, const ExpertCounts& counts,
                     const std::function<Tensor(const Tensor& rows)>& compute,
                     const std::shared_ptr<ConversionTraffic>& waits = {},
                     const std::function<void()>& meanwhile = {});

}  // namespace tapestry::distributed
