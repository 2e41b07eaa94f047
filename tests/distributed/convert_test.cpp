// Tests conversions between placements, on ranks that are threads.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/distributed/placement/convert.h"
#include "tapestry/nn/layout.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

using Kind = Placement::Kind;
const Placement kInvariant = Placement::invariant(), kReplicated = Placement::replicated(),
                kVarying = Placement::varying(), kPartial = Placement::partial();
Placement sharded(int dim) { return Placement::sharded(dim); }

Axis axis_of(const Group& world) { return Mesh(world, {{"tensor", -1}})["tensor"]; }

// Values of a rank, which are multiples of 1/64: their sums are exact.
Tensor values(const Shape& shape, int rank, int seed) {
  const Tensor t = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<double>()[i] = static_cast<double>((i * 37 + rank * 101 + seed * 59) % 257 - 128) / 64;
  return t;
}
Tensor summed(const Shape& shape, int size, int seed) {
  Tensor sum = values(shape, 0, seed);
  for (int r = 1; r < size; ++r) sum = sum + values(shape, r, seed);
  return sum;
}
Tensor part_of(const Tensor& whole, int dim, const Group& g) {
  return nn::Region::whole(whole.sizes()).part(dim, g->rank(), g->size()).of(whole);
}

bool same_values(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.to_vector<double>() == b.to_vector<double>();
}
void require_near(const Tensor& a, const Tensor& b, const std::string& what) {
  require(a.sizes() == b.sizes(), what, " has the shape ", a.sizes(), " instead of ", b.sizes());
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  for (std::size_t i = 0; i < x.size(); ++i)
    require(std::abs(x[i] - y[i]) <= 1e-12 * (1 + std::abs(y[i])), what, ", element ", i, ": ", x[i],
            " instead of ", y[i]);
}

// What this rank has of a tensor that is placed as `p`. The whole tensor is the sum of the ranks' values. A
// varying tensor is the rank's own values.
Tensor placed(Placement p, const Shape& shape, const Group& g, int seed) {
  if (p.is(Kind::partial) || p.is(Kind::varying)) return values(shape, g->rank(), seed);
  const Tensor whole = summed(shape, g->size(), seed);
  return p.is(Kind::sharded) ? part_of(whole, p.dim(), g).contiguous() : whole;
}

// Throws unless `t` is what the rank must have of the tensor.
void require_placed(const Tensor& t, Placement p, const Shape& shape, const Group& g, int seed,
                    const std::string& what) {
  if (!p.is(Kind::partial))
    return require(same_values(t, placed(p, shape, g, seed)), what, ": the elements as ", p.str());
  const Tensor sum = t.detach().clone();
  g->all_reduce(sum).wait();
  require(same_values(sum, summed(shape, g->size(), seed)), what, ": the sum");
}

struct Row {
  Placement from, to;
};
const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {kInvariant, kReplicated}, {kInvariant, sharded(0)},  {kInvariant, sharded(1)},
      {kReplicated, sharded(1)}, {kPartial, kInvariant},    {kPartial, kReplicated},
      {kPartial, sharded(0)},    {kPartial, sharded(2)},    {sharded(0), kInvariant},
      {sharded(1), kInvariant},  {sharded(0), kReplicated}, {sharded(2), kReplicated},
      {sharded(1), kPartial},    {sharded(0), sharded(1)},  {sharded(2), sharded(0)},
      {sharded(1), sharded(1)},  {kInvariant, kInvariant},  {kVarying, kPartial}};
  return all;
}

}  // namespace

