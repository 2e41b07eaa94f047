#include "tapestry/distributed/launch/internal/lines.h"

#include <algorithm>
#include <utility>

namespace tapestry::distributed::launch {

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t room = kMaxLine - partial_.size();
    const std::size_t end = bytes.substr(0, room + 1).find('\n');
    if (end != std::string_view::npos) {
      partial_.append(bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
      // If the last piece ended exactly at the end of the line, nothing is left to deliver.
      if (!std::exchange(cut_, false) || !partial_.empty()) sink(partial_);
      partial_.clear();
    } else {
      const std::size_t taken = std::min(room, bytes.size());
      partial_.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      // The piece is full and the next byte does not end the line.
      if (partial_.size() == kMaxLine && !bytes.empty()) {
        sink(partial_);
        partial_.clear();
        cut_ = true;
      }
    }
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!partial_.empty()) sink(partial_);
  partial_.clear();
  cut_ = false;
}

void Tail::add(std::string_view line) {
  std::string kept(line.substr(0, kWidth));
  if (line.size() > kWidth) kept += " ... (" + std::to_string(line.size()) + " bytes)";
  lines_.push_back(std::move(kept));
  if (lines_.size() > kLines) lines_.pop_front();
}

}  // namespace tapestry::distributed::launch
