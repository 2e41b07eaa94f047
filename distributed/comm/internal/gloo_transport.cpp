#include "tapestry/distributed/comm/internal/gloo_transport.h"

#if defined(TAPESTRY_HAS_GLOO)
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/block_signals.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/gloo_device.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/missing_ranks.h"

namespace tapestry::distributed {
namespace {

constexpr std::uint64_t kSentinelSlot = ~std::uint64_t{0};

/// Identifies the kernel and the network namespace. Processes with the same identity reach one another over
/// loopback.
std::string host_identity() {
  char network[64] = "";
  const ssize_t length = readlink("/proc/self/ns/net", network, sizeof network - 1);
  return boot_id() + " " + std::string(network, length > 0 ? static_cast<std::size_t>(length) : 0) + " " +
         host_name();
}

std::string key(const char* what, int rank) { return "gloo/" + std::string(what) + std::to_string(rank); }

/// Publishes this rank's value under the name `what`, and returns the values of all ranks, by rank.
std::vector<std::string> exchange(Store& store, const char* what, int rank, int size, const std::string& mine,
                                  Deadline deadline) {
  store.set(key(what, rank), mine);
  std::vector<std::string> all;
  for (int i = 0; i < size; ++i) {
    try {
      all.push_back(store.get(key(what, i), left_until(deadline)));
    } catch (const TimeoutError&) {
      const std::string absent =
          missing_ranks(i, size, [&](int j) { return store.try_get(key(what, j)).has_value(); });
      fail<TimeoutError>("[gloo] rank ", rank, " of ", size, " waited at ", store.str(), " for rank ", absent,
                         ", which did not come before the deadline; look at the output of that rank");
    }
  }
  return all;
}

}  // namespace

GlooTransfer::GlooTransfer(GlooOperation& operation, bool sends, void* data, std::size_t bytes, int peer,
                           std::uint64_t slot)
    : operation_(operation),
      sends_(sends),
      peer_(peer),
      slot_(slot),
      buffer_(operation.transport_.context_->createUnboundBuffer(data, bytes)) {}
GlooTransfer::~GlooTransfer() = default;

void GlooTransfer::post(std::size_t offset, std::size_t bytes) {
  try {
    if (sends_) buffer_->send(peer_, slot_, offset, bytes);
    else buffer_->recv(peer_, slot_, offset, bytes);
  } catch (const std::exception& e) {
    operation_.transport_.fail_for(peer_, false, e.what());
  }
  ++pending_;
}

void GlooTransfer::post_all() { post(0, buffer_->size); }

void GlooTransfer::wait() {
  if (complete_ > 0) --complete_;
  else operation_.wait(*this);
  --pending_;
}

// Returns false if it was woken without a completed piece. Throws after the timeout, when Gloo has closed all
// connections.
bool GlooTransfer::completes(Milliseconds timeout) {
  return sends_ ? buffer_->waitSend(timeout) : buffer_->waitRecv(timeout);
}

void GlooTransfer::wake() {
  if (sends_) buffer_->abortWaitSend();
  else buffer_->abortWaitRecv();
}

GlooOperation::GlooOperation(GlooTransport& transport, Deadline deadline)
    : transport_(transport), deadline_(deadline) {
  const std::lock_guard lock(transport_.mutex_);
  if (transport_.failed_) fail<DistributedError>(transport_.why_);
  transport_.operations_.insert(this);
}

GlooOperation::~GlooOperation() {
  {
    const std::lock_guard lock(transport_.mutex_);
    transport_.operations_.erase(this);
  }
  // An exception left the operation early. Peers must not write to its buffers or wait for it.
  if (std::any_of(transfers_.begin(), transfers_.end(), [](const auto& t) { return t.pending_ > 0; }))
    transport_.abort("[gloo] an operation ended early because of an exception");
}

void GlooOperation::wait_all() {
  for (GlooTransfer& transfer : transfers_) {
    while (transfer.pending_ > 0) transfer.wait();
  }
}

void GlooOperation::wait(GlooTransfer& transfer) {
  bool done = false;
  while (!done) {
    std::vector<GlooTransfer*> lost;
    {
      const std::lock_guard lock(transport_.mutex_);
      if (transport_.failed_) fail<DistributedError>(transport_.why_);
      for (GlooTransfer& other : transfers_) {
        if (other.pending_ > other.complete_ && transport_.lost_[static_cast<std::size_t>(other.peer_)])
          lost.push_back(&other);
      }
      waiting_ = &transfer;
    }
    const GlooTransfer* at = &transfer;
    std::string cause;
    try {
      // The lost peer may have sent everything before it left. If it has not, the operation fails without
      // waiting for other peers.
      for (GlooTransfer* other : lost) {
        at = other;
        while (other->pending_ > other->complete_) other->complete_ += other->completes(Milliseconds(0));
      }
      at = &transfer;
      done = transfer.complete_ > 0 || transfer.completes(left_until(deadline_));
    } catch (const std::exception& e) {
      cause = e.what();
    }
    {
      const std::lock_guard lock(transport_.mutex_);
      waiting_ = nullptr;
    }
    if (!cause.empty()) transport_.fail_for(at->peer_, at == &transfer && Clock::now() >= deadline_, cause);
    if (transfer.complete_ > 0) --transfer.complete_;
  }
}

GlooTransport::GlooTransport(Store& store, int rank, int size, Deadline deadline, const GlooTransport* like)
    : rank_(rank), size_(size), lost_(static_cast<std::size_t>(size)) {
  if (size == 1) return;
  const NoSigpipe guard;
  try {
    meet(store, deadline);
    device_ = like ? like->device_ : open_gloo_device(store, rank, size, one_host_, deadline);
    context_ = connect_gloo(device_, store, rank, size, one_host_, deadline);
    // If a rank cannot connect, the other ranks do not begin to work without it.
    exchange(store, "connected/", rank, size, "yes", deadline);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // of Gloo
    fail<DistributedError>(
        "[gloo] rank ", rank, " of ", size, " cannot use the network: ", e.what(),
        one_host_ ? "; the ranks of one host need a loopback address, 127.0.0.1 or ::1, so bring "
                    "the interface lo up (ip link set lo up)"
                  : "; set TAPESTRY_INTERFACE to the network interface that all ranks share");
  }
  const BlockSignals in_its_thread;
  watcher_ = detail::start_thread("gloo", [this] { watch_peers(); });
}

GlooTransport::~GlooTransport() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (sentinel_) sentinel_->abortWaitRecv();
  }
  if (watcher_.joinable()) watcher_.join();
}

