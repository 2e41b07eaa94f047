// Tests attention of a divided sequence against attention of one process.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tapestry/distributed/context/attention.h"
#include "tapestry/distributed/context/sequence.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

struct Form {
  std::string name;
  Tensor (*attention)(const Tensor&, const Tensor&, const Tensor&, const Axis&,
                      const ContextAttentionOptions&);
  SequenceOrder order;
  bool documents;
};
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"gathered", gathered_attention, SequenceOrder::contiguous, true},
      {"ring", ring_attention, SequenceOrder::zigzag, false},
      {"all_to_all", all_to_all_attention, SequenceOrder::contiguous, true}};
  return all;
}

// Elements with full mantissas and a mean that is not 0.
Tensor numbers(const Shape& shape, DType dtype, int seed) {
  const Tensor t = empty(shape, DType::f64);
  std::uint64_t state = static_cast<unsigned>(seed) + 1;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    t.data<double>()[i] = static_cast<double>(state >> 40) / 0x1p23 - 0.8;
  }
  return t.to(dtype);
}

double error_of(const Tensor& value, const Tensor& expected) {
  const auto x = value.to_vector<double>(), y = expected.to_vector<double>();
  require(value.sizes() == expected.sizes(), "shape ", value.sizes(), " instead of ", expected.sizes());
  double size = 1e-3, error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    size = std::max(size, std::abs(y[i]));
    error = std::max(error, std::isfinite(x[i]) ? std::abs(x[i] - y[i]) : 1e300);
  }
  return error / size;
}

struct Case {
  std::int64_t heads, groups, length, width, value_width;
  bool causal, documents = false;
};

// Two documents in the first sequence of the batch, three in the second.
Tensor documents_of(std::int64_t length) {
  const Tensor ids = empty({2, length}, DType::i64);
  for (std::int64_t i = 0; i < length; ++i) {
    ids.data<std::int64_t>()[i] = i >= length / 3;
    ids.data<std::int64_t>()[length + i] = i < 3 ? 7 : i < length - 2 ? 9 : 11;
  }
  return ids;
}

// The same elements, laid out as the projections of a model give them: (batch, rows, heads, width).
Tensor strided(const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }

void check_case(const Group& g, const Form& form, const Case& c, DType dtype) {
  const Axis axis = Mesh(g, {{"context", -1}})["context"];
  const Tensor q0 = numbers({2, c.heads, c.length, c.width}, dtype, 1),
               k0 = numbers({2, c.groups, c.length, c.width}, dtype, 2),
               v0 = numbers({2, c.groups, c.length, c.value_width}, dtype, 3),
               dy = numbers({2, c.heads, c.length, c.value_width}, dtype, 4);
  std::vector<Tensor> whole, mine;
  for (const Tensor& t : {q0, k0, v0}) {
    whole.push_back(t.to(DType::f64).set_requires_grad());
    const Tensor rows = divide_sequence(t, 2, axis, form.order);
    mine.push_back((dtype == DType::f32 ? strided(rows) : rows).detach().set_requires_grad());
  }
  AttentionParams params{.is_causal = c.causal, .enable_gqa = c.heads != c.groups};
  ContextAttentionOptions options{.is_causal = c.causal};
  if (c.causal || c.documents) options.order = form.order;
  if (c.documents) {
    options.documents = documents_of(c.length);
    const Tensor positions = arange(c.length, DType::i64);
    Tensor mask = eq(options.documents.unsqueeze(2), options.documents.unsqueeze(1));
    if (c.causal) mask = logical_and(mask, le(positions, positions.unsqueeze(1)));
    params.is_causal = false;
    params.attn_mask = mask.unsqueeze(1);
  }
  const Tensor expected = scaled_dot_product_attention(whole[0], whole[1], whole[2], params);
  expected.backward(dy.to(DType::f64));
  const Tensor y = form.attention(mine[0], mine[1], mine[2], axis, options);
  y.backward(divide_sequence(dy, 2, axis, form.order));

  // bf16 rounds each rank's result once (2^-8), and the gradients of q and k are differences (as in
  // attention_kernel_test). In f32 a gradient is a sum of 48 products, each with some roundings of 2^-24.
  const double bound = dtype == DType::bf16 ? 6 * 0x1p-8 : dtype == DType::f32 ? 256 * 0x1p-24 : 1e-13;
  const std::string what = concat({form.name, c.causal ? ", causal" : "", c.documents ? ", documents" : ""});
  const auto near = [&](const Tensor& value, const Tensor& all, const char* name) {
    const double error = error_of(value, divide_sequence(all.detach(), 2, axis, form.order));
    require(error < bound, what, " of ", c.length, ": the error of ", name, " is ", error);
  };
  require(y.dtype() == dtype, what, ": dtype");
  near(y, expected, "the result");
  near(mine[0].grad(), whole[0].grad(), "dq");
  near(mine[1].grad(), whole[1].grad(), "dk");
  near(mine[2].grad(), whole[2].grad(), "dv");
}

}  // namespace

