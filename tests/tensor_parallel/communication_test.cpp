// What the ranks of a divided transformer block send, against Megatron's formulas, and what a rank allocates.
#include <cstdio>
#include <map>

#include "tapestry/distributed/comm/fake_group.h"
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
  using Kind = ConversionTraffic::Kind;
  struct Row {
    Calls forward, backward;
    ConversionTraffic::Counts sent_forward, sent_backward;
  };
  for (const bool sequence : {false, true}) {
    const Timeline timeline;
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
      row.sent_forward = divided.sent();
      y.sum().backward();
      row.sent_backward = divided.sent() - row.sent_forward;
      row.backward = calls_since(tensor.group(), between);
      row.forward = calls_since(tensor.group(), before);
      for (const auto& [op, count] : row.backward.count) row.forward.count[op] -= count;
      require(divided.bytes_sent() == row.sent_forward.bytes() + row.sent_backward.bytes(), "counts differ");
      divided.reset_report();
      require(divided.bytes_sent() == 0, "the counts stay");
      const NoGradGuard no_grad;  // an evaluation has no backward
      block(x);
      require(divided.bytes_sent() == row.sent_forward.bytes(), "evaluation counts what it does not send");
      return row;
    });
    std::map<std::int64_t, int> waits;  // by the bytes of what is gathered or added
    for (const Span& span : timeline.spans())
      if (span.name == "wait for activations") {
        ++waits[span.subject.bytes / static_cast<std::int64_t>(sizeof(float))];
        CHECK(span.subject.axis == "world");
      }
    // In forward, backward and the evaluation; and the weights of the norms.
    CHECK(waits == (sequence ? std::map<std::int64_t, int>{{kStream, 12 * kRanks}, {kFeatures, 2 * kRanks}}
                             : std::map<std::int64_t, int>{{kStream, 6 * kRanks}}));
    for (Row row : rows) {
      std::map<Op, int>& forward = row.forward.count;
      std::map<Op, int>& backward = row.backward.count;
      INFO("sequence " << sequence);
      const auto check_sent = [](const ConversionTraffic::Sent& sent, std::int64_t calls,
                                 std::int64_t bytes_) {
        CHECK(sent.calls == calls);
        CHECK(sent.bytes == bytes_);
      };
      if (sequence) {
        CHECK(forward[Op::all_gather] == 3);      // of the input's length; into the attention and the MLP
        CHECK(forward[Op::reduce_scatter] == 2);  // out of them
        CHECK(forward[Op::all_reduce] == 0);
        CHECK(backward[Op::all_gather] == 2);
        CHECK(backward[Op::reduce_scatter] == 2);
        CHECK(backward[Op::all_reduce] == 2);  // the weights of the norms
        CHECK(row.backward.reduced == 2 * kFeatures);
        for (const ConversionTraffic::Counts& sent : {row.sent_forward, row.sent_backward}) {
          check_sent(sent.of(Kind::all_gather), 2, 2 * bytes(kStream));
          check_sent(sent.of(Kind::reduce_scatter), 2, 2 * bytes(kStream));
        }
        check_sent(row.sent_forward.of(Kind::all_reduce), 0, 0);
        check_sent(row.sent_backward.of(Kind::all_reduce), 2, 2 * 2 * bytes(kFeatures));
      } else {
        CHECK(forward[Op::all_reduce] == 2);
        CHECK(backward[Op::all_reduce] == 2);
        CHECK(row.backward.reduced == 2 * kStream);
        CHECK(forward[Op::all_gather] + forward[Op::reduce_scatter] + backward[Op::all_gather] +
                  backward[Op::reduce_scatter] ==
              0);
        // The same bytes as with sequence parallelism, but for the norms.
        for (const ConversionTraffic::Counts& sent : {row.sent_forward, row.sent_backward}) {
          check_sent(sent.of(Kind::all_reduce), 2, 2 * 2 * bytes(kStream));
          CHECK(sent.bytes() == 2 * 2 * bytes(kStream));
        }
      }
    }
    std::printf("%s\n", sequence ? "sequence parallel" : "tensor parallel");
    for (const auto& [pass, sent] :
         {std::pair("forward", rows[0].sent_forward), {"backward", rows[0].sent_backward}})
      for (const auto& [name, kind] : {std::pair("all-reduce", Kind::all_reduce),
                                       {"all-gather", Kind::all_gather},
                                       {"reduce-scatter", Kind::reduce_scatter}})
        std::printf("  %-8s %-14s %2lld calls %6lld bytes a rank\n", pass, name,
                    static_cast<long long>(sent.of(kind).calls), static_cast<long long>(sent.of(kind).bytes));
  }
}

