#pragma once
// Reducer averages gradients over ranks while backward runs. DistributedDataParallel and DataParallel use it.
//
// A hook on each leaf copies the gradient into its place in a bucket and makes that place the leaf's grad().
// A bucket is posted when its last gradient has arrived and all earlier buckets have been posted, so all
// ranks post buckets in the same order. The group's thread communicates while backward computes. The end of
// the pass waits for all buckets.
//
// divide() makes the reducer reduce-scatter the buckets instead (stage 2 of ZeRO). Each rank keeps the means
// of its chunk of each bucket. The memory of a bucket exists from its first gradient until its reduction is
// done. reducer_division.cpp has this part.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/common/comm_hook.h"
#include "tapestry/distributed/common/ddp_report.h"
#include "tapestry/distributed/common/internal/division.h"
#include "tapestry/nn/internal/divided_gradients.h"

namespace tapestry::distributed {

struct ReducerOptions {
  std::size_t first_bucket_bytes = 1 << 20;
  std::size_t bucket_cap_bytes = 25 << 20;
  bool find_unused = true;
  bool static_graph = false;
  bool relearn_order = true;
  /// mean, or sum. With sum, gradients that an earlier pass has summed count on rank 0 alone when the next
  /// pass adds to them.
  ReduceOp reduce = ReduceOp::mean;
};

/// Converts bucket sizes from MiB (2^20 bytes). The first size is at most the cap. Throws ValueError that
/// begins with [op] if a size is not above 0.
ReducerOptions bucket_sizes(const char* op, double bucket_cap_mb, double first_bucket_mb);

class Reducer;
/// The Reducer that averages the gradient of this parameter, or null. It exists as long as its
/// DistributedDataParallel.
Reducer* reducer_of(const Tensor& parameter);
inline bool has_reducer(const Tensor& parameter) { return reducer_of(parameter) != nullptr; }

class Reducer : private nn::DividedGradients {
 public:
  /// Registers a hook on every parameter. Parameters are leaves that require gradients. Throws ValueError if
  /// one has a Reducer already: each Reducer would overwrite the mean of the other.
  Reducer(std::vector<std::pair<std::string, Tensor>> parameters, std::shared_ptr<ProcessGroup> group,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// False: accumulate locally. Read when a gradient arrives. A NoSync shares it.
  const std::shared_ptr<bool> synchronize = std::make_shared<bool>(true);
  CommHook comm_hook;
  /// If set, checks at the end of a pass that all ranks have equal parameters. It is called on all ranks
  /// after the first pass, and after each pass before which the ranks changed their parameters a different
  /// number of times. Only parameters on the CPU are counted, because reading the result on a GPU would
  /// synchronize with it.
  std::function<void()> compare_values;
  /// If set, a number that must be equal on all ranks when a pass begins. A difference counts as a change.
  std::function<std::uint64_t()> fingerprint;
  /// If set, is called on all ranks at the end of each pass that was averaged.
  std::function<void()> after_pass;

  /// If set, is called on the ranks that have gradients when a pass that is averaged begins, before the rank
  /// posts anything.
  std::function<void()> before_pass;
  /// Multiplies the means. Other than 1 if they are divided by another number than that of the ranks.
  double mean_factor = 1;
  /// True while some ranks have joined (join.h). Their weights differ from those of the others, so the ranks
  /// are not compared.
  bool some_joined = false;

  /// Pairs two reducers of one model, over different groups. From now on they begin and end passes together,
  /// and all ranks post the buckets of both in one order, whichever gradients arrive first. Call it on each
  /// rank for the same two. A destroyed reducer leaves the pair.
  void pair_with(Reducer& second);
  bool is_paired() const { return first_ || second_; }
  /// The number of backward passes that were averaged.
  std::uint64_t passes() const { return passes_; }
  /// Takes part in the collectives of a pass in which this rank has no gradients. Call it outside backward.
  void pass_without_gradients();
  /// The device of the first bucket.
  Device device() const { return division_.buckets()[0].device; }

  // ---- divided gradients ----
  // After a pass, grad() of a parameter that got a gradient is a tensor without memory
  // (nn::DividedGradients). zero_grad() and set_grad() replace it as any gradient. The next pass adds to the
  // part if it is still there.

  /// Divides the gradients of all later passes. `ended` is called if the reducer is destroyed before
  /// undivide(). `alone` is in the order of parameters(). A parameter for which it is true gets a bucket of
  /// its own, so that its size alone decides which elements a rank has. Call it on all ranks, between passes.
  /// Throws ValueError if the gradients are divided already.
  void divide(std::function<void()> ended, const std::vector<bool>& alone);
  /// Ends the division. Divided gradients become undefined.
  void undivide();
  /// Where the parameters lie, in the order in which they were given to the constructor. A new order that the
  /// first pass has learned is applied first; then the call is collective.
  const Division& settle_division();
  /// The order of parameters in the buckets.
  const std::vector<int>& order() const { return order_; }
  /// Sets the order of parameters for all later passes, which then is not learned. Throws ValueError unless
  /// `order` is a permutation. Call it on all ranks, before the first pass.
  void fix_order(const std::vector<int>& order);
  /// This rank's elements of the mean gradient of a parameter. Undefined if the last pass left no gradient,
  /// or if something else replaced it.
  Tensor gradient_part(int parameter);
  /// Gives a parameter a divided gradient of zeros. Returns false, and does nothing, if gradients are not
  /// divided.
  bool begin_part(const Tensor& parameter);
  std::vector<std::pair<std::string, Tensor>> parameters() const;
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  DdpReport report() const;
  const std::vector<std::string>& unused() const { return unused_; }
  std::vector<std::vector<std::string>> bucket_names() const;

 private:
  struct Parameter {
    std::string name;
    Tensor tensor;
    HookHandle hook;
    int bucket = 0;
    Tensor view;               // its place in the bucket, with the parameter's shape and strides
    Tensor used_flag;          // one element after the bucket's gradients: 1 if this rank used the parameter
    bool ready = false;        // true if its place in the bucket is filled for this pass
    bool used = false;         // true if this pass, or one under no_sync(), computed a gradient
    bool pending_sum = false;  // true if passes under no_sync() left a gradient to average
    Tensor reduced;            // ReduceOp::sum: grad() as the last pass left it, the same on all ranks
    bool used_anywhere = false;  // static_graph: true if a rank used the parameter in the first pass
    HookHandle before_sum;       // ReduceOp::sum: runs once, before a gradient is added to `reduced`
    bool watches_sum = false;    // before_sum is registered
    // If the gradients are divided:
    bool alone = false;     // in a bucket of its own
    HookHandle before;      // runs before a gradient is added to grad()
    StorageRef no_memory;   // the storage of grad() if this rank's part is valid
    bool has_part = false;  // true if the part is valid although grad() has the sum of passes since then
    bool adds = false;      // true if this pass adds to the part instead of replacing it
    bool filled = false;    // true if its place in the bucket has this pass's gradient
  };
  struct Bucket {
    std::vector<int> parameters;
    Tensor buffer;          // gradients, then flags; if divided, gradients only, while the bucket is open
    std::size_t bytes = 0;  // of the gradients
    Tensor flags;           // the used flags, then `changes`
    Tensor changes;    // in the first bucket only: how often this rank changed parameters, encoded as bits
    GradBucket grads;  // the gradients as comm hooks and the flight recorder see them
    int missing = 0;   // parameters that are not ready
    InFlight in_flight;
    Work flags_work;  // reduces the flags if they are not reduced with the gradients
    Tensor parts;     // if divided: the means of this rank's chunk
    Tensor received;  // if divided: where the reduce-scatter writes them
    Clock::time_point posted;
  };

  // Claims parameters for this reducer. While a Claim exists, no other reducer can take them.
  class Claim {
   public:
    Claim(const std::vector<std::pair<std::string, Tensor>>& parameters, Reducer* reducer);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    std::vector<Tensor> parameters_;
  };

  void build(const std::vector<int>& order);
  void on_gradient(int index);
  void begin_pass();
  std::vector<Reducer*> in_pass();
  void reset_pass(std::uint64_t id, Clock::time_point began);
  void mark_ready(int index, bool used);
  void copy_in(Parameter& p);
  bool is_reduced(const Parameter& p) const;
  void leave_sum_to_rank_0(int index);
  void start_hook(Bucket& bucket);
  void post_full_buckets();
  bool post_next();
  bool is_next() const;
  void post(Bucket& bucket);
  void complete(Bucket& bucket);
  static void finish_passes(const std::vector<Reducer*>& reducers);
  void post_rest();
  void finish_pass();
  void finish_unused(Bucket& bucket);
  void watch_sums(Bucket& bucket);
  void count_changes();
  bool ranks_changed_differently() const;
  bool used_by_a_rank(const Parameter& p) const;
  void check_static_graph();
  void learn_graph();
  void learn_order();
  void abandon_pass() noexcept;
  // Divided gradients: see reducer_division.cpp.
  static bool is_part(const Parameter& p, const Tensor& grad);
  Tensor part_view(int index);
  void end_division();
  void before_gradient(int index);
  void keep_part_if_no_sum(int index);
  void open(Bucket& bucket);
  void copy_in_divided(Parameter& p);
  void post_divided(Bucket& bucket);
  void receive_parts(Bucket& bucket);
  void set_part_as_gradient(Parameter& p);
  void move_parts(std::vector<Bucket> old, const Division& old_division);
  void rebuild();
  Tensor part(const Storage& storage) override;
  std::string why_released(const Storage& storage) const override;
  void refill(Storage& storage) override;
  int rank() const override { return group_->rank(); }
  int ranks() const override { return group_->size(); }
  void sum_over_ranks(const Tensor& values) override;
  double since_began(Clock::time_point t) const;

  static constexpr std::size_t kBucketsInFlight = 2;  // divided buckets that are posted and not complete

  const ReducerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const Claim claim_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  Division division_;
  std::vector<int> order_;  // of the parameters in the buckets
  bool divided_ = false;
  bool order_fixed_ = false;
  bool abandoned_ = false;       // the pass before ended with an exception
  std::function<void()> ended_;  // tells the owner of the division that the reducer is gone
  std::unordered_map<const Storage*, int> parameter_of_;  // by Parameter::no_memory
  std::optional<DdpReport> last_report_;                  // if the buckets of the last pass exist no more

  Reducer *first_ = nullptr, *second_ = nullptr;  // of a pair: the other one
  bool without_gradients_ = false;                // pass_without_gradients() runs
  std::uint64_t pass_ = 0;                        // the id of the pass in progress; 0 between passes
  Clock::time_point began_, computed_, finished_, last_gradient_;
  std::size_t next_bucket_ = 0;     // the next one to post
  std::size_t next_complete_ = 0;   // the next one to wait for
  std::vector<int> arrival_;        // parameters in the order in which their gradients arrived
  std::vector<int> learned_order_;  // the order for the next pass, if not empty
  std::vector<int> used_at_first_;  // static_graph: the parameters that every pass of this rank must use
  std::uint64_t passes_ = 0;
  std::uint32_t versions_ = 0;  // the sum of all parameters' versions at the last pass
  std::uint32_t changes_ = 0;   // the growth of that sum since the pass before
  std::vector<std::string> unused_;
};

}  // namespace tapestry::distributed
