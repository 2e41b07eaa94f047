// Tests that the check of placements passes divided blocks that are right, and finds planted faults from
// forward alone, with a message that names the operation, the axis and the conversion.
#include <thread>
#include <vector>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/function.h"
#include "tapestry/distributed/placement/rule.h"
#include "tests/distributed/placement_support.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/sharded.h"

using namespace placement_test;

namespace {

const Placement I = kInvariant, R = kReplicated, V = kVarying, P = kPartial;
Placement S(int dim) { return divided(dim); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A leaf that needs a gradient, placed so.
Tensor leaf(const Axis& t, const Shape& sizes, Placement placement) {
  const Tensor x = ones(sizes, DType::f64).set_requires_grad(true);
  set_placement(x, t, placement);
  return x;
}
// A result that is placed so.
Tensor made(const Axis& t, const Shape& sizes, Placement placement) {
  const Tensor x = leaf(t, sizes, placement) * 1.0;
  require_placement(x, t, placement);
  return x;
}

// A transformer block of 4 heads of width 2 on `tensor` ranks, in Megatron's form: the residual stream is
// invariant, or divided along the sequence.
struct Block : nn::Module {
  static constexpr int kWidth = 8, kHeads = 4;
  nn::LayerNorm& norm1 = add<nn::LayerNorm>("norm1", {.normalized_shape = kWidth});
  nn::Linear& q = add<nn::Linear>("q", {.in_features = kWidth, .out_features = kWidth});
  nn::Linear& k = add<nn::Linear>("k", {.in_features = kWidth, .out_features = kWidth});
  nn::Linear& v = add<nn::Linear>("v", {.in_features = kWidth, .out_features = kWidth});
  nn::Linear& out = add<nn::Linear>("out", {.in_features = kWidth, .out_features = kWidth});
  nn::LayerNorm& norm2 = add<nn::LayerNorm>("norm2", {.normalized_shape = kWidth});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = kWidth, .out_features = 4 * kWidth});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 4 * kWidth, .out_features = kWidth});
  const Axis tensor;
  const bool by_sequence;

  Block(const Axis& axis, bool sequence) : tensor(axis), by_sequence(sequence) {
    const auto ranks = std::make_shared<test::GroupRanks>(test::RankGroups{axis.group()});
    for (nn::Linear* column : {&q, &k, &v, &up})
      for (const nn::Parameter& p : {column->weight, column->bias}) test::cut(p, ranks, 0);
    for (nn::Linear* row : {&out, &down}) test::cut(row->weight, ranks, 1);
    for (const nn::Parameter& p : {norm1.weight, norm1.bias, norm2.weight, norm2.bias, out.bias, down.bias})
      test::cut(p, ranks, nn::Cut::kCopied);
  }

  Placement stream() const { return by_sequence ? S(1) : I; }
  // A copied parameter, for use on the stream.
  Tensor on_stream(const Tensor& p) const { return by_sequence ? convert(p, tensor, I, R) : p; }
  Tensor normalized(const Tensor& x, const nn::LayerNorm& norm) const {
    return layer_norm(x, kWidth, on_stream(norm.weight), on_stream(norm.bias));
  }
  Tensor enter(const Tensor& x) const { return convert(x, tensor, stream(), R); }
  Tensor leave(const Tensor& x, const nn::Linear& row) const {
    return convert(linear(x, row.weight), tensor, P, stream()) + on_stream(row.bias);
  }
  Tensor attention(const Tensor& x) const {
    const auto heads = [](const Tensor& t) { return t.unflatten(-1, {-1, kWidth / kHeads}).transpose(1, 2); };
    const Tensor a = scaled_dot_product_attention(heads(q(x)), heads(k(x)), heads(v(x)), {.is_causal = true});
    return a.transpose(1, 2).flatten(2);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = x + leave(attention(enter(normalized(x, norm1))), out);
    return h + leave(gelu(up(enter(normalized(h, norm2)))), down);
  }
};

}  // namespace

