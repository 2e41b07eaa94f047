#include "tapestry/distributed/common/trace.h"

#include <string>
#include <vector>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/trace.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {
void write_trace(ProcessGroup& group, const Timeline& timeline, const std::string& path) {
  std::string all = "[";
  const std::vector<std::string> ranks = all_gather_text(
      group, trace_events(timeline, group.rank(), "rank " + std::to_string(group.rank())), "trace");
  for (std::size_t i = 0; i < ranks.size(); ++i) all += (i ? ",\n" : "\n") + ranks[i];
  on_rank_0(group, "write_trace", [&] { write_file_atomically(path, all + "\n]\n"); });
}

}  // namespace tapestry::distributed
