#pragma once
// DataParallel trains one model on several devices from one process. Each device computes a part of the
// batch.
//
//   Net net;
//   distributed::DataParallel dp(net, {"cpu:0", "cpu:1"});  // or {0, 1}; nothing means all visible devices
//   optim::SGD optimizer(net.parameters(), {.lr = 0.1});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     Tensor loss = dp.loss(std::tie(images, labels), [&](const Tensor& x, const Tensor& y) {
//       return cross_entropy(net(x), y);  // runs on each device, on its part of the batch
//     });
//     loss.backward();
//     optimizer.step();
//   }
//
// dp(images) gathers the outputs instead. Then the loss of the whole batch is computed on the first device.
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/distributed/common/ddp_report.h"
#include "tapestry/distributed/data_parallel/steps.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

class Replicas;

enum class DataParallelMode {
  /// Every device keeps a replica. Gradients are added while backward runs, as DDP reduces them, and the
  /// optimizer steps each replica on its device. Parameters are copied between devices only after a change of
  /// the first replica alone. All devices need the same memory.
  replicated,
  /// The classic algorithm of PyTorch's DataParallel. The first device is the master: its parameters are
  /// copied to the other devices before every forward, the gradients are summed on it, and only its
  /// parameters are stepped. It moves more bytes and needs more memory on the master.
  master,
};

struct DataParallelOptions {
  DataParallelMode mode = DataParallelMode::replicated;
  /// Bucket sizes in MiB of gradients, as in DdpOptions. Used by `replicated` only.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  /// The transport that adds gradients under `replicated`: "nccl" between GPUs, or "local" through host
  /// memory. If empty, nccl is used if the library was built with it and each device is a GPU of its own.
  std::string backend = {};
};

/// A list of devices. {"cuda:0", "cuda:2"} names them. {0, 2} means the GPUs with these indices, or the
/// logical devices of the CPU if there is no GPU. {} means all visible GPUs, or all logical devices of the
/// CPU. Outputs are gathered on the first device.
class DeviceList {
 public:
  DeviceList();
  DeviceList(std::initializer_list<Device> devices) : devices_(devices) {}                   // NOLINT
  DeviceList(std::initializer_list<int> indices) : DeviceList(std::vector<int>(indices)) {}  // NOLINT
  DeviceList(std::vector<Device> devices) : devices_(std::move(devices)) {}                  // NOLINT
  DeviceList(const std::vector<int>& indices);                                               // NOLINT
  const std::vector<Device>& devices() const { return devices_; }

 private:
  std::vector<Device> devices_;
};

/// The part of DataParallel and ShardedDataParallel that does not depend on the model's type. Use one of
/// them.
class DataParallelBase {
 public:
  DataParallelBase(const DataParallelBase&) = delete;
  DataParallelBase& operator=(const DataParallelBase&) = delete;

  /// Returns the mean loss over `batch`. On each replica, fn(part) calls the model and returns the mean over
  /// its part; if the batch is a tuple, fn gets its elements as arguments. The means are weighted by chunk
  /// size, so the loss and its gradients equal those of a single device. Only losses and gradients are copied
  /// between devices. With LossKind::sum, fn returns sums, which are added. fn may return a tuple or pair of
  /// the loss and other values, which are gathered. Throws ValueError as operator() does, or if the loss is
  /// not one floating-point number.
  template <class Batch, class F>
  auto loss(const Batch& batch, const F& fn, LossKind kind = LossKind::mean) {
    structure::Owned<Batch> inputs(batch);
    return compute(inputs, kind == LossKind::mean ? Result::mean_loss : Result::sum_of_losses,
                   [&](auto& part) {
                     if constexpr (std::is_invocable_v<const F&, decltype(part)>) return fn(part);
                     else return std::apply(fn, part);
                   });
  }

  const std::vector<Device>& devices() const;
  DataParallelMode mode() const;
  /// The bytes of parameters and buffers that have been copied from the first replica to the others.
  std::int64_t bytes_broadcast() const;
  /// How the first replica's last backward pass overlapped with the sums, as DDP reports it. Empty under
  /// DataParallelMode::master.
  DdpReport report() const;

 protected:
  DataParallelBase(nn::Module& model, DeviceList devices, const DataParallelOptions& options);
  explicit DataParallelBase(std::shared_ptr<Replicas> replicas);
  ~DataParallelBase();

