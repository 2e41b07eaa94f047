#include "tapestry/distributed/launch/internal/doctor.h"

#include <cerrno>
#include <filesystem>

#include "tapestry/distributed/launch/internal/container.h"
#include "tests/launch/job.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/files.h"

using namespace tapestry::distributed;
using namespace tapestry::distributed::launch;

namespace {

/// A job of several nodes with two ranks on each, and a system on which nothing is wrong for it.
struct Case {
  LaunchOptions options{.nproc_per_node = 2, .nnodes = 2};
  RankReport rank{.backend = "nccl", .shm_bytes = std::int64_t{1} << 30, .cores = 8, .threads = 4};
  Variables variables;
  Surroundings seen{.container = true,
                    .ipc = "ipc:[4026531839]",
                    .shm_free = std::int64_t{1} << 30,
                    .interfaces = {{"lo", "127.0.0.1"}, {"docker0", "172.17.0.1"}, {"eth0", "10.0.0.7"}},
                    .gpu_files = 2,
                    .uvm_file = true,
                    .pci_gpus = 2,
                    .driver = "580.95.05",
                    .cuda_file = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
                    .gpus = 2,
                    .nccl = {.name = "NCCL", .version = "2.28.9", .path = "/x"}};

  /// Checks that there is one finding, which contains all of `texts`.
  void finds(bool failure, const std::vector<std::string>& texts) const {
    const auto findings = container_findings(seen, rank, options, variables);
    std::string all;
    for (const Finding& f : findings) all += f.text + "\n";
    INFO(all);
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].failure == failure);
    for (const std::string& text : texts) CHECK_THAT(findings[0].text, ContainsSubstring(text));
  }
  void finds_nothing() const { CHECK(container_findings(seen, rank, options, variables).empty()); }
};

}  // namespace

TEST_CASE("the doctor finds nothing wrong with a host, and with a container that has all options") {
  Case c;
  c.finds_nothing();
  c.seen.container = false;
  c.seen.memlock = 65536;  // TCP does without
  c.seen.interfaces.back().linked = true;
  c.finds_nothing();
  Case cpu;  // a job without GPUs on a machine without
  cpu.rank.backend = "gloo";
  cpu.seen = {.shm_free = 0,
              .memlock = 65536,
              .interfaces = {{"eth0", "10.0.0.7"}, {"eth1", "10.0.1.7"}},
              .numa_refused = true,
              .control_error = ENOENT,
              .why_no_gpu = "this machine has no GPU"};
  cpu.finds_nothing();
}

TEST_CASE("GPUs that a container cannot use are explained") {
  Case c;
  c.options.nnodes = 1;
  c.seen.gpus = c.seen.gpu_files = 0;
  c.finds(false, {"the kernel has NVIDIA's driver 580.95.05", "no /dev/nvidia0", "--gpus all"});
  c.seen.driver.clear();
  c.seen.cuda_file = "/usr/local/cuda/compat/libcuda.so.1";
  c.finds(false, {"/usr/local/cuda/compat/libcuda.so.1 is here", "--gpus all"});
  c.seen.container = false;  // a machine that only compiles
  c.finds_nothing();

  Case present;
  present.options.nnodes = 1;
  present.seen.gpus = 0;
  present.seen.why_no_gpu = "there is no NVIDIA driver, or one too old for this library's CUDA 13.0";
  present.finds(false, {"2 GPU(s) are in /dev", "too old for this library's CUDA 13.0", "580.95.05",
                        "update it there"});
  present.seen.why_no_gpu = "CUDA_VISIBLE_DEVICES=\"\" hides every GPU";  // as somebody has asked
  present.finds_nothing();
  present.seen.uvm_file = false;
  present.finds(false, {"/dev/nvidia-uvm is missing", "nvidia-modprobe -u -c=0"});
  present.seen.control_error = EPERM;
  present.finds(false, {"Operation not permitted", "lost its GPUs", "start it again"});
  present.seen.control_error = EACCES;
  present.finds(false, {"Permission denied", "--gpus all"});
}

