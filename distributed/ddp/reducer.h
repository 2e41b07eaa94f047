#pragma once
// Averages gradients while backward runs. Not in tapestry.h: DistributedDataParallel is made of one.
//
// A hook on each leaf copies its gradient into its place in a bucket and makes that place the leaf's grad().
// A bucket whose last gradient has come is posted at once if those before it were: the order of buckets is
// the same on all ranks. The group's own thread communicates meanwhile. At the end of the pass the buckets
// are waited for.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/ddp/bucket.h"
#include "tapestry/distributed/ddp/comm_hook.h"
#include "tapestry/distributed/ddp/report.h"
#include "tapestry/distributed/ddp/trace.h"

namespace tapestry::distributed {

struct ReducerOptions {
  std::size_t first_bucket_bytes = 1 << 20;
  std::size_t bucket_cap_bytes = 25 << 20;
  bool find_unused = true;
  bool static_graph = false;
  bool relearn_order = true;
};

/// The sizes given in MiB (2^20 bytes), the first at most the cap. Throws ValueError, naming `op`, for one
/// that is not above 0.
ReducerOptions bucket_sizes(const char* op, double bucket_cap_mb, double first_bucket_mb);

/// Whether there is a Reducer for this parameter.
bool has_reducer(const Tensor& parameter);

class Reducer {
 public:
  /// Registers a hook on every one of the parameters: leaves that require gradients. ValueError if one has a
  /// Reducer already: each would put its own mean in the place of the other's.
  Reducer(std::vector<std::pair<std::string, Tensor>> parameters, std::shared_ptr<ProcessGroup> group,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  bool synchronise = true;  ///< looked at when a gradient arrives
  CommHook comm_hook;
  Trace* trace = nullptr;
  /// Called on all ranks at the end of the first pass, and of a pass before which the ranks had not changed
  /// their parameters equally often. That is seen on the CPU alone: a GPU would have to be waited for.
  std::function<void()> compare_values;

  /// Backward passes that were averaged.
  std::uint64_t passes() const { return passes_; }
  /// Takes part in a pass of the other ranks, to which this one has nothing to give. Outside backward.
  void pass_without_gradients();

  DdpReport report() const;
  const std::vector<std::string>& unused() const { return unused_; }
  std::vector<std::vector<std::string>> bucket_names() const;

 private:
  struct Parameter {
    std::string name;
    Tensor tensor;
    HookHandle hook;
    int bucket = 0;
    Tensor view;               // its place in the bucket, in its own shape and strides
    Tensor mark;               // one element behind the bucket's gradients: 1 if this rank used it
    bool ready = false;        // in this pass
    bool used = false;         // by this pass
    bool pending_sum = false;  // passes under no_sync left something to average
  };
  struct Bucket {
    std::vector<int> parameters;
    Tensor buffer;  // gradients, then the marks
    Tensor marks;
    Tensor changes;    // in the first bucket the last of the marks: how often this rank changed parameters
    GradBucket shown;  // to the hook and the record
    int missing = 0;   // parameters that are not ready
    InFlight flight;
    Work marks_work;  // where a hook reduces the gradients alone
    Clock::time_point posted;
  };

  // No other reducer has these parameters as long as it lives.
  class Claim {
   public:
    explicit Claim(const std::vector<std::pair<std::string, Tensor>>& parameters);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    std::vector<Tensor> parameters_;
  };

  void build(const std::vector<int>& order);
  void on_gradient(int index);
  void begin_pass();
  void reset_pass(std::uint64_t id, Clock::time_point began);
  void mark_ready(int index, bool used);
  void copy_in(Parameter& p);
  void post_full_buckets();
  void post(Bucket& bucket);
  void finish_pass();
  void settle_unused(Bucket& bucket);
  void note_changes();
  bool changed_apart() const;
  void check_static_graph();
  void learn_order();
  void abandon_pass() noexcept;
  double since_began(Clock::time_point t) const;

  const ReducerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const Claim claim_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;

  std::uint64_t pass_ = 0;  // the pass in progress; 0: none
  Clock::time_point began_, computed_, finished_, last_event_;
  std::size_t next_bucket_ = 0;     // to be posted
  std::vector<int> arrival_;        // parameters in the order of their gradients
  std::vector<int> learned_order_;  // for the next pass, if not empty
  std::vector<int> used_at_first_;  // static_graph: what every pass must use
  std::uint64_t passes_ = 0;
  std::uint32_t versions_ = 0;  // the sum over parameters
  std::uint32_t changes_ = 0;   // what the pass before has not seen of it
  std::vector<std::string> unused_;
};

}  // namespace tapestry::distributed
