// The state dicts of ZeroRedundancyOptimizer.
#include <algorithm>
#include <map>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/zero/internal/state.h"
#include "tapestry/nn/internal/masters.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {
namespace {

const std::string kPrefix = "zero.";

Tensor integers(const std::vector<std::int64_t>& values) { return tensor(values, {DType::i64, kCPU}); }

std::string state_key(std::size_t parameter, const char* name) {
  return concat({"state.", parameter, ".", name});
}

// A hash of all single numbers of the dict.
std::uint64_t hash_of_numbers(const nn::StateDict& dict) {
  std::string text;
  for (const auto& [key, t] : dict)
    if (t.defined() && t.dim() == 0 && !key.starts_with(kPrefix)) text += concat({key, " ", t.item(), "\n"});
  return fnv1a(text);
}

}  // namespace

void ZeroBase::consolidate_state_dict(int to) {
  const NoGradGuard no_grad;
  State& s = *state_;
  const int ranks = s.group->size(), rank = s.group->rank();
  check<IndexError>(to >= 0 && to < ranks, "[consolidate_state_dict] there is no rank ", to, "; there are ",
                    ranks);
  StateDict dict = s.inner->optimizer().state_dict();
  std::map<std::string, Tensor> parts, whole;
  for (const auto& [key, t] : dict) parts[key] = t;
  const auto collect = [&](const State::Share& share, const DividedBucket& b, std::size_t k, int root) {
    const TensorOptions options{optim::state_dtype(b.dtype), b.device};
    const bool receives = share.group->rank() == root;
    for (const char* const name : s.state_names(b.dtype)) {
      const Tensor own = zeros({b.chunk}, options);
      bool any = false;
      for (const int place : b.parameters) {
        const auto i = static_cast<std::size_t>(share.item_of[static_cast<std::size_t>(place)]);
        const auto part = parts.find(state_key(i, name));
        if (part == parts.end()) continue;
        any = true;
        const ElementRange range = s.range(s.items[i]);
        if (range.count > 0)
          own.narrow(0, share.division.offset(place) + range.begin - b.chunk * share.group->rank(),
                     range.count)
              .copy_(part->second);
      }
      if (!any) continue;
      const Tensor all = receives ? empty({b.chunk * share.group->size()}, options) : Tensor();
      share.group->gather(all, own, root, concat({name, " of bucket ", k})).wait();
      for (const int place : b.parameters) {
        const auto i = static_cast<std::size_t>(share.item_of[static_cast<std::size_t>(place)]);
        if (!receives || !parts.contains(state_key(i, name))) continue;
        const Tensor& t = s.items[i].tensor;
        whole[state_key(i, name)] =
            part_of(all, share.division.offset(place), t.sizes(), strides_in_bucket(t)).clone().to(kCPU);
      }
    }
  };
  std::int64_t root_of_parts = s.shares.back().group->rank();
  if (s.shares.size() > 1)
    s.group->broadcast(from_blob(&root_of_parts, {1}, DType::i64), to, "place among those of equal parts")
        .wait();
  for (std::size_t i = 0; s.settled && i < s.shares.size(); ++i)
    for (std::size_t k = 0; k < s.shares[i].division.buckets().size(); ++k)
      collect(s.shares[i], s.shares[i].division.buckets()[k], k,
              i == 0 ? to : static_cast<int>(root_of_parts));
  s.has_whole = rank == to;
  s.has_parts = s.shares.size() > 1 && s.shares[1].group->rank() == root_of_parts;
  s.collected = true;
  s.whole.clear();
  if (!s.has_whole && !s.has_parts) return;
  for (auto& [key, t] : dict) {
    const auto found = whole.find(key);
    s.whole.emplace_back(key, found == whole.end() ? t.to(kCPU) : found->second);
  }
}

nn::StateDict ZeroBase::state_dict() const {
  check(state_->has_whole, "[ZeroRedundancyOptimizer] the state is divided among the ranks, and this rank, ",
        state_->group->rank(), ", has a part of it; call consolidate_state_dict(", state_->group->rank(),
        ") on all ranks after the last step(), or save local_state_dict() on every rank");
  for (const State::Item& item : state_->items)
    if (const auto& layout = item.slot.layout(); layout)
      check(std::none_of(layout->cuts().begin(), layout->cuts().end(),
                         [](const nn::Cut& cut) { return cut.dim >= 0 && cut.group->size() > 1; }),
            "[state_dict] ", item.label,
            " is divided among ranks, and so is its state; save with "
            "distributed::save_checkpoint() or save_sharded() on all ranks");
  StateDict copy;
  for (const auto& [key, t] : state_->whole) copy.emplace_back(key, t.clone());
  return copy;
}

std::vector<optim::StateTensor> ZeroBase::state_tensors(int replica) const {
  const State& s = *state_;
  check(
      s.collected,
      "[ZeroRedundancyOptimizer] the state is divided among the ranks by elements, and nothing has collected "
      "it since the last step(); call consolidate_state_dict(0) on all ranks before a checkpoint is saved");
  std::vector<optim::StateTensor> all = s.inner->optimizer().state_tensors(replica);
  if (!s.has_whole)
    std::erase_if(all, [&](const optim::StateTensor& t) {
      return t.param >= 0 && !(s.has_parts && s.items[static_cast<std::size_t>(t.param)].share == 1);
    });
  if (!s.has_whole && !s.has_parts) return all;
  const nn::StateDictIndex index(s.whole);
  for (optim::StateTensor& t : all)
    if (const Tensor* const whole = index.find(t.key)) t.tensor = *whole;
  return all;
}

