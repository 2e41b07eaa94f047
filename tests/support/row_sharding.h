#pragma once
// A sharding without communication: slots give the rows that one rank stores, as after fully_shard(). For
// tests of what reads slots, such as checkpoints.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/module.h"

namespace tests {

class RowSharding final : public tapestry::nn::Sharding {
 public:
  /// Divides `whole` among `ranks` ranks, each with ceil(rows / ranks) rows. Stores the rows of `rank`.
  RowSharding(const tapestry::Tensor& whole, int rank, int ranks)
      : sizes_(whole.sizes()), rank_(rank), ranks_(ranks) {
    const tapestry::NoGradGuard no_grad;
    const tapestry::nn::ShardRows mine = rows_of_rank(rank);
    const tapestry::Tensor rows = whole.dim() == 0 ? whole.detach().reshape({1}) : whole.detach();
    shard_ = rows.narrow(0, mine.first_row, mine.rows).clone();
    if (tapestry::is_floating(whole.dtype())) shard_.set_requires_grad(whole.requires_grad());
  }

  const tapestry::Tensor& shard(int) const override { return shard_; }
  const tapestry::Tensor& read(int) const override { return shard_; }
  void set_shard(int, const tapestry::Tensor& tensor) override { shard_ = tensor; }
  const tapestry::Shape& full_sizes() const override { return sizes_; }
  tapestry::nn::ShardRows rows(int) const override { return rows_of_rank(rank_); }
  tapestry::nn::ShardRows rows_of_rank(int rank) const override {
    const std::int64_t all = sizes_.empty() ? 1 : sizes_[0], part = (all + ranks_ - 1) / ranks_;
    const std::int64_t first = std::min(rank * part, all);
    return {first, std::min(part, all - first)};
  }
  int rank(int) const override { return rank_; }
  int ranks() const override { return ranks_; }
  const void* group(int) const override { return nullptr; }
  void sum_over_ranks(int, const tapestry::Tensor&) const override { refuse(); }
  void gather(int, const tapestry::Tensor&) override { refuse(); }
  void keep_changes(int) override {}

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("RowSharding does not communicate"); }

  tapestry::Shape sizes_;
  int rank_, ranks_;
  tapestry::Tensor shard_;
};

/// Shards the parameters of a module, except those whose names `whole` contains.
inline void shard_rows(const tapestry::nn::Module& module, int rank, int ranks,
                       const std::vector<std::string>& whole = {}) {
  for (auto& [name, slot] : module.named_parameters()) {
    if (std::find(whole.begin(), whole.end(), name) != whole.end()) continue;
    auto sharding = std::make_shared<RowSharding>(slot.tensor(), rank, ranks);
    tapestry::nn::Parameter handle = slot;
    handle.set_sharding(std::move(sharding));
  }
}

}  // namespace tests
