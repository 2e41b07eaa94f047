// Checks, without a GPU, the resources that the compiler gave each kernel of the library. A kernel states its
// occupancy by
// __launch_bounds__(threads, blocks). The compiler limits registers accordingly. This test checks that it
// spilled none, and that shared memory fits.
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tapestry/core/version.h"
#include "tests/device_code/device_code.h"
#include "tests/support/catch.h"
#if TAPESTRY_HAS_CUDA
#include "tests/device_code/planted.h"
#endif

using namespace device_code;

namespace {

/// The kernels that may have a stack frame. A kernel belongs here if it must index an array at run time and
/// its speed does not matter.
const std::vector<Exception> kOnStack = {};

bool no_device_code() {
#if TAPESTRY_HAS_CUDA
  return false;
#else
  std::printf("skipped: no CUDA toolkit, so no kernel was compiled for GPUs\n");
  return true;
#endif
}

fs::path library() { return file_of(reinterpret_cast<const void*>(&tapestry::version)); }
fs::path build_folder() { return library().parent_path().parent_path(); }

}  // namespace

TEST_CASE("every kernel stays within its launch bounds and the GPU's resources") {
  if (no_device_code()) return;
  std::vector<Kernel> kernels = read_kernels(library());
  const int known = add_launches(kernels, build_folder() / "machine_launches");
  std::printf("launches are known of %d of %zu kernels%s\n", known, kernels.size(),
              known == 0 ? ": run the tests machine.* first" : "");
  CHECK(faults(kernels, kOnStack) == std::vector<std::string>{});

  std::map<int, std::vector<Kernel>> by_arch;
  for (const Kernel& k : kernels) by_arch[k.arch].push_back(k);
#if TAPESTRY_HAS_CUDA
  std::istringstream wanted(TAPESTRY_DEVICE_ARCHITECTURES);
  for (std::string arch; wanted >> arch;) CHECK(by_arch.contains(std::stoi(arch)));
#endif
  const fs::path table = build_folder() / "kernel_resources.tsv";
  std::ofstream out(table);
  out << "arch\tregisters\tshared\tthreads\tblocks stated\tblocks that fit\toccupancy\tkernel\n";
  for (const Kernel& k : kernels)
    out << k.arch << '\t' << k.registers << '\t' << k.shared << '\t' << k.threads << '\t' << k.blocks()
        << '\t' << k.resident() << '\t' << k.occupancy() << '\t' << k.name() << '\n';
  for (const auto& [arch, of_arch] : by_arch) {
    int half = 0, most = 0;
    for (const Kernel& k : of_arch) {
      half += k.occupancy() >= 0.5;
      most = std::max(most, k.registers);
    }
    std::printf("sm_%d: %zu kernels, %d of them with half of the warps or more, at most %d registers (%s)\n",
                arch, of_arch.size(), half, most, table.c_str());
  }
}

TEST_CASE("each fault in a kernel's resources is found") {
  if (no_device_code()) return;
#if TAPESTRY_HAS_CUDA
  const std::vector<Kernel> kernels = read_kernels(file_of(planted::anchor()));
  std::set<int> archs;
  for (const Kernel& k : kernels) archs.insert(k.arch);
  CHECK(kernels.size() == 5 * archs.size());
  std::map<std::string, int> found;
  for (const std::string& fault : faults(kernels, {})) {
    CAPTURE(fault);
    const auto says = [&](const char* kernel, const char* what) {
      const bool both = fault.starts_with(std::string("planted::") + kernel + " (sm_") &&
                        fault.find(what) != std::string::npos;
      found[kernel] += both;
      return both;
    };
    CHECK((says("indexed_at_run_time", " 64 bytes of stack") ||
           says("spilled", " bytes of stack with 32 registers") || says("unbounded", "no launch bounds") ||
           says("too_much_shared", "8 blocks with 37888 bytes")));
  }
  CHECK(found.size() == 4);
  for (const auto& [kernel, times] : found) {
    CAPTURE(kernel);
    CHECK(times == static_cast<int>(archs.size()));
  }

  for (const Kernel& k : kernels) {
    if (k.name() != "planted::faultless") continue;
    CHECK(k.threads == 256);
    CHECK(k.blocks() == 2);
    CHECK(k.max_registers == 128);
    CHECK(k.shared == 2048);  // 1024 are reserved by the GPU
    CHECK(k.stack == 0);
    CHECK(k.registers > 0);
    CHECK(k.registers <= 32);
    CHECK(k.occupancy() == 1.0);
  }
#endif
}

