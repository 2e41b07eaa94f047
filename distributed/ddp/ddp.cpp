#include "tapestry/distributed/ddp/ddp.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>

#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/ddp/reducer.h"

namespace tapestry::distributed {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr std::int64_t kBroadcastBytes = 25 << 20;

// One line a tensor, what ranks must agree on.
std::string describe(const NamedTensors& tensors, const char* what) {
  std::string text;
  for (const auto& [name, t] : tensors)
    text +=
        concat({what, " ", name, " ", t.dtype(), " ", t.sizes(), t.requires_grad() ? "" : " frozen", "\n"});
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// What one has and the other lacks, in order; at most `most` lines.
std::string difference(const std::vector<std::string>& mine, const std::vector<std::string>& others,
                       std::size_t most) {
  std::string text;
  std::size_t count = 0;
  for (const std::string& line : mine)
    if (std::find(others.begin(), others.end(), line) == others.end() && ++count <= most)
      text += "\n    " + line;
  if (count > most) text += "\n    and " + std::to_string(count - most) + " more";
  return text.empty() ? "\n    nothing, or the same in another order" : text;
}

// Ranks exchange hashes, and the lists themselves only where those differ.
void verify(ProcessGroup& group, const std::string& mine) {
  const auto own = std::bit_cast<std::int64_t>(fnv1a(mine));
  const std::vector<std::int64_t> hashes = all_gather_numbers(group, {&own, 1}, "hash of parameters");
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t h) { return h == hashes[0]; })) return;

  const std::vector<std::string> lists = all_gather_text(group, mine, "list of parameters");
  const std::vector<std::string> first = lines_of(lists[0]);
  std::string text;
  for (std::size_t r = 1; r < lists.size(); ++r) {
    if (lists[r] == lists[0]) continue;
    const std::vector<std::string> other = lines_of(lists[r]);
    text += concat({"\n  rank ", r, " has, and rank 0 has not:"}) + difference(other, first, 10);
    text += concat({"\n  rank 0 has, and rank ", r, " has not:"}) + difference(first, other, 10);
  }
  fail("[DistributedDataParallel] the model is not the same on all ranks:", text,
       "\n  build it from the same options on every rank");
}

// Rank 0's values, several tensors in one message.
void broadcast_values(ProcessGroup& group, const NamedTensors& tensors, const char* what) {
  const NoGradGuard no_grad;
  std::map<std::pair<DType, std::string>, std::vector<Tensor>> kinds;
  for (const auto& [name, t] : tensors) kinds[{t.dtype(), t.device().str()}].push_back(t);
  for (auto& [kind, list] : kinds) {
    for (std::size_t begin = 0; begin < list.size();) {
      std::int64_t elements = 0;
      std::size_t end = begin;
      while (end < list.size() &&
             (end == begin ||
              (elements + list[end].numel()) * static_cast<std::int64_t>(dtype_size(kind.first)) <=
                  kBroadcastBytes))
        elements += list[end++].numel();
      const Tensor flat = empty({elements}, {kind.first, list[begin].device()});
      std::int64_t at = 0;
      for (std::size_t i = begin; i < end; at += list[i++].numel())
        if (group.rank() == 0)
          flat.narrow(0, at, list[i].numel()).view(list[i].sizes()).copy_(list[i].detach());
      group.broadcast(flat, 0, what).wait();
      at = 0;
      for (std::size_t i = begin; i < end; at += list[i++].numel())
        if (group.rank() != 0)
          list[i].detach().copy_(flat.narrow(0, at, list[i].numel()).view(list[i].sizes()));
      begin = end;
    }
  }
}

// Of the values, whatever their layout.
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

// Throws on every rank if one of them has not rank 0's values.
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
      text += concat({"\n  ", parameters[i].first, " of rank ", r, " is not rank 0's"});
  }
  if (differ > 3) text += concat({"\n  and ", differ - 3, " more"});
  check(differ == 0, "[DistributedDataParallel] the ranks train different weights:", text,
        "\n  change them (load_state_dict, an init function) on all ranks alike, or before the model is "
        "wrapped, which takes over rank 0's");
}

