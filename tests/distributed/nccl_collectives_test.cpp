// Tests the collectives of the NCCL backend between ranks on fake GPUs, with the stand-in NCCL. The values of
// every rank and every element differ.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/p2p_op.h"
#include "tests/distributed/nccl_support.h"
#include "tests/support/catch.h"

using namespace nccl_test;
using namespace std::chrono_literals;

namespace {

using V = std::vector<double>;
const GroupOptions kQuick{.timeout = 20s, .warn_after = 19s};

/// Element i of rank r. Sums, means and products of four ranks are exact in every dtype.
double element(int r, std::size_t i, DType dtype) {
  if (dtype == DType::boolean) return (static_cast<std::size_t>(r) + i) % 3 == 0;
  return static_cast<double>((static_cast<std::size_t>(r) * 3 + i * 4) % 8 + 1);
}
V elements(int r, std::size_t n, DType dtype = DType::f32) {
  V values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = element(r, i, dtype);
  return values;
}
V reduced(int size, const std::vector<V>& ranks, ReduceOp op, DType dtype) {
  V result = ranks[0];
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      const double a = result[i], b = ranks[r][i];
      result[i] = op == ReduceOp::min       ? std::min(a, b)
                  : op == ReduceOp::max     ? std::max(a, b)
                  : op == ReduceOp::product ? a * b
                                            : a + b;
    }
    if (op == ReduceOp::mean) result[i] /= size;
    if (dtype == DType::boolean) result[i] = result[i] != 0;
  }
  return result;
}
std::vector<V> all_elements(int size, std::size_t n, DType dtype = DType::f32) {
  std::vector<V> all;
  for (int r = 0; r < size; ++r) all.push_back(elements(r, n, dtype));
  return all;
}

}  // namespace

TEST_CASE("reductions over NCCL have the values of each dtype and operation") {
  if (no_nccl()) return;
  for (const int size : {1, 2, 4}) {
    NcclWorld world(size);
    run_nccl_ranks_well(
        size,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::i32,
                                    DType::u8, DType::boolean})
            for (const ReduceOp op :
                 {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
              // Two cases are left out: the mean of integers, which is not defined, and products of more than
              // two ranks that are not exact in u8 or bf16.
              if (op == ReduceOp::mean && !is_floating(dtype)) continue;
              if (op == ReduceOp::product && (dtype == DType::u8 || dtype == DType::bf16) && size > 2)
                continue;
              const std::string what = dtype_name(dtype) + std::string(" ") + reduce_op_name(op);
              const V wanted = reduced(size, all_elements(size, 7, dtype), op, dtype);
              const Tensor x = on_gpu(gpu(rank), dtype, elements(rank, 7, dtype));
              group->all_reduce(x, op).wait();
              expect("all_reduce " + what, on_host(x), wanted);

              const int root = size - 1;
              const Tensor y = on_gpu(gpu(rank), dtype, elements(rank, 7, dtype));
              group->reduce(y, root, op).wait();
              expect("reduce " + what, on_host(y), rank == root ? wanted : elements(rank, 7, dtype));

              const auto n = static_cast<std::size_t>(size);
              const V whole = reduced(size, all_elements(size, 3 * n, dtype), op, dtype);
              const Tensor part = empty({3}, {dtype, gpu(rank)});
              group->reduce_scatter(part, on_gpu(gpu(rank), dtype, elements(rank, 3 * n, dtype)), op).wait();
              expect("reduce_scatter " + what, on_host(part),
                     V(whole.begin() + 3 * rank, whole.begin() + 3 * rank + 3));
            }
        },
        kQuick);
  }
}

