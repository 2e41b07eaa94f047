#include "tapestry/nn/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/folder_lock.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/kernel_policy.h"
#include "tapestry/nn/internal/checkpoint_file.h"
#include "tapestry/nn/internal/kernel_choices.h"

namespace tapestry::nn {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint_file;

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

template <class F>
void for_each_device(const F& fn) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
    for (int i = 0; i < device_count(type); ++i) fn(Device(type, i));
}

std::string step_name(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

/// Returns 500 for "step-00000500" and the suffix, and nothing for other names.
std::optional<std::int64_t> step_of(const std::string& name, const char* suffix) {
  if (!name.starts_with("step-")) return {};
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || step_name(step) + suffix != name) return {};
  return step;
}

/// Files that cannot be read count, because the error is reported when a user loads them. Without a metric,
/// they are not the best.
bool read_metric(const std::string& path, std::optional<double>& metric) {
  try {
    metric = progress_of("Checkpointer", path, SafetensorsFile(path).metadata()).metric;
  } catch (const IoError&) {
  }
  return true;
}

void remove_file(const std::string& path) {
  std::error_code error;  // the error is ignored: a file that cannot be removed must not stop training
  fs::remove(path, error);
}

}  // namespace

void save_tensors(const std::string& path, const StateDict& tensors, const StringMap& metadata) {
  const NoGradGuard no_grad;
  NamedTensors on_cpu;
  on_cpu.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    on_cpu.emplace_back(name, tensor.defined() && !tensor.device().is_cpu() ? tensor.to(kCPU) : tensor);
  StringMap with_format = metadata;
  with_format.emplace("format", "pt");  // Hugging Face's readers require it
  save_safetensors(path, on_cpu, with_format);
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
  Progress saved = progress;
  put_kernel_choices(saved.extra);
  StringMap metadata = metadata_of(saved);
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
    if (training.model) {
      const auto parameters = training.model->named_parameters();
      std::string& names = metadata["tapestry.parameters"];  // one a line, for other readers of the file
      for (const std::string& name :
           parameter_names(*training.optimizer, NamedSlots(parameters.begin(), parameters.end())))
        names += (names.empty() ? "" : "\n") + name;
    }
  }
  if (training.scheduler) append(tensors, kScheduler, training.scheduler->state_dict());
  if (training.scaler) append(tensors, kScaler, training.scaler->state_dict());
  for_each_device([&](Device device) {
    tensors.emplace_back(kGenerator + device.str(), generator_tensor(default_generator(device).state()));
  });
  save_tensors(path, tensors, metadata);
}

Progress load_checkpoint(const std::string& path, const Training& training) {
  const SafetensorsFile file(path);
  Progress progress = progress_of("load_checkpoint", path, file.metadata());
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
  check<IoError>(find(generators, Device(kCPU).str()) != nullptr, "[load_checkpoint] ", path,
                 ": contains no state of the random generator (", kGenerator, Device(kCPU).str(),
                 "); use another checkpoint, or load_model for the weights alone");
  const auto state_of = [&](const std::string& device, const Tensor& tensor) {
    return generator_state("load_checkpoint", path, device, tensor);
  };
  for (const auto& [device, tensor] : generators) state_of(device, tensor);
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
    if (const Tensor* t = find(generators, device.str()))
      default_generator(device).set_state(state_of(device.str(), *t));
  });
  if (!choices.empty()) set_kernel_choices(choices);
  return progress;
}

const Checkpointer::Format Checkpointer::kOneFile{".safetensors", read_metric, remove_file};

Checkpointer::Checkpointer(std::string folder, const Options& options)
    : Checkpointer({&kOneFile}, std::move(folder), options) {
  create_folder();
  read_folder();
}

Checkpointer::Checkpointer(std::vector<const Format*> formats, std::string folder, const Options& options)
    : formats_(std::move(formats)), folder_(std::move(folder)), options_(options) {
  check(options.keep_last >= 0, "[Checkpointer] keep_last is ", options.keep_last, "; it cannot be negative");
}

