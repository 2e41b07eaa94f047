#include "tapestry/distributed/comm/recorder.h"

#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::distributed {

const char* op_name(Op op) {
  switch (op) {
    case Op::all_reduce:
      return "all_reduce";
    case Op::broadcast:
      return "broadcast";
    case Op::reduce:
      return "reduce";
    case Op::all_gather:
      return "all_gather";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::gather:
      return "gather";
    case Op::scatter:
      return "scatter";
    case Op::all_to_all:
      return "all_to_all";
    case Op::barrier:
      return "barrier";
    case Op::send:
      return "send";
    case Op::recv:
      return "recv";
    case Op::new_group:
      return "new_group";
  }
  return "unknown";
}

std::string CollectiveRecord::brief() const {
  std::string text = concat({group == "world" ? std::string_view() : group, "#", sequence, " ", op_name(op)});
  if (!name.empty()) text += "(" + name + ")";
  return text;
}

std::string CollectiveRecord::str() const {
  std::string text = brief();
  if (op != Op::barrier && op != Op::new_group) text += concat({" ", dtype, " ", shape});
  if (dim > 0) text += concat({" along dimension ", dim});
  if (tensors != 1) text += concat({" in ", tensors, " tensors"});
  if (op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter)
    text += concat({" ", reduce_op_name(reduce)});
  if (peer >= 0) text += concat({op == Op::send ? " to " : op == Op::recv ? " from " : " root ", peer});
  if (!site.empty()) text += " at " + site;
  if (!after.empty()) text += ", after " + after;
  return text;
}

std::uint64_t Recorder::enqueued(CollectiveRecord record) {
  record.enqueued = Clock::now();
  const std::lock_guard lock(mutex_);
  const std::uint64_t ticket = next_++;
  if (ring_.size() < kKept) ring_.push_back(std::move(record));
  else ring_[ticket % kKept] = std::move(record);
  return ticket;
}

void Recorder::started(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket + kKept >= next_) ring_[ticket % kKept].started = Clock::now();
}

void Recorder::finished(std::uint64_t ticket, bool failed) {
  const std::lock_guard lock(mutex_);
  if (ticket + kKept < next_) return;
  CollectiveRecord& record = ring_[ticket % kKept];
  record.finished = Clock::now();
  record.failed = failed;
}

std::vector<CollectiveRecord> Recorder::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<CollectiveRecord> all;
  all.reserve(ring_.size());
  for (std::uint64_t i = next_ - ring_.size(); i < next_; ++i) all.push_back(ring_[i % kKept]);
  return all;
}

std::vector<CollectiveRecord> Recorder::running() const {
  const std::lock_guard lock(mutex_);
  std::vector<CollectiveRecord> running;
  for (std::uint64_t i = next_ - ring_.size(); i < next_; ++i) {
    const CollectiveRecord& record = ring_[i % kKept];
    if (record.started != Clock::time_point{} && record.finished == Clock::time_point{})
      running.push_back(record);
  }
  return running;
}

std::optional<CollectiveRecord> Recorder::last() const {
  const std::lock_guard lock(mutex_);
  const CollectiveRecord* last = nullptr;
  for (const CollectiveRecord& record : ring_)
    if (record.finished != Clock::time_point{} && (!last || record.finished > last->finished)) last = &record;
  return last ? std::optional(*last) : std::nullopt;
}

}  // namespace tapestry::distributed
