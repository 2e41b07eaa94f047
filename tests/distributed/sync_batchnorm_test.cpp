// SyncBatchNorm on N ranks must equal batch normalization of the joined batch.
#include <cmath>
#include <optional>

#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::kBounded;

// The results of a layer: output, gradients of input, weight and bias, running statistics.
struct Outcome {
  std::vector<double> y, dx, dweight, dbias, mean, var;
};

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::isnan(a[i]) ? INFINITY : std::abs(a[i] - b[i]));
  return largest;
}

Tensor formula(const Shape& sizes, double a, double b, double shift = 0) {
  const Tensor t = empty(sizes, {DType::f64, kCPU});
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<double>()[i] = std::sin(a * static_cast<double>(i * i + 1)) * b + shift;
  return t;
}

template <class Layer>
Outcome run(Layer& bn, const Tensor& x, const Tensor& g) {
  const Tensor input = x.clone().set_requires_grad();
  const Tensor y = bn(input);
  y.backward(g);
  Outcome o{to_vector(y), to_vector(input.grad()), {}, {}, {}, {}};
  if (bn.options.affine) o.dweight = to_vector(bn.weight->grad()), o.dbias = to_vector(bn.bias->grad());
  if (bn.options.track_running_stats) o.mean = to_vector(bn.running_mean), o.var = to_vector(bn.running_var);
  return o;
}

template <int kDims>
void compare(const Shape& sizes, const std::vector<std::int64_t>& per_rank,
             const nn::BatchNormOptions<kDims>& options, MemoryFormat format, DType dtype, double shift) {
  const Tensor x = formula(sizes, 0.3, 2, shift).to(dtype).contiguous(format);
  const Tensor g = formula(sizes, 0.11, 1).to(dtype).contiguous(format);
  const auto make = [&](nn::BatchNorm<kDims>& bn) {
    bn.to(dtype);
    if (options.affine) {
      bn.weight->detach().copy_(formula({options.num_features}, 0.9, 1, 1.5));
      bn.bias->detach().copy_(formula({options.num_features}, 0.7, 1));
    }
  };
  nn::BatchNorm<kDims> whole(options);
  make(whole);
  const Outcome expected = run(whole, x, g);

  const int ranks = static_cast<int>(per_rank.size());
  std::vector<Outcome> parts(per_rank.size());
  run_local_ranks(
      ranks,
      [&](const Group& group) {
        const auto r = static_cast<std::size_t>(group->rank());
        std::int64_t first = 0;
        for (std::size_t i = 0; i < r; ++i) first += per_rank[i];
        nn::BatchNorm<kDims> bn(options);
        make(bn);
        convert_sync_batchnorm(bn, group);
        parts[r] = run(bn, x.narrow(0, first, per_rank[r]), g.narrow(0, first, per_rank[r]));
      },
      kBounded);

  // Values are around 10, and sums have up to 100 of them, so a few hundred roundings add up.
  const double unit = dtype == DType::f64 ? 1e-16 : 1e-7, tolerance = 3000 * unit * (1 + std::abs(shift));
  Outcome joined;
  joined.dweight.resize(expected.dweight.size()), joined.dbias.resize(expected.dbias.size());
  for (const Outcome& part : parts) {
    joined.y.insert(joined.y.end(), part.y.begin(), part.y.end());
    joined.dx.insert(joined.dx.end(), part.dx.begin(), part.dx.end());
    for (std::size_t i = 0; i < joined.dweight.size(); ++i)
      joined.dweight[i] += part.dweight[i], joined.dbias[i] += part.dbias[i];
    CHECK(difference(part.mean, expected.mean) < tolerance);
    CHECK(difference(part.var, expected.var) < tolerance);
  }
  CHECK(difference(joined.y, expected.y) < tolerance);
  CHECK(difference(joined.dx, expected.dx) < tolerance);
  CHECK(difference(joined.dweight, expected.dweight) < tolerance);
  CHECK(difference(joined.dbias, expected.dbias) < tolerance);
}

}  // namespace

