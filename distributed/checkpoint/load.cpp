#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/kernel_policy.h"
#include "tapestry/distributed/checkpoint/internal/boxes.h"
#include "tapestry/distributed/checkpoint/internal/load.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"
#include "tapestry/distributed/checkpoint/internal/state.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/common/element_divided.h"
#include "tapestry/distributed/common/internal/generator_states.h"
#include "tapestry/nn/internal/kernel_choices.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {
namespace {

using namespace checkpoint;

using nn::stored_tensor, nn::whole_sizes;

/// The boxes of a slot that a replica stores.
nn::Boxes boxes_of(const nn::TensorSlot& slot, int replica) {
  return slot.layout() ? slot.layout()->boxes(replica)
                       : nn::Boxes{{nn::Region::whole(slot.replica(0).sizes())}};
}

/// A tensor of the checkpoint and where its elements go: all tensors of `to` get the same boxes.
struct Destination {
  std::string name;
  nn::Boxes boxes;
  std::vector<Tensor> to;
};

/// One load, whose steps are checked before anything is changed.
class Load {
 public:
  Load(const std::string& folder, const ShardedTraining& training, bool verify)
      : reader_(folder),
        training_(training),
        verify_(verify),
        whole_state_(dynamic_cast<const ElementDivided*>(training.optimizer) != nullptr) {
    match_model();
    match_optimizer();
    match_scheduler();
    match_scaler();
    check(wrong_.empty(), "[load_sharded] the checkpoint ", folder,
          " does not match, and nothing was loaded:", wrong_,
          "\npass the model and the optimizer that it was saved from");
  }

  ShardReader& reader() { return reader_; }
  /// Checks the files that will be read.
  void check_files() {
    for (const auto* list : {&destinations_, &states_})
      for (const Destination& d : *list)
        for (const nn::Region& box : d.boxes.all) reader_.check_shards(d.name, box);
    if (!verify_) return;
    for (const auto* list : {&destinations_, &states_})
      for (const Destination& d : *list)
        for (const nn::Region& box : d.boxes.all) reader_.verify(d.name, box);
  }

  /// Loads the optimizer's and the schedule's numbers, and creates the optimizer's state. If one of them does
  /// not fit, nothing has changed.
  void load_small() {
    const nn::StateDict old_schedule =
        training_.scheduler ? training_.scheduler->state_dict() : nn::StateDict();
    std::vector<OldOption> old_options = options_that_change();
    for (std::size_t i = 0; whole_state_ && i < states_.size(); ++i)
      optimizer_.emplace_back(state_keys_[i], reader_.read(states_[i].name));
    if (training_.scheduler) training_.scheduler->load_state_dict(schedule_);
    if (!training_.optimizer) return;
    try {
      training_.optimizer->load_state_dict(optimizer_);
    } catch (...) {
      if (training_.scheduler) {
        training_.scheduler->load_state_dict(old_schedule);
        for (const OldOption& o : old_options) training_.optimizer->set_option(o.group, o.name, o.value);
      }
      throw;
    }
    if (training_.scheduler) training_.scheduler->load_state_dict(schedule_);  // its rates come last
    if (training_.scaler) training_.scaler->load_state_dict(scaler_);
    if (whole_state_) return states_.clear();
    std::map<std::pair<std::string, int>, Tensor> tensors;  // by key and replica
    const int replicas =
        state_replicas_.empty() ? 0 : *std::max_element(state_replicas_.begin(), state_replicas_.end()) + 1;
    for (int r = 0; r < replicas; ++r)
      for (const optim::StateTensor& t : training_.optimizer->state_tensors(r))
        if (t.like_param) tensors.emplace(std::pair(t.key, r), t.tensor);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const auto found = tensors.find({state_keys_[i], state_replicas_[i]});
      check(found != tensors.end(), "[load_sharded] the optimizer ", training_.optimizer->name(),
            " has not taken ", state_keys_[i],
            ", so it is loaded in part; give it the parameters that the checkpoint was saved with");
      states_[i].to = {found->second};
    }
  }