TEST_CASE("attention of a divided sequence has the results and gradients of one process") {
  for (const int size : {1, 2, 4}) {
    if (kSanitized && size == 4) continue;  // the next test has 3 ranks
    run_ranks_well(transports()[0], size, [](const Group& g) {
      for (const Form& form : forms())
        for (const bool causal : {true, false}) {
          check_case(g, form, {8, 4, 24, 8, 6, causal}, DType::f32);  // grouped queries, strided
          check_case(g, form, {4, 4, 32, 16, 16, causal}, DType::bf16);
          if (kSanitized) continue;
          check_case(g, form, {4, 4, 16, 8, 8, causal}, DType::f64);
          check_case(g, form, {8, 4, 24, 5, 7, causal}, DType::f64);  // grouped queries
          if (form.documents) check_case(g, form, {4, 4, 16, 8, 8, causal, true}, DType::f64);
        }
    });
  }
}

TEST_CASE("a ring of three ranks, and one over sockets, has the results of one process") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 3, [](const Group& g) {
      for (const Form& form : forms())
        for (const bool causal : {true, false}) check_case(g, form, {6, 3, 12, 4, 4, causal}, DType::f64);
    });
}

TEST_CASE("autocast converts q, k and v of a divided sequence, on any number of ranks") {
  for (const int size : {1, 2})
    run_ranks_well(transports()[0], size, [](const Group& g) {
      const Axis axis = Mesh(g, {{"context", -1}})["context"];
      for (const Form& form : forms()) {
        const Tensor q = numbers({1, 4, 4, 8}, DType::f32, 1).set_requires_grad(),
                     k = numbers({1, 4, 4, 8}, DType::f32, 2).set_requires_grad(),
                     v = numbers({1, 4, 4, 8}, DType::bf16, 3).set_requires_grad();
        const ContextAttentionOptions options{.is_causal = true, .order = form.order};
        Tensor y;
        {
          const AutocastGuard guard(DType::bf16);
          y = form.attention(q, k, v, axis, options);
        }
        require(y.dtype() == DType::bf16, form.name, ": the result is not bf16");
        y.backward(numbers(y.sizes(), DType::bf16, 4));
        require(q.grad().dtype() == DType::f32 && k.grad().dtype() == DType::f32 &&
                    v.grad().dtype() == DType::bf16,
                form.name, ": a gradient does not have the dtype of its tensor");
        const Tensor by_hand =
            form.attention(q.detach().to(DType::bf16), k.detach().to(DType::bf16), v.detach(), axis, options);
        require(error_of(y.detach(), by_hand) < 0x1p-7, form.name, ": not the result of bf16 inputs");
      }
    });
}

