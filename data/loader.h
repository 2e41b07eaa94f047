#pragma once
// What DataLoader and IterableLoader share: samples become a batch, which is transformed and copied to a
// device, and a range-for loop goes over the batches.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
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
#include "tapestry/data/prefetcher.h"
#include "tapestry/data/rng.h"
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

/// Throws ValueError if one of these options, which all loaders have, is out of range.
void check_options(const char* loader, std::int64_t batch_size, int num_workers, int prefetch);

/// The context in which samples are read and batches made: no gradients, and random numbers of `generator`.
Context loading_context(Generator& generator);

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

/// Makes batches of a dataset's samples as the options of a loader say.
template <class D, class B, class Options>
class BatchMaker {
 public:
  using E = typename D::ExampleType;
  BatchMaker(const char* loader, std::shared_ptr<const D> dataset, Options options)
      : loader_(loader), dataset_(std::move(dataset)), options_(std::move(options)) {
    (check)(dataset_ != nullptr, "[", loader, "] the dataset is null");
    check_options(loader, options_.batch_size, options_.num_workers, options_.prefetch);
    if (!options_.device || options_.device->is_cpu()) return;
    (check)(has_tensors<B>, "[", loader, "] batches of this type are not moved to ", *options_.device,
            "; leave out the device, and move what is in them with .to()");
    upload_ = std::make_unique<Upload>(*options_.device);
  }

  const D& dataset() const { return *dataset_; }
  const Options& options() const { return options_; }

  B collate(std::vector<E>&& samples) const {
    if (options_.collate) return options_.collate(std::move(samples));
    if constexpr (makes_batch<E, B>) return default_collate(std::move(samples));
    else if constexpr (std::is_same_v<B, std::vector<E>>) return std::move(samples);
    else (fail)("[", loader_, "] batches of this type need a collate in the options");
  }
  /// Transforms the batch and starts its copy to the device.
  std::shared_ptr<MadeBatch<B>> finish(B batch, BatchContext context) const {
    auto made = std::make_shared<MadeBatch<B>>(MadeBatch<B>{std::move(batch), Event()});
    for (const BatchTransform<B>& transform : options_.transforms) {
      transform(made->batch, context);
      ++context.use;
    }
    if constexpr (has_tensors<B>)
      if (upload_) {
        for_tensors(made->batch, [&](Tensor& t) { t = upload_->send(t); });
        upload_->mark(made->ready);
      }
    return made;
  }
  /// Makes the calling thread's current stream wait until the batch has been copied.
  void arrive(MadeBatch<B>& made) const {
    if constexpr (has_tensors<B>)
      if (upload_) for_tensors(made.batch, [&](const Tensor& t) { upload_->arrive(t, made.ready); });
  }

 private:
  const char* loader_;  // for error messages
  std::shared_ptr<const D> dataset_;
  Options options_;
  std::unique_ptr<const Upload> upload_;  // null if batches stay on the CPU
};

/// One pass over the data. Its destructor, which also runs at a `break`, stops the workers.
template <class B, class Pass>
class LoaderIterator {
 public:
  using value_type = B;
  using difference_type = std::ptrdiff_t;
  /// `pass->next()` returns the next batch, or null at the end.
  explicit LoaderIterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { advance(); }
  B& operator*() const { return made_->batch; }
  B* operator->() const { return &made_->batch; }
  LoaderIterator& operator++() {
    advance();
    return *this;
  }
  void operator++(int) { advance(); }
  friend bool operator==(const LoaderIterator& it, std::default_sentinel_t) { return it.made_ == nullptr; }

 private:
  void advance() {
    made_.reset();
    if (!pass_) return;
    try {
      made_ = pass_->next();
    } catch (...) {
      pass_.reset();
      throw;
    }
    if (!made_) pass_.reset();
  }
  std::unique_ptr<Pass> pass_;
  std::shared_ptr<MadeBatch<B>> made_;
};

}  // namespace detail
}  // namespace tapestry::data
