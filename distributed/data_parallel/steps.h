#pragma once
// The four steps of data parallelism in one process, as functions:
//
//   auto parts = distributed::scatter(images, devices);
//   distributed::replicate(net, devices);
//   auto outputs = distributed::apply(net, parts, devices);   // on each device's worker thread
//   Tensor output = distributed::gather(outputs, devices[0]);
//
// All steps are recorded: output.backward() runs back through them on the calling thread. DataParallel takes
// the same steps, but runs backward on the workers too.
#include <functional>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/distributed/common/batch.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// Splits a batch and copies each chunk to its device: result[r][i] is the i-th tensor's chunk on devices[r].
/// Chunk sizes are chunk_sizes(samples_in("scatter", batch), devices.size()).
std::vector<std::vector<Tensor>> scatter_tensors(const TensorList& batch, std::span<const Device> devices);

/// Splits any batch that visit_tensors() looks into along the first dimension. Returns fewer chunks than
/// devices if there are fewer samples. Values that are not tensors are copied to every chunk. The chunks of
/// a tuple of references, such as std::tie(x, y), are tuples of values.
template <class T>
std::vector<structure::Owned<T>> scatter(const T& batch, std::span<const Device> devices) {
  std::vector<structure::Owned<T>> chunks;
  for (const auto& tensors : scatter_tensors(tensors_in(batch), devices))
    chunks.push_back(with_tensors("scatter", batch, tensors));
  return chunks;
}

/// Throws ValueError if the maps in two results have different keys.
template <class T>
void check_same_keys(const T& a, const T& b) {
  (check)(structure::same_keys<Tensor, Whole>(a, b),
          "[gather] replicas returned maps with different keys; return the same keys from each");
}

/// Joins the results of replicas on `device`: see gather_tensors(). Values that are not tensors come from the
/// first result.
template <class T>
structure::Owned<T> gather(const std::vector<T>& parts, Device device) {
  (check)(!parts.empty(), "[gather] there is nothing to gather; pass one part or more");
  std::vector<std::vector<Tensor>> tensors;
  for (const T& part : parts) {
    check_same_keys(parts[0], part);
    tensors.push_back(tensors_in(part).tensors);
  }
  return with_tensors("gather", parts[0], gather_tensors(tensors, device));
}

/// Gives every parameter and buffer of `model` one tensor per device, with the values of the first tensor,
/// which moves to devices[0]. The model, its optimizers and the hooks on its parameters stay valid. Called
/// again with the same devices, it copies the first tensor's values to the others. Throws ValueError if
/// `devices` is empty or names a device twice, or if a parameter is sharded or belongs to a
/// DistributedDataParallel; DeviceError if a device does not exist.
void replicate(nn::Module& model, std::span<const Device> devices);
/// Throws ValueError, with the parameter, the device and the difference, unless all replicas of each
/// parameter have the same values. It reads all of them. Slots with one replica and sharded ones are skipped.
void check_replicas(const nn::Module& model);
/// Keeps only the first replica of every parameter and buffer. Throws ValueError for the model of a
/// ShardedDataParallel.
void unreplicate(nn::Module& model);

/// Throws ValueError if the calling thread is the worker of one of these devices: replicas cannot be nested.
void check_no_replica(std::span<const Device> devices);
/// Runs task(r) on the worker of devices[r], all at the same time. The task's context has replica r and
/// devices[r] as its device. Returns when all tasks have ended and rethrows the first exception, with its
/// device in the text.
void on_replicas(std::span<const Device> devices, const std::function<void(int)>& task);

/// Computes model(parts[r]) on devices[r] for each part, all at the same time. If a part is a tuple, its
/// elements are the arguments. The model must be replicated over these devices. Throws ValueError if there
/// are more parts than devices.
template <class M, class Part>
auto apply(M& model, const std::vector<Part>& parts, std::span<const Device> devices) {
  const auto call = [&](const Part& part) {
    if constexpr (structure::is_a<Part, std::tuple>)
      return std::apply([&](const auto&... args) { return nn::call(model, args...); }, part);
    else return nn::call(model, part);
  };
  (check)(parts.size() <= devices.size(), "[apply] ", parts.size(), " parts for ", devices.size(),
          " devices; scatter over the same devices");
  std::vector<std::optional<decltype(call(parts[0]))>> results(parts.size());
  on_replicas(devices.first(parts.size()), [&](int r) {
    results[static_cast<std::size_t>(r)].emplace(call(parts[static_cast<std::size_t>(r)]));
  });
  std::vector<decltype(call(parts[0]))> outputs;
  for (auto& result : results) outputs.push_back(std::move(*result));
  return outputs;
}

}  // namespace tapestry::distributed
