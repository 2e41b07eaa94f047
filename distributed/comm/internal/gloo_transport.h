#pragma once
// Messages between the ranks of a group on Gloo's unbound buffers: who is where, bounded waits, what a lost
// rank means. The collectives are made of them in gloo_backend.cpp.
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
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace tapestry::distributed {

class GlooOperation;
class GlooTransport;

/// Gloo writes to sockets whose peer may be gone, and leaves SIGPIPE as it is. Holds it back in this thread,
/// and swallows what came meanwhile.
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

/// Memory that goes to, or comes from, one peer in pieces: posted at once, completed in that order.
class GlooTransfer {
 public:
  GlooTransfer(GlooOperation& operation, bool sends, void* data, std::size_t bytes, int peer,
               std::uint64_t slot);
  ~GlooTransfer();
  GlooTransfer(const GlooTransfer&) = delete;
  GlooTransfer& operator=(const GlooTransfer&) = delete;

  void post(std::size_t offset, std::size_t bytes);
  void post_all();
  /// For the oldest piece not yet waited for.
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
  // Pieces posted and not waited for; of those, seen to be complete.
  std::size_t pending_ = 0, complete_ = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

/// What one call of one thread sends and receives. The memory must stay until all is waited for, or the
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

/// Connections between all ranks. Thread-safe. After the first failure, here or of a peer that an operation
/// needed, every operation throws and the connections are closed, so that the failure reaches the others.
class GlooTransport {
 public:
  /// Meets the other ranks through `store`. `like`, where given, lends its network interface and thread.
  GlooTransport(Store& store, int rank, int size, Deadline deadline, const GlooTransport* like = nullptr);
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  /// All ranks share a kernel and a network namespace.
  bool one_host() const { return one_host_; }

  /// `peer` has left, or this transport has failed.
  bool gone(int peer);
  /// For who waited in vain for what `peer` owed: throws, after the transport has failed with the same error.
  [[noreturn]] void fail_for(int peer, bool time_is_up, const std::string& cause = {});

  /// Everything in progress and to come throws DistributedError with `why`, unless it failed before.
  void abort(const std::string& why) noexcept;

 private:
  friend class GlooOperation;
  friend class GlooTransfer;

  void meet(Store& store, Deadline deadline);
  void connect(Store& store, Deadline deadline);
  void watch_peers();
  void lose(int peer) noexcept;

  const int rank_, size_;
  bool one_host_ = false;
  std::shared_ptr<gloo::transport::Device> device_;
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
