#pragma once
// Datasets: a size, and samples by index.
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

/// Derive from it to bring samples of your own. Both functions must be safe to call from several threads at
/// once (DataLoader's workers do).
template <class E = Example>
class Dataset {
 public:
  using ExampleType = E;
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// Sample `index` in [0, size()). Under a DataLoader, random operations in here draw from a generator
  /// seeded by (seed, epoch, index), so that results do not depend on the number of workers.
  virtual E get(std::int64_t index) const = 0;
  /// The samples already collated, for datasets that make a batch faster than sample by sample; nothing
  /// otherwise.
  virtual std::optional<E> get_batch(std::span<const std::int64_t> indices) const {
    static_cast<void>(indices);
    return std::nullopt;
  }
};

/// Samples are the rows of tensors that fit in memory. Rows come as views; batches are gathered at once.
class TensorDataset : public Dataset<Example> {
 public:
  /// Throws ValueError unless both tensors have the same size in dimension 0.
  explicit TensorDataset(Tensor input, Tensor target = {});
  std::int64_t size() const override { return input_.size(0); }
  Example get(std::int64_t index) const override;
  std::optional<Example> get_batch(std::span<const std::int64_t> indices) const override;
  /// All inputs and all targets.
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
/// 0 .. size-1 in an order drawn from `seed`, cut into parts of these lengths.
std::vector<std::vector<std::int64_t>> split_indices(std::int64_t size,
                                                     const std::vector<std::int64_t>& lengths,
                                                     std::uint64_t seed);
/// Lengths that are these fractions of `size`; what rounding leaves over goes to the first parts, one each.
std::vector<std::int64_t> split_lengths(std::int64_t size, const std::vector<double>& fractions);
}  // namespace detail

/// The samples `indices` of another dataset. Throws ValueError for an index outside it.
template <class E = Example>
class Subset : public Dataset<E> {
 public:
  Subset(std::shared_ptr<const Dataset<E>> base, std::vector<std::int64_t> indices)
      : base_(std::move(base)), indices_(std::move(indices)) {
    check(base_ != nullptr, "[Subset] the dataset is null; pass one that exists");
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

/// Several datasets, one after the other.
template <class E = Example>
class ConcatDataset : public Dataset<E> {
 public:
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset<E>>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      check(part != nullptr, "[ConcatDataset] a dataset is null; pass those that exist");
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

/// Cuts a dataset into random parts that share no sample. Throws ValueError unless the lengths add up to its
/// size.
template <class E>
std::vector<Subset<E>> random_split(const std::shared_ptr<const Dataset<E>>& dataset,
                                    const std::vector<std::int64_t>& lengths, std::uint64_t seed = 0) {
  check(dataset != nullptr, "[random_split] the dataset is null; pass one that exists");
  std::vector<Subset<E>> parts;
  for (auto& indices : detail::split_indices(dataset->size(), lengths, seed))
    parts.emplace_back(dataset, std::move(indices));
  return parts;
}
/// The same for a dataset that is cheap to copy, such as a TensorDataset.
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
/// By fractions that add up to 1.
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
  check(dataset != nullptr, "[random_split] the dataset is null; pass one that exists");
  return random_split(dataset, detail::split_lengths(dataset->size(), fractions), seed);
}
/// `random_split(dataset, {50000, 10000})`, `random_split(dataset, {0.8, 0.2})`
template <class D, class Number>
requires std::is_arithmetic_v<Number>
auto random_split(const D& dataset, std::initializer_list<Number> parts, std::uint64_t seed = 0) {
  using Part = std::conditional_t<std::is_floating_point_v<Number>, double, std::int64_t>;
  return random_split(dataset, std::vector<Part>(parts.begin(), parts.end()), seed);
}

}  // namespace tapestry::data