TEST_CASE("a transformer block with its conversions passes the check on each rank, without peers") {
  for (const bool by_sequence : {false, true})
    for (const int ranks : {2, 4})
      for (int rank = 0; rank < ranks; ++rank) {
        const Axis t = fake_axis(rank, ranks);
        const PlacementCheck on;
        Block block(t, by_sequence);
        place_parameters(block, t);
        CHECK(placement_of(block.q.weight, t) == S(0));
        CHECK(placement_of(block.down.weight, t) == S(1));
        CHECK(placement_of(block.norm1.bias, t) == I);
        const Tensor tokens = ones({2, 4}, DType::i64), table = leaf(t, {5, Block::kWidth}, I).to(DType::f32);
        const Tensor x = convert(embedding(table, tokens), t, I, block.stream());
        // Recomputed activations have been checked already.
        const Tensor y =
            rank % 2 == 0 ? block(x) : checkpoint([&](const Tensor& in) { return block(in); }, x);
        const Tensor whole = convert(y, t, block.stream(), I);
        const Tensor loss = cross_entropy(whole.flatten(0, 1), zeros({8}, DType::i64));
        CHECK_NOTHROW(require_placement(loss, t, I));
        loss.backward();
        CHECK(block.up.weight.grad().defined());
      }
}

namespace {
struct Fault {
  const char* what;
  std::function<void(const Axis&)> plant;
  std::vector<std::string> message;  // what the message has, besides the axis
};

std::vector<Fault> faults() {
  constexpr int B = 2, L = 4, H = 8;  // batch, this rank's positions, features
  return {
      {"no backward all-reduce before a column-parallel linear",
       [](const Axis& t) {
         linear(made(t, {B, L, H}, I), leaf(t, {6, H}, S(0)));
       },
       {"[linear] operand 0", "invariant", "convert(operand 0, tensor, invariant, replicated)"}},
      {"no backward reduce-scatter: the gathered stream is invariant",
       [](const Axis& t) {
         linear(convert(made(t, {B, L, H}, S(1)), t, S(1), I), leaf(t, {6, H}, S(0)));
       },
       {"[linear] operand 0", "convert(operand 0, tensor, invariant, replicated)"}},
      {"no all-reduce after a row-parallel linear",
       [](const Axis& t) {
         const Tensor x = made(t, {B, L, H}, I);
         x + linear(made(t, {B, L, 6}, S(2)), leaf(t, {H, 6}, S(1)));
       },
       {"[add] operand 1", "is partial", "convert(operand 1, tensor, partial, invariant)"}},
      {"no reduce-scatter before the divided residual stream",
       [](const Axis& t) {
         made(t, {B, L, H}, S(1)) + made(t, {B, L, H}, P);
       },
       {"[add] operand 1", "is partial"}},
      {"the bias of a row-parallel linear is added on each rank",
       [](const Axis& t) {
         linear(made(t, {B, L, 6}, S(2)), leaf(t, {H, 6}, S(1)), leaf(t, {H}, I));
       },
       {"[linear] operand 2", "add it after convert(product, partial, invariant)"}},
      {"a constant is added to a sum still to be made",
       [](const Axis& t) {
         made(t, {B, H}, P) + ones({H}, DType::f64);
       },
       {"[add] operand 0", "each rank would add operand 1"}},
      {"a number is added to a sum still to be made",
       [](const Axis& t) {
         made(t, {B, H}, P) + 1.0;
       },
       {"[add] operand 0", "each rank would add the number"}},
      {"a norm's weight is invariant on a stream divided by sequence",
       [](const Axis& t) {
         layer_norm(made(t, {B, L, H}, S(1)), H, leaf(t, {H}, I), leaf(t, {H}, I));
       },
       {"[layer_norm] operand 1", "convert(operand 1, tensor, invariant, replicated)"}},
      {"a bias is invariant on a stream divided by sequence",
       [](const Axis& t) {
         made(t, {B, L, H}, S(1)) + leaf(t, {H}, I);
       },
       {"[add] operand 1", "convert(operand 1, tensor, invariant, replicated)"}},
      {"a norm over divided features",
       [](const Axis& t) {
         rms_norm(made(t, {B, L, H}, S(2)), H, leaf(t, {H}, R));
       },
       {"[rms_norm] operand 0", "needs the whole dimension",
        "convert(operand 0, tensor, sharded(2), replicated)"}},
      {"gelu of a sum still to be made",
       [](const Axis& t) {
         gelu(made(t, {B, H}, P));
       },
       {"[gelu] operand 0", "not linear", "convert(operand 0, tensor, partial, invariant)"}},
      {"a product of two sums still to be made",
       [](const Axis& t) {
         made(t, {B, H}, P) * made(t, {B, H}, P);
       },
       {"[mul] operand 0", "is partial"}},
      {"a quotient by a sum still to be made",
       [](const Axis& t) {
         1.0 / made(t, {B, H}, P);
       },
       {"[div] operand 0"}},
      {"dropout of a sum still to be made",
       [](const Axis& t) {
         dropout(made(t, {B, H}, P), 0.5, true);
       },
       {"[dropout] operand 0", "convert(operand 0, tensor, partial, invariant)"}},
      {"a sum is made twice",
       [](const Axis& t) {
         const Tensor y = convert(made(t, {B, H}, P), t, P, I);
         convert(y, t, P, I);
       },
       {"[convert]", "is invariant", "leave out the conversion"}},
      {"a gather in another dimension than the divided one",
       [](const Axis& t) {
         convert(made(t, {B, L, H}, S(1)), t, S(2), I);
       },
       {"[convert]", "is sharded(1)", "from sharded(2)", "convert(tensor, tensor, sharded(1), invariant)"}},
      {"a part is taken for a sum",
       [](const Axis& t) {
         convert(made(t, {B, H}, S(1)), t, V, P);
       },
       {"[convert]", "is sharded(1)"}},
      {"the whole residual stream meets the divided one",
       [](const Axis& t) {
         made(t, {B, L, H}, R) + made(t, {B, L, H}, S(1));
       },
       {"[add] operand 0", "convert(operand 0, tensor, replicated, sharded(1))"}},
      {"one stream is divided by sequence, the other by features",
       [](const Axis& t) {
         made(t, {B, L, H}, S(1)) + made(t, {B, L, H}, S(2));
       },
       {"[add] operand 1", "another dimension"}},
      {"a mean over a divided dimension",
       [](const Axis& t) {
         made(t, {B, L, H}, S(1)).mean(1);
       },
       {"[mean] operand 0", "use the sum"}},
      {"a mean loss of divided rows",
       [](const Axis& t) {
         cross_entropy(made(t, {L, 3}, S(0)), zeros({L}, DType::i64));
       },
       {"[cross_entropy] operand 0", "use the sum"}},
      {"cross-entropy of divided classes",
       [](const Axis& t) {
         cross_entropy(made(t, {L, 3}, S(1)), zeros({L}, DType::i64));
       },
       {"[cross_entropy] operand 0", "classes are divided",
        "convert(operand 0, tensor, sharded(1), replicated)"}},
      {"linear_cross_entropy with a divided head",
       [](const Axis& t) {
         linear_cross_entropy(made(t, {L, H}, R), leaf(t, {5, H}, S(0)), zeros({L}, DType::i64));
       },
       {"[linear_cross_entropy] operand 1", "classes"}},
      {"a softmax over divided elements",
       [](const Axis& t) {
         softmax(made(t, {B, H}, S(1)), -1);
       },
       {"[softmax] operand 0", "convert(operand 0, tensor, sharded(1), replicated)"}},
      {"key heads fewer than ranks are whole beside a part of the query heads",
       [](const Axis& t) {
         const Tensor k = made(t, {B, 2, L, 2}, R).to(DType::f32);
         const Tensor q = made(t, {B, 4, L, 2}, S(1)).to(DType::f32);
         scaled_dot_product_attention(q, k, k, {.enable_gqa = true});
       },
       {"[scaled_dot_product_attention] operand 1", "convert(operand 1, tensor, replicated, sharded(1))"}},
      {"keys of this rank's positions only",
       [](const Axis& t) {
         const Tensor k = made(t, {B, 4, L, 2}, S(2)).to(DType::f32);
         scaled_dot_product_attention(k, k, k);
       },
       {"[scaled_dot_product_attention] operand 1", "all keys",
        "convert(operand 1, tensor, sharded(2), replicated)"}},
      {"a vocabulary-parallel embedding is not reduced",
       [](const Axis& t) {
         embedding(leaf(t, {5, H}, S(0)), zeros({B, L}, DType::i64)) + leaf(t, {H}, I);
       },
       {"[add] operand 1"}},
      {"rows of the batch and a part of the sequence are merged",
       [](const Axis& t) {
         made(t, {B, L, H}, S(1)).flatten(0, 1);
       },
       {"[flatten] operand 0", "one to its left"}},
      {"a product sums over parts with a whole weight",
       [](const Axis& t) {
         linear(made(t, {B, H}, S(1)), leaf(t, {3, H}, R));
       },
       {"[linear] operand 0", "sums over this dimension"}},
      {"a router's weight is invariant on divided tokens",
       [](const Axis& t) {
         matmul(made(t, {L, H}, S(0)), leaf(t, {H, 3}, I));
       },
       {"[matmul] operand 1", "convert(operand 1, tensor, invariant, replicated)"}},
      {"batch norm over divided samples",
       [](const Axis& t) {
         batch_norm(made(t, {4, 3, 2, 2}, S(0)), zeros({3}, DType::f64), ones({3}, DType::f64), Tensor(),
                    Tensor(), true);
       },
       {"[batch_norm] operand 0", "SyncBatchNorm"}},
      {"a convolution of divided rows",
       [](const Axis& t) {
         conv2d(made(t, {1, 2, 4, 4}, S(2)), leaf(t, {2, 2, 3, 3}, R));
       },
       {"[conv2d] operand 0", "reach into other ranks' parts"}},
      {"a parameter that nobody has placed",
       [](const Axis& t) {
         made(t, {B, H}, R) * ones({H}, DType::f64).set_requires_grad(true);
       },
       {"[mul] operand 1", "has no placement", "place_parameters()"}},
      {"a loss that each rank has a part of",
       [](const Axis& t) { require_placement(made(t, {B}, S(0)).sum(), t, I); },
       {"[require_placement]", "is partial", "convert(tensor, tensor, partial, invariant)"}},
      {"a loss that depends on no placed tensor",
       [](const Axis& t) { require_placement(ones({}), t, I); },
       {"[require_placement]", "without a placement"}},
      {"a result is placed by hand",
       [](const Axis& t) { set_placement(made(t, {B}, P), t, I); },
       {"[set_placement]", "is a result of mul"}},
  };
}
}  // namespace

