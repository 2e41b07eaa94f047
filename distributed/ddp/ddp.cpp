#include "tapestry/distributed/ddp/ddp.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>

#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/common/kernel_choices.h"
#include "tapestry/nn/internal/max_norm.h"

namespace tapestry::distributed {
namespace {

// Hashes the values in row-major order, so the memory layout does not matter.
std::uint64_t hash_of(const Tensor& t) {
  const Tensor values = t.detach().to(kCPU).contiguous();
  const auto* bytes = static_cast<const unsigned char*>(values.raw_data());
  std::uint64_t hash = 0;
  for (std::size_t left = values.nbytes(); left > 0;) {
    std::uint64_t word = 0;
    const std::size_t size = std::min(left, sizeof word);
    std::memcpy(&word, bytes, size);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    bytes += size, left -= size;
  }
  return hash;
}

// Throws on every rank if a rank's values differ from rank 0's.
void check_values(ProcessGroup& group, const NamedTensors& parameters) {
  const NoGradGuard no_grad;
  std::vector<std::int64_t> own;
  for (const auto& [name, t] : parameters) own.push_back(std::bit_cast<std::int64_t>(hash_of(t)));
  const std::size_t count = own.size(), ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> all = all_gather_numbers(group, own, "hashes of parameters");
  std::string text;
  std::size_t differ = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t r = 1;
    while (r < ranks && all[r * count + i] == all[i]) ++r;
    if (r < ranks && ++differ <= 3)
      text += concat({"\n  ", parameters[i].first, " of rank ", r, " differs from rank 0's"});
  }
  if (differ > 3) text += concat({"\n  and ", differ - 3, " more"});
  check(differ == 0, "[DistributedDataParallel] the ranks train different weights:", text,
        "\n  make the same changes (load_state_dict, an init function) on all ranks, or make them before the "
        "model is wrapped, which broadcasts rank 0's values");
}

void check_devices(const NamedTensors& parameters, const DdpOptions& options) {
  const auto among = [&](Device d) {
    return std::find(options.device_ids.begin(), options.device_ids.end(), d) != options.device_ids.end();
  };
  for (const auto& [name, t] : parameters)
    check<DeviceError>(options.device_ids.empty() || among(t.device()), "[DistributedDataParallel] ", name,
                       " is on ", t.device(),
                       ", which is not among device_ids; move the model to one of them with to() first");
  check<DeviceError>(
      !options.output_device || options.device_ids.empty() || among(*options.output_device),
      "[DistributedDataParallel] output_device is not among device_ids; add it, or leave output_device out: "
      "the output stays where the model computes it");
}

}  // namespace

struct DdpBase::State {
  nn::Module& model;
  std::shared_ptr<ProcessGroup> group;
  bool broadcast_buffers;
  NamedTensors parameters;  // the parameters of the model when it was wrapped
  std::vector<bool> trained;
  std::unique_ptr<Reducer> reducer;

  NamedTensors buffers() const {
    NamedTensors tensors;
    for (const auto& [name, slot] : model.named_buffers()) tensors.emplace_back(name, slot.tensor());
    return tensors;
  }

  // The reducer knows only the tensors that were parameters when the model was wrapped. The gradient of a
  // parameter that was added or replaced later would not be averaged, and nothing else would report that.
  void check_parameters() const {
    const auto now = model.named_parameters();
    const char* const remedy = "; wrap the model again, on all ranks, after its last change";
    check(now.size() == parameters.size(), "[DistributedDataParallel] the model has ", now.size(),
          " parameters, but had ", parameters.size(), " when it was wrapped", remedy);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const auto& [name, slot] = now[i];
      check(slot.tensor().is_same(parameters[i].second), "[DistributedDataParallel] ", name,
            " is not the tensor that it was when the model was wrapped; to(device) and to(dtype) replace "
            "tensors",
            remedy);
      check(trained[i] || !slot.tensor().requires_grad(), "[DistributedDataParallel] ", name,
            " requires gradients, but did not when the model was wrapped", remedy);
    }
  }
};

DdpBase::DdpBase(nn::Module& model, const DdpOptions& options) {
  check(options.process_group != nullptr,
        "[DistributedDataParallel] process_group is null; pass what init_process_group() returned");
  if (options.process_group->size() > 1) {
    const std::string why = nn::why_not_divided(model);
    check(why.empty(), "[DistributedDataParallel] ", why);
  }
  state_.reset(new State{model, options.process_group, options.broadcast_buffers, {}, {}, nullptr});
  NamedTensors& all = state_->parameters;
  NamedTensors trained;
  for (const auto& [name, slot] : model.named_parameters()) {
    check(!slot.sharding(), "[DistributedDataParallel] '", name,
          "' is sharded, and fully_shard() averages its gradients already; use the sharded model itself");
    check(
        slot.replicas() == 1, "[DistributedDataParallel] '", name, "' has ", slot.replicas(),
        " replicas, and only the first one's gradient would be averaged; use one rank per device instead of "
        "DataParallel");
    all.emplace_back(name, slot.tensor());
    state_->trained.push_back(slot.tensor().requires_grad());
    if (state_->trained.back()) trained.emplace_back(name, slot.tensor());
  }
  check_devices(all, options);
  ReducerOptions reducer =
      bucket_sizes("DistributedDataParallel", options.bucket_cap_mb, options.first_bucket_mb);
  reducer.find_unused = options.find_unused_parameters;
  reducer.static_graph = options.static_graph;
  reducer.relearn_order = options.relearn_order;

  const NamedTensors buffers = state_->buffers();
  check_same_model(*state_->group, "DistributedDataParallel",
                   describe_tensors(all, "parameter") + describe_tensors(buffers, "buffer"));
  check(!trained.empty(), "[DistributedDataParallel] no parameter of ", model.type_name(),
        " requires gradients; there is nothing to train");
  broadcast_values(*state_->group, all, "parameters of rank 0");
  broadcast_values(*state_->group, buffers, "buffers of rank 0");
  state_->reducer = std::make_unique<Reducer>(std::move(trained), state_->group, reducer);
  state_->reducer->compare_values = [state = state_.get()] {
    check_values(*state->group, state->parameters);
  };
  if (state_->reducer->device().is_cuda()) {
    share_kernel_choices(*state_->group);
    // Rank 0 measures the shapes that the first passes meet, and later ones when they occur.
    state_->reducer->after_pass = [state = state_.get()] {
      if (std::has_single_bit(state->reducer->passes())) share_kernel_choices(*state->group);
    };
  }
}

DdpBase::~DdpBase() = default;

void DdpBase::before_forward() {
  if (!grad_enabled()) return;
  state_->check_parameters();
  if (state_->broadcast_buffers && state_->model.is_training()) sync_buffers();
}

void DdpBase::sync_buffers() { broadcast_values(*state_->group, state_->buffers(), "buffers of rank 0"); }

Device DdpBase::device() const { return state_->reducer->device(); }

NoSync DdpBase::no_sync() { return NoSync(state_->reducer->synchronize); }
void DdpBase::set_comm_hook(CommHook hook) { state_->reducer->comm_hook = std::move(hook); }
DdpReport DdpBase::report() const { return state_->reducer->report(); }
const std::vector<std::string>& DdpBase::unused_parameters() const { return state_->reducer->unused(); }
std::vector<std::vector<std::string>> DdpBase::buckets() const { return state_->reducer->bucket_names(); }
ProcessGroup& DdpBase::process_group() const { return *state_->group; }

}  // namespace tapestry::distributed
