#pragma once
// IterableDataset: samples that come in a sequence, such as lines of files or messages of a socket, and
// IterableLoader, which makes batches of them.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tapestry/data/loader.h"

namespace tapestry::data {

/// A part of the samples: one of `count` parts that are read at the same time.
struct Shard {
  std::int64_t index = 0, count = 1;
  std::int64_t epoch = 0;  ///< for another order in each epoch
  /// True if sample number `n` of the whole sequence belongs to this part: every count-th does.
  bool takes(std::int64_t n) const { return n % count == index; }
};

/// The base class of datasets that are read in sequence.
///
///   struct Lines : data::IterableDataset<std::string> {
///     Stream iterate(const data::Shard& shard) const override {
///       auto file = std::make_shared<std::ifstream>("log.txt");
///       return [file, shard, n = std::int64_t{0}]() mutable -> std::optional<std::string> {
///         for (std::string line; std::getline(*file, line);)
///           if (shard.takes(n++)) return line;
///         return std::nullopt;
///       };
///     }
///   };
///
/// The dataset divides the samples: iterate() returns those of one shard. If it returned all samples, each
/// shard would repeat them. Sequences of files divide best by file, so that each shard opens only its own.
template <class E = Example>
class IterableDataset {
 public:
  using ExampleType = E;
  /// Returns the next sample, or nothing at the end. It is called from one thread at a time.
  using Stream = std::function<std::optional<E>()>;
  virtual ~IterableDataset() = default;
  /// Starts to read the samples of `shard`. Exceptions here and in the stream reach the loop as a
  /// SampleError. Several threads may call it at the same time. Random operations here and in the stream draw
  /// from a generator that is seeded by (seed, epoch, shard).
  virtual Stream iterate(const Shard& shard) const = 0;
};

template <class E = Example, class B = typename DefaultBatch<E>::type>
struct IterableLoaderOptions {
  std::int64_t batch_size = 1;
  std::uint64_t seed = 0;
  /// Parts of the samples on this rank. Each batch has samples of one shard; the batches of the shards
  /// alternate. So the batches depend on this number. 0 means max(1, num_workers).
  std::int64_t shards = 0;
  int num_workers =
      0;  ///< worker threads; each reads every num_workers-th shard. 0 reads on the caller's thread
  int prefetch = 2;        ///< batches prepared ahead per worker
  bool drop_last = false;  ///< skip the last batch of each shard if it is not full
  /// End an epoch after this number of batches; -1 reads all samples. Ranks may have different numbers of
  /// samples: give DDP a number that all of them reach.
  std::int64_t max_batches = -1;
  int rank = 0, world_size = 1;  ///< this process reads the shards [rank * shards, (rank + 1) * shards)
  std::vector<BatchTransform<B>> transforms = {};
  std::function<B(std::vector<E>&& samples)> collate = {};
  std::optional<Device> device = {};  ///< as in DataLoaderOptions
};

namespace detail {
/// Throws ValueError if options contradict each other.
void check_shard_options(std::int64_t shards, int rank, int world_size);
}  // namespace detail

/// Makes batches of an IterableDataset, for a range-for loop. For the same options except num_workers and
/// prefetch, and a given number of `shards`, the batches are the same for any number of workers. Each pass is
/// one epoch.
///
///   data::IterableLoader loader(Lines(), {.batch_size = 32, .shards = 4, .num_workers = 2});
///   for (std::vector<std::string>& batch : loader) ...
template <class E = Example, class B = typename DefaultBatch<E>::type>
class IterableLoader {
  class Pass;

 public:
  using Options = IterableLoaderOptions<E, B>;
  using Iterator = detail::LoaderIterator<B, Pass>;

  /// Throws ValueError if options are out of range or contradict each other.
  IterableLoader(std::shared_ptr<const IterableDataset<E>> dataset, Options options = {}) {
    if (options.shards == 0) options.shards = options.num_workers > 1 ? options.num_workers : 1;
    detail::check_shard_options(options.shards, options.rank, options.world_size);
    maker_ = std::make_shared<const Maker>("IterableLoader", std::move(dataset), std::move(options));
  }
  /// Copies the dataset.
  template <std::derived_from<IterableDataset<E>> D>
  IterableLoader(const D& dataset, Options options = {})
      : IterableLoader(std::make_shared<const D>(dataset), std::move(options)) {}

  /// Starts a pass over the next epoch.
  Iterator begin() { return Iterator(std::make_unique<Pass>(maker_, epoch_++)); }
  std::default_sentinel_t end() const { return {}; }
  /// The epoch of the next pass.
  std::int64_t epoch() const { return epoch_; }
  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }

 private:
  using Maker = detail::BatchMaker<IterableDataset<E>, B, Options>;
  struct Part;
  std::shared_ptr<const Maker> maker_;
  std::int64_t epoch_ = 0;
};

