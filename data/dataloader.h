#pragma once
// A DataLoader iterates over the batches of a dataset. Worker threads prepare batches ahead.
//
//   data::DataLoader loader(train, {.batch_size = 128, .shuffle = true, .seed = 7, .num_workers = 2});
//   for (int epoch = 0; epoch < 6; ++epoch)
//     for (auto& [images, labels] : loader) step(images, labels);
//
// The batches depend only on the options, the epoch and the position. They are the same for any number of
// workers, and after load_state().
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/data/dataset.h"
#include "tapestry/data/loader.h"
#include "tapestry/data/sampler.h"

namespace tapestry::data {

template <class E = Example, class B = typename DefaultBatch<E>::type>
struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;    ///< draw a new permutation in each epoch
  std::uint64_t seed = 0;  ///< seeds the order, random transforms, and random operations in Dataset::get
  int num_workers = 0;     ///< worker threads; 0 makes each batch on the caller's thread when it is requested
  int prefetch = 2;        ///< batches prepared ahead per worker
  bool drop_last = false;  ///< skip the last batch if it is not full
  std::vector<BatchTransform<B>> transforms = {};           ///< applied in order, after collating
  std::function<B(std::vector<E>&& samples)> collate = {};  ///< replaces default_collate()
  std::shared_ptr<const Sampler> sampler = {};              ///< replaces shuffle
  std::shared_ptr<const BatchSampler> batch_sampler =
      {};  ///< replaces batch_size, shuffle, drop_last and sampler
  /// A CUDA device to which workers copy the batches, through pinned memory and on the loader's own stream.
  /// The device then holds up to num_workers * prefetch batches. The host does not wait for the copies.
  std::optional<Device> device = {};
};

/// A position in the samples, to save and resume. It is valid for every number of ranks, every batch size and
/// every number of workers, if the samples and their order are the same.
struct LoaderState {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t sample = 0;   ///< samples of this epoch that all ranks together have read so far
  std::int64_t samples = 0;  ///< of the dataset
  std::int64_t total = 0;    ///< of an epoch over all ranks: BatchSampler::total(). 0: not known
  /// In texts of earlier versions, instead of `sample`: the batches that each rank has read and those of the
  /// epoch.
  struct Batches {
    std::int64_t read = 0, all = 0;
  };
  std::optional<Batches> batches = {};

  /// Returns text such as "seed=7 epoch=1 sample=5120 samples=60000 total=60000", for a checkpoint.
  std::string str() const;
  /// Parses the text of str(), also of earlier versions. Throws ValueError for any other text.
  static LoaderState parse(const std::string& text);
};

namespace detail {

/// The batches of one epoch. All workers of a loader share it.
struct EpochPlan {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::vector<std::vector<std::int64_t>> batches;  // that are left
  std::int64_t done = 0;                           // the number of those before them

  /// Returns the seed of the generator for Dataset::get(index).
  std::uint64_t sample_seed(std::int64_t index) const;
  /// Throws SampleError with the message of `cause`. If `index` is -1, the error lists the first samples of
  /// the batch.
  [[noreturn]] void rethrow(std::exception_ptr cause, std::int64_t batch, std::int64_t index) const;
};

/// Throws ValueError if options contradict each other.
void check_order_options(std::int64_t batch_size, bool shuffle, bool drop_last, bool sampler,
                         bool batch_sampler);
/// Checks a position, and converts those of earlier versions. Throws ValueError unless it comes from a loader
/// with this many samples, its epoch is not negative, and it is not behind the end of the epoch.
LoaderState checked_state(LoaderState state, std::int64_t samples, const BatchSampler& sampler);

template <class E, class B>
class IndexedBatchMaker : public BatchMaker<Dataset<E>, B, DataLoaderOptions<E, B>> {
 public:
  using Base = BatchMaker<Dataset<E>, B, DataLoaderOptions<E, B>>;
  using Base::Base;

