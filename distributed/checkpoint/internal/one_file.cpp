#include "tapestry/distributed/checkpoint/internal/one_file.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/distributed/common/internal/generator_states.h"

namespace tapestry::distributed::checkpoint {
namespace {

// The keys of Progress::extra under which save_checkpoint() keeps the generators of all ranks.
const std::string kRankGenerators = "generators of rank ", kRanks = "ranks with generators";
// The names of the optimizer's parameters in the order of their numbers, one a line.
constexpr const char* kParameters = "tapestry.parameters";
// Begins the keys of ShardedTraining::choices.
const std::string kChoices = "tapestry.choices.";

/// True for state that is not divided as its parameter is, whatever its shape: the numbers that an optimizer
/// keeps for each parameter, and the vectors of LBFGS, which are as long as all parameters together.
bool is_apart(const std::string& optimizer, const std::string& rest) {
  if (optimizer == "LBFGS") return rest != "master_param";
  return rest == "step" || rest == "mu_product";
}

}  // namespace

FileLayout file_layout(const char* op, const std::string& origin, const Index& index) {
  FileLayout layout;
  std::map<std::string, FileLayout::Content>& contents = layout.contents;
  StringMap& metadata = layout.metadata;
  if (index.progress) {
    nn::Progress progress = *index.progress;
    for (std::size_t r = 0; r < index.generators.size(); ++r)
      progress.extra[kRankGenerators + std::to_string(r)] = index.generators[r];
    if (!index.generators.empty()) progress.extra[kRanks] = std::to_string(index.generators.size());
    metadata = nn::checkpoint_file::metadata_of(progress);
  }
  metadata["format"] = "pt";
  for (const auto& [name, value] : index.choices) metadata[kChoices + name] = value;
  std::map<std::string, std::size_t> numbers;
  if (!index.optimizer.empty()) {
    metadata["tapestry.optimizer"] = index.optimizer;
    std::string names;
    for (std::size_t g = 0; g < index.groups.size(); ++g) {
      contents[kOptions + std::to_string(g) + ".num_params"].value =
          scalar_tensor(static_cast<std::int64_t>(index.groups[g].size()), {DType::i64, kCPU});
      for (const std::string& name : index.groups[g]) {
        names += (numbers.empty() ? "" : "\n") + name;
        numbers.emplace(name, numbers.size());
      }
    }
    metadata[kParameters] = names;
  }
  for (const auto& [name, tensor] : index.tensors) {
    std::string as = name;
    for (const std::string& prefix : {kState, kExtra}) {
      if (!name.starts_with(prefix)) continue;
      const std::size_t slash = name.rfind('/');
      const auto number = numbers.find(name.substr(prefix.size(), slash - std::min(slash, prefix.size())));
      check<IoError>(number != numbers.end(), "[", op, "] ", origin, ": ", name,
                     " is the state of a parameter that the optimizer's groups do not list");
      as = kOptimizer + "state." + std::to_string(number->second) + "." + name.substr(slash + 1);
    }
    contents[as].source = name;
  }
  for (const auto& [alias, target] : index.aliases) contents[alias].source = target;
  if (!index.generators.empty())
    for (const auto& [device, state] : parse_generator_states(op, index.generators[0]))
      contents[kGenerator + device.str()].value = nn::checkpoint_file::generator_tensor(state);
  return layout;
}

std::vector<SafetensorsFile::Entry> FileLayout::entries(const Index& index) const {
  std::vector<SafetensorsFile::Entry> entries;
  for (const auto& [name, content] : contents) {
    if (content.value.defined()) {
      entries.push_back({name, content.value.dtype(), content.value.sizes()});
    } else {
      const TensorRecord& record = index.tensors.at(content.source);
      entries.push_back({name, record.dtype, record.sizes});
    }
  }
  return entries;
}

FileIndex index_of_file(const char* op, const std::string& path, const SafetensorsFile& file, int ranks) {
  const StringMap& metadata = file.metadata();
  FileIndex found;
  Index& index = found.index;
  index.id = random_id();
  if (metadata.contains("tapestry.checkpoint") || metadata.contains("tapestry.step")) {
    StringMap& extra = index.progress.emplace(nn::checkpoint_file::progress_of(op, path, metadata)).extra;
    while (const auto state = extra.extract(kRankGenerators + std::to_string(index.generators.size())))
      index.generators.push_back(state.mapped());
    const auto saved = extra.extract(kRanks);
    const std::string count = saved ? saved.mapped() : "0";
    check<IoError>(count == std::to_string(index.generators.size()), "[", op, "] ", path,
                   ": has generator states of ", index.generators.size(), " ranks and says that ", count,
                   " ranks saved theirs; use another checkpoint");
    const auto stray = extra.lower_bound(kRankGenerators);
    check<IoError>(stray == extra.end() || !stray->first.starts_with(kRankGenerators), "[", op, "] ", path,
                   ": has generator states of some ranks only; use another checkpoint");
  }
  for (auto it = metadata.lower_bound(kChoices); it != metadata.end() && it->first.starts_with(kChoices);
       ++it)
    index.choices[it->first.substr(kChoices.size())] = it->second;
  std::vector<std::string> names;
  if (const auto optimizer = metadata.find("tapestry.optimizer"); optimizer != metadata.end()) {
    index.optimizer = optimizer->second;
    const auto list = metadata.find(kParameters);
    check<IoError>(
        list != metadata.end(), "[", op, "] ", path,
        ": does not say which parameters the optimizer has, because an earlier version wrote it; load "
        "it and save it again");
    std::istringstream lines(list->second);
    for (std::string line; std::getline(lines, line);) names.push_back(line);
  }

  std::string generators;
  std::size_t next = 0;
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    const std::string& name = entry.name;
    std::string as = name;
    if (name.starts_with(kGenerator)) {
      const std::string device = name.substr(kGenerator.size());
      const auto [seed, offset] = nn::checkpoint_file::generator_state(op, path, device, file.read(entry));
      generators += concat({generators.empty() ? "" : " ", device, " ", seed, " ", offset});
      continue;
    }
    if (name.starts_with(kOptions) && name.ends_with(".num_params")) continue;
    index.scheduler = index.scheduler || name.starts_with(kScheduler);
    const std::string prefix = kOptimizer + "state.";
    if (name.starts_with(prefix)) {
      std::size_t n = 0;
      const char* const end = name.data() + name.size();
      const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, n);
      check<IoError>(error == std::errc() && stop != end && *stop == '.' && n < names.size(), "[", op, "] ",
                     path, ": ", name, " is the state of no parameter; there are ", names.size());
      const std::string rest(stop + 1, end);
      const SafetensorsFile::Entry* const param = file.find(names[n]);
      const bool like = param && param->sizes == entry.sizes && !is_apart(index.optimizer, rest);
      as = (like ? kState : kExtra) + names[n] + "/" + rest;
    }
    TensorRecord record{entry.dtype, entry.sizes};
    // The optimizer's and the schedule's numbers are one row, and so in the first shard.
    for (int shard = 0; shard < ranks; ++shard)
      if (const nn::Region box = record.whole().part(0, shard, ranks); box.sizes.numel() > 0)
        record.pieces.push_back({shard, box});
    check<IoError>(found.sources.emplace(as, name).second, "[", op, "] ", path, ": ", name,
                   " occurs twice; the list of the optimizer's parameters is wrong");
    index.tensors.emplace(as, std::move(record));
  }
  if (!index.optimizer.empty()) {
    for (std::size_t g = 0;; ++g) {
      const std::string key = kOptions + std::to_string(g) + ".num_params";
      if (!file.find(key)) break;
      const Tensor count = file.read(key);
      const double n = count.numel() == 1 ? count.item() : -1;
      check<IoError>(n >= 0 && n <= static_cast<double>(names.size() - next), "[", op, "] ", path, ": ", key,
                     " is ", n, ", but ", names.size() - next, " parameters are left");
      index.groups.emplace_back(
          names.begin() + static_cast<std::ptrdiff_t>(next),
          names.begin() + static_cast<std::ptrdiff_t>(next + static_cast<std::size_t>(n)));
      next += static_cast<std::size_t>(n);
    }
    check<IoError>(next == names.size(), "[", op, "] ", path, ": lists ", names.size(),
                   " parameters of the optimizer, but its groups have ", next);
  }
  check<IoError>(index.generators.empty() || !generators.empty(), "[", op, "] ", path,
                 ": contains no state of the random generator (", kGenerator, "cpu:0), but those of ",
                 index.generators.size(), " ranks");
  if (index.generators.empty() && !generators.empty()) index.generators = {generators};
  return found;
}

}  // namespace tapestry::distributed::checkpoint
