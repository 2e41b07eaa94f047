#pragma once
// Kernels on the PTX machine: modules of fat binaries, launches, and what is known of the bytes of memory.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tapestry/tools/ptx/counter_table.h"
#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/order.h"
#include "tapestry/tools/ptx/runtime/control.h"
#include "tapestry/tools/ptx/runtime/settings.h"

namespace stand_in {

class Execution {
 public:
  explicit Execution(const Settings& settings);

  /// Runs a launch to its end. Throws what the machine throws.
  /// With an order, the launch is its work `work`.
  void run(const Launch& launch, tapestry::ptx::StreamOrder* order, tapestry::ptx::StreamOrder::Work work);

  /// The host sees this memory at `data`. Memory that the host can write counts as initialised.
  void add_memory(std::uintptr_t address, std::byte* data, std::size_t bytes, bool initialised);
  void remove_memory(std::uintptr_t address);
  /// A copy wrote these bytes; `from` is the address that they come from, or 0 if their source is the host.
  void note_written(std::uintptr_t to, std::uintptr_t from, std::size_t bytes);
  /// How many of these bytes no one has written.
  std::size_t unwritten(std::uintptr_t address, std::size_t bytes);

  /// The decoded kernel. Throws what the machine throws.
  const tapestry::ptx::Program& program(const Kernel& kernel, int gpu);
  /// The compute capability that its PTX was compiled for: 80.
  int ptx_version(const Kernel& kernel, int gpu);
  /// A variable of a module; its address is 0 if the module has none of this name.
  struct Variable {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::byte* data = nullptr;
  };
  Variable variable(const void* fat_binary, const std::string& name, int gpu);
  void forget_module(const void* fat_binary);

  const std::map<std::string, Executed>& executed() const { return executed_; }
  /// What was counted, by the kernels' symbols, if the settings ask for counters.
  const std::map<std::string, tapestry::ptx::KernelRow>& counters() const { return counters_; }
  tapestry::ptx::Machine& machine() { return machine_; }
  const Settings& settings() const { return settings_; }

 private:
  // Loads the module of a fat binary on a GPU, if it is not loaded.
  std::size_t module_of(const void* fat_binary, int gpu);

  Settings settings_;
  tapestry::ptx::Machine machine_;
  std::map<std::pair<const void*, int>, std::size_t> modules_;
  std::map<std::string, Executed> executed_;
  std::map<std::string, tapestry::ptx::KernelRow> counters_;
};

}  // namespace stand_in
