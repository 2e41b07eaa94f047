#include "tests/launch/hosts.h"

#include "tests/launch/training.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

namespace tests {
namespace {

const std::string kHosts = R"sh(
set -e
ip link set lo up
unshare --net sleep 300 & b=$!
until [ "$(readlink /proc/$b/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link add wire0 type veth peer name wire1 netns $b
on_b="nsenter --target $b --net"
ip addr add 192.168.213.1/24 dev wire0 && ip link set wire0 up
$on_b sh -c 'ip link set lo up; ip addr add 192.168.213.2/24 dev wire1; ip link set wire1 up'
touch $DIR/hosts
run() {
  node=$1 status=0
  shift
  "$@" "$LAUNCHER" --nnodes 2 --node-rank $node --nproc-per-node 1 $OPTIONS --rdzv-endpoint 192.168.213.1:29400 \
    "$PROGRAM" "$TEST_CASE" > $DIR/out.$node 2>&1 || status=$?
  echo $status > $DIR/status.$node
}
rank() {
  node=$1 status=0
  shift
  RANK=$node WORLD_SIZE=2 MASTER_ADDR=192.168.213.1 MASTER_PORT=29400 \
    "$@" "$PROGRAM" "$TEST_CASE" > $DIR/out.$node 2>&1 || status=$?
  echo $status > $DIR/status.$node
}
)sh";

}  // namespace

Job hosts(const std::string& script, std::vector<std::string> variables) {
  variables.push_back("LAUNCHER=" + launcher_path());
  variables.push_back("PROGRAM=" + own_path());
  variables.push_back("TEST_CASE=" + kTrainingRank);
  variables.push_back("JOB_STEPS=6");
  variables.push_back("OMP_NUM_THREADS=1");
  std::vector<std::string> arguments = {"--net", "sh", "-c", kHosts + script};
  if (geteuid() != 0) arguments.insert(arguments.begin(), {"--user", "--map-root-user"});
  return Job(std::move(arguments), std::move(variables), "/usr/bin/unshare");
}

bool has_hosts() {
  if (!distributed_test::has_gloo()) return false;
  Job job = hosts("kill $b");
  if (job.wait(20) == 0 && job.made("hosts", 0)) return true;
  WARN("two hosts are not tested: there is no iproute2, or network namespaces are not permitted: "
       << job.err());
  return false;
}

}  // namespace tests