  enum class Result { outputs, mean_loss, sum_of_losses };
  using Compute = std::function<std::vector<Tensor>(int replica, const std::vector<Tensor>& inputs)>;
  /// Scatters the batch, replicates the model, applies `compute` and gathers its results. Unless `result` is
  /// Result::outputs, the first tensor that `compute` returns is a loss: it is not gathered but averaged,
  /// weighted by the size of each replica's chunk, or added.
  std::vector<Tensor> run(const TensorList& batch, Result result, const Compute& compute);

  /// Calls model(args...) and gathers the results.
  template <class M, class... Args>
  auto call(M& model, Args&&... args) {
    const auto forward = [&model](auto&... parts) { return nn::call(model, parts...); };
    std::tuple<structure::Owned<Args>...> inputs(args...);
    return compute(inputs, Result::outputs, [&](auto& part) { return std::apply(forward, part); });
  }

 private:
  template <class Inputs, class F>
  auto compute(const Inputs& inputs, Result kind, const F& fn) {
    using Returned = decltype(fn(std::declval<Inputs&>()));
    static_assert(!std::is_void_v<Returned>, "the function must return the result that is to be gathered");
    // Gathered tensors replace those of the first result, so a tuple of references becomes one of values.
    using Output =
        std::conditional_t<std::is_copy_constructible_v<Returned>, structure::Owned<Returned>, Returned>;
    std::vector<std::optional<Output>> results(devices().size());
    const auto gathered = run(tensors_in(inputs), kind, [&](int r, const std::vector<Tensor>& mine) {
      auto part = with_tensors(op(), inputs, mine);
      auto& result = results[static_cast<std::size_t>(r)];
      result.emplace(fn(part));
      return tensors_in(*result).tensors;
    });
    for (const auto& result : results)
      if (result) check_same_keys(*results[0], *result);
    Output output = std::move(*results[0]);
    put_tensors(output, gathered);
    return output;
  }

  const char* op() const;

  std::shared_ptr<Replicas> replicas_;
  bool warned_small_ = false, warned_device_ = false;
  void warn_of(const TensorList& batch);
};

/// Wraps a model. The model stays the user's, who trains, saves and evaluates it as usual: `net` itself is
/// the first replica. Any module works unchanged, because a replica is one more tensor in the slot of each
/// parameter and buffer. Plain members are shared by all replicas; nn::PerReplica is for members that forward
/// writes to. The model moves to the first device, and `to()` throws while it is replicated.
///
/// Batches are split along the first dimension, as evenly as possible. Arguments and results may be anything
/// that visit_tensors() looks into. Values that are not tensors go to all replicas and are returned from the
/// first. Buffers (running statistics) are those of the first replica. Each replica draws other random
/// numbers; they are derived from the first generator's seed and position.
///
/// All computations of a device run on its worker thread. A call returns when all workers have finished; it
/// then rethrows the first exception, with its device in the text, and everything remains usable. Call one
/// DataParallel from one thread at a time. Several that share devices take turns.
///
/// backward() runs each replica's graph on its worker; the calling thread's tape records all of them as one
/// operation. The caller's graph may use parameters outside of the call too, such as a penalty on weights or
/// a scale of the outputs, in the same backward() or in another one: gradients are those of one device. Hooks
/// on parameters run on the first replica only and see its part of the gradient. Under `replicated`,
/// optimizers and nn::clip_grad_norm_ change all replicas in the same way. Other code may change the
/// gradients or parameters of the first replica alone, which step() and the next call copy to the others, or
/// those of all replicas in the same way. Replicas that differ otherwise are a ValueError with the device and
/// the difference: after the first pass, and when another replica was changed more often than the first.
/// check_replicas() compares all values on request. backward_inputs() throws.
template <class M>
class DataParallel : public DataParallelBase {
 public:
  using Options = DataParallelOptions;
  /// Throws ValueError if there is no device, a device is named twice, the model has replicas already or
  /// belongs to a DistributedDataParallel, or an option is out of range. Throws DeviceError if a device does
  /// not exist, devices have different types, or the model's tensors are on several devices.
  explicit DataParallel(M& model, DeviceList devices = {}, const Options& options = {})
      : DataParallelBase(model, std::move(devices), options), model_(model) {}

  /// Calls model(args...), with any signature, and gathers the results on the first device. Outputs without
  /// dimensions become a vector with one element per replica. Throws ValueError if no argument has samples,
  /// if arguments have different numbers of samples, or if the replicas' results cannot be joined.
  template <class... Args>
  auto operator()(Args&&... args) {
    return call(model_, std::forward<Args>(args)...);
  }
  M& module() const { return model_; }

 private:
  M& model_;
};

}  // namespace tapestry::distributed
