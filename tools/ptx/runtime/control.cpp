#include "tapestry/tools/ptx/runtime/control.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "tapestry/tools/ptx/runtime/callers.h"
#include "tapestry/tools/ptx/runtime/fat_binary.h"
#include "tapestry/tools/ptx/runtime/settings.h"
#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in {
namespace {

std::unique_ptr<State>& holder() {
  static auto& state = *new std::unique_ptr<State>(
      std::make_unique<State>(settings().devices, settings().memory, &settings()));
  return state;
}

std::atomic<int> resets{0};

using Lock = std::lock_guard<driver::Mutex>;

void print(const std::string& line) {
  std::FILE* const report = settings().report.empty() ? nullptr : std::fopen(settings().report.c_str(), "a");
  std::fprintf(report ? report : stderr, "[ptx] %s\n", line.c_str());
  if (report) std::fclose(report);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Whether the settings allow the error: by a kernel ("kernel 'sum'", "launch of 'sum'"), or by a line
// ("sum.cu:12").
bool is_allowed(const std::string& what) {
  const std::string text = what.substr(0, what.find("\nhost: "));
  for (const std::string& one : settings().allowed) {
    const std::size_t colon = one.rfind(':');
    const bool is_line =
        colon != one.npos && colon + 1 < one.size() &&
        std::all_of(one.begin() + static_cast<std::ptrdiff_t>(colon) + 1, one.end(), is_digit);
    if (is_line) {
      for (std::size_t at = text.find(one); at != text.npos; at = text.find(one, at + 1)) {
        const std::size_t end = at + one.size();
        if ((at == 0 || text[at - 1] == ' ' || text[at - 1] == '/') &&
            (end == text.size() || !is_digit(text[end])))
          return true;
      }
      continue;
    }
    for (const std::string_view start : {"kernel '", "launch of '"})
      for (std::size_t at = text.find(start); at != text.npos; at = text.find(start, at + 1)) {
        const std::size_t begin = at + start.size();
        if (text.substr(begin, text.find('\'', begin) - begin).find(one) != text.npos) return true;
      }
  }
  return false;
}

// Reports leaks and misuse at exit. It runs after the destructors of the libraries that use this one.
__attribute__((destructor)) void check_at_exit() {
  const Settings& s = settings();
  const bool test = resets > 0;
  driver::end_progress();
  const auto leaked = s.leaks || test ? leaks() : std::vector<std::string>{}, misused = misuse();
  for (const auto& line : leaked) print("leaked: " + line);
  if (test)
    for (const auto& line : misused) print("misuse: " + line);
  if (!s.counters.empty() && !test) {
    const std::vector<tapestry::ptx::KernelRow> rows = counters();
    const bool to_file = s.counters != "-";
    std::FILE* const out = to_file ? std::fopen(s.counters.c_str(), "w") : stderr;
    if (out) std::fputs((to_file ? to_text(rows) : table(rows)).c_str(), out);
    else print("cannot write the counters to " + s.counters);
    if (out && to_file) std::fclose(out);
  }
  if (!s.speed.empty() && !test) {
    std::uint64_t launches = 0, instructions = 0;
    double seconds = 0;
    for (const auto& [symbol, kernel] : executed())
      launches += kernel.launches, instructions += kernel.thread_instructions, seconds += kernel.seconds;
    std::FILE* const out = s.speed == "-" ? stderr : std::fopen(s.speed.c_str(), "a");
    const auto millions = static_cast<double>(instructions) * 1e-6;
    if (out)
      std::fprintf(
          out, "%llu launches, %.1f million thread-instructions, %.2f s of CPU time: %.0f million a second\n",
          static_cast<unsigned long long>(launches), millions, seconds,
          seconds > 0 ? millions / seconds : 0.0);
    else print("cannot write the speed to " + s.speed);
    if (out && out != stderr) std::fclose(out);
  }
  if (s.keep_exit_status || (leaked.empty() && misused.empty())) return;
  std::fflush(nullptr);
  _exit(70);
}

}  // namespace

State& state() { return *holder(); }
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}
int driver::epoch() { return resets; }

