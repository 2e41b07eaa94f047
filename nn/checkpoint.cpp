#include "tapestry/nn/checkpoint.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <unordered_map>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/kernel_policy.h"
#include "tapestry/nn/internal/kernel_choices.h"

namespace tapestry::nn {
namespace {

namespace fs = std::filesystem;

const std::string kTraining = "training/";
const std::string kOptimizer = kTraining + "optimizer/", kScheduler = kTraining + "scheduler/",
                  kScaler = kTraining + "scaler/", kGenerator = kTraining + "generator/";
const std::string kExtra = "extra.";
constexpr const char* kVersion = "1";

/// Adds the metadata that Hugging Face's readers require.
StringMap with_format(StringMap metadata) {
  metadata.emplace("format", "pt");
  return metadata;
}

std::string text_of(double value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

/// Returns the number under `key`. Throws IoError if it is missing or not a number.
template <class T>
T number_of(const std::string& path, const StringMap& metadata, const char* key) {
  const auto it = metadata.find(key);
  check<IoError>(it != metadata.end(), "[load_checkpoint] ", path, ": its metadata has no \"", key,
                 "\"; the file is not a checkpoint of a training run (use load_model for models)");
  T value{};
  const char* const end = it->second.data() + it->second.size();
  const auto [stop, error] = std::from_chars(it->second.data(), end, value);
  check<IoError>(error == std::errc() && stop == end, "[load_checkpoint] ", path, ": \"", it->second,
                 "\" as \"", key, "\" is not a number");
  return value;
}

Progress progress_of(const std::string& path, const StringMap& metadata) {
  const auto version = metadata.find("tapestry.checkpoint");
  check<IoError>(version == metadata.end() || version->second == kVersion, "[load_checkpoint] ", path,
                 ": has format version ", version == metadata.end() ? "" : version->second,
                 ", but this library reads version ", kVersion, "; use the version that wrote it");
  Progress progress;
  progress.epoch = number_of<std::int64_t>(path, metadata, "tapestry.epoch");
  progress.step = number_of<std::int64_t>(path, metadata, "tapestry.step");
  check<IoError>(progress.epoch >= 0 && progress.step >= 0, "[load_checkpoint] ", path, ": is of epoch ",
                 progress.epoch, " and step ", progress.step,
                 ", which cannot be negative; use another checkpoint");
  if (metadata.count("tapestry.metric"))
    progress.metric = number_of<double>(path, metadata, "tapestry.metric");
  for (const auto& [key, value] : metadata)
    if (key.starts_with(kExtra)) progress.extra[key.substr(kExtra.size())] = value;
  return progress;
}

void append(StateDict& all, const std::string& prefix, const StateDict& part) {
  for (const auto& [name, tensor] : part) all.emplace_back(prefix + name, tensor);
}

/// Returns the tensors whose names begin with `prefix`, and removes the prefix.
StateDict part_of(const SafetensorsFile& file, const std::string& prefix) {
  StateDict part;
  for (const SafetensorsFile::Entry& entry : file.entries())
    if (entry.name.starts_with(prefix)) part.emplace_back(entry.name.substr(prefix.size()), file.read(entry));
  return part;
}

StateDict model_of(const SafetensorsFile& file) {
  StateDict part;
  for (const SafetensorsFile::Entry& entry : file.entries())
    if (!entry.name.starts_with(kTraining)) part.emplace_back(entry.name, file.read(entry));
  return part;
}

/// Returns the names of the optimizer's parameters in the order of their numbers, one a line. A parameter
/// that the model does not have is "#" with its number. tapestry-checkpoint uses the names.
std::string names_of(const optim::Optimizer& optimizer, const Module& model) {
  std::unordered_map<const void*, std::string> by_slot;
  for (const auto& [name, slot] : model.named_parameters()) by_slot.emplace(slot.id(), name);
  std::string names;
  std::size_t number = 0;
  for (const Parameter& p : optimizer.parameters()) {
    const auto found = by_slot.find(p.id());
    names +=
        (number == 0 ? "" : "\n") + (found == by_slot.end() ? "#" + std::to_string(number) : found->second);
    ++number;
  }
  return names;
}

template <class F>
void for_each_device(const F& fn) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
    for (int i = 0; i < device_count(type); ++i) fn(Device(type, i));
}

/// Throws IoError unless these are states of generators, the CPU's among them.
void check_generators(const std::string& path, const StateDict& generators) {
  check<IoError>(find(generators, Device(kCPU).str()) != nullptr, "[load_checkpoint] ", path,
                 ": contains no state of the random generator (", kGenerator, Device(kCPU).str(),
                 "); use another checkpoint, or load_model for the weights alone");
  for (const auto& [name, tensor] : generators) {
    try {
      static_cast<void>(Device(name));
    } catch (const Error& e) {
      fail<IoError>("[load_checkpoint] ", path, ": ", kGenerator, name,
                    " is not the generator of a device: ", e.what());
    }
    check<IoError>(tensor.dtype() == DType::i64 && tensor.sizes() == Shape{2}, "[load_checkpoint] ", path,
                   ": ", kGenerator, name, " is ", tensor.dtype(), " ", tensor.sizes(),
                   ", not two int64; use another checkpoint");
  }
}

/// Returns 500 for "step-00000500.safetensors", and nothing for other names.
std::optional<std::int64_t> step_of(const std::string& name) {
  constexpr std::string_view prefix = "step-", suffix = ".safetensors";
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix))
    return {};
  const char* const begin = name.data() + prefix.size();
  const char* const end = name.data() + name.size() - suffix.size();
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step < 0) return {};
  return step;
}

}  // namespace

