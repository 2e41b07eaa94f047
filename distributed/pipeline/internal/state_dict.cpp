#include "tapestry/distributed/pipeline/internal/state_dict.h"

#include <map>
#include <unordered_map>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/pipeline/internal/rank_messages.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kRemedy = "; give the modules the names of the unsplit model with Stage::named()";

// Each tensor is sent as one message, so only a few tensors are in flight at a time.
std::vector<MessageId> message_ids(std::size_t tensors) {
  std::vector<MessageId> ids;
  for (std::size_t i = 0; i < tensors; ++i) ids.push_back({MessageId::Kind::outputs, static_cast<int>(i), 0});
  return ids;
}

}  // namespace

nn::StateDict state_dict_of(const std::vector<Stage>& stages) {
  nn::StateDict all;
  std::unordered_map<std::string, Tensor> by_name;
  for (const Stage& stage : stages)
    for (auto& [name, tensor] : stage.state_dict()) {
      const auto [known, is_new] = by_name.emplace(name, tensor);
      if (is_new) all.emplace_back(name, tensor);
      else
        check(known->second.storage() == tensor.storage(), "[Pipeline] two tensors are called '", name,
              "', of shapes ", known->second.sizes(), " and ", tensor.sizes(), kRemedy);
    }
  return all;
}

StateDictLoader::StateDictLoader(const nn::StateDict& own, const std::set<std::string>& others,
                                 const nn::StateDict& dict, bool strict) {
  const nn::StateDictIndex own_index(own), index(dict);
  std::string wrong;
  for (const auto& [name, tensor] : own) {
    const Tensor* const given = index.find(name);
    if (!given) {
      result_.missing.push_back(name);
      if (strict) wrong += "\n  missing: " + name;
    } else if (!given->defined()) {
      wrong += "\n  undefined tensor: " + name;
    } else if (given->sizes() != tensor.sizes()) {
      wrong += "\n  wrong shape: " + name + " expected " + tensor.sizes().str() + " but got " +
               given->sizes().str();
    } else {
      pairs_.emplace_back(&tensor, given);
    }
  }
  for (const auto& [name, tensor] : dict) {
    if (others.contains(name) || own_index.find(name)) continue;
    result_.unexpected.push_back(name);
    if (strict) wrong += "\n  unexpected: " + name;
  }
  check(wrong.empty(),
        "[load_state_dict] the state dict does not fit the stages, and nothing was loaded:", wrong,
        "\npass the state dict of the same model",
        strict ? ", or strict = false to skip names that are missing or unexpected" : "");
}

nn::LoadResult StateDictLoader::load() {
  const NoGradGuard no_grad;
  for (const auto& [to, from] : pairs_) to->copy_(*from);
  return std::move(result_);
}

std::vector<std::vector<std::string>> names_by_rank(ProcessGroup& group, const nn::StateDict& own) {
  std::string mine;
  for (const auto& [name, tensor] : own) mine += name + '\n';
  std::vector<std::vector<std::string>> names;
  for (const std::string& text : all_gather_text(group, mine, "pipeline: names")) {
    names.emplace_back();
    for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      names.back().push_back(text.substr(begin, end - begin));
    }
  }
  return names;
}

nn::StateDict gather_state_dict(ProcessGroup& group, const nn::StateDict& own,
                                const std::set<std::string>& shared, std::uint32_t tag) {
  const NoGradGuard no_grad;
  const std::vector<std::vector<std::string>> names = names_by_rank(group, own);
  std::map<std::string, std::size_t> first;
  for (std::size_t r = 0; r < names.size(); ++r)
    for (const std::string& name : names[r]) {
      const auto [known, is_new] = first.emplace(name, r);
      check(is_new || shared.contains(name), "[Pipeline] ranks ", known->second, " and ", r,
            " both have a tensor called '", name, "'", kRemedy,
            ", or tie the tensors (PipelineOptions::tied)");
    }
  nn::StateDict whole;
  if (group.rank() != 0) {
    MessageSender sender(group, 0, tag);
    const std::vector<MessageId> ids = message_ids(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) sender.send(ids[i], {{own[i].second.to(kCPU)}}, 0);
    sender.finish();
    return whole;
  }
  for (const auto& [name, tensor] : own) whole.emplace_back(name, tensor.to(kCPU));
  for (int r = 1; r < group.size(); ++r) {
    const std::vector<std::string>& theirs = names[static_cast<std::size_t>(r)];
    MessageReceiver receiver(group, r, tag, kCPU, message_ids(theirs.size()));
    for (const std::string& name : theirs) {
      Tensor tensor = receiver.take().tensors.at(0);
      if (first.at(name) == static_cast<std::size_t>(r)) whole.emplace_back(name, std::move(tensor));
    }
  }
  return whole;
}

}  // namespace tapestry::distributed
