#pragma once
#include <csignal>

namespace tapestry::distributed {

/// Blocks all signals in this thread for the length of a scope. Threads that are started in the scope inherit
/// the mask, so that the program's own threads handle all signals.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tapestry::distributed