nn::StateDict ZeroBase::local_state_dict() const {
  const State& s = *state_;
  StateDict dict = s.inner->optimizer().state_dict();
  dict.emplace_back(kPrefix + "rank", scalar_tensor(std::int64_t{s.group->rank()}, {DType::i64, kCPU}));
  dict.emplace_back(kPrefix + "ranks", scalar_tensor(std::int64_t{s.group->size()}, {DType::i64, kCPU}));
  if (!s.settled) return dict;
  std::vector<std::int64_t> parts;
  for (const State::Item& item : s.items) {
    const ElementRange range = item.trained() ? s.range(item) : ElementRange{};
    parts.insert(parts.end(), {range.begin, range.count});
  }
  dict.emplace_back(kPrefix + "parts", integers(parts));
  for (const State::Share& share : s.shares)
    if (s.stage == 2)
      dict.emplace_back(kPrefix + "order" + share.suffix, integers({share.order.begin(), share.order.end()}));
  return dict;
}

// Cuts this rank's parts out of whole state tensors.
nn::StateDict ZeroBase::take_parts(const StateDict& dict) const {
  const State& s = *state_;
  const nn::StateDictIndex index(dict);
  std::map<std::string, Tensor> parts;
  std::string wrong;
  for (std::size_t i = 0; i < s.items.size(); ++i) {
    const Tensor& t = s.items[i].tensor;
    const ElementRange range = s.items[i].trained() ? s.range(s.items[i]) : ElementRange{};
    const MemoryFormat format = t.is_contiguous() ? MemoryFormat::contiguous : MemoryFormat::channels_last;
    for (const char* const name : s.state_names(t.dtype())) {
      const std::string key = state_key(i, name);
      const Tensor* const whole = index.find(key);
      if (!whole || !whole->defined()) continue;
      // Ranks of another axis may divide the parameter, and so its state.
      const Tensor mine = whole->sizes() == t.sizes() ? *whole : nn::stored_part(s.items[i].slot, 0, *whole);
      if (mine.defined() && mine.sizes() == t.sizes())
        parts[key] = elements_of(mine.detach().contiguous(format), range);
      else
        wrong +=
            "\n  wrong shape: " + key + " expected " + t.sizes().str() + " but got " + whole->sizes().str();
    }
  }
  check(wrong.empty(), "[load_state_dict] the state dict does not match this ", name(),
        ", and nothing was loaded:", wrong,
        "\npass the state of the same optimizer over the same parameters");
  StateDict result;
  for (const auto& [key, t] : dict) {
    const auto part = parts.find(key);
    result.emplace_back(key, part == parts.end() ? t : part->second);
  }
  return result;
}

void ZeroBase::load_state_dict(const StateDict& dict) {
  const NoGradGuard no_grad;
  State& s = *state_;
  for (const State::Share& share : s.shares)
    check(s.stage == 1 || share.reducer || share.item_of.empty(),
          "[load_state_dict] the DistributedDataParallel of this ", name(),
          " was destroyed; load the state while it exists");
  const Tensor* const rank = nn::find(dict, kPrefix + "rank");
  const Tensor* const ranks = nn::find(dict, kPrefix + "ranks");
  const Tensor* const saved_parts = nn::find(dict, kPrefix + "parts");
  if (rank || ranks) {
    const std::int64_t of = rank ? rank->item<std::int64_t>() : -1;
    const std::int64_t count = ranks ? ranks->item<std::int64_t>() : -1;
    check(of == s.group->rank() && count == s.group->size(), "[load_state_dict] this is the part of rank ",
          of, " of ", count, " ranks, but this is rank ", s.group->rank(), " of ", s.group->size(),
          "; load each part on the rank that saved it, or load a state that was saved after "
          "consolidate_state_dict()");
  }
  for (const State::Share& share : s.shares) {
    if (s.settled || !share.reducer || share.reducer->passes() > 0) continue;
    std::vector<int> places = share.reducer->order();
    if (const Tensor* const order = nn::find(dict, kPrefix + "order" + share.suffix)) {
      const std::vector<std::int64_t> saved = order->to_vector<std::int64_t>();
      places.assign(saved.begin(), saved.end());
    }
    share.reducer->fix_order(places);
  }
  s.settle();
  StateDict own;
  if (rank) {
    const nn::StateDict now = local_state_dict();
    const Tensor& here = *nn::find(now, kPrefix + "parts");
    check(
        !saved_parts || (saved_parts->sizes() == here.sizes() && saved_parts->equal(here)),
        "[load_state_dict] the state belongs to another division of the parameters; use the same "
        "parameters, stage and bucket sizes, or load a state that was saved after consolidate_state_dict()");
    for (const auto& [key, t] : dict)
      if (!key.starts_with(kPrefix)) own.emplace_back(key, t);
  } else {
    own = take_parts(dict);
  }
  s.inner->optimizer().load_state_dict(own);
  s.loaded = hash_of_numbers(own);
  s.has_whole = s.has_parts = s.collected = false;
  s.whole.clear();
}

}  // namespace tapestry::distributed
