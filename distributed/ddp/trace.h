#pragma once
// A Chrome trace (chrome://tracing, Perfetto): for each rank a lane of compute and one of communication.
#include <mutex>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

enum class Lane : std::uint8_t { compute, communication };

/// Collects spans of one rank. Thread-safe.
class Trace {
 public:
  void span(Lane lane, std::string name, Clock::time_point begin, Clock::time_point end);
  /// Its own events, in Trace Event Format with the rank as the process; a JSON array without the brackets.
  std::string events(int rank) const;

 private:
  struct Span {
    Lane lane;
    std::string name;
    Clock::time_point begin, end;
  };
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

/// A collective call: rank 0 writes the traces of all ranks into one file. Ranks of one host share a clock;
/// those of another are off by what their clocks are. Throws IoError on all ranks if the file cannot be
/// written.
void write_trace(ProcessGroup& group, const Trace& trace, const std::string& path);

}  // namespace tapestry::distributed
