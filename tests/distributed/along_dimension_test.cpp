// Tests all_gather and reduce_scatter along a dimension, on every transport.
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/lists_support.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;
using namespace lists_test;
using tapestry::detail::raw_view;

namespace {

Shape whole_shape(Shape part, int dim, int size) {
  part[dim] *= size;
  return part;
}

// Calls f(i, k) for element i of part `rank` in row-major order, where k is its number in the whole.
template <class F>
void for_part(const Shape& part, int dim, int size, int rank, const F& f) {
  std::int64_t run = 1, rows = 1;  // part: (rows, run), whole: (rows, size, run)
  for (int d = 0; d < part.size(); ++d) (d < dim ? rows : run) *= part[d];
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < run; ++i) f(row * run + i, (row * size + rank) * run + i);
}

// How a tensor of some shape lies in memory. The rows of a spread tensor have gaps between them.
enum class Memory { dense, spread, turned };
struct Held {
  Tensor base, view;
};
Held in_memory(Memory memory, DType dtype, const Shape& shape) {
  const int last = shape.size() - 1;
  Shape other = shape;
  if (memory == Memory::turned) std::swap(other[0], other[last]);
  if (memory == Memory::spread) other[last] += 3;
  const Tensor base = garbage(dtype, other);
  return {base, memory == Memory::turned   ? base.transpose(0, last)
                : memory == Memory::spread ? base.narrow(last, 2, shape[last])
                                           : base};
}

bool gaps_are_untouched(const Held& held) {
  const int last = held.view.dim() - 1;
  if (held.base.sizes() == held.view.sizes() || held.base.size(last) != held.view.size(last) + 3) return true;
  for (const auto& [begin, length] :
       {std::pair<std::int64_t, std::int64_t>{0, 2}, {2 + held.view.size(last), 1}}) {
    const Tensor gap = held.base.narrow(last, begin, length).contiguous();
    if (!same_bytes(gap.raw_data(), garbage(gap.dtype(), gap.sizes()).raw_data(), gap.nbytes())) return false;
  }
  return true;
}

struct Case {
  Shape part;
  int dim;
  DType dtype = DType::f32;
};

void check_gather(const Group& group, const Case& c, Memory memory, unsigned seed) {
  const int size = group->size(), dim = c.dim < 0 ? c.dim + c.part.size() : c.dim;
  const Held held = in_memory(memory, c.dtype, whole_shape(c.part, dim, size));
  const Tensor& whole = held.view;
  const auto version = whole.version();
  group->all_gather(whole, numbers(c.dtype, c.part, group->rank(), seed), c.dim).wait();
  const Tensor dense = whole.contiguous();
  const std::size_t width = dtype_size(c.dtype);
  const auto* const got = static_cast<const std::byte*>(dense.raw_data());
  for (int r = 0; r < size; ++r) {
    const Tensor theirs = numbers(c.dtype, c.part, r, seed);
    const auto* const expected = static_cast<const std::byte*>(theirs.raw_data());
    for_part(c.part, dim, size, r, [&](std::int64_t i, std::int64_t k) {
      require(std::memcmp(got + k * static_cast<std::int64_t>(width),
                          expected + i * static_cast<std::int64_t>(width), width) == 0,
              "all_gather of ", c.part, " along ", c.dim, ", rank ", r, ", element ", i);
    });
  }
  require(whole.version() > version, "all_gather left the version");
  require(gaps_are_untouched(held), "a gap was written");
}

