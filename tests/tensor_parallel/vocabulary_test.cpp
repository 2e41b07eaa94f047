// The loss of a divided vocabulary, against linear_cross_entropy() in float64.
#include "tapestry/distributed/placement/convert.h"
#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;

namespace {

constexpr std::int64_t kWords = 7, kFeatures = 3;

struct Result {
  double loss;
  Tensor dx, dweight;
};

Result result_of(const Tensor& loss, const Tensor& x, const Tensor& weight) {
  (loss * 1.7).backward();  // the incoming gradient is not 1
  return {loss.item(), x.grad(), weight.grad()};
}

}  // namespace

TEST_CASE("the loss of a divided vocabulary and its gradients are those of the whole one") {
  const struct {
    Reduction reduction;
    double smoothing;
    std::int64_t chunk;
    double scale;
  } cases[] = {{Reduction::mean, 0, 0, 1},
               {Reduction::sum, 0.1, 2, 1},
               {Reduction::mean, 0.3, 1, 1},
               {Reduction::mean, 0, 3, 3000}};  // exponentials of the logits overflow
  const Tensor target = ints({6, -100, 0, 3, 5}, {5});
  for (const auto& c : cases) {
    const auto x = [&] { return (wave({5, kFeatures}, 0.7) * c.scale).set_requires_grad(true); };
    const auto weight = [] { return wave({kWords, kFeatures}, 1.1, 2).set_requires_grad(true); };
    const Tensor x1 = x(), w1 = weight();
    const Result one = result_of(
        linear_cross_entropy(x1, w1, target, {.reduction = c.reduction, .label_smoothing = c.smoothing}), x1,
        w1);
    for (const int ranks : {2, 4})  // 4 and 3 words; 2, 2, 2 and 1
      on_ranks<int>(ranks, [&](const Group& world) {
        Mesh mesh = mesh_of(world, ranks);
        const Axis tensor = mesh["tensor"];
        const nn::Region own = nn::Region::whole({kWords, kFeatures}).part(0, world->rank(), ranks);
        const VocabParallelLossParams params{
            .reduction = c.reduction, .label_smoothing = c.smoothing, .chunk_rows = c.chunk};
        for (const bool of_logits : {false, true}) {
          const Tensor leaf = x(), part = own.of(weight().detach()).clone().set_requires_grad(true);
          set_placement(leaf, tensor, Placement::invariant());
          set_placement(part, tensor, Placement::sharded(0));
          const Tensor input = convert(leaf, tensor, Placement::invariant(), Placement::replicated());
          const Tensor loss =
              of_logits ? vocab_parallel_cross_entropy(linear(input, part), target, tensor, kWords, params)
                        : vocab_parallel_linear_cross_entropy(input, part, target, tensor, kWords, params);
          require_placement(loss, tensor, Placement::invariant());
          const Result mine = result_of(loss, leaf, part);
          require(std::abs(mine.loss - one.loss) < 1e-12 * c.scale, "the loss is ", mine.loss, ", not ",
                  one.loss);
          require(distance(mine.dx, one.dx) < 1e-10, "the gradient of x");
          require(distance(mine.dweight, own.of(one.dweight)) < 1e-10, "the gradient of the weight");
        }
        return 0;
      });
  }
}

TEST_CASE("the loss of a divided vocabulary divides by a count that bf16 cannot represent") {
  constexpr std::int64_t kRows = 300;  // 257 of them count, and 257 in bf16 is 256
  constexpr double kRounding = 1.0 / 256;
  std::vector<std::int64_t> words;
  for (std::int64_t i = 0; i < kRows; ++i) words.push_back(i % 7 == 3 ? -100 : i / 3 % kWords);
  const Tensor target = ints(words, {kRows});
  const Tensor x = wave({kRows, kFeatures}, 0.7).to(DType::bf16),
               weight = wave({kWords, kFeatures}, 1.1, 2).to(DType::bf16);
  const Tensor x1 = x.to(DType::f64).requires_grad_(), w1 = weight.to(DType::f64).requires_grad_();
  const Tensor one = linear_cross_entropy(x1, w1, target);
  (one * 1.75).backward();  // bf16 has 1.75
  for (const std::int64_t chunk : {0, 50})
    on_ranks<int>(2, [&](const Group& world) {
      Mesh mesh = mesh_of(world, 2);
      const Axis tensor = mesh["tensor"];
      const nn::Region own = nn::Region::whole({kWords, kFeatures}).part(0, world->rank(), 2);
      const Tensor leaf = x.clone().requires_grad_(), part = own.of(weight).clone().requires_grad_();
      set_placement(part, tensor, Placement::sharded(0));
      const Tensor input = convert(leaf, tensor, Placement::invariant(), Placement::replicated());
      const Tensor loss =
          vocab_parallel_linear_cross_entropy(input, part, target, tensor, kWords, {.chunk_rows = chunk});
      (loss * 1.75).backward();
      require(std::abs(loss.item() / one.item() - 1) < 3 * kRounding, "the loss is ", loss.item(), ", not ",
              one.item());
      const Tensor dx = leaf.grad().to(DType::f64), dweight = part.grad().to(DType::f64);
      // The logits, their gradient, the product of each rank and their sum are rounded.
      require(distance(dx, x1.grad()) < 12 * kRounding, "the gradient of x");
      require(distance(dweight, own.of(w1.grad())) < 12 * kRounding, "the gradient of the weight");
      // Roundings of 900 elements cancel. A wrong count does not: it makes all of them larger by 1 / 256.
      const double ratio = (dx * x1.grad()).sum().item() / x1.grad().square().sum().item();
      require(std::abs(ratio - 1) < kRounding / 2, "the gradient of x has the factor ", ratio);
      return 0;
    });
}

TEST_CASE("the loss of a divided vocabulary counts no ignored target, and refuses words that do not exist") {
  on_ranks<int>(2, [&](const Group& world) {
    Mesh mesh = mesh_of(world, 2);
    const Axis tensor = mesh["tensor"];
    const nn::Region own = nn::Region::whole({kWords, kFeatures}).part(0, world->rank(), 2);
    const Tensor weight = own.of(wave({kWords, kFeatures}, 1.1)).clone().set_requires_grad(true);
    const Tensor x = wave({2, kFeatures}, 0.7).set_requires_grad(true);
    const auto loss = [&](std::int64_t a, std::int64_t b) {
      return vocab_parallel_linear_cross_entropy(x, weight, ints({a, b}, {2}), tensor, kWords);
    };
    const Tensor none = loss(-100, -100);
    none.backward();
    require(std::isnan(none.item()), "the mean over no targets is ", none.item());
    require(x.grad().abs().max().item() == 0 && weight.grad().abs().max().item() == 0,
            "gradients of nothing");
    for (const std::int64_t wrong : {std::int64_t{-1}, kWords}) {
      std::string error;
      try {
        loss(0, wrong);
      } catch (const IndexError& e) {
        error = e.what();
      }
      require(error.find("outside [0, 7)") != std::string::npos, wrong, ": ", error);
    }
    return 0;
  });
}
