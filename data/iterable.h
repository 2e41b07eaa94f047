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

#include "tapestry/data/dataloader.h"

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
void check_iterable_options(std::int64_t batch_size, std::int64_t shards, int num_workers, int prefetch,
                            int rank, int world_size);
}  // namespace detail

/// Makes batches of an IterableDataset, for a range-for loop. For the same options except num_workers and
/// prefetch, and a given number of `shards`, the batches are the same for any number of workers. Each pass is
/// one epoch.
///
///   data::IterableLoader loader(Lines(), {.batch_size = 32, .shards = 4, .num_workers = 2});
///   for (std::vector<std::string>& batch : loader) ...
template <class E = Example, class B = typename DefaultBatch<E>::type>
class IterableLoader {
 public:
  using Options = IterableLoaderOptions<E, B>;

  /// Throws ValueError if options are out of range or contradict each other.
  IterableLoader(std::shared_ptr<const IterableDataset<E>> dataset, Options options = {}) {
    (check)(dataset != nullptr, "[IterableLoader] the dataset is null");
    if (options.shards == 0) options.shards = options.num_workers > 1 ? options.num_workers : 1;
    detail::check_iterable_options(options.batch_size, options.shards, options.num_workers, options.prefetch,
                                   options.rank, options.world_size);
    if (options.device && !options.device->is_cpu()) {
      (check)(has_tensors<B>, "[IterableLoader] batches of this type are not moved to ", *options.device,
              "; leave out the device, and move what is in them with .to()");
      upload_ = std::make_shared<const Upload>(*options.device);
    }
    dataset_ = std::move(dataset);
    options_ = std::make_shared<const Options>(std::move(options));
  }
  /// Copies the dataset.
  template <std::derived_from<IterableDataset<E>> D>
  IterableLoader(const D& dataset, Options options = {})
      : IterableLoader(std::make_shared<const D>(dataset), std::move(options)) {}

  /// One pass over the data. Its destructor, which also runs at a `break`, stops the workers.
  class Iterator {
   public:
    using value_type = B;
    using difference_type = std::ptrdiff_t;
    B& operator*() const { return made_->batch; }
    B* operator->() const { return &made_->batch; }
    Iterator& operator++() {
      advance();
      return *this;
    }
    void operator++(int) { advance(); }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.made_ == nullptr; }

   private:
    friend class IterableLoader;
    struct Made;
    struct Part;
    Iterator(const IterableLoader& loader, std::int64_t epoch)
        : options_(loader.options_), upload_(loader.upload_) {
      const std::int64_t shards = options_->shards;
      const std::int64_t workers = options_->num_workers == 0 ? 1 : options_->num_workers;
      const std::int64_t threads = workers < shards ? workers : shards;
      for (std::int64_t s = 0; s < shards; ++s) alive_.push_back(s);
      for (std::int64_t t = 0; t < threads; ++t) {
        auto part = std::make_shared<Part>();
        part->dataset = loader.dataset_;
        part->options = options_;
        part->upload = upload_;
        part->epoch = epoch;
        for (std::int64_t s = t; s < shards; s += threads) part->shards.push_back({.index = s});
        const auto make = [part](std::int64_t) -> std::shared_ptr<void> { return part->next(); };
        readers_.push_back(std::make_unique<Prefetcher>(
            make, 0, INT64_MAX, options_->num_workers == 0 ? 0 : 1, options_->prefetch));
      }
      advance();
    }

