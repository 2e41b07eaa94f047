// Tapestry's side of tools/gpu_check: runs and times the benchmarks. tools/gpu/peer.py is PyTorch's side.
// The program reads one command per line from stdin, or takes the commands as arguments, and answers each
// command with one line:
//
//   start softmax f32 8192 8192    Makes the inputs and runs the benchmark once. The answer is `ok` and a
//                                  description of the results (gpu/work.h), `none` and a reason if a kernel
//                                  is missing, or `failed` and a reason.
//   prepare softmax f32 8192 8192  Does the same, and answers `ok` without the description.
//   start linear@vendor f32 8 8 8  Does it under the policy custom, vendor or auto of core/kernel_policy.h,
//                                  or under wgmma: custom with TAPESTRY_WGMMA=1. Without a policy it is auto.
//                                  `prepare` then says what auto has chosen. Under vendor and wgmma, the
//                                  answer is `none` if other kernels ran in their place.
//   time 10                        Runs it ten times. The answer is the mean time in milliseconds.
//   libraries                      The answer is `ok` and the vendor libraries that were found.
//
// Usage: bench_gpu_ops [DEVICE [COMMAND...]]; the device is cuda if none is given.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string_view>

#include "tapestry/core/profiler.h"
#include "tapestry/tools/bench/gpu/work.h"

#if __has_include("tapestry/core/cuda/libraries.h")
#include "tapestry/core/cuda/libraries.h"
#define TAPESTRY_KNOWS_LIBRARIES 1
#endif

#if __has_include("tapestry/core/kernel_policy.h")
#include "tapestry/core/kernel_policy.h"
#define TAPESTRY_KNOWS_POLICIES 1
#endif

#if __has_include("tapestry/kernels/cuda/hopper/attention.h")
#include "tapestry/core/cuda/device.h"
#include "tapestry/kernels/policy.h"
#define TAPESTRY_KNOWS_WGMMA 1
#endif

using namespace tapestry;
using namespace tapestry::bench;

