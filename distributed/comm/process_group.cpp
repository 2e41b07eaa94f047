// Process groups: check the arguments of a call, number, record and queue it, compare the calls of the ranks,
// and bound every wait.
#include "tapestry/distributed/comm/process_group.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/fork.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/internal/collective.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/descriptor.h"
#include "tapestry/distributed/comm/internal/diagnosis.h"
#include "tapestry/distributed/comm/internal/fifo.h"
#include "tapestry/distributed/comm/internal/staged.h"
#include "tapestry/distributed/comm/internal/work.h"

namespace tapestry::distributed {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCallText = 32 << 10;  // the longest text of one rank's call that others receive

// Ranks are in different calls. The text shows the calls, so no table of ranks is needed.
class Mismatch : public DistributedError {
  using DistributedError::DistributedError;
};

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

// The state that all groups of one rank share.
struct Member {
  Member(const std::shared_ptr<Store>& store, int rank, int size, const GroupOptions& options)
      : diagnosis(store, rank, size, options, recorder), fifo("collectives " + std::to_string(rank)) {}

  const std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  Diagnosis diagnosis;
  std::mutex order;                        // makes numbering and queueing of a call one atomic step
  int open = 0;                            // the number of groups that exist; guarded by `order`
  std::map<int, ExclusiveStream> streams;  // by the index of their CUDA device; guarded by `order`
  Fifo fifo;
  // Waits for the GPU's part of each call. Null if the transport uses host memory.
  std::unique_ptr<Fifo> completions;

  // All groups of this rank use one stream per device, in the order of the FIFO. On two streams, two
  // communicators could deadlock: each may occupy resources of the GPU that the other one needs.
  Stream stream_on(Device device) { return streams.try_emplace(device.index, device, true).first->second; }
};

// The work of a recorded call. The second argument is its deadline.
using Body = std::function<void(const CollectiveRecord&, Deadline)>;

// The state of a group that tasks of the FIFO use.
struct Core {
  std::shared_ptr<Member> member;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<Store> store;
  GroupOptions options;
  std::string name;
  std::vector<int> ranks;      // the ranks of the group, as numbered in the world
  bool part_of_world = false;  // true for a sub-group

  // member->order guards the members from here to `channels`.
  std::uint64_t sequence = 0, groups = 0;
  std::shared_ptr<Work::State> last;
  struct Channel {
    // `stream` is declared before `fifo`, because it must outlive the thread of `fifo`.
    std::optional<ExclusiveStream> stream;
    std::unique_ptr<Fifo> fifo;
    std::uint64_t sequence = 0;
  };
  std::map<std::tuple<int, Op, std::uint32_t>, Channel> channels;  // by peer, direction and tag
  // `forgotten` is the number of the last call that was erased from the store. Only the thread of
  // `completions` uses it.
  std::uint64_t forgotten = 0;

  bool compares() const { return *options.check && backend->size() > 1; }

  // Compares this call with those of the other ranks. If they differ, throws Mismatch on all ranks, or over
  // GPUs on some ranks: see agree_in_store().
  void agree(const CollectiveRecord& record, Deadline deadline) {
    if (on_gpu()) return agree_in_store(record);
    const Descriptor mine(record);
    const auto size = static_cast<std::size_t>(backend->size());
    std::vector<Descriptor> all(size);
    backend->all_gather(&mine, all.data(), sizeof mine, deadline);
    if (std::all_of(all.begin(), all.end(), [&](const Descriptor& d) { return d == all[0]; })) return;

    std::string text = call_text(record, kCallText);
    std::vector<std::size_t> lengths(size);
    const std::size_t length = text.size();
    backend->all_gather(&length, lengths.data(), sizeof length, deadline);
    const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
    std::string texts(size * longest, '\0');
    text.resize(longest);
    backend->all_gather(text.data(), texts.data(), longest, deadline);
    try {
      // A rank that throws may then leave the group and close its connections. So all ranks wait here until
      // each rank has received the texts of all others.
      backend->barrier(deadline);
    } catch (const DistributedError&) {
    }
    std::vector<std::string> calls;
    for (std::size_t r = 0; r < size; ++r) calls.push_back(texts.substr(r * longest, lengths[r]));
    throw Mismatch(mismatch_text(op_name(record.op), name, ranks, calls));
  }

  bool on_gpu() const { return backend->device().is_cuda(); }

