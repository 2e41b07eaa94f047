// What the ranks of a divided transformer block send, against Megatron's formulas.
#include <cstdio>
#include <map>

#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;

namespace {

// Calls of each kind, and the elements of the all-reduces.
struct Calls {
  std::map<Op, int> count;
  std::int64_t reduced = 0;
};

Calls calls_since(const Group& group, std::size_t first) {
  Calls calls;
  const auto records = group->recorder().records();
  for (std::size_t i = first; i < records.size(); ++i) {
    ++calls.count[records[i].op];
    if (records[i].op == Op::all_reduce) calls.reduced += records[i].shape.numel();
  }
  return calls;
}

}  // namespace

TEST_CASE("a divided transformer block makes the collectives of Megatron's formulas, and sends their bytes") {
  constexpr std::int64_t kRows = 2, kLength = 8, kFeatures = 16, kRanks = 4;
  const nn::LlamaConfig config{.hidden_size = kFeatures,
                               .intermediate_size = 24,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 4,
                               .head_dim = 4,
                               .max_position_embeddings = kLength};
  constexpr std::int64_t kStream = kRows * kLength * kFeatures;
  // A ring sends (n - 1) / n of a tensor for an all-gather or a reduce-scatter, and twice that for an
  // all-reduce.
  const auto bytes = [](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(float)) * (kRanks - 1) / kRanks;
  };
  struct Row {
    Calls forward, backward;
    std::int64_t sent = 0;
  };
  for (const bool sequence : {false, true}) {
    const auto rows = on_ranks<Row>(kRanks, [&](const Group& world) {
      Mesh mesh = mesh_of(world, kRanks);
      const Axis tensor = mesh["tensor"];
      const auto rotary = nn::make<nn::RotaryEmbedding>(
          nn::RotaryEmbeddingOptions{.dim = config.head_dim, .max_seq_len = kLength});
      nn::LlamaDecoderLayer block(config, rotary);
      const TensorParallel divided =
          tensor_parallel(block, tensor, tensor_plan(block, kRanks), {.sequence = sequence});
      const Tensor x = wave({kRows, sequence ? kLength / kRanks : kLength, kFeatures}, 0.3)
                           .to(DType::f32)
                           .requires_grad_();
      set_placement(x, tensor, sequence ? Placement::sharded(1) : Placement::invariant());
      Row row;
      const std::size_t before = tensor.group()->recorder().records().size();
      const Tensor y = block(x);
      const std::size_t between = tensor.group()->recorder().records().size();
      y.sum().backward();
      row.backward = calls_since(tensor.group(), between);
      row.forward = calls_since(tensor.group(), before);
      for (const auto& [op, count] : row.backward.count) row.forward.count[op] -= count;
      row.sent = divided.bytes_sent();
      return row;
    });
    for (Row row : rows) {
      std::map<Op, int>& forward = row.forward.count;
      std::map<Op, int>& backward = row.backward.count;
      INFO("sequence " << sequence);
      if (sequence) {
        CHECK(forward[Op::all_gather] == 3);      // of the input's length; into the attention and the MLP
        CHECK(forward[Op::reduce_scatter] == 2);  // out of them
        CHECK(forward[Op::all_reduce] == 0);
        CHECK(backward[Op::all_gather] == 2);
        CHECK(backward[Op::reduce_scatter] == 2);
        CHECK(backward[Op::all_reduce] == 2);  // the weights of the norms
        CHECK(row.backward.reduced == 2 * kFeatures);
        CHECK(row.sent == 8 * bytes(kStream) + 2 * 2 * bytes(kFeatures));
      } else {
        CHECK(forward[Op::all_reduce] == 2);
        CHECK(backward[Op::all_reduce] == 2);
        CHECK(row.backward.reduced == 2 * kStream);
        CHECK(forward[Op::all_gather] + forward[Op::reduce_scatter] + backward[Op::all_gather] +
                  backward[Op::reduce_scatter] ==
              0);
        CHECK(row.sent == 4 * 2 * bytes(kStream));
      }
    }
    Row first = rows[0];
    std::printf(
        "%-18s forward: %d all-reduce, %d all-gather, %d reduce-scatter; backward: %d, %d, %d; %lld bytes\n",
        sequence ? "sequence parallel" : "tensor parallel", first.forward.count[Op::all_reduce],
        first.forward.count[Op::all_gather], first.forward.count[Op::reduce_scatter],
        first.backward.count[Op::all_reduce], first.backward.count[Op::all_gather],
        first.backward.count[Op::reduce_scatter], static_cast<long long>(first.sent));
  }
}