// The gradient of a tensor placed as p is placed as p.of_gradient(), so both ends of backward are known too.
TEST_CASE("each conversion gives the elements and the gradient of one process, for equal and unequal parts") {
  for (const int size : {2, 3, 4})
    on_ranks<int>(size, [](const Group& g) {
      const Axis axis = axis_of(g);
      const std::int64_t n = g->size();
      // Of 5 or 2 elements, some ranks have fewer or none.
      for (const Shape& shape : {Shape{2 * n, n, n}, Shape{5, n, 2 * n}, Shape{n, 5, 2}, Shape{2, 2, 5}})
        for (const Row& row : rows()) {
          bool equal_parts = true;
          ConvertOptions options;
          for (const Placement p : {row.to, row.from})
            if (p.is(Kind::sharded)) {
              equal_parts = equal_parts && shape[p.dim()] % n == 0;
              options.whole_size = shape[p.dim()];
            }
          if (equal_parts && shape[0] == 2 * n) options.whole_size = std::nullopt;
          const std::string what = concat({row.from.str(), " to ", row.to.str(), " of ", shape});
          Tensor x = placed(row.from, shape, g, 1);
          x.set_requires_grad();
          const Tensor y = convert(x, axis, row.from, row.to, options);
          // A varying tensor whose sum is meant has become partial as it is.
          require_placed(y, row.to, shape, g, 1, what);
          require(y.is_contiguous(), what, ": strides");
          const Placement gy = row.to.of_gradient(), gx = row.from.of_gradient();
          const Tensor dx = autograd::grad({y}, {x}, {placed(gy, shape, g, 2)})[0];
          if (row.from.is(Kind::varying))
            require(same_values(dx, summed(shape, g->size(), 2)), what, ": the gradient");
          else require_placed(dx, gx, shape, g, 2, what + ", gradient");
        }
      // Rows in which ranks have tensors of their own.
      const Shape shape{3, 4};
      const auto both = [&](Placement from, Placement to, const Tensor& in, const Tensor& expected,
                            const Tensor& expected_gradient) {
        const Tensor x = in.clone().set_requires_grad();
        const Tensor y = convert(x, axis, from, to);
        require(same_values(y, expected), from.str(), " to ", to.str());
        const Tensor dx = autograd::grad({y}, {x}, {values(shape, g->rank(), 3)})[0];
        require(same_values(dx, expected_gradient), from.str(), " to ", to.str(), ", gradient");
      };
      const Tensor all = summed(shape, g->size(), 1), own = values(shape, g->rank(), 1),
                   gradient = values(shape, g->rank(), 3);
      both(kInvariant, kVarying, all, all, summed(shape, g->size(), 3));
      both(kReplicated, kVarying, all, all, gradient);
      both(kVarying, sharded(0), own, own, gradient);
      both(sharded(1), kVarying, own, own, gradient);
      return 0;
    });
}

namespace {

struct Gradients {
  Tensor y, dx, dw1, dw2;
};
// y = tanh(x w1) w2 and the gradients of sum(y c), on one process.
Gradients single(const Tensor& x0, const Tensor& w1, const Tensor& w2, const Tensor& c) {
  const Tensor x = x0.clone().set_requires_grad(), a = w1.clone().set_requires_grad(),
               b = w2.clone().set_requires_grad();
  const Tensor y = matmul(tanh(matmul(x, a)), b);
  const auto d = autograd::grad({y}, {x, a, b}, {c});
  return {y.detach(), d[0], d[1], d[2]};
}

}  // namespace

TEST_CASE("a divided MLP, with and without a divided sequence, has the gradients of one process") {
  for (const int size : {2, 3, 4})
    on_ranks<int>(size, [](const Group& g) {
      const Axis axis = axis_of(g);
      for (const std::int64_t hidden : {12, 7})
        for (const std::int64_t rows : {24, 5})
          for (const bool sequence : {false, true}) {
            const Tensor x0 = values({rows, 3}, 0, 4) * 0.1, c = values({rows, 3}, 0, 5);
            const Tensor w1 = values({3, hidden}, 0, 6) * 0.1, w2 = values({hidden, 3}, 0, 7) * 0.1;
            const Gradients expected = single(x0, w1, w2, c);
            const auto mine = [&](const Tensor& t, int dim) { return part_of(t, dim, g).contiguous(); };
            const Placement outside = sequence ? sharded(0) : kInvariant;
            const Tensor x = (sequence ? mine(x0, 0) : x0.clone()).set_requires_grad();
            const Tensor a = mine(w1, 1).set_requires_grad(), b = mine(w2, 0).set_requires_grad();
            const ConvertOptions options{.whole_size = sequence ? std::optional(rows) : std::nullopt};
            const Tensor h = tanh(matmul(convert(x, axis, outside, kReplicated, options), a));
            const Tensor y = convert(matmul(h, b), axis, kPartial, outside, options);
            const auto d = autograd::grad({y}, {x, a, b}, {sequence ? mine(c, 0) : c});
            require_near(y, sequence ? mine(expected.y, 0) : expected.y, "y");
            require_near(d[0], sequence ? mine(expected.dx, 0) : expected.dx, "dx");
            require_near(d[1], mine(expected.dw1, 1), "dw1");
            require_near(d[2], mine(expected.dw2, 0), "dw2");
          }
      return 0;
    });
}