TEST_CASE("collectives over NCCL that move data deliver each rank's elements") {
  if (no_nccl()) return;
  for (const int size : {1, 2, 3, 4}) {
    NcclWorld world(size);
    run_nccl_ranks_well(
        size,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const auto n = static_cast<std::size_t>(size);
          const auto mine = [&](std::size_t count) {
            return on_gpu(gpu(rank), DType::f32, elements(rank, count));
          };
          const auto zeros = [&](std::size_t count) { return on_gpu(gpu(rank), DType::f32, V(count)); };
          V all;
          for (const V& values : all_elements(size, 5)) all.insert(all.end(), values.begin(), values.end());

          for (int root = 0; root < size; ++root) {
            const Tensor x = mine(5);
            group->broadcast(x, root).wait();
            expect("broadcast", on_host(x), elements(root, 5));

            const Tensor gathered = zeros(5 * n);
            group->gather(gathered, mine(5), root).wait();
            expect("gather", on_host(gathered), rank == root ? all : V(5 * n));

            const Tensor part = zeros(2);
            group->scatter(part, mine(2 * n), root).wait();
            const V whole = elements(root, 2 * n);
            expect("scatter", on_host(part), V(whole.begin() + 2 * rank, whole.begin() + 2 * rank + 2));
          }
          const Tensor gathered = zeros(5 * n);
          group->all_gather(gathered, mine(5)).wait();
          expect("all_gather", on_host(gathered), all);

          const Tensor exchanged = zeros(2 * n);
          group->all_to_all(exchanged, mine(2 * n)).wait();
          V wanted;
          for (int r = 0; r < size; ++r)
            for (const std::size_t i : {0, 1})
              wanted.push_back(element(r, 2 * static_cast<std::size_t>(rank) + i, DType::f32));
          expect("all_to_all", on_host(exchanged), wanted);

          group->all_reduce(zeros(0)).wait();
          group->barrier().wait();
        },
        kQuick);
  }
}

TEST_CASE("a list of tensors over NCCL is one group of calls") {
  if (no_nccl()) return;
  using Tensors = std::vector<Tensor>;
  for (const int size : {1, 2, 3, 5}) {
    NcclWorld world(size);
    run_nccl_ranks_well(
        size,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const auto n = static_cast<std::size_t>(size);
          const auto tensor = [&](std::size_t count, DType dtype) {
            return on_gpu(gpu(rank), dtype, elements(rank, count, dtype));
          };
          const auto room = [&](std::size_t count, DType dtype) {
            return on_gpu(gpu(rank), dtype, V(count));
          };
          const auto gathered = [&](std::size_t count, DType dtype) {
            V all;
            for (const V& values : all_elements(size, count, dtype))
              all.insert(all.end(), values.begin(), values.end());
            return all;
          };
          // An empty tensor, a tensor in place, one on the host, and columns of a matrix.
          const Tensor whole = room(3 * n, DType::f32), own = whole.narrow(0, 3 * rank, 3);
          const Tensor values = tensor(3, DType::f32);
          cuda::copy_bytes(gpu(rank), own.raw_data(), gpu(rank), values.raw_data(), values.nbytes());
          const Tensor matrix = room(7 * n, DType::i32), columns = matrix.view({size, 7}).narrow(1, 2, 4);
          const Tensor on_cpu = empty({static_cast<std::int64_t>(2 * n)}, DType::bf16);
          group
              ->all_gather(Tensors{room(0, DType::f32), whole, columns, on_cpu},
                           Tensors{room(0, DType::f32), own, tensor(4, DType::i32), tensor(2, DType::bf16)})
              .wait();
          expect("in place", on_host(whole), gathered(3, DType::f32));
          V rows = V(7 * n);
          for (std::size_t r = 0; r < n; ++r)
            for (std::size_t i = 0; i < 4; ++i)
              rows[7 * r + 2 + i] = element(static_cast<int>(r), i, DType::i32);
          expect("columns", on_host(matrix), rows);
          V came;
          for (std::size_t i = 0; i < 2 * n; ++i)
            came.push_back(static_cast<float>(on_cpu.data<BFloat16>()[i]));
          expect("on the host", came, gathered(2, DType::bf16));

          for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
            const Tensor a = room(2, DType::f64), b = room(1, DType::bf16);
            group
                ->reduce_scatter(
                    Tensors{a, b, room(0, DType::f32)},
                    Tensors{tensor(2 * n, DType::f64), tensor(n, DType::bf16), room(0, DType::f32)}, op)
                .wait();
            const V doubles = reduced(size, all_elements(size, 2 * n, DType::f64), op, DType::f64);
            const auto r = static_cast<std::size_t>(rank);
            expect("reduce_scatter", on_host(a), {doubles[2 * r], doubles[2 * r + 1]});
            if (op == ReduceOp::mean && size > 2) continue;  // not exact in bf16
            expect("reduce_scatter", on_host(b),
                   {reduced(size, all_elements(size, n, DType::bf16), op, DType::bf16)[r]});
          }
          group->all_gather(Tensors{}, Tensors{}).wait();
          group->barrier().wait();
        },
        kQuick);
    CHECK(world.nccl().calls("ncclGroupEnd") == 4 * size);
    CHECK(world.nccl().calls("ncclAllGather") == 3 * size);
    CHECK(world.nccl().calls("ncclReduceScatter") == 6 * size);
  }
}