TEST_CASE("planted faults of placement are found from forward alone") {
  const Axis t = fake_axis();
  const PlacementCheck on;
  for (const Fault& fault : faults()) {
    INFO(fault.what);
    const std::string error = error_of([&] { fault.plant(t); });
    INFO(error);
    CHECK(contains(error, "axis tensor"));
    for (const std::string& part : fault.message) CHECK(contains(error, part));
  }
}

namespace {
struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 8, .out_features = 3});
  Tensor forward(const Tensor& x) override { return fc(x); }
};
}  // namespace

TEST_CASE("an error of placement names the module, and nothing is recorded") {
  const Axis t = fake_axis();
  const PlacementCheck on;
  Block block(t, true);
  place_parameters(block, t);
  set_placement(block.norm2.weight.tensor(), t, R);  // its gradient was summed before: then converted wrongly
  const std::string error = error_of([&] { block(made(t, {2, 4, 8}, S(1)).to(DType::f32)); });
  CHECK(contains(error, "[convert]"));
  CHECK(contains(error, "Block"));
  Net net;
  place_parameters(net, t);
  const std::string inside = error_of([&] { net(made(t, {2, 8}, R).to(DType::f32)); });
  CHECK(contains(inside, "[linear] operand 1"));
  CHECK(contains(inside, "(in fc: Linear("));
}

