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

Region Region::part(int dim, int rank, int ranks) const {
  const std::int64_t size = sizes[dim], each = (size + ranks - 1) / ranks,
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
    const Region own = region(static_cast<int>(r));
    check(stored_[r].sizes() == (stored_[r].dim() == 0 && own.sizes.numel() == 1 ? Shape{} : own.sizes),
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
  for (const Cut& cut : cuts_) {
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

Region Layout::region_after(std::size_t cuts, int replica) const {
  Region region = Region::whole(whole_sizes_);
  for (std::size_t i = 0; i < cuts; ++i) {
    const auto& [group, dim, holders] = cuts_[i];
    const int rank = group->rank(replica);
    if (dim >= 0) region = region.part(dim, rank, group->size());
    if (dim == Cut::kHeld && std::find(holders.begin(), holders.end(), rank) == holders.end())
      region.sizes[0] = 0;
  }
  return region;
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
        ", but the rank stores ", region(replica).str(), " of a parameter of shape ", whole_sizes_);
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
  const Region box = full_region(replica);
  const Tensor full = empty(box.sizes, {whole.dtype(), whole.device()}), to = whole.detach();
  gather_full(replica, full);
  to.fill_(-0.0);  // x + -0 is x, and so is -0 + -0
  if (adds) box.of(to).copy_(full);
  for (const RankGroup* group : groups) group->sum(replica, to);
}

}  // namespace tapestry::nn
