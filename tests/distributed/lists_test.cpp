// Tests all_gather and reduce_scatter of lists of tensors, on every transport. All ranks and elements have
// different values.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
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

const std::byte* block_of(const Tensor& whole, int i, std::size_t bytes) {
  return static_cast<const std::byte*>(whole.raw_data()) + static_cast<std::size_t>(i) * bytes;
}

// One tensor of each dtype and length, in an order that mixes them.
struct Described {
  DType dtype;
  std::int64_t length;
};
std::vector<Described> mixture(std::initializer_list<std::int64_t> lengths) {
  std::vector<Described> all;
  for (const std::int64_t length : lengths)
    for (const DType dtype : kAll) all.push_back({dtype, length});
  std::shuffle(all.begin(), all.end(), std::mt19937(7));
  return all;
}

void check_gather(const Group& group, const std::vector<Described>& list) {
  const int size = group->size(), rank = group->rank();
  Tensors ins, outs;
  for (unsigned i = 0; i < list.size(); ++i) {
    ins.push_back(numbers(list[i].dtype, {list[i].length}, rank, i));
    outs.push_back(garbage(list[i].dtype, {size, list[i].length}));
  }
  const std::uint32_t version = outs.empty() ? 0 : outs.back().version();
  group->all_gather(outs, ins).wait();
  for (unsigned i = 0; i < list.size(); ++i) {
    for (int r = 0; r < size; ++r)
      require(same_bytes(block_of(outs[i], r, ins[i].nbytes()),
                         numbers(list[i].dtype, {list[i].length}, r, i).raw_data(), ins[i].nbytes()),
              "all_gather: tensor ", i, ", ", list[i].dtype, ", block ", r);
  }
  require(outs.empty() || outs.back().version() > version, "all_gather left the version");
}

// The results must have the bits of all_reduce. The reductions of single tensors have their own test against
// reference values.
void check_scatter(const Group& group, const std::vector<Described>& list, ReduceOp op) {
  const int size = group->size(), rank = group->rank();
  Tensors ins, outs;
  for (unsigned i = 0; i < list.size(); ++i) {
    const bool averages = op == ReduceOp::mean && !is_floating(list[i].dtype);
    const DType dtype = averages ? DType::f32 : list[i].dtype;
    ins.push_back(numbers(dtype, {size * list[i].length}, rank, i));
    outs.push_back(garbage(dtype, {list[i].length}));
  }
  group->reduce_scatter(outs, ins, op).wait();
  for (unsigned i = 0; i < list.size(); ++i) {
    const Tensor whole = numbers(ins[i].dtype(), ins[i].sizes(), rank, i);
    require(same_bytes(ins[i].raw_data(), whole.raw_data(), whole.nbytes()), "the input changed");
    group->all_reduce(whole, op).wait();
    require(same_bytes(outs[i].raw_data(), block_of(whole, rank, outs[i].nbytes()), outs[i].nbytes()),
            "reduce_scatter ", reduce_op_name(op), ": tensor ", i, ", ", ins[i].dtype(), " of ",
            list[i].length);
  }
}

}  // namespace

TEST_CASE("lists of tensors of all dtypes are gathered, and reduced to the bits of all_reduce") {
  for (const Transport& transport : transports())
    for (const int size : kSizes)
      run_ranks_well(transport, size, [](const Group& group) {
        const std::vector<Described> list = mixture({0, 1, 5, kSanitized ? 259 : 1021});
        check_gather(group, list);
        for (const ReduceOp op : kOps) check_scatter(group, list, op);
        check_gather(group, {});
        check_scatter(group, {}, ReduceOp::sum);
        check_gather(group, {{DType::f32, 0}, {DType::i32, 0}});
        check_gather(group, {{DType::f32, 3}});
      });
}

