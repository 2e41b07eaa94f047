#pragma once
// Chrome traces of a Timeline, which chrome://tracing and Perfetto open. distributed/common/trace.h writes
// the timelines of several ranks into one file.
#include <string>

#include "tapestry/core/timeline.h"

namespace tapestry {

/// The spans as events in Trace Event Format: a JSON array without its brackets. Each row of the timeline is
/// a thread of the process.
std::string trace_events(const Timeline& timeline, int process, const std::string& process_name);

/// Writes the spans of this process to a file. Throws IoError.
void write_trace(const Timeline& timeline, const std::string& path);

}  // namespace tapestry
