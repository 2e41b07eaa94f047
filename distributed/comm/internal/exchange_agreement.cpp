#include "tapestry/distributed/comm/internal/exchange_agreement.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

/// Why a rank cannot use the shared segment; empty if it can.
struct Refusal {
  char why[256] = "";
};
/// Rank 0's address of the segment, and its own refusal.
struct Offer {
  SharedMemoryAddress address;
  Refusal refusal;
};

}  // namespace

std::unique_ptr<HostExchange> agree_on_exchange(Backend& backend, bool shared_memory, Deadline deadline) {
  const int rank = backend.rank(), size = backend.size();
  std::shared_ptr<SharedMemory> memory;
  Offer offer;
  Refusal refusal;
  const auto refuse = [&](const std::string& why) { why.copy(refusal.why, sizeof refusal.why - 1); };
  const auto attempt = [&](const auto& make) {
    try {
      if (shared_memory) memory = make();
      else refuse("shared memory is switched off (TAPESTRY_SHARED_MEMORY)");
    } catch (const std::exception& e) {
      refuse(e.what());
    }
  };
  if (rank == 0) {
    attempt([&] {
      check<DistributedError>(size <= HostExchange::kMostRanks, "[shared_memory] ", size,
                              " ranks are more than the supported ", HostExchange::kMostRanks);
      return std::make_shared<SharedMemory>(HostExchange::bytes_for(size));
    });
    if (memory) offer.address = memory->address();
    offer.refusal = refusal;
  }
  backend.broadcast(&offer, sizeof offer, 0, deadline);
  if (rank != 0 && !offer.refusal.why[0])
    attempt([&] { return std::make_shared<SharedMemory>(offer.address); });
  std::vector<Refusal> refusals(static_cast<std::size_t>(size));
  backend.all_gather(&refusal, refusals.data(), sizeof refusal, deadline);
  const auto refused =
      std::find_if(refusals.begin(), refusals.end(), [](const Refusal& r) { return r.why[0]; });
  if (refused == refusals.end()) {
    memory->close();
    return std::make_unique<HostExchange>(std::move(memory), rank, size);
  }
  static std::atomic<bool> said = false;
  if (rank != 0 || !shared_memory || said.exchange(true)) return nullptr;
  std::fprintf(
      stderr,
      "tapestry: the ranks of this host communicate over sockets, which is slower than shared memory; "
      "rank %td: %s\n",
      refused - refusals.begin(), refused->why);
  return nullptr;
}

}  // namespace tapestry::distributed
