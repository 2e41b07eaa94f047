#include "tapestry/data/dataset.h"

#include <cmath>

#include "tapestry/data/sampler.h"

namespace tapestry::data {

TensorDataset::TensorDataset(Tensor input, Tensor target)
    : input_(std::move(input)), target_(std::move(target)) {
  check_cpu("TensorDataset", input_, "input");
  check(input_.dim() > 0, "[TensorDataset] input has no dimension to count samples in");
  if (target_.defined()) {
    check_cpu("TensorDataset", target_, "target");
    check(target_.dim() > 0 && target_.size(0) == input_.size(0), "[TensorDataset] input ", input_.sizes(),
          " and target ", target_.sizes(), " have different numbers of samples");
  }
}

Example TensorDataset::get(std::int64_t index) const {
  detail::check_index("TensorDataset", index, size());
  return {row(input_, index), target_.defined() ? row(target_, index) : Tensor()};
}

std::optional<Example> TensorDataset::get_batch(std::span<const std::int64_t> indices) const {
  return Example{gather_rows(input_, indices), target_.defined() ? gather_rows(target_, indices) : Tensor()};
}

namespace detail {

void check_subset(std::span<const std::int64_t> indices, std::int64_t size) {
  for (std::int64_t index : indices)
    check(index >= 0 && index < size, "[Subset] index ", index, " is out of range for a dataset of ", size,
          " samples");
}

std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size,
                                                     const std::vector<std::int64_t>& lengths,
                                                     std::uint64_t seed) {
  std::int64_t total = 0;
  for (std::int64_t length : lengths) {
    check(length >= 0 && length <= size - total, "[random_split] lengths add up to more than the ", size,
          " samples of the dataset, or one is negative (", length, ")");
    total += length;
  }
  check(total == size, "[random_split] lengths add up to ", total, ", but the dataset has ", size,
        " samples");
  const std::vector<std::int64_t> order = RandomSampler(size, seed).indices(0);
  std::vector<std::vector<std::int64_t>> parts;
  auto from = order.begin();
  for (std::int64_t length : lengths) {
    parts.emplace_back(from, from + length);
    from += length;
  }
  return parts;
}

std::vector<std::int64_t> split_lengths(std::int64_t size, const std::vector<double>& fractions) {
  double sum = 0;
  std::vector<std::int64_t> lengths;
  std::int64_t total = 0;
  for (double fraction : fractions) {
    check(fraction >= 0 && fraction <= 1, "[random_split] fraction ", fraction, " is not in [0, 1]");
    sum += fraction;
    lengths.push_back(static_cast<std::int64_t>(std::floor(static_cast<double>(size) * fraction)));
    total += lengths.back();
  }
  check(std::abs(sum - 1) < 1e-6, "[random_split] fractions add up to ", sum, "; make it 1");
  for (std::size_t i = 0; total < size; i = (i + 1) % lengths.size(), ++total) ++lengths[i];
  return lengths;
}

}  // namespace detail
}  // namespace tapestry::data