void GlooTransport::meet(Store& store, Deadline deadline) {
  const std::string here = host_identity();
  const std::vector<std::string> hosts = exchange(store, "host/", rank_, size_, here, deadline);
  one_host_ = std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == here; });
}

// Gloo reports a lost connection to all waiting operations, except to the one whose message is being
// transferred, which would sleep until the deadline. So the watcher posts a receive that never completes to
// every peer. When a peer exits, this receive fails and wakes the watcher, which wakes all operations.
// Operations that need nothing from that peer go on: a rank that has finished may leave while others are
// still busy.
void GlooTransport::watch_peers() {
  constexpr std::chrono::hours kForever{24 * 365};
  char never = 0;
  for (;;) {
    gloo::transport::UnboundBuffer* sentinel = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) break;
      sentinel_ = context_->createUnboundBuffer(&never, 1);
      sentinel = sentinel_.get();
    }
    bool watching = false;
    for (int i = 0; i < size_; ++i) {
      if (i == rank_ || lost_[static_cast<std::size_t>(i)]) continue;  // only this thread writes it
      try {
        sentinel->recv(i, kSentinelSlot, 0, 1);
        watching = true;
      } catch (const std::exception&) {
        lose(i);
      }
    }
    if (!watching) break;
    try {
      sentinel->waitRecv(kForever);
    } catch (const std::exception&) {  // a peer is lost; the next receive from it fails at once
    }
  }
  const std::lock_guard lock(mutex_);
  sentinel_.reset();
}

void GlooTransport::lose(int peer) noexcept {
  const std::lock_guard lock(mutex_);
  lost_[static_cast<std::size_t>(peer)] = true;
  for (GlooOperation* operation : operations_) {
    if (operation->waiting_) operation->waiting_->wake();
  }
}

bool GlooTransport::gone(int peer) {
  const std::lock_guard lock(mutex_);
  return failed_ || lost_[static_cast<std::size_t>(peer)];
}

void GlooTransport::fail_for(int peer, bool time_is_up, const std::string& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) fail<DistributedError>(why_);
  }
  const std::string us = "[gloo] rank " + std::to_string(rank_) + " of " + std::to_string(size_);
  const std::string them = "rank " + std::to_string(peer);
  if (time_is_up) {
    const std::string why = us + " waited for " + them + " until the deadline; " + them +
                            " is late, stopped, or in another collective";
    abort(why);
    throw TimeoutError(why);
  }
  // Gloo's messages have the form "[file:line] text"; only the text is kept. A "Timed out" comes from our own
  // wait and explains nothing.
  const auto text = cause.find("] ");
  const bool tells = text != std::string::npos && cause.find("Timed out", text) == std::string::npos;
  std::string detail = tells ? " (" + cause.substr(text + 2) + ")" : "";
  if (const auto unnamed = detail.find(" [none]"); unnamed != std::string::npos) detail.erase(unnamed, 7);
  const std::string why = us + " lost its connection to " + them + detail +
                          ", which ended or failed; look at the output of that rank";
  abort(why);
  throw DistributedError(why);
}

void GlooTransport::abort(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = true;
    why_ = why;
    for (GlooOperation* operation : operations_) {
      if (operation->waiting_) operation->waiting_->wake();
    }
  }
  for (int i = 0; context_ && i < size_; ++i) {
    if (i != rank_) context_->getPair(i)->close();
  }
}

}  // namespace tapestry::distributed
#endif
