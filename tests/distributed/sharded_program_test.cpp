// Tests tapestry-checkpoint, and the files that it converts.
#include <filesystem>

#include "tapestry/distributed/checkpoint/checkpointer.h"
#include "tapestry/distributed/checkpoint/internal/program.h"
#include "tests/core/child.h"
#include "tests/distributed/sharded_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed::checkpoint::run_program;
using distributed_test::Group, distributed_test::kBounded;
using tests::read_file, tests::TempDir, tests::write_file;

namespace {

struct Run {
  Mixed net;
  optim::NAdam optimizer;  // has a step count and a further number per parameter
  optim::StepLR schedule{optimizer, {.step_size = 2, .gamma = 0.5}};
  explicit Run(int rank = 0, int ranks = 0) : optimizer(parameters_of(net, rank, ranks), {.lr = 0.01}) {}
  static std::vector<nn::Parameter> parameters_of(Mixed& net, int rank, int ranks) {
    if (ranks > 0) test::shard_rows(net, rank, ranks);
    return net.parameters();
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      formula_step(net, optimizer, step);
      schedule.step();
    }
  }
  nn::Training training() { return {&net, &optimizer, &schedule}; }
};

const nn::Progress kProgress{.epoch = 1, .step = 3, .metric = 0.75, .extra = {{"loader", "at 7"}}};

void save_on_4(const std::string& folder) {
  run_local_ranks(
      4,
      [&](const Group& group) {
        Run run(group->rank(), 4);
        run.train(0, 3);
        save_sharded(folder, group, run.training(), kProgress);
      },
      kBounded);
}