// The lengths are around the sizes at which transports pack tensors, send pieces, and begin another round.
TEST_CASE("lists of large and small tensors are gathered and reduced in pieces") {
  for (const Transport& transport : transports())
    for (const int size : {2, 3})
      run_ranks_well(transport, size, [](const Group& group) {
        const std::vector<Described> list = {{DType::f32, 4096}, {DType::f32, 4097},     {DType::bf16, 3},
                                             {DType::f64, 7},    {DType::bf16, 300'001}, {DType::u8, 16385}};
        check_gather(group, list);
        check_scatter(group, list, ReduceOp::sum);
        check_scatter(group, list, ReduceOp::mean);
      });
}

TEST_CASE("lists may be columns of one matrix, and what lies between their blocks stays unchanged") {
  for (const Transport& transport : transports())
    for (const int size : {1, 3})
      run_ranks_well(transport, size, [](const Group& group) {
        const int ranks = group->size(), rank = group->rank();
        // The columns [0, 5), [6, 7), [7, 2000) and [2001, 2011) of a row per rank. The last ones are viewed
        // as a matrix. Ranks may use other layouts: the last rank's first tensor is contiguous.
        const std::int64_t begins[] = {0, 6, 7, 2001}, ends[] = {5, 7, 2000, 2011};
        const Tensor flat = garbage(DType::f32, {ranks, 2012}), before = flat.clone();
        Tensors wholes, parts;
        for (unsigned i = 0; i < 4; ++i) {
          const std::int64_t n = ends[i] - begins[i];
          Tensor whole = flat.narrow(1, begins[i], n);
          if (i == 3) whole = raw_view(flat, {ranks, 2, 5}, {2012, 5, 1}, 2001);
          if (i == 0 && rank == ranks - 1) whole = garbage(DType::f32, {ranks, n});
          wholes.push_back(whole);
          parts.push_back(numbers(DType::f32, {n}, rank, i));
        }
        group->all_gather(wholes, parts).wait();
        for (unsigned i = 0; i < 4; ++i)
          for (int r = 0; r < ranks; ++r) {
            const Tensor expected = numbers(DType::f32, parts[i].sizes(), r, i);
            const Tensor got = wholes[i].select(0, r).contiguous();
            require(same_bytes(got.raw_data(), expected.raw_data(), expected.nbytes()), "all_gather, tensor ",
                    i, ", block ", r);
          }
        for (const std::int64_t column : {5, 2000, 2011})
          for (int r = 0; r < ranks; ++r)
            require(same_bytes(flat.data<float>() + r * 2012 + column, before.data<float>() + column, 4),
                    "a gap was written");

        Tensors sums;
        for (const Tensor& part : parts) sums.push_back(garbage(DType::f32, part.sizes()));
        group->reduce_scatter(sums, wholes, ReduceOp::mean).wait();
        for (unsigned i = 0; i < 4; ++i) {  // all ranks have equal inputs by now
          const Tensor own = numbers(DType::f32, parts[i].sizes(), rank, i);
          for (std::int64_t k = 0; k < own.numel(); ++k) {
            float sum = own.data<float>()[k];
            for (int r = 1; r < ranks; ++r) sum += own.data<float>()[k];
            require(sums[i].data<float>()[k] == sum / static_cast<float>(ranks), "reduce_scatter, tensor ",
                    i);
          }
        }
      });
}

TEST_CASE("tensors of a list may be transposed, spread and expanded") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& group) {
      const int rank = group->rank();
      const Tensor transposed = numbers(DType::i32, {3, 2}, rank, 1).t(),
                   small = numbers(DType::f64, {1}, rank, 2);
      const Tensor expanded = raw_view(small, {4}, {0}, 0);
      const Tensor out = garbage(DType::i32, {3, 4}), spread = garbage(DType::f64, {17});
      // The second output has every other element of `spread`, and each rank's block of the first one is
      // spread over its columns.
      const Tensors outs = {out.t(), raw_view(spread, {8}, {2}, 1)};
      group->all_gather(outs, {transposed, expanded}).wait();
      for (int r = 0; r < 2; ++r) {
        const Tensor theirs = numbers(DType::i32, {3, 2}, r, 1);
        for (int i = 0; i < 2; ++i)
          for (int k = 0; k < 3; ++k)
            require(out.data<std::int32_t>()[k * 4 + r * 2 + i] == theirs.data<std::int32_t>()[k * 2 + i],
                    "transposed");
        for (int i = 0; i < 4; ++i)
          require(spread.data<double>()[1 + 2 * (4 * r + i)] == numbers(DType::f64, {1}, r, 2).item(),
                  "spread");
      }
      require(spread.data<double>()[2] == garbage(DType::f64, {1}).item(), "a gap was written");

      const Tensor sum = garbage(DType::i32, {3, 4});
      group
          ->reduce_scatter(Tensors{raw_view(sum, {3, 2}, {4, 2}, 1), garbage(DType::f64, {4})},
                           Tensors{out.t(), raw_view(small, {8}, {0}, 0)})
          .wait();
      for (int k = 0; k < 6; ++k) {  // element k of this rank's half of out.t(), which both ranks have
        const int row = rank * 2 + k / 3, column = k % 3;
        require(sum.data<std::int32_t>()[k / 2 * 4 + k % 2 * 2 + 1] ==
                    2 * out.data<std::int32_t>()[column * 4 + row],
                "the sum, element ", k);
      }
    });
}