template <class E, class B>
class IterableLoader<E, B>::Pass {
 public:
  Pass(std::shared_ptr<const Maker> maker, std::int64_t epoch) : maker_(std::move(maker)) {
    const Options& o = maker_->options();
    const std::int64_t workers = o.num_workers == 0 ? 1 : o.num_workers;
    const std::int64_t threads = workers < o.shards ? workers : o.shards;
    for (std::int64_t s = 0; s < o.shards; ++s) alive_.push_back(s);
    for (std::int64_t t = 0; t < threads; ++t) {
      auto part = std::make_shared<Part>(Part{maker_, epoch});
      for (std::int64_t s = t; s < o.shards; s += threads) part->shards.push_back({.index = s});
      readers_.push_back(std::make_unique<Prefetcher>([part](std::int64_t) { return part->next(); }, 0,
                                                      INT64_MAX, o.num_workers == 0 ? 0 : 1, o.prefetch));
    }
  }
  std::shared_ptr<detail::MadeBatch<B>> next() {
    while (!alive_.empty() && returned_ != maker_->options().max_batches) {
      turn_ %= alive_.size();
      const std::size_t reader = static_cast<std::size_t>(alive_[turn_]) % readers_.size();
      auto made = std::static_pointer_cast<detail::MadeBatch<B>>(readers_[reader]->next());
      if (!made) {  // the end of the shard
        alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(turn_));
        continue;
      }
      ++turn_;
      ++returned_;
      maker_->arrive(*made);
      return made;
    }
    return nullptr;
  }

 private:
  const std::shared_ptr<const Maker> maker_;
  std::vector<std::int64_t> alive_;  // the shards with samples left; their batches alternate
  std::size_t turn_ = 0;
  std::int64_t returned_ = 0;
  std::vector<std::unique_ptr<Prefetcher>> readers_;  // shard s belongs to reader s % size
};

/// The shards that one thread reads in turn.
template <class E, class B>
struct IterableLoader<E, B>::Part {
  using Made = std::shared_ptr<detail::MadeBatch<B>>;
  struct Reading {
    std::int64_t index = 0;  // of the shard on this rank
    typename IterableDataset<E>::Stream stream{};
    std::shared_ptr<Generator> generator{};
    std::int64_t taken = 0;
    bool ended = false;
  };
  std::shared_ptr<const Maker> maker;
  std::int64_t epoch = 0;
  std::vector<Reading> shards{};
  std::size_t turn = 0;

  /// Makes the next batch of the shard whose turn it is, or returns null at its end. The order of turns is
  /// that of Pass::next().
  Made next() {
    if (shards.empty()) return nullptr;
    turn %= shards.size();
    Reading& reading = shards[turn];
    Made made;
    try {
      made = read(reading);
    } catch (const std::exception& e) {
      throw SampleError(concat({"[IterableLoader] shard ", reading.index, " of rank ", maker->options().rank,
                                ", after ", reading.taken, " samples of epoch ", epoch, ": ", e.what()}),
                        -1, std::current_exception());
    }
    if (made) ++turn;
    else shards.erase(shards.begin() + static_cast<std::ptrdiff_t>(turn));
    return made;
  }

  Made read(Reading& reading) {
    const Options& o = maker->options();
    const Shard shard{o.rank * o.shards + reading.index, o.world_size * o.shards, epoch};
    if (!reading.generator)
      reading.generator = std::make_shared<Generator>(
          Rng(derive_key(o.seed, epoch, 1), static_cast<std::uint64_t>(shard.index)).next64());
    const ContextGuard guard(detail::loading_context(*reading.generator));
    if (!reading.stream) reading.stream = maker->dataset().iterate(shard);
    std::vector<E> samples;
    std::vector<std::int64_t> numbers;
    while (!reading.ended && static_cast<std::int64_t>(samples.size()) < o.batch_size) {
      std::optional<E> sample = reading.stream();
      if (!sample) {
        reading.ended = true;
        break;
      }
      samples.push_back(std::move(*sample));
      numbers.push_back(shard.index + shard.count * reading.taken++);
    }
    if (samples.empty() ||
        (reading.ended && o.drop_last && static_cast<std::int64_t>(samples.size()) < o.batch_size))
      return nullptr;
    return maker->finish(maker->collate(std::move(samples)), {o.seed, epoch, numbers});
  }
};

template <class D>
requires std::derived_from<D, IterableDataset<typename D::ExampleType>> IterableLoader(
    const D&, IterableLoaderOptions<typename D::ExampleType> = {})
->IterableLoader<typename D::ExampleType>;
template <class D>
IterableLoader(const std::shared_ptr<D>&, IterableLoaderOptions<typename D::ExampleType> = {})
    -> IterableLoader<typename D::ExampleType>;

}  // namespace tapestry::data
