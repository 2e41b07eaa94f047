#pragma once
// The merges of byte-pair encoding.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tapestry::data {

using TokenId = std::uint32_t;
inline constexpr TokenId kNoToken = UINT32_MAX;

/// A hash table from pairs of tokens to the rank and the result of their merge.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId result;
  };
  explicit MergeTable(std::size_t merges);
  /// The first merge of a pair counts. Returns false if the pair is there already.
  bool add(TokenId left, TokenId right, Merge merge);
  /// Null if the pair does not merge.
  const Merge* find(TokenId left, TokenId right) const {
    for (std::size_t at = place(left, right);; at = (at + 1) & mask_) {
      if (pairs_[at] == pair(left, right)) return &merges_[at];
      if (pairs_[at] == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t pair(TokenId left, TokenId right) { return std::uint64_t{left} << 32 | right; }
  std::size_t place(TokenId left, TokenId right) const {
    return static_cast<std::size_t>(pair(left, right) * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }

  std::size_t mask_;
  std::vector<std::uint64_t> pairs_;
  std::vector<Merge> merges_;
};

/// Encodes words. Each byte begins as a token of its own; a byte that has none (kNoToken) is left out. The
/// pair with the lowest rank, the leftmost among equals, is merged until no pair merges.
class BytePairEncoder {
 public:
  BytePairEncoder(const MergeTable& table, const std::array<TokenId, 256>& byte_tokens)
      : table_(table), byte_tokens_(byte_tokens) {}
  /// Appends the tokens of `word`. O(n^2) for short words, O(n log n) for long ones.
  template <class Id>
  void encode(std::string_view word, std::vector<Id>& ids);

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kShort = 64;
  struct Symbol {
    TokenId token = 0;
    std::uint32_t rank = kNone;            // of the merge with the next symbol; kNone if there is none
    TokenId merged = 0;                    // the result of that merge
    std::uint32_t next = 0, previous = 0;  // used for long words only
  };
  void look_up(Symbol& left, const Symbol* right);
  void merge_short();
  void merge_long();

  const MergeTable& table_;
  const std::array<TokenId, 256>& byte_tokens_;
  std::vector<Symbol> symbols_;
};

}  // namespace tapestry::data
