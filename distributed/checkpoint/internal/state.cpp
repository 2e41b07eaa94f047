#include "tapestry/distributed/checkpoint/internal/state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/checkpoint/internal/boxes.h"
#include "tapestry/distributed/common/internal/generator_states.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {

ShardedTraining::ShardedTraining(nn::Module* model, optim::Optimizer* with, optim::Scheduler* schedule,
                                 optim::GradScaler* grad_scaler)
    : ShardedTraining(nn::Training{model, with, schedule, grad_scaler}) {}
ShardedTraining::ShardedTraining(const nn::Training& training)
    : optimizer(training.optimizer), scheduler(training.scheduler), scaler(training.scaler) {
  if (!training.model) return;
  add(training.model->named_parameters(), training.model->named_buffers(), training.model->named_state());
}

void ShardedTraining::add(const std::vector<std::pair<std::string, nn::Parameter>>& all_parameters,
                          const std::vector<std::pair<std::string, nn::Buffer>>& all_buffers,
                          const Slots& state) {
  // Without computed parameters and buffers that are not persistent. A slot counts under its first name.
  std::unordered_map<const void*, std::string> first;
  for (const auto& [name, slot] : state) first.emplace(slot.id(), name);
  const auto take = [&](const auto& all, Slots& slots) {
    for (const auto& [name, slot] : all)
      if (const auto found = first.find(slot.id()); found != first.end())
        slots.emplace_back(found->second, slot);
  };
  take(all_parameters, parameters);
  take(all_buffers, buffers);
  for (const auto& [name, slot] : state)
    if (const std::string& target = first.at(slot.id()); target != name) aliases.emplace_back(name, target);
}

bool ShardedTraining::divided() const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& parameter) { return parameter.second.layout() != nullptr; });
}

namespace checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kShareBytes = std::uint64_t{1} << 20;

std::vector<std::int64_t> vector_of(const Shape& s) { return {s.begin(), s.end()}; }
Shape shape_of(const Json& list) { return list.get<std::vector<std::int64_t>>(); }

}  // namespace

std::string place_text(const char* op, const std::optional<RandomPlace>& place) {
  if (!place) return {};
  const auto [data, data_size, stage, stages] = *place;
  check(data >= 0 && data < data_size && stage >= 0 && stage < stages, "[", op, "] there is no part ", data,
        " of ", data_size, " with stage ", stage, " of ", stages, "; parts and stages count from 0");
  return concat({"data=", data, "/", data_size, " stage=", stage, "/", stages});
}

int shards_of_process(const ShardedTraining& training) {
  for (const auto& [name, slot] : training.parameters)
    if (slot.layout() && slot.replicas() > 1) return slot.replicas();
  return 1;
}

namespace {

Item whole_item(const std::string& name, const Tensor& t, Owner owner = Owner::lowest) {
  return {name, t.dtype(), t.sizes(), owner, {{nn::Region::whole(t.sizes())}}, t.detach()};
}

}  // namespace

