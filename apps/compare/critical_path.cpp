#include "tapestry/apps/compare/critical_path.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

namespace apps::compare {
namespace {

using tapestry::Activity;
using tapestry::Span;

// A time in which a span is the innermost one on its device.
struct Segment {
  std::size_t span, device;
  double begin, end;
};

class Chain {
 public:
  explicit Chain(const Result& r)
      : r_(r), slack_(1e-3 * r.step_s), own_(r.rows.size()), beside_(r.rows.size()) {
    found_.needs.resize(r.spans.size());
    for (std::size_t d = 0; d < r.rows.size(); ++d) {
      std::vector<std::size_t> mine;
      for (std::size_t i = 0; i < r.spans.size(); ++i) {
        if (r.spans[i].row == r.rows[d]) mine.push_back(i);
        else if (r.spans[i].row.starts_with(r.rows[d] + " ")) beside_[d].push_back(i);
      }
      divide(d, mine);
    }
  }

  Dependencies dependencies() {
    for (const auto& list : own_)
      for (const Segment& s : list) before(s, nullptr);
    std::optional<Segment> at;
    for (const auto& list : own_)
      if (!list.empty() && (!at || list.back().end > at->end)) at = list.back();
    while (at) {
      add(at->span);
      const double end = at->end;
      at = before(*at, this);
      if (at && at->end >= end) break;  // times of two devices that contradict each other
    }
    return std::move(found_);
  }

 private:
  const Span& span(std::size_t i) const { return r_.spans[i]; }
  void add(std::size_t i) {
    auto& path = found_.critical_path;
    if (std::find(path.begin(), path.end(), i) == path.end()) path.push_back(i);
  }
  void need(std::size_t i, std::size_t needed) {
    auto& list = found_.needs[i];
    if (i != needed && std::find(list.begin(), list.end(), needed) == list.end()) list.push_back(needed);
  }

  // Spans of a device are sorted by their begins, and may be nested.
  void divide(std::size_t device, const std::vector<std::size_t>& mine) {
    std::vector<double> times;
    for (const std::size_t i : mine)
      for (const double t : {span(i).begin, span(i).end}) times.push_back(t);
    std::sort(times.begin(), times.end());
    std::vector<std::size_t> open;
    std::size_t next = 0;
    for (std::size_t k = 1; k < times.size(); ++k) {
      while (next < mine.size() && span(mine[next]).begin <= times[k - 1]) open.push_back(mine[next++]);
      std::erase_if(open, [&](std::size_t i) { return span(i).end <= times[k - 1]; });
      if (open.empty() || times[k] <= times[k - 1]) continue;
      auto& list = own_[device];
      if (!list.empty() && list.back().span == open.back() && list.back().end == times[k - 1])
        list.back().end = times[k];
      else list.push_back({open.back(), device, times[k - 1], times[k]});
    }
  }

  // The last segment of a device that begins before `time`. A segment that ends later is cut at `time`.
  std::optional<Segment> until(std::size_t device, double time) const {
    const auto& list = own_[device];
    const auto after = std::lower_bound(list.begin(), list.end(), time,
                                        [](const Segment& s, double t) { return s.begin < t; });
    if (after == list.begin()) return std::nullopt;
    Segment s = *std::prev(after);
    s.end = std::min(s.end, time);
    return s;
  }

  // The collective at whose end a wait ends. Another axis's may end meanwhile.
  std::optional<std::size_t> collective(const Segment& wait) const {
    std::optional<std::size_t> last;
    const std::string& axis = span(wait.span).subject.axis;
    const auto is_of_axis = [&](const Span& s) {
      return axis.empty() || s.subject.axis.empty() || s.subject.axis == axis;
    };
    for (const std::size_t i : beside_[wait.device])
      if (is_of_axis(span(i)) && span(i).end > wait.begin && span(i).end <= wait.end + slack_ &&
          (!last || span(i).end > span(*last).end))
        last = i;
    return last;
  }

  // The device that joined a collective last, and its span.
  std::pair<std::size_t, std::size_t> last_to_join(std::size_t device, std::size_t collective) const {
    std::pair<std::size_t, std::size_t> last = {device, collective};
    for (std::size_t d = 0; d < beside_.size(); ++d)
      for (const std::size_t i : beside_[d]) {
        const bool same = span(i).name == span(collective).name && span(i).end > span(collective).begin &&
                          span(i).begin < span(collective).end;
        if (d != device && same && span(i).begin > span(last.second).begin) last = {d, i};
      }
    return last;
  }

  // What `s` had to wait for. With `path`, also adds collectives on the way to the critical path.
  std::optional<Segment> before(const Segment& s, Chain* path) {
    if (span(s.span).activity == Activity::communication)
      if (const auto ended = collective(s)) {
        const auto [device, joined] = last_to_join(s.device, *ended);
        const std::optional<Segment> start = until(device, span(joined).begin);
        need(s.span, *ended), need(*ended, joined);
        if (start) need(joined, start->span);
        if (path) path->add(*ended), path->add(joined);
        return start;
      }
    std::optional<Segment> last = until(s.device, s.begin);
    if (!last || last->end < s.begin - slack_)
      for (std::size_t d = 0; d < own_.size(); ++d) {
        // Copying to this device takes a while, in which the other one may have begun something else.
        const auto other = d == s.device ? std::nullopt : ended_before(d, s.begin + slack_);
        if (other && (!last || other->end > last->end)) last = other;
      }
    if (last) {
      need(s.span, last->span);
      last->end = std::min(last->end, s.begin);  // so that the path always goes back in time
    }
    return last;
  }
  std::optional<Segment> ended_before(std::size_t device, double time) const {
    std::optional<Segment> last = until(device, time);
    if (!last || last->end < time) return last;
    return until(device, last->begin);
  }

  const Result& r_;
  const double slack_;  // devices see the end of one event at times that differ by this much
  std::vector<std::vector<Segment>> own_;
  std::vector<std::vector<std::size_t>> beside_;  // per device: its communication
  Dependencies found_;
};

}  // namespace

Dependencies dependencies_of(const Result& result) { return Chain(result).dependencies(); }

Dependencies dependencies_of(const planner::Prediction& p) {
  Result result;
  result.step_s = p.step_s;
  for (int row = 0; row < p.rows; ++row) result.rows.push_back(std::to_string(row));
  std::vector<std::size_t> order(p.timeline.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Of spans that begin at the same time, the outer one is the first in the timeline.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return p.timeline[a].begin_s < p.timeline[b].begin_s;
  });
  for (const std::size_t i : order) {
    const planner::PredictedSpan& s = p.timeline[i];
    const std::string row = std::to_string(s.row);
    // Collectives of different rows are different ones, although their names may be equal.
    result.spans.push_back(
        {row + (s.beside ? " beside" : ""), s.activity, row + " " + s.name, s.begin_s, s.end_s});
    result.spans.back().subject = s.subject;
  }
  const Dependencies sorted = dependencies_of(result);
  Dependencies found;
  found.needs.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    for (const std::size_t needed : sorted.needs[i]) found.needs[order[i]].push_back(order[needed]);
  for (const std::size_t i : sorted.critical_path) found.critical_path.push_back(order[i]);
  return found;
}

}  // namespace apps::compare