TEST_CASE("parts of any sizes, and parts along a dimension, move over NCCL") {
  if (no_nccl()) return;
  using Tensors = std::vector<Tensor>;
  for (const int size : {1, 2, 3}) {
    NcclWorld world(size);
    run_nccl_ranks_well(
        size,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const auto n = static_cast<std::size_t>(size);
          const auto length = [](std::size_t from, std::size_t to) {
            return (from + 2 * to) % 3 * (1 + from);
          };
          const auto me = static_cast<std::size_t>(rank);
          Tensors ins, outs;
          for (std::size_t r = 0; r < n; ++r) {
            ins.push_back(on_gpu(gpu(rank), DType::f32, elements(rank, length(me, r))));
            outs.push_back(on_gpu(gpu(rank), DType::f32, V(length(r, me))));
          }
          group->all_to_all(outs, ins).wait();
          for (std::size_t r = 0; r < n; ++r)
            expect("all_to_all", on_host(outs[r]), elements(static_cast<int>(r), length(r, me)));

          // A part of shape (2, 3) is columns of the whole. Element (row, k) of rank r is element 3 row + k
          // of it.
          const Tensor part = on_gpu(gpu(rank), DType::f32, elements(rank, 6)).view({2, 3});
          const Tensor whole = on_gpu(gpu(rank), DType::f32, V(6 * n)).view({2, 3 * size});
          group->all_gather(whole, part, 1).wait();
          V gathered;
          for (std::size_t row = 0; row < 2; ++row)
            for (std::size_t i = 0; i < 3 * n; ++i)
              gathered.push_back(element(static_cast<int>(i / 3), 3 * row + i % 3, DType::f32));
          expect("all_gather", on_host(whole), gathered);
          const Tensor values = on_gpu(gpu(rank), DType::f32, elements(rank, 6 * n)).view({2, 3 * size});
          group->reduce_scatter(part, values, -1).wait();
          const V sums = reduced(size, all_elements(size, 6 * n), ReduceOp::sum, DType::f32);
          V own;
          for (std::size_t row = 0; row < 2; ++row)
            for (std::size_t i = 0; i < 3; ++i) own.push_back(sums[3 * n * row + 3 * me + i]);
          expect("reduce_scatter", on_host(part), own);
        },
        kQuick);
    CHECK(world.nccl().calls("ncclAllGather") == size);
    CHECK(world.nccl().calls("ncclReduceScatter") == size);
    int parts = 0;  // that are not empty
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to) parts += (from + 2 * to) % 3 != 0;
    CHECK(world.nccl().calls("ncclSend") == parts);
    CHECK(world.nccl().calls("ncclRecv") == parts);
  }
}