  void load_boxes() {
    for (const auto* list : {&destinations_, &states_})
      for (const Destination& d : *list) {
        // A load is one change of a tensor, in however many parts it is read, because the ranks compare how
        // often they changed each parameter. So the parts are written through tensors with other versions.
        const auto in_parts = [](const Tensor& t) { return t.is_contiguous() && t.numel() > 0; };
        std::vector<Tensor> targets;
        for (const Tensor& t : d.to)
          targets.push_back(in_parts(t) ? from_blob(t.raw_data(), t.sizes(), {t.dtype(), t.device()}) : t);
        for (std::size_t i = 0; i < d.boxes.all.size(); ++i) {
          const nn::Region& box = d.boxes.all[i];
          reader_.read(d.name, box, [&](const Tensor& elements, const nn::Region& where) {
            for (const Tensor& to : targets) inside(where, box).of(d.boxes.view(to, i)).copy_(elements);
          });
        }
        for (const Tensor& t : d.to)
          if (in_parts(t) || t.numel() == 0) t.storage()->bump_version();
      }
    for (const auto* slots : {&training_.parameters, &training_.buffers})
      for (const auto& [name, slot] : *slots) nn::refresh_full(slot);
  }

 private:
  struct OldOption {
    std::size_t group;
    std::string name;
    double value;
  };
  /// The values of the optimizer's options that the checkpoint has too.
  std::vector<OldOption> options_that_change() const {
    std::vector<OldOption> options;
    for (const auto& [key, value] : optimizer_) {
      std::size_t group = 0;
      const std::size_t begin = std::string_view("groups.").size();
      if (!key.starts_with("groups.")) continue;
      const auto [stop, error] = std::from_chars(key.data() + begin, key.data() + key.size(), group);
      if (error != std::errc() || *stop != '.' || group >= training_.optimizer->num_groups()) continue;
      const std::string name = stop + 1;
      if (training_.optimizer->has_option(name))
        options.push_back({group, name, training_.optimizer->option(group, name)});
    }
    return options;
  }

  template <class... Parts>
  void complain(const Parts&... parts) {
    wrong_ += concat({"\n  ", tapestry::Piece(parts)...});
  }

  /// Returns the name under which the checkpoint has a slot, or an empty text. A tied weight may have been
  /// saved under any of its names.
  std::string saved_name(const std::string& name) const {
    if (reader_.find(name)) return name;
    for (const auto& [alias, target] : training_.aliases)
      if (target == name && reader_.find(alias)) return alias;
    return "";
  }

  void match_model() {
    std::set<std::string> known;
    for (const auto& [alias, target] : training_.aliases) known.insert(alias);
    for (const auto* slots : {&training_.parameters, &training_.buffers}) {
      for (const auto& [name, slot] : *slots) {
        known.insert(name);
        const std::string saved = saved_name(name);
        if (saved.empty()) {
          complain("missing: ", name);
          continue;
        }
        const TensorRecord& record = *reader_.find(saved);
        if (record.sizes != whole_sizes(slot)) {
          complain("wrong shape: ", name, " expected ", whole_sizes(slot), " but got ", record.sizes);
          continue;
        }
        if (slot.layout()) {
          for (int r = 0; r < slot.replicas(); ++r)
            destinations_.push_back({saved, boxes_of(slot, r), {stored_tensor(slot, r).detach()}});
        } else {
          Destination& d = destinations_.emplace_back(Destination{saved, boxes_of(slot, 0), {}});
          for (int r = 0; r < slot.replicas(); ++r) d.to.push_back(slot.replica(r).detach());
        }
      }
    }
    if (training_.part_of_model || known.empty()) return;
    for (const auto& [name, tensor] : reader_.index().tensors) {
      if (name.starts_with(kTraining) || known.contains(name)) continue;
      const auto& aliases = reader_.index().aliases;
      const bool other_name = std::any_of(aliases.begin(), aliases.end(), [&](const auto& alias) {
        return alias.second == name && known.contains(alias.first);
      });
      if (!other_name) complain("unexpected: ", name);
    }
  }