cudaError_t driver::enter(const char* function) {
  ++state().calls[function];
  note_call();
  if (state().broken != cudaSuccess) return state().broken;
  const auto injected = state().injected.find(function);
  if (injected == state().injected.end()) return cudaSuccess;
  for (Injected& one : injected->second)
    if (--one.calls_left == 0) {
      switch (one.error) {  // CUDA documents that these leave the process in an inconsistent state
        case cudaErrorIllegalAddress:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorIllegalInstruction:
        case cudaErrorHardwareStackError:
        case cudaErrorAssert:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
          state().broken = one.error;
          break;
        default:
          break;
      }
      return one.error;
    }
  return cudaSuccess;
}
cudaError_t driver::broken() { return state().broken; }
cudaError_t driver::misused(cudaError_t error, const std::string& what) {
  if (is_allowed(what)) return error;
  state().misuse.push_back(what);
  if (resets == 0)
    print("error: " + what + (what.find("\nhost: ") == what.npos ? Callers::now().text() : ""));
  return error;
}
int driver::gpu_count() { return static_cast<int>(state().used.size()); }
std::size_t driver::total_memory() { return state().total; }
std::size_t driver::used_memory(int gpu) { return state().used[static_cast<std::size_t>(gpu)]; }
void driver::make_context(int gpu) { state().contexts.insert(gpu); }

void reset(int gpus, std::size_t memory) {
  const Lock lock(driver::mutex());
  holder() = std::make_unique<State>(gpus, memory, nullptr);
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
std::int64_t host_waits() {
  const Lock lock(driver::mutex());
  std::int64_t waits = 0;
  for (const char* const call : {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize",
                                 "cudaMemcpy", "cudaMemset", "cudaFree", "cudaFreeHost"})
    if (const auto found = state().calls.find(call); found != state().calls.end()) waits += found->second;
  return waits;
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
  for (const auto& [address, block] : state().memory) {
    if (!block.live || block.freeing || block.kind == MemoryKind::kVariable) continue;
    lines.push_back(text(block.bytes, " bytes ",
                         block.gpu == kHost ? "of page-locked memory" : text("of memory on GPU ", block.gpu),
                         block.called_from.text()));
  }
  for (const auto& [handle, stream] : state().streams)
    if (stream->live) lines.push_back(text("a stream of GPU ", stream->gpu));
  for (const auto& [handle, event] : state().events)
    if (event->live) lines.push_back(text("an event of GPU ", event->gpu));
  for (const auto& [handle, graph] : state().graphs.all)
    if (graph->live) lines.push_back(graph->executable ? "an executable graph" : "a graph");
  return lines;
}
void set_executor(Executor executor) {
  const Lock lock(driver::mutex());
  state().executor = std::move(executor);
}
void execute() { execute(Settings{}); }
void execute(const Settings& how) {
  const Lock lock(driver::mutex());
  State& s = state();
  s.execute(how);
  for (const auto& [address, block] : s.memory)
    if (block.live) s.execution->add_memory(address, block.data, block.bytes, true);
}
std::map<std::string, Executed> executed() {
  const Lock lock(driver::mutex());
  return state().execution ? state().execution->executed() : std::map<std::string, Executed>{};
}
void enqueue(void* stream, int (*work)(void*), void* argument) {
  const Lock lock(driver::mutex());
  driver::Operation operation{cudaGraphNodeTypeHost, [=] { return work(argument) != 0; }};
  operation.what = "work of a library";
  driver::enqueue(static_cast<cudaStream_t>(stream), 0, std::move(operation));
}
std::byte* touch(const void* address, std::size_t bytes, bool write) {
  const Lock lock(driver::mutex());
  State& s = state();
  std::byte* const data = s.inside(address, bytes);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (data) s.check_order([&](StreamOrder& order) { order.access(s.running, at, bytes, write); });
  if (data && write && s.execution) s.execution->note_written(at, 0, bytes);
  return data;
}
std::vector<tapestry::ptx::KernelRow> counters() {
  const Lock lock(driver::mutex());
  std::vector<tapestry::ptx::KernelRow> rows;
  if (state().execution)
    for (const auto& [symbol, row] : state().execution->counters()) rows.push_back(row);
  return rows;
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
