#pragma once
// NCCL's functions, found at run time, and one NCCL communicator. Only for files that are compiled where
// nccl.h is found.
#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/nccl_library.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// The functions of NCCL that the backend calls, under NCCL's own names.
#define TAPESTRY_NCCL_FUNCTIONS(X) \
  X(ncclGetUniqueId)               \
  X(ncclCommInitRankConfig)        \
  X(ncclCommGetAsyncError)         \
  X(ncclCommFinalize)              \
  X(ncclCommDestroy)               \
  X(ncclCommAbort)                 \
  X(ncclGetErrorString)            \
  X(ncclGetLastError)              \
  X(ncclGroupStart)                \
  X(ncclGroupEnd)                  \
  X(ncclAllReduce)                 \
  X(ncclReduce)                    \
  X(ncclReduceScatter)             \
  X(ncclBroadcast)                 \
  X(ncclAllGather)                 \
  X(ncclSend)                      \
  X(ncclRecv)

struct NcclFunctions {
  explicit NcclFunctions(const cuda::OpenLibrary& library);
#define TAPESTRY_MEMBER(name) decltype(&::name) name;
  TAPESTRY_NCCL_FUNCTIONS(TAPESTRY_MEMBER)
#undef TAPESTRY_MEMBER
};
/// The functions of this process's NCCL. Throws DistributedError if there is none, saying where it was
/// searched for.
const NcclFunctions& nccl();

/// A flag that is set once, when a backend is aborted. All communicators of the backend check it, including
/// one whose constructor has not yet returned.
class AbortFlag {
 public:
  void set(const std::string& why);
  /// Throws DistributedError if the flag is set.
  void check() const;

 private:
  std::atomic<bool> set_{false};
  mutable std::mutex mutex_;
  std::string why_;
};

/// One NCCL communicator that does not block: a call returns at once, and the caller polls until NCCL has
/// taken the call or the deadline has passed. enqueue() is called by one thread at a time; poll() and abort()
/// by any thread.
class Communicator {
 public:
  /// A collective call of all ranks. `store` belongs to this communicator alone. Throws TimeoutError if a
  /// rank does not come by the deadline.
  Communicator(Store& store, int rank, int size, Device device, Deadline deadline, const NcclFunctions& nccl,
               std::shared_ptr<const AbortFlag> aborted);
  /// Waits up to 5 s until messages that were sent have reached the other ranks.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Enqueues f(communicator, current stream of the device), and waits until NCCL has taken it; does not wait
  /// for the GPU. `call` is for messages. Throws TimeoutError or DistributedError.
  void enqueue(const char* call, Deadline deadline,
               const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& f);
  /// The same for one group of calls on several communicators of one device: calls f(communicators). All
  /// callers name them in one order.
  static void enqueue_together(const std::vector<std::shared_ptr<Communicator>>& all, const char* call,
                               Deadline deadline,
                               const std::function<ncclResult_t(const std::vector<ncclComm_t>&)>& f);
  /// Throws DistributedError if work of this communicator has failed, or if the backend was aborted.
  void poll();
  /// Ends all calls in flight. Set the AbortFlag before. ncclCommAbort() may wait for kernels on the GPU, but
  /// poll() and enqueue() on other threads do not wait for ncclCommAbort().
  void abort() noexcept;

 private:
  void check_alive() const;
  void check_result(ncclResult_t result, const char* call) const;
  void settle(ncclResult_t result, const char* call, Deadline deadline);
  std::string receive_id(Store& store, Deadline deadline) const;

  const NcclFunctions& nccl_;
  const int rank_;
  const Device device_;
  const int gpu_;
  const std::shared_ptr<const AbortFlag> aborted_;
  std::mutex mutex_;  // guards comm_; never held while NCCL waits
  ncclComm_t comm_ = nullptr;
};

}  // namespace tapestry::distributed