WriterState state_of(const char* op, const ShardedTraining& training, int replica) {
  WriterState state;
  const auto add = [&](const std::string& name, const nn::TensorSlot& slot, const Tensor& local,
                       Owner owner) {
    const auto& layout = slot.layout();
    state.items.push_back(layout ? Item{name, local.dtype(), layout->whole_sizes(), Owner::boxes,
                                        layout->boxes(replica), local.detach()}
                                 : whole_item(name, local, owner));
  };
  for (const auto* slots : {&training.parameters, &training.buffers}) {
    for (const auto& [name, slot] : *slots) {
      check(!name.starts_with(kTraining), "[", op, "] the model's ", name, " begins with ", kTraining,
            ", which is reserved for the rest of the checkpoint; rename it");
      add(name, slot, nn::stored_tensor(slot, slot.layout() ? replica : 0),
          slots == &training.buffers ? Owner::lowest : Owner::shared);
    }
  }
  state.part_of_model = training.part_of_model;
  state.aliases = training.aliases;
  if (training.optimizer) {
    const optim::Optimizer& optimizer = *training.optimizer;
    state.optimizer = optimizer.name();
    const std::vector<std::string> names =
        nn::checkpoint_file::parameter_names(optimizer, training.parameters);
    const std::vector<nn::Parameter> params = optimizer.parameters();
    std::size_t number = 0;
    for (std::size_t g = 0; g < optimizer.num_groups(); ++g) {
      state.groups.emplace_back();
      for (std::size_t i = 0; i < optimizer.params(g).size(); ++i)
        state.groups.back().push_back(names[number++]);
    }
    const bool sharded = std::any_of(params.begin(), params.end(),
                                     [](const nn::Parameter& p) { return p.layout() != nullptr; });
    std::vector<optim::StateTensor> tensors = optimizer.state_tensors(sharded ? replica : 0);
    for (const optim::StateTensor& t : tensors) {
      if (t.param < 0) {
        if (!t.key.ends_with(".num_params")) state.items.push_back(whole_item(kOptimizer + t.key, t.tensor));
        continue;
      }
      const auto n = static_cast<std::size_t>(t.param);
      const std::string prefix = "state." + std::to_string(n) + ".";
      const std::string name = names[n] + "/" + t.key.substr(prefix.size());
      if (t.like_param) {
        add(kState + name, params[n], t.tensor, Owner::shared);
        continue;
      }
      check(!sharded || t.tensor.dim() == 0, "[", op, "] the state ", t.key, " of ", optimizer.name(),
            " has the shape ", t.tensor.sizes(),
            ", which is not that of a parameter, and the parameters are "
            "sharded; save without the optimizer, or use one whose state is like its parameters");
      // A rank without elements of the parameter does not step it, so its counts are old ones.
      const auto& layout = params[n].layout();
      if (!layout || layout->boxes(replica).sizes().numel() > 0 || layout->whole_sizes().numel() == 0)
        state.items.push_back(whole_item(kExtra + name, t.tensor));
    }
  }
  if (training.scheduler) {
    state.scheduler = true;
    for (const auto& [key, t] : training.scheduler->state_dict())
      state.items.push_back(whole_item(kScheduler + key, t));
  }
  if (training.scaler)
    for (const auto& [key, t] : training.scaler->state_dict())
      state.items.push_back(whole_item(kScaler + key, t));
  const std::string place = place_text(op, training.place);
  state.generators = (place.empty() ? "" : place + ' ') + generator_states();
  return state;
}

std::string describe(const WriterState& state) {
  Json items = Json::array();
  for (const Item& item : state.items) {
    // The parameters that the ranks should have alike. The optimizer's state follows from them.
    const bool compared = item.owner == Owner::shared && !item.name.starts_with(kTraining);
    Json boxes = Json::array();
    for (const nn::Region& box : item.boxes.all)
      boxes.push_back(Json::array({vector_of(box.first), vector_of(box.sizes)}));
    items.push_back(Json{item.name, static_cast<int>(item.dtype), vector_of(item.sizes),
                         static_cast<int>(item.owner), boxes,
                         compared ? crc32_of(0, item.local.to(kCPU).contiguous()) : std::uint32_t{0}});
  }
  try {
    return Json{{"items", items},
                {"optimizer", state.optimizer},
                {"generators", state.generators},
                {"groups", state.groups},
                {"scheduler", state.scheduler},
                {"aliases", state.aliases},
                {"part", state.part_of_model}}
        .dump();
  } catch (const Json::exception&) {
    fail("[save_sharded] the name of a tensor is not UTF-8; the format allows no other encoding");
  }
}

WriterState parse_description(const std::string& text) {
  const Json json = Json::parse(text);
  WriterState state;
  for (const Json& item : json["items"]) {
    nn::Boxes boxes;
    for (const Json& box : item[4]) boxes.all.push_back({shape_of(box[0]), shape_of(box[1])});
    state.items.push_back({item[0].get<std::string>(),
                           static_cast<DType>(item[1].get<int>()),
                           shape_of(item[2]),
                           static_cast<Owner>(item[3].get<int>()),
                           std::move(boxes),
                           {},
                           item[5].get<std::uint32_t>()});
  }
  state.part_of_model = json["part"].get<bool>();
  state.optimizer = json["optimizer"].get<std::string>();
  state.generators = json["generators"].get<std::string>();
  state.groups = json["groups"].get<std::vector<std::vector<std::string>>>();
  state.scheduler = json["scheduler"].get<bool>();
  state.aliases = json["aliases"].get<std::vector<std::pair<std::string, std::string>>>();
  return state;
}

