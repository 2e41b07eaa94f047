#pragma once
// A sampler chooses the samples of an epoch and their order.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tapestry::data {

/// The order of an epoch depends only on the sampler's options and the epoch's number, so any epoch can be
/// started, repeated or resumed without running the earlier ones.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// The number of samples per epoch.
  virtual std::int64_t size() const = 0;
  virtual std::vector<std::int64_t> indices(std::int64_t epoch) const = 0;

  // A position in an epoch is a number of samples that all ranks have read together, so that it is valid for
  // another number of ranks.

  /// The number of ranks that divide an epoch among them.
  virtual int ranks() const { return 1; }
  /// The number of samples per epoch of all ranks together, each counted once.
  virtual std::int64_t total() const { return size() * ranks(); }
  /// What is left of indices(epoch) when all ranks together have read `first` samples of the epoch. A sampler
  /// of one of several ranks overrides it if `first` may be no multiple of ranks().
  virtual std::vector<std::int64_t> indices_from(std::int64_t epoch, std::int64_t first) const;
};

/// The order 0, 1, 2, ...
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size);
  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
};

/// Draws a new permutation in each epoch, or independent samples if `replacement` is set.
class RandomSampler : public Sampler {
 public:
  struct Options {
    bool replacement = false;
    std::int64_t num_samples = -1;  ///< samples per epoch; -1 means the size of the dataset
  };
  explicit RandomSampler(std::int64_t size, std::uint64_t seed = 0) : RandomSampler(size, seed, Options()) {}
  /// Throws ValueError if num_samples exceeds the size and `replacement` is not set.
  RandomSampler(std::int64_t size, std::uint64_t seed, Options options);
  std::int64_t size() const override { return options_.num_samples; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t population_;
  std::uint64_t seed_;
  Options options_;
};

/// Draws samples with probabilities in proportion to their weights, for example to see rare classes as often
/// as common ones.
class WeightedRandomSampler : public Sampler {
 public:
  struct Options {
    bool replacement = true;
    std::uint64_t seed = 0;
  };
  /// weights[i] belongs to sample i. Throws ValueError unless all weights are finite and at least 0, their
  /// sum is positive and finite, and, without replacement, at least num_samples of them are positive.
  WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples)
      : WeightedRandomSampler(std::move(weights), num_samples, Options()) {}
  WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples, Options options);
  std::int64_t size() const override { return num_samples_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::vector<double> weights_;
  std::int64_t num_samples_;
  Options options_;
};

/// Gives each rank its part of the samples: every world_size-th index of an order that is the same on all
/// ranks. Unless `drop_last` is set, indices from the beginning are repeated, so that all ranks get the same
/// number. If an epoch is resumed with another number of ranks, they divide the samples that are left.
class DistributedSampler : public Sampler {
 public:
  struct Options {
    bool shuffle = true;
    std::uint64_t seed = 0;
    bool drop_last = false;
  };
  DistributedSampler(std::int64_t size, int rank, int world_size)
      : DistributedSampler(size, rank, world_size, Options()) {}
  DistributedSampler(std::int64_t size, int rank, int world_size, Options options);
  std::int64_t size() const override { return share_of(population_); }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override { return indices_from(epoch, 0); }
  int ranks() const override { return world_size_; }
  std::int64_t total() const override { return population_; }
  std::vector<std::int64_t> indices_from(std::int64_t epoch, std::int64_t first) const override;

 private:
  std::int64_t share_of(std::int64_t samples) const;
  std::int64_t population_;
  int rank_, world_size_;
  Options options_;
};

/// Groups samples into batches. Derive from it to group them in another way, for example by length.
class BatchSampler {
 public:
  /// Throws ValueError unless batch_size >= 1.
  BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last = false);
  virtual ~BatchSampler() = default;
  /// The number of batches per epoch.
  virtual std::int64_t size() const;
  /// Returns the batches of an epoch. They depend only on the options and the epoch's number.
  virtual std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const;

  /// See Sampler. batches_from() throws ValueError if `first` is inside a batch of a class that derives from
  /// this one without a sampler.
  virtual int ranks() const { return sampler_ ? sampler_->ranks() : 1; }
  virtual std::int64_t total() const { return sampler_ ? sampler_->total() : INT64_MAX; }
  virtual std::vector<std::vector<std::int64_t>> batches_from(std::int64_t epoch, std::int64_t first) const;

 protected:
  BatchSampler() = default;

 private:
  std::vector<std::vector<std::int64_t>> group(const std::vector<std::int64_t>& order) const;
  std::shared_ptr<const Sampler> sampler_;
  std::int64_t batch_size_ = 1;
  bool drop_last_ = false;
};

}  // namespace tapestry::data