void save_tensors(const std::string& path, const StateDict& tensors, const StringMap& metadata) {
  const NoGradGuard no_grad;
  NamedTensors on_cpu;
  on_cpu.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    on_cpu.emplace_back(name, tensor.defined() && !tensor.device().is_cpu() ? tensor.to(kCPU) : tensor);
  save_safetensors(path, on_cpu, with_format(metadata));
}

StateDict load_tensors(const std::string& path, Device device) {
  check_device("load_tensors", device);
  const SafetensorsFile file(path);
  StateDict tensors = part_of(file, "");
  for (auto& [name, tensor] : tensors)
    if (tensor.device() != device) tensor = tensor.to(device);
  return tensors;
}

void save_model(const std::string& path, const Module& module, const StringMap& metadata) {
  save_tensors(path, module.state_dict(), metadata);
}

LoadResult load_model(const std::string& path, Module& module, bool strict) {
  return module.load_state_dict(model_of(SafetensorsFile(path)), strict);
}

void save_checkpoint(const std::string& path, const Training& training, const Progress& progress) {
  check(progress.epoch >= 0 && progress.step >= 0, "[save_checkpoint] the epoch is ", progress.epoch,
        " and the step ", progress.step, "; they cannot be negative");
  StateDict tensors;
  StringMap metadata{{"tapestry.checkpoint", kVersion},
                     {"tapestry.epoch", std::to_string(progress.epoch)},
                     {"tapestry.step", std::to_string(progress.step)}};
  if (progress.metric) metadata["tapestry.metric"] = text_of(*progress.metric);
  StringMap extra = progress.extra;
  put_kernel_choices(extra);
  for (const auto& [key, value] : extra) metadata[kExtra + key] = value;
  if (training.model) {
    for (const auto& [name, tensor] : training.model->state_dict()) {
      check(!name.starts_with(kTraining), "[save_checkpoint] the model's ", name, " begins with ", kTraining,
            ", which is reserved for the rest of the checkpoint; rename it");
      tensors.emplace_back(name, tensor);
    }
  }
  if (training.optimizer) {
    append(tensors, kOptimizer, training.optimizer->state_dict());
    metadata["tapestry.optimizer"] = training.optimizer->name();
    if (training.model) metadata["tapestry.parameters"] = names_of(*training.optimizer, *training.model);
  }
  if (training.scheduler) append(tensors, kScheduler, training.scheduler->state_dict());
  if (training.scaler) append(tensors, kScaler, training.scaler->state_dict());
  for_each_device([&](Device device) {
    const std::array<std::uint64_t, 2> state = default_generator(device).state();
    const Tensor t = empty({2}, {DType::i64, kCPU});
    for (int i = 0; i < 2; ++i)
      t.data<std::int64_t>()[i] = std::bit_cast<std::int64_t>(state[static_cast<std::size_t>(i)]);
    tensors.emplace_back(kGenerator + device.str(), t);
  });
  save_tensors(path, tensors, metadata);
}