TEST_CASE(
    "ends of a part that differ over NCCL are named if calls are compared, and no key stays in the store") {
  if (no_nccl()) return;
  NcclWorld world(2);
  GroupOptions options = kQuick;
  options.check = true;
  const auto store = memory_store();
  const auto errors = run_nccl_ranks(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
        std::vector<Tensor> ins, outs;
        for (int r = 0; r < 2; ++r) {
          ins.push_back(on_gpu(gpu(rank), DType::f32, V(4)));
          outs.push_back(on_gpu(gpu(rank), DType::f32, V(4)));
        }
        group->all_to_all(outs, ins).wait();
        expect("zeros", on_host(outs[0]), V(4));  // by now the other rank has compared too
        for (const char* key :
             {"group/parts/1/0", "group/parts/1/1", "group/parts/1/sum", "group/parts/1/ranks"})
          if (store->try_get(key)) throw std::runtime_error(key);
        if (rank == 1) ins[0] = on_gpu(gpu(rank), DType::f32, V(3));
        group->all_to_all(outs, ins, "tokens").wait();
        for (int i = 0; i < 5000; ++i) {  // the rank that came first learns of it in a later call
          std::this_thread::sleep_for(1ms);
          group->all_reduce(ins[1]).wait();
        }
      },
      options, store);
  for (const std::string& error : errors)
    CHECK_THAT(error,
               ContainsSubstring("rank 1 sends 3 float32 elements to rank 0, which expects 4 float32"));
}

TEST_CASE("a batch of messages over NCCL is one group of calls, in order with single messages") {
  if (no_nccl()) return;
  NcclWorld world(3);
  run_nccl_ranks_well(
      3,
      [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
        const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
        const auto message = [&](int from, double number) { return V{10.0 * from + number, number}; };
        const auto sent = [&](double number) { return on_gpu(gpu(rank), DType::f32, message(rank, number)); };
        std::vector<Tensor> received;
        for (int i = 0; i < 6; ++i) received.push_back(on_gpu(gpu(rank), DType::f32, {0, 0}));
        const Tensor on_cpu = empty({2});
        // Singles before and after a batch, whose channels are those of the batch.
        const Work first = group->send(sent(0), next), early = group->recv(received[0], previous);
        const Work batch = group->batch_isend_irecv(
            {P2POp::recv(received[1], previous), P2POp::send(sent(1), next),
             P2POp::recv(received[2], previous), P2POp::send(sent(2), next),
             P2POp::send(sent(5), previous, 1), P2POp::recv(received[5], next, 1),
             P2POp::recv(empty({0}, {DType::f32, gpu(rank)}), next, 2), P2POp::recv(on_cpu, next, 3),
             P2POp::send(empty({0}, {DType::f32, gpu(rank)}), previous, 2),
             P2POp::send(sent(6), previous, 3)});
        const Work third = group->send(sent(3), next), late = group->recv(received[3], previous);
        for (const Work& work : {late, batch, early, first, third}) work.wait();
        for (int i = 0; i < 4; ++i)
          expect("from the previous rank", on_host(received[static_cast<std::size_t>(i)]),
                 message(previous, i));
        expect("from the next rank", on_host(received[5]), message(next, 5));
        expect("on the host", {on_cpu.data<float>()[0], on_cpu.data<float>()[1]}, message(next, 6));
        const auto records = group->recorder().records();
        for (const CollectiveRecord& record : records)
          if (record.finished == Clock::time_point{} || record.failed) throw std::runtime_error(record.str());
        if (records.size() != 14) throw std::runtime_error("the number of records");
      },
      kQuick);
  CHECK(world.nccl().calls("ncclGroupEnd") == 3);
}

TEST_CASE("work on the GPU before and after a collective over NCCL stays in order") {
  if (no_nccl()) return;
  NcclWorld world(2);
  run_nccl_ranks_well(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
        const Tensor x = on_gpu(gpu(rank), DType::f32, {0, 0});
        auto* const data = x.data<float>();
        for (int step = 0; step < 50; ++step) {
          world.gpus().launch(current_stream(gpu(rank)),
                              [=] { data[0] = static_cast<float>(rank + step), data[1] = 2; });
          group->all_reduce(x).wait();
          world.gpus().launch(current_stream(gpu(rank)), [=] { data[1] *= 3; });
          if (step % 10 == 0) expect("step", on_host(x), {2.0 * step + 1, 12});
        }
      },
      kQuick);
}