TEST_CASE("unneeded exceptions and missing architectures are reported") {
  const Kernel good{.symbol = "_ZN1a4coldIiEEvPi",
                    .arch = 80,
                    .registers = 20,
                    .shared = 1024,
                    .threads = 128,
                    .max_registers = 255};
  Kernel cold = good, other = good;
  CHECK(good.name() == "void a::cold<int>");
  CHECK(faults({good}, {}).empty());
  cold.stack = 8;
  CHECK(faults({cold}, {}).size() == 1);
  CHECK(faults({cold}, {{"cold", "why"}}).empty());
  CHECK(faults({good}, {{"cold", "why"}}) ==
        std::vector<std::string>{"cold: this exception is not needed; remove it from kOnStack"});
  CHECK(faults({cold}, {{"col", "why"}}).size() == 2);
  other.symbol = "_Z5otherv";
  other.arch = 90;
  CHECK(faults({good, other}, {}).size() == 2);
  other.arch = 80;
  CHECK(faults({good, other}, {}).empty());
}

TEST_CASE("launches that exceed the launch bounds are reported") {
  const fs::path folder = fs::temp_directory_path() / ("tapestry-launches-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  std::ofstream(folder / "a") << "(no symbol) 64 0\n_Z1kv 128 0\n_Z5otherv 1024 0\n";
  std::ofstream(folder / "b") << "_Z1kv 64 49152\n";
  // 128 threads and 128 registers: four blocks.
  const Kernel k{
      .symbol = "_Z1kv", .arch = 80, .registers = 20, .shared = 1024, .threads = 128, .max_registers = 128};
  REQUIRE(k.blocks() == 4);
  std::vector<Kernel> kernels{k};
  CHECK(add_launches(kernels, folder) == 1);
  CHECK(kernels[0].block == 128);
  CHECK(kernels[0].shared == 1024 + 49152);
  const auto found = faults(kernels, {});
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0], ContainsSubstring("4 blocks with 50176 bytes of shared memory each do not fit"));
  kernels[0].shared = 32 << 10;
  CHECK(faults(kernels, {}).empty());
  kernels[0].block = 129;
  CHECK(faults(kernels, {}).size() == 1);
  kernels = {k};
  CHECK(add_launches(kernels, folder / "nowhere") == 0);
  fs::remove_all(folder);
}

TEST_CASE("malformed files are refused") {
  CHECK_THROWS_WITH(read_kernels("/nonexistent"), ContainsSubstring("cannot read"));
  const fs::path file = fs::temp_directory_path() / ("tapestry-device-code-" + std::to_string(::getpid()));
  for (const std::string& text :
       {std::string("no ELF file, but long enough to hold an ELF file's header, which has 64 bytes"),
        std::string("\x7f"
                    "ELF")}) {
    std::ofstream(file) << text;
    CHECK_THROWS_AS(read_kernels(file), std::runtime_error);
  }
  std::ifstream whole(file_of(reinterpret_cast<const void*>(&no_device_code)), std::ios::binary);
  std::string start(1000, '\0');
  whole.read(start.data(), 1000);
  std::ofstream(file) << start;
  CHECK_THROWS_WITH(read_kernels(file), ContainsSubstring("ends too early"));
  fs::remove(file);
}
