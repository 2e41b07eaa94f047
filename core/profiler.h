#pragma once
// Measures which operations take the time and the memory of a program:
//
//   profiler::Profile profile;
//   train_one_step();
//   std::cout << profile.table();
//   profile.write_trace("trace.json");
//
// A Profile is a Timeline with a span for every kernel, for the backward of every recorded operation, and for
// every profiler::Scope. While it exists, each of these spans reads the clock twice and takes a lock. Without
// one, a kernel costs one load more.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/timeline.h"

namespace tapestry::profiler {

enum class SortBy : std::uint8_t { self_time, total_time, calls, memory, name };

/// All spans of one name, activity and row. Times are in seconds.
struct Operation {
  std::string name;
  Activity activity = Activity::other;  ///< `kernel`, `backward` of an operation, `other` for a Scope, ...
  std::string row;                      ///< the device
  std::int64_t calls = 0;
  double self_time = 0;   ///< without the spans inside of these spans
  double total_time = 0;  ///< a span inside of one with the same name counts twice
  /// The change of the bytes in live tensors of the device between begin and end, also by other threads.
  std::int64_t memory = 0;
};

/// Records from its construction on, in all threads. If there are several Profiles or Timelines, only the
/// newest one records.
class Profile {
 public:
  Profile() : timeline_(Detail::kernels) {}

  /// What has ended so far, in descending order, or by name. Synchronizes with GPUs.
  std::vector<Operation> operations(SortBy order = SortBy::self_time) const;
  /// The operations as text with one line each, at most `rows` of them, and a line with the sums of all.
  std::string table(SortBy order = SortBy::self_time, int rows = 30) const;
  /// Writes all spans as a Chrome trace. Throws IoError.
  void write_trace(const std::string& path) const;
  const Timeline& timeline() const { return timeline_; }

 private:
  Timeline timeline_;
};

/// A part of a program, which gets a line of its own: `const profiler::Scope scope("augment");`. It does
/// nothing if no Timeline exists.
class Scope {
 public:
  explicit Scope(const char* name, Device device = kCPU) : span_(device, Activity::other, name) {}

 private:
  SpanScope span_;
};

}  // namespace tapestry::profiler
