#include "tapestry/apps/common/job_requests.h"

#include <algorithm>
#include <utility>

#include "tapestry/autograd/ops/creation.h"

namespace apps {

using namespace tapestry;

JobRequests::JobRequests(std::shared_ptr<distributed::ProcessGroup> group)
    : group_(std::move(group)), requests_(zeros({2}, DType::u8)) {}

Request JobRequests::agree(const Request& own) {
  if (group_->size() == 1) return own;
  if (pending_) all_reduce_.wait();
  auto* const values = requests_.data<std::uint8_t>();
  const Request agreed{values[0], values[1] != 0};
  values[0] = static_cast<std::uint8_t>(std::max(own.signal, agreed.signal));
  values[1] = own.save && !agreed.save;  // the caller saves now, which answers its own request too
  all_reduce_ = group_->all_reduce(requests_, distributed::ReduceOp::max, "requests");
  pending_ = true;
  return agreed;
}

}  // namespace apps
