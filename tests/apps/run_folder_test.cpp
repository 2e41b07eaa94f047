// A run folder: one job at a time, and no leftovers of killed jobs.
#include "tapestry/apps/common/run_folder.h"

#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/error.h"
#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/isolation.h"

using apps::RunFolder;
using tapestry::IoError;
using tests::classifier;
using tests::Ended;

namespace {

const std::vector<std::string> kSmall = {"--model",          "mlp", "--data",   "synthetic",
                                         "--synthetic-size", "16",  "--epochs", "1"};

std::vector<std::string> in(const std::string& run, std::vector<std::string> options) {
  options.insert(options.end(), {"--run-dir", run});
  return options;
}

}  // namespace

TEST_CASE("the second job in a run folder is told who is there, and changes nothing") {
  const tests::TempDir folder;
  const std::string run = folder / "run";
  REQUIRE(classifier(in(run, kSmall)).status == 0);
  const std::string before = tests::metrics(run) + tests::last_checkpoint(run);
  const std::string holder = run + " is in use by process " + std::to_string(getpid()) + " on host ";
  {
    const RunFolder held(run, true);
    for (const Ended& second :
         {classifier(in(run, {"--resume", "--epochs", "1"})), classifier(in(run, kSmall))}) {
      CHECK(second.status == 1);
      CHECK_THAT(second.err,
                 ContainsSubstring("[run] " + holder) && ContainsSubstring("choose another folder"));
      CHECK(second.out == "");
    }
    CHECK_THROWS_WITH(RunFolder(run, true), ContainsSubstring(holder));
    const auto status = tests::in_new_pid_namespace([&] {
      try {
        const RunFolder other(run, true);
      } catch (const IoError&) {
        return 0;
      }
      return 1;
    });
    if (!status) WARN("skipped: the kernel permits no new PID namespace");
    CHECK(status.value_or(0) == 0);
    CHECK(tests::metrics(run) + tests::last_checkpoint(run) == before);
  }
  CHECK(classifier(in(run, {"--resume"})).status == 0);
}

TEST_CASE("two jobs that start in the same new folder at once: one runs") {
  const tests::TempDir folder;
  const RunFolder first(folder / "run", false);  // it has not written config.json yet
  const Ended second = classifier(in(folder / "run", kSmall));
  CHECK(second.status == 1);
  CHECK_THAT(second.err, ContainsSubstring("is in use by process"));
}

TEST_CASE("the lock of a killed job vanishes, and its leftover files are removed") {
  const tests::TempDir folder;
  const std::string run = folder / "run";
  const std::vector<std::string> names = {"config.json", "metrics.jsonl", "curves.svg", "confusion.svg",
                                          "mistakes.svg"};
  for (const std::string& name : names) {
    CAPTURE(name);
    const int status = tests::in_fork([&] {
      const RunFolder killed(run, true);
      tapestry::AtomicFile file(killed.file(name));
      file.write("half");
      return kill(getpid(), SIGKILL);
    });
    CHECK(status == 124);
    CHECK(tests::names_in(run).size() == 1);
    const RunFolder next(run, true);
    CHECK(tests::names_in(run).empty());
  }
  tests::write_file(run + "/notes.tmp-backup", "kept");
  const RunFolder next(run, true);
  CHECK(tests::names_in(run) == std::vector<std::string>{"notes.tmp-backup"});
}