namespace {

/// A tensor and the writers that have it.
struct Holders {
  TensorRecord record;
  Owner owner = Owner::lowest;
  std::uint32_t values = 0;  // Item::values of the first writer
  std::vector<int> writers;
  std::vector<Piece> boxes;  // of Owner::boxes, of the writers that store elements
};

/// Sorts the boxes that writers store, and drops copies: with several groups of shards, several writers have
/// the same box, which the one with the smallest `load` writes. Throws unless each element is stored.
void use_stored_boxes(const char* op, const std::string& name, const std::vector<std::uint64_t>& load,
                      Holders& holders) {
  const auto before = [](const Shape& a, const Shape& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  };
  std::stable_sort(holders.boxes.begin(), holders.boxes.end(), [&](const Piece& a, const Piece& b) {
    return a.box.first == b.box.first ? before(a.box.sizes, b.box.sizes) : before(a.box.first, b.box.first);
  });
  std::vector<nn::Region> boxes;
  for (const Piece& piece : holders.boxes) {
    if (!boxes.empty() && boxes.back() == piece.box) {
      int& writer = holders.record.pieces.back().shard;
      if (load[static_cast<std::size_t>(piece.shard)] < load[static_cast<std::size_t>(writer)])
        writer = piece.shard;
      continue;
    }
    boxes.push_back(piece.box);
    holders.record.pieces.push_back(piece);
  }
  const std::string fault = why_not_divided(holders.record.whole(), boxes);
  check(fault.empty(), "[", op, "] the ranks do not store each element of ", name, " of shape ",
        holders.record.sizes, " once: ", fault,
        "; divide the parameter in the same way on all ranks, and pass a group that has all of them");
}

}  // namespace

