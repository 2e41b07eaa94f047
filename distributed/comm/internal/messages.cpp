#include "tapestry/distributed/comm/internal/messages.h"

#include <deque>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/staged.h"

namespace tapestry::distributed {
namespace {

using Channel = GroupCore::Channel;

Channel& channel_of(GroupCore& core, const PostedMessage& message) {
  const auto key = std::tuple(message.call.peer, message.call.op, message.tag);
  if (const auto found = core.channels.find(key); found != core.channels.end()) return found->second;
  auto fifo =
      std::make_unique<Fifo>(concat({op_name(message.call.op), " ", message.call.peer, "/", message.tag}));
  Channel& made = core.channels[key];
  made.fifo = std::move(fifo);
  return made;
}

const Stream& stream_of(Channel& channel, Device device) {
  if (!channel.stream || !(channel.stream->stream().device() == device)) channel.stream.emplace(device, true);
  return channel.stream->stream();
}

// Sends the header of a message, or receives and compares it.
void exchange_header(GroupCore& core, const CollectiveRecord& record, const PostedMessage& message,
                     Deadline deadline) {
  if (!core.sends_headers()) return;
  const MessageDescriptor header(record);
  const int peer = message.call.peer;
  if (message.call.op == Op::send) return core.send_header(header, peer, message.tag, deadline);
  const MessageDescriptor came = core.receive_header(header, peer, message.tag, deadline);
  check<DistributedError>(header.fits(came), "rank ", peer, " sent ", came.str(), ", but this rank expects ",
                          header.str(),
                          "; send and receive tensors of the same dtype and shape, in the same order");
}

Staged staged(const GroupCore& core, const PostedMessage& message, Deadline deadline) {
  const bool sends = message.call.op == Op::send;
  return {message.call.part(), sends ? Staged::Fill::yes : Staged::Fill::no, core.backend->device(),
          deadline};
}

// Makes a message wait for the last one of its channel, if that runs on the thread of another channel.
void follow(const Channel& channel, const Channel& runs, WorkStates& after) {
  if (channel.last && channel.last->progress != runs.fifo->progress()) after.push_back(channel.last);
}

std::shared_ptr<Work::State> post_one(const std::shared_ptr<GroupCore>& core, Channel& channel,
                                      const PostedMessage& message, CollectiveRecord record,
                                      WorkStates after) {
  record.sequence = ++channel.sequence;
  const std::uint64_t ticket = core->member->recorder->enqueued(record);
  auto state = std::make_shared<Work::State>(record.brief(), core->options.timeout, channel.fifo->progress());
  CallBody body = [core = core.get(), message](const CollectiveRecord& own, Deadline deadline) {
    exchange_header(*core, own, message, deadline);
    const Staged data = staged(*core, message, deadline);
    const Tensor& t = message.call.part();
    if (message.call.op == Op::send) {
      if (t.numel() > 0)
        core->backend->send(data.data(), t.nbytes(), message.call.peer, message.tag, deadline);
      return;
    }
    if (t.numel() > 0) core->backend->recv(data.data(), t.nbytes(), message.call.peer, message.tag, deadline);
    data.store();
  };
  const Device device = message.call.device(core->backend->device());
  if (device.is_cuda()) {
    state->device = std::make_shared<DeviceWork>(stream_of(channel, device));
    // The thread of the channel itself waits for the GPU. This delays only later messages of the same
    // channel.
    body = [core = core.get(), work = state->device, body = beside(state->device, std::move(body))](
               const CollectiveRecord& own, Deadline deadline) {
      body(own, deadline);
      work->await(*core->backend, deadline);
    };
  }
  follow(channel, channel, after);
  channel.last = state;
  channel.fifo->post(
      [core, record = std::move(record), ticket, after = std::move(after), state,
       body = std::move(body)]() mutable { core->perform(record, ticket, after, state, body, core); });
  return state;
}

/// Messages over NCCL that are one group of calls. Each is enqueued on the stream of its channel.
struct NcclBatch {
  std::vector<PostedMessage> messages;
  std::vector<CollectiveRecord> records;
  std::vector<std::uint64_t> tickets;
  std::vector<std::shared_ptr<DeviceWork>> works;

