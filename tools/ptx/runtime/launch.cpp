// Kernels: their registration, launches, and variables of modules.
#include <cstring>
#include <exception>

#include "tapestry/tools/ptx/runtime/callers.h"
#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in::driver {
namespace {

// What CUDA returns after a kernel did something invalid.
cudaError_t code_of(const std::string& message) {
  const auto has = [&](const char* words) { return message.find(words) != std::string::npos; };
  if (has(": the assertion '")) return cudaErrorAssert;  // whose text may have any of the following words
  if (has("not aligned")) return cudaErrorMisalignedAddress;
  if (has("allocation of") || has("outside of all memory")) return cudaErrorIllegalAddress;
  return cudaErrorLaunchFailure;
}

// A launch that CUDA refuses. Programs that do not ask for the error never learn of it, so it is reported;
// tests inject such launches.
cudaError_t refused(cudaError_t error, const Kernel& kernel, const std::string& why) {
  return epoch() > 0 ? error : misused(error, text("the launch of '", kernel.symbol, "' is refused: ", why));
}

bool run_kernel(const Launch& made) {
  State& now = state();
  if (now.next_kernel != cudaSuccess) {
    now.broken = std::exchange(now.next_kernel, cudaSuccess);
    return true;
  }
  try {
    if (now.executor) now.executor(made);
    else if (now.execution) now.execution->run(made, now.order.get(), now.running);
  } catch (const tapestry::ptx::OrderError& e) {
    misused(cudaErrorUnknown, e.what() + made.called_from.text());  // the kernel itself did nothing wrong
  } catch (const std::exception& e) {
    misused(cudaErrorLaunchFailure, text(made.kernel.symbol, ": ", e.what(), made.called_from.text()));
    now.broken = now.executor ? cudaErrorLaunchFailure : code_of(e.what());
  }
  if (!now.execution) return true;
  for (const std::string& race : std::exchange(now.execution->machine().findings(), {}))
    misused(cudaErrorUnknown, text(made.kernel.symbol, ": ", race, made.called_from.text()));
  return true;
}

}  // namespace

int add_kernel(Kernel kernel) {
  registry().kernels[registry().next] = std::move(kernel);
  return registry().next++;
}
void remove_kernel(int number) { registry().kernels.erase(number); }
void forget_module(const void* fat_binary) {
  if (Execution* const execution = state().execution.get()) execution->forget_module(fat_binary);
}

Operation operation_of(Launch launch) {
  Operation made;
  made.type = cudaGraphNodeTypeKernel;
  made.parameters = std::make_shared<NodeParameters>();
  made.parameters->launch = std::move(launch);
  NodeParameters& p = *made.parameters;
  if (p.launch.kernel.parameters)
    for (const Parameter& one : *p.launch.kernel.parameters)
      p.arguments.push_back(p.launch.arguments.data() + one.offset);
  made.what = "launch of '" + p.launch.kernel.symbol + "'";
  made.run = [parameters = made.parameters] { return run_kernel(parameters->launch); };
  return made;
}

cudaError_t make_launch(const Kernel& kernel, dim3 grid, dim3 block, dim3 cluster, bool cooperative,
                        std::size_t shared_bytes, std::size_t shared_limit, cudaStream_t stream, int current,
                        void** arguments, Operation* operation) {
  State& s = state();
  const int gpu = gpu_of(stream, current);
  if (gpu < 0) return misused(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  if (gpu != current)
    return misused(cudaErrorInvalidResourceHandle, text(kernel.symbol, " launched in a stream of GPU ", gpu,
                                                        " while the current device is ", current));
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
      threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
    return refused(cudaErrorInvalidConfiguration, kernel,
                   text("a grid of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks of ", threads,
                        " threads; a block has 1 to 1024"));
  if (cluster.x != 0 && (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0))
    return cudaErrorInvalidClusterSize;
  if (kernel.max_threads > 0 && threads > kernel.max_threads)
    return refused(
        cudaErrorLaunchOutOfResources, kernel,
        text("a block of ", threads, " threads, and its __launch_bounds__ allow ", kernel.max_threads));
  if (shared_bytes > shared_limit)
    return refused(cudaErrorInvalidValue, kernel,
                   text(shared_bytes, " bytes of dynamic shared memory, and its limit is ", shared_limit,
                        "; cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize) raises it"));
  Launch made{kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
  if (cluster.x != 0) made.cluster = {cluster.x, cluster.y, cluster.z};
  made.cooperative = cooperative;
  made.shared_bytes = shared_bytes;
  made.gpu = gpu;
  made.stream = stream;
  made.called_from = Callers::now();
  if (kernel.parameters) {
    for (std::size_t i = 0; i < kernel.parameters->size(); ++i) {
      const Parameter& p = (*kernel.parameters)[i];
      if (!arguments || !arguments[i])
        return misused(cudaErrorInvalidValue, text(kernel.symbol, " launched without its argument ", i));
      made.arguments.resize(p.offset + p.bytes);
      std::memcpy(made.arguments.data() + p.offset, arguments[i], p.bytes);
    }
  }
  if (s.execution && !s.executor) {
    // What cannot run is refused at once, like a kernel without code for the GPU.
    try {
      s.execution->program(kernel, gpu);
    } catch (const std::exception& e) {
      return misused(cudaErrorNoKernelImageForDevice, text(kernel.symbol, ": ", e.what()));
    }
  }
  if (epoch() > 0) s.launches.push_back(made);  // for tests
  *operation = operation_of(std::move(made));
  return cudaSuccess;
}

KernelFacts facts_of(const Kernel& kernel, int gpu) {
  State& s = state();
  if (!s.execution) return {};
  KernelFacts facts;
  try {
    facts.ptx_version = s.execution->ptx_version(kernel, gpu);
    const tapestry::ptx::Program& p = s.execution->program(kernel, gpu);
    facts.static_shared = p.shared_without_gaps;
    facts.local = p.local_bytes;
  } catch (const std::exception&) {  // the launch says why
  }
  return facts;
}

cudaError_t find_variable(const void* fat_binary, const std::string& name, int gpu, void** address,
                          std::size_t* bytes) {
  State& s = state();
  if (!s.execution) return cudaErrorInvalidSymbol;
  try {
    const auto found = s.execution->variable(fat_binary, name, gpu);
    if (found.address == 0) return cudaErrorInvalidSymbol;
    if (!s.memory.contains(found.address))
      s.memory[found.address] = {MemoryKind::kVariable, gpu, found.bytes, 0, found.data};
    *address = reinterpret_cast<void*>(found.address);
    *bytes = found.bytes;
    return cudaSuccess;
  } catch (const std::exception& e) {
    return misused(cudaErrorInvalidSymbol, text(name, ": ", e.what()));
  }
}

}  // namespace stand_in::driver
