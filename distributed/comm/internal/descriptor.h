#pragma once
// Descriptions of calls that ranks compare before they communicate.
#include <string>
#include <vector>

#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

/// One rank's call in 64 bytes. The ranks compare their descriptors before each collective, see
/// GroupOptions::check.
struct Descriptor {
  std::uint32_t magic = 0x54504744;  // "TPGD"
  std::uint8_t op = 0, reduce = 0, dtype = 0, ndim = 0;
  std::uint64_t sequence = 0, group = 0;
  std::int64_t peer = -1;
  std::uint64_t shape = 0, name = 0;
  std::uint64_t list = 0;   // CollectiveRecord::parts if has_parts()
  std::uint64_t order = 0;  // CollectiveRecord::order, which differs from rank to rank

  explicit Descriptor(const CollectiveRecord& record);
  Descriptor() = default;
  /// True for an all_to_all of lists, in which each rank has other tensors.
  bool has_parts() const { return ndim == kParts; }
  /// True if all members are equal but those that differ from rank to rank.
  bool is_same_call(Descriptor other) const {
    other.order = order;
    if (has_parts()) other.list = list;
    return other == *this;
  }
  friend bool operator==(const Descriptor&, const Descriptor&) = default;

 private:
  static constexpr std::uint8_t kParts = 255;
};
static_assert(sizeof(Descriptor) == 64);

/// The header that precedes a message between two ranks.
struct MessageDescriptor {
  std::uint32_t magic = 0x5450474d;  // "TPGM"
  std::uint8_t dtype = 0, ndim = 0;
  std::uint16_t name_length = 0;
  std::uint64_t sequence = 0;
  std::int64_t sizes[kMaxDims] = {};
  char name[48] = {};

  explicit MessageDescriptor(const CollectiveRecord& record);
  MessageDescriptor() = default;
  /// True if the number, dtype and shape are equal; the name may differ.
  bool fits(const MessageDescriptor& other) const;
  /// "message 1, float32 [2, 3] (name)". Safe for arbitrary bytes from a peer.
  std::string str() const;
};
static_assert(sizeof(MessageDescriptor) == 128);

/// A call for mismatch_text(): CollectiveRecord::str(), and the lines of CollectiveRecord::list after it. Has
/// at most `most` bytes.
std::string call_text(const CollectiveRecord& record, std::size_t most);
/// The error text for ranks that are in different calls. `calls` holds the call_text() of each rank, and
/// `ranks` holds the ranks' numbers in the world. Of lists of tensors, the text shows the first tensor that
/// differs.
std::string mismatch_text(const std::string& op, const std::string& group, const std::vector<int>& ranks,
                          const std::vector<std::string>& calls);
/// Returns the ranks sorted and abbreviated, such as "rank 3" or "ranks 0-2, 5".
std::string rank_list(std::vector<int> ranks);
/// Returns the numbers in the given order as text, such as "2, 0, 1".
std::string join(const std::vector<int>& numbers);
/// A duration as "1.5 s".
std::string seconds(Clock::duration d);

}  // namespace tapestry::distributed
