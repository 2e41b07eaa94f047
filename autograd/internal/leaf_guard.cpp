#include "tapestry/autograd/internal/leaf_guard.h"

#include "tapestry/autograd/node.h"

namespace tapestry::autograd {
namespace {
thread_local constinit const LeafGuard* current_guard = nullptr;
}

LeafSet::LeafSet() : created_(next_sequence()) {}

void LeafSet::add(const Tensor& leaf) {
  if (const Record* const r = record_of(leaf); r && r->fn->is_leaf()) nodes_.insert(r->fn.get());
}

bool LeafSet::contains(const LeafNode& leaf) const {
  return leaf.created > created_ || nodes_.contains(static_cast<const Node*>(&leaf));
}

LeafGuard::LeafGuard(const LeafSet& set, Refuse function)
    : allowed(set), refuse(std::move(function)), outer_(current_guard) {
  current_guard = this;
}
LeafGuard::~LeafGuard() { current_guard = outer_; }
const LeafGuard* LeafGuard::current() { return current_guard; }

}  // namespace tapestry::autograd
