#include "tapestry/tools/ptx/order.h"

#include <algorithm>

#include "tapestry/tools/ptx/memory.h"

namespace tapestry::ptx {
namespace {

void join(StreamOrder::Point& to, const StreamOrder::Point& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
bool knows(const StreamOrder::Point& point, StreamOrder::Stream stream, std::uint64_t number) {
  return stream < point.size() && point[stream] >= number;
}

}  // namespace

StreamOrder::StreamOrder() : names_{"the host"}, now_(1), works_(1) {}

StreamOrder::Stream StreamOrder::add_stream(std::string name) {
  names_.push_back(std::move(name));
  now_.emplace_back();
  return static_cast<Stream>(names_.size() - 1);
}

StreamOrder::Work StreamOrder::enqueue(Stream stream, std::string what) {
  Point& now = now_[stream];
  join(now, now_[kHost]);
  if (now.size() <= stream) now.resize(stream + 1);
  works_.push_back({stream, now[stream] + 1, now, std::move(what)});
  ++now[stream];
  return static_cast<Work>(works_.size() - 1);
}

StreamOrder::Point StreamOrder::record(Stream stream) const {
  // What the host did before is in the point, too: it holds work that enters the stream.
  Point point = now_[stream];
  join(point, now_[kHost]);
  return point;
}

void StreamOrder::wait(Stream stream, const Point& point) { join(now_[stream], point); }

bool StreamOrder::ordered(Work a, Work b) const {
  const Item &first = works_[a], &second = works_[b];
  return first.stream == second.stream || knows(second.before, first.stream, first.number) ||
         knows(first.before, second.stream, second.number);
}

StreamOrder::Ranges::iterator StreamOrder::split(std::uint64_t address) {
  const auto next = ranges_.lower_bound(address);
  if (next != ranges_.end() && next->first == address) return next;
  if (next == ranges_.begin()) return next;
  const auto before = std::prev(next);
  if (before->second.end <= address) return next;
  Range tail = before->second;
  before->second.end = address;
  return ranges_.emplace_hint(next, address, std::move(tail));
}

// Calls f(begin, range) for the parts of the bytes, which are added where there are none, and joins equal
// neighbours.
template <class F>
void StreamOrder::each(std::uint64_t address, std::uint64_t bytes, F f) {
  const std::uint64_t end = address + bytes;
  auto at = split(address);
  split(end);
  for (std::uint64_t begin = address; begin < end;) {
    if (at == ranges_.end() || at->first > begin) {
      Range fresh;
      fresh.end = at == ranges_.end() ? end : std::min(end, at->first);
      at = ranges_.emplace_hint(at, begin, std::move(fresh));
    }
    f(begin, at->second);
    begin = at->second.end;
    ++at;
  }
  at = ranges_.lower_bound(address);
  if (at != ranges_.begin()) --at;
  while (at != ranges_.end() && at->first < end) {
    const auto next = std::next(at);
    if (next == ranges_.end()) break;
    if (at->second.end == next->first && at->second.same(next->second)) {
      at->second.end = next->second.end;
      ranges_.erase(next);
    } else {
      at = next;
    }
  }
}

void StreamOrder::access(Work work, std::uint64_t address, std::uint64_t bytes, bool write,
                         const std::function<std::string()>& where) {
  if (work == kNone || bytes == 0) return;
  const char* const verb = write ? "writes" : "reads";
  each(address, bytes, [&](std::uint64_t begin, Range& r) {
    if (r.freed != kNone)
      fail(work, verb, r.freed, "freed", begin, r.end, where,
           ordered(work, r.freed) ? "the memory is used after its free" : "nothing orders the two");
    if (r.writer != kNone && !ordered(work, r.writer))
      fail(work, verb, r.writer, "writes", begin, r.end, where, "nothing orders the two");
    if (!write) {
      for (Work& reader : r.readers)
        if (works_[reader].stream == works_[work].stream) {
          reader = std::max(reader, work);
          return;
        }
      r.readers.push_back(work);
      return;
    }
    for (const Work reader : r.readers)
      if (!ordered(work, reader))
        fail(work, verb, reader, "reads", begin, r.end, where, "nothing orders the two");
    r.readers.clear();
    r.writer = work;
  });
}

void StreamOrder::free(Work work, std::uint64_t address, std::uint64_t bytes) {
  if (work == kNone || bytes == 0) return;
  each(address, bytes, [&](std::uint64_t begin, Range& r) {
    if (r.freed != kNone)
      fail(work, "frees", r.freed, "freed", begin, r.end, {}, "the memory is freed twice");
    for (const Work other : r.readers)
      if (!ordered(work, other))
        fail(work, "frees", other, "reads", begin, r.end, {}, "nothing orders the two");
    if (r.writer != kNone && !ordered(work, r.writer))
      fail(work, "frees", r.writer, "writes", begin, r.end, {}, "nothing orders the two");
    r.readers.clear();
    r.writer = kNone;
    r.freed = work;
  });
}

void StreamOrder::allocate(Work work, std::uint64_t address, std::uint64_t bytes) {
  if (work == kNone || bytes == 0) return;
  each(address, bytes, [&](std::uint64_t begin, Range& r) {
    if (r.freed != kNone && !ordered(work, r.freed))
      fail(work, "allocates", r.freed, "freed", begin, r.end, {}, "nothing orders the two");
    r.freed = kNone;
    r.readers.clear();
    r.writer = work;  // what uses the memory must come after its allocation
  });
}

void StreamOrder::forget(std::uint64_t address, std::uint64_t bytes) {
  if (bytes == 0) return;
  split(address);
  split(address + bytes);
  ranges_.erase(ranges_.lower_bound(address), ranges_.lower_bound(address + bytes));
}

std::string StreamOrder::name(Work work) const {
  const Item& i = works_[work];
  return i.what + " (work " + std::to_string(i.number) + " of " + names_[i.stream] + ")";
}

void StreamOrder::fail(Work work, const char* verb, Work earlier, const char* did, std::uint64_t begin,
                       std::uint64_t end, const std::function<std::string()>& where,
                       const std::string& reason) const {
  std::string text = "[ptx] " + name(work) + " " + verb + " " + std::to_string(end - begin) + " bytes at " +
                     hex(begin) + ", which " + name(earlier) + " " + did + ": " + reason;
  if (reason == "nothing orders the two")
    text +=
        ". Put them on one stream, or let the later one wait for an event that is recorded after the other";
  if (where) text += "; " + where();
  throw OrderError(text);
}

}  // namespace tapestry::ptx
