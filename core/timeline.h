#pragma once
// Records what ran when and where. DDP, DataParallel, Pipeline and optimizers mark their work with spans. A
// Timeline keeps the spans while it exists:
//
//   const Timeline timeline;
//   pipeline.forward_backward(images, labels, loss);
//   for (const Span& span : timeline.spans()) ...  // {"cpu:1", Activity::forward, "forward 3", 0.012, 0.019}
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/clock.h"
#include "tapestry/core/device.h"

namespace tapestry {

enum class Activity : std::uint8_t { forward, backward, communication, optimizer, other, kernel };
/// "forward"
const char* activity_name(Activity activity);

/// What a span is about, as far as its author says.
struct SpanSubject {
  std::string module =
      {};                  ///< the path of the module that it computes, or whose tensors it moves: "blocks.3"
  int bucket = -1;         ///< the number of the bucket of gradients or parameters that it moves
  std::int64_t bytes = 0;  ///< of the whole tensors that it gathers, adds or copies
  std::string axis = {};   ///< the axis of a mesh along which it moves them, or the name of their group
};

/// An interval in which one row was busy with one activity. A row is a device or its communication.
struct Span {
  std::string row;
  Activity activity = Activity::other;
  std::string name;
  double begin = 0, end = 0;  ///< seconds since Timeline::began()
  int thread = 0;             ///< the number of the host thread, in the order of their first spans
  /// The bytes of the row's device that were allocated at the end and not at the begin. Counted by Timelines
  /// with Detail::kernels only.
  std::int64_t allocated = 0;
  SpanSubject subject = {};
};

/// What a Timeline keeps: the spans of forward, backward, communication and the optimizer, or also one span
/// for every kernel and for the backward of every recorded operation.
enum class Detail : std::uint8_t { phases, kernels };

/// Keeps the spans of all threads of the process while it exists. If there are several Timelines, only the
/// newest one keeps spans. Events in a GPU's stream measure the times of its spans, so only the first span on
/// each GPU synchronizes. Thread-safe.
class Timeline {
 public:
  explicit Timeline(Detail detail = Detail::phases);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// The spans that have ended, sorted by row and then by begin. Synchronizes with GPUs.
  std::vector<Span> spans() const;
  /// The time at which this object was constructed.
  std::chrono::steady_clock::time_point began() const;
  /// True if any Timeline exists. Check it before work that only spans need.
  static bool active();
  /// True if the newest Timeline keeps a span for every kernel.
  static bool keeps_kernels();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Adds a span of host time that has already ended, such as the work of a communication thread. It does
/// nothing if no Timeline exists.
void add_span(const std::string& row, Activity activity, const std::string& name,
              std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end,
              SpanSubject subject = {});

/// A span from its construction to the end of the scope. It does nothing if no Timeline exists. The span's
/// name is `name`, followed by `number` if that is not negative. `row` is the device's name unless given.
class SpanScope {
 public:
  SpanScope(Device device, Activity activity, const char* name, int number = -1, const char* row = nullptr);
  ~SpanScope();
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;
  /// Says what the span is about.
  void set_subject(SpanSubject subject);

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace tapestry