// With y = convert(x) and the loss sum(w y^3), the gradient is 3 w y^2, and that of sum(c dx) is 6 c w y.
TEST_CASE("gradients of gradients pass through conversions") {
  for (const int size : {2, 3})
    on_ranks<int>(size, [](const Group& g) {
      const Axis axis = axis_of(g);
      const Shape shape{5, 4};
      const Tensor whole = summed(shape, g->size(), 1), c = values(shape, 0, 9);
      const Tensor weight = summed(shape, g->size(), 8);
      const Tensor expected = c * weight * whole * 6;
      // Each rank computes its part of the loss, with a weight of its own.
      const auto check_row = [&](Placement from, Placement to, const Tensor& w,
                                 const ConvertOptions& options) {
        const Tensor x = placed(from, shape, g, 1).set_requires_grad();
        const Tensor y = convert(x, axis, from, to, options);
        const Tensor dx = autograd::grad({sum(w * y * y * y)}, {x}, {.create_graph = true})[0];
        const Tensor own = part_of(c, from.dim(), g);
        const Tensor d2 = autograd::grad({sum(own * dx)}, {x})[0];
        require_near(d2, part_of(expected, from.dim(), g), concat({from.str(), " to ", to.str()}));
      };
      check_row(sharded(0), kReplicated, values(shape, g->rank(), 8), {.whole_size = 5});
      check_row(sharded(0), sharded(1), part_of(weight, 1, g), {.whole_size = 5});
      return 0;
    });
}

TEST_CASE("without gradients, and on an axis of one rank, conversions give tensors without history") {
  on_ranks<int>(2, [](const Group& g) {
    const Axis axis = axis_of(g);
    const Tensor x = values({4}, g->rank(), 1);
    require(!autograd::needs_grad(convert(x, axis, kPartial, kInvariant)), "a history");
    require(convert(x, axis, kVarying, kPartial).storage() == x.storage(), "a copy");
    const Tensor ints = arange(4, DType::i64);
    require(same_values(convert(ints, axis, kPartial, sharded(0)), part_of(ints * 2, 0, g)), "integers");
    return 0;
  });
  run_local_ranks(1, [](const Group& g) {
    const Tensor x = values({3}, 0, 1).set_requires_grad();
    const Axis axis = axis_of(g);
    const std::size_t before = g->recorder().records().size();
    require(convert(x, axis, kPartial, kInvariant).is_same(x), "another tensor");
    require(convert(x, axis, sharded(0), kReplicated, {.whole_size = 3}).is_same(x), "another tensor");
    require(g->recorder().records().size() == before, "a collective");
  });
}