TEST_CASE("a table whose rows ranks divide gets its whole gradient on each rank") {
  for (const SequenceOrder order : {SequenceOrder::contiguous, SequenceOrder::zigzag})
    run_ranks_well(transports()[0], 2, [order](const Group& g) {
      const Axis axis = Mesh(g, {{"context", -1}})["context"];
      const Tensor table = numbers({3, 8}, DType::f64, 1).set_requires_grad();
      const Tensor factors = numbers({3, 8}, DType::f64, 2);
      const Tensor rows = divide_sequence(table, 1, axis, order);
      require(equal(rows.detach(), divide_sequence(table.detach(), 1, axis, order)), "other rows");
      (rows * divide_sequence(factors, 1, axis, order)).sum().backward();
      require(equal(table.grad(), factors), "rank ", g->rank(), " does not have the whole gradient");
    });
}

TEST_CASE("positions in zigzag order are those of a chunk from each end") {
  CHECK(sequence_positions(8, 1, 2, SequenceOrder::contiguous).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{4, 5, 6, 7});
  CHECK(sequence_positions(8, 0, 2, SequenceOrder::zigzag).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{0, 1, 6, 7});
  CHECK(sequence_positions(8, 1, 2, SequenceOrder::zigzag).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{2, 3, 4, 5});
  CHECK(sequence_positions(6, 2, 3, SequenceOrder::zigzag).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{2, 3});
  CHECK_THROWS_WITH(
      sequence_positions(6, 0, 2, SequenceOrder::zigzag),
      ContainsSubstring("[sequence_positions] a sequence of 6 positions cannot be divided into 4"));
  CHECK_THROWS_AS(sequence_positions(8, 2, 2, SequenceOrder::contiguous), IndexError);
  CHECK_THROWS_AS(sequence_positions(8, -1, 2, SequenceOrder::contiguous), IndexError);
}

TEST_CASE("a ring sends each rank's keys once around, and their gradients with them") {
  const auto counts = on_ranks<int>(4, [](const Group& g) {
    const Axis axis = Mesh(g, {{"context", -1}})["context"];
    const Tensor x = numbers({1, 4, 8, 4}, DType::f32, g->rank()).set_requires_grad();
    const Tensor y = ring_attention(x, x, x, axis, {.is_causal = true, .order = SequenceOrder::zigzag});
    const auto sends = [&] {
      int n = 0;
      for (const CollectiveRecord& r : axis.group()->recorder().records()) n += r.op == Op::send;
      return n;
    };
    const int forward = sends();
    y.backward(numbers({1, 4, 8, 4}, DType::f32, 9));
    return 100 * forward + sends() - forward;
  });
  // Forward: k and v in 3 hops. Backward: the same, and dk and dv in 4 hops.
  for (const int count : counts) CHECK(count == 100 * 6 + 14);
}

