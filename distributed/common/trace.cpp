#include "tapestry/distributed/common/trace.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "tapestry/core/atomic_file.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

std::string metadata(const char* what, const std::string& ids, const std::string& name) {
  return std::string("{\"ph\":\"M\",\"name\":\"") + what + "\"," + ids +
         ",\"args\":{\"name\":" + quoted(name) + "}}";
}

// The events of one rank, as a JSON array without the brackets.
std::string trace_events(const Timeline& timeline, int rank) {
  const std::string process = "\"pid\":" + std::to_string(rank);
  const auto microseconds = [origin = timeline.began().time_since_epoch()](double seconds) {
    return std::llround((std::chrono::duration<double>(origin).count() + seconds) * 1e6);
  };
  std::string out = metadata("process_name", process, "rank " + std::to_string(rank));
  std::vector<std::string> rows;
  for (const Span& s : timeline.spans()) {  // sorted by row
    const bool is_new_row = rows.empty() || rows.back() != s.row;
    if (is_new_row) rows.push_back(s.row);
    const std::string ids = process + ",\"tid\":" + std::to_string(rows.size() - 1);
    if (is_new_row) out += ",\n" + metadata("thread_name", ids, s.row);
    char times[96];
    const long long begin = microseconds(s.begin);
    std::snprintf(times, sizeof times, ",\"ts\":%lld,\"dur\":%lld}", begin, microseconds(s.end) - begin);
    out += ",\n{\"ph\":\"X\",\"name\":" + quoted(s.name) + ",\"cat\":\"" + activity_name(s.activity) + "\"," +
           ids + times;
  }
  return out;
}

}  // namespace

void write_trace(ProcessGroup& group, const Timeline& timeline, const std::string& path) {
  std::string all = "[";
  const std::vector<std::string> ranks =
      all_gather_text(group, trace_events(timeline, group.rank()), "trace");
  for (std::size_t i = 0; i < ranks.size(); ++i) all += (i ? ",\n" : "\n") + ranks[i];
  on_rank_0(group, "write_trace", [&] { write_file_atomically(path, all + "\n]\n"); });
}

}  // namespace tapestry::distributed
