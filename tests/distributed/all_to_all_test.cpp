// Tests all_to_all of lists, on every transport. The part from rank i to rank j has a size and a dtype of its
// own.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/distributed/lists_support.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;
using namespace lists_test;
using tapestry::detail::raw_view;

namespace {

// What rank `from` sends to rank `to`.
struct Part {
  DType dtype;
  std::int64_t length;
  unsigned seed;
};
Part part_of(int from, int to, std::int64_t scale) {
  const DType dtype = kAll[(from * 3 + to) % 8];
  return {dtype, (from + 2 * to) % 3 == 1 ? 0 : scale * (1 + from) + 2 * to,
          static_cast<unsigned>(8 * from + to)};
}
Tensor values_of(int from, int to, std::int64_t scale) {
  const Part part = part_of(from, to, scale);
  return numbers(part.dtype, {part.length}, from, part.seed);
}

void check_exchange(const Group& group, std::int64_t scale) {
  const int size = group->size(), rank = group->rank();
  Tensors ins, outs;
  for (int i = 0; i < size; ++i) {
    ins.push_back(values_of(rank, i, scale));
    const Part part = part_of(i, rank, scale);
    outs.push_back(garbage(part.dtype, {part.length}));
  }
  const auto version = outs.back().version();
  group->all_to_all(outs, ins).wait();
  for (int i = 0; i < size; ++i) {
    const auto k = static_cast<std::size_t>(i);
    require(same_bytes(outs[k].raw_data(), values_of(i, rank, scale).raw_data(), outs[k].nbytes()),
            "the part of rank ", i, ", scale ", scale);
    require(same_bytes(ins[k].raw_data(), values_of(rank, i, scale).raw_data(), ins[k].nbytes()),
            "an input changed");
  }
  require(outs.back().version() > version, "all_to_all left the version");
}

}  // namespace

TEST_CASE("ranks exchange parts of different sizes and dtypes, of which some are empty") {
  for (const Transport& transport : transports())
    for (const int size : kSizes)
      run_ranks_well(transport, size, [](const Group& group) {
        for (const std::int64_t scale : {1, kSanitized ? 259 : 5003}) check_exchange(group, scale);
        const Tensors nothing(static_cast<std::size_t>(group->size()), garbage(DType::f32, {0}));
        group->all_to_all(nothing, nothing).wait();
        check_exchange(group, 2);
      });
  // More than a slot of shared memory.
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& group) { check_exchange(group, 300'001); },
                   {.check = false});
}

TEST_CASE("parts may be strided and expanded, and inputs may be equal or share memory with outputs") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 3, [](const Group& group) {
      const int rank = group->rank();
      // From rows (rank r has row r) to columns: part (i, j) is a row's columns [j * j, (j + 1) * (j + 1)).
      const Tensor rows = numbers(DType::f32, {4, 9}, rank, 1);
      const Tensor columns = garbage(DType::f32, {12, 2 * rank + 1 + 2});
      Tensors ins, outs;
      for (int i = 0; i < 3; ++i) {
        ins.push_back(rows.narrow(1, i * i, 2 * i + 1));
        outs.push_back(columns.narrow(1, 1, 2 * rank + 1).narrow(0, 4 * i, 4));
      }
      if (rank == 1) {  // transposed on one rank
        for (Tensor& in : ins) in = in.t().contiguous().t();
      }
      group->all_to_all(outs, ins).wait();
      for (int i = 0; i < 3; ++i) {
        const Tensor expected =
            numbers(DType::f32, {4, 9}, i, 1).narrow(1, rank * rank, 2 * rank + 1).contiguous();
        require(same_bytes(outs[static_cast<std::size_t>(i)].contiguous().raw_data(), expected.raw_data(),
                           expected.nbytes()),
                "the rows of rank ", i);
      }
      for (const std::int64_t gap : {std::int64_t{0}, std::int64_t{2 * rank + 2}})
        require(same_bytes(columns.select(1, gap).contiguous().raw_data(),
                           garbage(DType::f32, {12}).raw_data(), 48),
                "a gap was written");

      // One tensor for all, as for a gather of unequal parts.
      const Tensor own = numbers(DType::bf16, {rank + 1, 2}, rank, 2), all = garbage(DType::bf16, {6, 2});
      group->all_to_all({all.narrow(0, 0, 1), all.narrow(0, 1, 2), all.narrow(0, 3, 3)}, Tensors(3, own))
          .wait();
      for (int r = 0, begin = 0; r < 3; begin += ++r)
        require(same_bytes(all.narrow(0, begin, r + 1).raw_data(),
                           numbers(DType::bf16, {r + 1, 2}, r, 2).raw_data(),
                           4 * static_cast<std::size_t>(r + 1)),
                "the gathered part of rank ", r);

      const Tensor both = numbers(DType::i32, {9}, rank, 3);
      Tensors parts;
      for (int i = 0; i < 3; ++i) parts.push_back(both.narrow(0, 3 * i, 3));
      group->all_to_all({parts[2], parts[0], parts[1]}, parts).wait();
      for (int i = 0; i < 3; ++i)
        require(same_bytes(both.data<std::int32_t>() + 3 * ((i + 2) % 3),
                           numbers(DType::i32, {9}, i, 3).data<std::int32_t>() + 3 * rank, 12),
                "in place, from rank ", i);

      const Tensor one = numbers(DType::f64, {1}, rank, 4), many = garbage(DType::f64, {3, 2});
      const Tensor expanded = raw_view(one, {2}, {0}, 0);
      group->all_to_all({many.select(0, 0), many.select(0, 1), many.select(0, 2)}, Tensors(3, expanded))
          .wait();
      for (int i = 0; i < 6; ++i)
        require(many.data<double>()[i] == numbers(DType::f64, {1}, i / 2, 4).item(), "expanded, element ", i);
    });
}