  void match_optimizer() {
    if (!training_.optimizer) return;
    optim::Optimizer& optimizer = *training_.optimizer;
    const Index& index = reader_.index();
    check(!index.optimizer.empty(), "[load_sharded] ", reader_.folder(),
          ": contains no optimizer state; load the model alone");
    check(index.optimizer == optimizer.name(), "[load_sharded] ", reader_.folder(),
          ": was saved with the optimizer ", index.optimizer, ", not ", optimizer.name(),
          "; use the same optimizer, or load the model alone");
    std::map<std::string, std::size_t> group_of;
    for (std::size_t g = 0; g < index.groups.size(); ++g)
      for (const std::string& name : index.groups[g]) group_of.emplace(name, g);
    if (index.groups.size() != optimizer.num_groups())
      complain("the optimizer has ", index.groups.size(), " parameter groups in the checkpoint and ",
               optimizer.num_groups(), " here");

    const std::vector<std::string> names =
        nn::checkpoint_file::parameter_names(optimizer, training_.parameters);
    std::size_t n = 0;
    for (std::size_t g = 0; g < optimizer.num_groups(); ++g) {
      const std::vector<nn::Parameter>& params = optimizer.params(g);
      optimizer_.emplace_back("groups." + std::to_string(g) + ".num_params",
                              scalar_tensor(static_cast<std::int64_t>(params.size()), {DType::i64, kCPU}));
      for (const nn::Parameter& param : params) {
        std::string name = names[n];
        for (const auto& [alias, target] : training_.aliases)
          if (!group_of.contains(name) && target == names[n]) name = alias;
        for (const auto& [alias, target] : index.aliases)
          if (!group_of.contains(name) && alias == names[n]) name = target;
        const auto group = group_of.find(name);
        if (group == group_of.end()) complain("the optimizer of the checkpoint does not have ", name);
        else if (group->second != g)
          complain(name, " is in group ", group->second, " of the optimizer in the checkpoint and in group ",
                   g, " here");
        else match_state("state." + std::to_string(n) + ".", name, param);
        if (group != group_of.end()) group_of.erase(group);
        ++n;
      }
    }
    if (!training_.part_of_model)
      for (const auto& [name, group] : group_of) {
        const bool tied = std::any_of(training_.aliases.begin(), training_.aliases.end(),
                                      [&, &key = name](const auto& alias) { return alias.first == key; });
        if (!tied) complain("the optimizer does not have ", name, " here");
      }
    each(kOptions, [&](const std::string& rest, const std::string& name, const TensorRecord& record) {
      if (record.sizes.numel() != 1) complain("not a number: ", name);
      else optimizer_.emplace_back("groups." + rest, read_small(name));
    });
  }

  void match_state(const std::string& prefix, const std::string& name, const nn::Parameter& param) {
    if (whole_state_ && nn::is_of_other_stage(param)) return;  // whose ranks load it
    each(kState + name + "/", [&](const std::string& rest, const std::string& tensor, const TensorRecord& t) {
      if (t.sizes != whole_sizes(param)) {
        complain("wrong shape: ", tensor, " expected ", whole_sizes(param), " but got ", t.sizes);
        return;
      }
      const Tensor& local = stored_tensor(param, 0);
      if (whole_state_) {
        states_.push_back({tensor, {{t.whole()}}, {}});
        state_keys_.push_back(prefix + rest);
        return;
      }
      // One element stands for the state, which the optimizer allocates when it loads it. The rows are read
      // into that memory later, so that they exist once. Of a whole state, each replica takes its box.
      const int replicas = param.layout() ? param.replicas() : 1;
      const bool low = local.dtype() == DType::f16 || local.dtype() == DType::bf16;  // with f32 states
      optimizer_.emplace_back(
          prefix + rest,
          zeros({}, {low ? DType::f32 : local.dtype(), local.device()}).expand(whole_sizes(param)));
      for (int r = 0; r < replicas; ++r) {
        states_.push_back({tensor, boxes_of(param, r), {}});
        state_keys_.push_back(prefix + rest);
        state_replicas_.push_back(r);
      }
    });
    each(kExtra + name + "/", [&](const std::string& rest, const std::string& tensor, const TensorRecord&) {
      optimizer_.emplace_back(prefix + rest, read_small(tensor));
    });
  }

  void match_scheduler() {
    if (!training_.scheduler) return;
    check(reader_.index().scheduler, "[load_sharded] ", reader_.folder(),
          ": contains no schedule state; load it without a schedule");
    each(kScheduler, [&](const std::string& rest, const std::string& name, const TensorRecord&) {
      schedule_.emplace_back(rest, read_small(name));
    });
  }

  void match_scaler() {
    if (!training_.scaler || !training_.scaler->is_enabled()) return;
    each(kScaler, [&](const std::string& rest, const std::string& name, const TensorRecord&) {
      scaler_.emplace_back(rest, read_small(name));
    });
    check(!scaler_.empty(), "[load_sharded] ", reader_.folder(),
          ": contains no gradient scaler's state; load it without a scaler");
    optim::GradScaler().load_state_dict(scaler_);  // throws before anything is changed
  }

