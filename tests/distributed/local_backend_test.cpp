// Tests the local backend without a process group, reduce_in_order(), and run_local_ranks().
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "tapestry/core/context.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace std::chrono_literals;

namespace {

Deadline in(Milliseconds time) { return Clock::now() + time; }

using Ends = std::vector<std::shared_ptr<Backend>>;

// Runs f(rank) in a thread per rank. Returns the texts of their exceptions.
std::vector<std::string> on_each(int size, const std::function<void(int)>& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        f(r);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Reduces the values of `size` ranks: `a` on rank 0, `b` on rank 1, and zeros on the others.
template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<T>& a, const std::vector<T>& b,
                       int size = 2) {
  const std::vector<T> zeros(a.size());
  std::vector<const void*> values(static_cast<std::size_t>(size), zeros.data());
  values[0] = a.data(), values[1] = b.data();
  std::vector<T> out(a.size());
  reduce_in_order(out.data(), values.data(), size, static_cast<std::int64_t>(a.size()), dtype, op);
  return out;
}

}  // namespace

TEST_CASE("reduce_in_order handles overflow, rounding, NaN and odd bools") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    const auto r = reduced<float>(DType::f32, op, {nan, 1, inf, -inf}, {1, nan, 2, 3});
    CHECK(std::isnan(r[0]));
    CHECK(std::isnan(r[1]));
    CHECK(r[2] == (op == ReduceOp::min ? 2 : inf));
    CHECK(r[3] == (op == ReduceOp::min ? -inf : 3));
    const auto h = reduced<Half>(DType::f16, op, {Half(nan), Half(1)}, {Half(1), Half(nan)});
    CHECK((std::isnan(static_cast<float>(h[0])) && std::isnan(static_cast<float>(h[1]))));
  }
  // Integer overflow must wrap around.
  constexpr auto top = std::numeric_limits<std::int32_t>::max();
  CHECK(reduced<std::int32_t>(DType::i32, ReduceOp::sum, {top, -1}, {1, 5}) ==
        std::vector<std::int32_t>{-top - 1, 4});
  CHECK(reduced<std::uint8_t>(DType::u8, ReduceOp::product, {16, 3}, {17, 5}) ==
        std::vector<std::uint8_t>{16, 15});
  constexpr auto far = std::numeric_limits<std::int64_t>::min();
  CHECK(reduced<std::int64_t>(DType::i64, ReduceOp::sum, {far, -3}, {-1, 1})[0] ==
        std::numeric_limits<std::int64_t>::max());
  CHECK(reduced<std::int64_t>(DType::i64, ReduceOp::min, {far, -3}, {-1, 1}) ==
        std::vector<std::int64_t>{far, -3});
  // Each addition must be rounded: 2048 + 1 is 2048 in f16, and 256 + 1 is 256 in bf16.
  CHECK(reduced<Half>(DType::f16, ReduceOp::sum, {Half(2048)}, {Half(1)})[0].bits == Half(2048).bits);
  CHECK(reduced<BFloat16>(DType::bf16, ReduceOp::sum, {BFloat16(256)}, {BFloat16(1)})[0].bits ==
        BFloat16(256).bits);
  CHECK(static_cast<float>(reduced<Half>(DType::f16, ReduceOp::sum, {Half(65504)}, {Half(65504)})[0]) == inf);
  // A mean must divide the sum and not multiply it by a rounded reciprocal.
  CHECK(reduced<float>(DType::f32, ReduceOp::mean, {4}, {3}, 5)[0] == 7.f / 5.f);
  CHECK(reduced<double>(DType::f64, ReduceOp::mean, {4}, {3}, 3)[0] == 7. / 3.);
  CHECK(reduced<BFloat16>(DType::bf16, ReduceOp::mean, {BFloat16(4)}, {BFloat16(3)}, 3)[0].bits ==
        BFloat16(7.f / 3.f).bits);
  CHECK_THROWS_AS(reduced<std::int32_t>(DType::i32, ReduceOp::mean, {7}, {1}), TypeError);
  CHECK(reduced<float>(DType::f32, ReduceOp::mean, {3e38f, 1e-45f, 3e-45f}, {3e37f, 0, 1e-45f}) ==
        std::vector<float>{(3e38f + 3e37f) / 2, 1e-45f / 2, (3e-45f + 1e-45f) / 2});
  CHECK(reduced<Half>(DType::f16, ReduceOp::mean, {Half(2048)}, {Half(1)})[0].bits == Half(1024).bits);
  // A byte that is neither 0 nor 1 must count as true.
  CHECK(reduced<std::uint8_t>(DType::boolean, ReduceOp::sum, {0, 2, 0, 1}, {0, 4, 8, 0}) ==
        std::vector<std::uint8_t>{0, 1, 1, 1});
  CHECK(reduced<std::uint8_t>(DType::boolean, ReduceOp::product, {0, 2, 0, 1}, {0, 4, 8, 0}) ==
        std::vector<std::uint8_t>{0, 1, 0, 0});
}