TEST_CASE("attention of a divided sequence refuses what it cannot do") {
  const auto error = [](const auto& call) {
    try {
      call();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("nothing was thrown");
  };
  const auto errors = on_ranks<std::vector<std::string>>(2, [&](const Group& g) {
    const Axis axis = Mesh(g, {{"context", -1}})["context"];
    const Tensor q = zeros({1, 3, 3, 4}), even = zeros({1, 3, 4, 4});
    const Tensor ids = zeros({1, 8}, DType::i64);
    const auto contiguous = SequenceOrder::contiguous, zigzag = SequenceOrder::zigzag;
    const std::size_t calls = axis.group()->recorder().records().size();
    std::vector<std::string> all = {
        error([&] { ring_attention(q, q, q, axis, {.is_causal = true, .order = zigzag}); }),
        error([&] { ring_attention(even, even, even, axis, {.order = zigzag, .documents = ids}); }),
        error([&] { all_to_all_attention(q, q, q, axis); }),
        error([&] { gathered_attention(q, even, even, axis); }),
        error([&] { gathered_attention(q[0], q, q, axis); }),
        error([&] {
          gathered_attention(q, zeros({1, 2, 3, 4}), zeros({1, 2, 3, 4}), axis);
        }),
        error([&] {
          gathered_attention(even, even, even, axis, {.order = contiguous, .documents = ids.narrow(1, 0, 4)});
        }),
        error([&] {
          gathered_attention(even, even, even, axis, {.order = contiguous, .documents = ids.to(DType::i32)});
        }),
        error([&] { ring_attention({}, q, q, axis); }),
        error([&] { ring_attention(even, even, even, axis, {.is_causal = true, .order = contiguous}); }),
        error([&] { ring_attention(even, even, even, axis, {.is_causal = true}); }),
        error([&] { gathered_attention(even, even, even, axis, {.is_causal = true, .order = zigzag}); }),
        error([&] { all_to_all_attention(even, even, even, axis, {.order = zigzag, .documents = ids}); })};
    const Tensor own = context_document_mask(ids, axis, ContextQueries::own_rows, true),
                 whole = context_document_mask(ids, axis, ContextQueries::all_rows, true);
    const auto refused_mask = [&](const Form& form, const Tensor& mask) {
      all.push_back(
          error([&] { form.attention(even, even, even, axis, {.order = contiguous, .mask = mask}); }));
    };
    const Form &gathered = forms()[0], &all_to_all = forms()[2];
    refused_mask(gathered, whole);
    refused_mask(all_to_all, own);
    refused_mask(gathered, own[0]);
    refused_mask(gathered, cat({own, own}, 0));
    refused_mask(gathered, own.narrow(3, 0, 4));
    refused_mask(gathered, own.to(DType::f32));
    refused_mask(all_to_all, empty(whole.sizes(), TensorOptions(DType::boolean, Device("meta"))));
    // What a rank would notice only after it has sent, in each form.
    for (const Form& form : forms()) {
      const auto refused = [&](const Tensor& k, const Tensor& v) {
        all.push_back(error([&] { form.attention(even, k, v, axis, {}); }));
      };
      refused(zeros({2, 3, 4, 4}), zeros({2, 3, 4, 4}));
      refused(zeros({1, 3, 4, 5}), even);
      refused(even.to(DType::f64), even.to(DType::f64));
      refused(even, even.to(DType::bf16));
      refused(even, empty({1, 3, 4, 4}, TensorOptions(DType::f32, Device("meta"))));
    }
    require(axis.group()->recorder().records().size() == calls, "something was posted");
    return all;
  });
  std::vector<std::string> words = {
      "[ring_attention] q has 3 rows; the zigzag order needs two equal chunks",
      "[ring_attention] a ring has no masks of documents",
      "[all_to_all_attention] 2 ranks cannot divide 3 heads of k and v",
      "[gathered_attention] q has 3 rows, k 4 and v 4",
      "[gathered_attention] q has the shape [3, 3, 4]",
      "[gathered_attention] q has 3 heads, k 2 and v 2",
      "the documents have the shape [1, 4]; expected (batch, length)",
      "the documents are int32; convert them to int64",
      "[ring_attention] q is an undefined tensor",
      "the order SequenceOrder::zigzag, but options.order is SequenceOrder::contiguous",
      "the order SequenceOrder::zigzag, but options.order is not set",
      "the order SequenceOrder::contiguous, but options.order is SequenceOrder::zigzag",
      "the order SequenceOrder::contiguous, but options.order is SequenceOrder::zigzag",
      "[gathered_attention] the mask has the shape [1, 1, 8, 8]; expected [1, 1, 4, 8]",
      "[all_to_all_attention] the mask has the shape [1, 1, 4, 8]; expected [1, 1, 8, 8]",
      "[gathered_attention] the mask has the shape [1, 4, 8]; expected",
      "[gathered_attention] the mask has the shape [2, 1, 4, 8]; expected",
      "[gathered_attention] the mask has the shape [1, 1, 4, 4]; expected",
      "[gathered_attention] the mask is float32; pass",
      "[all_to_all_attention] the mask is on meta, but q is on cpu"};
  for (std::size_t i = 0; i < forms().size(); ++i)
    for (const char* const text : {"q has a batch of 1, k of 2 and v of 2", "differ in their last size",
                                   "k has dtype float64", "v has dtype bfloat16", "v is on meta"})
      words.emplace_back(text);
  for (const auto& own : errors) {
    REQUIRE(own.size() == words.size());
    for (std::size_t i = 0; i < words.size(); ++i) CHECK_THAT(own[i], ContainsSubstring(words[i]));
  }
}