TEST_CASE("versions that do not fit are explained") {
  Case c;
  c.seen.cuda_file = "/usr/local/cuda/compat/libcuda.so.590.44.01";
  c.finds(false,
          {"is of driver 590.44.01, and the kernel's driver is 580.95.05", "803 or 804", "LD_LIBRARY_PATH"});
  for (const char* other :
       {"/usr/lib/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1.1", ""}) {  // names without a version
    c.seen.cuda_file = other;
    c.finds_nothing();
  }
  c.seen.nccl = {.name = "NCCL", .error = "was not found: install it"};
  c.finds(true, {"NCCL was not found: install it; or use the backend gloo"});
  c.options = {};  // one rank needs no NCCL
  c.finds_nothing();
}

TEST_CASE("a container that refuses get_mempolicy is explained by the version of NCCL") {
  Case c;
  c.seen.numa_refused = true;
  c.finds(false, {"get_mempolicy", "NCCL 2.28.9", "/dev/shm", "--cap-add SYS_NICE"});
  for (const char* version : {"2.24.3", "2.26.4"}) {
    c.seen.nccl.version = version;
    c.finds(false, {"may fail to start", "NCCL_CUMEM_HOST_ENABLE=0"});
  }
  c.seen.nccl.version = "2.26.5";
  c.finds(false, {"/dev/shm"});
  c.variables["NCCL_CUMEM_HOST_ENABLE"] = "0";
  c.finds_nothing();
  c.variables.clear();
  c.seen.nccl.version = "2.23.4";
  c.finds_nothing();
}

TEST_CASE("limits on memory are explained") {
  Case c;
  c.seen.memlock = 65536;
  c.finds(false, {"64 KB", "--ulimit memlock=-1"});
  c.seen.container = false;
  c.seen.infiniband = true;
  c.finds(false, {"64 KB", "ibv_reg_mr"});
  Case full;
  full.seen.shm_free = std::int64_t{12} << 20;
  full.finds(false, {"12 MB free of 1024 MB", "/dev/shm/nccl-*", "--shm-size"});
  full.rank.shm_bytes = std::int64_t{64} << 20;  // the size itself is preflight's to explain
  full.finds_nothing();
}

TEST_CASE("GPUs without direct access to each other are explained") {
  Case c;
  c.seen.apart = {{0, 1}};
  c.finds(false, {"GPUs 0 and 1 cannot access", "nvidia-smi topo -p2p p", "NCCL_CUMEM_HOST_ENABLE=0"});
  c.seen.apart.clear();
  c.seen.translated_gpus = 2;
  c.finds(false, {"an IOMMU translates the addresses of 2 GPU(s)", "NCCL_P2P_DISABLE=1", "ACSCtl"});
  c.variables["NCCL_P2P_DISABLE"] = "1";
  c.finds_nothing();
  c.seen.pci_gpus = 0;
  c.finds(false, {"/sys/bus/pci/devices shows none", "-v /sys:/sys:ro"});
  c.seen.pci_gpus = 8;
  c.finds_nothing();  // the host's IPC namespace
  c.seen.ipc = "ipc:[4026532500]";
  c.finds(false, {"2 of the machine's 8 GPUs", "ipc:[4026532500]", "--ipc=host"});
  c.options.nnodes = 1;
  c.finds_nothing();
}

TEST_CASE("interfaces that do not reach other hosts are explained") {
  Case c;
  c.seen.interfaces = {{"lo", "127.0.0.1"}, {"docker0", "172.17.0.1"}};
  c.finds(true, {"lo (127.0.0.1), docker0 (172.17.0.1)", "--network=host"});
  c.options.nnodes = 1;
  c.finds_nothing();

  Case several;
  several.seen.interfaces.push_back({"br-1a2b", "172.18.0.1"});
  several.finds(false, {"any of eth0 (10.0.0.7), br-1a2b (172.18.0.1)", "NCCL_SOCKET_IFNAME==eth0"});
  for (const char* list : {"eth", "=eth0", "=lo,eth0", "^docker,br", "^=br-1a2b"}) {
    CAPTURE(list);
    several.variables["NCCL_SOCKET_IFNAME"] = list;
    several.finds_nothing();
  }
  for (const char* list : {"ib", "=eth", "^e,br,docker,lo"}) {
    CAPTURE(list);
    several.variables["NCCL_SOCKET_IFNAME"] = list;
    several.finds(true, {"which fits no interface", "eth0 (10.0.0.7)", list});
  }
  several.variables.clear();
  several.seen.interfaces.push_back({"ib0", "10.1.0.7"});  // which NCCL prefers
  several.finds_nothing();

  Case own;
  own.seen.interfaces[2].linked = true;
  own.finds(false, {"a network of its own, eth0 (10.0.0.7)", "--network=host"});
}