namespace {

Spec parse_spec(std::istream& words, Device device) {
  Spec spec;
  spec.device = device;
  std::string dtype;
  words >> dtype;
  check(dtype == "f32" || dtype == "bf16" || dtype == "f16", "[bench] unknown dtype \"", dtype,
        "\"; use f32, bf16 or f16");
  spec.dtype = dtype == "f32" ? DType::f32 : dtype == "bf16" ? DType::bf16 : DType::f16;
  for (std::int64_t n; words >> n;) spec.sizes.push_back(n);
  return spec;
}

Work make(const std::string& name, const Spec& spec) {
  for (const auto* all : {&single_operations(), &training_steps(), &tutorial_kernels()})
    if (const auto it = all->find(name); it != all->end()) return it->second(spec);
  fail("[bench] unknown benchmark \"", name, "\"; see tools/bench/gpu/");
}

#ifdef TAPESTRY_KNOWS_WGMMA
/// Allows or forbids the kernels of kernels/cuda/hopper.
void allow_wgmma(bool allow, Device device) {
  if (allow && device.is_cuda() && cuda::device_properties(device).major != 9)
    fail<MissingKernelError>("[bench] kernels with wgmma need a GPU of compute capability 9.0");
  if (kernels::wgmma_allowed() == allow) return;
  ::setenv("TAPESTRY_WGMMA", allow ? "1" : "0", 1);
  kernels::reset_policy();  // reads the variable again
}
#endif

/// Sets the policy of a benchmark's name, such as linear@vendor, and returns the name without it.
std::string set_policy_of(const std::string& name, [[maybe_unused]] Device device) {
  const std::size_t at = name.find('@');
  const std::string policy = at == std::string::npos ? "auto" : name.substr(at + 1);
#ifdef TAPESTRY_KNOWS_WGMMA
  allow_wgmma(policy == "wgmma", device);
  if (policy == "wgmma") {
    set_kernel_policy(KernelPolicy::custom);
    return name.substr(0, at);
  }
#endif
#ifdef TAPESTRY_KNOWS_POLICIES
  for (const KernelPolicy p : {KernelPolicy::custom, KernelPolicy::vendor, KernelPolicy::automatic})
    if (policy == kernel_policy_name(p)) {
      set_kernel_policy(p);
      return name.substr(0, at);
    }
#else
  if (policy == "auto" || policy == "custom") return name.substr(0, at);
#endif
  fail("[bench] unknown policy \"", policy, "\"; use custom, vendor, auto or wgmma");
}

/// What auto has chosen since the text `before`, as "gemm bfloat16 m=8...: cuBLASLt | ...".
std::string new_choices(const std::string& before) {
  std::string text;
#ifdef TAPESTRY_KNOWS_POLICIES
  std::istringstream lines(kernel_choices());
  for (std::string line; std::getline(lines, line);) {
    std::istringstream columns(line);
    std::string device, op, key, candidates, chosen;
    for (std::string* column : {&device, &op, &key, &candidates, &chosen})
      std::getline(columns, *column, '\t');
    if (chosen.empty() || before.find(line + "\n") != std::string::npos) continue;
    text += (text.empty() ? "" : " | ") + op + " " + key + ": " + chosen;
  }
#endif
  return text;
}
std::string choices() {
#ifdef TAPESTRY_KNOWS_POLICIES
  return kernel_choices();
#else
  return {};
#endif
}

/// Returns the vendor libraries that were found. Empty if this version of Tapestry cannot list them.
std::string vendor_libraries() {
  std::string text;
#ifdef TAPESTRY_KNOWS_LIBRARIES
  for (const auto& library : cuda::libraries()) text += (text.empty() ? " " : " | ") + library.str();
#endif
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

/// Whether the kernels ran that the policy in a benchmark's name asks for, and not others in their place. The
/// profiler names the implementation.
bool ran_as_asked(const std::string& name, const profiler::Profile& profile) {
  for (const auto& operation : profile.operations())
    for (const char* tag : {"[cuBLASLt]", "[cuDNN]", "[tapestry wgmma]"})
      if (operation.name.find(tag) != std::string::npos)
        return name.ends_with("@wgmma") == (std::string_view(tag) == "[tapestry wgmma]");
  return false;
}

double milliseconds(const Work& work, int calls, Device device) {
  Event begin(true), end(true);
  const Stream stream = current_stream(device);
  synchronize(device);
  begin.record(stream);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) work.call();
  const std::chrono::duration<double, std::milli> host = std::chrono::steady_clock::now() - start;
  end.record(stream);
  synchronize(device);
  if (work.operations > 0) return host.count() / calls / work.operations;
  return (device.is_cpu() ? host.count() : end.milliseconds_since(begin)) / calls;
}

/// Runs one command; `work` is the benchmark that was started last.
std::string answer_to(const std::string& line, Device device, Work& work) {
  std::istringstream words(line);
  std::string command, name;
  words >> command;
  try {
    if (command == "start" || command == "prepare") {
      words >> name;
      work = {};  // frees its memory before the next inputs are allocated
      empty_cache(device.type);
      const std::string before = choices();
      work = make(set_policy_of(name, device), parse_spec(words, device));
      std::optional<profiler::Profile> profile;
      if (device.is_cuda() && (name.ends_with("@vendor") || name.ends_with("@wgmma"))) profile.emplace();
      const Results results = work.call();
      check<MissingKernelError>(!profile || ran_as_asked(name, *profile),
                                "[bench] the kernels of this policy do not compute ", line,
                                "; others ran in their place");
      profile.reset();
      if (command == "prepare") {
        const std::string chosen = new_choices(before);
        return chosen.empty() ? "ok" : "ok chosen: " + chosen;
      }
      return "ok " + describe(work.results ? work.results() : results);
    }
    if (command == "libraries") return "ok" + vendor_libraries();
    int calls = 0;
    check(command == "time" && words >> calls && calls > 0, "[bench] unknown command \"", line, "\"");
    check(static_cast<bool>(work.call), "[bench] no benchmark was started");
    return number(milliseconds(work, calls, device));
  } catch (const MissingKernelError& e) {
    work = {};
    return std::string("none ") + e.what();
  } catch (const std::exception& e) {
    work = {};
    return std::string("failed ") + e.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Device device(argc > 1 ? argv[1] : "cuda");
  Work work;
  const auto reply = [&](const std::string& line) {
    std::printf("%s\n", answer_to(line, device, work).c_str());
    std::fflush(stdout);
  };
  for (int i = 2; i < argc; ++i) reply(argv[i]);
  std::string line;
  while (argc <= 2 && std::getline(std::cin, line)) reply(line);
}
