#include "tapestry/apps/classifier/train.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "tapestry/apps/classifier/images.h"
#include "tapestry/apps/classifier/models.h"
#include "tapestry/apps/classifier/ranks.h"
#include "tapestry/apps/classifier/tally.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/common/svg.h"
#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;
using Clock = std::chrono::steady_clock;

namespace {

std::string default_run_dir(const Options& o) {
  char when[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", std::localtime(&now));
  return "runs/" + o.model + "-" + o.data + "-" + when;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o, nn::Module& model) {
  if (o.optimizer == "sgd")
    return std::make_unique<optim::SGD>(model.parameters(), optim::SGD::Options{.lr = o.lr, .momentum = 0.9});
  return std::make_unique<optim::AdamW>(model.parameters(),
                                        optim::AdamW::Options{.lr = o.lr, .weight_decay = o.weight_decay});
}

// All schedules are stepped once per batch.
std::unique_ptr<optim::Scheduler> make_schedule(const Options& o, optim::Optimizer& optimizer,
                                                std::int64_t steps) {
  if (o.schedule == "one-cycle")
    return std::make_unique<optim::OneCycleLR>(
        optimizer, optim::OneCycleLROptions{.max_lr = o.lr, .total_steps = steps});
  if (o.schedule == "cosine")
    return std::make_unique<optim::CosineAnnealingLR>(optimizer,
                                                      optim::CosineAnnealingLROptions{.T_max = steps});
  if (o.schedule == "step")  // divides the learning rate by 10 after each third of the steps
    return std::make_unique<optim::StepLR>(
        optimizer, optim::StepLROptions{.step_size = std::max<std::int64_t>(1, (steps + 2) / 3)});
  return std::make_unique<optim::LambdaLR>(optimizer, [](std::int64_t) { return 1.0; });
}

std::int64_t count_right(const Tensor& scores, const Tensor& labels) {
  NoGradGuard no_grad;
  return scores.argmax(1).eq(labels).sum().item<std::int64_t>();
}

// Returns a value that the classifier has added to the checkpoint.
const std::string& extra_value(const nn::Progress& saved, const std::string& name) {
  const auto found = saved.extra.find(name);
  tapestry::check<IoError>(found != saved.extra.end(), "[classifier] the checkpoint has no ", name,
                           ", so another program wrote it; resume a run of the classifier");
  return found->second;
}

double seconds_in(const std::string& text) {
  double seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  tapestry::check<IoError>(error == std::errc() && *stop == 0, "[classifier] the checkpoint's seconds are '",
                           text, "', which is not a number; resume a run of the classifier");
  return seconds;
}

// Evaluates the test images of all ranks. counts[i * classes + j] becomes the number of images of class i
// that were predicted as class j.
Tally evaluate(nn::Module& model, data::DataLoader<>& loader, Device device, std::int64_t classes,
               Ranks& ranks, std::vector<std::int64_t>& counts) {
  ranks.sync_buffers();
  const InferenceMode inference;
  Tally tally;
  counts.assign(static_cast<std::size_t>(classes * classes), 0);
  model.eval();
  loader.set_epoch(0);
  for (const auto& [images, labels] : loader) {
    const Tensor scores = model(images.to(device)).cpu();
    const Tensor guess = scores.argmax(1);
    tally.add(cross_entropy(scores, labels).item(), count_right(scores, labels), labels.size(0));
    for (std::int64_t i = 0; i < labels.size(0); ++i)
      ++counts[static_cast<std::size_t>(labels.data<std::int64_t>()[i] * classes +
                                        guess.data<std::int64_t>()[i])];
  }
  model.train();
  ranks.sum(counts);
  return ranks.sum(tally);
}

// A run whose loss is not finite cannot recover, so it is stopped.
void check_loss(double loss, const Options& o, const std::string& where) {
  if (!std::isfinite(loss) && !o.allow_nan)
    fail("[classifier] the loss is ", loss, where, "; try a smaller --lr, or continue with --allow-nan");
}

}  // namespace

bool train(Options o) {
  const StopRequest stop;  // must be constructed before any thread is started
  if (o.threads > 0) set_num_threads(o.threads);
  o.threads = get_num_threads();  // saved in config.json, so that a resumed run uses the same number
  const Device device(o.device);
  check_device("classifier", device);

  Ranks ranks(o);

  Images images = load_images(o, ranks.rank(), ranks.size());
  manual_seed(o.seed);
  const std::unique_ptr<nn::Module> model = make_model(o.model, images.spec);
  model->to(device);
  ranks.wrap(*model, o);
  // Each rank needs different dropout masks.
  if (ranks.size() > 1) distributed::manual_seed_by_rank(*ranks.group(), o.seed);
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(o, *model);
  const std::int64_t steps_per_epoch = images.train->size(), total_steps = steps_per_epoch * o.epochs;
  const std::unique_ptr<optim::Scheduler> schedule = make_schedule(o, *optimizer, total_steps);
  const nn::Training training{model.get(), optimizer.get(), schedule.get()};

  RunFolder folder;
  distributed::on_rank_0(*ranks.group(), "classifier", [&] {
    folder = RunFolder(o.run_dir.empty() ? default_run_dir(o) : o.run_dir, o.resume);
  });
  distributed::DistributedCheckpointer checkpoints(ranks.group(), folder.file("checkpoints"));
  Progress progress(total_steps, steps_per_epoch, o.epochs, ranks.first());
  progress.line(model->summary(Shape{1, images.spec.channels, images.spec.height, images.spec.width}));
  progress.line("seed " + std::to_string(o.seed) + ", threads " + std::to_string(o.threads) + ", device " +
                device.str() + (ranks.size() > 1 ? ", ranks " + std::to_string(ranks.size()) : "") +
                ", run folder " + folder.path());
  if (device.is_cuda())
    for (const cuda::Library& library : cuda::libraries()) progress.line(library.str());

  Tally tally;  // of the epoch in progress
  double seconds = 0;
  if (o.resume) {
    if (std::optional<nn::Progress> saved = checkpoints.resume(training)) {
      images.train->load_state(data::LoaderState::parse(extra_value(*saved, "loader")));
      if (ranks.first())
        tally = Tally::parse(extra_value(*saved, "tally"));  // the saved tally is the sum over all ranks
      seconds = seconds_in(extra_value(*saved, "seconds"));
      progress.start_at(saved->step);
    }
    progress.line("resumed after step " + std::to_string(schedule->steps()) + " of " +
                  std::to_string(total_steps));
  }
  std::vector<EpochMetrics> history = folder.read_metrics(static_cast<int>(images.train->epoch()));
  folder.write_metrics(history);
  folder.write("config.json", to_json(o));
  const auto save = [&](std::optional<double> accuracy) {
    const Tally all = ranks.sum(tally);
    checkpoints.save(training, {.epoch = images.train->epoch(),
                                .step = schedule->steps(),
                                .metric = accuracy,
                                .extra = {{"loader", images.train->state().str()},
                                          {"tally", all.str()},
                                          {"seconds", std::to_string(seconds)}}});
  };

  std::vector<std::int64_t> confusion;
  while (images.train->epoch() < o.epochs) {
    const int epoch = static_cast<int>(images.train->epoch()) + 1;
    Clock::time_point start = Clock::now();
    for (const auto& [batch, labels] : *images.train) {
      const Tensor x = batch.to(device), target = labels.to(device);
      optimizer->zero_grad();
      const Tensor scores = ranks.forward(*model, x);
      const Tensor loss = cross_entropy(scores, target);
      loss.backward();
      optimizer->step();
      schedule->step();

      const double value = loss.item();
      const std::int64_t step = images.train->state().batch;
      check_loss(value, o, " at epoch " + std::to_string(epoch) + ", step " + std::to_string(step));
      tally.add(value, count_right(scores, target), labels.size(0));
      progress.step(epoch, step, labels.size(0) * ranks.size(), tally.mean_loss(), tally.accuracy());
      if (ranks.stop(stop.made())) {
        seconds += std::chrono::duration<double>(Clock::now() - start).count();
        save({});
        progress.line("stopped and saved; continue with: classifier --resume --run-dir " + folder.path());
        return false;
      }
    }
    seconds += std::chrono::duration<double>(Clock::now() - start).count();

    const Tally test = evaluate(*model, *images.test, device, images.spec.classes, ranks, confusion);
    const Tally trained = ranks.sum(tally);
    check_loss(test.mean_loss(), o, " over the test images after epoch " + std::to_string(epoch));
    const EpochMetrics metrics{
        epoch, trained.mean_loss(), trained.accuracy(), test.mean_loss(), test.accuracy(), seconds};
    history.push_back(metrics);
    folder.write_metrics(history);
    const std::string title = o.model + " on " + o.data;
    folder.write("curves.svg", curves_svg(history, title));
    folder.write("confusion.svg", confusion_svg(confusion, images.classes, title));
    char line[200];
    std::snprintf(line, sizeof line,
                  "epoch %d/%d  train loss %.4f accuracy %.4f  test loss %.4f accuracy %.4f  %s", epoch,
                  o.epochs, metrics.train_loss, metrics.train_accuracy, metrics.test_loss,
                  metrics.test_accuracy, duration(seconds).c_str());
    progress.line(line);
    tally = {};
    save(test.accuracy());
  }
  if (history.empty()) return true;  // a finished run was resumed, and metrics.jsonl is missing
  char line[120];
  std::snprintf(line, sizeof line, "test accuracy %.4f after %.1f s of training, seed %llu; results in %s",
                history.back().test_accuracy, seconds, static_cast<unsigned long long>(o.seed),
                folder.path().c_str());
  progress.line(line);
  return true;
}

}  // namespace apps
