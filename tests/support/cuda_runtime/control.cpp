#include "tests/support/cuda_runtime/control.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "tests/support/cuda_runtime/ptx.h"
#include "tests/support/cuda_runtime/state.h"

namespace stand_in {
namespace {

int gpus_wanted() {
  const char* const text = std::getenv("TAPESTRY_STAND_IN_GPUS");
  return text ? std::atoi(text) : 2;
}

std::unique_ptr<State>& holder() {
  static auto& state =
      *new std::unique_ptr<State>(std::make_unique<State>(gpus_wanted(), std::size_t{1} << 30));
  return state;
}

std::atomic<int> resets{0};

using Lock = std::lock_guard<std::recursive_mutex>;

// Reports leaks and misuse at exit. It runs after the destructors of the libraries that use this one.
__attribute__((destructor)) void check_at_exit() {
  const char* const mode = std::getenv("TAPESTRY_STAND_IN_EXIT");
  if (mode && std::string_view(mode) == "ignore") return;
  const auto leaked = leaks(), misused = misuse();
  for (const auto& line : leaked) std::fprintf(stderr, "[stand-in CUDA] leaked: %s\n", line.c_str());
  for (const auto& line : misused) std::fprintf(stderr, "[stand-in CUDA] misuse: %s\n", line.c_str());
  if (!leaked.empty() || !misused.empty()) _exit(70);
}

}  // namespace

State& state() { return *holder(); }
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}
int driver::epoch() { return resets; }

void reset(int gpus, std::size_t memory) {
  const Lock lock(driver::mutex());
  holder() = std::make_unique<State>(gpus, memory);
  ++resets;
}
void fail(const std::string& function, int nth, int error) {
  const Lock lock(driver::mutex());
  state().injected[function].push_back({nth, static_cast<cudaError_t>(error)});
}
void fail_next_kernel(int error) {
  const Lock lock(driver::mutex());
  state().next_kernel = static_cast<cudaError_t>(error);
}
std::map<std::string, int> calls() {
  const Lock lock(driver::mutex());
  return state().calls;
}
std::vector<Launch> launches() {
  const Lock lock(driver::mutex());
  return state().launches;
}
std::vector<Kernel> kernels() {
  const Lock lock(driver::mutex());
  std::vector<Kernel> all;
  for (const auto& [number, kernel] : registry().kernels) read_entry(all.emplace_back(kernel));
  return all;
}
std::vector<int> contexts() {
  const Lock lock(driver::mutex());
  return {state().contexts.begin(), state().contexts.end()};
}
std::vector<std::string> misuse() {
  const Lock lock(driver::mutex());
  return state().misuse;
}
std::vector<std::string> leaks() {
  const Lock lock(driver::mutex());
  std::vector<std::string> lines;
  for (const auto& [address, block] : state().memory)
    if (block.live)
      lines.push_back(
          text(block.bytes, " bytes ",
               block.gpu == kHost ? "of page-locked memory" : text("of memory on GPU ", block.gpu)));
  for (const auto& [handle, stream] : state().streams)
    if (stream->live) lines.push_back(text("a stream of GPU ", stream->gpu));
  for (const auto& [handle, event] : state().events)
    if (event->live) lines.push_back(text("an event of GPU ", event->gpu));
  for (const auto& [handle, graph] : state().graphs)
    if (graph->live) lines.push_back(graph->executable ? "an executable graph" : "a graph");
  return lines;
}
void set_executor(Executor executor) {
  const Lock lock(driver::mutex());
  state().executor = std::move(executor);
}
std::byte* memory_at(const void* address, std::size_t bytes) {
  const Lock lock(driver::mutex());
  return state().inside(address, bytes);
}
std::vector<Memory> memory() {
  const Lock lock(driver::mutex());
  std::vector<Memory> live;
  for (const auto& [address, block] : state().memory)
    if (block.live) live.push_back({address, block.data, block.bytes, block.gpu});
  return live;
}

}  // namespace stand_in