  // Compares the calls of the ranks through the store. The first rank to arrive stores its call, and the
  // others compare their calls with it. No rank waits for another, so the host stays ahead of the GPU. Throws
  // Mismatch on the ranks whose call differs. Their failure aborts the other ranks.
  void agree_in_store(const CollectiveRecord& record) {
    const Descriptor mine(record);
    const std::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
    const std::string text = call_text(record, kCallText);
    const std::string rank = std::to_string(backend->rank()) + "/";
    const std::string first =
        store->compare_set(call_key(record.sequence), std::nullopt, concat({bytes, rank, text}));
    if (first.substr(0, sizeof mine) == bytes) return;
    const std::size_t end = first.find('/', sizeof mine);
    const auto other = static_cast<std::size_t>(std::atoi(first.c_str() + sizeof mine));
    throw Mismatch(mismatch_text(op_name(record.op), name,
                                 {ranks.at(other), ranks[static_cast<std::size_t>(backend->rank())]},
                                 {first.substr(end + 1), text}));
  }
  static std::string call_key(std::uint64_t sequence) { return "call/" + std::to_string(sequence); }

  // Erases the stored calls up to this one, which has finished on this rank. A collective that needs the data
  // of all ranks finishes only after all ranks have called it. So by then all ranks have compared this call
  // and all earlier ones.
  void forget_calls(const CollectiveRecord& record) {
    const bool all_came = record.op == Op::all_reduce || record.op == Op::all_gather ||
                          record.op == Op::reduce_scatter || record.op == Op::all_to_all;
    if (backend->rank() != 0 || !compares() || !all_came || record.shape.numel() == 0) return;
    while (forgotten < record.sequence) store->erase(call_key(++forgotten));
  }

  // True if each message is preceded by a header with its dtype and shape. Groups over GPUs send headers
  // through the store, and only if they compare calls.
  bool sends_headers() const { return !on_gpu() || compares(); }
  std::string header_key(int from, int to, std::uint32_t tag, std::uint64_t sequence) const {
    return concat({"message/", from, "-", to, "/", tag, "/", sequence});
  }
  void send_header(const MessageHeader& header, int peer, std::uint32_t tag, Deadline deadline) {
    if (!on_gpu()) return backend->send(&header, sizeof header, peer, tag, deadline);
    store->set(header_key(backend->rank(), peer, tag, header.sequence),
               {reinterpret_cast<const char*>(&header), sizeof header});
  }
  // `expected` is the header that this rank expects.
  MessageHeader receive_header(const MessageHeader& expected, int peer, std::uint32_t tag,
                               Deadline deadline) {
    MessageHeader came;
    if (!on_gpu()) {
      backend->recv(&came, sizeof came, peer, tag, deadline);
      return came;
    }
    const std::string key = header_key(peer, backend->rank(), tag, expected.sequence);
    const std::string bytes = store->get(key, left_until(deadline));
    store->erase(key);
    std::memcpy(&came, bytes.data(), std::min(bytes.size(), sizeof came));
    return came;
  }

  // Runs `body` as the recorded call `record`, and calls state->finish() whether it succeeds or fails. If the
  // call enqueued work on a GPU, `completions` waits for the GPU and calls state->finish() again.
  void perform(const CollectiveRecord& record, std::uint64_t ticket,
               const std::shared_ptr<Work::State>& state, Body& body, const std::shared_ptr<Core>& self) {
    const auto start = Clock::now();
    std::shared_ptr<const Failure> failure = member->diagnosis.failure();
    state->start();
    if (!failure) {
      member->recorder->started(ticket);
      failure = attempt(record, body, start);
    }
    if (!failure && state->device && on_gpu() && member->fifo.is_current()) {
      // The task is posted before state->finish(), because the thread that waits for `state` may then stop
      // `completions`. The task keeps the tensors alive until the GPU has finished with them.
      member->completions->post([self, record, ticket, state, start, body = std::move(body)]() mutable {
        std::shared_ptr<const Failure> late = self->attempt(
            record,
            [&](const CollectiveRecord&, Deadline deadline) {
              state->device->await(*self->backend, deadline);
              self->forget_calls(record);
            },
            start);
        body = nullptr;
        self->member->recorder->finished(ticket, late != nullptr);
        state->finish(std::move(late));
      });
      state->finish(nullptr);
      return;
    }
    body = nullptr;  // frees the tensors before the waiting thread continues
    member->recorder->finished(ticket, failure != nullptr);
    state->finish(std::move(failure));
  }