namespace {

// Waits until `flag` is set, at most the time that a group's calls may take.
void await(const std::atomic<bool>& flag) {
  const auto limit = std::chrono::steady_clock::now() + 20s;
  while (!flag && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
  require(flag, "the other rank did not come");
}

std::atomic<bool>* between = nullptr;

// Sets the flag in backward.
struct Mark : autograd::Function<Mark> {
  static Tensor forward(autograd::FunctionContext&, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(autograd::FunctionContext&, const std::vector<Tensor>& grads) {
    *between = true;
    return {grads[0] * 2};
  }
};

}  // namespace

// Rank 1 does not begin its end before rank 0 has done the work that is between the two steps. If rank 0
// waited in the first step, both would wait.
TEST_CASE("work runs between the two steps of a conversion, forward and backward") {
  std::atomic<bool> computed{false}, differentiated{false};
  between = &differentiated;
  on_ranks<int>(2, [&](const Group& g) {
    const Axis axis = axis_of(g);
    const Tensor x = placed(sharded(0), {6, 2}, g, 1).set_requires_grad();
    if (g->rank() == 1) await(computed);
    PendingConversion pending = begin_convert(x, axis, sharded(0), kReplicated);
    const Tensor z = g->rank() == 0 ? Mark::apply(x) : x * 2;
    if (g->rank() == 0) computed = true;
    const Tensor y = pending.finish();
    require(same_values(y, summed({6, 2}, 2, 1)), "the elements");
    if (g->rank() == 1) await(differentiated);
    // The loss is sum(w y) + sum(z). Backward first runs the node that begins the reduce-scatter, and then
    // the node of z.
    autograd::backward({sum(values({6, 2}, g->rank(), 2) * y) + sum(z)});
    require(same_values(x.grad(), part_of(summed({6, 2}, 2, 2), 0, g) + 2), "the gradient");
    return 0;
  });
  between = nullptr;
}

TEST_CASE("a pass that looks for NaN waits for a conversion before it looks") {
  on_ranks<int>(3, [](const Group& g) {
    const autograd::DetectAnomaly detect;
    const Axis axis = axis_of(g);
    for (int i = 0; i < 20; ++i) {
      const Tensor x = placed(sharded(1), {300, 5}, g, i).set_requires_grad();
      const Tensor y = convert(x, axis, sharded(1), kReplicated, {.whole_size = 5});
      const Tensor dx = autograd::grad({y}, {x}, {values({300, 5}, g->rank(), i + 1)})[0];
      require(same_values(dx, part_of(summed({300, 5}, 3, i + 1), 1, g)), "the gradient");
    }
    return 0;
  });
}

namespace {

template <class E>
void refused(const std::string& words, const std::function<void()>& call) {
  std::string text = "nothing was thrown";
  try {
    call();
  } catch (const E& e) {
    text = e.what();
    if (text.find(words) != std::string::npos) return;
  }
  require(false, "\"", words, "\" was expected: ", text);
}

}  // namespace

TEST_CASE("conversions that are not there, or whose sizes do not fit, are refused") {
  on_ranks<int>(2, [](const Group& g) {
    const Axis axis = axis_of(g);
    const Tensor x = values({3, 4}, 0, 1);
    for (const auto& [from, to] : std::vector<std::pair<Placement, Placement>>{{kInvariant, kPartial},
                                                                               {kReplicated, kInvariant},
                                                                               {kReplicated, kPartial},
                                                                               {kVarying, kInvariant},
                                                                               {kVarying, kReplicated},
                                                                               {kPartial, kVarying}})
      refused<ValueError>(concat({"[convert] ", from.str(), " cannot become ", to.str()}),
                          [&] { convert(x, axis, from, to); });
    refused<ValueError>("[convert] input is an undefined tensor",
                        [&] { convert({}, axis, kPartial, kInvariant); });
    refused<IndexError>("sharded(2) of a tensor of 2 dimensions",
                        [&] { convert(x, axis, kPartial, sharded(2)); });
    refused<IndexError>("sharded(-1) of a tensor", [&] { convert(x, axis, sharded(-1), kInvariant); });
    refused<ValueError>("[convert] dimension 0 has 3 elements, which 2 ranks cannot divide equally; pass",
                        [&] { convert(x, axis, kPartial, sharded(0)); });
    refused<ValueError>("which 2 ranks cannot divide equally, and whole_size is 4",
                        [&] { convert(x, axis, kInvariant, sharded(0), {.whole_size = 4}); });
    refused<ValueError>("dimension 0 has 3 elements", [&] { convert(x, axis, sharded(1), sharded(0)); });
    refused<ValueError>("[convert] dimension 0 has 3 elements, but rank",
                        [&] { convert(x, axis, sharded(0), kReplicated, {.whole_size = 8}); });
    PendingConversion pending = begin_convert(x, axis, kVarying, kPartial);
    pending.finish();
    refused<ValueError>("[convert] there is no conversion to finish", [&] { pending.finish(); });
    refused<ValueError>("[convert] there is no conversion to finish", [] { PendingConversion().finish(); });
    return 0;
  });
  const Mesh devices(nullptr, {{"tensor", -1}}, {.devices = {kCPU}});
  CHECK_THROWS_WITH(convert(values({2}, 0, 1), devices["tensor"], kPartial, kInvariant),
                    ContainsSubstring("axis tensor is over devices of one process"));
}

TEST_CASE("a rank that does not come to a conversion is an error where its result is needed") {
  for (const bool backward : {false, true}) {
    const auto outcomes = run_ranks(transports()[0], 2,
                                    [&](const Group& g) {
                                      const Axis axis = axis_of(g);
                                      const Tensor x = values({4}, g->rank(), 1).set_requires_grad();
                                      if (!backward && g->rank() == 1) return;
                                      const Tensor y = convert(x, axis, kPartial, kReplicated);
                                      if (g->rank() == 1) return;
                                      autograd::grad({y}, {x}, {values({4}, 0, 2)});
                                    },
                                    {.timeout = 20s});
    CHECK_THAT(outcomes[0].error, ContainsSubstring("all_reduce(convert)") && ContainsSubstring("rank 1"));
  }
}
