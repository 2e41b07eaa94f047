#include "tapestry/apps/classifier/train.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tapestry/apps/classifier/average.h"
#include "tapestry/apps/classifier/config.h"
#include "tapestry/apps/classifier/images.h"
#include "tapestry/apps/classifier/job.h"
#include "tapestry/apps/classifier/mistakes.h"
#include "tapestry/apps/classifier/models.h"
#include "tapestry/apps/classifier/position.h"
#include "tapestry/apps/classifier/svg.h"
#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/live_page.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kMetrics = "metrics.jsonl";

std::string default_run_dir(const Options& o) {
  char when[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", std::localtime(&now));
  return "runs/" + o.model + "-" + o.data + "-" + when;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o, nn::Module& model,
                                                 const distributed::Strategy& strategy) {
  using distributed::make_optimizer;
  if (o.optimizer == "sgd")
    return make_optimizer<optim::SGD>(strategy, model.parameters(), {.lr = o.lr, .momentum = 0.9});
  return make_optimizer<optim::AdamW>(strategy, model.parameters(),
                                      {.lr = o.lr, .weight_decay = o.weight_decay});
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

// What the strategy needs of the model: a call, and the loss with the number of right guesses.
distributed::ModelParts parts_of(nn::Module& model, const std::string& precision) {
  using Tensors = std::vector<Tensor>;
  return {.units = units_of(model),
          .forward =
              [&model, precision](const Tensors& images) {
                const AutocastScope autocast(precision);
                return Tensors{model(images[0])};
              },
          .loss = [precision](const Tensors& scores, const Tensors& labels) -> distributed::Loss {
            const AutocastScope autocast(precision);
            Tensor right;
            {
              const NoGradGuard no_grad;
              right = scores[0].argmax(1).eq(labels[0]).sum();
            }
            return {cross_entropy(scores[0], labels[0]),
                    static_cast<double>(labels[0].size(0)),
                    distributed::LossKind::mean,
                    {right}};
          },
          .tensor_plan = tensor_plan_of(model)};
}

// Evaluates the test images of all ranks. counts[i * classes + j] becomes the number of images of class i
// that were predicted as class j. `mistakes` gets the images of this rank. Calls `stops`, which is
// collective, after each batch. Returns nothing if it returned true.
std::optional<Tally> evaluate(distributed::Strategy& strategy, Images& data, Device device,
                              const std::function<bool()>& stops, std::vector<std::int64_t>& counts,
                              WorstMistakes& mistakes) {
  const std::int64_t classes = data.spec.classes;
  std::vector<double> own(static_cast<std::size_t>(classes * classes));
  data.test->set_epoch(0);
  auto next = data.test->begin();
  const auto read = [&](std::int64_t) -> distributed::Batch {
    if (next == data.test->end())  // other ranks have more batches
      return {{zeros({1, data.spec.channels, data.spec.height, data.spec.width}).to(device)},
              {zeros({1}, DType::i64).to(device)},
              false};
    const auto [images, labels] = *next;
    ++next;
    return {{images.to(device)}, {labels.to(device)}};
  };
  const auto seen = [&](const std::vector<Tensor>& outputs, const distributed::Batch& batch) {
    const Tensor scores = outputs[0].cpu().to(DType::f32), labels = batch.targets[0].cpu(),
                 guess = scores.argmax(1);
    mistakes.add(batch.inputs[0].cpu(), labels, scores);
    for (std::int64_t i = 0; i < labels.size(0); ++i)
      ++own[static_cast<std::size_t>(labels.data<std::int64_t>()[i] * classes +
                                     guess.data<std::int64_t>()[i])];
  };
  const auto result = strategy.evaluate(data.most_test_batches, read, stops, seen);
  if (!result) return {};
  own = strategy.sum(std::move(own));
  counts.assign(own.begin(), own.end());
  return Tally{result->sum, static_cast<std::int64_t>(result->sums[0]),
               static_cast<std::int64_t>(result->count)};
}

Tally sum_of(const distributed::Strategy& strategy, const Tally& own) {
  const std::vector<double> all =
      strategy.sum({own.loss, static_cast<double>(own.right), static_cast<double>(own.count)});
  return {all[0], static_cast<std::int64_t>(all[1]), static_cast<std::int64_t>(all[2])};
}

// A run whose loss is not finite cannot recover, so it is stopped.
void check_loss(double loss, const Options& o, const std::string& where) {
  if (!std::isfinite(loss) && !o.allow_nan)
    fail("[classifier] the loss is ", loss, where, "; try a smaller --lr, or continue with --allow-nan");
}

// `whole` has the values of the parameters.
void write_epoch(watch::SummaryWriter& board, const EpochMetrics& m, const nn::Module& model,
                 const nn::StateDict& whole, std::int64_t step) {
  board.add_scalar("loss/train", m.train_loss, step);
  board.add_scalar("loss/test", m.test_loss, step);
  board.add_scalar("accuracy/train", m.train_accuracy, step);
  board.add_scalar("accuracy/test", m.test_accuracy, step);
  for (const auto& [name, parameter] : model.named_parameters())
    if (const Tensor* const values = nn::find(whole, name); values && isfinite(*values).any().item<bool>())
      board.add_histogram(name, *values, step);
  board.flush();
}

LiveRun live_run(const Options& o, const TrainingJob& job, std::int64_t epoch_steps) {
  return {.program = "classifier",
          .title = o.model + " on " + o.data,
          .unit = "images",
          .held_out = "test images",
          .steps = epoch_steps * o.epochs,
          .epoch_steps = epoch_steps,
          .facts = {{"mode", o.parallel},
                    {"ranks", std::to_string(job.size())},
                    {"batch size", std::to_string(o.batch_size)},
                    {"optimizer", o.optimizer},
                    {"precision", o.precision},
                    {"seed", std::to_string(o.seed)},
                    {"threads", std::to_string(o.threads)}}};
}

// The model with its initial values. A model that is divided is built part by part, so that no process ever
// has all of it.
std::unique_ptr<nn::Module> make_model(const Options& o, const ImageSpec& spec, const TrainingJob& job) {
  std::optional<DeviceGuard> meta;
  if (job.strategy().builds_in_parts()) meta.emplace("meta");
  std::unique_ptr<nn::Module> model = make_model(o.model, spec);
  if (const auto& group = job.strategy().data_group(); o.sync_batchnorm && group)
    distributed::convert_sync_batchnorm(*model, group);
  return model;
}

}  // namespace

int train(Options o) {
  const StopRequest stop;  // must be constructed before any thread is started
  if (o.threads > 0) set_num_threads(o.threads);
  o.threads = get_num_threads();  // saved in config.json, so that a resumed run uses the same number
  const std::unique_ptr<TrainingJob> job = join_job(o);
  distributed::Strategy& strategy = job->strategy();
  const Device device(o.device);

  RunFolder folder;
  std::optional<distributed::Checkpointer> checkpoints;
  std::optional<nn::Progress> last;  // the progress in the last checkpoint of the folder, if there is one
  const auto open_folder = [&] {
    distributed::on_rank_0(*job->group(), "classifier", [&] {
      folder = RunFolder(o.run_dir.empty() ? default_run_dir(o) : o.run_dir, o.saved != nullptr);
    });
    checkpoints.emplace(folder.file("checkpoints"), job->group());
    last = checkpoints->resume(nn::Training{});
  };
  // A resumed run checks its options before they are used. A new run opens its folder only after its data was
  // found.
  if (o.saved) {
    open_folder();
    Options before = last ? options_of(*last) : *o.saved;
    if (before.threads == 0) before.threads = o.threads;
    check_same_run(o, before, last ? "the last checkpoint" : "the run");
  }

  Images images = load_images(o, strategy.data_rank(), strategy.data_size());
  manual_seed(o.seed);
  const std::unique_ptr<nn::Module> model = make_model(o, images.spec, *job);
  strategy.wrap(*model, parts_of(*model, o.precision));
  job->seed_dropout(o.seed);
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(o, *model, strategy);
  const std::int64_t steps_per_epoch = images.train->size(), total_steps = steps_per_epoch * o.epochs;
  const std::unique_ptr<optim::Scheduler> schedule = make_schedule(o, *optimizer, total_steps);
  optim::GradScaler scaler(scaler_options(o.precision));
  const distributed::ShardedTraining training =
      job->saved({model.get(), optimizer.get(), schedule.get(), &scaler}, o.precision);

  if (!o.saved) {
    open_folder();
    check<IoError>(!last, "[classifier] ", o.run_dir,
                   " has checkpoints but no config.json; restore the file, or choose another --run-dir");
  }
  Progress progress(total_steps, steps_per_epoch, o.epochs, job->first());
  const Shape image{1, images.spec.channels, images.spec.height, images.spec.width};
  progress.line(strategy.can_call_model() ? model->summary(image) : model->summary());
  progress.line("seed " + std::to_string(o.seed) + ", threads " + std::to_string(o.threads) + ", device " +
                device.str() + (job->size() > 1 ? ", ranks " + std::to_string(job->size()) : "") +
                ", run folder " + folder.path());
  if (device.is_cuda())
    for (const cuda::Library& library : cuda::libraries()) progress.line(library.str());

  Average average(o, *job, *model, folder.file("average"));
  Position at{.loader = images.train->state()};
  if (last) {
    last = checkpoints->resume(training);  // an earlier one if a part that no one read before is damaged
    at = position_of(*last, o, *images.train);
    average.load(last->step);
    checkpoints->resume(training);  // average.load() has changed the weights
    tapestry::check<IoError>(schedule->steps() == last->step, "[classifier] the checkpoint is of step ",
                             last->step, ", but its schedule is at step ", schedule->steps(),
                             "; resume from another checkpoint of this run, or start a new run");
    if (!job->first()) at.tally = {};  // the saved tally is the sum over all ranks
    progress.start_at(last->step);
  }
  if (o.saved)
    progress.line("resumed after step " + std::to_string(schedule->steps()) + " of " +
                  std::to_string(total_steps));
  std::vector<EpochMetrics> history =
      job->first() ? read_metrics(folder.file(kMetrics), static_cast<int>(at.loader.epoch))
                   : std::vector<EpochMetrics>();
  folder.write(kMetrics, to_lines(history));
  folder.write("config.json", to_json(o));

  LivePage live(*job, folder, live_run(o, *job, steps_per_epoch));
  if (!live.address().empty()) progress.line(live.address());
  live.resume_at(at.seconds);
  for (const EpochMetrics& m : history)
    live.earlier({.step = m.epoch * steps_per_epoch,
                  .steps = steps_per_epoch,
                  .loss = m.train_loss,
                  .accuracy = m.train_accuracy},
                 m.test_loss, m.test_accuracy);

  return live.watch([&] {
    CheckpointInterval interval = *CheckpointInterval::parse(o.checkpoint_every);
    const auto save = [&](std::optional<double> accuracy) {
      Position all = at;
      all.tally = sum_of(strategy, at.tally);
      interval.restart();
      average.save(schedule->steps());
      std::string path = checkpoints->save(training, to_progress(all, schedule->steps(), o, accuracy));
      average.remove_others(folder.file("checkpoints"));
      return path;
    };
    // Saves a checkpoint and returns the exit status of a run that a signal stopped.
    const auto stopped_by = [&](int signal) {
      const std::string path = save({});
      const std::string what = "stopped by " + signal_name(signal) + " and saved " + path +
                               "; continue with: classifier --resume --run-dir " + folder.path();
      progress.line(what);
      live.finish("stopped", what);
      return 128 + signal;
    };

    std::optional<watch::SummaryWriter> board;
    if (o.tensorboard && job->first()) {
      watch::SummaryWriter::Options resumed;
      if (o.saved) resumed.purge_step = schedule->steps() + 1;  // drops what the stopped run wrote later
      board.emplace(folder.file("tensorboard"), resumed);
    }

    std::vector<std::int64_t> confusion;
    std::string last_saved;
    while (images.train->epoch() < o.epochs) {
      const int epoch = static_cast<int>(images.train->epoch()) + 1;
      const double earlier_seconds = at.seconds;
      const Clock::time_point start = Clock::now();
      for (const auto& [batch, labels] : *images.train) {
        const Tensor x = batch.to(device), target = labels.to(device);
        optimizer->zero_grad();
        const std::int64_t own = labels.size(0), all = own * strategy.data_size();
        const distributed::StepLoss step = strategy.gradients(
            [&](const distributed::Part&) {
              return distributed::Batch{{x}, {target}};
            },
            static_cast<double>(all), &scaler);
        if (o.clip_norm > 0) {
          scaler.unscale_(*optimizer);
          strategy.clip_grad_norm_(o.clip_norm);
        }
        scaler.step(*optimizer);
        scaler.update();
        average.update();
        schedule->step();

        const double value = step.loss.item() * strategy.loss_parts();  // of this rank's images
        at.loader = images.train->state();
        check_loss(value, o,
                   " at epoch " + std::to_string(epoch) + ", step " + std::to_string(steps_in_epoch(at, o)));
        at.tally.add(value, step.sums[0].item<std::int64_t>(), own);
        at.seconds = earlier_seconds + std::chrono::duration<double>(Clock::now() - start).count();
        if (board) {
          board->add_scalar("loss/step", value, schedule->steps());
          board->add_scalar("lr", optimizer->lr(), schedule->steps());
        }
        progress.step(epoch, steps_in_epoch(at, o), all, at.tally.mean_loss(), at.tally.accuracy());
        live.step(
            {.step = schedule->steps(),
             .loss = value,
             .accuracy = static_cast<double>(step.sums[0].item<std::int64_t>()) / static_cast<double>(own),
             .samples = all,
             .seconds = at.seconds});
        const Request agreed = job->agree({stop.signal(), interval.elapsed()});
        if (agreed.signal) return stopped_by(agreed.signal);
        if (agreed.save || interval.due_at(schedule->steps())) save({});
      }

      // A run that is stopped here saves the position after the last batch of the epoch. When it is resumed,
      // it repeats only the evaluation.
      int signal = 0;
      WorstMistakes mistakes;
      std::optional<Average::Scope> averaged;
      average.use(averaged);
      const std::optional<Tally> test = evaluate(
          strategy, images, device, [&] { return (signal = job->agree({stop.signal()}).signal) != 0; },
          confusion, mistakes);
      averaged.reset();
      if (!test) return stopped_by(signal);
      const Tally trained = sum_of(strategy, at.tally);
      check_loss(test->mean_loss(), o, " over the test images after epoch " + std::to_string(epoch));
      const EpochMetrics metrics{
          epoch, trained.mean_loss(), trained.accuracy(), test->mean_loss(), test->accuracy(), at.seconds};
      history.push_back(metrics);
      folder.write(kMetrics, to_lines(history));
      const std::string title = o.model + " on " + o.data;
      folder.write("curves.svg", curves_svg(history, title));
      const std::string matrix = confusion_svg(confusion, images.classes, title),
                        worst = mistakes.svg(images.classes, "worst mistakes of " + title);
      folder.write("confusion.svg", matrix);
      folder.write("mistakes.svg", worst);
      live.picture(schedule->steps(), "Worst mistakes", worst);
      live.picture(schedule->steps(), "Confusion of classes", matrix);
      live.evaluated(schedule->steps(), test->mean_loss(), test->accuracy());
      if (o.tensorboard) {
        const nn::StateDict whole = strategy.whole_state();
        if (board) write_epoch(*board, metrics, *model, whole, schedule->steps());
      }
      char line[200];
      std::snprintf(line, sizeof line,
                    "epoch %d/%d  train loss %.4f accuracy %.4f  test loss %.4f accuracy %.4f  %s", epoch,
                    o.epochs, metrics.train_loss, metrics.train_accuracy, metrics.test_loss,
                    metrics.test_accuracy, duration(at.seconds).c_str());
      progress.line(line);
      at.loader = images.train->state();
      at.tally = {};
      last_saved = save(test->accuracy());
    }
    live.finish("done", {});
    if (history.empty()) return 0;  // a finished run was resumed, and metrics.jsonl is missing
    char line[120];
    std::snprintf(line, sizeof line, "test accuracy %.4f after %.1f s of training, seed %llu; results in %s",
                  history.back().test_accuracy, at.seconds, static_cast<unsigned long long>(o.seed),
                  folder.path().c_str());
    progress.line(line);
    job->print_report(progress);
    if (training.divided() && !last_saved.empty())
      progress.line("all weights in one file: tapestry-checkpoint merge " + last_saved +
                    " model.safetensors");
    return 0;
  });
}

}  // namespace apps
