// Messages between ranks must arrive with the shapes, dtypes, memory formats and values that were sent, and
// invalid messages must be refused.
#include <cstring>

#include "tapestry/distributed/pipeline/internal/rank_messages.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using distributed_test::Group, distributed_test::kBounded;
using distributed_test::run_ranks;
using distributed_test::run_ranks_well;
using distributed_test::transports;

namespace {

using Tensors = std::vector<Tensor>;
using Kind = MessageId::Kind;

constexpr std::uint32_t kTag = 7;

std::vector<MessageId> output_ids(int count, std::uint64_t pass = 1) {
  std::vector<MessageId> ids;
  for (int i = 0; i < count; ++i) ids.push_back({Kind::outputs, i, pass});
  return ids;
}

Tensor numbers(const Shape& sizes, DType dtype, int first = 0) {
  const Tensor t = empty(sizes, {DType::i64, kCPU});
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<std::int64_t>()[i] = (first + i) % 100;
  return t.to(dtype);
}

// Returns a message with all kinds of tensors that a stage may return. Values and shapes depend on `k`.
Message assortment(int k) {
  const Tensor strided = numbers({6, 4}, DType::f32, k).t();
  const Tensor spread = numbers({1, 3}, DType::f64, k).expand({5, 3});
  Tensors all{numbers({k + 1, 3}, DType::f32, k),
              numbers({}, DType::f64, k),
              {},
              numbers({0, 4}, DType::f32),
              strided,
              spread,
              numbers({2, 3, 4, 2}, DType::f32, k).contiguous(MemoryFormat::channels_last),
              numbers({1, 1, 1, 1, 1, 1, 2, 2}, DType::i32, k)};
  for (const DType dtype : {DType::f16, DType::bf16, DType::i64, DType::u8, DType::boolean})
    all.push_back(numbers({3}, dtype, k));
  Message message{all, std::vector<bool>(all.size())};
  for (const std::size_t i : {0, 6}) message.requires_grad[i] = k % 2 == 0;
  return message;
}

void check_same(const Message& message, const Message& other) {
  const Tensors &received = message.tensors, &sent = other.tensors;
  if (received.size() != sent.size()) throw std::runtime_error("another number of tensors");
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const auto fails = [&](const char* what) {
      throw std::runtime_error("tensor " + std::to_string(i) + ": " + what);
    };
    if (received[i].defined() != sent[i].defined()) fails("defined on one side only");
    if (!sent[i].defined()) continue;
    if (received[i].dtype() != sent[i].dtype() || !(received[i].sizes() == sent[i].sizes()))
      fails("another shape");
    if (message.requires_grad[i] != (!other.requires_grad.empty() && other.requires_grad[i]))
      fails("requires a gradient on one side only");
    if (received[i].requires_grad()) fails("recorded");
    if (received[i].memory_format() != sent[i].memory_format()) fails("another layout");
    const Tensor a = received[i].contiguous(), b = sent[i].contiguous();
    if (a.nbytes() > 0 && std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) != 0) fails("other values");
  }
}

}  // namespace

TEST_CASE("messages arrive as they were sent, also more of them than are received ahead") {
  constexpr int kMessages = 9;
  for (const auto& transport : transports()) {
    INFO(transport.name);
    CHECK_NOTHROW(run_ranks_well(
        transport, 2,
        [&](const Group& group) {
          if (group->rank() == 0) {
            MessageSender sender(*group, 1, kTag);
            for (const MessageId& id : output_ids(kMessages))
              sender.send(id, assortment(id.micro_batch), static_cast<std::uint64_t>(id.micro_batch) << 40);
            sender.finish();
          } else {
            MessageReceiver receiver(*group, 0, kTag, kCPU, output_ids(kMessages));
            for (int k = 0; k < kMessages; ++k) {
              check_same(receiver.take(), assortment(k));
              if (receiver.rng_offset() != static_cast<std::uint64_t>(k) << 40)
                throw std::runtime_error("another rng_offset");
            }
          }
        },
        kBounded));
  }
}

TEST_CASE("messages of both directions and of several passes do not mix") {
  run_ranks_well(
      transports()[0], 2,
      [&](const Group& group) {
        const int peer = 1 - group->rank();
        for (std::uint64_t pass = 1; pass <= 3; ++pass) {
          const auto ids = output_ids(4, pass);
          MessageSender sender(*group, peer, kTag);
          MessageReceiver receiver(*group, peer, kTag, kCPU, ids);
          for (const MessageId& id : ids) {
            sender.send(id, {{numbers({2}, DType::f64, id.micro_batch + 10 * group->rank())}}, 0);
            check_same(receiver.take(), {{numbers({2}, DType::f64, id.micro_batch + 10 * peer)}});
          }
          sender.finish();
        }
      },
      kBounded);
}

TEST_CASE("the next messages arrive while a stage computes") {
  for (const auto& transport : transports()) {
    INFO(transport.name);
    CHECK_NOTHROW(run_ranks_well(
        transport, 2,
        [&](const Group& group) {
          const Tensor done = numbers({1}, DType::i64);
          if (group->rank() == 0) {
            MessageSender sender(*group, 1, kTag);
            for (std::size_t k = 0; k < kMaxQueuedMessages; ++k)
              sender.send({Kind::outputs, static_cast<int>(k), 1}, assortment(0), 0);
            sender.finish();  // over Gloo, returns when the peer has received them
            group->send(done, 1, kTag + 1).wait();
            sender.send({Kind::outputs, kMaxQueuedMessages, 1}, assortment(1), 0);
            sender.finish();
          } else {
            MessageReceiver receiver(*group, 0, kTag, kCPU, output_ids(kMaxQueuedMessages + 1));
            group->recv(done, 0, kTag + 1).wait();  // stands for the computation
            for (std::size_t k = 0; k < kMaxQueuedMessages; ++k) check_same(receiver.take(), assortment(0));
            check_same(receiver.take(), assortment(1));
          }
        },
        kBounded));
  }
}

