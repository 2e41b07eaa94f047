#include "tapestry/nn/checkpoint.h"

#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>

#include "tapestry/tapestry.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/isolation.h"
#include "tests/support/source.h"

using namespace tapestry;
using tests::FileSizeLimit;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

const std::string kGolden = tests::source_path("tests/golden/nn_checkpoint");

/// The model of tests/golden/nn_checkpoint.py.
struct GoldenNet : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 2, .out_channels = 4, .kernel_size = 3});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 4});
  nn::Sequential& blocks = add<nn::Sequential>(
      "blocks", nn::Linear::Options{.in_features = 64, .out_features = 8}, nn::ReLU::Options{},
      nn::Linear::Options{.in_features = 8, .out_features = 3, .bias = false});
  Tensor forward(const Tensor& x) override { return blocks(bn(conv(x)).relu().flatten(1)); }
};

/// A net whose training depends on earlier steps, through batch norm's statistics and dropout's random
/// numbers.
struct Net : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 1, .out_channels = 4, .kernel_size = 3});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 4});
  nn::Dropout& dropout = add<nn::Dropout>("dropout", {.p = 0.3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 64, .out_features = 3});
  Tensor forward(const Tensor& x) override { return fc(dropout(bn(conv(x)).relu().flatten(1))); }
};

/// Returns the bytes of all elements of a state dict.
std::string bytes_of(const nn::StateDict& state) {
  std::string out;
  for (const auto& [name, tensor] : state) {
    const Tensor t = tensor.contiguous();
    out += name + ":" + std::string(static_cast<const char*>(t.raw_data()), t.nbytes()) + "\n";
  }
  return out;
}

/// One training run, which may start at any point.
template <class Optimizer>
struct Run {
  Net net;
  Optimizer optimizer{net.parameters(), {.lr = 0.01}};
  optim::OneCycleLR schedule{optimizer, {.max_lr = 0.05, .total_steps = 64, .cycle_momentum = false}};
  data::DataLoader<> loader{
      std::make_shared<data::RandomDataset>(data::RandomDataset::Options{
          .size = 22, .channels = 1, .height = 6, .width = 6, .num_classes = 3, .seed = 4}),
      {.batch_size = 4,
       .shuffle = true,
       .seed = 11,
       .num_workers = 2,
       .transforms = {data::random_crop(6, 6, 1), data::random_horizontal_flip()}}};
  nn::Training training{&net, &optimizer, &schedule};
  std::int64_t step = 0;
  std::vector<double> losses;

  /// Trains until `epochs` have passed or until just before step `stop`.
  void train(std::int64_t epochs, std::int64_t stop = 1 << 20) {
    while (loader.epoch() < epochs) {
      for (auto& [images, labels] : loader) {
        optimizer.zero_grad();
        const Tensor loss = cross_entropy(net(images), labels);
        loss.backward();
        optimizer.step();
        schedule.step();
        losses.push_back(loss.item());
        if (++step == stop) return;
      }
    }
  }
  nn::Progress progress() const {
    return {.epoch = loader.epoch(), .step = step, .extra = {{"loader", loader.state().str()}}};
  }
  void resume(const std::string& path) {
    const nn::Progress progress = nn::load_checkpoint(path, training);
    step = progress.step;
    loader.load_state(data::LoaderState::parse(progress.extra.at("loader")));
  }
  std::string state() const { return bytes_of(net.state_dict()) + bytes_of(optimizer.state_dict()); }
};

/// Returns the number of files in a folder, not counting the lock file.
std::size_t files_in(const TempDir& dir) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    if (entry.path().filename() != ".lock") ++count;
  return count;
}

}  // namespace

TEST_CASE("a model that PyTorch saved is loaded, computes the same, and is saved as the same bytes") {
  GoldenNet net;
  nn::load_model(kGolden + ".safetensors", net);
  net.eval();
  const nn::StateDict io = nn::load_tensors(kGolden + "_io.safetensors");
  const Tensor expected = *nn::find(io, "y"), y = net(*nn::find(io, "x"));
  // The tolerance covers four layers of sums of at most 64 products of numbers near 1.
  CHECK(y.allclose(expected, 1e-5, 1e-5));
  const TempDir dir;
  nn::save_model(dir / "ours", net);
  CHECK(read_file(dir / "ours") == read_file(kGolden + ".safetensors"));
}

