#pragma once
// Runs the kernels that a program launches on the stand-in runtime: the PTX machine executes the PTX that
// nvcc embedded in it.
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "tapestry/tools/ptx/machine.h"
#include "tests/support/cuda_runtime/control.h"

/// While it exists, launches are executed. All memory counts as initialised, because copies of the host are
/// not seen here.
class PtxExecutor {
 public:
  explicit PtxExecutor(std::uint64_t seed = 0, bool check_initialised = true)
      : seed_(seed), check_initialised_(check_initialised) {
    stand_in::set_executor([this](const stand_in::Launch& launch) { run(launch); });
  }
  ~PtxExecutor() { stand_in::set_executor(nullptr); }
  PtxExecutor(const PtxExecutor&) = delete;
  PtxExecutor& operator=(const PtxExecutor&) = delete;

  /// How often each kernel was launched.
  const std::map<std::string, int>& kernels() const { return kernels_; }
  std::uint64_t thread_instructions() const { return thread_instructions_; }

 private:
  void run(const stand_in::Launch& launch) {
    using namespace tapestry::ptx;
    std::unique_ptr<Machine>& machine = machines_[launch.kernel.fat_binary];
    if (!machine) {
      machine = std::make_unique<Machine>();
      for (std::string& text : stand_in::ptx_texts(launch.kernel)) machine->load(std::move(text));
    }
    machine->options().seed = seed_;
    machine->options().check_initialised = check_initialised_;
    const auto memory = stand_in::memory();
    for (const stand_in::Memory& m : memory) machine->memory().add(m.address, m.data, m.bytes, true);
    struct Removal {
      Machine& machine;
      const std::vector<stand_in::Memory>& memory;
      ~Removal() {
        for (const stand_in::Memory& m : memory) machine.memory().remove(m.address);
      }
    } const removal{*machine, memory};
    const auto dim = [](const std::array<unsigned, 3>& d) { return Dim{d[0], d[1], d[2]}; };
    // The layout of the arguments is that of the parameters, except for what follows the last one.
    const Counts counts =
        machine->launch(launch.kernel.symbol, dim(launch.grid), dim(launch.block), launch.shared_bytes,
                        static_cast<const void*>(launch.arguments.data()), launch.arguments.size());
    thread_instructions_ += counts.thread_instructions;
    ++kernels_[launch.kernel.symbol];
  }

  std::uint64_t seed_;
  bool check_initialised_;
  std::map<const void*, std::unique_ptr<tapestry::ptx::Machine>> machines_;
  std::map<std::string, int> kernels_;
  std::uint64_t thread_instructions_ = 0;
};
