#pragma once
// What ran when, and where. DataParallel, Pipeline and DDP say what they do through SpanScope; while a
// Timeline lives, it is kept:
//
//   const Timeline timeline;
//   pipeline.forward_backward(images, labels, loss);
//   for (const Span& span : timeline.spans()) ...  // {"cpu:1", Activity::forward, "forward 3", 0.012, 0.019}
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/device.h"

namespace tapestry {

enum class Activity : std::uint8_t { forward, backward, communication, optimizer, other };
/// "forward"
const char* activity_name(Activity activity);

/// A time in which one row, such as a device or its communication, was busy with one thing.
struct Span {
  std::string row;
  Activity activity = Activity::other;
  std::string name;
  double begin = 0, end = 0;  ///< seconds since the Timeline began
};

/// Keeps the spans of all threads while it lives; of several the newest does. Spans on a GPU are times of the
/// GPU, by events in its stream: recording makes no host wait. Thread-safe.
class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Those that have ended, by row and then by begin. Waits for GPUs.
  std::vector<Span> spans() const;
  /// True if one is kept: what costs time to prepare can be left out otherwise.
  static bool active();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// A span that has ended, of host time: what a thread of a transport did, say. Costs next to nothing while no
/// Timeline lives.
void add_span(const std::string& row, Activity activity, const std::string& name,
              std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end);

/// A span from here to the end of the scope. Costs next to nothing while no Timeline lives. `row` is the
/// device's name unless given.
class SpanScope {
 public:
  SpanScope(Device device, Activity activity, const char* name, int number = -1, const char* row = nullptr);
  ~SpanScope();
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace tapestry