TEST_CASE("statistics and gradients equal those of the whole batch") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const auto& per_rank :
         std::vector<std::vector<std::int64_t>>{{6}, {3, 3}, {5, 1}, {0, 6}, {1, 2, 3}}) {
      for (const bool affine : {false, true}) {
        INFO(dtype_name(dtype) << ", " << per_rank.size() << " ranks, first " << per_rank[0] << ", affine "
                               << affine);
        const nn::BatchNormOptions<2> two{.num_features = 3, .affine = affine};
        compare<2>({6, 3, 2, 3}, per_rank, two, MemoryFormat::contiguous, dtype, 0);
        compare<2>({6, 3, 2, 3}, per_rank, two, MemoryFormat::channels_last, dtype, 0);
        compare<1>({6, 4}, per_rank, {.num_features = 4, .affine = affine}, MemoryFormat::contiguous, dtype,
                   0);
        compare<1>({6, 2, 5}, per_rank, {.num_features = 2, .affine = affine, .track_running_stats = false},
                   MemoryFormat::contiguous, dtype, 0);
      }
    }
  }
}

TEST_CASE("bf16 and f16 batches give the whole batch's results, under autocast and with low parameters") {
  for (const DType low : {DType::bf16, DType::f16})
    for (const bool casts : {true, false}) {
      CAPTURE(dtype_name(low), casts);
      const Tensor x = formula({6, 3, 4}, 0.3, 2, 1).to(low), g = formula({6, 3, 4}, 0.11, 1).to(low);
      const auto run_layer = [&](const Group& group, std::int64_t first, std::int64_t count) {
        nn::BatchNorm1d bn({.num_features = 3});
        bn.weight->detach().copy_(formula({3}, 0.9, 1, 1.5));
        bn.bias->detach().copy_(formula({3}, 0.7, 1));
        if (!casts)
          for (nn::Parameter p : bn.parameters()) p.set_replica(0, p->detach().to(low).set_requires_grad());
        if (group) convert_sync_batchnorm(bn, group);
        std::optional<AutocastGuard> guard;
        if (casts) guard.emplace(low);
        const Outcome o = run(bn, x.narrow(0, first, count), g.narrow(0, first, count));
        // Statistics and weights keep their dtypes.
        check(
            bn.running_var->dtype() == DType::f32 && bn.weight->grad().dtype() == (casts ? DType::f32 : low),
            "the dtypes changed");
        guard.reset();
        return o;
      };
      const Outcome whole = run_layer(nullptr, 0, 6);
      std::vector<Outcome> parts(2);
      run_local_ranks(
          2,
          [&](const Group& group) {
            const int r = group->rank();
            parts[static_cast<std::size_t>(r)] = run_layer(group, r == 0 ? 0 : 4, r == 0 ? 4 : 2);
          },
          kBounded);
      // Results are up to 5, and each is rounded to 8 or 11 bits a few times.
      const double unit = low == DType::bf16 ? 0x1p-8 : 0x1p-11;
      Outcome joined = parts[0];
      joined.y.insert(joined.y.end(), parts[1].y.begin(), parts[1].y.end());
      joined.dx.insert(joined.dx.end(), parts[1].dx.begin(), parts[1].dx.end());
      for (std::size_t i = 0; i < 3; ++i)
        joined.dweight[i] += parts[1].dweight[i], joined.dbias[i] += parts[1].dbias[i];
      CHECK(difference(joined.y, whole.y) < 8 * unit);
      CHECK(difference(joined.dx, whole.dx) < 8 * unit);
      CHECK(difference(joined.dweight, whole.dweight) < (casts ? 1e-4 : 16 * unit));
      CHECK(difference(joined.dbias, whole.dbias) < (casts ? 1e-4 : 16 * unit));
      for (const Outcome& part : parts) {
        CHECK(difference(part.mean, whole.mean) < 1e-5);
        CHECK(difference(part.var, whole.var) < 1e-5);
      }
    }
}

TEST_CASE("a large mean costs no precision") {
  compare<1>({6, 4}, {3, 3}, {.num_features = 4}, MemoryFormat::contiguous, DType::f64, 1e4);
}

TEST_CASE("recomputation by checkpoint() repeats the collectives and updates running statistics once") {
  run_local_ranks(
      2,
      [](const Group& group) {
        const Tensor x = formula({3, 4}, 0.3 + group->rank(), 2);
        const auto outcome = [&](bool checkpointed) {
          SyncBatchNorm1d bn(nn::BatchNorm1d::Options{.num_features = 4}, group);
          bn.to(DType::f64);
          const Tensor input = x.clone().set_requires_grad();
          const Tensor y = checkpointed ? tapestry::checkpoint(bn, input) : bn(input);
          (y * y * y).sum().backward();
          return std::vector{input.grad(), bn.weight->grad(), bn.running_mean.tensor(),
                             bn.running_var.tensor(), bn.num_batches_tracked.tensor()};
        };
        const std::vector<Tensor> plain = outcome(false), again = outcome(true);
        for (std::size_t i = 0; i < plain.size(); ++i) check(equal(plain[i], again[i]), "they differ");
      },
      kBounded);
}

