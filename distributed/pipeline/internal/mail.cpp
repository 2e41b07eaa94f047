#include "tapestry/distributed/pipeline/internal/mail.h"

#include "tapestry/distributed/comm/error.h"

namespace tapestry::distributed {

void Mail::put(const Address& to, Parcel parcel) {
  {
    const std::lock_guard lock(mutex_);
    parcels_.emplace(key(to), std::move(parcel));
  }
  changed_.notify_all();
}

std::optional<Parcel> Mail::take(const Address& to) {
  std::unique_lock lock(mutex_);
  const Key wanted = key(to);
  const bool came = changed_.wait_for(lock, timeout_, [&] { return closed_ || parcels_.count(wanted) != 0; });
  if (closed_) return std::nullopt;
  check<TimeoutError>(
      came, "[Pipeline] stage ", to.stage, " waited ", timeout_.count(), " s for ",
      to.action.kind == Action::Kind::forward ? "the outputs of stage " : "the gradients of stage ",
      to.action.kind == Action::Kind::forward ? to.stage - 1 : to.stage + 1, " for micro-batch ",
      to.action.micro_batch, "; find out what keeps that busy, or raise .timeout_s");
  auto parcel = parcels_.extract(wanted);
  return std::move(parcel.mapped());
}

void Mail::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    parcels_.clear();
  }
  changed_.notify_all();
}

bool Mail::is_closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace tapestry::distributed