TEST_CASE("load_model converts to the module's dtype and refuses a mismatch unless strict is false") {
  const TempDir dir;
  GoldenNet net;
  const std::string before = bytes_of(net.state_dict());
  Net other;
  CHECK_THROWS_WITH(nn::load_model(kGolden + ".safetensors", other),
                    ContainsSubstring("conv.weight") && ContainsSubstring("fc.weight"));
  CHECK_THROWS_AS(nn::load_model(dir / "absent", net), IoError);
  write_file(dir / "cut", read_file(kGolden + ".safetensors").substr(0, 3000));
  CHECK_THROWS_AS(nn::load_model(dir / "cut", net), IoError);
  CHECK(bytes_of(net.state_dict()) == before);

  nn::StateDict some = nn::load_tensors(kGolden + ".safetensors");
  std::erase_if(some, [](const auto& item) { return item.first == "bn.bias"; });
  some.emplace_back("more", zeros({2}));
  nn::save_tensors(dir / "some", some);
  CHECK_THROWS_AS(nn::load_model(dir / "some", net), ValueError);
  const nn::LoadResult result = nn::load_model(dir / "some", net, false);
  CHECK(result.missing == std::vector<std::string>{"bn.bias"});
  CHECK(result.unexpected == std::vector<std::string>{"more"});

  net.to(DType::f64);
  nn::load_model(kGolden + ".safetensors", net);
  CHECK(net.conv.weight->dtype() == DType::f64);
  CHECK(net.conv.weight->to(DType::f32).allclose(*nn::find(some, "conv.weight"), 0, 0));
  CHECK_THROWS_AS(nn::load_tensors(kGolden + ".safetensors", Device("cpu:63")), DeviceError);
}

TEMPLATE_TEST_CASE("a resumed run gives the bits of a run that was never interrupted", "", optim::SGD,
                   optim::Adam, optim::AdamW, optim::RMSprop, optim::NAdam) {
  const TempDir dir;
  manual_seed(5);
  Run<TestType> whole;
  if (whole.optimizer.has_option("momentum")) whole.optimizer.set_option(0, "momentum", 0.9);
  const std::string start = dir / "start";
  nn::save_checkpoint(start, whole.training, whole.progress());
  whole.train(3);
  const std::string expected = whole.state();
  CHECK(whole.losses.size() == 18);  // 3 epochs of 6 batches

  for (const std::int64_t stop : {1, 5, 6, 9, 17}) {
    INFO("stopped after step " << stop);
    manual_seed(1000 + static_cast<std::uint64_t>(stop));
    Run<TestType> first;
    first.resume(start);
    first.train(3, stop);
    nn::save_checkpoint(dir / "stopped", first.training, first.progress());
    manual_seed(77);
    Run<TestType> second;
    second.resume(dir / "stopped");
    CHECK(second.step == stop);
    second.train(3);
    CHECK(second.step == 18);
    CHECK(second.state() == expected);
    std::vector<double> losses = first.losses;
    losses.insert(losses.end(), second.losses.begin(), second.losses.end());
    CHECK(losses == whole.losses);
  }
  // A counterexample: without the generators' state, dropout draws other numbers, so the resumed run must
  // differ.
  Run<TestType> other;
  other.resume(start);
  manual_seed(6);
  other.train(3);
  CHECK(other.state() != expected);
}

