// Tests jobs on two hosts.
#include "tests/launch/hosts.h"
#include "tests/launch/training.h"
#include "tests/support/catch.h"

using tests::Job;

namespace {

void check_status(const Job& job, const char* node, const char* status) {
  INFO(job.file("out.0") << job.file("out.1"));
  CHECK(job.file(std::string("status.") + node) == std::string(status) + "\n");
}

}  // namespace

TEST_CASE("a job over two hosts computes the bits of a job on one host") {
  if (!tests::has_hosts()) return;
  SECTION("after a kill and a restart, the weights equal those of a job on one host, bit for bit") {
    Job job = tests::hosts("run 1 $on_b & one=$!; run 0; wait $one; kill $b",
                           {"OPTIONS=--max-restarts=1", "TAPESTRY_SECRET=ours", "TAPESTRY_TIMEOUT_S=30",
                            "JOB_FAULTS=KILL backward 3 1;"});
    CHECK(job.wait(60) == 0);
    const auto& weights = tests::undisturbed_weights(2, 6);
    for (const char* node : {"0", "1"}) {
      check_status(job, node, "0");
      CHECK_THAT(job.file(std::string("out.") + node),
                 ContainsSubstring("node 1: rank 1 (pid ") && ContainsSubstring("restart 1 of 1"));
      CHECK((job.file(std::string("weights.") + node) == weights[static_cast<std::size_t>(node[0] - '0')]));
    }
    CHECK(job.all_gone());
  }
  SECTION("without tapestry-run, rank 0 runs the store and reaches it over loopback") {
    Job job = tests::hosts("rank 1 $on_b & one=$!; rank 0; wait $one; kill $b",
                           {"TAPESTRY_SECRET=ours", "TAPESTRY_TIMEOUT_S=15"});
    CHECK(job.wait(60) == 0);
    const auto& weights = tests::undisturbed_weights(2, 6);
    for (const char* node : {"0", "1"}) {
      check_status(job, node, "0");
      CHECK((job.file(std::string("weights.") + node) == weights[static_cast<std::size_t>(node[0] - '0')]));
    }
    CHECK(job.all_gone());
  }
  SECTION("a job on two hosts without a secret is refused") {
    Job job = tests::hosts("run 0; run 1 $on_b; kill $b");
    CHECK(job.wait(30) == 0);
    for (const char* node : {"0", "1"}) {
      check_status(job, node, "2");
      CHECK_THAT(job.file(std::string("out.") + node), ContainsSubstring("set TAPESTRY_SECRET"));
    }
  }
}

TEST_CASE("a job runs on a host whose loopback interface has no IPv4 address") {
  if (!tests::has_hosts()) return;
  // The only address of the host is ::1.
  Job job = tests::hosts(
      "ip addr del 127.0.0.1/8 dev lo; ip addr flush dev wire0; status=0\n"
      "if [ ! -e /proc/net/if_inet6 ] || ! ip -6 addr show dev lo | grep -q ::1; then touch $DIR/no_ipv6; "
      "fi\n"
      "\"$LAUNCHER\" --nproc-per-node 2 \"$PROGRAM\" \"$TEST_CASE\" > $DIR/out.0 2>&1 || status=$?\n"
      "echo $status > $DIR/status.0; kill $b",
      {"TAPESTRY_TIMEOUT_S=15"});
  CHECK(job.wait(60) == 0);
  if (job.made("no_ipv6", 0)) {
    WARN("a host without IPv4 is not tested: this kernel has no IPv6");
    return;
  }
  INFO(job.file("out.0"));
  CHECK(job.file("status.0") == "0\n");
  for (const std::string rank : {"0", "1"})
    CHECK((job.file("weights." + rank) == tests::undisturbed_weights(2, 6)[rank == "1"]));
  CHECK(job.all_gone());
}