TEST_CASE("lists that an all_to_all cannot take are refused and start nothing") {
  run_local_ranks(2, [](const Group& g) {
    const Tensor one = garbage(DType::f32, {1}), two = garbage(DType::f32, {2});
    const std::string me = std::to_string(g->rank());
    refused<ValueError>("[all_to_all] got 1 outputs and 2 inputs; pass one of each for each of the 2 ranks",
                        [&] {
                          g->all_to_all(Tensors{one}, Tensors{one, one});
                        });
    refused<ValueError>("got 0 outputs and 0 inputs", [&] { g->all_to_all(Tensors{}, Tensors{}); });
    refused<ValueError>("on rank " + me + ", inputs[" + me + "] has 2 elements and outputs[" + me + "] has 1",
                        [&] {
                          g->all_to_all(Tensors{one, one}, Tensors{two, two});
                        });
    refused<TypeError>("inputs[" + me + "] is int32 and outputs[" + me + "] is float32", [&] {
      g->all_to_all(Tensors{one, one}, Tensors(2, garbage(DType::i32, {1})));
    });
    refused<ValueError>("[all_to_all] elements of the outputs[1] of shape [2] and strides [0] share memory",
                        [&] {
                          g->all_to_all(Tensors{one, raw_view(one, {2}, {0}, 0)}, Tensors{one, one});
                        });
    refused<ValueError>("[all_to_all] inputs[1] is an undefined tensor", [&] {
      g->all_to_all(Tensors{one, two}, Tensors{one, {}});
    });
    require(g->recorder().records().empty(), "a refused call was recorded");
  });
}

