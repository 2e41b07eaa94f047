#pragma once
// Samplers: which samples an epoch sees, in which order.
#include <cstdint>
#include <memory>
#include <vector>

namespace tapestry::data {

/// The order of an epoch is a function of the sampler's options and the epoch's number alone. So any epoch
/// can be entered, repeated or resumed without having gone through the ones before.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Samples an epoch.
  virtual std::int64_t size() const = 0;
  virtual std::vector<std::int64_t> indices(std::int64_t epoch) const = 0;
};

/// 0, 1, 2, ...
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size);
  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
};

/// A new permutation each epoch; or, with `replacement`, independent draws.
class RandomSampler : public Sampler {
 public:
  struct Options {
    bool replacement = false;
    std::int64_t num_samples = -1;  ///< an epoch; -1 for as many as the dataset has
  };
  explicit RandomSampler(std::int64_t size, std::uint64_t seed = 0) : RandomSampler(size, seed, Options()) {}
  /// Throws ValueError for more samples than there are without replacement.
  RandomSampler(std::int64_t size, std::uint64_t seed, Options options);
  std::int64_t size() const override { return options_.num_samples; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t population_;
  std::uint64_t seed_;
  Options options_;
};

/// The share of one rank of `world_size`: every world_size-th index of an order that all ranks agree on.
/// Unless `drop_last`, it is filled up from its beginning so that all ranks get equally many.
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
  std::int64_t size() const override { return share_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override;

 private:
  std::int64_t population_, share_;
  int rank_, world_size_;
  Options options_;
};

/// Groups samples into batches. Derive from it to group them otherwise (by length, say).
class BatchSampler {
 public:
  /// Throws ValueError unless batch_size >= 1.
  BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last = false);
  virtual ~BatchSampler() = default;
  /// Batches an epoch.
  virtual std::int64_t size() const;
  /// A function of the epoch's number alone, like Sampler::indices.
  virtual std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const;

 protected:
  BatchSampler() = default;

 private:
  std::shared_ptr<const Sampler> sampler_;
  std::int64_t batch_size_ = 1;
  bool drop_last_ = false;
};

}  // namespace tapestry::data
