#include "tapestry/apps/common/job_requests.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tapestry/autograd/ops/creation.h"

namespace apps {

using namespace tapestry;

static_assert(std::is_trivially_copyable_v<RankRow>);

JobRequests::JobRequests(std::shared_ptr<distributed::ProcessGroup> group, bool shares_rows)
    : group_(std::move(group)), shares_rows_(shares_rows) {
  const std::int64_t rows = shares_rows ? group_->size() : 0;
  requests_ = zeros({2 + rows * static_cast<std::int64_t>(sizeof(RankRow))}, DType::u8);
}

void JobRequests::share(const RankRow& row) {
  own_ = row;
  if (group_->size() == 1) rows_ = {row};
}

Request JobRequests::agree(const Request& own) {
  if (group_->size() == 1) return own;
  if (pending_) all_reduce_.wait();
  auto* const values = requests_.data<std::uint8_t>();
  const Request agreed{values[0], values[1] != 0};
  values[0] = static_cast<std::uint8_t>(std::max(own.signal, agreed.signal));
  values[1] = own.save && !agreed.save;  // the caller saves now, which answers its own request too
  if (shares_rows_) {
    std::uint8_t* const rows = values + 2;
    const std::size_t size = static_cast<std::size_t>(group_->size()) * sizeof(RankRow);
    if (pending_) {
      rows_.resize(static_cast<std::size_t>(group_->size()));
      std::memcpy(rows_.data(), rows, size);
    }
    std::memset(rows, 0, size);
    std::memcpy(rows + static_cast<std::size_t>(group_->rank()) * sizeof(RankRow), &own_, sizeof own_);
  }
  all_reduce_ = group_->all_reduce(requests_, distributed::ReduceOp::max, "requests");
  pending_ = true;
  return agreed;
}

}  // namespace apps