TEST_CASE("a checkpoint is also a model file and preserves the progress") {
  const TempDir dir;
  Run<optim::AdamW> run;
  run.train(1);
  const nn::Progress saved{
      .epoch = 3, .step = 1LL << 40, .metric = 0.1 + 0.2, .extra = {{"a", "b\n\u00fc"}, {"", "c"}}};
  nn::save_checkpoint(dir / "f", run.training, saved);
  Run<optim::AdamW> other;
  const nn::Progress loaded = nn::load_checkpoint(dir / "f", other.training);
  CHECK(loaded.epoch == saved.epoch);
  CHECK(loaded.step == saved.step);
  CHECK(loaded.metric == saved.metric);
  CHECK(loaded.extra == saved.extra);
  CHECK(other.schedule.steps() == run.schedule.steps());
  CHECK(other.optimizer.lr() == run.optimizer.lr());
  Net net;
  nn::load_model(dir / "f", net);
  CHECK(bytes_of(net.state_dict()) == bytes_of(run.net.state_dict()));

  SECTION("parts") {
    Run<optim::AdamW> untouched;
    const std::string before = untouched.state();
    CHECK(nn::load_checkpoint(dir / "f", {}).epoch == 3);
    CHECK(untouched.state() == before);
    nn::save_checkpoint(dir / "model only", {.model = &run.net}, {});
    CHECK_FALSE(nn::load_checkpoint(dir / "model only", {.model = &net}).metric);
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "model only", {.optimizer = &run.optimizer}),
                      ContainsSubstring("contains no optimizer state"));
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "model only", {.scheduler = &run.schedule}),
                      ContainsSubstring("contains no schedule state"));
  }
  SECTION("a mismatch in one part leaves all parts unchanged") {
    Run<optim::AdamW> other;
    other.train(1, 2);
    const std::string before = other.state();
    const double lr = other.optimizer.lr();
    // load_checkpoint must refuse an optimizer with one parameter fewer, a schedule that ends before the
    // saved position, and another model. It must then change nothing.
    std::vector<nn::Parameter> fewer = other.net.parameters();
    fewer.pop_back();
    optim::AdamW small(fewer, {.lr = 0.5});
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "f", {.model = &other.net, .optimizer = &small}),
                      ContainsSubstring("the state dict does not match this AdamW"));
    CHECK(small.lr() == 0.5);
    CHECK(other.state() == before);
    optim::OneCycleLR shorter(other.optimizer, {.max_lr = 0.1, .total_steps = 2, .cycle_momentum = false});
    other.optimizer.set_lr(lr);
    CHECK_THROWS_WITH(
        nn::load_checkpoint(dir / "f",
                            {.model = &other.net, .optimizer = &other.optimizer, .scheduler = &shorter}),
        ContainsSubstring("beyond the 2 steps"));
    CHECK(shorter.steps() == 0);
    CHECK(other.optimizer.lr() == lr);
    CHECK(other.state() == before);
    GoldenNet golden;
    CHECK_THROWS_AS(
        nn::load_checkpoint(dir / "f",
                            {.model = &golden, .optimizer = &other.optimizer, .scheduler = &other.schedule}),
        ValueError);
    CHECK(other.schedule.steps() == 2);
    CHECK(other.state() == before);
    // A parameter group is added to the optimizer after its schedule was made. Loading into this schedule
    // must fail, even if the file contains the schedule's own state.
    other.optimizer.add_param_group({golden.parameters(), {.lr = 0.25}});
    nn::save_checkpoint(dir / "outgrown", {.optimizer = &other.optimizer, .scheduler = &other.schedule}, {});
    other.optimizer.set_lr(0.75);
    CHECK_THROWS_WITH(
        nn::load_checkpoint(dir / "outgrown", {.optimizer = &other.optimizer, .scheduler = &other.schedule}),
        ContainsSubstring("add groups before making the schedule"));
    CHECK(other.optimizer.lr(1) == 0.75);
  }
  SECTION("checkpoints of another model, optimizer or schedule are refused") {
    Run<optim::Adam> adam;
    const std::string before = adam.state();
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "f", adam.training),
                      ContainsSubstring("was saved with the optimizer AdamW, not Adam"));
    CHECK(adam.state() == before);
    GoldenNet golden;
    CHECK_THROWS_AS(nn::load_checkpoint(dir / "f", {.model = &golden}), ValueError);
    CHECK_THROWS_WITH(nn::load_checkpoint(kGolden + ".safetensors", {}),
                      ContainsSubstring("not a checkpoint of a training run"));
    nn::save_tensors(dir / "v", {}, {{"tapestry.checkpoint", "2"}});
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "v", {}), ContainsSubstring("version 2"));
    for (const char* step : {"", "x", "1x", "-", "99999999999999999999"}) {
      nn::save_tensors(dir / "v", {},
                       {{"tapestry.checkpoint", "1"}, {"tapestry.epoch", "0"}, {"tapestry.step", step}});
      CHECK_THROWS_AS(nn::load_checkpoint(dir / "v", {}), IoError);
    }
    const std::vector<std::pair<const char*, const char*>> negative = {{"-9000000000000000000", "0"},
                                                                       {"0", "-1"}};
    for (const auto& [epoch, step] : negative) {
      nn::save_tensors(dir / "v", {},
                       {{"tapestry.checkpoint", "1"}, {"tapestry.epoch", epoch}, {"tapestry.step", step}});
      CHECK_THROWS_WITH(nn::load_checkpoint(dir / "v", {}), ContainsSubstring("which cannot be negative"));
    }
    CHECK_THROWS_WITH(nn::save_checkpoint(dir / "v", {}, {.epoch = -1}),
                      ContainsSubstring("the epoch is -1"));
    const auto generators = [&](const nn::StateDict& tensors) {
      nn::save_tensors(dir / "v", tensors,
                       {{"tapestry.checkpoint", "1"}, {"tapestry.epoch", "0"}, {"tapestry.step", "0"}});
    };
    generators({});
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "v", {}),
                      ContainsSubstring("contains no state of the random generator"));
    const Tensor state = zeros({2}, DType::i64);
    generators({{"training/generator/cpu:0", state}, {"training/generator/cpo:0", state}});
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "v", {}),
                      ContainsSubstring("cpo:0 is not the generator of a device"));
    nn::save_tensors(dir / "v", {{"training/generator/cpu:0", zeros({3})}},
                     {{"tapestry.checkpoint", "1"}, {"tapestry.epoch", "0"}, {"tapestry.step", "0"}});
    CHECK_THROWS_WITH(nn::load_checkpoint(dir / "v", {}), ContainsSubstring("not two int64"));
  }
  SECTION("mutated files are loaded or refused with an Error") {
    const int calls = tests::for_mutations<Error>(read_file(dir / "f"), [&](const std::string& bytes) {
      write_file(dir / "mutated", bytes);
      nn::load_checkpoint(dir / "mutated", other.training);
    });
    CHECK(calls > 50);
  }
}

