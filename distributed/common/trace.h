#pragma once
// Writes the timelines of all ranks into one Chrome trace, which chrome://tracing and Perfetto open.
#include <string>

#include "tapestry/core/timeline.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Collective. Rank 0 writes the spans of all ranks into one file in Trace Event Format: each rank is a
/// process, each row of its timeline is a thread. Ranks on one host share a clock. Ranks on different hosts
/// are shifted by the difference of their clocks. Ranks that are threads of one process share the newest
/// timeline, so each of them shows the spans of all. Throws IoError on all ranks if the file cannot be
/// written.
///
///   const Timeline timeline;
///   train(ddp);
///   distributed::write_trace(*world, timeline, "trace.json");
void write_trace(ProcessGroup& group, const Timeline& timeline, const std::string& path);

}  // namespace tapestry::distributed
