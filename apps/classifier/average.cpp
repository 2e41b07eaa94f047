#include "tapestry/apps/classifier/average.h"

#include <cstdio>
#include <filesystem>

#include "tapestry/core/error.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/nn/checkpoint.h"

namespace apps {

using namespace tapestry;
namespace fs = std::filesystem;

namespace {

// Removes a file or a folder. A failure costs disk space only.
void remove_path(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

}  // namespace

Average::Average(const Options& options, const TrainingJob& job, nn::Module& model, const std::string& folder)
    : job_(job), model_(model), sharded_(distributed::ShardedTraining(&model).divided()) {
  if (options.ema == 0) return;
  average_.emplace(
      model, optim::AveragedModelOptions{.avg_fn = optim::get_ema_avg(options.ema), .use_buffers = true});
  folder_ = distributed::broadcast_text(*job.group(), folder, 0, "folder of the averages");
}

void Average::update() {
  if (average_) average_->update_parameters();
}

void Average::use(std::optional<Scope>& scope) {
  if (average_) scope.emplace(*average_);
}

std::string Average::path_of(std::int64_t step) const {
  char name[64];
  std::snprintf(name, sizeof name, "step-%08lld%s", static_cast<long long>(step),
                sharded_ ? "" : ".safetensors");
  return (fs::path(folder_) / name).string();
}

void Average::save(std::int64_t step) {
  if (!average_ || average_->n_averaged() == 0) return;
  std::optional<Scope> scope;
  use(scope);
  distributed::on_rank_0(*job_.group(), "classifier", [&] {
    std::error_code error, unknown;
    fs::create_directories(folder_, error);
    check<IoError>(fs::is_directory(folder_, unknown), "[classifier] the folder ", folder_,
                   " cannot be made: ", error.message(), "; choose a --run-dir that can be written to");
    if (!sharded_) nn::save_checkpoint(path_of(step), {&model_}, {.step = step});
  });
  if (sharded_) distributed::save_sharded(path_of(step), job_.group(), &model_, {.step = step});
}

void Average::remove_others(const std::string& checkpoints) const {
  if (!average_ || !job_.first()) return;
  std::error_code error;
  for (fs::directory_iterator own(folder_, error); !error && own != fs::directory_iterator();
       own.increment(error))
    if (!fs::exists(fs::path(checkpoints) / own->path().filename(), error)) remove_path(own->path());
}

void Average::load(std::int64_t step) {
  if (!average_ || step == 0) return;
  const std::string path = path_of(step);
  distributed::on_all_ranks(*job_.group(), "classifier", [&] {
    if (sharded_) distributed::load_sharded(path, &model_, {.rank = job_.rank()});
    else nn::load_checkpoint(path, {&model_});
  });
  average_->update_parameters();  // the first update copies the weights
}

}  // namespace apps