// The result must have the bits of all_reduce().
void check_scatter(const Group& group, const Case& c, Memory memory, ReduceOp op, unsigned seed) {
  const int size = group->size(), rank = group->rank(), dim = c.dim < 0 ? c.dim + c.part.size() : c.dim;
  const Shape shape = whole_shape(c.part, dim, size);
  const Tensor values = numbers(c.dtype, shape, rank, seed), whole = in_memory(memory, c.dtype, shape).view;
  whole.copy_(values);
  const Tensor part = garbage(c.dtype, c.part);
  group->reduce_scatter(part, whole, c.dim, op).wait();
  require(same_bytes(whole.contiguous().raw_data(), values.raw_data(), values.nbytes()), "the input changed");
  group->all_reduce(values, op).wait();
  const std::size_t width = dtype_size(c.dtype);
  for_part(c.part, dim, size, rank, [&](std::int64_t i, std::int64_t k) {
    require(
        std::memcmp(static_cast<const std::byte*>(part.raw_data()) + i * static_cast<std::int64_t>(width),
                    static_cast<const std::byte*>(values.raw_data()) + k * static_cast<std::int64_t>(width),
                    width) == 0,
        "reduce_scatter of ", c.part, " along ", c.dim, ", element ", i);
  });
}

}  // namespace

// Rows of a few bytes, of more than 16 KiB (which sockets send singly), and of more than a slot of shared
// memory.
TEST_CASE("parts lie along any dimension of a whole with any strides") {
  const std::vector<Case> cases = {{{2, 3, 4}, 0},
                                   {{2, 3, 4}, 1},
                                   {{2, 3, 4}, -1, DType::bf16},
                                   {{5}, 0, DType::i64},
                                   {{1, 7}, 1},
                                   {{3, 1, 5}, 1, DType::u8},
                                   {{7, 1}, 1, DType::f64},
                                   {{2, 0, 3}, 1},
                                   {{0, 4}, 1},
                                   {{2, 3, 2, 2}, -2, DType::f16},
                                   {{3, 5000}, 1},
                                   {{700, 9}, 1, DType::bf16},
                                   {{40, 3, 129}, 1}};
  for (const Transport& transport : transports())
    for (const int size : {1, 2, 3})
      run_ranks_well(transport, size, [&](const Group& group) {
        unsigned seed = 0;
        for (const Case& c : cases)
          for (const Memory memory : {Memory::dense, Memory::spread, Memory::turned}) {
            // The ranks' memory may differ: the last rank's is turned.
            const Memory own = group->rank() == 2 && memory == Memory::spread ? Memory::turned : memory;
            check_gather(group, c, own, ++seed);
            check_scatter(group, c, own, ReduceOp::sum, ++seed);
            if (is_floating(c.dtype)) check_scatter(group, c, own, ReduceOp::mean, ++seed);
          }
      });
}

TEST_CASE("large parts along a dimension are gathered and reduced in pieces") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& group) {
      for (const Case& c : {Case{{2, 150'001}, 1}, Case{{kSanitized ? 3'000 : 30'000, 11}, 1, DType::bf16}}) {
        check_gather(group, c, Memory::dense, 1);
        check_scatter(group, c, Memory::dense, ReduceOp::sum, 2);
      }
    });
}

TEST_CASE("a part may share memory with the whole, and an input may be expanded") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& group) {
      const int rank = group->rank();
      // The input is this rank's columns of the output, and then overlaps the other rank's.
      for (const std::int64_t begin : {std::int64_t{2} * rank, std::int64_t{1}}) {
        const Tensor whole = numbers(DType::f32, {3, 4}, rank, 5);
        group->all_gather(whole, whole.narrow(1, begin, 2), 1).wait();
        for (int r = 0; r < 2; ++r) {
          const std::int64_t theirs = begin == 1 ? 1 : 2 * r;
          const Tensor expected = numbers(DType::f32, {3, 4}, r, 5).narrow(1, theirs, 2).contiguous();
          require(same_bytes(whole.narrow(1, 2 * r, 2).contiguous().raw_data(), expected.raw_data(), 24),
                  "in place, begin ", begin);
        }
      }
      const Tensor same = numbers(DType::f32, {3, 4}, rank, 6), sum = same.clone();
      group->all_reduce(sum).wait();
      group->reduce_scatter(same.narrow(1, 1, 2), same, 1).wait();
      require(same_bytes(same.narrow(1, 1, 2).contiguous().raw_data(),
                         sum.narrow(1, 2 * rank, 2).contiguous().raw_data(), 24),
              "reduce_scatter in place");

      const Tensor one = numbers(DType::f32, {1, 4}, rank, 7);
      const Tensor part = garbage(DType::f32, {3, 2}), ones = one.clone();
      group->all_reduce(ones).wait();
      group->reduce_scatter(part, raw_view(one, {3, 4}, {0, 1}, 0), 1).wait();
      for (int row = 0; row < 3; ++row)
        require(same_bytes(part.data<float>() + 2 * row, ones.data<float>() + 2 * rank, 8), "expanded rows");
    });
  // Two blocks of four ranks have the same memory.
  for (const Transport& transport : transports())
    run_ranks_well(transport, 4, [](const Group& group) {
      const Tensor values = numbers(DType::f32, {2, 3}, group->rank(), 8), sum = values.clone();
      group->all_reduce(sum).wait();
      const Tensor part = garbage(DType::f32, {3});
      group->reduce_scatter(part, raw_view(values, {2, 2, 3}, {3, 0, 1}, 0)).wait();
      require(same_bytes(part.raw_data(), sum.data<float>() + 3 * (group->rank() / 2), 12), "equal blocks");
    });
}

