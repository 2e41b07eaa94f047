#include "tapestry/distributed/context/sequence.h"

#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/placement/convert.h"

namespace tapestry::distributed {

Tensor sequence_positions(std::int64_t length, int rank, int size, SequenceOrder order) {
  check<IndexError>(size >= 1 && rank >= 0 && rank < size, "[sequence_positions] rank ", rank, " of ", size,
                    "; ranks count from 0 to size - 1");
  const std::int64_t chunks = order == SequenceOrder::zigzag ? 2 * size : size;
  check(length >= 0 && length % chunks == 0, "[sequence_positions] a sequence of ", length,
        " positions cannot be divided into ", chunks, " equal chunks; pad it");
  const std::int64_t chunk = length / chunks;
  const auto range = [chunk](std::int64_t i) { return arange(i * chunk, (i + 1) * chunk, 1, DType::i64); };
  if (order == SequenceOrder::contiguous) return range(rank);
  return cat({range(rank), range(chunks - 1 - rank)}, 0);
}

Tensor divide_sequence(const Tensor& x, std::int64_t dim, const Axis& axis, SequenceOrder order) {
  detail::check_defined("divide_sequence", x);
  const int d = wrap_dim("divide_sequence", dim, x.dim());
  if (axis.size() == 1) return x;
  const Tensor rows = sequence_positions(x.size(d), axis.coordinate(), axis.size(), order);
  if (!x.requires_grad()) return index_select(x, d, rows.to(x.device()));
  const Tensor own = convert(x, axis, Placement::invariant(), Placement::varying());
  return convert(index_select(own, d, rows.to(x.device())), axis, Placement::varying(),
                 Placement::sharded(d));
}

}  // namespace tapestry::distributed