TEST_CASE("messages over NCCL arrive by peer, tag and order") {
  if (no_nccl()) return;
  NcclWorld world(3);
  run_nccl_ranks_well(
      3,
      [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
        // Every rank first sends two messages per tag to both other ranks. Then it receives in another order
        // of tags and peers.
        std::vector<Work> works;
        std::vector<Tensor> sent, received;
        for (int peer = 0; peer < 3; ++peer)
          for (std::uint32_t tag = 0; peer != rank && tag < 3; ++tag)
            for (int message = 0; message < 2; ++message) {
              sent.push_back(
                  on_gpu(gpu(rank), DType::f32, {100.0 * rank + 10.0 * peer + tag, 1.0 * message}));
              works.push_back(group->send(sent.back(), peer, tag));
            }
        for (std::uint32_t tag = 3; tag-- > 0;)
          for (int peer = 3; peer-- > 0;)
            for (int message = 0; peer != rank && message < 2; ++message) {
              received.push_back(on_gpu(gpu(rank), DType::f32, {0, 0}));
              works.push_back(group->recv(received.back(), peer, tag));
            }
        for (const Work& work : works) work.wait();
        std::size_t i = 0;
        for (std::uint32_t tag = 3; tag-- > 0;)
          for (int peer = 3; peer-- > 0;)
            for (int message = 0; peer != rank && message < 2; ++message)
              expect("message", on_host(received[i++]), {100.0 * peer + 10.0 * rank + tag, 1.0 * message});
      },
      kQuick);
}

TEST_CASE("more messages than a device has pooled streams do not wait for one another") {
  if (no_nccl()) return;
  NcclWorld world(2);
  run_nccl_ranks_well(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
        // Every rank posts all receives before it sends, and its peer sends in the opposite order. If a send
        // shared a stream with a receive, each would wait for the other.
        constexpr std::uint32_t kTags = 40;
        std::vector<Work> works;
        std::vector<Tensor> sent, received;
        for (std::uint32_t tag = 0; tag < kTags; ++tag) {
          received.push_back(on_gpu(gpu(rank), DType::f32, {0}));
          works.push_back(group->recv(received.back(), 1 - rank, tag));
        }
        group->barrier().wait();
        for (std::uint32_t tag = kTags; tag-- > 0;) {
          sent.push_back(on_gpu(gpu(rank), DType::f32, {tag + 100.0 * rank}));
          works.push_back(group->send(sent.back(), 1 - rank, tag));
        }
        for (const Work& work : works) work.wait();
        for (std::uint32_t tag = 0; tag < kTags; ++tag)
          expect("tag", on_host(received[tag]), {tag + 100.0 * (1 - rank)});
      },
      kQuick);
}

TEST_CASE("groups of some ranks over NCCL number them anew") {
  if (no_nccl()) return;
  NcclWorld world(3);
  run_nccl_ranks_well(
      3,
      [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
        const auto pair = group->new_group({2, 0});
        const auto alone = group->new_group({1});
        if ((pair != nullptr) != (rank != 1) || (alone != nullptr) != (rank == 1))
          throw std::runtime_error("a group on a rank outside of it");
        const Tensor x = on_gpu(gpu(rank), DType::f32, {1.0 + rank});
        if (pair) {
          if (pair->rank() != (rank == 2 ? 0 : 1)) throw std::runtime_error("rank in the pair");
          pair->broadcast(x, 0).wait();
          expect("broadcast from rank 2", on_host(x), {3});
        }
        group->all_reduce(x).wait();
        expect("all ranks", on_host(x), {3 + 2 + 3});
      },
      kQuick);
}

TEST_CASE("overlapping groups over NCCL have the values of each call, on one stream or their own") {
  if (no_nccl()) return;
  for (const bool own_streams : {false, true})
    for (const int size : {1, 2, 4}) {
      NcclWorld world(size);
      GroupOptions options = kQuick;
      options.own_streams = own_streams;
      run_nccl_ranks_well(
          size,
          [](const std::shared_ptr<ProcessGroup>& group, int rank) {
            overlap_groups(group, gpu(rank), 1027);
          },
          options);
    }
}

