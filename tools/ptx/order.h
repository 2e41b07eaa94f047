#pragma once
// The order of work on streams, and which work has touched which bytes. Two pieces of work that touch the
// same bytes, one of them writing, must be ordered by streams, events or the host; otherwise their result
// depends on the GPU's timing.
//
// How a runtime uses it:
//   StreamOrder order;                                  // one for all devices of a process
//   const StreamOrder::Stream s = order.add_stream("stream 1");
//   const StreamOrder::Work w = order.enqueue(s, "launch of 'saxpy'");   // when the program enqueues it
//   machine.run_as(&order, w); machine.launch(...);     // when it runs, which may be much later
// A launch reports the bytes that it touches itself. For copies and memsets, the runtime calls access() for
// each range. Events and synchronisation carry points of time:
//   const StreamOrder::Point p = order.record(s);       // cudaEventRecord
//   order.wait(other, p);                               // cudaStreamWaitEvent
//   order.wait(StreamOrder::kHost, p);                  // cudaEventSynchronize
//   order.wait(StreamOrder::kHost, order.record(s));    // cudaStreamSynchronize
// Work that enters a stream comes after all that the host did before. The legacy default stream orders itself
// with the blocking streams; the runtime says so with record() and wait().
//
// The method is that of vector clocks: each work has a number on its stream and knows how many works of each
// other stream ended before it.
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapestry::ptx {

/// Two pieces of work touch the same bytes without an order, or memory is used after its free. The message
/// names both, the streams and the bytes.
class OrderError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class StreamOrder {
 public:
  using Stream = std::uint32_t;
  using Work = std::uint32_t;
  /// A point of time on a stream: how many works of each stream ended before it.
  using Point = std::vector<std::uint64_t>;
  static constexpr Stream kHost = 0;
  static constexpr Work kNone = 0;

  StreamOrder();
  /// `name` is for messages: "stream 3 of device 0".
  Stream add_stream(std::string name);
  /// Adds a launch, a copy, a memset, or an access of the host itself (stream kHost). `what` is for messages.
  Work enqueue(Stream stream, std::string what);
  Point record(Stream stream) const;
  void wait(Stream stream, const Point& point);
  /// Whether one of the two ends before the other begins.
  bool ordered(Work a, Work b) const;

  /// The work reads or writes the bytes. `where` says in a message which instruction did it; it is only
  /// called for an error. Throws an OrderError.
  void access(Work work, std::uint64_t address, std::uint64_t bytes, bool write,
              const std::function<std::string()>& where = {});
  /// The work gives the memory back (cudaFreeAsync, or cudaFree). An access that is not ordered with it is an
  /// error, and so is every access that comes later, until allocate().
  void free(Work work, std::uint64_t address, std::uint64_t bytes);
  /// The work takes memory (cudaMallocAsync). It must come after the free of the same bytes.
  void allocate(Work work, std::uint64_t address, std::uint64_t bytes);
  /// The bytes have no past: new memory, or memory that the process has given back after it waited for the
  /// device.
  void forget(std::uint64_t address, std::uint64_t bytes);

  /// "launch of 'k' (work 7, on stream 2)"
  std::string name(Work work) const;
  /// The number of ranges that are remembered.
  std::size_t ranges() const { return ranges_.size(); }

 private:
  struct Item {
    Stream stream;
    std::uint64_t number;  // on its stream, from 1
    Point before;          // the works that ended before it began
    std::string what;
  };
  struct Range {
    std::uint64_t end = 0;
    Work writer = kNone, freed = kNone;
    std::vector<Work> readers;  // since the last write; the last one of each stream
    bool same(const Range& o) const { return writer == o.writer && freed == o.freed && readers == o.readers; }
  };
  using Ranges = std::map<std::uint64_t, Range>;  // by their beginning; they do not overlap

  template <class F>
  void each(std::uint64_t address, std::uint64_t bytes, F f);
  Ranges::iterator split(std::uint64_t address);
  [[noreturn]] void fail(Work work, const char* verb, Work earlier, const char* did, std::uint64_t begin,
                         std::uint64_t end, const std::function<std::string()>& where,
                         const std::string& reason) const;

  std::vector<std::string> names_;  // of streams
  std::vector<Point> now_;          // of streams
  std::vector<Item> works_;
  Ranges ranges_;
};

}  // namespace tapestry::ptx
