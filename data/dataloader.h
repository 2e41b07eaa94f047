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
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/generator.h"
#include "tapestry/data/batch.h"
#include "tapestry/data/collate.h"
#include "tapestry/data/dataset.h"
#include "tapestry/data/prefetcher.h"
#include "tapestry/data/rng.h"
#include "tapestry/data/sampler.h"
#include "tapestry/data/upload.h"

namespace tapestry::data {

/// Tells a transform which batch it changes, so that it can draw the random numbers of each sample.
struct BatchContext {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::span<const std::int64_t> indices;  ///< indices of the samples, in batch order
  std::uint64_t use = 2;                  ///< a different number for each transform of a loader

  /// Returns random numbers for the i-th sample of the batch. They depend only on the seed, the epoch, the
  /// sample's index and the transform's position.
  Rng rng(std::size_t i) const {
    return Rng(derive_key(seed, epoch, use), static_cast<std::uint64_t>(indices[i]));
  }
};

/// A function that changes a batch, usually by replacing its input. Several workers may call it at the same
/// time.
template <class B = Example>
using BatchTransform = std::function<void(B& batch, const BatchContext& context)>;

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

/// A position in the sequence of batches, to save and resume. `samples` and `batches` describe the loader,
/// because a position is valid only for the loader that produced it.
struct LoaderState {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  ///< batches of this epoch that were returned so far
  std::int64_t samples = 0, batches = 0;

  /// Returns text such as "seed=7 epoch=1 batch=40 samples=60000 batches=469", for a checkpoint.
  std::string str() const;
  /// Parses the text of str(). Throws ValueError for any other text.
  static LoaderState parse(const std::string& text);
};

/// Thrown if a sample could not be loaded, collated or transformed. The message names the sample and contains
/// the message of the cause.
class SampleError : public Error {
 public:
  SampleError(const std::string& text, std::int64_t index, std::exception_ptr cause)
      : Error(text), index_(index), cause_(std::move(cause)) {}
  /// The sample's index in the dataset, or -1 if only the batch is known.
  std::int64_t index() const { return index_; }
  /// The original exception.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  std::int64_t index_;
  std::exception_ptr cause_;
};

namespace detail {

/// The batches of one epoch. All workers of a loader share it.
struct EpochPlan {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::vector<std::vector<std::int64_t>> batches;

  /// Returns the seed of the generator for Dataset::get(index).
  std::uint64_t sample_seed(std::int64_t index) const;
  /// Throws SampleError with the message of `cause`. If `index` is -1, the error lists the first samples of
  /// the batch.
  [[noreturn]] void rethrow(std::exception_ptr cause, std::int64_t batch, std::int64_t index) const;
};

/// Throws ValueError if options contradict each other.
void check_loader_options(std::int64_t batch_size, bool shuffle, bool drop_last, int num_workers,
                          int prefetch, bool sampler, bool batch_sampler);
/// Throws ValueError unless `state` comes from a loader with this many samples and batches per epoch, its
/// epoch is not negative, and its position is one of these batches or the end of the epoch.
void check_loader_state(const LoaderState& state, std::int64_t samples, std::int64_t batches);

/// True if default_collate() makes a B of samples of type E.
template <class E, class B>
inline constexpr bool makes_batch = false;
template <Collatable E>
inline constexpr bool makes_batch<E, batch_of<E>> = true;

/// A batch, and the event of its copy to the device.
template <class B>
struct MadeBatch {
  B batch;
  Event ready;
};

template <class E, class B>
class BatchMaker {
 public:
  BatchMaker(std::shared_ptr<const Dataset<E>> dataset, DataLoaderOptions<E, B> options)
      : dataset_(std::move(dataset)), options_(std::move(options)) {
    if (!options_.device || options_.device->is_cpu()) return;
    (check)(has_tensors<B>, "[DataLoader] batches of this type are not moved to ", *options_.device,
            "; leave out the device, and move what is in them with .to()");
    upload_ = std::make_unique<Upload>(*options_.device);
  }

  /// Makes batch `k` of the plan. The result does not depend on the calling thread's context.
  std::shared_ptr<MadeBatch<B>> make(const EpochPlan& plan, std::int64_t k) const {
    const std::vector<std::int64_t>& indices = plan.batches[static_cast<std::size_t>(k)];
    Generator generator(plan.sample_seed(indices.empty() ? 0 : indices[0]));
    Context context;
    context.grad_enabled = false;
    context.generator = &generator;
    const ContextGuard guard(context);
    std::exception_ptr error;
    try {
      auto made = std::make_shared<MadeBatch<B>>(MadeBatch<B>{assemble(plan, k, indices), Event()});
      for (std::size_t t = 0; t < options_.transforms.size(); ++t)
        options_.transforms[t](made->batch, {plan.seed, plan.epoch, indices, 2 + t});
      send(*made);
      return made;
    } catch (const SampleError&) {
      throw;
    } catch (...) {
      error = std::current_exception();
    }
    plan.rethrow(std::move(error), k, -1);
  }

  /// Makes the calling thread's current stream wait until the batch has been copied.
  void arrive(MadeBatch<B>& made) const {
    if constexpr (has_tensors<B>)
      if (upload_) for_tensors(made.batch, [&](const Tensor& t) { upload_->arrive(t, made.ready); });
  }

  const Dataset<E>& dataset() const { return *dataset_; }
  const DataLoaderOptions<E, B>& options() const { return options_; }

 private:
  void send(MadeBatch<B>& made) const {
    if constexpr (has_tensors<B>)
      if (upload_) {
        for_tensors(made.batch, [&](Tensor& t) { t = upload_->send(t); });
        upload_->mark(made.ready);
      }
  }