Progress load_checkpoint(const std::string& path, const Training& training) {
  const SafetensorsFile file(path);
  Progress progress = progress_of(path, file.metadata());
  const std::string choices = take_kernel_choices("load_checkpoint", path, progress.extra);
  // All checks come before the first change.
  const StateDict optimizer = part_of(file, kOptimizer), scheduler = part_of(file, kScheduler),
                  scaler = part_of(file, kScaler), generators = part_of(file, kGenerator);
  if (training.optimizer) {
    const auto name = file.metadata().find("tapestry.optimizer");
    check<IoError>(name != file.metadata().end(), "[load_checkpoint] ", path,
                   ": contains no optimizer state");
    check(name->second == training.optimizer->name(), "[load_checkpoint] ", path,
          ": was saved with the optimizer ", name->second, ", not ", training.optimizer->name(),
          "; use the same optimizer, or load_model for the weights alone");
  }
  check<IoError>(!training.scheduler || !scheduler.empty(), "[load_checkpoint] ", path,
                 ": contains no schedule state");
  check<IoError>(!training.scaler || !training.scaler->is_enabled() || !scaler.empty(), "[load_checkpoint] ",
                 path, ": contains no gradient scaler's state");
  check_generators(path, generators);
  // Each part is loaded completely or not at all. The model is loaded last, because the other parts are small
  // enough to be restored if it fails.
  StateDict old_optimizer, old_scheduler, old_scaler;
  if (training.optimizer) old_optimizer = training.optimizer->local_state_dict();
  if (training.scheduler) old_scheduler = training.scheduler->state_dict();
  if (training.scaler) old_scaler = training.scaler->state_dict();
  bool scheduled = false;
  try {
    if (training.scaler) training.scaler->load_state_dict(scaler);
    if (training.optimizer) training.optimizer->load_state_dict(optimizer);
    if (training.scheduler) training.scheduler->load_state_dict(scheduler);
    scheduled = training.scheduler != nullptr;
    if (training.model) training.model->load_state_dict(model_of(file));
  } catch (...) {
    if (scheduled) training.scheduler->load_state_dict(old_scheduler);
    // Undoes also the learning rates that the schedule has set.
    if (training.optimizer) training.optimizer->load_state_dict(old_optimizer);
    if (training.scaler) training.scaler->load_state_dict(old_scaler);
    throw;
  }
  for_each_device([&](Device device) {
    if (const Tensor* t = find(generators, device.str())) {
      const std::int64_t* state = t->data<std::int64_t>();
      default_generator(device).set_state(
          {std::bit_cast<std::uint64_t>(state[0]), std::bit_cast<std::uint64_t>(state[1])});
    }
  });
  if (!choices.empty()) set_kernel_choices(choices);
  return progress;
}

Checkpointer::Checkpointer(std::string folder, const Options& options)
    : folder_(std::move(folder)), options_(options) {
  check(options.keep_last >= 0, "[Checkpointer] keep_last is ", options.keep_last, "; it cannot be negative");
  std::error_code error, unknown;
  fs::create_directories(folder_, error);
  check<IoError>(fs::is_directory(folder_, unknown), "[Checkpointer] the folder ", folder_,
                 " cannot be made: ", error.message(), "; choose one that can be written to");
  remove_abandoned_files(folder_, [](const std::string& target) { return step_of(target).has_value(); });
  read_folder();
}