TEST_CASE("Checkpointer keeps the last and the best") {
  const TempDir dir;
  Net net;
  const nn::Training training{.model = &net};
  const std::string folder = dir / "a/b";
  using Steps = std::vector<std::int64_t>;
  auto save = [&](nn::Checkpointer& c, std::int64_t step, std::optional<double> metric) {
    return c.save(training, {.step = step, .metric = metric});
  };
  SECTION("higher is better") {
    nn::Checkpointer checkpoints(folder, {.keep_last = 2});
    CHECK_FALSE(checkpoints.latest());
    CHECK_FALSE(checkpoints.best());
    CHECK_FALSE(checkpoints.resume(training));
    save(checkpoints, 10, std::numeric_limits<double>::quiet_NaN());
    CHECK_FALSE(checkpoints.best());
    save(checkpoints, 20, 0.9);
    save(checkpoints, 30, 0.5);
    save(checkpoints, 40, 0.9);
    save(checkpoints, 50, {});
    CHECK(checkpoints.steps() == Steps{20, 40, 50});
    CHECK(checkpoints.best() == folder + "/step-00000020.safetensors");
    CHECK(checkpoints.latest() == folder + "/step-00000050.safetensors");
    CHECK(checkpoints.resume(training)->step == 50);
    save(checkpoints, 60, 0.95);
    CHECK(checkpoints.steps() == Steps{50, 60});
    save(checkpoints, 60, 0.1);  // the same step again, after resuming there
    CHECK(checkpoints.steps() == Steps{50, 60});

    // A second Checkpointer on the same folder finds the same checkpoints, but may not write or resume.
    nn::Checkpointer again(folder, {.keep_last = 2});
    CHECK(again.steps() == Steps{50, 60});
    CHECK(again.best() == folder + "/step-00000060.safetensors");
    CHECK_THROWS_WITH(save(again, 61, 0.1),
                      ContainsSubstring("[Checkpointer] " + folder + " is in use by process " +
                                        std::to_string(getpid()) + " on host "));
    CHECK_THROWS_WITH(again.resume(training), ContainsSubstring("is in use by process"));
    CHECK(nn::load_checkpoint(*again.latest(), training).step == 60);
    save(checkpoints, 70, 0.2);
    CHECK(again.steps() == Steps{50, 60});
    { const nn::Checkpointer gone = std::move(checkpoints); }
    // It reads the folder again once it has the lock.
    CHECK(again.resume(training)->step == 70);
    CHECK(again.steps() == Steps{60, 70});
    CHECK_THROWS_WITH(save(again, 69, 0.1),
                      ContainsSubstring("has a checkpoint of step 70, later than step 69"));
    CHECK_THROWS_AS(save(again, -1, 0.1), ValueError);
  }
  SECTION("lower_is_better, keep_best = false, and keep_last = 0") {
    nn::Checkpointer lower(folder, {.keep_last = 1, .higher_is_better = false});
    for (std::int64_t step : {1, 2, 3}) save(lower, step, static_cast<double>(step));
    CHECK(lower.steps() == Steps{1, 3});
    nn::Checkpointer last(dir / "last", {.keep_last = 1, .keep_best = false, .higher_is_better = false});
    for (std::int64_t step : {1, 2, 3}) save(last, step, static_cast<double>(step));
    CHECK(last.steps() == Steps{3});
    nn::Checkpointer all(dir / "all", {.keep_last = 0});
    for (std::int64_t step : Steps{1, 2, 3, 123456789012}) save(all, step, {});
    CHECK(nn::Checkpointer(dir / "all").steps() == Steps{1, 2, 3, 123456789012});
    CHECK_THROWS_AS(nn::Checkpointer(dir / "x", {.keep_last = -1}), ValueError);
  }
  SECTION("the constructor keeps unrelated files and removes those of dead writers") {
    std::filesystem::create_directories(folder);
    const std::string own = folder + "/step-00000001.safetensors";
    // Whether a process with the id in a name lives does not matter: the lock decides.
    const std::vector<std::string> stale = {concat({own, AtomicFile::kTemporaryMark, "0123456789abcdef"}),
                                            concat({own, AtomicFile::kTemporaryMark, getpid(), "-0"})};
    AtomicFile writing(own);
    const std::vector<std::string> others = {
        writing.temporary_path(),       folder + "/notes.tmp-1-0",     folder + "/notes.tmp-0123456789abcdef",
        folder + "/step-x.safetensors", folder + "/step-.safetensors", folder + "/step-5.safetensors"};
    for (const std::string& path : others) write_file(path, "x");
    for (const std::string& path : stale) write_file(path, "x");
    write_file(own, "broken");
    nn::Checkpointer checkpoints(folder, {.keep_last = 1});
    for (const std::string& path : stale) CHECK_FALSE(std::filesystem::exists(path));
    CHECK(checkpoints.steps() == Steps{1});
    CHECK_THROWS_AS(checkpoints.resume(training), IoError);
    CHECK_FALSE(checkpoints.best());
    save(checkpoints, 2, {});
    CHECK_FALSE(std::filesystem::exists(own));
    for (const std::string& path : others) CHECK(std::filesystem::exists(path));
  }
}