  /// Reads a small tensor whose values are needed before the first change.
  Tensor read_small(const std::string& name) {
    if (verify_) reader_.verify(name);
    return reader_.read(name);
  }

  /// Calls fn(rest of the name, name, record) for the tensors whose names begin with `prefix`.
  template <class F>
  void each(const std::string& prefix, const F& fn) {
    const auto& tensors = reader_.index().tensors;
    for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it)
      fn(it->first.substr(prefix.size()), it->first, it->second);
  }

  ShardReader reader_;
  const ShardedTraining& training_;
  const bool verify_, whole_state_;  // the optimizer takes whole tensors
  std::string wrong_;
  std::vector<Destination> destinations_, states_;
  std::vector<std::string> state_keys_;
  std::vector<int> state_replicas_;
  nn::StateDict optimizer_, schedule_, scaler_;
};

/// The number by which a rank derives generators from those of rank 0.
int number_of(const ShardedTraining& training, const LoadShardedOptions& options) {
  return training.place ? training.place->stage * training.place->data_size + training.place->data
                        : options.rank;
}

/// The number of the generators that belong to this rank, if the checkpoint has them.
std::optional<std::size_t> find_generators(const std::string& folder, const Index& index,
                                           const ShardedTraining& training,
                                           const LoadShardedOptions& options) {
  const std::string place = place_text("load_sharded", training.place);
  const std::vector<std::string>& all = index.generators;
  if (place.empty() || all.empty() || place_in(all[0]).empty()) {
    const auto number = static_cast<std::size_t>(options.rank);  // the ranks wrote them in their order
    return number < all.size() ? std::optional(number) : std::nullopt;
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    if (place_in(all[i]) == place) return i;
  if (options.rank == 0)
    std::fprintf(
        stderr,
        "[load_sharded] warning: %s has no random generators for %s, but for %s and others; all ranks "
        "derive theirs anew, so dropout differs from that of a run that was not interrupted\n",
        folder.c_str(), place.c_str(), place_in(all[0]).c_str());
  return {};
}

void warn_of_other_choices(const std::string& folder, const StringMap& saved, const StringMap& now) {
  std::string others;
  for (const auto& [name, value] : now)
    if (const auto found = saved.find(name); found != saved.end() && found->second != value)
      others += concat({others.empty() ? "" : ", ", name, "=", found->second, " (now ", value, ")"});
  if (!others.empty())
    std::fprintf(stderr,
                 "[load_sharded] warning: %s was saved with %s; training goes on, but not with the bits of a "
                 "run that was not interrupted\n",
                 folder.c_str(), others.c_str());
}

}  // namespace

std::function<nn::Progress()> checkpoint::prepare_load(const std::string& folder,
                                                       const ShardedTraining& training,
                                                       const LoadShardedOptions& options) {
  const NoGradGuard no_grad;
  check(options.rank >= 0, "[load_sharded] the rank is ", options.rank, "; it cannot be negative");
  const auto load = std::make_shared<Load>(folder, training, options.verify);
  const Index& index = load->reader().index();
  check(index.progress || (!training.optimizer && !training.scheduler), "[load_sharded] ", folder,
        ": was split from a model file and contains no training run; load the model alone");
  nn::Progress progress = index.progress.value_or(nn::Progress{});
  const std::string choices = nn::take_kernel_choices("load_sharded", folder, progress.extra);
  const int number = number_of(training, options);
  const std::optional<std::size_t> saved = find_generators(folder, index, training, options);
  GeneratorStates generators;
  if (!index.generators.empty())
    generators = parse_generator_states("load_sharded", index.generators[saved.value_or(0)]);
  load->check_files();
  if (options.rank == 0) warn_of_other_choices(folder, index.choices, training.choices);

  return [=] {
    const NoGradGuard none;
    load->load_small();
    load->load_boxes();
    if (saved) set_generator_states(generators);
    else derive_generator_states(generators, number);
    if (!choices.empty()) set_kernel_choices(choices);
    return progress;
  };
}

nn::Progress load_sharded(const std::string& folder, const ShardedTraining& training,
                          const LoadShardedOptions& options) {
  return prepare_load(folder, training, options)();
}

}  // namespace tapestry::distributed
