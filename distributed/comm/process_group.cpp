// Process groups: check the arguments of a call, number, record and queue it, compare the calls of the ranks,
// and bound every wait.
#include "tapestry/distributed/comm/process_group.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/fork.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/internal/collective.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/group_core.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/internal/messages.h"
#include "tapestry/distributed/comm/internal/parts.h"
#include "tapestry/distributed/comm/internal/post_order.h"
#include "tapestry/distributed/comm/internal/strided.h"
#include "tapestry/distributed/comm/internal/work.h"
#include "tapestry/distributed/comm/p2p_op.h"

namespace tapestry::distributed {
namespace {

using namespace std::chrono_literals;

std::string file_and_line(const SourceLocation& site) {
  const std::string_view file = site.file_name();
  return concat({file.substr(file.find_last_of('/') + 1), ":", site.line()});
}

GroupOptions resolved(GroupOptions options, Device transport) {
  if (!options.check) options.check = check_collectives().value_or(!transport.is_cuda());
  if (options.timeout <= 0ms) options.timeout = default_timeout();
  if (options.warn_after <= 0ms) options.warn_after = std::min<Milliseconds>(60s, options.timeout / 5);
  options.timeout = std::min(options.timeout, kLongestTimeout);
  options.warn_after = std::min(options.warn_after, kLongestTimeout);
  return options;
}

class Group final : public ProcessGroup {
 public:
  explicit Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) { core_->open(); }

  // Waits for the calls in flight. The rank's last group also tells the other ranks that this rank leaves,
  // before it closes its transport. In a child process that fork() made, nothing is closed: the threads do
  // not exist there, and the connections are the parent's.
  ~Group() override {
    if (mark_.is_in_child()) {
      static_cast<void>(new std::shared_ptr<GroupCore>(core_));
      return;
    }
    std::shared_ptr<Work::State> last;
    bool last_group;
    {
      const std::lock_guard lock(member().order);
      last = core_->last;
      last_group = --member().open == 0;
    }
    const Deadline deadline = Clock::now() + core_->options.timeout + 10s;
    if (last && !Fifo::runs_this_thread()) {  // a queue that waits for another one could wait in a circle
      try {
        last->wait_until(deadline, {});
      } catch (const std::exception&) {  // wait() reports it
      }
    }
    for (auto& [key, channel] : core_->channels) channel.fifo->stop(deadline);
    const auto stop_queue = [&] {
      if (core_->queue->fifo) core_->queue->fifo->stop(Clock::now() + 2s);
    };
    if (!member().shared) stop_queue();
    if (!last_group) return;
    if (member().completions) member().completions->stop(deadline);
    member().diagnosis.leave();
    if (member().shared) stop_queue();
  }

  int rank() const override { return core_->backend->rank(); }
  int size() const override { return core_->backend->size(); }
  const std::string& name() const override { return core_->name; }
  std::string backend() const override { return core_->backend->name(); }
  Milliseconds timeout() const override { return core_->options.timeout; }
  const Recorder& recorder() const override { return *member().recorder; }
  Store& store() override { return *core_->store; }

