#pragma once
// The four steps of data parallelism in one process, each usable for itself:
//
//   auto parts = distributed::scatter(images, devices);
//   distributed::replicate(net, devices);
//   auto outputs = distributed::apply(net, parts, devices);   // each on its device's worker
//   Tensor output = distributed::gather(outputs, devices[0]);
//
// All are recorded: output.backward() goes back through them, on the calling thread. DataParallel does the
// same and runs backward on the devices' workers too.
#include <functional>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/data_parallel/visit.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// The tensors of a value in the order of visit_tensors, and which of them belong to no sample.
struct TensorList {
  std::vector<Tensor> tensors;
  std::vector<bool> whole;
};

template <class T>
TensorList tensors_in(const T& value) {
  TensorList list;
  visit_tensors(value, [&](const Tensor& t, bool whole) {
    list.tensors.push_back(t);
    list.whole.push_back(whole);
  });
  return list;
}

/// Puts other tensors in the places of those in `value`.
template <class T>
void put_tensors(T& value, const std::vector<Tensor>& tensors) {
  std::size_t at = 0;
  visit_tensors(value, [&](Tensor& t, bool) { t = tensors.at(at++); });
}

/// How many samples each device gets: as even as can be, the first ones one more. No more parts than there
/// are samples, but one at least. ValueError for no devices, or a negative number of samples.
std::vector<std::int64_t> shares_of(std::int64_t samples, std::size_t devices);

/// The share of one part in the whole, for means; 1 where there are no samples at all.
double weight_of(std::span<const std::int64_t> shares, std::size_t part);

/// How many samples a batch has: the size of the first dimension of its first tensor that is not `whole` and
/// has one. ValueError, naming `op`, if another one has a different number, or there is none.
std::int64_t samples_in(const char* op, const TensorList& batch);
/// The tensors of each part, where they are: views of as many samples as `shares` says. Those without
/// dimensions, and `whole` ones, are in every part.
std::vector<std::vector<Tensor>> split_tensors(const TensorList& batch, std::span<const std::int64_t> shares);
/// The same, each part on its device, in shares_of(samples_in(batch), devices).
std::vector<std::vector<Tensor>> scatter_tensors(const TensorList& batch, std::span<const Device> devices);
/// One after the other along the first dimension, on `device`; those without dimensions become the elements
/// of a vector. ValueError if parts differ in the number of tensors, or one of these in dtype or number of
/// dimensions.
std::vector<Tensor> gather_tensors(const std::vector<std::vector<Tensor>>& parts, Device device);

/// The gradient of a tensor that was dealt out as `parts`, from those of the parts, on `device`: one after
/// the other, or, where each part was the `whole` tensor, their sum. Undefined ones count as zeros; undefined
/// if all are.
Tensor join_gradients(const std::vector<Tensor>& gradients, const std::vector<Tensor>& parts, bool whole,
                      Device device);

/// Deals the samples of a batch out: anything that visit_tensors knows, split along the first dimension.
/// There may be fewer parts than devices: see shares_of.
template <class T>
std::vector<T> scatter(const T& batch, std::span<const Device> devices) {
  const auto parts = scatter_tensors(tensors_in(batch), devices);
  std::vector<T> dealt(parts.size(), batch);
  for (std::size_t r = 0; r < parts.size(); ++r) put_tensors(dealt[r], parts[r]);
  return dealt;
}

/// ValueError if the maps in two results have different keys.
template <class T>
void check_same_keys(const T& a, const T& b) {
  check(same_keys(a, b), "[gather] replicas returned maps with different keys; return the same from each");
}

/// Joins what replicas returned; what is no tensor is the first one's.
template <class T>
T gather(const std::vector<T>& parts, Device device) {
  check(!parts.empty(), "[gather] there are no parts; pass one or more");
  std::vector<std::vector<Tensor>> tensors;
  for (const T& part : parts) {
    check_same_keys(parts[0], part);
    tensors.push_back(tensors_in(part).tensors);
  }
  T joined = parts[0];
  put_tensors(joined, gather_tensors(tensors, device));
  return joined;
}

/// Gives every parameter and buffer of `model` one tensor a device, with the values of the first, which moves
/// to devices[0]; so the model, its optimizers and hooks on its parameters stay what they are. Again: copies
/// the first's values to the others. Throws ValueError for devices that are named twice or none at all,
/// DeviceError for one that does not exist.
void replicate(nn::Module& model, std::span<const Device> devices);
/// Keeps the first replica alone.
void unreplicate(nn::Module& model);

/// Throws ValueError on a thread that is one of these devices' workers: a replica runs there.
void check_no_replica(std::span<const Device> devices);
/// Runs task(r) on the worker of devices[r], all at once, as replica r with that device for new tensors.
/// Returns when all have ended; rethrows the first exception, with its device in the text.
void on_replicas(std::span<const Device> devices, const std::function<void(int)>& task);

/// model(parts[r]) on devices[r] for each part, all at once; the parts of a tuple are the arguments. A model
/// that was replicated over these devices. ValueError for more parts than devices.
template <class M, class Part>
auto apply(M& model, const std::vector<Part>& parts, std::span<const Device> devices) {
  const auto call = [&](const Part& part) {
    if constexpr (structure::is_a<Part, std::tuple>)
      return std::apply([&](const auto&... args) { return nn::call(model, args...); }, part);
    else return nn::call(model, part);
  };
  check(parts.size() <= devices.size(), "[apply] ", parts.size(), " parts for ", devices.size(),
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