  /// Makes batch `k` of the plan. The result does not depend on the calling thread's context.
  std::shared_ptr<MadeBatch<B>> make(const EpochPlan& plan, std::int64_t k) const {
    const std::vector<std::int64_t>& indices = plan.batches[static_cast<std::size_t>(k)];
    Generator generator(plan.sample_seed(indices.empty() ? 0 : indices[0]));
    const ContextGuard guard(loading_context(generator));
    std::exception_ptr error;
    try {
      return this->finish(assemble(plan, k, indices), {plan.seed, plan.epoch, indices});
    } catch (const SampleError&) {
      throw;
    } catch (...) {
      error = std::current_exception();
    }
    plan.rethrow(std::move(error), k, -1);
  }

 private:
  B assemble(const EpochPlan& plan, std::int64_t k, const std::vector<std::int64_t>& indices) const {
    std::exception_ptr bulk;
    if constexpr (std::is_same_v<E, B>) {
      if (!this->options().collate) {
        try {
          if (std::optional<E> batch = this->dataset().get_batch(indices)) return std::move(*batch);
        } catch (...) {
          bulk = std::current_exception();  // fetching the samples one by one finds the one that failed
        }
      }
    }
    std::vector<E> samples;
    samples.reserve(indices.size());
    for (std::int64_t index : indices) samples.push_back(get(plan, k, index));
    if (bulk) std::rethrow_exception(std::move(bulk));
    return this->collate(std::move(samples));
  }

  E get(const EpochPlan& plan, std::int64_t k, std::int64_t index) const {
    std::exception_ptr error;
    current_context().generator->set_state({plan.sample_seed(index), 0});
    try {
      return this->dataset().get(index);
    } catch (...) {
      error = std::current_exception();
    }
    plan.rethrow(std::move(error), k, index);
  }
};

}  // namespace detail

template <class E = Example, class B = typename DefaultBatch<E>::type>
class DataLoader {
  class Pass;

 public:
  using Options = DataLoaderOptions<E, B>;
  using Iterator = detail::LoaderIterator<B, Pass>;

  /// Throws ValueError if options are out of range or contradict each other.
  DataLoader(std::shared_ptr<const Dataset<E>> dataset, Options options = {}) {
    detail::check_order_options(options.batch_size, options.shuffle, options.drop_last,
                                options.sampler != nullptr, options.batch_sampler != nullptr);
    position_->seed = options.seed;
    maker_ = std::make_shared<const detail::IndexedBatchMaker<E, B>>("DataLoader", std::move(dataset),
                                                                     std::move(options));
  }
  /// Copies the dataset, which should be cheap to copy, such as a TensorDataset.
  template <std::derived_from<Dataset<E>> D>
  DataLoader(const D& dataset, Options options = {})
      : DataLoader(std::make_shared<const D>(dataset), std::move(options)) {}

  /// Starts a pass over the next epoch, or over the rest of an epoch after load_state(). Only one pass may
  /// run at a time.
  Iterator begin() {
    if (started_ && position_->sample > 0) {  // the last pass did not reach its end
      ++position_->epoch;
      position_->sample = 0;
    }
    started_ = true;
    const BatchSampler& order = batch_sampler();
    detail::EpochPlan plan{position_->seed, position_->epoch,
                           order.batches_from(position_->epoch, position_->sample)};
    const std::int64_t done = order.size() - static_cast<std::int64_t>(plan.batches.size());
    plan.done = done > 0 ? done : 0;
    return Iterator(std::make_unique<Pass>(maker_, std::move(plan), position_, order.ranks(), order.total()));
  }
  std::default_sentinel_t end() const { return {}; }