  ScopedWork all_reduce(const Tensor& tensor, ReduceOp op, const CallOptions& options, Site site) override {
    return post({Op::all_reduce, op, -1, tensor, tensor}, options, site);
  }
  ScopedWork broadcast(const Tensor& tensor, int root, const CallOptions& options, Site site) override {
    return post({Op::broadcast, {}, root, tensor, tensor}, options, site);
  }
  ScopedWork reduce(const Tensor& tensor, int root, ReduceOp op, const CallOptions& options,
                    Site site) override {
    return post({Op::reduce, op, root, tensor, tensor}, options, site);
  }
  ScopedWork all_gather(const Tensor& output, const Tensor& input, const CallOptions& options,
                        Site site) override {
    return post({Op::all_gather, {}, -1, {}, {}, {input}, {output}}, options, site);
  }
  ScopedWork all_gather(const Tensor& output, const Tensor& input, int dim, const CallOptions& options,
                        Site site) override {
    dim = check_along("all_gather", output, "output", input, "input", dim, size());
    return post({Op::all_gather, {}, -1, {}, {}, {input}, {blocks_of(output, dim)}, dim}, options, site);
  }
  ScopedWork all_gather(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                        const CallOptions& options, Site site) override {
    return post({Op::all_gather, {}, -1, {}, {}, inputs, outputs}, options, site);
  }
  ScopedWork reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op,
                            const CallOptions& options, Site site) override {
    return post({Op::reduce_scatter, op, -1, {}, {}, {input}, {output}}, options, site);
  }
  ScopedWork reduce_scatter(const Tensor& output, const Tensor& input, int dim, ReduceOp op,
                            const CallOptions& options, Site site) override {
    dim = check_along("reduce_scatter", input, "input", output, "output", dim, size());
    return post({Op::reduce_scatter, op, -1, {}, {}, {blocks_of(input, dim)}, {output}, dim}, options, site);
  }
  ScopedWork reduce_scatter(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                            ReduceOp op, const CallOptions& options, Site site) override {
    return post({Op::reduce_scatter, op, -1, {}, {}, inputs, outputs}, options, site);
  }
  ScopedWork gather(const Tensor& output, const Tensor& input, int root, const CallOptions& options,
                    Site site) override {
    return post({Op::gather, {}, root, input, rank() == root ? output : Tensor()}, options, site);
  }
  ScopedWork scatter(const Tensor& output, const Tensor& input, int root, const CallOptions& options,
                     Site site) override {
    return post({Op::scatter, {}, root, rank() == root ? input : Tensor(), output}, options, site);
  }
  ScopedWork all_to_all(const Tensor& output, const Tensor& input, const CallOptions& options,
                        Site site) override {
    return post({Op::all_to_all, {}, -1, input, output}, options, site);
  }
  ScopedWork all_to_all(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                        const CallOptions& options, Site site) override {
    const auto ranks = static_cast<std::size_t>(size());
    check(outputs.size() == ranks && inputs.size() == ranks, "[all_to_all] got ", outputs.size(),
          " outputs and ", inputs.size(), " inputs; pass one of each for each of the ", ranks, " ranks");
    return post({Op::all_to_all, {}, -1, {}, {}, inputs, outputs}, options, site);
  }
  ScopedWork barrier(const CallOptions& options, Site site) override {
    return post({Op::barrier}, options, site);
  }
  ScopedWork send(const Tensor& tensor, int peer, std::uint32_t tag, const CallOptions& options,
                  Site site) override {
    return post_messages({{{Op::send, {}, peer, tensor, {}}, tag}}, options, site);
  }
  ScopedWork recv(const Tensor& tensor, int peer, std::uint32_t tag, const CallOptions& options,
                  Site site) override {
    return post_messages({{{Op::recv, {}, peer, {}, tensor}, tag}}, options, site);
  }
  ScopedWork batch_isend_irecv(const std::vector<P2POp>& messages, const CallOptions& options,
                               Site site) override {
    std::vector<PostedMessage> calls;
    for (const P2POp& m : messages)
      calls.push_back({{m.sends ? Op::send : Op::recv,
                        {},
                        m.peer,
                        m.sends ? m.tensor : Tensor(),
                        m.sends ? Tensor() : m.tensor},
                       m.tag});
    return post_messages(calls, options, site);
  }

  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& members, Site site) override {
    return make_groups("new_group", {members}, {}, site);
  }
  std::shared_ptr<ProcessGroup> split_group(const std::vector<std::vector<int>>& lists, std::string_view name,
                                            Site site) override {
    return make_groups("split_group", lists, name, site);
  }
  ScopedWork enqueue(std::function<void()> task, const CallOptions& options) override;
  ScopedWork check_order(Site site) override;
  void abort(const std::string& why) noexcept override;

 private:
  GroupMember& member() const { return *core_->member; }
  void check_process(const char* op) const {
    tapestry::detail::refuse_in_capture(op, "collectives need the host; call them outside of the step");
    check<DistributedError>(
        !mark_.is_in_child(), "[", op, "] the process group ", core_->name,
        " was created before fork(), and this child process has none of its threads; create "
        "a group in the child, or fork before init_process_group()");
  }

  // `whole`, whose parts for the ranks lie along dimension `dim`, as RankBlocks needs it.
  Tensor blocks_of(const Tensor& whole, int dim) const {
    return dim == 0 ? whole : blocks_along(whole, dim, size());
  }

  static void describe_list(const std::vector<Tensor>& parts, CollectiveRecord& record) {
    if (parts.size() == 1) {
      record.dtype = parts[0].dtype();
      record.shape = parts[0].sizes();
      return;
    }
    record.tensors = parts.size();
    const bool mixed = std::any_of(parts.begin(), parts.end(),
                                   [&](const Tensor& t) { return t.dtype() != parts[0].dtype(); });
    record.dtype = mixed || parts.empty() ? DType::u8 : parts[0].dtype();
    std::int64_t total = 0;
    for (const Tensor& t : parts) {
      total += mixed ? static_cast<std::int64_t>(t.nbytes()) : t.numel();
      record.list += concat({record.list.empty() ? "" : "\n", t.dtype(), " ", t.sizes()});
    }
    record.shape = {total};
  }
  CollectiveRecord describe(const Collective& call, std::string_view name, const Site& site) const {
    CollectiveRecord record{.group = core_->name,
                            .group_key = core_->hash,
                            .op = call.op,
                            .reduce = call.reduce,
                            .peer = call.peer};
    record.dim = call.dim;
    if (call.has_lists()) {
      describe_list(call.parts(), record);
      if (call.op == Op::all_to_all && record.tensors > 1)
        describe_parts(rank(), call.ins, call.outs, record);
    } else if (call.op != Op::barrier && call.op != Op::new_group) {
      record.dtype = call.part().dtype();
      record.shape = call.part().sizes();
    }
    record.name = name;
    record.site = file_and_line(site);
    return record;
  }

  // The thread of the group's queue, which this starts if needed. member().order must be held.
  Fifo& started_queue() {
    std::unique_ptr<Fifo>& fifo = core_->queue->fifo;
    if (!fifo)
      fifo = std::make_unique<Fifo>(concat(
          {core_->part_of_world && !member().shared ? core_->name : "collectives", " ", member().rank}));
    return *fifo;
  }

  // True if a call can run in the caller's thread, because it waits for nothing.
  bool runs_at_once(const WorkStates& after, Device device) const {
    return size() == 1 && !member().shared && !core_->queue->fifo && device.is_cpu() &&
           std::all_of(after.begin(), after.end(),
                       [](const auto& state) { return state->wait_for(Milliseconds(0), true); });
  }

  static std::string names_of(const WorkStates& after) {
    std::string text;
    for (const auto& state : after) text += (text.empty() ? "" : " and ") + state->what;
    return text;
  }

  // Numbers, records and queues a call.
  ScopedWork post(CollectiveRecord record, WorkStates after, CallBody body, Device device = kCPU) {
    check_process(op_name(record.op));
    std::unique_lock lock(member().order);
    if (const auto failure = member().diagnosis.failure()) failure->raise();
    Fifo* const fifo = runs_at_once(after, device) ? nullptr : &started_queue();
    std::shared_ptr<DeviceWork> on_device;
    if (device.is_cuda()) {
      on_device = std::make_shared<DeviceWork>(core_->queue->stream_on(device));
      body = beside(on_device, std::move(body));
    }
    record.sequence = ++core_->sequence;
    record.after = names_of(after);
    const std::uint64_t ticket =
        member().posts->post(record, call_hash(core_->hash, record.sequence), core_->ranks);
    auto state = std::make_shared<Work::State>(record.brief(), core_->options.timeout,
                                               fifo ? fifo->progress() : nullptr);
    if (!fifo) {
      lock.unlock();
      const std::lock_guard alone(core_->alone);
      core_->perform(record, ticket, after, state, body, core_);
      return ScopedWork(std::move(state));
    }
    state->device = std::move(on_device);
    core_->last = state;
    fifo->post(
        [core = core_, record = std::move(record), ticket, after = std::move(after), state,
         body = std::move(body)]() mutable { core->perform(record, ticket, after, state, body, core); });
    return ScopedWork(std::move(state));
  }

  ScopedWork post(const Collective& call, const CallOptions& options, const Site& site) {
    const Device transport = core_->backend->device();
    check_collective(call, rank(), size(), transport);
    ScopedWork work = post(
        describe(call, options.name, site), options.after,
        [core = core_.get(), call](const CollectiveRecord& record, Deadline deadline) {
          core->agree(record, deadline);
          // A comparison over the transport already synchronizes the ranks as a barrier does. A comparison in
          // the store does not.
          if (call.op != Op::barrier || !core->compares() || core->on_gpu())
            run_collective(call, *core->backend, deadline);
        },
        call.device(transport));
    // Bumps the version now and not when the collective runs: values that were saved for backward are stale
    // from here on.
    for (const Tensor& out : call.outs) out.storage()->bump_version();
    if (!call.has_lists() && call.writes(rank())) call.out.storage()->bump_version();
    return work;
  }

  ScopedWork post_messages(const std::vector<PostedMessage>& messages, const CallOptions& options,
                           const Site& site);
  std::shared_ptr<ProcessGroup> make_groups(const char* op, const std::vector<std::vector<int>>& lists,
                                            std::string_view name, const Site& site);

  const std::shared_ptr<GroupCore> core_;
  const ForkMark mark_;
};