TEST_CASE("a part may be this rank's block of the whole, as in NCCL") {
  for (const Transport& transport : transports())
    for (const int size : {1, 2, 3})
      run_ranks_well(transport, size, [](const Group& group) {
        const int ranks = group->size(), rank = group->rank();
        Tensors wholes, parts;
        const std::int64_t lengths[] = {3, 9'000, 1};
        for (unsigned i = 0; i < 3; ++i) {
          wholes.push_back(garbage(DType::f32, {ranks, lengths[i]}));
          parts.push_back(wholes[i].select(0, rank));
          parts[i].copy_(numbers(DType::f32, {lengths[i]}, rank, i));
        }
        group->all_gather(wholes, parts).wait();
        for (unsigned i = 0; i < 3; ++i)
          for (int r = 0; r < ranks; ++r)
            require(same_bytes(block_of(wholes[i], r, parts[i].nbytes()),
                               numbers(DType::f32, {lengths[i]}, r, i).raw_data(), parts[i].nbytes()),
                    "all_gather in place, tensor ", i, ", block ", r);

        Tensors copies, sums;
        for (unsigned i = 0; i < 3; ++i) {
          wholes[i].copy_(numbers(DType::f32, {ranks, lengths[i]}, rank, 10 + i));
          copies.push_back(wholes[i].clone());
          sums.push_back(garbage(DType::f32, {lengths[i]}));
        }
        group->reduce_scatter(sums, copies).wait();
        group->reduce_scatter(parts, wholes).wait();
        for (unsigned i = 0; i < 3; ++i)
          for (int r = 0; r < ranks; ++r)
            require(same_bytes(block_of(wholes[i], r, parts[i].nbytes()),
                               r == rank ? sums[i].raw_data() : block_of(copies[i], r, parts[i].nbytes()),
                               parts[i].nbytes()),
                    "reduce_scatter in place, tensor ", i, ", block ", r);

        // An input that overlaps another output is read before that output is written.
        const Tensor both = numbers(DType::f32, {ranks * 4}, rank, 20),
                     first = garbage(DType::f32, {ranks * 2});
        group->all_gather(Tensors{first, both}, Tensors{both.narrow(0, 1, 2), both.narrow(0, 0, 4)}).wait();
        for (int r = 0; r < ranks; ++r) {
          const Tensor theirs = numbers(DType::f32, {ranks * 4}, r, 20);
          require(same_bytes(block_of(first, r, 8), theirs.data<float>() + 1, 8), "the first input was late");
          require(same_bytes(block_of(both, r, 16), theirs.data<float>(), 16), "the second input was late");
        }
      });
}

TEST_CASE("invalid lists throw at once and start nothing") {
  run_local_ranks(2, [](const Group& g) {
    const Tensor one = garbage(DType::f32, {1}), two = garbage(DType::f32, {2}),
                 ints = garbage(DType::i32, {2});
    const Tensor expanded = raw_view(one, {2}, {0}, 0);
    const auto version = two.version();
    refused<ValueError>("[all_gather] got 1 outputs and 2 inputs; pass one output for each input", [&] {
      g->all_gather(Tensors{two}, Tensors{one, one});
    });
    refused<ValueError>("[reduce_scatter] got 2 outputs and 0 inputs", [&] {
      g->reduce_scatter(Tensors{two, two}, Tensors{});
    });
    refused<ValueError>(
        "[all_gather] the outputs[1] of shape [1] has 1 elements, and 2 ranks with the inputs[1]", [&] {
          g->all_gather(Tensors{two, one}, Tensors{one, one});
        });
    refused<ValueError>("[reduce_scatter] the inputs[1] of shape [1]", [&] {
      g->reduce_scatter(Tensors{one, one}, Tensors{two, one});
    });
    refused<TypeError>("the output is int32 and the input float32", [&] {
      g->all_gather(Tensors{two, ints}, Tensors{one, one});
    });
    refused<TypeError>("[reduce_scatter] the mean of int32", [&] {
      g->reduce_scatter(Tensors{one, garbage(DType::i32, {1})}, Tensors{two, ints}, ReduceOp::mean);
    });
    refused<ValueError>("[all_gather] elements of the outputs[1] of shape [2] and strides [0] share memory",
                        [&] {
                          g->all_gather(Tensors{two, expanded}, Tensors{one, one});
                        });
    refused<ValueError>("[all_gather] inputs[0] is an undefined tensor", [&] {
      g->all_gather(Tensors{two, two}, Tensors{{}, one});
    });
    require(two.version() == version, "a refused call bumped a version");
    require(g->recorder().records().empty(), "a refused call was recorded");
  });
}

TEST_CASE("ranks with different lists get an error that shows the first difference") {
  struct Case {
    Tensors other;
    std::string shows, also;
  };
  const auto f32 = [](const Shape& shape) { return garbage(DType::f32, shape); };
  // All cases but the last two have as many elements or bytes as the first list.
  const Tensors usual = {f32({2}), f32({4}), f32({3, 2})};
  for (const Case& c :
       {Case{{f32({2}), f32({2, 2}), f32({3, 2})},
             "float32 [12] in 3 tensors, of which tensors[1] is float32 [2, 2]",
             "of which tensors[1] is float32 [4]"},
        Case{{f32({4}), f32({2}), f32({3, 2})}, "tensors[0] is float32 [4]", "tensors[0] is float32 [2]"},
        Case{{f32({2}), f32({4}), f32({3}), f32({3})},
             "in 4 tensors, of which tensors[2] is float32 [3]",
             "in 3 tensors, of which tensors[2] is float32 [3, 2]"},
        Case{{f32({2}), garbage(DType::i32, {4}), f32({3, 2})},
             "uint8 [48] in 3 tensors, of which tensors[1] is int32 [4]",
             "float32 [12] in 3 tensors"},
        Case{{f32({12})}, "(weights) float32 [12] at", "tensors[0] is float32 [2]"},
        Case{{}, "in 0 tensors", "tensors[0] is float32 [2]"}})
    for (const Transport& transport : transports()) {
      const auto outcomes = run_ranks(transport, 3, [&](const Group& g) {
        const Tensors& ins = g->rank() == 1 ? c.other : usual;
        Tensors outs;
        for (const Tensor& in : ins) outs.push_back(garbage(in.dtype(), {3, in.numel()}));
        g->all_gather(outs, ins, "weights").wait();
      });
      for (const Outcome& outcome : outcomes) {
        CAPTURE(transport.name, outcome.error);
        CHECK_THAT(outcome.error, ContainsSubstring("are not in the same call") &&
                                      ContainsSubstring(c.shows) && ContainsSubstring(c.also));
        CHECK(outcome.error.find('\n' + std::string("float32")) == std::string::npos);
      }
    }
}

TEST_CASE("the recorder shows lists as one call with its tensors") {
  run_local_ranks(2, [](const Group& g) {
    const Tensor a = garbage(DType::f32, {2, 3}), b = garbage(DType::bf16, {4});
    g->reduce_scatter(Tensors{garbage(DType::f32, {3}), garbage(DType::bf16, {2})}, Tensors{a, b},
                      ReduceOp::mean, "fsdp blocks.3")
        .wait();
    g->all_gather(Tensors{a}, Tensors{garbage(DType::f32, {3})}).wait();
    const auto records = g->recorder().records();
    require(records.size() == 2 && records[0].tensors == 2 &&
                records[0].list == "float32 [3]\nbfloat16 [2]" && records[0].shape == Shape{16},
            "the record is ", records[0].str(), " ", records[0].list);
    require(records[0].str().starts_with(
                "#1 reduce_scatter(fsdp blocks.3) uint8 [16] in 2 tensors mean at lists_test"),
            records[0].str());
    require(records[1].str().starts_with("#2 all_gather float32 [3] at"), records[1].str());
  });
}

TEST_CASE("a rank that does not come to a collective of lists is named") {
  for (const Transport& transport : transports()) {
    const auto outcomes = run_ranks(transport, 3,
                                    [](const Group& g) {
                                      const Tensor part = garbage(DType::f32, {9'000}),
                                                   whole = garbage(DType::f32, {27'000});
                                      g->reduce_scatter(Tensors{part}, Tensors{whole}).wait();
                                      if (g->rank() == 1) return;
                                      g->reduce_scatter(Tensors{part, part.clone()}, Tensors{whole, whole},
                                                        ReduceOp::sum, "fsdp blocks.1")
                                          .wait();
                                    },
                                    {.timeout = 20s});
    for (const int rank : {0, 2}) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      CAPTURE(transport.name, outcome.error);
      CHECK(outcome.distributed);
      CHECK_THAT(outcome.error,
                 ContainsSubstring("reduce_scatter(fsdp blocks.1)") && ContainsSubstring("rank 1"));
    }
  }
}