std::string Checkpointer::save(const Training& training, const Progress& progress) {
  const std::string path = begin_save(progress, kOneFile);
  save_checkpoint(path, training, progress);
  end_save(progress, kOneFile);
  return path;
}

std::optional<Progress> Checkpointer::resume(const Training& training) {
  lock();
  const std::optional<std::string> path = latest();
  if (!path) return {};
  return load_checkpoint(*path, training);
}

void Checkpointer::create_folder() {
  std::error_code error, unknown;
  fs::create_directories(folder_, error);
  check<IoError>(fs::is_directory(folder_, unknown), "[Checkpointer] the folder ", folder_,
                 " cannot be made: ", error.message(), "; choose one that can be written to");
  remove_abandoned_files(folder_, [this](const std::string& target) {
    return std::any_of(formats_.begin(), formats_.end(),
                       [&](const Format* f) { return step_of(target, f->suffix).has_value(); });
  });
}

std::string Checkpointer::path_of(const Entry& entry) const {
  return (fs::path(folder_) / (step_name(entry.step) + entry.format->suffix)).string();
}

std::vector<Checkpointer::Entry> Checkpointer::names_in_folder() const {
  std::vector<Entry> found;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder_, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    for (const Format* const format : formats_) {
      const auto step = step_of(entry->path().filename().string(), format->suffix);
      const bool is_folder = *format->suffix == '\0';
      if (step && entry->is_directory(ignored) == is_folder) found.push_back({*step, format});
    }
  check<IoError>(!error, "[Checkpointer] the folder ", folder_, " cannot be read: ", error.message(),
                 "; choose one that can be read");
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return found;
}

void Checkpointer::read_folder() {
  entries_.clear();
  for (Entry& entry : names_in_folder())
    if (entry.format->read(path_of(entry), entry.metric)) entries_.push_back(entry);
}

void Checkpointer::lock() {
  if (lock_) return;
  auto lock = std::make_shared<FolderLock>("Checkpointer", folder_);
  read_folder();  // another job may have written to the folder before the lock was taken
  lock_ = std::move(lock);
}

std::string Checkpointer::begin_save(const Progress& progress, const Format& format) {
  const std::int64_t step = progress.step;
  check(step >= 0, "[Checkpointer] the step is ", step, "; it cannot be negative");
  lock();
  check(entries_.empty() || entries_.back().step <= step, "[Checkpointer] ", folder_,
        " has a checkpoint of step ", entries_.empty() ? 0 : entries_.back().step, ", later than step ", step,
        "; resume from it, or choose another folder");
  return path_of({step, &format});
}

void Checkpointer::end_save(const Progress& progress, const Format& format) {
  // The run may have saved this step before, also in another format.
  for (; !entries_.empty() && entries_.back().step == progress.step; entries_.pop_back())
    if (entries_.back().format != &format) entries_.back().format->remove(path_of(entries_.back()));
  entries_.push_back({progress.step, &format, progress.metric});
  if (options_.keep_last == 0) return;
  const Entry* const best = options_.keep_best ? best_entry() : nullptr;
  const auto keep = static_cast<std::size_t>(options_.keep_last);
  std::vector<Entry> kept;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_.size() - i <= keep || &entries_[i] == best) kept.push_back(entries_[i]);
    else entries_[i].format->remove(path_of(entries_[i]));
  }
  entries_ = std::move(kept);
}

std::optional<std::string> Checkpointer::latest() const {
  if (entries_.empty()) return {};
  return path_of(entries_.back());
}

std::optional<std::string> Checkpointer::best() const {
  const Entry* const best = best_entry();
  if (!best) return {};
  return path_of(*best);
}

std::vector<std::int64_t> Checkpointer::steps() const {
  std::vector<std::int64_t> steps;
  for (const Entry& entry : entries_) steps.push_back(entry.step);
  return steps;
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

}  // namespace tapestry::nn
