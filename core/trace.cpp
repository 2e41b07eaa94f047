#include "tapestry/core/trace.h"

#include <cstdio>
#include <vector>

#include "tapestry/core/atomic_file.h"

namespace tapestry {
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

}  // namespace

std::string trace_events(const Timeline& timeline, int process_id, const std::string& process_name) {
  const std::string process = "\"pid\":" + std::to_string(process_id);
  const auto microseconds = [origin = timeline.began().time_since_epoch()](double seconds) {
    return (std::chrono::duration<double>(origin).count() + seconds) * 1e6;
  };
  std::string out = metadata("process_name", process, process_name);
  std::vector<std::string> rows;
  for (const Span& s : timeline.spans()) {  // sorted by row
    const bool is_new_row = rows.empty() || rows.back() != s.row;
    if (is_new_row) rows.push_back(s.row);
    const std::string ids = process + ",\"tid\":" + std::to_string(rows.size() - 1);
    if (is_new_row) out += ",\n" + metadata("thread_name", ids, s.row);
    char times[96];
    const double begin = microseconds(s.begin);
    std::snprintf(times, sizeof times, ",\"ts\":%.3f,\"dur\":%.3f}", begin, microseconds(s.end) - begin);
    out += ",\n{\"ph\":\"X\",\"name\":" + quoted(s.name) + ",\"cat\":\"" + activity_name(s.activity) + "\"," +
           ids + times;
  }
  return out;
}

void write_trace(const Timeline& timeline, const std::string& path) {
  write_file_atomically(path, "[\n" + trace_events(timeline, 0, "process") + "\n]\n");
}

}  // namespace tapestry