  B assemble(const EpochPlan& plan, std::int64_t k, const std::vector<std::int64_t>& indices) const {
    std::exception_ptr bulk;
    if constexpr (std::is_same_v<E, B>) {
      if (!options_.collate) {
        try {
          if (std::optional<E> batch = dataset_->get_batch(indices)) return std::move(*batch);
        } catch (...) {
          bulk = std::current_exception();  // fetching the samples one by one finds the one that failed
        }
      }
    }
    std::vector<E> samples;
    samples.reserve(indices.size());
    for (std::int64_t index : indices) samples.push_back(get(plan, k, index));
    if (bulk) std::rethrow_exception(std::move(bulk));
    if (options_.collate) return options_.collate(std::move(samples));
    if constexpr (makes_batch<E, B>) return default_collate(std::move(samples));
    else if constexpr (std::is_same_v<B, std::vector<E>>) return samples;
    else (fail)("[DataLoader] batches of this type need a collate in the options");
  }

  E get(const EpochPlan& plan, std::int64_t k, std::int64_t index) const {
    std::exception_ptr error;
    current_context().generator->set_state({plan.sample_seed(index), 0});
    try {
      return dataset_->get(index);
    } catch (...) {
      error = std::current_exception();
    }
    plan.rethrow(std::move(error), k, index);
  }

  std::shared_ptr<const Dataset<E>> dataset_;
  DataLoaderOptions<E, B> options_;
  std::unique_ptr<const Upload> upload_;  // null if batches stay on the CPU
};

}  // namespace detail

template <class E = Example, class B = typename DefaultBatch<E>::type>
class DataLoader {
 public:
  using Options = DataLoaderOptions<E, B>;

  /// Throws ValueError if options are out of range or contradict each other.
  DataLoader(std::shared_ptr<const Dataset<E>> dataset, Options options = {}) {
    (check)(dataset != nullptr, "[DataLoader] the dataset is null");
    detail::check_loader_options(options.batch_size, options.shuffle, options.drop_last, options.num_workers,
                                 options.prefetch, options.sampler != nullptr,
                                 options.batch_sampler != nullptr);
    position_->seed = options.seed;
    maker_ = std::make_shared<const detail::BatchMaker<E, B>>(std::move(dataset), std::move(options));
  }
  /// Copies the dataset, which should be cheap to copy, such as a TensorDataset.
  template <std::derived_from<Dataset<E>> D>
  DataLoader(const D& dataset, Options options = {})
      : DataLoader(std::make_shared<const D>(dataset), std::move(options)) {}

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
    friend class DataLoader;
    Iterator(std::shared_ptr<const detail::BatchMaker<E, B>> maker, std::unique_ptr<Prefetcher> pass,
             std::shared_ptr<LoaderState> position)
        : maker_(std::move(maker)), pass_(std::move(pass)), position_(std::move(position)) {
      advance();
    }
    void advance() {
      made_.reset();
      try {
        made_ = std::static_pointer_cast<detail::MadeBatch<B>>(pass_->next());
      } catch (...) {
        pass_.reset();
        throw;
      }
      if (made_) {
        maker_->arrive(*made_);
        ++position_->batch;
        return;
      }
      pass_.reset();
      ++position_->epoch;
      position_->batch = 0;
    }
    std::shared_ptr<const detail::BatchMaker<E, B>> maker_;
    std::unique_ptr<Prefetcher> pass_;
    std::shared_ptr<LoaderState> position_;
    std::shared_ptr<detail::MadeBatch<B>> made_;
  };

  /// Starts a pass over the next epoch, or over the rest of an epoch after load_state(). Only one pass may
  /// run at a time.
  Iterator begin() {
    if (started_ && position_->batch > 0) {  // the last pass did not reach its end
      ++position_->epoch;
      position_->batch = 0;
    }
    started_ = true;
    auto plan = std::make_shared<detail::EpochPlan>();
    plan->seed = position_->seed;
    plan->epoch = position_->epoch;
    plan->batches = batch_sampler().batches(position_->epoch);
    const std::int64_t first = position_->batch, end = static_cast<std::int64_t>(plan->batches.size());
    (check)(first <= end, "[DataLoader] the state is at batch ", first, " of an epoch of ", end, " batches");
    auto make = [maker = maker_, plan](std::int64_t k) -> std::shared_ptr<void> {
      return maker->make(*plan, k);
    };
    const Options& o = maker_->options();
    return Iterator(maker_,
                    std::make_unique<Prefetcher>(std::move(make), first, end, o.num_workers, o.prefetch),
                    position_);
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
    position_->batch = 0;
  }

  /// Returns the position after the last returned batch.
  LoaderState state() const {
    LoaderState state = *position_;
    state.samples = maker_->dataset().size();
    state.batches = size();
    return state;
  }
  /// Makes the next pass continue from this position, with the same bits. Throws ValueError if the state
  /// belongs to another dataset or batch size.
  void load_state(const LoaderState& state) {
    detail::check_loader_state(state, maker_->dataset().size(), size());
    *position_ = state;
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

  std::shared_ptr<const detail::BatchMaker<E, B>> maker_;
  std::shared_ptr<LoaderState> position_ = std::make_shared<LoaderState>();
  bool started_ = false;
  mutable std::unique_ptr<BatchSampler> own_sampler_;
  mutable std::uint64_t own_seed_ = 0;
};

template <class D>
requires std::derived_from<D, Dataset<typename D::ExampleType>> DataLoader(
    const D&, DataLoaderOptions<typename D::ExampleType> = {})
->DataLoader<typename D::ExampleType>;
template <class D>
DataLoader(const std::shared_ptr<D>&, DataLoaderOptions<typename D::ExampleType> = {})
    -> DataLoader<typename D::ExampleType>;

}  // namespace tapestry::data