  std::shared_ptr<const Failure> attempt(const CollectiveRecord& record, const Body& body,
                                         Clock::time_point start) {
    const auto fail = [&](bool timeout, bool complete, const std::string& what) {
      std::string text = what;
      if (!complete) {
        text = concat({"[", op_name(record.op), "] ", record.str(),
                       timeout ? " did not complete on rank " : " failed on rank ",
                       ranks[static_cast<std::size_t>(backend->rank())], timeout ? " in " : " after ",
                       seconds(Clock::now() - start), ": ", what});
        if (part_of_world) text += concat({" (the ranks of ", name, " are ", join(ranks), " of the world)"});
      }
      return member->diagnosis.fail({timeout, complete, record.brief(), std::move(text)});
    };
    try {
      body(record, start + options.timeout);
      return nullptr;
    } catch (const Mismatch& e) {
      return fail(false, true, e.what());
    } catch (const TimeoutError& e) {
      return fail(true, false, e.what());
    } catch (const std::exception& e) {
      // An error after the deadline counts as a timeout, because other ranks close their connections then.
      return fail(Clock::now() >= start + options.timeout, false, e.what());
    }
  }
};

class Group final : public ProcessGroup {
 public:
  explicit Group(std::shared_ptr<Core> core) : core_(std::move(core)) {
    const std::lock_guard lock(member().order);
    ++member().open;
    member().diagnosis.watch(core_->backend);
  }