TEST_CASE("a part whose ends differ is an error on all ranks that names both ranks and both sizes") {
  struct Case {
    DType sent;
    std::int64_t length;
    std::string shows;
  };
  for (const Case& c :
       {Case{DType::f32, 6, "rank 0 sends 6 float32 elements to rank 2, which expects 4 float32 elements"},
        Case{DType::i32, 4, "rank 0 sends 4 int32 elements to rank 2, which expects 4 float32 elements"},
        Case{DType::f32, 0, "rank 0 sends 0 float32 elements to rank 2, which expects 4 float32"}})
    for (const Transport& transport : transports()) {
      const auto outcomes = run_ranks(transport, 3, [&](const Group& g) {
        Tensors ins(3, garbage(DType::f32, {4})), outs;
        for (int i = 0; i < 3; ++i) outs.push_back(garbage(DType::f32, {4}));
        g->all_to_all(outs, ins).wait();
        if (g->rank() == 0) ins[2] = garbage(c.sent, {c.length});
        g->all_to_all(outs, ins, "tokens").wait();
      });
      for (const Outcome& outcome : outcomes) {
        CAPTURE(transport.name, outcome.error);
        CHECK_THAT(outcome.error, ContainsSubstring(c.shows) && ContainsSubstring("#2 all_to_all(tokens)"));
        CHECK_THAT(outcome.error, !ContainsSubstring("more differ"));
      }
    }
  // Ranks that swap two sizes: the sums of what is sent and expected are equal.
  const auto swapped = run_ranks(transports()[0], 2, [](const Group& g) {
    const Tensor one = garbage(DType::f32, {1}), two = garbage(DType::f32, {2});
    const bool first = g->rank() == 0;
    const Tensor own = garbage(DType::f32, {0});
    // Rank 0 sends one element and rank 1 sends two; both expect the other's number.
    g->all_to_all(first ? Tensors{own, one} : Tensors{two, own},
                  first ? Tensors{own, one} : Tensors{two, own})
        .wait();
  });
  for (const Outcome& outcome : swapped) CHECK_THAT(outcome.error, ContainsSubstring(", and 1 more differ"));
  // Without the comparison, the local transport still notices.
  const auto unchecked = run_ranks(transports()[0], 2,
                                   [](const Group& g) {
                                     const Tensor own = garbage(DType::f32, {0});
                                     const Tensor in = garbage(DType::f32, {3}),
                                                  out = garbage(DType::f32, {2});
                                     if (g->rank() == 0)
                                       g->all_to_all(Tensors{own, out}, Tensors{own, in}).wait();
                                     else g->all_to_all(Tensors{out, own}, Tensors{out, own}).wait();
                                   },
                                   {.check = false});
  for (const Outcome& outcome : unchecked)
    CHECK_THAT(outcome.error, ContainsSubstring("rank 0 sends 12 bytes to rank 1, which expects 8"));
}

TEST_CASE("an all_to_all of lists and one of tensors are different calls, and the recorder shows the lists") {
  for (const Transport& transport : transports()) {
    const auto outcomes = run_ranks(transport, 2, [](const Group& g) {
      const Tensor x = garbage(DType::f32, {2}), y = garbage(DType::f32, {2});
      if (g->rank() == 0) g->all_to_all(y, x).wait();
      else
        g->all_to_all({y.narrow(0, 0, 1), y.narrow(0, 1, 1)}, {x.narrow(0, 0, 1), x.narrow(0, 1, 1)}).wait();
    });
    for (const Outcome& outcome : outcomes)
      CHECK_THAT(outcome.error, ContainsSubstring("are not in the same call"));
  }
  run_local_ranks(2, [](const Group& g) {
    Tensors ins, outs;
    for (int i = 0; i < 2; ++i) {
      ins.push_back(garbage(DType::i64, {2 + g->rank(), 1 + i}));
      outs.push_back(garbage(DType::i64, {(2 + i) * (1 + g->rank())}));
    }
    g->all_to_all(outs, ins, "tokens").wait();
    const CollectiveRecord record = g->recorder().records().at(0);
    require(record.str().starts_with(g->rank() == 0
                                         ? "#1 all_to_all(tokens) int64 [6] in 2 tensors at all_to_all"
                                         : "#1 all_to_all(tokens) int64 [9] in 2 tensors at all_to_all"),
            record.str());
    require(record.list == (g->rank() == 0 ? "2 int64\n4 int64\n2 int64\n3 int64"
                                           : "3 int64\n6 int64\n4 int64\n6 int64"),
            record.list);
  });
}

TEST_CASE("a rank that does not come to an all_to_all is named") {
  for (const bool check : {true, false})
    for (const Transport& transport : transports()) {
      const auto outcomes =
          run_ranks(transport, 3,
                    [](const Group& g) {
                      if (g->rank() == 1) return;
                      Tensors outs;
                      for (int i = 0; i < 3; ++i) outs.push_back(garbage(DType::f32, {9'000}));
                      g->all_to_all(outs, Tensors(3, garbage(DType::f32, {9'000})), "tokens").wait();
                    },
                    {.timeout = 20s, .check = check});
      for (const int rank : {0, 2}) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        CAPTURE(transport.name, outcome.error);
        CHECK(outcome.distributed);
        CHECK_THAT(outcome.error, ContainsSubstring("all_to_all(tokens)") && ContainsSubstring("rank 1"));
      }
    }
}