  // The caller starts and finishes the record of the first message.
  void run(GroupCore& core, Deadline deadline) const {
    Recorder& recorder = *core.member->recorder;
    for (std::size_t i = 1; i < tickets.size(); ++i) recorder.started(tickets[i]);
    bool failed = true;
    struct Finish {
      const NcclBatch& batch;
      Recorder& recorder;
      const bool& failed;
      ~Finish() {
        for (std::size_t i = 1; i < batch.tickets.size(); ++i) recorder.finished(batch.tickets[i], failed);
      }
    } const finish{*this, recorder, failed};
    for (const Op op : {Op::send, Op::recv})  // a header that is sent waits for nothing
      for (std::size_t i = 0; i < messages.size(); ++i)
        if (messages[i].call.op == op) exchange_header(core, records[i], messages[i], deadline);
    std::deque<Staged> data;
    std::vector<MessagePart> parts;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Collective& call = messages[i].call;
      const StreamGuard guard(works[i]->stream());
      works[i]->begin();
      data.push_back(staged(core, messages[i], deadline));
      if (call.part().numel() > 0)
        parts.push_back({call.op == Op::send, data[i].data(), call.part().nbytes(), call.peer,
                         messages[i].tag, &works[i]->stream()});
    }
    if (!parts.empty()) core.backend->exchange(parts, deadline);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const StreamGuard guard(works[i]->stream());
      if (messages[i].call.op == Op::recv) data[i].store();
      works[i]->end();
    }
    for (const auto& work : works) work->await(*core.backend, deadline);
    failed = false;
  }
};

// The batch runs on the thread of its first channel. It waits for the earlier messages of its other channels,
// whose later messages wait for it.
std::shared_ptr<Work::State> post_batch(const std::shared_ptr<GroupCore>& core,
                                        const std::vector<Channel*>& channels,
                                        const std::vector<PostedMessage>& messages,
                                        std::vector<CollectiveRecord> records, WorkStates after) {
  const auto batch = std::make_shared<NcclBatch>();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    records[i].sequence = ++channels[i]->sequence;
    batch->tickets.push_back(core->member->recorder->enqueued(records[i]));
    batch->works.push_back(std::make_shared<DeviceWork>(stream_of(*channels[i], core->backend->device())));
    follow(*channels[i], *channels[0], after);
  }
  batch->messages = messages;
  batch->records = std::move(records);
  Fifo& fifo = *channels[0]->fifo;
  auto state =
      std::make_shared<Work::State>(batch->records[0].brief(), core->options.timeout, fifo.progress());
  for (Channel* const channel : channels) channel->last = state;
  fifo.post([core, batch, after = std::move(after), state]() mutable {
    const CollectiveRecord record = batch->records[0];
    const std::uint64_t ticket = batch->tickets[0];
    CallBody body = [core = core.get(), batch = std::move(batch)](
                        const CollectiveRecord&, Deadline deadline) { batch->run(*core, deadline); };
    core->perform(record, ticket, after, state, body, core);
  });
  return state;
}

}  // namespace

WorkStates post_messages(const std::shared_ptr<GroupCore>& core, const std::vector<PostedMessage>& messages,
                         std::vector<CollectiveRecord> records, const WorkStates& after) {
  std::vector<Channel*> channels;  // all threads start before the first message begins
  for (const PostedMessage& message : messages) channels.push_back(&channel_of(*core, message));
  if (core->on_gpu() && messages.size() > 1)
    return {post_batch(core, channels, messages, std::move(records), after)};
  WorkStates states;
  for (std::size_t i = 0; i < messages.size(); ++i)
    states.push_back(post_one(core, *channels[i], messages[i], std::move(records[i]), after));
  return states;
}

}  // namespace tapestry::distributed