TEST_CASE("a quota of cores below the threads is explained") {
  Case c;
  c.seen.cpus = 7.5;
  c.finds_nothing();  // 8 threads
  c.seen.cpus = 2.5;
  c.finds(false, {"2.5 cores (cpu.max)", "8 threads", "--cpus=8", "OMP_NUM_THREADS"});
}

TEST_CASE("the surroundings are read from files") {
  const tests::TempDir root;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root / name).parent_path());
    tests::write_file(root / name, text);
  };
  const std::string folder = root.path().string();
  Surroundings none = look_around(folder);
  CHECK_FALSE(none.container);
  CHECK(none.control_error == ENOENT);
  CHECK(none.gpu_files + none.pci_gpus + none.uvm_file + none.infiniband == 0);
  CHECK(none.driver + none.cuda_file + none.ipc == "");
  CHECK_FALSE(none.cpus);

  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version:  "
        "gcc 12.2.0\n");
  write("proc/self/maps",
        "7f01-7f02 r--p 00000000 08:01 11  /usr/lib/libcudart.so.13.0.88\n"
        "7f02-7f03 r--p 00000000 08:01 12  /opt/my lib/libcuda.so.590.44.01\n");
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  for (const char* name :
       {"nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "infiniband/uverbs0"})
    write(std::string("dev/") + name, "");
  const auto device = [&](const std::string& name, const char* vendor, const char* type, const char* group) {
    write("sys/bus/pci/devices/" + name + "/vendor", vendor);
    write("sys/bus/pci/devices/" + name + "/class", type);
    write("sys/bus/pci/devices/" + name + "/iommu_group/type", group);
  };
  device("0000:01:00.0", "0x10de\n", "0x030200\n", "DMA-FQ\n");
  device("0000:02:00.0", "0x10de\n", "0x030000\n", "identity\n");
  device("0000:02:00.1", "0x10de\n", "0x040300\n", "DMA\n");  // the GPU's sound
  device("0000:03:00.0", "0x8086\n", "0x030000\n", "DMA\n");
  device("0000:04:00.0", "0x10de\n", "0x030200\n", "DMA\n");
  std::filesystem::create_directories(root / "proc/self/ns");
  std::filesystem::create_symlink("ipc:[4026532500]", root / "proc/self/ns/ipc");
  const Surroundings seen = look_around(folder);
  CHECK(seen.container);
  CHECK(seen.ipc == "ipc:[4026532500]");
  CHECK(seen.driver == "580.95.05");
  CHECK(seen.cuda_file == "/opt/my lib/libcuda.so.590.44.01");
  CHECK(seen.cpus == 2.5);
  CHECK(seen.gpu_files == 2);
  CHECK(seen.uvm_file);
  CHECK(seen.control_error == 0);
  CHECK(seen.infiniband);
  CHECK(seen.pci_gpus == 3);
  CHECK(seen.translated_gpus == 2);
  write("usr/local/cuda/compat/libcuda.so.1", "");
  std::filesystem::remove(root / "proc/self/maps");
  CHECK(look_around(folder).cuda_file == "/usr/local/cuda/compat/libcuda.so.1");
}

TEST_CASE("pairs of GPUs without direct access are found") {
  tapestry::testing::FakeGpus gpus(3);
  CHECK(look_around().gpus == 3);
  CHECK(look_around().apart.empty());
  gpus.separate(0, 2);
  CHECK(look_around().apart == std::vector<std::pair<int, int>>{{0, 2}});
  for (int gpu = 0; gpu < 3; ++gpu) CHECK_FALSE(gpus.is_in_use(gpu));  // a context takes hundreds of MB
}

TEST_CASE("--doctor prints what it sees, and ends with status 0 or 1") {
  tests::Job good({"--doctor", "--nproc-per-node=2"});
  CHECK(good.wait() == 0);
  CHECK_THAT(good.out(), ContainsSubstring("container") && ContainsSubstring("network   ") &&
                             ContainsSubstring("no problem"));
  tests::Job bad({"--doctor", "--nnodes=2", "--node-rank=1", "--rdzv-endpoint=127.0.0.1:1", "/nowhere/app"});
  CHECK(bad.wait() == 1);
  CHECK_THAT(bad.out(), ContainsSubstring("FAILURE") && ContainsSubstring("/nowhere/app") &&
                            ContainsSubstring("cannot run"));
}
