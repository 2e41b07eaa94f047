#pragma once
// Messages between two ranks of a group. Each peer, direction and tag is a channel with its own thread, so
// that no message waits for those of another channel.
#include <cstdint>
#include <memory>
#include <vector>

#include "tapestry/distributed/comm/internal/collective.h"
#include "tapestry/distributed/comm/internal/group_core.h"

namespace tapestry::distributed {

/// One end of a message: `call` is a send or a recv.
struct PostedMessage {
  Collective call;
  std::uint32_t tag = 0;
};

/// Queues the messages, whose arguments have been checked, and returns what is done when they are: one state
/// for each, or over NCCL one for all. records[i] describes messages[i], and gets its number. The caller
/// holds member->order.
WorkStates post_messages(const std::shared_ptr<GroupCore>& core, const std::vector<PostedMessage>& messages,
                         std::vector<CollectiveRecord> records, const WorkStates& after);

}  // namespace tapestry::distributed