TEST_CASE("a block that is recomputed repeats its conversions but the last one") {
  constexpr int kRanks = 2;
  const nn::LlamaConfig config{.hidden_size = 8,
                               .intermediate_size = 8,
                               .num_attention_heads = 2,
                               .num_key_value_heads = 2,
                               .head_dim = 4,
                               .max_position_embeddings = 8};
  using Kind = ConversionTraffic::Kind;
  for (const bool sequence : {false, true}) {
    INFO("sequence " << sequence);
    const auto sent_by = [&](bool recomputes) {
      return on_ranks<ConversionTraffic::Counts>(kRanks, [&](const Group& world) {
        Mesh mesh = mesh_of(world, kRanks);
        const auto rotary =
            nn::make<nn::RotaryEmbedding>(nn::RotaryEmbeddingOptions{.dim = 4, .max_seq_len = 8});
        nn::LlamaDecoderLayer block(config, rotary);
        const TensorParallel divided =
            tensor_parallel(block, mesh["tensor"], tensor_plan(block, kRanks), {.sequence = sequence});
        const Tensor x = wave({1, sequence ? 4 : 8, 8}, 0.3).to(DType::f32).requires_grad_();
        set_placement(x, mesh["tensor"], sequence ? Placement::sharded(1) : Placement::invariant());
        (recomputes ? checkpoint([&](const Tensor& t) { return block(t); }, x) : block(x)).sum().backward();
        return divided.sent();
      })[0];
    };
    const ConversionTraffic::Counts more = sent_by(true) - sent_by(false);
    // Recomputing gathers the inputs of the attention and of the MLP again, and adds the result of the
    // attention again, which the MLP needs. It does not compute the result of the block again.
    CHECK(more.of(Kind::all_gather).calls == (sequence ? 2 : 0));
    CHECK(more.of(Kind::reduce_scatter).calls == (sequence ? 1 : 0));
    CHECK(more.of(Kind::all_reduce).calls == (sequence ? 0 : 1));
  }
}

TEST_CASE("no rank of a divided language model allocates the logits of all words, forward or backward") {
  constexpr std::int64_t kRows = 2, kLength = 64, kWords = 4096;
  constexpr int kRanks = 8;
  const nn::LlamaConfig config{.vocab_size = kWords,
                               .hidden_size = 16,
                               .intermediate_size = 32,
                               .num_hidden_layers = 1,
                               .num_attention_heads = 8,
                               .num_key_value_heads = 8,
                               .head_dim = 2,
                               .max_position_embeddings = kLength};
  const Tensor ids = zeros({kRows, kLength}, DType::i64);
  // What a training step needs above what exists before it.
  const auto peak = [&](nn::Llama& model) {
    for (int warm = 0; warm < 2; ++warm) model(ids, {.targets = ids}).backward();
    const std::int64_t before = memory_stats(kCPU).allocated;
    reset_peak_memory(kCPU);
    model(ids, {.targets = ids}).backward();
    return memory_stats(kCPU).peak_allocated - before;
  };
  constexpr std::int64_t kLogits = kRows * kLength * kWords * 4;
  for (const bool sequence : {false, true}) {
    INFO("sequence " << sequence);
    const Group world = fake_process_group(0, kRanks);  // one rank alone, whose memory is all that is counted
    Mesh mesh(world, {{"tensor", kRanks}});
    nn::Llama model(config);
    const TensorParallel divided =
        tensor_parallel(model, mesh["tensor"], tensor_plan(model, kRanks), {.sequence = sequence});
    const std::int64_t needed = peak(model);
    // Logits, their exponentials and a gradient exist for an eighth of the words.
    CHECK(needed < kLogits);
    CHECK(needed > kLogits / kRanks);
    // The loss sends three numbers and a maximum for each token, and no logits.
    CHECK(divided.bytes_sent() > 0);
    CHECK(divided.bytes_sent() / 3 < kLogits / 8);
  }
  nn::Llama whole(config);
  CHECK(peak(whole) > kLogits);
}