TEST_CASE("a Checkpointer in another PID namespace spares a checkpoint that is being written") {
  const TempDir dir;
  const std::string path = dir / "step-00000001.safetensors";
  AtomicFile writing(path);
  writing.write("text");
  const auto status = tests::in_new_pid_namespace(
      [&] { return static_cast<void>(nn::Checkpointer(dir.path().string())), 0; });
  if (!status) WARN("skipped: the kernel permits no new PID namespace");
  CHECK(status.value_or(0) == 0);
  REQUIRE(std::filesystem::exists(writing.temporary_path()));
  writing.commit();
  CHECK(read_file(path) == "text");
}

TEST_CASE("a full disk or an unwritable folder leaves existing checkpoints intact") {
  const TempDir dir;
  Net net;
  const nn::Training training{.model = &net};
  nn::Checkpointer checkpoints(dir.path().string(), {.keep_last = 1});
  checkpoints.save(training, {.step = 1});
  {
    const FileSizeLimit limit(1000);
    CHECK_THROWS_WITH(checkpoints.save(training, {.step = 2}), ContainsSubstring("cannot be written"));
  }
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{1});
  CHECK(files_in(dir) == 1);
  CHECK(checkpoints.resume(training)->step == 1);
  checkpoints.save(training, {.step = 2});
  CHECK(checkpoints.resume(training)->step == 2);
  write_file(dir / "file", "");
  CHECK_THROWS_WITH(nn::Checkpointer(dir / "file"), ContainsSubstring("cannot be made"));
  CHECK_THROWS_AS(nn::Checkpointer(dir / "file/below"), IoError);
  CHECK_THROWS_WITH(nn::Checkpointer(dir / std::string(300, 'x')), ContainsSubstring("name too long"));
}

