#include "tapestry/distributed/comm/internal/group_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/hash.h"

namespace tapestry::distributed {
namespace {

using namespace std::chrono_literals;

// How often groups that do not compare calls check the order of calls.
constexpr std::uint64_t kCheckOrderEvery = 1024;
constexpr std::size_t kLogged = 256;  // how many of its last calls a rank shows if the orders differ
// How often a call that waits for an earlier one looks for failures.
constexpr Milliseconds kLook = 50ms;

}  // namespace

CallBody beside(const std::shared_ptr<DeviceWork>& work, CallBody body) {
  return [work, body = std::move(body)](const CollectiveRecord& record, Deadline deadline) {
    const StreamGuard guard(work->stream());
    work->begin();
    body(record, deadline);
    work->end();
  };
}

void GroupCore::open() {
  const std::lock_guard lock(member->order);
  hash = fnv1a(key);
  member->posts->add_group(hash, ranks);
  agreement.emplace(backend, store, name, ranks,
                    [posts = member->posts, ranks = ranks] { return posts->log(ranks, kLogged); });
  ++member->open;
  member->diagnosis.watch(backend);
}

void GroupCore::agree(const CollectiveRecord& record, Deadline deadline) {
  if (compares()) agreement->compare_calls(record, deadline);
  // Over a host transport, a comparison of the calls compares the orders too. One in the store does not.
  if (backend->size() > 1 && (on_gpu() || !compares()) && record.sequence % kCheckOrderEvery == 0)
    agreement->compare_orders(record, deadline);
}

void GroupCore::send_header(const MessageDescriptor& header, int peer, std::uint32_t tag, Deadline deadline) {
  if (!on_gpu()) return backend->send(&header, sizeof header, peer, tag, deadline);
  store->set(header_key(backend->rank(), peer, tag, header.sequence),
             {reinterpret_cast<const char*>(&header), sizeof header});
}

MessageDescriptor GroupCore::receive_header(const MessageDescriptor& expected, int peer, std::uint32_t tag,
                                            Deadline deadline) {
  MessageDescriptor came;
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

GroupCore::Obstacle GroupCore::await(WorkStates& after, const Work::State& state) const {
  if (auto failure = member->diagnosis.failure()) return {.failure = std::move(failure)};
  for (const auto& earlier : std::exchange(after, {})) {
    try {
      while (!earlier->wait_for(kLook, state.device == nullptr)) {
        if (auto failure = member->diagnosis.failure()) return {.failure = std::move(failure)};
        check<TimeoutError>(!earlier->is_stuck(), "[wait] ", state.what, " waits for ", earlier->what,
                            ", whose queue is stuck");
        state.progress->step();
      }
      const std::lock_guard lock(earlier->mutex);
      if (earlier->error) std::rethrow_exception(earlier->error);
      if (earlier->failure) earlier->failure->raise();
      if (earlier->device && state.device) earlier->device->precede(state.device->stream());
    } catch (...) {
      if (auto failure = member->diagnosis.failure()) return {.failure = std::move(failure)};
      return {.error = std::current_exception()};
    }
  }
  return {};
}

void GroupCore::fail_for(const Obstacle& obstacle, const CollectiveRecord& record) const {
  if (!obstacle.error || backend->size() == 1) return;
  std::string why = "an exception of an unknown type";
  try {
    std::rethrow_exception(obstacle.error);
  } catch (const std::exception& e) {
    why = e.what();
  } catch (...) {
  }
  member->diagnosis.fail({false, false, record.brief(),
                          concat({"[", op_name(record.op), "] ", record.str(), " did not begin on rank ",
                                  member->rank, ", because an earlier call failed: ", why})});
}

void GroupCore::perform(const CollectiveRecord& record, std::uint64_t ticket, WorkStates& after,
                        const std::shared_ptr<Work::State>& state, CallBody& body,
                        const std::shared_ptr<GroupCore>& self) {
  Obstacle obstacle = await(after, *state);
  const auto start = Clock::now();
  state->start();
  if (!obstacle.failure) member->recorder->started(ticket);
  fail_for(obstacle, record);
  std::shared_ptr<const Failure> failure = std::move(obstacle.failure);
  if (!failure && !obstacle.error) failure = attempt(record, body, start);
  const bool is_message = record.op == Op::send || record.op == Op::recv;
  if (!failure && !obstacle.error && state->device && on_gpu() && !is_message) {
    // The task is posted before state->finish(), because the thread that waits for `state` may then stop
    // `completions`. The task keeps the tensors alive until the GPU has finished with them.
    member->completions->post([self, record, ticket, state, start, body = std::move(body)]() mutable {
      std::shared_ptr<const Failure> late = self->attempt(
          record,
          [&](const CollectiveRecord&, Deadline deadline) {
            state->device->await(*self->backend, deadline);
            if (self->compares()) self->agreement->forget_calls(record);
          },
          start);
      body = nullptr;
      self->member->recorder->finished(ticket, late != nullptr);
      state->finish(std::move(late));
    });
    state->finish(nullptr, nullptr, false);
    return;
  }
  body = nullptr;  // frees the tensors before the waiting thread continues
  member->recorder->finished(ticket, failure || obstacle.error);
  state->finish(std::move(failure), std::move(obstacle.error));
}

std::shared_ptr<const Failure> GroupCore::attempt(const CollectiveRecord& record, const CallBody& body,
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

}  // namespace tapestry::distributed
