#include "tapestry/tools/ptx/runtime/execution.h"

#include <ctime>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tapestry/tools/ptx/runtime/driver.h"
#include "tapestry/tools/ptx/runtime/fat_binary.h"

namespace stand_in {

using namespace tapestry::ptx;

namespace {
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
}  // namespace

Execution::Execution(const Settings& settings) : settings_(settings) {
  Options& o = machine_.options();
  o.seed = settings.seed;
  o.approximate = settings.approximate;
  o.check_initialised = settings.initialised || settings.shared;
  o.check_initialised_shared = settings.shared;
  o.max_instructions = settings.max_instructions;
  o.check_races = settings.races;
  o.collect_races = true;  // as compute-sanitizer does, a run goes on after a race
  o.multiprocessors = kMultiprocessors;
  o.count = !settings.counters.empty();
  o.trace = settings.trace;
}

std::size_t Execution::module_of(const void* fat_binary, int gpu) {
  const auto key = std::pair(fat_binary, gpu);
  if (const auto found = modules_.find(key); found != modules_.end()) return found->second;
  FoundPtx ptx = find_ptx(fat_binary, 9, 0);
  if (ptx.text.empty()) throw UsageError("[ptx] the kernel cannot run: " + ptx.why);
  return modules_[key] = machine_.load(std::move(ptx.text));
}

const Program& Execution::program(const Kernel& kernel, int gpu) {
  return machine_.program(kernel.symbol, module_of(kernel.fat_binary, gpu));
}

int Execution::ptx_version(const Kernel& kernel, int gpu) {
  const std::string& target = machine_.target(module_of(kernel.fat_binary, gpu));  // "sm_90a"
  return target.size() > 3 ? std::atoi(target.c_str() + 3) : 0;
}

void Execution::run(const Launch& launch, StreamOrder* order, StreamOrder::Work work) {
  const std::size_t module = module_of(launch.kernel.fat_binary, launch.gpu);
  const auto dim = [](const std::array<unsigned, 3>& d) { return Dim{d[0], d[1], d[2]}; };
  const unsigned threads = launch.block[0] * launch.block[1] * launch.block[2];
  if (launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > 1)
    throw UsageError("[ptx] launches of clusters of more than one block are missing");
  Executed& executed = executed_[launch.kernel.symbol];
  if (!settings_.launches.empty() && executed.block_sizes.insert(threads).second)
    std::ofstream(settings_.launches, std::ios::app) << launch.kernel.symbol << ' ' << threads << '\n';
  const double began = settings_.speed.empty() ? 0 : cpu_seconds();
  machine_.run_as(order, order ? work : StreamOrder::kNone);
  machine_.options().cooperative = launch.cooperative;
  // The layout of the arguments is that of the parameters, except for what follows the last one.
  const Counts counts =
      machine_.launch(machine_.program(launch.kernel.symbol, module), dim(launch.grid), dim(launch.block),
                      launch.shared_bytes, launch.arguments.data(), launch.arguments.size());
  if (!settings_.counters.empty()) {
    KernelRow& row = counters_[launch.kernel.symbol];
    row.kernel = launch.kernel.symbol;
    row.block = threads;
    row.shared = machine_.program(launch.kernel.symbol, module).shared_without_gaps + launch.shared_bytes;
    row.counters.add(machine_.counters());
  }
  if (!settings_.speed.empty()) executed.seconds += cpu_seconds() - began;
  ++executed.launches;
  executed.warp_instructions += counts.warp_instructions;
  executed.thread_instructions += counts.thread_instructions;
}

void Execution::add_memory(std::uintptr_t address, std::byte* data, std::size_t bytes, bool initialised) {
  machine_.memory().add(address, data, bytes, initialised);
}
void Execution::remove_memory(std::uintptr_t address) { machine_.memory().remove(address); }

void Execution::note_written(std::uintptr_t to, std::uintptr_t from, std::size_t bytes) {
  const Allocation* const target = machine_.memory().find(to);
  if (!target || !target->states) return;
  std::uint8_t* const states = target->states + (to - target->begin);
  const Allocation* const source = from == 0 ? nullptr : machine_.memory().find(from);
  if (source && source->states) std::memmove(states, source->states + (from - source->begin), bytes);
  else std::memset(states, kInitialised, bytes);
}
std::size_t Execution::unwritten(std::uintptr_t address, std::size_t bytes) {
  return machine_.memory().find(address) ? machine_.memory().uninitialised(address, bytes) : 0;
}

Execution::Variable Execution::variable(const void* fat_binary, const std::string& name, int gpu) {
  const std::uint64_t address = machine_.address_of(name, module_of(fat_binary, gpu));
  const Allocation* const found = address == 0 ? nullptr : machine_.memory().find(address);
  if (!found) return {};
  return {address, found->bytes, found->data};
}
void Execution::forget_module(const void* fat_binary) {
  std::erase_if(modules_, [&](const auto& one) { return one.first.first == fat_binary; });
}

}  // namespace stand_in