ScopedWork Group::post_messages(const std::vector<PostedMessage>& messages, const CallOptions& options,
                                const Site& site) {
  const Device transport = core_->backend->device();
  std::vector<CollectiveRecord> records;
  for (const PostedMessage& message : messages) {
    check_collective(message.call, rank(), size(), transport);
    records.push_back(describe(message.call, options.name, site));
    records.back().after = names_of(options.after);
  }
  if (messages.empty()) return {};
  check_process(messages.size() == 1 ? op_name(messages[0].call.op) : "batch_isend_irecv");
  const std::lock_guard lock(member().order);
  if (const auto failure = member().diagnosis.failure()) failure->raise();
  WorkStates states = distributed::post_messages(core_, messages, std::move(records), options.after);
  for (const PostedMessage& message : messages)
    if (message.call.op == Op::recv) message.call.out.storage()->bump_version();
  if (states.size() == 1) return ScopedWork(std::move(states[0]));
  return ScopedWork(std::make_shared<Work::State>(std::move(states)));
}

std::shared_ptr<ProcessGroup> Group::make_groups(const char* op, const std::vector<std::vector<int>>& lists,
                                                 std::string_view name, const Site& site) {
  check(!lists.empty(), "[", op, "] there are no lists of ranks; pass at least one");
  std::string text;
  for (const std::vector<int>& list : lists) text += concat({text.empty() ? "[" : " [", join(list), "]"});
  std::set<int> all;
  std::size_t mine = lists.size();  // the list that has this rank
  for (std::size_t i = 0; i < lists.size(); ++i) {
    check(!lists[i].empty(), "[", op, "] the list of ranks is empty; pass at least one");
    for (const int r : lists[i]) {
      check<IndexError>(r >= 0 && r < size(), "[", op, "] rank ", r, " of a group of ", size(),
                        " ranks; pass ranks of 0 to ", size() - 1);
      check(all.insert(r).second, "[", op, "] a rank appears twice in ", text, "; pass each rank once");
      if (r == rank()) mine = i;
    }
  }
  const bool inside = mine < lists.size();
  const std::vector<int> members = inside ? lists[mine] : std::vector<int>();
  const auto part = std::make_shared<GroupCore>();
  part->member = core_->member;
  part->options = core_->options;
  part->queue = core_->member->new_queue();
  part->part_of_world = true;
  part->name = name;
  for (const int r : members) part->ranks.push_back(core_->ranks[static_cast<std::size_t>(r)]);
  // Sub-groups are counted in the order of the queue, which is the same on all ranks.
  const auto make = [core = core_.get(), part, members, several = lists.size() > 1, mine](
                        const CollectiveRecord& record, Deadline deadline) {
    core->agree(record, deadline);
    part->key = concat({core->key, ".", ++core->groups});
    if (members.empty()) return;
    if (several) part->key += concat({"[", mine, "]"});
    if (part->name.empty()) part->name = part->key;
    part->store = prefix_store("group/" + part->key + "/", core->store);
    part->backend =
        members.size() == 1 ? local_backends(1)[0] : core->backend->split(members, part->store, deadline);
  };
  post(describe({Op::new_group}, text, site), {}, make).wait();
  return inside ? std::make_shared<Group>(part) : nullptr;
}

