// Between GPUs. Communicators do not block: a call returns at once, and whoever made it asks until NCCL has
// taken it or the deadline has come; what runs on the GPU is asked after by poll(), and abort() ends it.
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/backend.h"

#if defined(TAPESTRY_HAS_NCCL)
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/cuda/internal/check.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/device_work.h"
#include "tapestry/distributed/comm/internal/nccl_failure.h"
#endif

namespace tapestry::distributed {

#if defined(TAPESTRY_HAS_NCCL)
namespace {

using namespace std::chrono_literals;

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::u8:
    case DType::boolean:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_op(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::sum:
      return dtype == DType::boolean ? ncclMax : ncclSum;  // "or"
    case ReduceOp::mean:
      return ncclAvg;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::product:
      break;
  }
  return dtype == DType::boolean ? ncclMin : ncclProd;  // "and"
}

template <class T>
auto part(T* data, int i, std::size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + static_cast<std::size_t>(i) * bytes;
}

// The calls that f(add) makes, as one.
template <class F>
ncclResult_t grouped(F f) {
  ncclResult_t first = ncclGroupStart();
  f([&](ncclResult_t result) {
    if (first == ncclSuccess && result != ncclInProgress) first = result;
  });
  const ncclResult_t end = ncclGroupEnd();
  return first == ncclSuccess ? end : first;
}

/// One communicator. Calls come from one thread at a time, abort() and poll() from any.
class Communicator {
 public:
  /// A collective call of all ranks; `store` is theirs alone.
  Communicator(Store& store, int rank, int size, Device device, Deadline deadline)
      : rank_(rank), device_(device) {
    ncclUniqueId id;
    if (rank == 0) {
      check_result(ncclGetUniqueId(&id), "ncclGetUniqueId");
      store.set("nccl", {id.internal, sizeof id.internal});
    } else {
      const std::string bytes = store.get("nccl", left_until(deadline));
      check<DistributedError>(bytes.size() == sizeof id.internal, "[nccl] the store holds ", bytes.size(),
                              " bytes where NCCL's identity of ", sizeof id.internal,
                              " should be; use one version of this library on all ranks");
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    gpu_ = cuda::device_properties(device).gpu;
    cuda::use_gpu(gpu_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig", deadline);
    } catch (...) {
      abort("it was never made");
      throw;
    }
  }
  // What this rank has handed to the network is still on its way to others.
  ~Communicator() {
    if (!comm_) return;
    try {
      settle(ncclCommFinalize(comm_), "ncclCommFinalize", deadline_after(kGoodbye));
      static_cast<void>(ncclCommDestroy(std::exchange(comm_, nullptr)));
    } catch (const Error&) {
      abort("it was closed");
    }
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Gives NCCL the call f(communicator, stream of the device), and waits until it has taken it.
  void give(const char* call, Deadline deadline,
            const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& f) {
    cuda::use_gpu(gpu_);
    const auto stream = static_cast<cudaStream_t>(current_stream(device_).native());
    ncclResult_t result;
    {
      const std::lock_guard lock(mutex_);
      check_alive();
      result = f(comm_, stream);
    }
    settle(result, call, deadline);
  }

  void poll() {
    const std::lock_guard lock(mutex_);
    check_alive();
    ncclResult_t state = ncclSuccess;
    check_result(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) check_result(state, "a call that NCCL had taken");
  }

  void abort(const std::string& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (!comm_) return;
    why_gone_ = why;
    static_cast<void>(ncclCommAbort(comm_));
    comm_ = nullptr;
  }

 private:
  static constexpr std::chrono::seconds kGoodbye{5};

  void check_alive() const {
    check<DistributedError>(comm_ != nullptr, "the communicator is gone: ", why_gone_);
  }
  void check_result(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    const char* const last = ncclGetLastError(comm_);
    throw DistributedError(
        nccl_failure_text({call, ncclGetErrorString(result), last ? last : "", rank_, device_}));
  }

  // Until NCCL has done what `call` asked of the host.
  void settle(ncclResult_t result, const char* call, Deadline deadline) {
    auto pause = 1us;
    while (result == ncclInProgress) {
      check<TimeoutError>(Clock::now() < deadline, call, " is not ready on rank ", rank_, " (", device_,
                          "): some rank does not take part");
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, 1ms);
      const std::lock_guard lock(mutex_);
      check_alive();
      check_result(ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError");
    }
    const std::lock_guard lock(mutex_);
    check_result(result, call);
  }

  const int rank_;
  const Device device_;
  int gpu_ = 0;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  std::string why_gone_;
};

class NcclBackend final : public Backend {
 public:
  NcclBackend(const std::shared_ptr<Store>& store, int rank, int size, Device device, Deadline deadline)
      : store_(store),
        rank_(rank),
        size_(size),
        device_(device),
        comm_(*store, rank, size, device, deadline),
        token_(empty({1}, {DType::i32, device})) {}

  const char* name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Device device() const override { return device_; }
  void poll() override {
    comm_.poll();
    const std::lock_guard lock(mutex_);
    for (const auto& [key, lane] : lanes_) lane->poll();
  }

  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) override {
    comm_.give("ncclAllReduce", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data, data, size_of(count), nccl_type(dtype), nccl_op(op, dtype), comm, stream);
    });
  }
  void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline) override {
    comm_.give("ncclReduce", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduce(data, data, size_of(count), nccl_type(dtype), nccl_op(op, dtype), root, comm, stream);
    });
  }
  void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, ReduceOp op,
                      Deadline deadline) override {
    comm_.give("ncclReduceScatter", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(in, out, size_of(count), nccl_type(dtype), nccl_op(op, dtype), comm, stream);
    });
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
    comm_.give("ncclBroadcast", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data, data, bytes, ncclUint8, root, comm, stream);
    });
  }
  void all_gather(const void* in, void* out, std::size_t bytes, Deadline deadline) override {
    comm_.give("ncclAllGather", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(in, out, bytes, ncclUint8, comm, stream);
    });
  }
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    comm_.give("a gather by ncclSend and ncclRecv", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped([&](auto add) {
        add(ncclSend(in, bytes, ncclUint8, root, comm, stream));
        for (int i = 0; rank_ == root && i < size_; ++i)
          add(ncclRecv(part(out, i, bytes), bytes, ncclUint8, i, comm, stream));
      });
    });
  }
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    comm_.give("a scatter by ncclSend and ncclRecv", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped([&](auto add) {
        for (int i = 0; rank_ == root && i < size_; ++i)
          add(ncclSend(part(in, i, bytes), bytes, ncclUint8, i, comm, stream));
        add(ncclRecv(out, bytes, ncclUint8, root, comm, stream));
      });
    });
  }
  void all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline) override {
    comm_.give("an all-to-all by ncclSend and ncclRecv", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped([&](auto add) {
        for (int i = 0; i < size_; ++i) {
          add(ncclSend(part(in, i, bytes), bytes, ncclUint8, i, comm, stream));
          add(ncclRecv(part(out, i, bytes), bytes, ncclUint8, i, comm, stream));
        }
      });
    });
  }
  void barrier(Deadline deadline) override {
    all_reduce(token_.raw_data(), 1, DType::i32, ReduceOp::max, deadline);
    Event done;
    done.record(current_stream(device_));
    while (!done.wait_for(10ms)) {
      poll();
      check<TimeoutError>(Clock::now() < deadline, device_, " has not done its part of the barrier");
    }
    poll();
  }
  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    lane(rank_, peer, tag, deadline).give("ncclSend", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclSend(data, bytes, ncclUint8, 1, comm, stream);
    });
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    lane(peer, rank_, tag, deadline).give("ncclRecv", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclRecv(data, bytes, ncclUint8, 0, comm, stream);
    });
  }
  void abort(const std::string& why) noexcept override {
    comm_.abort(why);
    const std::lock_guard lock(mutex_);
    for (const auto& [key, lane] : lanes_) lane->abort(why);
  }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>& store,
                                 Deadline deadline) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank_);
    check<IndexError>(self != ranks.end(), "[split] rank ", rank_, " is not of the new group");
    return std::make_shared<NcclBackend>(store, static_cast<int>(self - ranks.begin()),
                                         static_cast<int>(ranks.size()), device_, deadline);
  }

 private:
  static std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

  // Messages of one direction and tag have a communicator of their own, made with the first one: on one of
  // all ranks a message would wait for the collectives before it. Its rank 0 sends.
  Communicator& lane(int from, int to, std::uint32_t tag, Deadline deadline) {
    const std::tuple key(from, to, tag);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = lanes_.find(key); found != lanes_.end()) return *found->second;
    }
    comm_.poll();  // aborted: no new one
    const auto own = prefix_store(concat({"lane/", from, "-", to, "/", tag, "/"}), store_);
    auto made = std::make_unique<Communicator>(*own, from == rank_ ? 0 : 1, 2, device_, deadline);
    const std::lock_guard lock(mutex_);
    return *(lanes_[key] = std::move(made));
  }

  const std::shared_ptr<Store> store_;
  const int rank_, size_;
  const Device device_;
  Communicator comm_;
  const Tensor token_;  // of barriers
  std::mutex mutex_;
  std::map<std::tuple<int, int, std::uint32_t>, std::unique_ptr<Communicator>> lanes_;  // from, to, tag
};

}  // namespace

std::shared_ptr<Backend> nccl_backend(const std::shared_ptr<Store>& store, int rank, int size, Device device,
                                      Milliseconds timeout) {
  check<ValueError>(size >= 1 && rank >= 0 && rank < size, "[nccl] rank ", rank, " of ", size,
                    "; ranks count from 0 to size - 1");
  check<DeviceError>(device.is_cuda(), "[nccl] device ", device,
                     "; NCCL joins GPUs, pass a CUDA device or use the backend gloo");
  check_device("nccl", device);
  return std::make_shared<NcclBackend>(store, rank, size, device, deadline_after(timeout));
}

bool built_with_nccl() { return true; }

#else

std::shared_ptr<Backend> nccl_backend(const std::shared_ptr<Store>&, int, int, Device, Milliseconds) {
  fail<DistributedError>(
      "[nccl] this library was built without NCCL; use the backend gloo, or build it again where "
      "nccl.h and a CUDA toolkit are found");
}

bool built_with_nccl() { return false; }

#endif

}  // namespace tapestry::distributed
