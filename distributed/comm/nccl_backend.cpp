// The backend between GPUs, over NCCL. Calls enqueue work on the current stream and return; poll() reports
// failures of that work, and abort() ends it.
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/backend.h"

#if defined(TAPESTRY_HAS_NCCL)
#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/internal/nccl_communicator.h"
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
    case DType::i16:  // collectives that reduce refuse these three, and the others move bytes
    case DType::i8:
    case DType::u16:
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

/// Returns the address of block i of `data`, whose blocks have `bytes` bytes.
template <class T>
auto part(T* data, int i, std::size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + static_cast<std::size_t>(i) * bytes;
}

/// Runs f(add) between ncclGroupStart() and ncclGroupEnd(). f must pass the result of each of its NCCL calls
/// to add(). Returns the first error.
template <class F>
ncclResult_t grouped(const NcclFunctions& nccl, F f) {
  const ncclResult_t start = nccl.ncclGroupStart();
  if (start != ncclSuccess) return start;
  ncclResult_t first = ncclSuccess;
  f([&](ncclResult_t result) {
    if (first == ncclSuccess && result != ncclInProgress) first = result;
  });
  const ncclResult_t end =
      nccl.ncclGroupEnd();  // called after a failed call too, because the group would otherwise stay open
  return first == ncclSuccess ? end : first;
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(const std::shared_ptr<Store>& store, int rank, int size, Device device, Deadline deadline)
      : store_(store),
        rank_(rank),
        size_(size),
        device_(device),
        comm_(*store, rank, size, device, deadline, nccl_, aborted_),
        token_(empty({1}, {DType::i32, device})) {}

  const char* name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Device device() const override { return device_; }
  void poll() override {
    comm_.poll();
    for (const auto& channel : channels()) channel->poll();
  }

  void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) override {
    comm_.enqueue("ncclAllReduce", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_.ncclAllReduce(data, data, size_of(count), nccl_type(dtype), nccl_op(op, dtype), comm,
                                 stream);
    });
  }
  void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
              Deadline deadline) override {
    comm_.enqueue("ncclReduce", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_.ncclReduce(data, data, size_of(count), nccl_type(dtype), nccl_op(op, dtype), root, comm,
                              stream);
    });
  }
  using Backend::all_gather;
  using Backend::all_to_all;
  using Backend::reduce_scatter;
  // The calls of one group are one launch for NCCL.
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, Deadline deadline) override {
    comm_.enqueue("ncclReduceScatter", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      const auto scatter = [&](const ScatterPart& p) {
        return nccl_.ncclReduceScatter(p.in, p.out, size_of(p.count), nccl_type(p.dtype),
                                       nccl_op(op, p.dtype), comm, stream);
      };
      if (parts.size() == 1) return scatter(parts[0]);
      return grouped(nccl_, [&](auto add) {
        for (const ScatterPart& p : parts) add(scatter(p));
      });
    });
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
    comm_.enqueue("ncclBroadcast", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_.ncclBroadcast(data, data, bytes, ncclUint8, root, comm, stream);
    });
  }
  void all_gather(std::span<const GatherPart> parts, Deadline deadline) override {
    comm_.enqueue("ncclAllGather", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      const auto gather = [&](const GatherPart& p) {
        return nccl_.ncclAllGather(p.in, p.out, p.bytes, ncclUint8, comm, stream);
      };
      if (parts.size() == 1) return gather(parts[0]);
      return grouped(nccl_, [&](auto add) {
        for (const GatherPart& p : parts) add(gather(p));
      });
    });
  }
  void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    comm_.enqueue("gather (ncclSend, ncclRecv)", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped(nccl_, [&](auto add) {
        add(nccl_.ncclSend(in, bytes, ncclUint8, root, comm, stream));
        for (int i = 0; rank_ == root && i < size_; ++i)
          add(nccl_.ncclRecv(part(out, i, bytes), bytes, ncclUint8, i, comm, stream));
      });
    });
  }
  void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) override {
    comm_.enqueue("scatter (ncclSend, ncclRecv)", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped(nccl_, [&](auto add) {
        for (int i = 0; rank_ == root && i < size_; ++i)
          add(nccl_.ncclSend(part(in, i, bytes), bytes, ncclUint8, i, comm, stream));
        add(nccl_.ncclRecv(out, bytes, ncclUint8, root, comm, stream));
      });
    });
  }
  void all_to_all(std::span<const ExchangePart> parts, Deadline deadline) override {
    comm_.enqueue("all_to_all (ncclSend, ncclRecv)", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped(nccl_, [&](auto add) {
        for (int i = 0; i < size_; ++i) {
          const ExchangePart& p = parts[static_cast<std::size_t>(i)];
          if (p.in_bytes > 0) add(nccl_.ncclSend(p.in, p.in_bytes, ncclUint8, i, comm, stream));
          if (p.out_bytes > 0) add(nccl_.ncclRecv(p.out, p.out_bytes, ncclUint8, i, comm, stream));
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
      check<TimeoutError>(Clock::now() < deadline, device_, " has not finished its part of the barrier");
    }
    poll();
  }
  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    channel({rank_, peer, tag}, deadline)
        ->enqueue("ncclSend", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
          return nccl_.ncclSend(data, bytes, ncclUint8, 1, comm, stream);
        });
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) override {
    channel({peer, rank_, tag}, deadline)
        ->enqueue("ncclRecv", deadline, [&](ncclComm_t comm, cudaStream_t stream) {
          return nccl_.ncclRecv(data, bytes, ncclUint8, 0, comm, stream);
        });
  }
  // One group of calls, on the communicators of all messages. Ranks make missing communicators in the order
  // of their keys, so that they do not wait for one another in a circle.
  void exchange(std::span<const MessagePart> messages, Deadline deadline) override {
    const auto key = [this](const MessagePart& m) {
      return m.sends ? ChannelKey(rank_, m.peer, m.tag) : ChannelKey(m.peer, rank_, m.tag);
    };
    std::map<ChannelKey, std::size_t> places;
    for (const MessagePart& m : messages) places[key(m)] = 0;
    std::vector<std::shared_ptr<Communicator>> all;
    for (auto& [name, place] : places) {
      place = all.size();
      all.push_back(channel(name, deadline));
    }
    const auto group = [&](const std::vector<ncclComm_t>& comms) {
      return grouped(nccl_, [&](auto add) {
        for (const MessagePart& m : messages) {
          const ncclComm_t comm = comms[places.at(key(m))];
          const auto stream = static_cast<cudaStream_t>(m.stream->native());
          add(m.sends ? nccl_.ncclSend(m.data, m.bytes, ncclUint8, 1, comm, stream)
                      : nccl_.ncclRecv(m.data, m.bytes, ncclUint8, 0, comm, stream));
        }
      });
    };
    Communicator::enqueue_together(all, "batch_isend_irecv (ncclSend, ncclRecv)", deadline, group);
  }
  void abort(const std::string& why) noexcept override {
    aborted_->set(why);
    comm_.abort();
    for (const auto& channel : channels()) channel->abort();
  }
  std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>& store,
                                 Deadline deadline) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank_);
    check<IndexError>(self != ranks.end(), "[split] rank ", rank_,
                      " is not in the new group; only its members may call split()");
    return std::make_shared<NcclBackend>(store, static_cast<int>(self - ranks.begin()),
                                         static_cast<int>(ranks.size()), device_, deadline);
  }

 private:
  static std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

  using Channels = std::vector<std::shared_ptr<Communicator>>;

  Channels channels() {
    const std::lock_guard lock(mutex_);
    Channels all;
    for (const auto& [key, channel] : channels_) all.push_back(channel);
    return all;
  }

  using ChannelKey = std::tuple<int, int, std::uint32_t>;  // sender, receiver, tag

  // Returns the communicator for messages of this sender, receiver and tag. The first message creates it. It
  // has two ranks, and the sender is its rank 0. On the communicator of all ranks, a message would wait for
  // earlier collectives.
  std::shared_ptr<Communicator> channel(const ChannelKey& key, Deadline deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = channels_.find(key); found != channels_.end()) return found->second;
    }
    comm_.poll();  // throws if the backend was aborted
    const auto [from, to, tag] = key;
    const auto own = prefix_store(concat({"channel/", from, "-", to, "/", tag, "/"}), store_);
    auto made =
        std::make_shared<Communicator>(*own, from == rank_ ? 0 : 1, 2, device_, deadline, nccl_, aborted_);
    {
      const std::lock_guard lock(mutex_);
      channels_[key] = made;
    }
    comm_.poll();  // throws if abort() was called before the insertion and so missed the new communicator
    return made;
  }

  const NcclFunctions& nccl_ = nccl();
  const std::shared_ptr<Store> store_;
  const int rank_, size_;
  const Device device_;
  const std::shared_ptr<AbortFlag> aborted_ = std::make_shared<AbortFlag>();
  Communicator comm_;
  const Tensor token_;  // the data of barriers
  std::mutex mutex_;    // guards channels_
  std::map<ChannelKey, std::shared_ptr<Communicator>> channels_;
};

}  // namespace

std::shared_ptr<Backend> nccl_backend(const std::shared_ptr<Store>& store, int rank, int size, Device device,
                                      Milliseconds timeout) {
  check<ValueError>(size >= 1 && rank >= 0 && rank < size, "[nccl] rank ", rank, " of ", size,
                    " is invalid; ranks count from 0 to size - 1");
  check<DeviceError>(device.is_cuda(), "[nccl] device ", device,
                     " is not a CUDA device; pass a CUDA device, or use the backend gloo");
  check_device("nccl", device);
  return std::make_shared<NcclBackend>(store, rank, size, device, deadline_after(timeout));
}

bool built_with_nccl() { return true; }

#else

std::shared_ptr<Backend> nccl_backend(const std::shared_ptr<Store>&, int, int, Device, Milliseconds) {
  fail<DistributedError>(
      "[nccl] this library was built without NCCL; use the backend gloo, or rebuild this library on a "
      "machine that "
      "has nccl.h and the CUDA headers");
}

bool built_with_nccl() { return false; }

#endif

}  // namespace tapestry::distributed
