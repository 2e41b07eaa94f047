#include "tapestry/nn/internal/checkpoint_file.h"

#include <charconv>
#include <cstring>
#include <unordered_map>

#include "tapestry/autograd/ops/creation.h"

namespace tapestry::nn::checkpoint_file {
namespace {

const std::string kExtra = "extra.";
constexpr const char* kVersion = "1";

/// Returns the number under `key`. Throws IoError if it is missing or not a number.
template <class T>
T number_of(const char* op, const std::string& path, const StringMap& metadata, const char* key) {
  const auto it = metadata.find(key);
  check<IoError>(it != metadata.end(), "[", op, "] ", path, ": its metadata has no \"", key,
                 "\"; the file is not a checkpoint of a training run (use load_model for models)");
  T value{};
  const char* const end = it->second.data() + it->second.size();
  const auto [stop, error] = std::from_chars(it->second.data(), end, value);
  check<IoError>(error == std::errc() && stop == end, "[", op, "] ", path, ": \"", it->second, "\" as \"",
                 key, "\" is not a number");
  return value;
}

}  // namespace

StringMap metadata_of(const Progress& progress) {
  StringMap metadata{{"tapestry.checkpoint", kVersion},
                     {"tapestry.epoch", std::to_string(progress.epoch)},
                     {"tapestry.step", std::to_string(progress.step)}};
  if (progress.metric) metadata["tapestry.metric"] = concat({*progress.metric});
  for (const auto& [key, value] : progress.extra) metadata[kExtra + key] = value;
  return metadata;
}

Progress progress_of(const char* op, const std::string& path, const StringMap& metadata) {
  const auto version = metadata.find("tapestry.checkpoint");
  check<IoError>(version == metadata.end() || version->second == kVersion, "[", op, "] ", path,
                 ": has format version ", version == metadata.end() ? "" : version->second,
                 ", but this library reads version ", kVersion, "; use the version that wrote it");
  Progress progress;
  progress.epoch = number_of<std::int64_t>(op, path, metadata, "tapestry.epoch");
  progress.step = number_of<std::int64_t>(op, path, metadata, "tapestry.step");
  check<IoError>(progress.epoch >= 0 && progress.step >= 0, "[", op, "] ", path, ": is of epoch ",
                 progress.epoch, " and step ", progress.step,
                 ", which cannot be negative; use another checkpoint");
  if (metadata.count("tapestry.metric"))
    progress.metric = number_of<double>(op, path, metadata, "tapestry.metric");
  for (const auto& [key, value] : metadata)
    if (key.starts_with(kExtra)) progress.extra[key.substr(kExtra.size())] = value;
  return progress;
}

std::vector<std::string> parameter_names(const optim::Optimizer& optimizer, const NamedSlots& parameters) {
  std::unordered_map<const void*, const std::string*> by_slot;
  for (const auto& [name, slot] : parameters) by_slot.emplace(slot.id(), &name);
  std::vector<std::string> names;
  for (const Parameter& p : optimizer.parameters()) {
    const auto found = by_slot.find(p.id());
    names.push_back(found == by_slot.end() ? "#" + std::to_string(names.size()) : *found->second);
  }
  return names;
}

Tensor generator_tensor(const std::array<std::uint64_t, 2>& state) {
  const Tensor t = empty({2}, {DType::i64, kCPU});
  std::memcpy(t.raw_data(), state.data(), sizeof state);
  return t;
}

std::array<std::uint64_t, 2> generator_state(const char* op, const std::string& path,
                                             const std::string& device, const Tensor& tensor) {
  try {
    static_cast<void>(Device(device));
  } catch (const Error& e) {
    fail<IoError>("[", op, "] ", path, ": ", kGenerator, device,
                  " is not the generator of a device: ", e.what());
  }
  check<IoError>(tensor.dtype() == DType::i64 && tensor.sizes() == Shape{2}, "[", op, "] ", path, ": ",
                 kGenerator, device, " is ", tensor.dtype(), " ", tensor.sizes(),
                 ", not two int64; use another checkpoint");
  std::array<std::uint64_t, 2> state;
  std::memcpy(state.data(), tensor.raw_data(), sizeof state);
  return state;
}

}  // namespace tapestry::nn::checkpoint_file
