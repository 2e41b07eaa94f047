#include "tapestry/distributed/ddp/trace.h"

#include <cinttypes>
#include <cstdio>

#include "tapestry/core/atomic_file.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {
namespace {

std::int64_t microseconds(Clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::microseconds>(t.time_since_epoch()).count();
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace

void Trace::span(Lane lane, std::string name, Clock::time_point begin, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({lane, std::move(name), begin, end});
}

std::string Trace::events(int rank) const {
  const std::lock_guard lock(mutex_);
  const std::string process = "\"pid\":" + std::to_string(rank);
  std::string out = "{\"ph\":\"M\",\"name\":\"process_name\"," + process + ",\"args\":{\"name\":\"rank " +
                    std::to_string(rank) + "\"}}";
  for (const Lane lane : {Lane::compute, Lane::communication})
    out += ",\n{\"ph\":\"M\",\"name\":\"thread_name\"," + process +
           ",\"tid\":" + std::to_string(static_cast<int>(lane)) + ",\"args\":{\"name\":\"" +
           (lane == Lane::compute ? "compute" : "communication") + "\"}}";
  for (const Span& s : spans_) {
    char times[96];
    std::snprintf(times, sizeof times, ",\"tid\":%d,\"ts\":%" PRId64 ",\"dur\":%" PRId64 "}",
                  static_cast<int>(s.lane), microseconds(s.begin),
                  microseconds(s.end) - microseconds(s.begin));
    out += ",\n{\"ph\":\"X\",\"name\":" + quoted(s.name) + "," + process + times;
  }
  return out;
}

void write_trace(ProcessGroup& group, const Trace& trace, const std::string& path) {
  std::string all = "[";
  const std::vector<std::string> ranks = all_gather_text(group, trace.events(group.rank()), "trace");
  for (std::size_t i = 0; i < ranks.size(); ++i) all += (i ? ",\n" : "\n") + ranks[i];
  on_rank_0(group, "write_trace", [&] { write_file_atomically(path, all + "\n]\n"); });
}

}  // namespace tapestry::distributed