ScopedWork Group::check_order(Site site) {
  const auto compare = [core = core_.get()](const CollectiveRecord& record, Deadline deadline) {
    if (core->compares()) core->agreement->compare_calls(record, deadline);
    // Over a host transport, the comparison of the calls has compared the orders too.
    if (core->backend->size() > 1 && (core->on_gpu() || !core->compares()))
      core->agreement->compare_orders(record, deadline);
  };
  return post(describe({Op::barrier}, "check_order", site), {}, compare);
}

ScopedWork Group::enqueue(std::function<void()> task, const CallOptions& options) {
  check(task != nullptr, "[enqueue] the function is empty; pass a function that can be called");
  check_process("enqueue");
  const std::lock_guard lock(member().order);
  if (const auto failure = member().diagnosis.failure()) failure->raise();
  Fifo& fifo = started_queue();
  auto state = std::make_shared<Work::State>(
      concat({"the task ", options.name.empty() ? "without a name" : options.name}), core_->options.timeout,
      fifo.progress());
  core_->last = state;
  fifo.post([core = core_, context = current_context(), after = options.after, state,
             task = std::move(task)]() mutable {
    GroupCore::Obstacle obstacle = core->await(after, *state);
    state->start();
    if (!obstacle.failure && !obstacle.error) {
      try {
        const ContextGuard guard(context);
        task();
      } catch (...) {
        obstacle.error = std::current_exception();
      }
    }
    task = nullptr;
    state->finish(std::move(obstacle.failure), std::move(obstacle.error));
  });
  return ScopedWork(std::move(state));
}