TEST_CASE("one value per channel on each rank is enough, but one on all ranks together is refused on all") {
  compare<1>({2, 4}, {1, 1}, {.num_features = 4}, MemoryFormat::contiguous, DType::f64, 0);
  std::vector<std::string> texts(2);
  run_local_ranks(
      2,
      [&](const Group& group) {
        SyncBatchNorm1d bn(nn::BatchNorm1d::Options{.num_features = 4}, group);
        try {
          bn(ones({group->rank(), 4}));
        } catch (const ValueError& e) {
          texts[static_cast<std::size_t>(group->rank())] = e.what();
        }
      },
      kBounded);
  for (const std::string& text : texts) CHECK_THAT(text, ContainsSubstring("one value per channel"));
}

TEST_CASE(
    "conversion finds every batch norm and keeps its parameters; evaluation and a group of one rank do not "
    "change") {
  run_local_ranks(
      1,
      [](const Group& group) {
        SmallCnn net;
        const auto before = net.parameters();
        check(convert_sync_batchnorm(net, group) == 2, "not two batch norms");
        check(net.parameters()[0].is_same(before[0]), "parameters were replaced");
        check(net.bn1.type_name() == "BatchNorm2d", "one rank was converted");
      },
      kBounded);
  run_local_ranks(
      2,
      [](const Group& group) {
        SmallCnn net;
        check(convert_sync_batchnorm(net, group) == 2, "not two batch norms");
        check(net.bn1.type_name() == "SyncBatchNorm", "not converted");
        net.eval();
        if (group->rank() == 1) net(ones({1, 1, 8, 8}));  // evaluation does not wait for the other rank
      },
      kBounded);
  SmallCnn net;
  CHECK_THROWS_WITH(convert_sync_batchnorm(net, nullptr), ContainsSubstring("the group is null"));
}

TEST_CASE("sync_batch_norm refuses bad shapes and dtypes") {
  run_local_ranks(
      1,
      [](const Group& group) {
        const auto refuses = [&](const Tensor& x, const Tensor& weight) {
          try {
            sync_batch_norm(group, x, {}, {}, weight, {});
          } catch (const Error&) {
            return;
          }
          fail("was accepted");
        };
        refuses({}, {});
        refuses(ones({3}), {});
        refuses(ones({3, 2}, DType::i64), {});
        refuses(ones({3, 2}), ones({3}));
        refuses(ones({3, 2}), ones({2}, DType::f64));
      },
      kBounded);
}

TEST_CASE("running statistics over batches that differ equal those of the whole batches") {
  for (const std::optional<double> momentum : {std::optional<double>(), std::optional(0.3)}) {
    const nn::BatchNormOptions<2> options{.num_features = 3, .momentum = momentum};
    const auto batch = [](int i) { return formula({6, 3, 2, 3}, 0.3 + 0.1 * i, 2 + i, 5.0 * i * i); };
    nn::BatchNorm2d whole(options);
    whole.to(DType::f64);
    for (int i = 0; i < 4; ++i) whole(batch(i));
    std::vector<Outcome> parts(2);
    run_local_ranks(
        2,
        [&](const Group& group) {
          nn::BatchNorm2d bn(options);
          bn.to(DType::f64);
          convert_sync_batchnorm(bn, group);
          for (int i = 0; i < 4; ++i) bn(batch(i).narrow(0, group->rank() * 2, group->rank() == 0 ? 2 : 4));
          Outcome& o = parts[static_cast<std::size_t>(group->rank())];
          o.mean = to_vector(bn.running_mean), o.var = to_vector(bn.running_var);
        },
        kBounded);
    for (const Outcome& part : parts) {
      CHECK(difference(part.mean, to_vector(whole.running_mean)) < 1e-11);
      CHECK(difference(part.var, to_vector(whole.running_var)) < 1e-11);
    }
  }
}