void check_devices(const NamedTensors& parameters, const DdpOptions& options) {
  const auto among = [&](Device d) {
    return std::find(options.device_ids.begin(), options.device_ids.end(), d) != options.device_ids.end();
  };
  for (const auto& [name, t] : parameters)
    check<DeviceError>(options.device_ids.empty() || among(t.device()), "[DistributedDataParallel] ", name,
                       " is on ", t.device(),
                       ", which is not among device_ids; move the model there with to() first");
  check<DeviceError>(
      !options.output_device || options.device_ids.empty() || among(*options.output_device),
      "[DistributedDataParallel] output_device is not among device_ids; the output stays where the "
      "model computes it");
}

}  // namespace

struct DdpBase::State {
  nn::Module& model;
  std::shared_ptr<ProcessGroup> group;
  bool broadcast_buffers;
  NamedTensors parameters;  // as they were when the model was wrapped
  std::vector<bool> trained;
  std::unique_ptr<Reducer> reducer;

  NamedTensors buffers() const {
    NamedTensors tensors;
    for (const auto& [name, slot] : model.named_buffers()) tensors.emplace_back(name, slot.tensor());
    return tensors;
  }

  // The reducer averages the gradients of the tensors that it knows; any other would be trained by this rank
  // alone, and nothing would tell.
  void check_parameters() const {
    const auto now = model.named_parameters();
    const char* const remedy =
        "; wrap the model anew, on all ranks, when it is complete and where it is to be";
    check(now.size() == parameters.size(), "[DistributedDataParallel] the model has ", now.size(),
          " parameters, and had ", parameters.size(), " when it was wrapped", remedy);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const auto& [name, slot] = now[i];
      check(slot.tensor().is_same(parameters[i].second), "[DistributedDataParallel] ", name,
            " is another tensor than when the model was wrapped, as after to(device) or to(dtype)", remedy);
      check(trained[i] || !slot.tensor().requires_grad(), "[DistributedDataParallel] ", name,
            " requires gradients, and did not when the model was wrapped", remedy);
    }
  }
};

DdpBase::DdpBase(nn::Module& model, const DdpOptions& options) {
  check(options.process_group != nullptr,
        "[DistributedDataParallel] process_group is null; pass what init_process_group() returned");
  state_.reset(new State{model, options.process_group, options.broadcast_buffers, {}, {}, nullptr});
  NamedTensors& all = state_->parameters;
  NamedTensors trained;
  for (const auto& [name, slot] : model.named_parameters()) {
    check(slot.replicas() == 1, "[DistributedDataParallel] '", name, "' has ", slot.replicas(),
          " replicas, and only the first one's gradient would be averaged; use a rank a device instead of "
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
  verify(*state_->group, describe(all, "parameter") + describe(buffers, "buffer"));
  check(!trained.empty(), "[DistributedDataParallel] no parameter of ", model.type_name(),
        " requires gradients; there is nothing to train");
  broadcast_values(*state_->group, all, "parameters of rank 0");
  broadcast_values(*state_->group, buffers, "buffers of rank 0");
  state_->reducer = std::make_unique<Reducer>(std::move(trained), state_->group, reducer);
  state_->reducer->compare_values = [state = state_.get()] {
    check_values(*state->group, state->parameters);
  };
}

DdpBase::~DdpBase() = default;

void DdpBase::before_forward() {
  if (!grad_enabled()) return;
  state_->check_parameters();
  if (state_->broadcast_buffers && state_->model.is_training()) sync_buffers();
}

void DdpBase::sync_buffers() { broadcast_values(*state_->group, state_->buffers(), "buffers of rank 0"); }

void DdpBase::after_forward(Clock::time_point began) {
  if (state_->reducer->trace) state_->reducer->trace->span(Lane::compute, "forward", began, Clock::now());
}

DdpBase::NoSync::NoSync(DdpBase& ddp) : ddp_(ddp), outer_(ddp.state_->reducer->synchronise) {
  ddp.state_->reducer->synchronise = false;
}
DdpBase::NoSync::~NoSync() { ddp_.state_->reducer->synchronise = outer_; }

void DdpBase::set_comm_hook(CommHook hook) { state_->reducer->comm_hook = std::move(hook); }
DdpReport DdpBase::report() const { return state_->reducer->report(); }
const std::vector<std::string>& DdpBase::unused_parameters() const { return state_->reducer->unused(); }
std::vector<std::vector<std::string>> DdpBase::buckets() const { return state_->reducer->bucket_names(); }
void DdpBase::set_trace(Trace* trace) { state_->reducer->trace = trace; }
ProcessGroup& DdpBase::process_group() const { return *state_->group; }

}  // namespace tapestry::distributed