TEST_CASE("a message with too many tensors is refused before anything is posted") {
  run_ranks_well(
      transports()[0], 2,
      [&](const Group& group) {
        const Tensors most(kMaxMessageTensors - 1, numbers({2}, DType::f32));
        if (group->rank() == 0) {
          MessageSender sender(*group, 1, kTag);
          Tensors more = most;
          more.emplace_back();
          try {
            sender.send({Kind::outputs, 0, 1}, {more}, 0);
            throw std::runtime_error("33 tensors were sent");
          } catch (const ValueError& e) {
            if (!std::strstr(e.what(), "33 tensors")) throw;
          }
          sender.send({Kind::outputs, 0, 1}, {most}, 0);
          sender.send({Kind::outputs, 1, 1}, {}, 0);
          sender.finish();
        } else {
          MessageReceiver receiver(*group, 0, kTag, kCPU, output_ids(2));
          check_same(receiver.take(), {most});
          check_same(receiver.take(), {});
        }
      },
      kBounded);
}

namespace {

// Changes the bytes of a header in transit and returns the receiver's error, or "" if it accepts the header.
std::string received(const std::function<void(unsigned char*)>& change) {
  const Tensor bytes = MessageHeader({Kind::outputs, 0, 1}, {{numbers({2, 3}, DType::f32)}}, 0).bytes();
  change(bytes.data<unsigned char>());
  const auto outcomes = run_ranks(transports()[0], 2,
                                  [&](const Group& group) {
                                    if (group->rank() == 0) {
                                      group->send(bytes, 1, kTag).wait();
                                      group->send(numbers({2, 3}, DType::f32), 1, kTag).wait();
                                    } else {
                                      MessageReceiver receiver(*group, 0, kTag, kCPU, output_ids(1));
                                      try {
                                        check_same(receiver.take(), {{numbers({2, 3}, DType::f32)}});
                                      } catch (...) {
                                        group->abort("a bad header");
                                        throw;
                                      }
                                    }
                                  },
                                  {.timeout = Milliseconds(5'000)});
  return outcomes[1].error;
}

template <class T>
std::function<void(unsigned char*)> put(std::size_t at, T value) {
  return [=](unsigned char* bytes) { std::memcpy(bytes + at, &value, sizeof value); };
}

}  // namespace

TEST_CASE("an invalid header, or the header of another message, is refused") {
  CHECK(received([](unsigned char*) {}) == "");
  // MessageHeader has 32 bytes, followed by one entry per tensor: 16 bytes, then the sizes.
  const char* const nonsense = "rank 0 sent an invalid header";
  CHECK_THAT(received(put<std::uint32_t>(0, 1)), ContainsSubstring(nonsense));    // magic number
  CHECK_THAT(received(put<std::uint8_t>(24, 9)), ContainsSubstring(nonsense));    // kind
  CHECK_THAT(received(put<std::uint8_t>(25, 34)), ContainsSubstring(nonsense));   // count
  CHECK_THAT(received(put<std::uint8_t>(32, 200)), ContainsSubstring(nonsense));  // dtype
  CHECK_THAT(received(put<std::uint8_t>(33, 9)), ContainsSubstring(nonsense));    // dimensions
  CHECK_THAT(received(put<std::uint8_t>(36, 1)), ContainsSubstring(nonsense));    // channels-last of 2-d
  // The placements along the first axis and along the last one. 5 is sharded(0), so 7 is a dimension that the
  // tensor does not have.
  CHECK_THAT(received(put<std::uint8_t>(37, 7)), ContainsSubstring(nonsense));
  CHECK_THAT(received(put<std::uint8_t>(47, 255)), ContainsSubstring(nonsense));
  CHECK(received(put<std::uint8_t>(47, 6)) == "");
  CHECK_THAT(received(put<std::int64_t>(48, -2)), ContainsSubstring(nonsense));  // size
  CHECK_THAT(received(put<std::int64_t>(48, std::int64_t{1} << 62)),
             ContainsSubstring(nonsense));  // overflow
  CHECK_THAT(received(put<std::int32_t>(4, 3)),
             ContainsSubstring("rank 0 sent the outputs of micro-batch 3 in pass 1 instead of the outputs "
                               "of micro-batch 0 in pass 1"));
  CHECK_THAT(received(put<std::uint64_t>(8, 2)), ContainsSubstring("in pass 2 instead of"));
  CHECK_THAT(received(put<std::uint8_t>(24, 1)), ContainsSubstring("sent the gradients of micro-batch 0"));
  // If the header is valid but has a wrong size, the process group must throw, because it compares the sizes
  // of the tensors.
  CHECK_THAT(received(put<std::int64_t>(48, 3)),
             ContainsSubstring("rank 0 sent") && ContainsSubstring("[2, 3]"));
}

TEST_CASE("a receiver throws when its peer aborts the group, and does not hang") {
  for (const auto& transport : transports()) {
    INFO(transport.name);
    const auto outcomes = run_ranks(
        transport, 2,
        [&](const Group& group) {
          if (group->rank() == 0) {
            group->abort("nothing left to say");
            group->recv(numbers({1}, DType::f32), 1, kTag).wait();
          }
          MessageReceiver receiver(*group, 0, kTag, kCPU, output_ids(2));
          receiver.take();
        },
        kBounded);
    CHECK_THAT(outcomes[1].error, ContainsSubstring("nothing left to say"));
  }
}