TEST_CASE("several axes are checked at once, and an axis of one rank is not") {
  const Mesh mesh(fake_process_group(1, 4), {{"data", 2}, {"tensor", 2}, {"pipeline", 1}});
  const Axis data = mesh["data"], tensor = mesh["tensor"], pipeline = mesh["pipeline"];
  const PlacementCheck on;
  const Tensor x = ones({4, 8}, DType::f64);
  set_placement(x, data, S(0));
  set_placement(x, tensor, I);
  set_placement(x, pipeline, P);
  CHECK(!placement_of(x, pipeline));
  const Tensor w = leaf(tensor, {6, 8}, S(0));
  CHECK(contains(error_of([&] { linear(x, w); }), "has no placement along axis data"));
  set_placement(w, data, R);
  const Tensor y = linear(x, w);
  CHECK(placement_of(y, data) == S(0));
  CHECK(placement_of(y, tensor) == S(1));
  CHECK(placement_of(convert(y, tensor, S(1), I), data) == S(0));
  CHECK(contains(error_of([&] { require_placement(y.sum(), data, I); }), "along axis data"));
}

namespace {
struct Doubled : autograd::Function<Doubled> {
  static constexpr const char* kName = "doubled_for_test";
  static Tensor forward(autograd::FunctionContext&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(autograd::FunctionContext&, const std::vector<Tensor>& grads) {
    return {grads[0] * 2};
  }
};
}  // namespace

TEST_CASE("a function of the user's has the rule that the user gives") {
  const Axis t = fake_axis();
  const PlacementCheck on;
  const Tensor x = made(t, {3}, P);
  CHECK(!has_placement_rule("doubled_for_test"));
  CHECK(contains(error_of([&] { Doubled::apply(x); }), "[doubled_for_test] has no rule of placement"));
  set_placement_rule("doubled_for_test", [](const PlacementCall& call) { return call.linear(); });
  CHECK(has_placement_rule("doubled_for_test"));
  CHECK(placement_of(Doubled::apply(x), t) == P);
  CHECK_THROWS_AS(set_placement_rule("x", nullptr), ValueError);
}

TEST_CASE("the check belongs to its scope and thread, and keeps nothing else") {
  const Axis t = fake_axis();
  const Tensor x = ones({2}, DType::f64).set_requires_grad(true);
  {
    const PlacementCheck on;
    CHECK(checks_placement());
    set_placement(x, t, P);
    {
      const PlacementCheck off(false);
      CHECK(!checks_placement());
      CHECK_NOTHROW(gelu(x));
    }
    CHECK_THROWS_AS(gelu(x), PlacementError);
    CHECK_THROWS_AS(gelu(x), ValueError);
    int in_thread = -1;
    std::thread([&] { in_thread = checks_placement(); }).join();
    CHECK(in_thread == 0);
    // Unrecorded operations and detached tensors have no gradient that could be wrong.
    CHECK(!placement_of(gelu(x.detach()), t));
    const NoGradGuard no_grad;
    CHECK_NOTHROW(gelu(x));
  }
  CHECK(!checks_placement());
  CHECK_NOTHROW(gelu(x));
  set_placement(x, t, I);
  const PlacementCheck on;
  CHECK(placement_of(x, t) == P);
  CHECK_THROWS_AS(set_placement(x, t, S(1)), IndexError);
  const Mesh devices(nullptr, {{"tensor", 1}}, {.devices = {kCPU}});
  CHECK_THROWS_AS(set_placement(x, devices["tensor"], I), ValueError);
}

TEST_CASE("a group without peers gives each rank its own data") {
  const auto group = fake_process_group(1, 3, distributed_test::kBounded);
  CHECK(group->rank() == 1);
  CHECK(group->size() == 3);
  const Tensor x = arange(6, DType::f64), three = arange(18, DType::f64), all = empty({18}, DType::f64);
  group->all_gather(all, x).wait();
  CHECK(equal(all.reshape({3, 6}), x.expand({3, 6})));
  const Tensor mine = empty({6}, DType::f64);
  group->reduce_scatter(mine, three).wait();
  CHECK(equal(mine, three.narrow(0, 6, 6)));
  group->all_to_all(all, three).wait();
  CHECK(equal(all, three));
  group->all_reduce(x).wait();
  CHECK(equal(x, arange(6, DType::f64)));
  group->broadcast(x, 2).wait();
  group->scatter(mine, three, 1).wait();
  CHECK(equal(mine, three.narrow(0, 6, 6)));
  group->gather(all, x, 1).wait();
  CHECK(equal(all.reshape({3, 6}), x.expand({3, 6})));
  group->send(x, 2).wait();
  group->recv(mine, 0).wait();
  CHECK(equal(mine, x));
  for (int i = 0; i < 1030; ++i) group->barrier().wait();  // orders of calls are not compared
  CHECK_THROWS_AS(fake_process_group(3, 3), ValueError);
  const auto half = group->split_group({{0, 2}, {1}});
  CHECK(half->size() == 1);
}

TEST_CASE("a group without peers refuses messages of two peers that it cannot tell apart") {
  const auto group = fake_process_group(1, 3, distributed_test::kBounded);
  const Tensor x = arange(6, DType::f64), y = empty({6}, DType::f64);
  group->send(x, 2).wait();
  group->send(x + 1, 0, 1).wait();  // another tag
  group->recv(y, 2, 1).wait();
  CHECK(equal(y, x + 1));
  group->send(x, 2).wait();
  CHECK_THROWS_WITH(group->send(x, 0).wait(),
                    ContainsSubstring("messages of rank 2 and of rank 0 have the tag 0"));
}
