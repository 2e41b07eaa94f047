#include "tapestry/distributed/comm/internal/nccl_failure.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

// Advice to append if NCCL's message contains the words on the left. Advice is not chosen by error code,
// because the codes are too general.
constexpr std::pair<std::string_view, const char*> kAdvice[] = {
    {"Duplicate GPU", "two ranks have one GPU: give each its own, or use the backend gloo"},
    {"driver version", "install an NVIDIA driver that is as new as this library's CUDA"},
    {"out of memory", "NCCL needs a few hundred MB on each GPU: use a smaller batch or model"},
    {"shared memory", "in Docker start the container with --shm-size=1g or --ipc=host"},
    {"/dev/shm", "in Docker start the container with --shm-size=1g or --ipc=host"},
    {"network interface", "set NCCL_SOCKET_IFNAME to the network interface that connects the hosts"},
    {"remote process", "look at the output of the other ranks: one has exited or lost its connection"},
    {"system error", "run with NCCL_DEBUG=INFO, and check that the hosts reach one another on all ports"},
};

}  // namespace

std::string nccl_failure_text(const NcclFailure& failure) {
  std::string said = failure.error;
  if (!failure.last.empty()) said += ": " + failure.last;
  const char* advice = "run with NCCL_DEBUG=INFO to see what NCCL did";
  for (const auto& [words, remedy] : kAdvice) {
    const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
    if (std::search(said.begin(), said.end(), words.begin(), words.end(), same) == said.end()) continue;
    advice = remedy;
    break;
  }
  return concat(
      {failure.call, " failed on rank ", failure.rank, " (", failure.device, "): ", said, "; ", advice});
}

}  // namespace tapestry::distributed