TEST_CASE("shapes that do not fit along a dimension are refused, and other dimensions are other calls") {
  run_local_ranks(2, [](const Group& g) {
    const Tensor part = garbage(DType::f32, {2, 3}), whole = garbage(DType::f32, {2, 6});
    refused<IndexError>("dim", [&] { g->all_gather(whole, part, 2); });
    refused<IndexError>("dim", [&] { g->reduce_scatter(part, whole, -3); });
    refused<IndexError>("[all_gather] the input has no dimensions",
                        [&] { g->all_gather(garbage(DType::f32, {2}), garbage(DType::f32, {}), 0); });
    refused<ValueError>(
        "[all_gather] the output has shape [2, 6], and the input of shape [2, 3] along dimension 0 of 2 "
        "ranks "
        "needs [4, 3]",
        [&] { g->all_gather(whole, part, 0); });
    refused<ValueError>("[reduce_scatter] the input has shape [6, 2]", [&] {
      g->reduce_scatter(part, garbage(DType::f32, {6, 2}), 1);
    });
    refused<ValueError>("[all_gather] output is an undefined tensor", [&] { g->all_gather({}, part, 1); });
    refused<TypeError>("[all_gather] the output is int32 and the input float32", [&] {
      g->all_gather(garbage(DType::i32, {2, 6}), part, 1);
    });
    refused<ValueError>("share memory", [&] {
      g->all_gather(raw_view(garbage(DType::f32, {6}), {2, 6}, {0, 1}, 0), part, 1);
    });
    refused<ValueError>("[all_gather] tensors of 8 dimensions cannot be divided along dimension 7", [&] {
      g->all_gather(garbage(DType::f32, {1, 1, 1, 1, 1, 1, 1, 4}),
                    garbage(DType::f32, {1, 1, 1, 1, 1, 1, 1, 2}), 7);
    });
    require(g->recorder().records().empty(), "a refused call was recorded");
    g->reduce_scatter(part, whole, 1, ReduceOp::max, "norms");
    const std::string record = g->recorder().records().at(0).str();
    require(record.starts_with("#1 reduce_scatter(norms) float32 [2, 3] along dimension 1 max at along"),
            record);
  });
  for (const Transport& transport : transports()) {
    const auto outcomes = run_ranks(transport, 2, [](const Group& g) {
      const Tensor part = garbage(DType::f32, {2, 2});
      if (g->rank() == 0) g->all_gather(garbage(DType::f32, {2, 4}), part, 1).wait();
      else g->all_gather(garbage(DType::f32, {4, 2}), part, 0).wait();
    });
    for (const Outcome& outcome : outcomes)
      CHECK_THAT(outcome.error, ContainsSubstring("are not in the same call") &&
                                    ContainsSubstring("float32 [2, 2] along dimension 1"));
  }
}