Index plan(const char* op, const std::vector<WriterState>& writers, Share share) {
  Index index;
  std::map<std::string, Holders> tensors;
  for (int w = 0; w < static_cast<int>(writers.size()); ++w) {
    const WriterState& state = writers[static_cast<std::size_t>(w)];
    index.generators.push_back(state.generators);
    check(place_in(state.generators).empty() == place_in(index.generators[0]).empty(), "[", op,
          "] ShardedTraining::place is set on one of the ranks 0 and ", w,
          " only; set it on all ranks or on none");
    if (w == 0) index.optimizer = state.optimizer;
    check(state.optimizer == index.optimizer, "[", op, "] the optimizer is \"", state.optimizer,
          "\" on rank ", w, " and \"", index.optimizer, "\" on rank 0; use the same one");
    check(w == 0 || state.groups.size() == index.groups.size(), "[", op, "] the optimizer has ",
          state.groups.size(), " parameter groups on rank ", w, " and ", index.groups.size(),
          " on rank 0; use the same number");
    index.groups.resize(state.groups.size());
    index.scheduler = index.scheduler || state.scheduler;
    for (const auto& [name, target] : state.aliases) index.aliases.emplace(name, target);
    std::set<std::string> own;
    for (const Item& item : state.items) {
      check(own.insert(item.name).second, "[", op, "] two tensors of rank ", w, " are named ", item.name,
            "; give them different names");
      Holders& holders = tensors[item.name];
      if (holders.writers.empty()) {
        holders.record = {item.dtype, item.sizes};
        holders.owner = item.owner;
        holders.values = item.values;
      }
      check(item.dtype == holders.record.dtype && item.sizes == holders.record.sizes &&
                item.owner == holders.owner,
            "[", op, "] ", item.name, " is ", item.dtype, " ", item.sizes, " on rank ", w, " and ",
            holders.record.dtype, " ", holders.record.sizes, " on rank ",
            holders.writers.empty() ? w : holders.writers[0],
            ", or sharded on only one of them; use the same model on all ranks");
      check(item.owner != Owner::shared || item.values == holders.values, "[", op, "] ", item.name,
            " has other values on rank ", w, " than on rank ",
            holders.writers.empty() ? w : holders.writers[0],
            ", and only one of them would be saved; give all ranks the same values (DistributedDataParallel "
            "broadcasts them), or, if each rank has a stage of a pipeline, pass Pipeline::stages() with the "
            "names of the unsplit model (Stage::named())");
      holders.writers.push_back(w);
      if (item.owner != Owner::boxes) continue;
      for (const nn::Region& box : item.boxes.all)
        if (box.sizes.numel() > 0) holders.boxes.push_back({w, box});
    }
  }
  // Ranks with different modules would each lack what the others have when they load.
  const bool parts = std::any_of(writers.begin(), writers.end(),
                                 [](const WriterState& state) { return state.part_of_model; });
  for (const auto& [name, holders] : tensors)
    if (!parts && !name.starts_with(kTraining) && holders.writers.size() != writers.size()) {
      int lacks = 0;
      while (std::find(holders.writers.begin(), holders.writers.end(), lacks) != holders.writers.end())
        ++lacks;
      fail("[", op, "] rank ", holders.writers[0], " has ", name, ", and rank ", lacks,
           " has not; pass the same model on all ranks, or, if each rank has a stage of a pipeline, "
           "Pipeline::stages()");
    }
  // Names that are an alias on one rank and a tensor of its own on another one stay tensors: the stages of a
  // pipeline have copies of tied weights.
  std::erase_if(index.aliases, [&](const auto& alias) {
    return tensors.contains(alias.first) || !tensors.contains(alias.second);
  });
  std::map<std::string, std::size_t> group_of;
  for (std::size_t w = 0; w < writers.size(); ++w)
    for (std::size_t g = 0; g < writers[w].groups.size(); ++g)
      for (const std::string& name : writers[w].groups[g]) {
        const auto [known, is_new] = group_of.emplace(name, g);
        check(known->second == g, "[", op, "] ", name, " is in group ", g, " of the optimizer on rank ", w,
              " and in group ", known->second, " on another rank; use the same groups");
        if (is_new) index.groups[g].push_back(name);
      }

  // Stored boxes and large tensors are divided first. Then each other tensor goes to the writer with the
  // fewest bytes, the largest tensors first.
  std::vector<std::uint64_t> load(writers.size());
  const std::vector<std::uint64_t> no_load(writers.size());  // then the lowest of several writers writes
  std::vector<std::pair<const std::string*, Holders*>> whole;
  for (auto& [name, holders] : tensors) {
    TensorRecord& record = holders.record;
    const nn::Region all = record.whole();
    if (holders.owner == Owner::boxes) {
      use_stored_boxes(op, name, share == Share::evenly ? load : no_load, holders);
    } else if (all.sizes.numel() > 0) {
      const auto count = static_cast<std::int64_t>(holders.writers.size()), rows = all.sizes[0];
      if (holders.owner == Owner::lowest || share == Share::by_lowest) {
        record.pieces.push_back({holders.writers[0], all});
      } else if (record.bytes(all) < kShareBytes || rows < count) {
        whole.emplace_back(&name, &holders);
        continue;
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t begin = rows / count * i + (std::min)(i, rows % count),
                             own = rows / count + (i < rows % count);
          record.pieces.push_back({holders.writers[static_cast<std::size_t>(i)], rows_of(all, begin, own)});
        }
      }
    }
    for (const Piece& piece : record.pieces)
      load[static_cast<std::size_t>(piece.shard)] += record.bytes(piece.box);
  }
  const auto bytes_of = [](const Holders& h) { return h.record.bytes(h.record.whole()); };
  std::stable_sort(whole.begin(), whole.end(),
                   [&](const auto& a, const auto& b) { return bytes_of(*a.second) > bytes_of(*b.second); });
  for (const auto& [name, holders] : whole) {
    TensorRecord& record = holders->record;
    const int writer = *std::min_element(holders->writers.begin(), holders->writers.end(), [&](int a, int b) {
      return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
    });
    record.pieces.push_back({writer, record.whole()});
    load[static_cast<std::size_t>(writer)] += bytes_of(*holders);
  }
  for (auto& [name, holders] : tensors) index.tensors.emplace(name, std::move(holders.record));
  return index;
}

}  // namespace checkpoint
}  // namespace tapestry::distributed