    void advance() {
      made_.reset();
      while (!alive_.empty() && returned_ != options_->max_batches) {
        turn_ %= alive_.size();
        const std::size_t reader = static_cast<std::size_t>(alive_[turn_]) % readers_.size();
        std::shared_ptr<Made> made;
        try {
          made = std::static_pointer_cast<Made>(readers_[reader]->next());
        } catch (...) {
          readers_.clear();
          alive_.clear();
          throw;
        }
        if (!made->samples) {  // the end of the shard
          alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(turn_));
          continue;
        }
        ++turn_;
        ++returned_;
        if constexpr (has_tensors<B>)
          if (upload_) for_tensors(made->batch, [&](const Tensor& t) { upload_->arrive(t, made->ready); });
        made_ = std::move(made);
        return;
      }
      readers_.clear();
    }

    std::shared_ptr<const Options> options_;
    std::shared_ptr<const Upload> upload_;
    std::vector<std::int64_t> alive_;  // the shards with samples left; their batches alternate
    std::size_t turn_ = 0;
    std::int64_t returned_ = 0;
    std::vector<std::unique_ptr<Prefetcher>> readers_;  // shard s belongs to reader s % size
    std::shared_ptr<Made> made_;
  };

  /// Starts a pass over the next epoch.
  Iterator begin() { return Iterator(*this, epoch_++); }
  std::default_sentinel_t end() const { return {}; }
  /// The epoch of the next pass.
  std::int64_t epoch() const { return epoch_; }
  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }

 private:
  std::shared_ptr<const IterableDataset<E>> dataset_;
  std::shared_ptr<const Options> options_;
  std::shared_ptr<const Upload> upload_;  // null if batches stay on the CPU
  std::int64_t epoch_ = 0;
};

/// A batch, and the event of its copy to the device. Without samples, it marks the end of a shard.
template <class E, class B>
struct IterableLoader<E, B>::Iterator::Made {
  std::int64_t samples = 0;
  B batch{};
  Event ready{};
};

/// The shards that one thread reads in turn.
template <class E, class B>
struct IterableLoader<E, B>::Iterator::Part {
  struct Reading {
    std::int64_t index = 0;  // of the shard on this rank
    typename IterableDataset<E>::Stream stream{};
    std::shared_ptr<Generator> generator{};
    std::int64_t taken = 0;
    bool ended = false;
  };
  std::shared_ptr<const IterableDataset<E>> dataset;
  std::shared_ptr<const Options> options;
  std::shared_ptr<const Upload> upload;
  std::int64_t epoch = 0;
  std::vector<Reading> shards;
  std::size_t turn = 0;

  /// Makes the next batch of the shard whose turn it is. The order of turns is that of Iterator::advance().
  std::shared_ptr<Made> next() {
    if (shards.empty()) return std::make_shared<Made>();
    turn %= shards.size();
    Reading& reading = shards[turn];
    std::shared_ptr<Made> made;
    try {
      made = read(reading);
    } catch (const std::exception& e) {
      throw SampleError(concat({"[IterableLoader] shard ", reading.index, " of rank ", options->rank,
                                ", after ", reading.taken, " samples of epoch ", epoch, ": ", e.what()}),
                        -1, std::current_exception());
    }
    if (made->samples == 0) shards.erase(shards.begin() + static_cast<std::ptrdiff_t>(turn));
    else ++turn;
    return made;
  }

  std::shared_ptr<Made> read(Reading& reading) {
    const Options& o = *options;
    const Shard shard{o.rank * o.shards + reading.index, o.world_size * o.shards, epoch};
    if (!reading.generator)
      reading.generator = std::make_shared<Generator>(
          Rng(derive_key(o.seed, epoch, 1), static_cast<std::uint64_t>(shard.index)).next64());
    Context context;
    context.grad_enabled = false;
    context.generator = reading.generator.get();
    const ContextGuard guard(context);
    if (!reading.stream) reading.stream = dataset->iterate(shard);
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
    auto made = std::make_shared<Made>();
    if (samples.empty() ||
        (reading.ended && o.drop_last && static_cast<std::int64_t>(samples.size()) < o.batch_size))
      return made;
    made->samples = static_cast<std::int64_t>(samples.size());
    made->batch = collate_batch(std::move(samples));
    for (std::size_t t = 0; t < o.transforms.size(); ++t)
      o.transforms[t](made->batch, {o.seed, epoch, numbers, 2 + t});
    if constexpr (has_tensors<B>)
      if (upload) {
        for_tensors(made->batch, [&](Tensor& t) { t = upload->send(t); });
        upload->mark(made->ready);
      }
    return made;
  }

  B collate_batch(std::vector<E>&& samples) const {
    if (options->collate) return options->collate(std::move(samples));
    if constexpr (detail::makes_batch<E, B>) return default_collate(std::move(samples));
    else if constexpr (std::is_same_v<B, std::vector<E>>) return std::move(samples);
    else (fail)("[IterableLoader] batches of this type need a collate in the options");
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