TEST_CASE("reduce_in_order works for several pieces and for any position of the output") {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max})
    for (const std::size_t size : {1u, 2u, 3u, 4u, 5u})
      for (const std::size_t count : {1u, 2048u, 5001u}) {  // a piece has 2048
        std::vector<std::vector<float>> values(size, std::vector<float>(count));
        for (std::size_t r = 0; r < size; ++r)
          for (std::size_t i = 0; i < count; ++i) values[r][i] = std::sin(static_cast<float>(i + 100 * r));
        std::vector<float> expected = values[0];
        for (std::size_t r = 1; r < size; ++r)
          for (std::size_t i = 0; i < count; ++i)
            expected[i] =
                op == ReduceOp::max ? std::max(expected[i], values[r][i]) : expected[i] + values[r][i];
        for (std::size_t i = 0; i < count && op == ReduceOp::mean; ++i)
          expected[i] /= static_cast<float>(size);
        for (std::size_t at = 0; at <= size;
             ++at) {  // `out` is the values of rank `at`, or a separate buffer if `at` equals `size`
          auto copies = values;
          copies.emplace_back(count);
          std::vector<const void*> in;
          for (std::size_t r = 0; r < size; ++r) in.push_back(copies[r].data());
          reduce_in_order(copies[at].data(), in.data(), static_cast<int>(size),
                          static_cast<std::int64_t>(count), DType::f32, op);
          CAPTURE(static_cast<int>(op), size, count, at);
          CHECK(copies[at] == expected);
        }
      }
}