void Checkpointer::read_folder() {
  entries_.clear();
  std::error_code error;
  for (fs::directory_iterator file(folder_, error); file != fs::directory_iterator(); file.increment(error)) {
    const std::string name = file->path().filename().string();
    const std::optional<std::int64_t> step = step_of(name);
    if (!step || fs::path(path_of(*step)).filename() != name)
      continue;  // a name that Checkpointer did not write, such as "step-5", is skipped
    Entry entry{*step, {}};
    try {
      entry.metric = progress_of(name, SafetensorsFile(file->path().string()).metadata()).metric;
    } catch (const IoError&) {
      // The file is broken. The error is reported when a user loads it. Here the entry only has no metric, so
      // it cannot be the best checkpoint.
    }
    entries_.push_back(entry);
  }
  check<IoError>(!error, "[Checkpointer] the folder ", folder_, " cannot be read: ", error.message(),
                 "; choose one that can be read");
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
}

void Checkpointer::lock() {
  if (lock_) return;
  auto lock = std::make_shared<FolderLock>("Checkpointer", folder_);
  read_folder();  // another job may have written to the folder before the lock was taken
  lock_ = std::move(lock);
}

std::string Checkpointer::path_of(std::int64_t step) const {
  char name[48];
  std::snprintf(name, sizeof name, "step-%08lld.safetensors", static_cast<long long>(step));
  return (fs::path(folder_) / name).string();
}

const Checkpointer::Entry* Checkpointer::best_entry() const {
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (!entry.metric || std::isnan(*entry.metric)) continue;
    if (!best || (options_.higher_is_better ? *entry.metric > *best->metric : *entry.metric < *best->metric))
      best = &entry;
  }
  return best;
}

std::string Checkpointer::save(const Training& training, const Progress& progress) {
  const std::string path = begin_save(progress);
  save_checkpoint(path, training, progress);
  end_save(progress);
  return path;
}

std::string Checkpointer::begin_save(const Progress& progress) {
  check(progress.step >= 0, "[Checkpointer] the step is ", progress.step, "; it cannot be negative");
  lock();
  check(entries_.empty() || entries_.back().step <= progress.step, "[Checkpointer] ", folder_,
        " has a checkpoint of step ", entries_.empty() ? 0 : entries_.back().step, ", later than step ",
        progress.step, "; resume from it, or choose another folder");
  return path_of(progress.step);
}

void Checkpointer::end_save(const Progress& progress) {
  if (!entries_.empty() && entries_.back().step == progress.step) entries_.pop_back();
  entries_.push_back({progress.step, progress.metric});
  if (options_.keep_last == 0) return;

  const Entry* const best = options_.keep_best ? best_entry() : nullptr;
  const std::size_t keep = static_cast<std::size_t>(options_.keep_last);
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::error_code error;  // the error is ignored: a file that cannot be removed must not stop training
    if (entries_.size() - i <= keep || &entries_[i] == best) kept.push_back(entries_[i]);
    else fs::remove(path_of(entries_[i].step), error);
  }
  entries_ = std::move(kept);
}

std::optional<std::string> Checkpointer::latest() const {
  if (entries_.empty()) return {};
  return path_of(entries_.back().step);
}

std::optional<std::string> Checkpointer::best() const {
  const Entry* const best = best_entry();
  if (!best) return {};
  return path_of(best->step);
}

std::optional<Progress> Checkpointer::resume(const Training& training) {
  lock();
  if (entries_.empty()) return {};
  return load_checkpoint(*latest(), training);
}

std::vector<std::int64_t> Checkpointer::steps() const {
  std::vector<std::int64_t> steps;
  for (const Entry& entry : entries_) steps.push_back(entry.step);
  return steps;
}

}  // namespace tapestry::nn
