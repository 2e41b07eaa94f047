#include "tapestry/data/tokenizer/internal/bpe.h"

#include <bit>
#include <functional>
#include <queue>
#include <utility>

namespace tapestry::data {

MergeTable::MergeTable(std::size_t merges)
    : mask_(std::bit_ceil(2 * merges + 2) - 1), pairs_(mask_ + 1, kEmpty), merges_(mask_ + 1) {}

bool MergeTable::add(TokenId left, TokenId right, Merge merge) {
  std::size_t at = place(left, right);
  for (; pairs_[at] != kEmpty; at = (at + 1) & mask_)
    if (pairs_[at] == pair(left, right)) return false;
  pairs_[at] = pair(left, right);
  merges_[at] = merge;
  return true;
}

void BytePairEncoder::look_up(Symbol& left, const Symbol* right) {
  const MergeTable::Merge* const merge = right ? table_.find(left.token, right->token) : nullptr;
  left.rank = merge ? merge->rank : kNone;
  if (merge) left.merged = merge->result;
}

// Searches all symbols for the lowest rank, and closes the gap of each merge.
void BytePairEncoder::merge_short() {
  while (symbols_.size() > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < symbols_.size(); ++i)
      if (symbols_[i].rank < symbols_[best].rank) best = i;
    if (symbols_[best].rank == kNone) return;
    symbols_[best].token = symbols_[best].merged;
    symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    look_up(symbols_[best], best + 1 < symbols_.size() ? &symbols_[best + 1] : nullptr);
    if (best > 0) look_up(symbols_[best - 1], &symbols_[best]);
  }
}

// Keeps the pairs in a heap and the symbols in a list. An entry of the heap is stale if its symbol is gone or
// has another rank by now.
void BytePairEncoder::merge_long() {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;  // rank and position: the leftmost of equals is first
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> heap;
  const auto size = static_cast<std::uint32_t>(symbols_.size());
  const auto push = [&](std::uint32_t i) {
    if (symbols_[i].rank != kNone) heap.push({symbols_[i].rank, i});
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    symbols_[i].previous = i == 0 ? kNone : i - 1;
    symbols_[i].next = i + 1 == size ? kNone : i + 1;
    push(i);
  }
  while (!heap.empty()) {
    const auto [rank, i] = heap.top();
    heap.pop();
    Symbol& left = symbols_[i];
    if (left.rank != rank) continue;
    Symbol& right = symbols_[left.next];
    left.token = left.merged;
    left.next = right.next;
    right.rank = kNone;
    if (left.next != kNone) symbols_[left.next].previous = i;
    look_up(left, left.next != kNone ? &symbols_[left.next] : nullptr);
    push(i);
    if (left.previous == kNone) continue;
    look_up(symbols_[left.previous], &left);
    push(left.previous);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != kNone; i = symbols_[i].next) symbols_[kept++].token = symbols_[i].token;
  symbols_.resize(kept);
}

template <class Id>
void BytePairEncoder::encode(std::string_view word, std::vector<Id>& ids) {
  symbols_.clear();
  for (const char byte : word) {
    const TokenId token = byte_tokens_[static_cast<unsigned char>(byte)];
    if (token == kNoToken) continue;
    symbols_.emplace_back().token = token;
  }
  for (std::size_t i = 0; i < symbols_.size(); ++i)
    look_up(symbols_[i], i + 1 < symbols_.size() ? &symbols_[i + 1] : nullptr);
  if (symbols_.size() <= kShort) merge_short();
  else merge_long();
  for (const Symbol& symbol : symbols_) ids.push_back(static_cast<Id>(symbol.token));
}

template void BytePairEncoder::encode(std::string_view, std::vector<std::int64_t>&);
template void BytePairEncoder::encode(std::string_view, std::vector<TokenId>&);

}  // namespace tapestry::data
