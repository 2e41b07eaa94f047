#include "tapestry/distributed/launch/internal/options.h"

#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using tapestry::ValueError;
using namespace tapestry::distributed::launch;

namespace {

LaunchOptions parse(const std::vector<std::string>& arguments, const Variables& environment = {},
                    const Machine& machine = {.cores = 6, .gpus = 0}) {
  return parse_launch_options(arguments, environment, machine);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("without options, the job is one rank on one node") {
  const LaunchOptions o = parse({"./app", "--nnodes", "7", "-x"});
  CHECK(o.command ==
        Words{"./app", "--nnodes", "7", "-x"});  // options after the program's name belong to the program
  CHECK(o.nproc_per_node == 1);
  CHECK(o.nnodes == 1);
  CHECK(o.node_rank == 0);
  CHECK(o.host == "127.0.0.1");
  CHECK(o.port == 0);
  CHECK(o.max_restarts == 0);
  CHECK(o.grace_s == 30);
  CHECK(o.log_dir.empty());
  CHECK_FALSE(o.doctor);
  CHECK_FALSE(o.help);
}

TEST_CASE("options take hyphens or underscores, and values after = or a space") {
  for (const Words& words : {Words{"--nproc-per-node", "3"}, Words{"--nproc_per_node", "3"},
                             Words{"--nproc-per-node=3"}, Words{"--nproc_per_node=3"}}) {
    Words all = words;
    all.insert(all.end(), {"--max_restarts=2", "--log-dir=a_b-c", "--grace", "0.5", "app"});
    const LaunchOptions o = parse(all);
    CHECK(o.nproc_per_node == 3);
    CHECK(o.max_restarts == 2);
    CHECK(o.log_dir == "a_b-c");  // underscores in values are kept
    CHECK(o.grace_s == 0.5);
    CHECK(o.command == Words{"app"});
  }
}

TEST_CASE("the last of repeated options wins, -- ends the options, and empty values are kept") {
  CHECK(parse({"--nproc-per-node", "3", "--nproc-per-node", "4", "app"}).nproc_per_node == 4);
  CHECK(parse({"--", "--odd-name", "x"}).command == Words{"--odd-name", "x"});
  CHECK(parse({"app", "", "--"}).command == Words{"app", "", "--"});
  CHECK(parse({"--log-dir=", "app"}).log_dir.empty());
}

TEST_CASE("--nproc-per-node takes auto, cpu and gpu") {
  const Machine with{.cores = 6, .gpus = 2};
  CHECK(parse({"--nproc-per-node=cpu", "app"}).nproc_per_node == 6);
  CHECK(parse({"--nproc-per-node=auto", "app"}).nproc_per_node == 6);
  CHECK(parse({"--nproc-per-node=auto", "app"}, {}, with).nproc_per_node == 2);
  CHECK(parse({"--nproc-per-node=gpu", "app"}, {}, with).nproc_per_node == 2);
  CHECK_THROWS_WITH(parse({"--nproc-per-node=gpu", "app"}), ContainsSubstring("no GPU is visible"));
}

TEST_CASE("several nodes need a rank, an address and a port") {
  const LaunchOptions o = parse({"--nnodes=3:3", "--node_rank=2", "--rdzv_endpoint=host0:1234", "app"});
  CHECK(o.nnodes == 3);
  CHECK(o.node_rank == 2);
  CHECK(o.host == "host0");
  CHECK(o.port == 1234);
  CHECK(o.world_size() == 3);
  CHECK(parse({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=host0", "app"}).port == 29400);
  const LaunchOptions v6 = parse({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=[fe80::1]:77", "app"});
  CHECK(v6.host == "fe80::1");
  CHECK(v6.port == 77);
  CHECK(parse({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=fe80::1", "app"}).host == "fe80::1");
  const LaunchOptions master =
      parse({"--nnodes=2", "--node-rank=1", "--master-addr=h", "--master_port=5", "app"});
  CHECK(master.host == "h");
  CHECK(master.port == 5);
}

TEST_CASE("variables replace missing options") {
  const Variables kubernetes = {{"PET_NNODES", "2"},      {"PET_NPROC_PER_NODE", "4"},
                                {"PET_NODE_RANK", "1"},   {"MASTER_ADDR", "worker"},
                                {"MASTER_PORT", "23456"}, {"PET_LOG_DIR", ""}};
  const LaunchOptions o = parse({"--nproc-per-node=2", "app"}, kubernetes);
  CHECK(o.nnodes == 2);
  CHECK(o.nproc_per_node == 2);  // the command line has precedence
  CHECK(o.node_rank == 1);
  CHECK(o.host == "worker");
  CHECK(o.port == 23456);
  CHECK(o.log_dir.empty());

  const Variables slurm = {{"SLURM_NODEID", "1"}, {"MASTER_ADDR", "n0"}};
  CHECK(parse({"--nnodes=2", "app"}, slurm).node_rank == 1);
  CHECK_THROWS_WITH(parse({"app"}, {{"PET_NNODES", "x"}}), ContainsSubstring("PET_NNODES"));

  // A job on one node ignores the address variables of an outer job.
  const LaunchOptions one =
      parse({"app"}, {{"MASTER_ADDR", "far"}, {"MASTER_PORT", "1"}, {"SLURM_NODEID", "3"}});
  CHECK(one.host == "127.0.0.1");
  CHECK(one.port == 0);
  CHECK(one.node_rank == 0);
  CHECK(parse({"--standalone", "app"}, {{"PET_RDZV_ENDPOINT", "far:1"}}).host == "127.0.0.1");
  CHECK(parse({"--standalone", "--rdzv-endpoint=far:1", "app"}).port == 0);
}

TEST_CASE("torchrun's command lines work") {
  const LaunchOptions o = parse({"--nnodes=1", "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_id=job 1",
                                 "--rdzv_endpoint=localhost:0", "--no_python", "./app"});
  CHECK(o.host == "localhost");
  CHECK(o.port == 0);
  CHECK(o.command == Words{"./app"});
  CHECK_THROWS_WITH(parse({"--rdzv-backend=etcd", "app"}), ContainsSubstring("leave the option out"));
}

TEST_CASE("--help, --version and --doctor need no program") {
  CHECK(parse({"--help"}).help);
  CHECK(parse({"-h"}).help);
  CHECK(parse({"--version"}).version);
  CHECK(parse({"--nnodes=2", "--help"}).help);
  CHECK(parse({"--doctor", "--nproc-per-node", "2"}).doctor);
  // The help lists every option.
  for (const char* name :
       {"--nproc-per-node", "--nnodes", "--node-rank", "--rdzv-endpoint", "--master-addr", "--master-port",
        "--standalone", "--max-restarts", "--log-dir", "--grace", "--doctor"})
    CHECK_THAT(launch_help(), ContainsSubstring(name));
}

TEST_CASE("errors name the wrong value and the remedy") {
  const auto wrong = [](const Words& words, const char* text) {
    CHECK_THROWS_AS(parse(words), ValueError);
    CHECK_THROWS_WITH(parse(words), ContainsSubstring(text));
  };
  wrong({}, "no program to start");
  wrong({"--nproc-per-node=2"}, "no program to start");
  wrong({"--"}, "no program to start");
  wrong({"--nproc", "2", "app"}, "unknown option '--nproc'");
  wrong({"--bogus=1", "app"}, "unknown option '--bogus'");
  wrong({"-n", "2", "app"}, "unknown option '-n'");
  wrong({"--local_rank=0", "app"}, "--local_rank: ranks read their numbers from variables");
  wrong({"--local-rank", "0", "app"}, "leave the option out");
  wrong({"--use_env", "app"}, "--use_env: ranks read");
  wrong({"-nnodes", "2", "app"}, "unknown option '-nnodes'");
  wrong({"-", "app"}, "unknown option '-'");
  wrong({"--nnodes"}, "--nnodes needs a value");
  wrong({"--standalone=1", "app"}, "takes no value");
  for (const char* bad : {"0", "-1", "two", "2x", "", " 2", "99999999999999999999", "2.5"}) {
    wrong({std::string("--nproc-per-node=") + bad, "app"}, "from 1 to");
    wrong({std::string("--nnodes=") + bad, "app"}, "from 1 to");
  }
  wrong({"--max-restarts=-1", "app"}, "from 0 to");
  wrong({"--grace=nan", "app"}, "from 0 to");
  wrong({"--grace=-1", "app"}, "from 0 to");
  wrong({"--nnodes=1:4", "app"}, "elastic node ranges are not supported");
  wrong({"--standalone", "--nnodes=2", "app"}, "--standalone is for one node");
  wrong({"--nnodes=2", "--rdzv-endpoint=h:1", "app"}, "--node-rank 0 to 1");
  wrong({"--nnodes=2", "--node-rank=0", "app"}, "--rdzv-endpoint host:port");
  wrong({"--nnodes=2", "--node-rank=2", "--rdzv-endpoint=h:1", "app"}, "from 0 to 1, not '2'");
  wrong({"--node-rank=1", "app"}, "from 0 to 0");
  wrong({"--rdzv-endpoint=h:99999", "app"}, "the port in --rdzv-endpoint");
  wrong({"--rdzv-endpoint=h:", "app"}, "the port in --rdzv-endpoint");
  wrong({"--rdzv-endpoint=:1", "app"}, "takes host:port");
}
