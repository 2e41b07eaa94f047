#include "tapestry/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/data/rng.h"

namespace tapestry::data {
namespace {

std::vector<std::int64_t> ascending(std::int64_t size) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

/// Returns the first `count` elements of a random permutation of 0 .. size-1 (Fisher-Yates).
std::vector<std::int64_t> shuffled(std::int64_t size, std::int64_t count, Rng rng) {
  std::vector<std::int64_t> order = ascending(size);
  for (std::int64_t i = 0; i < count; ++i)
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(i + rng.below(size - i))]);
  order.resize(static_cast<std::size_t>(count));
  return order;
}

}  // namespace

std::vector<std::int64_t> Sampler::indices_from(std::int64_t epoch, std::int64_t first) const {
  std::vector<std::int64_t> order = indices(epoch);
  const std::int64_t own = (first + ranks() - 1) / ranks(), size = static_cast<std::int64_t>(order.size());
  order.erase(order.begin(), order.begin() + std::min(own, size));
  return order;
}

SequentialSampler::SequentialSampler(std::int64_t size) : size_(size) {
  check(size >= 0, "[SequentialSampler] size is ", size, "; it cannot be negative");
}

std::vector<std::int64_t> SequentialSampler::indices(std::int64_t) const { return ascending(size_); }

RandomSampler::RandomSampler(std::int64_t size, std::uint64_t seed, Options options)
    : population_(size), seed_(seed), options_(options) {
  check(size >= 0, "[RandomSampler] size is ", size, "; it cannot be negative");
  if (options_.num_samples < 0) options_.num_samples = size;
  check(options_.replacement ? size > 0 || options_.num_samples == 0 : options_.num_samples <= size,
        "[RandomSampler] cannot draw ", options_.num_samples, " samples from ", size,
        options_.replacement ? "" : " without replacement");
}

std::vector<std::int64_t> RandomSampler::indices(std::int64_t epoch) const {
  Rng rng(derive_key(seed_, epoch, 0));
  if (!options_.replacement) return shuffled(population_, options_.num_samples, rng);
  std::vector<std::int64_t> order(static_cast<std::size_t>(options_.num_samples));
  for (std::int64_t& index : order) index = rng.below(population_);
  return order;
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                                             Options options)
    : weights_(std::move(weights)), num_samples_(num_samples), options_(options) {
  check(num_samples >= 0, "[WeightedRandomSampler] num_samples is ", num_samples, "; it cannot be negative");
  double sum = 0;
  std::int64_t positive = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    check(std::isfinite(weights_[i]) && weights_[i] >= 0, "[WeightedRandomSampler] weight ", i, " is ",
          weights_[i], "; weights are finite and at least 0");
    sum += weights_[i];
    positive += weights_[i] > 0;
  }
  check(num_samples == 0 || (sum > 0 && std::isfinite(sum)),
        "[WeightedRandomSampler] the sum of the weights is ", sum, "; it must be positive and finite");
  check(options.replacement || num_samples <= positive, "[WeightedRandomSampler] cannot draw ", num_samples,
        " samples without replacement: ", positive, " weights are positive");
}

std::vector<std::int64_t> WeightedRandomSampler::indices(std::int64_t epoch) const {
  Rng rng(derive_key(options_.seed, epoch, 0));
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_samples_));
  if (options_.replacement) {
    std::vector<double> ends(weights_.size());  // the running sum
    std::partial_sum(weights_.begin(), weights_.end(), ends.begin());
    for (std::int64_t& index : order) {
      // Rounding may give the sum itself, which upper_bound would place behind the last sample.
      const double drawn = std::min(rng.uniform() * ends.back(), std::nextafter(ends.back(), 0.0));
      index = std::upper_bound(ends.begin(), ends.end(), drawn) - ends.begin();
    }
    return order;
  }
  // The samples with the largest u^(1 / weight), for uniform u (Efraimidis and Spirakis, "Weighted random
  // sampling with a reservoir", 2006), in this order. Logarithms keep small weights apart.
  std::vector<std::pair<double, std::int64_t>> keys;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const double u = 1 - rng.uniform();
    if (weights_[i] > 0) keys.emplace_back(-std::log(u) / weights_[i], static_cast<std::int64_t>(i));
  }
  std::partial_sort(keys.begin(), keys.begin() + num_samples_, keys.end());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = keys[i].second;
  return order;
}

DistributedSampler::DistributedSampler(std::int64_t size, int rank, int world_size, Options options)
    : population_(size), rank_(rank), world_size_(world_size), options_(options) {
  check(world_size >= 1 && rank >= 0 && rank < world_size, "[DistributedSampler] rank ", rank,
        " is not one of a world of ", world_size);
  check(size >= 0, "[DistributedSampler] size is ", size, "; it cannot be negative");
}

std::int64_t DistributedSampler::share_of(std::int64_t samples) const {
  return samples / world_size_ + (!options_.drop_last && samples % world_size_ != 0);
}

std::vector<std::int64_t> DistributedSampler::indices_from(std::int64_t epoch, std::int64_t first) const {
  const std::vector<std::int64_t> order =
      options_.shuffle ? shuffled(population_, population_, Rng(derive_key(options_.seed, epoch, 0)))
                       : ascending(population_);
  const std::int64_t share = share_of(std::max<std::int64_t>(population_ - first, 0));
  std::vector<std::int64_t> mine(static_cast<std::size_t>(share));
  for (std::int64_t i = 0; i < share; ++i)
    mine[static_cast<std::size_t>(i)] =
        order[static_cast<std::size_t>((first + i * world_size_ + rank_) % population_)];
  return mine;
}

BatchSampler::BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  check(sampler_ != nullptr, "[BatchSampler] the sampler is null");
  check(batch_size >= 1, "[BatchSampler] batch_size is ", batch_size, "; it must be at least 1");
}

std::int64_t BatchSampler::size() const {
  const std::int64_t samples = sampler_->size();
  return samples / batch_size_ + (!drop_last_ && samples % batch_size_ != 0);
}

std::vector<std::vector<std::int64_t>> BatchSampler::batches(std::int64_t epoch) const {
  return group(sampler_->indices(epoch));
}

std::vector<std::vector<std::int64_t>> BatchSampler::batches_from(std::int64_t epoch,
                                                                  std::int64_t first) const {
  std::vector<std::vector<std::int64_t>> all = batches(epoch);
  std::int64_t read = 0;
  auto next = all.begin();
  for (; next != all.end() && read < first; ++next) read += static_cast<std::int64_t>(next->size()) * ranks();
  // A derived class may have batches of its own.
  if (read > first && sampler_ && all == group(sampler_->indices(epoch)))
    return group(sampler_->indices_from(epoch, first));
  check(
      read <= first, "[BatchSampler] ", first, " samples of epoch ", epoch,
      " were read, which is inside a batch; resume with the batch sampler that the position was saved with");
  all.erase(all.begin(), next);
  return all;
}

std::vector<std::vector<std::int64_t>> BatchSampler::group(const std::vector<std::int64_t>& order) const {
  const std::size_t total = order.size(), size = static_cast<std::size_t>(batch_size_);
  std::vector<std::vector<std::int64_t>> out;
  for (std::size_t i = 0; i < total && (!drop_last_ || total - i >= size); i += size)
    out.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(i),
                     order.begin() + static_cast<std::ptrdiff_t>(std::min(total, i + size)));
  return out;
}

}  // namespace tapestry::data