TEST_CASE("a process killed during save leaves only complete checkpoints") {
  const TempDir dir;
  nn::Linear model({.in_features = 1000, .out_features = 500});
  const nn::Training training{.model = &model};
  const std::string folder = dir.path().string();
  {
    const NoGradGuard no_grad;
    model.weight->fill_(0);
  }
  nn::Checkpointer(folder).save(training, {.step = 0});
  for (int round = 0; round < 8; ++round) {
    const std::int64_t from = *nn::Checkpointer(folder).steps().rbegin();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      nn::Checkpointer checkpoints(folder, {.keep_last = 2});
      for (std::int64_t step = from + 1;; ++step) {
        // Every element contains the step number. No tensor operation is used, because the worker threads do
        // not exist in this forked process.
        std::fill_n(model.weight->data<float>(), model.weight->numel(), static_cast<float>(step));
        checkpoints.save(training, {.step = step});
      }
    }
    usleep(static_cast<useconds_t>(2000 + 4700 * round));
    REQUIRE(kill(child, SIGKILL) == 0);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    const nn::Checkpointer after(folder);
    REQUIRE(!after.steps().empty());
    // Two checkpoints are kept, plus one for each process that was killed after writing a new one and before
    // removing the old one.
    CHECK(after.steps().size() <= 3 + static_cast<std::size_t>(round));
    for (const std::int64_t step : after.steps()) {
      nn::load_model(
          concat({folder, "/step-", std::string(8 - std::to_string(step).size(), '0'), step, ".safetensors"}),
          model);
      const float* w = model.weight->data<float>();
      CHECK(std::count(w, w + model.weight->numel(), static_cast<float>(step)) == model.weight->numel());
    }
    CHECK(files_in(dir) == after.steps().size());
  }
}

TEST_CASE("checkpoints are loaded on other devices than they were saved on (child)", "[.child]") {
  const TempDir dir;
  Net net;
  nn::save_model(dir / "f", net);
  const nn::StateDict there = nn::load_tensors(dir / "f", Device("cpu:1"));
  for (const auto& [name, tensor] : there) CHECK(tensor.device() == Device("cpu:1"));
  CHECK(bytes_of(there) == bytes_of(nn::load_tensors(dir / "f")));
  Net moved;
  moved.to(Device("cpu:1"));
  nn::load_model(dir / "f", moved);
  CHECK(moved.fc.weight->device() == Device("cpu:1"));
  CHECK(bytes_of(moved.state_dict()) == bytes_of(net.state_dict()));
  nn::save_model(dir / "g", moved);
  CHECK(read_file(dir / "g") == read_file(dir / "f"));

  default_generator(Device("cpu:1")).set_state({7, 8});
  nn::save_checkpoint(dir / "c", {.model = &moved}, {});
  default_generator(Device("cpu:1")).set_state({1, 2});
  nn::load_checkpoint(dir / "c", {.model = &net});
  CHECK(default_generator(Device("cpu:1")).state() == std::array<std::uint64_t, 2>{7, 8});
}

TEST_CASE("checkpoints are loaded on other devices than they were saved on") {
  const ChildResult result =
      run_child("checkpoints are loaded on other devices than they were saved on (child)",
                "TAPESTRY_LOGICAL_DEVICES=2");
  INFO(result.output);
  CHECK(result.status == 0);
}
