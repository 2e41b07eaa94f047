#include "tapestry/distributed/checkpoint/internal/boxes.h"

#include <algorithm>
#include <span>

#include "tapestry/core/error.h"

namespace tapestry::distributed::checkpoint {
namespace {

constexpr int kMaxCuts = 16;  // that nest; bounds the depth for hostile files

using Boxes = std::span<const nn::Region*>;

nn::Region between(nn::Region box, int dim, std::int64_t begin, std::int64_t end) {
  box.first[dim] = begin;
  box.sizes[dim] = end - begin;
  return box;
}

std::string fault_of(const nn::Region& whole, const Boxes& boxes, int depth) {
  if (boxes.size() == 1)
    return *boxes[0] == whole ? ""
                              : concat({"a piece has ", boxes[0]->str(), " where ", whole.str(), " is left"});
  for (int d = 0; depth > 0 && d < whole.sizes.size(); ++d) {
    std::sort(boxes.begin(), boxes.end(),
              [d](const nn::Region* a, const nn::Region* b) { return a->first[d] < b->first[d]; });
    std::int64_t next = whole.first[d];
    for (std::size_t begin = 0, end = 0; begin < boxes.size(); begin = end) {
      const std::int64_t from = boxes[begin]->first[d];
      std::int64_t to = from;
      for (end = begin; end < boxes.size() && (end == begin || boxes[end]->first[d] < to); ++end)
        to = std::max(to, boxes[end]->first[d] + boxes[end]->sizes[d]);
      if (begin == 0 && end == boxes.size()) break;  // this dimension separates nothing
      if (from > next) return concat({"no piece has ", between(whole, d, next, from).str()});
      if (std::string fault =
              fault_of(between(whole, d, from, to), boxes.subspan(begin, end - begin), depth - 1);
          !fault.empty())
        return fault;
      next = to;
      if (end < boxes.size()) continue;
      const std::int64_t last = whole.first[d] + whole.sizes[d];
      return next < last ? concat({"no piece has ", between(whole, d, next, last).str()}) : "";
    }
  }
  return concat(
      {"the pieces ", boxes[0]->str(), " and ", boxes[1]->str(), " overlap, or are no result of cuts"});
}

}  // namespace

nn::Region common(const nn::Region& a, const nn::Region& b) {
  nn::Region both = a;
  for (int d = 0; d < a.sizes.size(); ++d) {
    both.first[d] = std::max(a.first[d], b.first[d]);
    const std::int64_t end = (std::min)(a.first[d] + a.sizes[d], b.first[d] + b.sizes[d]);
    both.sizes[d] = std::max<std::int64_t>(end - both.first[d], 0);
  }
  return both;
}

nn::Region rows_of(const nn::Region& box, std::int64_t first, std::int64_t count) {
  return between(box, 0, box.first[0] + first, box.first[0] + first + count);
}

nn::Region inside(const nn::Region& box, const nn::Region& outer) {
  nn::Region moved = box;
  for (int d = 0; d < box.first.size(); ++d) moved.first[d] -= outer.first[d];
  return moved;
}

std::string why_not_divided(const nn::Region& whole, const std::vector<nn::Region>& boxes) {
  if (boxes.empty()) return whole.sizes.numel() == 0 ? "" : concat({"no piece has ", whole.str()});
  std::vector<const nn::Region*> all;
  for (const nn::Region& box : boxes) {
    for (int d = 0; d < whole.sizes.size(); ++d)
      if (box.sizes[d] > whole.sizes[d] || box.first[d] > whole.sizes[d] - box.sizes[d])
        return concat({"a piece lies outside of ", whole.str()});
    all.push_back(&box);
  }
  return fault_of(whole, all, kMaxCuts);
}

}  // namespace tapestry::distributed::checkpoint
