#include "tapestry/distributed/ddp/job.h"

#include <limits>

#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

double GlobalMean::reduce(ProcessGroup& group) {
  double parts[2] = {sum_, count_};
  group.all_reduce(from_blob(parts, {2}, DType::f64), ReduceOp::sum, "mean over ranks").wait();
  sum_ = count_ = 0;
  return parts[1] > 0 ? parts[0] / parts[1] : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tapestry::distributed
