#pragma once
// DataParallel: one process, one model, several devices, each of which computes its share of the batch.
//
//   Net net;
//   distributed::DataParallel dp(net, {"cpu:0", "cpu:1"});  // or {0, 1}, or nothing: all that can be seen
//   optim::SGD optimizer(net.parameters(), {.lr = 0.1});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     Tensor loss = dp.loss(std::tie(images, labels), [&](const Tensor& x, const Tensor& y) {
//       return cross_entropy(net(x), y);  // on each device, of its part
//     });
//     loss.backward();
//     optimizer.step();
//   }
//
// dp(images) gathers the outputs instead, for a loss of the whole batch on the first device.
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/distributed/data_parallel/steps.h"
#include "tapestry/distributed/ddp/report.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

class Replicas;

enum class Strategy {
  /// Every device keeps a replica of its own. Gradients are averaged while backward runs, as under DDP, and
  /// the optimizer steps each replica on its device; parameters travel only when somebody changed the first
  /// replica's. Memory is the same on all devices.
  replicated,
  /// The classic: the first device is the master. Its parameters go to the others before every forward; their
  /// gradients come back to it and are added there; it alone steps. More bytes, and more memory on the
  /// master.
  master,
};

struct DataParallelOptions {
  Strategy strategy = Strategy::replicated;
  /// Bucket sizes in MiB of gradients, as DDP's; `replicated` only.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  /// What averages gradients under `replicated`: "nccl", between GPUs, or "local", through the host's memory.
  /// Empty: nccl where the library has it and each device is a GPU of its own.
  std::string backend = {};
};

/// {"cuda:0", "cuda:2"}; {0, 2}, the GPUs of these indices, or without any GPU the logical devices of the
/// CPU; {}, all GPUs that can be seen, or all logical devices of the CPU. The first is where outputs are
/// gathered.
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

/// What DataParallel does whatever the model's type; use that.
class DataParallelBase {
 public:
  DataParallelBase(const DataParallelBase&) = delete;
  DataParallelBase& operator=(const DataParallelBase&) = delete;

  const std::vector<Device>& devices() const;
  Strategy strategy() const;
  /// Bytes of parameters and buffers that went from the first replica to the others so far.
  std::int64_t bytes_broadcast() const;
  /// Under `replicated`: how the first replica's last backward pass overlapped with averaging, as DDP reports
  /// it.
  DdpReport report() const;

 protected:
  DataParallelBase(nn::Module& model, DeviceList devices, const DataParallelOptions& options);
  ~DataParallelBase();

  enum class Result { outputs, loss };
  using Compute = std::function<std::vector<Tensor>(int replica, const std::vector<Tensor>& inputs)>;
  /// Scatters, replicates, applies `compute` and gathers what it returned. Of a loss the first tensor is
  /// averaged instead, weighted by the replicas' shares of the batch.
  std::vector<Tensor> run(const TensorList& batch, Result result, const Compute& compute);

 private:
  std::shared_ptr<Replicas> replicas_;
  bool warned_small_ = false, warned_device_ = false;
  void warn_of(const TensorList& batch);
};

namespace structure {

/// How a part of a batch is held: by value, references too, but for what cannot be copied.
template <class T>
struct HeldValue {
  using type = std::conditional_t<std::is_copy_constructible_v<T>, T, T&>;
};
template <class... T>
struct HeldValue<std::tuple<T...>> {
  using type = std::tuple<typename HeldValue<std::remove_cvref_t<T>>::type...>;
};
template <class A, class B>
struct HeldValue<std::pair<A, B>> {
  using type = std::pair<typename HeldValue<std::remove_cvref_t<A>>::type,
                         typename HeldValue<std::remove_cvref_t<B>>::type>;
};
template <class T>
using Held = typename HeldValue<std::remove_cvref_t<T>>::type;

}  // namespace structure

/// Wraps a model, which stays the user's and is trained, saved and evaluated as ever: `net` itself is the
/// first replica. Any module, with no code for it: replicas are tensors in the slots of its parameters and
/// buffers, and plain members are shared by all (nn::PerReplica is there for what forward writes to). The
/// model moves to the first device; `to()` is refused while it is replicated. Batches are split along the
/// first dimension, as evenly as can be; arguments and results may be whatever visit_tensors knows, and what
/// is no tensor goes to all, and comes from the first. Buffers (running statistics) are those of the first
/// replica. Each replica draws its own random numbers, which follow from the first one's seed and position.
///
/// All compute of a device happens on its worker. A call returns when all have ended; the first exception is
/// then rethrown with its device in the text, and everything can be used as before. Calls of one DataParallel
/// come from one thread at a time; several on the same devices take turns.
///
/// backward() runs each replica's graph on its own worker; to the tape of the calling thread all of them are
/// one operation. Hooks on parameters are the first replica's, and see its part. Under `replicated`
/// optimizers and nn::clip_grad_norm_ change all replicas alike; what changes gradients otherwise between
/// backward() and step() has to do so too. backward_inputs() is refused.
template <class M>
class DataParallel : public DataParallelBase {
 public:
  using Options = DataParallelOptions;
  /// ValueError for no devices or one named twice, a model that has replicas already or belongs to a
  /// DistributedDataParallel, and options out of range; DeviceError for devices that there are not, of two
  /// types, or a model that lies on several.
  explicit DataParallel(M& model, DeviceList devices = {}, const Options& options = {})
      : DataParallelBase(model, std::move(devices), options), model_(model) {}

  /// model(args...), whatever its signature; the results gathered on the first device. Outputs without
  /// dimensions become a vector with one element a replica. ValueError if the arguments hold no tensor with
  /// samples, or of different numbers of them, and if replicas return what cannot be joined.
  template <class... Args>
  auto operator()(Args&&... args) {
    const auto forward = [this](auto&... parts) { return nn::call(model_, parts...); };
    std::tuple<structure::Held<Args>...> inputs(args...);
    return compute(inputs, Result::outputs, [&](auto& part) { return std::apply(forward, part); });
  }

  /// The mean loss over `batch`. fn(part), or fn(parts of a tuple...), computes on each replica the mean over
  /// its part, by calling the model itself; the result is weighted by shares, so that it and its gradients
  /// are those of one device. Nothing but losses and gradients travels. fn may return a tuple or pair: the
  /// loss, and what is to be gathered with it. ValueError as operator(), and unless the loss is one floating
  /// number.
  template <class Batch, class F>
  auto loss(const Batch& batch, const F& fn) {
    structure::Held<Batch> inputs(batch);
    return compute(inputs, Result::loss, [&](auto& part) {
      if constexpr (std::is_invocable_v<const F&, decltype(part)>) return fn(part);
      else return std::apply(fn, part);
    });
  }
  M& module() const { return model_; }

 private:
  template <class Inputs, class F>
  auto compute(const Inputs& inputs, Result kind, const F& fn) {
    using Output = decltype(fn(std::declval<Inputs&>()));
    static_assert(!std::is_void_v<Output>, "what a replica computes has to be returned, to be gathered");
    std::vector<std::optional<Output>> results(devices().size());
    const auto gathered = run(tensors_in(inputs), kind, [&](int r, const std::vector<Tensor>& mine) {
      Inputs part = inputs;
      put_tensors(part, mine);
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

  M& model_;
};

}  // namespace tapestry::distributed
