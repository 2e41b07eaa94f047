#include "tapestry/nn/layout.h"

#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/part_memory.h"

namespace tapestry::nn {

Region Region::whole(const Shape& sizes) {
  return {Shape::filled(std::max(sizes.size(), 1), 0), sizes.empty() ? Shape{1} : sizes};
}

Region Region::part(int dim, int rank, int ranks, std::int64_t unit) const {
  check(unit > 0, "[Region] a part has units of ", unit, " elements; use 1 or more");
  const std::int64_t size = sizes[dim], each = (size / unit + ranks - 1) / ranks * unit,
                     begin = std::min(each * rank, size);
  Region part = *this;
  part.first[dim] += begin;
  part.sizes[dim] = std::min(each, size - begin);
  return part;
}

Tensor Region::of(const Tensor& tensor) const {
  Tensor view = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  for (int d = 0; d < sizes.size(); ++d)
    if (sizes[d] != view.size(d)) view = view.narrow(d, sizes[d] > 0 ? first[d] : 0, sizes[d]);
  return view;
}

std::string Region::str() const {
  std::string text;
  for (int d = 0; d < sizes.size(); ++d) text += concat({d ? ", " : "[", first[d], ":", first[d] + sizes[d]});
  return text + "]";
}

Shape Boxes::sizes() const {
  Shape sizes = all[0].sizes;
  for (std::size_t i = 1; i < all.size(); ++i) sizes[0] += all[i].sizes[0];
  return sizes;
}

Tensor Boxes::of(const Tensor& whole) const {
  if (is_one()) return all[0].of(whole);
  std::vector<Tensor> parts;
  for (const Region& box : all) parts.push_back(box.of(whole));
  return cat(parts);
}

Tensor Boxes::view(const Tensor& part, std::size_t i) const {
  if (is_one()) return part;
  std::int64_t row = 0;
  for (std::size_t before = 0; before < i; ++before) row += all[before].sizes[0];
  return part.narrow(0, row, all[i].sizes[0]);
}

void Boxes::copy(const Tensor& part, const Tensor& whole) const {
  for (std::size_t i = 0; i < all.size(); ++i) all[i].of(whole).copy_(view(part, i).reshape(all[i].sizes));
}

std::string Boxes::str() const {
  std::string text;
  for (const Region& box : all) text += (text.empty() ? "" : " and ") + box.str();
  return text;
}

bool Cut::is_repeated(int replica) const {
  if (dim == kHeld) return group->rank(replica) != holders[0];
  return dim == kCopied && group->rank(replica) != 0;
}

// What functions that fill a parameter refuse (core/internal/part_memory.h).
struct Layout::Mark {
  tapestry::detail::PartMemory memory;
};

Layout::Layout(Shape whole_sizes, std::vector<Cut> cuts, std::vector<Tensor> stored)
    : Layout(std::move(whole_sizes), std::move(cuts), SIZE_MAX) {
  stored_ = std::move(stored);
  for (std::size_t r = 0; r < stored_.size(); ++r) {
    const Boxes own = boxes(static_cast<int>(r));
    const Shape sizes = own.sizes();
    check(stored_[r].sizes() == (stored_[r].dim() == 0 && sizes.numel() == 1 ? Shape{} : sizes),
          "[Layout] a rank that has ", own.str(), " of a parameter of shape ", whole_sizes_,
          " cannot store a tensor of shape ", stored_[r].sizes());
  }
  if (ranks() > 1)
    mark_.reset(new Mark{{tapestry::detail::PartMemory::Of::parameter, [this] {
                            return concat({"a parameter of shape ", whole_sizes_});
                          }}});
  for (const Tensor& t : stored_) mark(t);
}

Layout::Layout(Shape whole_sizes, std::vector<Cut> cuts, std::size_t full_cuts)
    : whole_sizes_(std::move(whole_sizes)),
      cuts_(std::move(cuts)),
      full_cuts_(std::min(full_cuts, cuts_.size())) {
  bool divides_rows = false;
  for (const Cut& cut : cuts_) {
    check(cut.unit > 0, "[Layout] a cut has units of ", cut.unit, " elements; use 1 or more");
    check(cut.blocks > 0, "[Layout] a cut has ", cut.blocks, " blocks; use 1 or more");
    check(cut.blocks == 1 || (cut.dim == 0 && !divides_rows && !whole_sizes_.empty() &&
                              whole_sizes_[0] % (cut.blocks * cut.unit) == 0),
          "[Layout] a parameter of shape ", whole_sizes_, " cannot be divided into parts of ", cut.blocks,
          " blocks along dimension ", cut.dim, " in units of ", cut.unit,
          "; cut dimension 0 first, into blocks of whole units");
    divides_rows = divides_rows || cut.dim == 0;
    check(cut.group != nullptr, "[Layout] a cut has no group; pass the ranks that divide the parameter");
    check(cut.dim == Cut::kCopied || cut.dim == Cut::kHeld ||
              (cut.dim >= 0 && cut.dim < std::max(whole_sizes_.size(), 1)),
          "[Layout] a parameter of shape ", whole_sizes_, " has no dimension ", cut.dim, " to divide");
    check(cut.dim != Cut::kHeld || !cut.holders.empty(), "[Layout] nobody holds a parameter of shape ",
          whole_sizes_, "; name the ranks that have it");
  }
}

Layout::~Layout() {
  for (const Tensor& t : stored_)
    if (mark_ && t.storage()->source() == &mark_->memory) t.storage()->set_source(nullptr);
}

void Layout::mark(const Tensor& stored) {
  if (mark_ && !stored.storage()->source()) stored.storage()->set_source(&mark_->memory);
}

namespace {

// What a rank gets of boxes whose dimension a cut divides.
Boxes part_of(const Boxes& boxes, const Cut& cut, int rank) {
  const int ranks = cut.group->size();
  Boxes part;
  if (cut.dim == 0 && !boxes.is_one()) {  // some of the rows, wherever they are in the whole tensor
    const Region rows = Region::whole({boxes.sizes()[0]}).part(0, rank, ranks, cut.unit);
    const std::int64_t begin = rows.first[0], end = begin + rows.sizes[0];
    std::int64_t row = 0;
    for (Region box : boxes.all) {
      const std::int64_t next = row + box.sizes[0], from = std::max(begin, row),
                         to = std::max(std::min(end, next), from);
      box.first[0] += from - row;
      box.sizes[0] = to - from;
      row = next;
      part.all.push_back(box);
    }
  } else {
    for (const Region& box : boxes.all) {
      Region block = box;
      block.sizes[cut.dim] /= cut.blocks;
      for (int b = 0; b < cut.blocks; ++b, block.first[cut.dim] += block.sizes[cut.dim])
        part.all.push_back(block.part(cut.dim, rank, ranks, cut.unit));
    }
  }
  const Region first = part.all[0];
  std::erase_if(part.all, [](const Region& box) { return box.sizes[0] == 0; });
  if (part.all.empty()) part.all = {first};
  return part;
}

}  // namespace

Boxes Layout::boxes_after(std::size_t cuts, int replica) const {
  Boxes boxes{{Region::whole(whole_sizes_)}};
  for (std::size_t i = 0; i < cuts; ++i) {
    const Cut& cut = cuts_[i];
    const int rank = cut.group->rank(replica);
    if (cut.dim >= 0) boxes = part_of(boxes, cut, rank);
    if (cut.dim == Cut::kHeld && std::find(cut.holders.begin(), cut.holders.end(), rank) == cut.holders.end())
      for (Region& box : boxes.all) box.sizes[0] = 0;
  }
  return boxes;
}

Region Layout::region(int replica) const {
  const Boxes own = boxes(replica);
  check(own.is_one(), "[Layout] a rank has ", own.str(), " of a parameter of shape ", whole_sizes_,
        ", which are several boxes; use boxes()");
  return own.all[0];
}

int Layout::ranks() const {
  int ranks = 1;
  for (const Cut& cut : cuts_)
    if (cut.dim != Cut::kCopied) ranks *= cut.group->size();
  return ranks;
}

std::vector<const RankGroup*> Layout::divided() const {
  std::vector<const RankGroup*> groups;
  for (const Cut& cut : cuts_) groups.push_back(cut.group.get());
  return groups;
}

bool Layout::counts_here(int replica) const {
  return std::none_of(cuts_.begin(), cuts_.end(), [&](const Cut& cut) { return cut.is_repeated(replica); });
}

const Tensor& Layout::stored(int replica) const { return stored_.at(static_cast<std::size_t>(replica)); }

void Layout::set_stored(int replica, const Tensor& tensor) {
  Tensor& now = stored_.at(static_cast<std::size_t>(replica));
  check(tensor.sizes() == now.sizes(), "[Layout] the new tensor has shape ", tensor.sizes(),
        ", but the rank stores ", boxes(replica).str(), " of a parameter of shape ", whole_sizes_);
  if (mark_ && now.storage() != tensor.storage() && now.storage()->source() == &mark_->memory)
    now.storage()->set_source(nullptr);
  now = tensor;
  mark(now);
}

void Layout::keep_changes(int) {}

void Layout::gather_full(int replica, const Tensor& full) {
  const NoGradGuard no_grad;
  full.detach().copy_(stored(replica).detach().reshape(full.sizes()));
}

void Layout::gather(int replica, const Tensor& whole) {
  const NoGradGuard no_grad;
  std::vector<const RankGroup*> groups;
  bool adds = true;  // of the holders, the first one
  for (std::size_t i = 0; i < full_cuts_; ++i) {
    const Cut& cut = cuts_[i];
    if (cut.dim != Cut::kCopied && cut.group->size() > 1) groups.push_back(cut.group.get());
    adds = adds && !(cut.dim == Cut::kHeld && cut.is_repeated(replica));
  }
  if (groups.empty()) return gather_full(replica, whole);
  const Boxes own = full_boxes(replica);
  const Tensor full = empty(own.sizes(), {whole.dtype(), whole.device()}), to = whole.detach();
  gather_full(replica, full);
  to.fill_(-0.0);  // x + -0 is x, and so is -0 + -0
  if (adds) own.copy(full, to);
  for (const RankGroup* group : groups) group->sum(replica, to);
}

}  // namespace tapestry::nn
