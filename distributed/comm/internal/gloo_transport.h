#pragma once
// Messages between the ranks of a group, over Gloo's unbound buffers: connecting, bounded waits, and lost
// peers. gloo_backend.cpp builds the collectives from these messages.
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "tapestry/distributed/comm/store.h"

namespace gloo::transport {
class Context;
class UnboundBuffer;
}  // namespace gloo::transport

namespace tapestry::distributed {

class GlooDevice;
class GlooOperation;
class GlooTransport;

/// Blocks SIGPIPE in this thread, and discards a SIGPIPE that arrived meanwhile. Gloo writes to sockets whose
/// peer may be gone, and does not handle SIGPIPE itself.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE)) return;
    const timespec now{};
    while (sigtimedwait(&sigpipe_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
};

/// A buffer that is sent to, or received from, one peer in pieces. Pieces are posted without waiting, and
/// complete in the order of posting.
class GlooTransfer {
 public:
  GlooTransfer(GlooOperation& operation, bool sends, void* data, std::size_t bytes, int peer,
               std::uint64_t slot);
  ~GlooTransfer();
  GlooTransfer(const GlooTransfer&) = delete;
  GlooTransfer& operator=(const GlooTransfer&) = delete;

  void post(std::size_t offset, std::size_t bytes);
  void post_all();
  /// Waits for the oldest piece that nobody has waited for yet.
  void wait();

 private:
  friend class GlooOperation;
  friend class GlooTransport;
  bool completes(Milliseconds timeout);
  void wake();

  GlooOperation& operation_;
  const bool sends_;
  const int peer_;
  const std::uint64_t slot_;
  // Posted pieces that nobody has waited for yet, and how many of those are known to be complete.
  std::size_t pending_ = 0, complete_ = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

/// All transfers of one call. The memory must stay valid until all transfers have been waited for, or the
/// transport has failed.
class GlooOperation {
 public:
  /// Throws if the transport has failed.
  GlooOperation(GlooTransport& transport, Deadline deadline);
  ~GlooOperation();
  GlooOperation(const GlooOperation&) = delete;
  GlooOperation& operator=(const GlooOperation&) = delete;

  GlooTransfer& send(const void* data, std::size_t bytes, int peer, std::uint64_t slot) {
    return transfers_.emplace_back(*this, true, const_cast<void*>(data), bytes, peer, slot);
  }
  GlooTransfer& receive(void* data, std::size_t bytes, int peer, std::uint64_t slot) {
    return transfers_.emplace_back(*this, false, data, bytes, peer, slot);
  }
  void wait_all();

 private:
  friend class GlooTransfer;
  friend class GlooTransport;
  void wait(GlooTransfer& transfer);

  const NoSigpipe guard_;
  GlooTransport& transport_;
  const Deadline deadline_;
  std::deque<GlooTransfer> transfers_;
  GlooTransfer* waiting_ = nullptr;  // guarded by the transport's mutex
};

/// Connections between all ranks. Thread-safe. After the first failure, every operation throws, and the
/// connections are closed so that the other ranks fail too. A lost peer is a failure only if an operation
/// needs it.
class GlooTransport {
 public:
  /// Connects to the other ranks, which it finds through `store`. Uses the network interface and the thread
  /// of `like`, if given.
  GlooTransport(Store& store, int rank, int size, Deadline deadline, const GlooTransport* like = nullptr);
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  /// True if all ranks share a kernel and a network namespace.
  bool one_host() const { return one_host_; }

  /// True if `peer` has left, or if this transport has failed.
  bool gone(int peer);
  /// Makes the transport fail because `peer` did not deliver, and throws that error.
  [[noreturn]] void fail_for(int peer, bool time_is_up, const std::string& cause = {});

  /// Current and later operations throw DistributedError with `why`, unless the transport has failed before.
  void abort(const std::string& why) noexcept;

 private:
  friend class GlooOperation;
  friend class GlooTransfer;

  void meet(Store& store, Deadline deadline);
  void watch_peers();
  void lose(int peer) noexcept;

  const int rank_, size_;
  bool one_host_ = false;
  std::shared_ptr<GlooDevice> device_;
  std::shared_ptr<gloo::transport::Context> context_;

  std::mutex mutex_;
  bool failed_ = false, closing_ = false;
  std::string why_;
  std::vector<char> lost_;  // by rank
  std::unordered_set<GlooOperation*> operations_;
  std::unique_ptr<gloo::transport::UnboundBuffer> sentinel_;
  std::thread watcher_;
};

}  // namespace tapestry::distributed
