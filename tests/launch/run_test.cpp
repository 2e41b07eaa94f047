// Tests tapestry-run as a program: how it starts ranks, and where their output goes.
#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "tests/launch/job.h"
#include "tests/support/catch.h"

using tests::Job;

namespace {

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("ranks get their variables, and all of them the same store address") {
  Job job(
      {"--nproc_per_node", "3", "sh", "-c",
       "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $TAPESTRY_LAUNCHER "
       "$TAPESTRY_STORE_RUNNING $TAPESTRY_RESTART $1; echo $MASTER_ADDR $MASTER_PORT $TAPESTRY_SECRET >&2",
       "name", "argument with  spaces"});
  CHECK(job.wait() == 0);
  CHECK(sorted_lines(job.out()) == Lines{"[0] 0 0 3 3 0 0 tapestry-run 1 0 argument with spaces",
                                         "[1] 1 1 3 3 0 0 tapestry-run 1 0 argument with spaces",
                                         "[2] 2 2 3 3 0 0 tapestry-run 1 0 argument with spaces"});
  const Lines addresses = sorted_lines(job.err());
  REQUIRE(addresses.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    std::istringstream words(addresses[i].substr(4));
    std::string host, secret;
    int port = 0;
    words >> host >> port >> secret;
    CHECK(host == "127.0.0.1");
    CHECK(port > 1023);
    CHECK(secret.size() == 32);
    CHECK(addresses[i].substr(4) == addresses[0].substr(4));
  }
}

TEST_CASE("the user's port and secret are kept") {
  Job first({"sh", "-c", "echo $MASTER_PORT"});
  REQUIRE(first.wait() == 0);
  // A port that was free a moment ago.
  const std::string port = first.out().substr(4, first.out().size() - 5);
  Job job({"--master-port", port, "sh", "-c", "echo $MASTER_PORT $TAPESTRY_SECRET $OMP_NUM_THREADS"},
          {"TAPESTRY_SECRET=mine", "OMP_NUM_THREADS=3"});
  CHECK(job.wait() == 0);
  CHECK(job.out() == "[0] " + port + " mine 3\n");
}

TEST_CASE("ranks inherit no descriptors and no blocked signals") {
  // Ranks inherit neither descriptors nor blocked signals, their stdin is empty, and each one leads a process
  // group. ls does not run in a pipeline, because the shell would briefly hold a descriptor for it. grep
  // shows the signals that it has from the shell, which in Debian 13 blocks its own signals while it waits.
  Job job({"sh", "-c",
           "ls -x -w 100 /proc/$$/fd; grep -E 'SigBlk|SigIgn' /proc/self/status | cut -f2 | tr '\\n' ' '; "
           "cat; "
           "echo $(cut -d' ' -f5 /proc/$$/stat) = $$"});
  CHECK(job.wait() == 0);
  std::istringstream words(job.out());
  std::string prefix, zero, one, two, next, blocked, ignored, group, equals, pid, more;
  words >> prefix >> zero >> one >> two >> next >> blocked >> ignored >> group >> equals >> pid;
  CHECK(zero + one + two == "012");
  CHECK(next == prefix);
  CHECK(blocked == "0000000000000000");
  CHECK(ignored == "0000000000000000");
  CHECK(group == pid);
  CHECK_FALSE(words >> more);
}

TEST_CASE("lines of several ranks are never mixed") {
  // Two ranks write 500 lines each in two halves. The halves of different ranks must not be joined.
  Job job({"--nproc-per-node", "2", "sh", "-c",
           "i=0; while [ $i -lt 500 ]; do printf \"$RANK-\"; printf \"$i-$RANK\\n\"; i=$((i+1)); done; "
           "printf end"});
  CHECK(job.wait() == 0);
  Lines expected;
  for (const std::string rank : {"0", "1"}) {
    for (int i = 0; i < 500; ++i)
      expected.push_back("[" + rank + "] " + rank + "-" + std::to_string(i) + "-" + rank);
    expected.push_back("[" + rank + "] end");
  }
  std::sort(expected.begin(), expected.end());
  CHECK((sorted_lines(job.out()) == expected));
}

TEST_CASE("megabytes without a newline and binary output arrive complete") {
  Job job({"--nproc-per-node", "2", "sh", "-c",
           "head -c 1048576 /dev/zero | tr '\\0' x; echo; printf '\\000\\377\\n'"});
  CHECK(job.wait() == 0);
  const std::string out = job.out();
  CHECK(std::count(out.begin(), out.end(), 'x') == 2 * 1048576);
  CHECK(std::count(out.begin(), out.end(), '\n') == 2 * (16 + 1));
  for (const Lines lines = sorted_lines(out); const std::string& line : lines)
    CHECK((line.starts_with("[0] ") || line.starts_with("[1] ")));
  CHECK(out.find(std::string("[1] \0\xff\n", 7)) != std::string::npos);
}

TEST_CASE("with --log-dir, only rank 0 writes to the terminal") {
  const tests::TempDir folder;
  const std::string logs = folder / "new/logs";
  Job job({"--nproc-per-node=2", "--log-dir=" + logs, "sh", "-c",
           "echo out $RANK; echo err $RANK >&2; printf half"});
  CHECK(job.wait() == 0);
  CHECK(job.out() == "[0] out 0\n[0] half\n");
  CHECK(job.err() == "[0] err 0\n");
  for (const std::string rank : {"0", "1"}) {
    const std::string log = tests::read_file(logs + "/rank_" + rank + ".log");
    CHECK_THAT(log, ContainsSubstring("out " + rank + "\n"));
    CHECK_THAT(log, ContainsSubstring("err " + rank + "\n"));
    CHECK_THAT(log, ContainsSubstring("half"));
    CHECK(log.find('[') == std::string::npos);
  }
}

TEST_CASE("a program that cannot be started is reported before any rank runs") {
  const auto refused = [](std::vector<std::string> arguments, int status, const char* text) {
    Job job(std::move(arguments));
    CHECK(job.wait() == status);
    CHECK_THAT(job.err(), ContainsSubstring(text));
    CHECK(job.out().empty());
    CHECK(job.all_gone());
  };
  refused({"--nproc-per-node", "2", "no-such-program-here"}, 127,
          "cannot find the program no-such-program-here");
  refused({"./no/such"}, 127, "cannot find the program ./no/such");
  refused({"/etc/passwd"}, 127, "not executable");
  refused({"/etc"}, 127, "is not a regular file");
  refused({"--log-dir", "/proc/no", "sh", "-c", "echo ran"}, 1, "cannot create /proc/no");
  refused({"--nproc-per-node=0", "sh"}, 2, "from 1 to");
  refused({"--what", "sh"}, 2, "unknown option '--what'");
  refused({}, 2, "no program to start");
  refused({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=10.0.0.1:29400", "sh"}, 2, "set TAPESTRY_SECRET");

  const tests::TempDir folder;
  tests::write_file(folder / "script", "echo no interpreter\n");
  std::filesystem::permissions(folder / "script", std::filesystem::perms::owner_all);
  refused({"--nproc-per-node=2", folder / "script"}, 126, "begins with #!");
}

TEST_CASE("a log path that is a folder is an error") {
  const tests::TempDir folder;
  std::filesystem::create_directories(folder / "rank_1.log");  // a folder
  Job job({"--nproc-per-node=2", "--log-dir", folder.path().string(), "sh", "-c", "echo ran"});
  CHECK(job.wait() == 1);
  CHECK_THAT(job.err(), ContainsSubstring("rank_1.log"));
  CHECK(job.out().empty());
}

TEST_CASE("a planted link or FIFO in the place of a log is refused before any rank runs") {
  const tests::TempDir folder;
  const std::string log = folder / "rank_1.log", victim = folder / "victim";
  tests::write_file(victim, "kept");
  const auto refused = [&](const std::string& text) {
    Job job({"--nproc-per-node=2", "--log-dir", folder.path().string(), "sh", "-c", "echo ran"});
    CHECK(job.wait() == 1);
    CHECK_THAT(job.err(),
               ContainsSubstring("the log " + log + " " + text + "; remove it, or choose another"));
    CHECK(job.out().empty());
    CHECK(tests::read_file(victim) == "kept");
  };
  SECTION("a symbolic link") {
    std::filesystem::create_symlink(victim, log);
    refused("is a symbolic link");
  }
  SECTION("a dangling symbolic link") {
    std::filesystem::create_symlink(folder / "absent", log);
    refused("is a symbolic link");
    CHECK_FALSE(std::filesystem::exists(folder / "absent"));
  }
  SECTION("a hard link") {
    std::filesystem::create_hard_link(victim, log);
    refused("has a second hard link");
  }
  SECTION("a FIFO") {
    REQUIRE(mkfifo(log.c_str(), 0600) == 0);
    refused("is not a regular file");
  }
}

TEST_CASE("an existing log is overwritten") {
  const tests::TempDir folder;
  tests::write_file(folder / "rank_0.log", std::string(1000, 'x'));
  Job job({"--nproc-per-node=1", "--log-dir", folder.path().string(), "sh", "-c", "echo new"});
  CHECK(job.wait() == 0);
  CHECK(tests::read_file(folder / "rank_0.log") == "new\n");
}

TEST_CASE("--help prints the options, and a port that is in use is an error that names it") {
  Job help({"--help"});
  CHECK(help.wait() == 0);
  CHECK_THAT(help.out(), ContainsSubstring("--nproc-per-node N"));

  Job holder({"sh", "-c", "echo $MASTER_PORT > $DIR/port.new; mv $DIR/port.new $DIR/port; sleep 30"});
  REQUIRE(holder.made("port"));
  std::string port = holder.file("port");
  port.pop_back();
  Job second({"--master-port", port, "sh", "-c", "echo ran"});
  CHECK(second.wait() == 1);
  CHECK_THAT(second.err(), ContainsSubstring(port));
  CHECK(second.out().empty());
}