  // Waits for the calls in flight. The rank's last group also tells the other ranks that this rank leaves,
  // before it closes its transport. In a child process that fork() made, nothing is closed: the threads do
  // not exist there, and the connections are the parent's.
  ~Group() override {
    if (mark_.is_in_child()) {
      static_cast<void>(new std::shared_ptr<Core>(core_));
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
    if (last && !member().fifo.is_current()) {
      try {
        last->wait_until(deadline, {});
      } catch (const std::exception&) {  // wait() reports it
      }
    }
    for (auto& [key, channel] : core_->channels) channel.fifo->stop(deadline);
    if (!last_group) return;
    if (member().completions) member().completions->stop(deadline);
    member().diagnosis.leave();
    member().fifo.stop(Clock::now() + 2s);
  }

  int rank() const override { return core_->backend->rank(); }
  int size() const override { return core_->backend->size(); }
  const std::string& name() const override { return core_->name; }
  std::string backend() const override { return core_->backend->name(); }
  Milliseconds timeout() const override { return core_->options.timeout; }
  const Recorder& recorder() const override { return *member().recorder; }
  Store& store() override { return *core_->store; }

  ScopedWork all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name, Site site) override {
    return post({Op::all_reduce, op, -1, tensor, tensor}, name, site);
  }
  ScopedWork broadcast(const Tensor& tensor, int root, std::string_view name, Site site) override {
    return post({Op::broadcast, {}, root, tensor, tensor}, name, site);
  }
  ScopedWork reduce(const Tensor& tensor, int root, ReduceOp op, std::string_view name, Site site) override {
    return post({Op::reduce, op, root, tensor, tensor}, name, site);
  }
  ScopedWork all_gather(const Tensor& output, const Tensor& input, std::string_view name,
                        Site site) override {
    return post({Op::all_gather, {}, -1, {}, {}, {input}, {output}}, name, site);
  }
  ScopedWork all_gather(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                        std::string_view name, Site site) override {
    return post({Op::all_gather, {}, -1, {}, {}, inputs, outputs}, name, site);
  }
  ScopedWork reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op, std::string_view name,
                            Site site) override {
    return post({Op::reduce_scatter, op, -1, {}, {}, {input}, {output}}, name, site);
  }
  ScopedWork reduce_scatter(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                            ReduceOp op, std::string_view name, Site site) override {
    return post({Op::reduce_scatter, op, -1, {}, {}, inputs, outputs}, name, site);
  }
  ScopedWork gather(const Tensor& output, const Tensor& input, int root, std::string_view name,
                    Site site) override {
    return post({Op::gather, {}, root, input, rank() == root ? output : Tensor()}, name, site);
  }
  ScopedWork scatter(const Tensor& output, const Tensor& input, int root, std::string_view name,
                     Site site) override {
    return post({Op::scatter, {}, root, rank() == root ? input : Tensor(), output}, name, site);
  }
  ScopedWork all_to_all(const Tensor& output, const Tensor& input, std::string_view name,
                        Site site) override {
    return post({Op::all_to_all, {}, -1, input, output}, name, site);
  }
  ScopedWork barrier(std::string_view name, Site site) override { return post({Op::barrier}, name, site); }
  ScopedWork send(const Tensor& tensor, int peer, std::uint32_t tag, std::string_view name,
                  Site site) override {
    return post_message({Op::send, {}, peer, tensor, {}}, tag, name, site);
  }
  ScopedWork recv(const Tensor& tensor, int peer, std::uint32_t tag, std::string_view name,
                  Site site) override {
    return post_message({Op::recv, {}, peer, {}, tensor}, tag, name, site);
  }

  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& members, Site site) override {
    return make_groups("new_group", {members}, {}, site);
  }
  std::shared_ptr<ProcessGroup> split_group(const std::vector<std::vector<int>>& lists, std::string_view name,
                                            Site site) override {
    return make_groups("split_group", lists, name, site);
  }
  ScopedWork enqueue(std::function<void()> task, std::string_view name) override;
  void abort(const std::string& why) noexcept override;

 private:
  Member& member() const { return *core_->member; }
  void check_process(const char* op) const {
    tapestry::detail::refuse_in_capture(op, "collectives need the host; call them outside of the step");
    check<DistributedError>(
        !mark_.is_in_child(), "[", op, "] the process group ", core_->name,
        " was created before fork(), and this child process has none of its threads; create "
        "a group in the child, or fork before init_process_group()");
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
    CollectiveRecord record{.group = core_->name, .op = call.op, .reduce = call.reduce, .peer = call.peer};
    if (call.has_lists()) {
      describe_list(call.parts(), record);
    } else if (call.op != Op::barrier && call.op != Op::new_group) {
      record.dtype = call.part().dtype();
      record.shape = call.part().sizes();
    }
    record.name = name;
    record.site = file_and_line(site);
    return record;
  }

  // Numbers, records and queues a call.
  ScopedWork post(CollectiveRecord record, Body body, Device device = kCPU) {
    check_process(op_name(record.op));
    const std::lock_guard lock(member().order);
    if (const auto failure = member().diagnosis.failure()) failure->raise();
    record.sequence = ++core_->sequence;
    const std::uint64_t ticket = member().recorder->enqueued(record);
    auto state =
        std::make_shared<Work::State>(record.brief(), core_->options.timeout, member().fifo.progress());
    core_->last = state;
    if (device.is_cuda()) {
      state->device = std::make_shared<DeviceWork>(member().stream_on(device));
      body = beside(state->device, std::move(body));
    }
    member().fifo.post(
        [core = core_, record = std::move(record), ticket, state, body = std::move(body)]() mutable {
          core->perform(record, ticket, state, body, core);
        });
    return ScopedWork(std::move(state));
  }

  // Returns a function that runs `body` on the stream of `work`, between work->begin() and work->end().
  static Body beside(const std::shared_ptr<DeviceWork>& work, Body body) {
    return [work, body = std::move(body)](const CollectiveRecord& record, Deadline deadline) {
      const StreamGuard guard(work->stream());
      work->begin();
      body(record, deadline);
      work->end();
    };
  }

  ScopedWork post(const Collective& call, std::string_view name, const Site& site) {
    const Device transport = core_->backend->device();
    check_collective(call, rank(), size(), transport);
    ScopedWork work = post(
        describe(call, name, site),
        [core = core_.get(), call](const CollectiveRecord& record, Deadline deadline) {
          if (core->compares()) core->agree(record, deadline);
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

  ScopedWork post_message(const Collective& call, std::uint32_t tag, std::string_view name, const Site& site);
  std::shared_ptr<ProcessGroup> make_groups(const char* op, const std::vector<std::vector<int>>& lists,
                                            std::string_view name, const Site& site);

  const std::shared_ptr<Core> core_;
  const ForkMark mark_;
};

// Each peer, direction and tag has its own thread, so that no message waits for another.
ScopedWork Group::post_message(const Collective& call, std::uint32_t tag, std::string_view name,
                               const Site& site) {
  const Device transport = core_->backend->device();
  const Device device = call.device(transport);
  check_collective(call, rank(), size(), transport);
  CollectiveRecord record = describe(call, name, site);
  check_process(op_name(call.op));
  const std::lock_guard lock(member().order);
  if (const auto failure = member().diagnosis.failure()) failure->raise();
  Core::Channel& channel = core_->channels[{call.peer, call.op, tag}];
  if (!channel.fifo)
    channel.fifo = std::make_unique<Fifo>(concat({op_name(call.op), " ", call.peer, "/", tag}));
  record.sequence = ++channel.sequence;
  const std::uint64_t ticket = member().recorder->enqueued(record);
  auto state =
      std::make_shared<Work::State>(record.brief(), core_->options.timeout, channel.fifo->progress());
  Body body = [core = core_.get(), call, tag](const CollectiveRecord& message, Deadline deadline) {
    const Device where = core->backend->device();
    const MessageHeader header(message);
    if (call.op == Op::send) {
      if (core->sends_headers()) core->send_header(header, call.peer, tag, deadline);
      const Staged data(call.in, Staged::Fill::yes, where, deadline);
      if (call.in.numel() > 0) core->backend->send(data.data(), call.in.nbytes(), call.peer, tag, deadline);
      return;
    }
    if (core->sends_headers()) {
      const MessageHeader came = core->receive_header(header, call.peer, tag, deadline);
      check<DistributedError>(header.fits(came), "rank ", call.peer, " sent ", came.str(),
                              ", but this rank expects ", header.str(),
                              "; send and receive tensors of the same dtype and shape, in the same order");
    }
    const Staged data(call.out, Staged::Fill::no, where, deadline);
    if (call.out.numel() > 0) core->backend->recv(data.data(), call.out.nbytes(), call.peer, tag, deadline);
    data.store();
  };
  if (device.is_cuda()) {
    if (!channel.stream || !(channel.stream->stream().device() == device))
      channel.stream.emplace(device, true);
    state->device = std::make_shared<DeviceWork>(*channel.stream);
    // The thread of the channel itself waits for the GPU. This delays only later messages of the same
    // channel.
    body = [core = core_.get(), work = state->device, body = beside(state->device, std::move(body))](
               const CollectiveRecord& message, Deadline deadline) {
      body(message, deadline);
      work->await(*core->backend, deadline);
    };
  }
  channel.fifo->post(
      [core = core_, record = std::move(record), ticket, state, body = std::move(body)]() mutable {
        core->perform(record, ticket, state, body, core);
      });
  if (call.writes(rank())) call.out.storage()->bump_version();
  return ScopedWork(std::move(state));
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
  const auto part = std::make_shared<Core>();
  part->member = core_->member;
  part->options = core_->options;
  part->part_of_world = true;
  part->name = name;
  for (const int r : members) part->ranks.push_back(core_->ranks[static_cast<std::size_t>(r)]);
  // Sub-groups are counted in the order of the FIFO, which is the same on all ranks.
  post(describe({Op::new_group}, text, site), [core = core_.get(), part, members, several = lists.size() > 1,
                                               mine](const CollectiveRecord& record, Deadline deadline) {
    if (core->compares()) core->agree(record, deadline);
    std::string number = concat({core->name, ".", ++core->groups});
    if (members.empty()) return;
    if (several) number += concat({"[", mine, "]"});
    if (part->name.empty()) part->name = number;
    part->store = prefix_store("group/" + number + "/", core->store);
    part->backend =
        members.size() == 1 ? local_backends(1)[0] : core->backend->split(members, part->store, deadline);
  }).wait();
  return inside ? std::make_shared<Group>(part) : nullptr;
}

ScopedWork Group::enqueue(std::function<void()> task, std::string_view name) {
  check(task != nullptr, "[enqueue] the function is empty; pass a function that can be called");
  check_process("enqueue");
  const std::lock_guard lock(member().order);
  if (const auto failure = member().diagnosis.failure()) failure->raise();
  auto state = std::make_shared<Work::State>(concat({"the task ", name.empty() ? "without a name" : name}),
                                             core_->options.timeout, member().fifo.progress());
  core_->last = state;
  member().fifo.post([core = core_, context = current_context(), state, task = std::move(task)]() mutable {
    std::shared_ptr<const Failure> failure = core->member->diagnosis.failure();
    std::exception_ptr error;
    state->start();
    if (!failure) {
      try {
        const ContextGuard guard(context);
        task();
      } catch (...) {
        error = std::current_exception();
      }
    }
    task = nullptr;
    state->finish(std::move(failure), std::move(error));
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
  const auto core = std::make_shared<Core>();
  core->options = resolved(options, backend->device());
  core->member = std::make_shared<Member>(store, backend->rank(), backend->size(), core->options);
  for (int r = 0; r < backend->size(); ++r) core->ranks.push_back(r);
  if (backend->device().is_cuda())
    core->member->completions = std::make_unique<Fifo>("completions " + std::to_string(backend->rank()));
  core->backend = std::move(backend);
  core->store = std::move(store);
  core->name = std::move(name);
  return std::make_shared<Group>(core);
}

}  // namespace tapestry::distributed
