#if !defined(TAPESTRY_HAS_NCCL)

#include "tapestry/distributed/comm/internal/nccl_library.h"

namespace tapestry::distributed {
void use_nccl_library(const cuda::OpenLibrary*) {}
}  // namespace tapestry::distributed

#else

#include "tapestry/distributed/comm/internal/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/internal/nccl_failure.h"

namespace tapestry::distributed {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kFinalize{5};
constexpr Milliseconds kStoreWait{
    200};  // the longest wait for the store before the AbortFlag is checked again

std::atomic<const NcclFunctions*> replaced{nullptr};

const cuda::OpenLibrary& available_library() {
  const cuda::OpenLibrary& library = cuda::nccl_library();
  check<DistributedError>(library.about().available(), "[nccl] NCCL ", library.about().error,
                          "; or use the backend gloo");
  return library;
}

}  // namespace

NcclFunctions::NcclFunctions(const cuda::OpenLibrary& library)
#define TAPESTRY_LOAD(name) name = library.function<decltype(::name)>(#name);
    try {
  TAPESTRY_NCCL_FUNCTIONS(TAPESTRY_LOAD)
} catch (const DeviceError& e) {
  throw DistributedError(e.what());
}
#undef TAPESTRY_LOAD

const NcclFunctions& nccl() {
  if (const NcclFunctions* const other = replaced.load()) return *other;
  static const auto& one = *new NcclFunctions(available_library());
  return one;
}

void use_nccl_library(const cuda::OpenLibrary* library) {
  // A communicator keeps a reference to its table of functions, so a table is never freed, even if another
  // one replaces it.
  static std::mutex mutex;
  static auto& tables = *new std::vector<std::unique_ptr<const NcclFunctions> >;
  const std::lock_guard lock(mutex);
  if (library) tables.push_back(std::make_unique<const NcclFunctions>(*library));
  replaced.store(library ? tables.back().get() : nullptr);
}

void AbortFlag::set(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (set_.load()) return;
  why_ = why;
  set_.store(true);
}

void AbortFlag::check() const {
  if (!set_.load()) return;
  const std::lock_guard lock(mutex_);
  throw DistributedError("the communicator was aborted: " + why_);
}

Communicator::Communicator(Store& store, int rank, int size, Device device, Deadline deadline,
                           const NcclFunctions& nccl, std::shared_ptr<const AbortFlag> aborted)
    : nccl_(nccl),
      rank_(rank),
      device_(device),
      gpu_(cuda::device_properties(device).gpu),
      aborted_(std::move(aborted)) {
  ncclUniqueId id;
  if (rank == 0) {
    check_result(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    store.set("nccl", {id.internal, sizeof id.internal});
  } else {
    const std::string bytes = receive_id(store, deadline);
    check<DistributedError>(bytes.size() == sizeof id.internal, "[nccl] the store holds ", bytes.size(),
                            " bytes instead of NCCL's unique id of ", sizeof id.internal,
                            " bytes; use one version of this library on all ranks");
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  cuda::devices().runtime().choose(gpu_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    settle(nccl_.ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig", deadline);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  try {
    ncclResult_t result;
    {
      const std::lock_guard lock(mutex_);
      if (!comm_) return;
      result = nccl_.ncclCommFinalize(comm_);
    }
    settle(result, "ncclCommFinalize", deadline_after(kFinalize));
    const std::lock_guard lock(mutex_);
    if (comm_) static_cast<void>(nccl_.ncclCommDestroy(std::exchange(comm_, nullptr)));
  } catch (const Error&) {
    abort();
  }
}

void Communicator::enqueue(const char* call, Deadline deadline,
                           const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& f) {
  cuda::devices().runtime().choose(gpu_);
  const auto stream = static_cast<cudaStream_t>(current_stream(device_).native());
  ncclResult_t result;
  {
    const std::lock_guard lock(mutex_);
    check_alive();
    result = f(comm_, stream);
  }
  settle(result, call, deadline);
}

void Communicator::enqueue_together(const std::vector<std::shared_ptr<Communicator> >& all, const char* call,
                                    Deadline deadline,
                                    const std::function<ncclResult_t(const std::vector<ncclComm_t>&)>& f) {
  cuda::devices().runtime().choose(all.at(0)->gpu_);
  ncclResult_t result;
  {
    std::vector<std::unique_lock<std::mutex> > locks;
    std::vector<ncclComm_t> comms;
    for (const auto& communicator : all) {
      locks.emplace_back(communicator->mutex_);
      communicator->check_alive();
      comms.push_back(communicator->comm_);
    }
    result = f(comms);
  }
  for (const auto& communicator : all) communicator->settle(result, call, deadline);
}

void Communicator::poll() {
  const std::lock_guard lock(mutex_);
  check_alive();
  ncclResult_t state = ncclSuccess;
  check_result(nccl_.ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  if (state != ncclInProgress) check_result(state, "an earlier call");
}

void Communicator::abort() noexcept {
  ncclComm_t comm;
  {
    const std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm) static_cast<void>(nccl_.ncclCommAbort(comm));
}

void Communicator::check_alive() const {
  aborted_->check();
  check<DistributedError>(comm_ != nullptr, "the communicator failed earlier");
}

void Communicator::check_result(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess) return;
  const char* const last = nccl_.ncclGetLastError(comm_);
  throw DistributedError(
      nccl_failure_text({call, nccl_.ncclGetErrorString(result), last ? last : "", rank_, device_}));
}

// Polls until NCCL has done the host's part of `call`.
void Communicator::settle(ncclResult_t result, const char* call, Deadline deadline) {
  auto pause = 1us;
  while (result == ncclInProgress) {
    {
      const std::lock_guard lock(mutex_);
      check_alive();
      check_result(nccl_.ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
    }
    if (result != ncclInProgress) break;
    check<TimeoutError>(Clock::now() < deadline, call, " is not ready on rank ", rank_, " (", device_,
                        "): some rank does not take part");
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 1ms);
  }
  const std::lock_guard lock(mutex_);
  check_result(result, call);
}

// Waits for rank 0's unique id in the store. Each request to the store has a short timeout, because abort()
// cannot interrupt a request.
std::string Communicator::receive_id(Store& store, Deadline deadline) const {
  while (true) {
    aborted_->check();
    try {
      return store.get("nccl", std::min(kStoreWait, left_until(deadline)));
    } catch (const TimeoutError&) {
      if (Clock::now() >= deadline) throw;
    }
  }
}

}  // namespace tapestry::distributed

#endif