void Group::abort(const std::string& why) noexcept {
  if (mark_.is_in_child()) return;  // the job belongs to the parent
  try {
    const int me = core_->ranks[static_cast<std::size_t>(rank())];
    member().diagnosis.fail({false, false, {}, concat({"[abort] rank ", me, " aborted the group: ", why})});
  } catch (const std::exception&) {  // out of memory for the text: aborts at least the transport
    core_->backend->abort("aborted");
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> make_process_group(std::shared_ptr<Backend> backend,
                                                 std::shared_ptr<Store> store, const GroupOptions& options,
                                                 std::string name) {
  check(backend != nullptr && store != nullptr, "[make_process_group] the ", backend ? "store" : "backend",
        " is null; pass both");
  const auto core = std::make_shared<GroupCore>();
  core->options = resolved(options, backend->device());
  core->member = std::make_shared<GroupMember>(store, backend->rank(), backend->size(), core->options);
  for (int r = 0; r < backend->size(); ++r) core->ranks.push_back(r);
  if (backend->device().is_cuda())
    core->member->completions = std::make_unique<Fifo>("completions " + std::to_string(backend->rank()));
  core->backend = std::move(backend);
  core->store = std::move(store);
  core->name = core->key = std::move(name);
  if (core->backend->device().is_cuda() && !options.own_streams)
    core->member->shared = std::make_shared<CallQueue>();
  core->queue = core->member->new_queue();
  return std::make_shared<Group>(core);
}

}  // namespace tapestry::distributed