TEST_CASE("calls of two groups over NCCL run in the order that after() names, on one stream or two") {
  if (no_nccl()) return;
  for (const bool own_streams : {false, true}) {
    NcclWorld world(2);
    GroupOptions options = kQuick;
    options.own_streams = own_streams;
    run_nccl_ranks_well(
        2,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const auto other = group->new_group({1, 0});
          const Tensor x = on_gpu(gpu(rank), DType::f32, {1.0 + rank});
          // The first call starts late, because the stream that it is made on is busy.
          std::atomic<bool> go{false};
          const Stream busy = new_stream(gpu(rank));
          world.gpus().launch_until(busy.native(), [&] { return go.load(); });
          Work most;
          {
            const StreamGuard guard(busy);
            most = group->all_reduce(x, ReduceOp::max);
          }
          const Work sum = other->all_reduce(x, ReduceOp::sum, after(most));
          bool early = false;
          for (int i = 0; i < 20; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(1)))
            early = early || sum.done();
          go = true;
          if (early) throw std::runtime_error("the sum did not wait for the maximum");
          sum.wait();
          expect("the sum after the maximum", on_host(x), {4});
          std::vector<double> seen;
          const Work third = group->all_reduce(x);
          other->enqueue([&] { seen = on_host(x); }, after(third));
          expect("a task after the second sum", seen, {8});
          group->check_order();
        },
        options);
  }
}

TEST_CASE("check_order() over NCCL names calls that ranks make in different orders") {
  if (no_nccl()) return;
  for (const bool compares : {false, true}) {
    NcclWorld world(2);
    GroupOptions options = kQuick;
    options.check = compares;
    const auto errors = run_nccl_ranks(
        2,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const auto a = group->new_group({0, 1}), b = group->new_group({0, 1});
          const Tensor nothing =
              empty({0}, {DType::f32, gpu(rank)});  // without a call of NCCL, nothing hangs
          group->check_order();
          for (const bool first : {rank == 0, rank != 0})
            (first ? a : b)->all_reduce(nothing, ReduceOp::sum, first ? "first" : "second");
          group->check_order();
        },
        options);
    const auto late = run_nccl_ranks(
        2,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const auto a = group->new_group({0, 1}), b = group->new_group({0, 1});
          const Tensor nothing = empty({0}, {DType::f32, gpu(rank)});
          for (const bool first : {rank == 0, rank != 0}) (first ? a : b)->all_reduce(nothing);
          for (int i = 0; i < 1024; ++i) group->all_reduce(nothing);
        },
        options);
    for (const std::string& error : late) CHECK_THAT(error, ContainsSubstring("in different orders"));
    for (const std::string& error : errors)
      CHECK_THAT(error, ContainsSubstring("call 4 of these is world.1#1 all_reduce(first)") &&
                            ContainsSubstring("on rank 0 and world.2#1 all_reduce(second)"));
  }
}

TEST_CASE("collectives and messages over NCCL ask the store for nothing") {
  if (no_nccl()) return;
  const auto requests = [](std::optional<bool> check, int steps) {
    NcclWorld world(2);
    const auto store = std::make_shared<CountingStore>();
    int before = 0, after = 0;
    GroupOptions options = kQuick;
    options.check = check;
    run_nccl_ranks_well(
        2,
        [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
          const Tensor x = on_gpu(gpu(rank), DType::f32, {1, 2});
          const auto step = [&] {
            group->all_reduce(x).wait();
            group->broadcast(x).wait();
            if (rank == 0) group->send(x, 1).wait();
            else group->recv(x, 0).wait();
            group->barrier().wait();
          };
          step();  // the first message creates its communicator, which needs the store
          if (rank == 0) before = store->requests();
          group->barrier().wait();
          for (int i = 0; i < steps; ++i) step();
          group->barrier().wait();
          if (rank == 0) after = store->requests();
          group->barrier().wait();
        },
        options, store);
    return after - before;
  };
  CHECK(requests(std::nullopt, 25) == 0);
  // If calls are compared, each of the three collectives and the message must make at least one request per
  // step.
  CHECK(requests(true, 5) >= 5 * 4);
  setenv("TAPESTRY_CHECK_COLLECTIVES", "1", 1);
  CHECK(requests(std::nullopt, 5) >= 5 * 4);
  unsetenv("TAPESTRY_CHECK_COLLECTIVES");
}