/// Runs the program itself.
ChildResult tapestry_checkpoint(const std::string& arguments) {
  const std::string path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tapestry-checkpoint";
  ChildResult result;
  FILE* const pipe = popen(("timeout 60 '" + path + "' " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> text;
  while (const std::size_t got = fread(text.data(), 1, text.size(), pipe))
    result.output.append(text.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

}  // namespace

TEST_CASE("merge writes the file that one process would have saved") {
  const TempDir dir;
  save_on_4(dir / "step");
  CHECK(run_program({"merge", dir / "step", dir / "one.safetensors"}) ==
        "wrote " + (dir / "one.safetensors") + "\n");
  Run reference;
  reference.train(0, 3);
  nn::save_checkpoint(dir / "expected", reference.training(), kProgress);
  const Safetensors merged = load_safetensors(dir / "one.safetensors"),
                    expected = load_safetensors(dir / "expected");
  CHECK(merged.tensors.size() == expected.tensors.size());
  for (const auto& [name, t] : expected.tensors) {
    INFO(name);
    REQUIRE(merged.tensors.contains(name));
    CHECK(merged.tensors.at(name).dtype() == t.dtype());
    CHECK(merged.tensors.at(name).sizes() == t.sizes());
    if (!name.starts_with("training/generator/")) CHECK(to_vector(merged.tensors.at(name)) == to_vector(t));
  }
  for (const auto& [key, value] : expected.metadata) CHECK(merged.metadata.at(key) == value);

  Run run;
  const nn::Progress progress = nn::load_checkpoint(dir / "one.safetensors", run.training());
  CHECK(progress.step == 3);
  CHECK(progress.extra.at("loader") == "at 7");
  CHECK(differences(rows_of(run.net, run.optimizer), rows_of(reference.net, reference.optimizer)) == "");
  // A job finds the generators of all ranks.
  std::filesystem::create_directory(dir / "files");
  std::filesystem::copy_file(dir / "one.safetensors", dir / "files/step-00000003.safetensors");
  run_local_ranks(
      2,
      [&](const Group& group) {
        Run own;
        Checkpointer checkpoints(dir / "files", group);
        distributed_test::require(checkpoints.resume(own.training())->metric == 0.75);
      },
      kBounded);
}

TEST_CASE("a checkpoint has the choices that change bits, and a load with others warns") {
  const TempDir dir;
  Run run;
  ShardedTraining training(run.training());
  training.choices = {{"precision", "f32"}, {"strategy", "replicate=2"}};
  save_sharded(dir / "step", nullptr, training, kProgress);
  CHECK_THAT(run_program({"show", dir / "step"}),
             ContainsSubstring("\nprecision: f32\nstrategy: replicate=2\n"));
  run_program({"merge", dir / "step", dir / "one.safetensors"});
  run_program({"split", dir / "one.safetensors", dir / "again", "--ranks", "2"});
  for (const std::string name : {"step", "one.safetensors", "again"}) {
    const ChildResult child = run_child("loads with other choices", "LOAD='" + (dir / name) + "'");
    INFO(child.output);
    CHECK(child.status == 0);
    const std::size_t warning = child.output.find("[load_sharded] warning: " + (dir / name) +
                                                  " was saved with strategy=replicate=2 (now shard=2); ");
    CHECK(warning != std::string::npos);
    CHECK(warning == child.output.find("[load_sharded]"));
    CHECK(warning == child.output.rfind("[load_sharded]"));
  }
}

TEST_CASE("loads with other choices", "[.]") {
  Run run;
  ShardedTraining training(run.training());
  for (const char* const strategy : {"replicate=2", "shard=2"})
    for (const int rank : {0, 1}) {  // rank 0 warns
      training.choices = {{"precision", "f32"}, {"strategy", strategy}, {"parts", "2"}};
      load_sharded(std::getenv("LOAD"), training, {.rank = rank});
    }
}

TEST_CASE("split divides a checkpoint or a model file, and merge gives it back") {
  const TempDir dir;
  Run reference;
  reference.train(0, 3);
  nn::save_checkpoint(dir / "run.safetensors", reference.training(), kProgress);
  run_program({"split", dir / "run.safetensors", dir / "step", "--ranks", "4"});
  CHECK(std::filesystem::exists(dir / "step/shard-00003-of-00004.safetensors"));
  run_local_ranks(
      4,
      [&](const Group& group) {
        Run run(group->rank(), 4);
        const nn::Progress progress = load_sharded(dir / "step", run.training(), {.rank = group->rank()});
        distributed_test::require(progress.step == 3 && progress.extra == kProgress.extra);
        const std::string wrong =
            differences(rows_of(run.net, run.optimizer), rows_of(reference.net, reference.optimizer));
        distributed_test::require(wrong.empty(), wrong);
      },
      kBounded);
  run_program({"merge", dir / "step", dir / "again.safetensors"});
  const Safetensors again = load_safetensors(dir / "again.safetensors"),
                    first = load_safetensors(dir / "run.safetensors");
  CHECK(again.tensors.size() == first.tensors.size());
  for (const auto& [name, t] : first.tensors) CHECK(to_vector(again.tensors.at(name)) == to_vector(t));

  // PyTorch's model files have no training run.
  nn::save_model(dir / "model.safetensors", reference.net);
  run_program({"split", dir / "model.safetensors", dir / "model", "--ranks=3"});
  Mixed net;
  load_sharded(dir / "model", &net);
  CHECK(copy_state(net) == copy_state(reference.net));
  Run run;
  CHECK_THROWS_WITH(load_sharded(dir / "model", run.training()), ContainsSubstring("no optimizer state"));
  run_program({"merge", dir / "model", dir / "same.safetensors"});
  CHECK(read_file(dir / "same.safetensors") == read_file(dir / "model.safetensors"));

  CHECK_THROWS_WITH(run_program({"split", dir / "model.safetensors", dir / "model", "--ranks", "2"}),
                    ContainsSubstring("contains a checkpoint already"));
  StringMap metadata = first.metadata;
  metadata.erase("tapestry.parameters");
  save_safetensors(dir / "old", {first.tensors.begin(), first.tensors.end()}, metadata);
  CHECK_THROWS_WITH(run_program({"split", dir / "old", dir / "x", "--ranks", "2"}),
                    ContainsSubstring("an earlier version"));
  metadata["tapestry.parameters"] = "embed.weight";
  save_safetensors(dir / "old", {first.tensors.begin(), first.tensors.end()}, metadata);
  CHECK_THROWS_WITH(run_program({"split", dir / "old", dir / "x", "--ranks", "2"}),
                    ContainsSubstring("is the state of no parameter"));
  write_file(dir / "cut", read_file(dir / "run.safetensors").substr(0, 400));
  CHECK_THROWS_AS(run_program({"split", dir / "cut", dir / "x", "--ranks", "2"}), IoError);
  CHECK_FALSE(std::filesystem::exists(dir / "x"));
}

TEST_CASE("show lists shards and tensors") {
  const TempDir dir;
  save_on_4(dir / "step");
  const std::string text = run_program({"show", dir / "step", "--verify"});
  for (const std::string part :
       {"step 3, epoch 1, metric 0.75, optimizer NAdam (1 group), schedule", "4 shards, ",
        "all checksums are right", "shard-00003-of-00004.safetensors",
        "float32 [7, 5], 140 B, 0: [0:2, 0:5], 1: [2:4, 0:5], 2: [4:6, 0:5], 3: [6:7, 0:5]",
        "is tied to embed.weight", "training/optimizer/state/narrow.weight/exp_avg"})
    CHECK_THAT(text, ContainsSubstring(part));
}

TEST_CASE("tapestry-checkpoint says what is wrong with its arguments") {
  const TempDir dir;
  save_on_4(dir / "step");
  CHECK(tapestry_checkpoint("--help").status == 0);
  CHECK(tapestry_checkpoint("--help").output == checkpoint::program_help());
  const ChildResult shown = tapestry_checkpoint("show '" + (dir / "step") + "'");
  CHECK(shown.status == 0);
  CHECK(shown.output == run_program({"show", dir / "step"}));
  const ChildResult absent = tapestry_checkpoint("show '" + (dir / "absent") + "'");
  CHECK(absent.status == 1);
  CHECK_THAT(absent.output, ContainsSubstring("index.json: does not exist"));
  const ChildResult wrong = tapestry_checkpoint("shw x");
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.output, ContainsSubstring("unknown command 'shw'"));
  write_file(dir / "file", "mine");
  const struct {
    std::vector<std::string> arguments;
    std::string error;
  } cases[] = {{{}, "a command is missing"},
               {{"show"}, "show takes 1 path(s), but got 0"},
               {{"show", "a", "b"}, "but got 2"},
               {{"merge", "a"}, "merge takes 2 path(s)"},
               {{"merge", dir / "step", dir / "file"}, "exists; choose another name"},
               {{"merge", "a", "b", "--verify"}, "--verify is an option of show"},
               {{"show", "a", "--force"}, "--force is an option of merge"},
               {{"show", "a", "--ranks", "2"}, "--ranks is an option of split"},
               {{"split", "a", "b"}, "--ranks is missing"},
               {{"split", "a", "b", "--ranks"}, "needs a value"},
               {{"split", "a", "b", "--ranks", "0"}, "from 1 to 4096, not '0'"},
               {{"split", "a", "b", "--ranks=2x"}, "not '2x'"},
               {{"split", "a", "b", "--ranks="}, "not ''"},
               {{"show", "a", "--loud"}, "unknown option '--loud'"}};
  for (const auto& c : cases) {
    INFO(c.error);
    std::string text;
    try {
      run_program(c.arguments);
    } catch (const ValueError& e) {
      text = e.what();
    }
    CHECK_THAT(text, ContainsSubstring(c.error));
  }
  CHECK(read_file(dir / "file") == "mine");
  CHECK_NOTHROW(run_program({"merge", dir / "step", dir / "file", "--force"}));
  CHECK(load_safetensors(dir / "file").tensors.contains("conv.weight"));
}