TEST_CASE("the sum is formed in order of rank, with the same bits on all ranks") {
  // 1e8 + 1 - 1e8 is 0 in f32 in this order, and 1 in another order. Tests sizes below and above the limit up
  // to which one rank does all the work.
  for (const std::int64_t n : {1, 100, 50'000}) {
    const Ends ends = local_backends(3);
    std::vector<std::vector<float>> data = {std::vector<float>(static_cast<std::size_t>(n), 1e8f),
                                            std::vector<float>(static_cast<std::size_t>(n), 1.f),
                                            std::vector<float>(static_cast<std::size_t>(n), -1e8f)};
    const auto errors = on_each(3, [&](int r) {
      const auto k = static_cast<std::size_t>(r);
      ends[k]->all_reduce(data[k].data(), n, DType::f32, ReduceOp::sum, in(20s));
    });
    CHECK(errors == std::vector<std::string>(3));
    for (const auto& d : data) CHECK(d == std::vector<float>(static_cast<std::size_t>(n), 0.f));
  }
}

TEST_CASE("collectives of empty buffers complete") {
  const Ends ends = local_backends(2);
  CHECK(on_each(2, [&](int r) {
          Backend& end = *ends[static_cast<std::size_t>(r)];
          end.all_reduce(nullptr, 0, DType::f32, ReduceOp::sum, in(20s));
          end.all_gather(nullptr, nullptr, 0, in(20s));
          end.broadcast(nullptr, 0, 1, in(20s));
          if (r == 0) end.send(nullptr, 0, 1, 0, in(20s));
          else end.recv(nullptr, 0, 0, 0, in(20s));
          end.barrier(in(20s));
        }) == std::vector<std::string>(2));
}

TEST_CASE("a missing rank is a timeout, and different calls are an error") {
  const Ends ends = local_backends(3);
  float x[4] = {};
  CHECK_THROWS_WITH(ends[1]->barrier(in(30ms)), ContainsSubstring("rank 0, 2 did not come"));
  CHECK_THROWS_AS(ends[2]->all_reduce(x, 4, DType::f32, ReduceOp::sum, in(30ms)), TimeoutError);

  const Ends others = local_backends(2);
  float y[2][8] = {};
  for (const std::string& error : on_each(2, [&](int r) {
         others[static_cast<std::size_t>(r)]->all_reduce(y[r], 4 + 4 * r, DType::f32, ReduceOp::sum, in(20s));
       }))
    CHECK_THAT(error, ContainsSubstring("rank 1 called a different collective than rank 0"));
  CHECK_THROWS_AS(others[0]->barrier(in(20s)), DistributedError);
}

TEST_CASE("a rank that leaves wakes the ranks that wait for it") {
  Ends ends = local_backends(3);
  const auto errors = on_each(3, [&](int r) {
    if (r == 0) ends[0]->barrier(in(20s));
    float x = 0;
    if (r == 1) ends[1]->recv(&x, sizeof x, 2, 0, in(20s));
    if (r == 2) {
      std::this_thread::sleep_for(50ms);
      ends[2].reset();
    }
  });
  CHECK_THAT(errors[0], ContainsSubstring("rank 2 has left"));
  CHECK_THAT(errors[1], ContainsSubstring("rank 2 has left"));
  float x = 0;
  CHECK_THROWS_AS(ends[0]->send(&x, sizeof x, 2, 0, in(20s)), DistributedError);
}

TEST_CASE("messages sent before a rank left still arrive") {
  Ends ends = local_backends(2);
  const float sent[2] = {3, 4};
  ends[0]->send(sent, sizeof sent, 1, 9, in(1s));
  ends[0].reset();
  float got[2] = {};
  ends[1]->recv(got, sizeof got, 0, 9, in(1s));
  CHECK(got[1] == 4);
  CHECK_THROWS_WITH(ends[1]->recv(got, sizeof got, 0, 9, in(1s)), ContainsSubstring("rank 0 has left"));
}

TEST_CASE("messages of one tag keep their order, and sizes must match") {
  const Ends ends = local_backends(2);
  for (int i = 0; i < 3; ++i) ends[0]->send(&i, sizeof i, 1, 1, in(1s));
  const int other = 70;
  ends[0]->send(&other, sizeof other, 1, 2, in(1s));
  int got = 0;
  ends[1]->recv(&got, sizeof got, 0, 2, in(1s));
  CHECK(got == 70);
  for (int i = 0; i < 3; ++i) {
    ends[1]->recv(&got, sizeof got, 0, 1, in(1s));
    CHECK(got == i);
  }
  CHECK_THROWS_AS(ends[1]->recv(&got, sizeof got, 0, 1, in(20ms)), TimeoutError);
  ends[0]->send(&other, sizeof other, 1, 1, in(1s));
  char one;
  CHECK_THROWS_WITH(ends[1]->recv(&one, 1, 0, 1, in(1s)),
                    ContainsSubstring("sent 4 bytes, but rank 1 expects 1"));
}

TEST_CASE("abort() wakes all ranks with the reason") {
  const Ends ends = local_backends(3);
  const auto errors = on_each(3, [&](int r) {
    if (r == 0) ends[0]->barrier(in(20s));
    float x = 0;
    if (r == 1) ends[1]->recv(&x, sizeof x, 0, 0, in(20s));
    std::this_thread::sleep_for(50ms);
    ends[2]->abort("out of paper");
    ends[2]->abort("again");
    ends[2]->barrier(in(20s));
  });
  for (const std::string& error : errors) CHECK(error == "out of paper");
}

TEST_CASE("split() numbers the ranks in the given order") {
  const Ends ends = local_backends(4);
  const auto errors = on_each(4, [&](int r) {
    for (int round = 0; round < 3; ++round) {  // the same ranks again make another group
      const std::vector<int> ranks = r % 2 == 0 ? std::vector{2, 0} : std::vector{1, 3};
      const auto part = ends[static_cast<std::size_t>(r)]->split(ranks, nullptr, in(20s));
      int all[2] = {};
      part->all_gather(&r, all, sizeof r, in(20s));
      if (all[0] != ranks[0] || all[1] != ranks[1] || part->size() != 2) throw Error("wrong ranks");
    }
  });
  CHECK(errors == std::vector<std::string>(4));
  CHECK_THROWS_AS(ends[0]->split({1, 2}, nullptr, in(1s)), ValueError);
}

TEST_CASE("run_local_ranks gives every rank the caller's context and one compute thread") {
  std::atomic<int> seen{0};
  const NoGradGuard guard;
  run_local_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    const Tensor x = empty({1});
    x.data<float>()[0] = static_cast<float>(1 << group->rank());
    group->all_reduce(x).wait();
    const bool good = group->size() == 3 && group->backend() == "local" && group->name() == "world" &&
                      compute_threads() == 1 && !grad_enabled() && x.data<float>()[0] == 7;
    if (good) seen += 1 << group->rank();
  });
  CHECK(seen == 7);
}
