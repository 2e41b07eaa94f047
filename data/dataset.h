#pragma once
// A dataset has a size and returns samples by index.
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/data/collate.h"

namespace tapestry::data {

/// The base class of datasets. Both functions must be safe to call from several threads at the same time,
/// because DataLoader's workers do so.
template <class E = Example>
class Dataset {
 public:
  using ExampleType = E;
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// Returns sample `index` in [0, size()). Under a DataLoader, random operations inside draw from a
  /// generator that is seeded by (seed, epoch, index), so results do not depend on the number of workers.
  virtual E get(std::int64_t index) const = 0;
  /// Returns the samples as one collated batch, if the dataset can make a batch faster than sample by sample.
  /// Returns nothing otherwise.
  virtual std::optional<E> get_batch(std::span<const std::int64_t> indices) const {
    static_cast<void>(indices);
    return std::nullopt;
  }
};

/// A dataset whose samples are rows of tensors in memory. get() returns views; get_batch() gathers the rows
/// at once.
class TensorDataset : public Dataset<Example> {
 public:
  /// Throws ValueError unless both tensors have the same size in dimension 0.
  explicit TensorDataset(Tensor input, Tensor target = {});
  std::int64_t size() const override { return input_.size(0); }
  Example get(std::int64_t index) const override;
  std::optional<Example> get_batch(std::span<const std::int64_t> indices) const override;
  /// The tensors of all inputs and all targets.
  const Tensor& input() const { return input_; }
  const Tensor& target() const { return target_; }

 private:
  Tensor input_, target_;
};

namespace detail {
/// Throws ValueError if one of `indices` is outside [0, size).
void check_subset(std::span<const std::int64_t> indices, std::int64_t size);
/// Throws IndexError unless 0 <= index < size.
inline void check_index(const char* op, std::int64_t index, std::int64_t size) {
  check<IndexError>(index >= 0 && index < size, "[", op, "] sample ", index, " is out of range for ", size,
                    " samples");
}
/// Splits a permutation of 0 .. size-1, drawn from `seed`, into parts of these lengths.
std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size,
                                                     const std::vector<std::int64_t>& lengths,
                                                     std::uint64_t seed);
/// Returns the lengths that these fractions of `size` give, rounded down. Then the first parts get one more
/// each, until the lengths add up to `size`.
std::vector<std::int64_t> split_lengths(std::int64_t size, const std::vector<double>& fractions);
}  // namespace detail

/// The samples `indices` of another dataset. Throws ValueError for an index outside that dataset.
template <class E = Example>
class Subset : public Dataset<E> {
 public:
  Subset(std::shared_ptr<const Dataset<E>> base, std::vector<std::int64_t> indices)
      : base_(std::move(base)), indices_(std::move(indices)) {
    (check)(base_ != nullptr, "[Subset] the dataset is null; pass one that exists");
    detail::check_subset(indices_, base_->size());
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  E get(std::int64_t index) const override { return base_->get(at(index)); }
  std::optional<E> get_batch(std::span<const std::int64_t> indices) const override {
    std::vector<std::int64_t> mapped;
    mapped.reserve(indices.size());
    for (std::int64_t index : indices) mapped.push_back(at(index));
    return base_->get_batch(mapped);
  }
  const std::vector<std::int64_t>& indices() const { return indices_; }

 private:
  std::int64_t at(std::int64_t index) const {
    detail::check_index("Subset", index, size());
    return indices_[static_cast<std::size_t>(index)];
  }
  std::shared_ptr<const Dataset<E>> base_;
  std::vector<std::int64_t> indices_;
};

/// The concatenation of several datasets.
template <class E = Example>
class ConcatDataset : public Dataset<E> {
 public:
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset<E>>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      (check)(part != nullptr, "[ConcatDataset] a dataset is null; pass those that exist");
      size_ += part->size();
    }
  }
  std::int64_t size() const override { return size_; }
  E get(std::int64_t index) const override {
    detail::check_index("ConcatDataset", index, size_);
    std::size_t part = 0;
    for (; index >= parts_[part]->size(); ++part) index -= parts_[part]->size();
    return parts_[part]->get(index);
  }

 private:
  std::vector<std::shared_ptr<const Dataset<E>>> parts_;
  std::int64_t size_ = 0;
};

/// Splits a dataset into random disjoint parts. Throws ValueError unless the lengths add up to its size.
template <class E>
std::vector<Subset<E>> random_split(const std::shared_ptr<const Dataset<E>>& dataset,
                                    const std::vector<std::int64_t>& lengths, std::uint64_t seed = 0) {
  (check)(dataset != nullptr, "[random_split] the dataset is null; pass one that exists");
  std::vector<Subset<E>> parts;
  for (auto& indices : detail::split_indices(dataset->size(), lengths, seed))
    parts.emplace_back(dataset, std::move(indices));
  return parts;
}
/// Copies the dataset, which should be cheap to copy, such as a TensorDataset.
template <class D>
std::vector<Subset<typename D::ExampleType>> random_split(const D& dataset,
                                                          const std::vector<std::int64_t>& lengths,
                                                          std::uint64_t seed = 0) {
  using E = typename D::ExampleType;
  return random_split<E>(std::shared_ptr<const Dataset<E>>(std::make_shared<D>(dataset)), lengths, seed);
}
template <class D>
std::vector<Subset<typename D::ExampleType>> random_split(const std::shared_ptr<D>& dataset,
                                                          const std::vector<std::int64_t>& lengths,
                                                          std::uint64_t seed = 0) {
  using E = typename D::ExampleType;
  return random_split<E>(std::shared_ptr<const Dataset<E>>(dataset), lengths, seed);
}
/// Splits by fractions that add up to 1.
template <class D>
std::vector<Subset<typename D::ExampleType>> random_split(const D& dataset,
                                                          const std::vector<double>& fractions,
                                                          std::uint64_t seed = 0) {
  return random_split(dataset, detail::split_lengths(dataset.size(), fractions), seed);
}
template <class D>
std::vector<Subset<typename D::ExampleType>> random_split(const std::shared_ptr<D>& dataset,
                                                          const std::vector<double>& fractions,
                                                          std::uint64_t seed = 0) {
  (check)(dataset != nullptr, "[random_split] the dataset is null; pass one that exists");
  return random_split(dataset, detail::split_lengths(dataset->size(), fractions), seed);
}
/// Allows `random_split(dataset, {50000, 10000})` and `random_split(dataset, {0.8, 0.2})`.
template <class D, class Number>
requires std::is_arithmetic_v<Number>
auto random_split(const D& dataset, std::initializer_list<Number> parts, std::uint64_t seed = 0) {
  using Part = std::conditional_t<std::is_floating_point_v<Number>, double, std::int64_t>;
  return random_split(dataset, std::vector<Part>(parts.begin(), parts.end()), seed);
}

}  // namespace tapestry::data
