#pragma once
// Finds ranks that call the collectives of overlapping groups in different orders.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

/// The order of one rank's calls, as each other rank sees it: a hash of the collectives of the groups that
/// both are in. Two ranks that made the same calls in the same order have equal hashes. Thread-safe.
class PostOrder {
 public:
  /// `rank` and `size` are those of the world.
  PostOrder(int rank, int size, std::shared_ptr<Recorder> recorder);

  /// Remembers the ranks of a group, as numbered in the world.
  void add_group(std::uint64_t key, const std::vector<int>& ranks);
  /// Adds a collective of a group with these ranks to the order and to the recorder. `call` identifies the
  /// group and the call's number in it. Sets record.order to this rank's summand of a sum over the ranks of
  /// the group. Modulo 2^64 the sum is 0 if each two of them made the same calls in the same order up to this
  /// one. Otherwise it is a random number. Returns the recorder's ticket.
  std::uint64_t post(CollectiveRecord& record, std::uint64_t call, const std::vector<int>& ranks);
  /// This rank's last collectives, at most `most`, as text for find_inversion(). `ranks` are those that
  /// compare.
  std::string log(const std::vector<int>& ranks, std::size_t most) const;

 private:
  struct Peer {
    std::uint64_t hash = 0, calls = 0;
  };
  const int rank_;
  const std::shared_ptr<Recorder> recorder_;
  mutable std::mutex mutex_;  // guards the members below, and that the recorder has the same calls
  std::vector<Peer> peers_;   // by rank of the world
  std::map<std::uint64_t, std::vector<int>> groups_;  // by CollectiveRecord::group_key
};

/// Identifies call `sequence` of the group with this key.
std::uint64_t call_hash(std::uint64_t group, std::uint64_t sequence);

/// Names the first two calls that differ between two of the `ranks` (of the world), or returns an empty text
/// if the logs show none. `logs` has PostOrder::log() of each rank.
std::string find_inversion(const std::vector<int>& ranks, const std::vector<std::string>& logs);

}  // namespace tapestry::distributed
