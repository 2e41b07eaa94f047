#include "tapestry/distributed/pipeline/internal/mailbox.h"

#include "tapestry/distributed/comm/error.h"

namespace tapestry::distributed {

void Mailbox::put(const Address& to, Message message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.emplace(key(to), std::move(message));
  }
  changed_.notify_all();
}

std::optional<Message> Mailbox::take(const Address& to) {
  std::unique_lock lock(mutex_);
  const Key wanted = key(to);
  const bool came =
      changed_.wait_for(lock, timeout_, [&] { return closed_ || messages_.count(wanted) != 0; });
  if (closed_) return std::nullopt;
  check<TimeoutError>(
      came, "[Pipeline] stage ", to.stage, " waited ", timeout_.count(), " s for ",
      to.action.kind == Action::Kind::forward ? "the outputs of stage " : "the gradients of stage ",
      to.action.kind == Action::Kind::forward ? to.stage - 1 : to.stage + 1, " for micro-batch ",
      to.action.micro_batch, "; find out what blocks that stage, or raise .timeout_s");
  auto message = messages_.extract(wanted);
  return std::move(message.mapped());
}

void Mailbox::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    messages_.clear();
  }
  changed_.notify_all();
}

bool Mailbox::is_closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace tapestry::distributed