  /// The number of batches of a whole epoch.
  std::int64_t size() const { return batch_sampler().size(); }
  const Dataset<E>& dataset() const { return maker_->dataset(); }
  /// The current epoch. After a complete pass, the next epoch.
  std::int64_t epoch() const { return position_->epoch; }
  /// Makes the next pass start at the first batch of this epoch.
  void set_epoch(std::int64_t epoch) {
    position_->epoch = epoch;
    position_->sample = 0;
  }

  /// Returns the position after the last returned batch.
  LoaderState state() const {
    LoaderState state = *position_;
    state.samples = maker_->dataset().size();
    if (const std::int64_t total = batch_sampler().total(); total < INT64_MAX) state.total = total;
    return state;
  }
  /// Makes the next pass continue from this position: with the same bits if the batch size and the number of
  /// ranks are the same, and otherwise with the samples that are left, in their order. Throws ValueError if
  /// the state belongs to another dataset or to an order of another length, or if there is no such position.
  void load_state(const LoaderState& state) {
    *position_ = detail::checked_state(state, maker_->dataset().size(), batch_sampler());
    started_ = false;
  }

 private:
  const BatchSampler& batch_sampler() const {
    const Options& o = maker_->options();
    if (o.batch_sampler) return *o.batch_sampler;
    if (!own_sampler_ || own_seed_ != position_->seed) {
      std::shared_ptr<const Sampler> order = o.sampler;
      if (!order && o.shuffle)
        order = std::make_shared<RandomSampler>(maker_->dataset().size(), position_->seed);
      if (!order) order = std::make_shared<SequentialSampler>(maker_->dataset().size());
      own_sampler_ = std::make_unique<BatchSampler>(std::move(order), o.batch_size, o.drop_last);
      own_seed_ = position_->seed;
    }
    return *own_sampler_;
  }

  std::shared_ptr<const detail::IndexedBatchMaker<E, B>> maker_;
  std::shared_ptr<LoaderState> position_ = std::make_shared<LoaderState>();
  bool started_ = false;
  mutable std::unique_ptr<BatchSampler> own_sampler_;
  mutable std::uint64_t own_seed_ = 0;
};

template <class E, class B>
class DataLoader<E, B>::Pass {
 public:
  using Maker = std::shared_ptr<const detail::IndexedBatchMaker<E, B>>;
  Pass(Maker maker, detail::EpochPlan plan, std::shared_ptr<LoaderState> position, std::int64_t ranks,
       std::int64_t total)
      : maker_(std::move(maker)),
        plan_(std::move(plan)),
        position_(std::move(position)),
        ranks_(ranks),
        total_(total),
        batches_([this](std::int64_t k) { return maker_->make(plan_, k); }, 0,
                 static_cast<std::int64_t>(plan_.batches.size()), maker_->options().num_workers,
                 maker_->options().prefetch) {}
  std::shared_ptr<detail::MadeBatch<B>> next() {
    auto made = std::static_pointer_cast<detail::MadeBatch<B>>(batches_.next());
    if (made) {
      maker_->arrive(*made);
      const auto read = static_cast<std::int64_t>(plan_.batches[next_++].size()) * ranks_;
      position_->sample = total_ - position_->sample < read ? total_ : position_->sample + read;
    } else {
      ++position_->epoch;
      position_->sample = 0;
    }
    return made;
  }

 private:
  const Maker maker_;
  const detail::EpochPlan plan_;
  const std::shared_ptr<LoaderState> position_;
  const std::int64_t ranks_, total_;  // BatchSampler::ranks() and total()
  std::size_t next_ = 0;              // the number of the next batch in the plan
  Prefetcher batches_;
};

template <class D>
requires std::derived_from<D, Dataset<typename D::ExampleType>> DataLoader(
    const D&, DataLoaderOptions<typename D::ExampleType> = {})
->DataLoader<typename D::ExampleType>;
template <class D>
DataLoader(const std::shared_ptr<D>&, DataLoaderOptions<typename D::ExampleType> = {})
    -> DataLoader<typename D::ExampleType>;

}  // namespace tapestry::data
