#include "tapestry/distributed/data_parallel/data_parallel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/data_parallel/internal/replica_graphs.h"
#include "tapestry/distributed/data_parallel/internal/replicas.h"

namespace tapestry::distributed {
namespace {

DeviceType preferred_type() {
  return device_count(DeviceType::cuda) > 0 ? DeviceType::cuda : DeviceType::cpu;
}

std::string listed(std::span<const Device> devices) {
  std::string text;
  for (const Device d : devices) text += (text.empty() ? "" : ", ") + d.str();
  return text;
}

void warn(const char* op, const std::string& text) {
  std::fprintf(stderr, "[%s] warning: %s\n", op, text.c_str());
}

// Lists the visible devices and the settings that decide which are visible.
std::string about_visible_devices() {
  const int gpus = device_count(DeviceType::cuda);
  std::string text = concat({"Visible CUDA devices: ", gpus});
  for (int i = 0; i < gpus; ++i) {
    const Device gpu(DeviceType::cuda, i);
    text += concat({i ? ", " : " (", gpu, " ", cuda::device_properties(gpu).name, i + 1 == gpus ? ")" : ""});
  }
  if (gpus == 0) text += " (" + cuda::why_no_device() + ")";
  const char* const shown = std::getenv("CUDA_VISIBLE_DEVICES");
  text += shown ? concat({"; CUDA_VISIBLE_DEVICES is \"", shown, "\""})
                : "; CUDA_VISIBLE_DEVICES is not set, so none is hidden";
  return text + concat({". Logical devices of the CPU: ", device_count(DeviceType::cpu),
                        "; TAPESTRY_LOGICAL_DEVICES=2 makes two"});
}

}  // namespace

DeviceList::DeviceList() {
  const DeviceType type = preferred_type();
  for (int i = 0; i < device_count(type); ++i) devices_.emplace_back(type, i);
}
DeviceList::DeviceList(const std::vector<int>& indices) {
  for (const int i : indices) devices_.emplace_back(preferred_type(), i);
}

DataParallelBase::DataParallelBase(nn::Module& model, DeviceList list, const DataParallelOptions& options) {
  const std::vector<Device>& devices = list.devices();
  check_replica_devices("DataParallel", devices);
  if (devices.size() == 1 && device_count(devices[0].type) == 1)
    warn("DataParallel", concat({"there is only one device, ", devices[0], ", so it does all the work. ",
                                 about_visible_devices()}));
  replicas_ = std::make_shared<Replicas>(model, devices, options);
}

DataParallelBase::DataParallelBase(std::shared_ptr<Replicas> replicas) : replicas_(std::move(replicas)) {}
DataParallelBase::~DataParallelBase() { replicas_->close(); }

const std::vector<Device>& DataParallelBase::devices() const { return replicas_->devices; }
DataParallelMode DataParallelBase::mode() const { return replicas_->options.mode; }
std::int64_t DataParallelBase::bytes_broadcast() const { return replicas_->bytes_broadcast(); }
const char* DataParallelBase::op() const { return replicas_->op; }
DdpReport DataParallelBase::report() const { return replicas_->report(); }

void DataParallelBase::warn_of(const TensorList& batch) {
  const std::vector<Device>& on = devices();
  for (std::size_t k = 0; k < batch.tensors.size(); ++k) {
    const Tensor& t = batch.tensors[k];
    if (!t.defined() || batch.whole[k] || t.dim() == 0) continue;
    const std::size_t used = chunk_sizes(t.size(0), on.size()).size();
    if (!warned_small_ && used < on.size()) {
      warned_small_ = true;
      warn(replicas_->op, concat({"a batch of ", t.size(0), " for ", on.size(),
                                  " devices leaves nothing to do for ", listed(std::span(on).subspan(used)),
                                  "; use batches of at least ", on.size(), ", or fewer devices"}));
    }
    // Each GPU gets its chunk directly from host memory.
    const bool from_host = t.device().is_cpu() && on[0].is_cuda();
    if (!warned_device_ && !from_host && !(t.device() == on[0])) {
      warned_device_ = true;
      warn(replicas_->op, concat({"an input is on ", t.device(), ", but the first of the devices ",
                                  listed(on), " is ", on[0], "; it is copied in every call: create it on ",
                                  on[0], on[0].is_cuda() ? ", or leave it in host memory" : ""}));
    }
  }
}

std::vector<Tensor> DataParallelBase::run(const TensorList& batch, Result result, const Compute& compute) {
  check_no_replica(devices());
  warn_of(batch);
  if (devices().size() == 1) {  // nothing is split: record on the calling thread's tape
    const DeviceGuard guard(devices()[0]);
    std::vector<Tensor> outputs = compute(0, scatter_tensors(batch, devices())[0]);
    if (result != Result::outputs) {
      check_loss(replicas_->op, outputs);
      outputs[0] = outputs[0].reshape({});
    }
    for (std::size_t i = result != Result::outputs ? 1 : 0; i < outputs.size(); ++i)
      if (outputs[i].defined() && outputs[i].dim() == 0) outputs[i] = outputs[i].reshape({1});
    return outputs;
  }
  const auto graphs = std::make_shared<ReplicaGraphs>(replicas_, result == Result::outputs ? std::nullopt
                                                                 : result == Result::mean_loss
                                                                     ? std::optional(LossKind::mean)
                                                                     : std::optional(LossKind::sum));
  graphs->scatter(batch);
  replicas_->synchronize();
  graphs->apply(compute);
  return graphs->gather(batch);
}

}  // namespace tapestry::distributed
