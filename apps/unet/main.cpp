// Trains a U-Net to remove noise from the images of Fashion-MNIST. `unet --help` shows how to run it.
//
// Each training image gets new Gaussian noise whenever it is drawn. The network predicts the noise, and the
// loss is the mean squared error of the image. The result is the peak signal-to-noise ratio of the test
// images, -10 log10(mse) in decibels, and a picture with rows of noisy images, results and originals.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/unet/model.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

constexpr int kNotReached = 3;  // exit status
constexpr std::int64_t kShown = 12;

struct Options {
  std::string data_dir, picture = "unet.png", save, precision = "f32";
  std::uint64_t seed = 1;
  std::int64_t train_images = 12'800, test_images = 2000, epochs = 2, batch_size = 64, width = 16;
  double lr = 2e-3, noise = 0.3;
  std::optional<double> goal;
};

double decibels(double mse) { return -10 * std::log10(mse); }

/// Images u8 [N, 1, 28, 28] as f32 in [0, 1].
Tensor scaled(const Tensor& images) { return images.to(kFloat32) / 255; }

/// The first n images of a part of the dataset.
Tensor load(bool train, std::int64_t n, const std::string& folder) {
  const Tensor images = data::fashion_mnist(train, folder).input();
  check<apps::UsageError>(n <= images.size(0), "[unet] ", n, train ? " training" : " test",
                          " images were asked for, but there are ", images.size(0),
                          "; pass a smaller number");
  return images.narrow(0, 0, n);
}

struct Result {
  double before, after;  // dB of the noisy images and of the network's results
  Tensor picture;        // the first images: noisy, result, original
};

Result test(apps::UNet& model, const Tensor& images, const Options& o) {
  const NoGradGuard no_grad;
  const apps::AutocastScope autocast(o.precision);
  Generator generator(o.seed + 1);  // the same noise after each epoch
  Context context = current_context();
  context.generator = &generator;
  const ContextGuard guard(context);
  double before = 0, after = 0;
  Tensor picture;
  const std::int64_t count = images.size(0);
  for (std::int64_t i = 0; i < count; i += 250) {
    const Tensor clean = scaled(images.narrow(0, i, std::min<std::int64_t>(250, count - i)));
    const Tensor noisy = clean + randn_like(clean) * o.noise, result = model(noisy).clamp(0, 1);
    const double n = static_cast<double>(clean.size(0));
    before += mse_loss(noisy.clamp(0, 1), clean).item() * n;
    after += mse_loss(result, clean).item() * n;
    if (i == 0) {
      const std::int64_t shown = std::min(kShown, clean.size(0));
      picture = watch::image_grid(
          cat({noisy.narrow(0, 0, shown), result.narrow(0, 0, shown), clean.narrow(0, 0, shown)}), shown);
    }
  }
  return {decibels(before / static_cast<double>(count)), decibels(after / static_cast<double>(count)),
          picture};
}

int train(const Options& o) {
  // Report an unwritable path before training, not after it.
  for (const std::string& path : {o.picture, o.save})
    if (!path.empty()) AtomicFile attempt(path);
  manual_seed(o.seed);
  const Tensor images = load(true, o.train_images, o.data_dir),
               tests = load(false, o.test_images, o.data_dir);
  apps::UNet model(o.width);
  optim::AdamW optimizer(model.parameters(), {.lr = o.lr});
  optim::GradScaler scaler(apps::scaler_options(o.precision));
  const std::int64_t steps = o.train_images / o.batch_size;
  if (steps == 0)
    throw apps::UsageError("[unet] --train-images is less than --batch-size; one batch is needed");
  optim::CosineAnnealingLR schedule(optimizer, {.T_max = o.epochs * steps});
  const auto begin = std::chrono::steady_clock::now();

  Result result = test(model, tests, o);
  std::printf("noisy images: %.2f dB\n", result.before);
  for (std::int64_t epoch = 1; epoch <= o.epochs; ++epoch) {
    const Tensor order = randperm(o.train_images);
    double loss_sum = 0;
    for (std::int64_t step = 0; step < steps; ++step) {
      const Tensor clean =
          scaled(index_select(images, 0, order.narrow(0, step * o.batch_size, o.batch_size)));
      Tensor loss;
      {
        const apps::AutocastScope autocast(o.precision);
        loss = mse_loss(model(clean + randn_like(clean) * o.noise), clean);
      }
      optimizer.zero_grad();
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      schedule.step();
      loss_sum += loss.item();
    }
    result = test(model, tests, o);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("epoch %lld  training loss %.5f  test images: %.2f dB  %.0f s\n",
                static_cast<long long>(epoch), loss_sum / static_cast<double>(steps), result.after, seconds);
    std::fflush(stdout);
  }
  if (!o.save.empty()) nn::save_model(o.save, model);
  if (!o.picture.empty()) {
    write_file_atomically(o.picture, watch::encode_png(result.picture));
    std::printf("%s: noisy images, results, originals\n", o.picture.c_str());
  }
  if (!o.goal) return 0;
  std::printf("goal of %.1f dB %s\n", *o.goal, result.after >= *o.goal ? "reached" : "not reached");
  return result.after >= *o.goal ? 0 : kNotReached;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  using apps::between;
  constexpr std::int64_t kMany = 1'000'000;
  apps::CommandLine line("unet", "Trains a U-Net to remove noise from images of Fashion-MNIST.");
  line.add("--data-dir", o.data_dir,
           "Folder of the images; the default is that of the package dataset-fashion-mnist");
  line.add("--train-images", o.train_images, "Training images", {.check = between<std::int64_t>(1, kMany)});
  line.add("--test-images", o.test_images, "Test images", {.check = between<std::int64_t>(1, kMany)});
  line.add("--epochs", o.epochs, "Passes over the training images",
           {.check = between<std::int64_t>(1, kMany)});
  line.add("--batch-size", o.batch_size, "Images in one step", {.check = between<std::int64_t>(1, kMany)});
  line.add("--width", o.width, "Channels at full size, a multiple of 8",
           {.check = between<std::int64_t>(8, 1024)});
  line.add("--noise", o.noise, "Standard deviation of the noise; pixels are in [0, 1]",
           {.check = between(0.0, 10.0)});
  line.add("--lr", o.lr, "Initial learning rate of AdamW, which falls to 0 along a cosine",
           {.check = between(1e-9, 10.0)});
  line.add("--seed", o.seed, "Seed of initial weights, noise and order",
           {.check = between<std::uint64_t>(0, UINT64_MAX)});
  apps::add_precision(line, o.precision);
  line.add("--goal", o.goal, "The decibels that the test images must have at the end",
           {.check = between(0.0, 100.0)});
  line.add("--picture", o.picture, "PNG file with some test images; empty for none");
  line.add("--save", o.save, "Save the trained model to this file");
  line.footer("Exit status: 0 goal reached or none given, 1 failed, 2 wrong options, 3 goal not reached.");
  return line.run(argc, argv, [&] { return train(o); });
}
