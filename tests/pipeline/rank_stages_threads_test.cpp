// Stages over ranks must compute the same as in one process: with several or undefined tensors, integers,
// shapes that depend on values, dropout, frozen parts, and inputs that require gradients. Reports and
// timelines are tested too.
#include <map>
#include <set>

#include "tapestry/core/generator.h"
#include "tapestry/core/timeline.h"
#include "tapestry/tapestry.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::kBounded;
using Tensors = std::vector<Tensor>;

// The first of two stages. It adds gated inputs and embeddings. Its output has a number of columns that
// depends on the values of the ids.
struct Front : nn::Module {
  nn::Parameter& table = param("table", linspace(-1, 1, 5 * 4, {DType::f64}).view({5, 4}));
  nn::Parameter& gate = param("gate", full({4}, 0.7, {DType::f64}));
  nn::Parameter& unused = param("unused", full({4}, 0.3, {DType::f64}));
  Tensors forward(const Tensor& x, const Tensor& ids) {
    const Tensor h = x * gate + embedding(table, ids);
    const std::int64_t columns = 1 + ids.max().item<std::int64_t>() % 4;  // differs between micro-batches
    const Tensor kept = h.narrow(1, 0, columns);
    if (ids.min().item<std::int64_t>() == 0) return {kept, ids, Tensor(), x * unused};
    return {kept, ids, h.sum({1}), x * unused};
  }
};
// The second stage computes scores.
struct Back : nn::Module {
  nn::Parameter& scale = param("scale", full({1}, 1.5, {DType::f64}));
  Tensor forward(const Tensor& kept, const Tensor& ids, const Tensor& sums, const Tensor&) {
    const Tensor score = kept.sum({1}) * scale + ids.to(DType::f64);
    return sums.defined() ? score * sums : score;
  }
};

struct Batch {
  Tensor x = linspace(0, 1, 8 * 4, {DType::f64}).view({8, 4});
  Tensor ids = empty({8}, {DType::i64, kCPU}), targets = linspace(1, 2, 8, {DType::f64});
  explicit Batch(int step) {
    for (std::int64_t i = 0; i < 8; ++i) ids.data<std::int64_t>()[i] = (i / 2 + step) % 5;
    x.set_requires_grad();
  }
};

Tensor squares(const Tensor& scores, const Tensor& targets) {
  return ((scores - targets) * (scores - targets)).mean();
}

struct Result {
  Numbers numbers;
  std::vector<bool> has_gradient;
  friend bool operator==(const Result&, const Result&) = default;
};
void note(Result& result, const Tensor& t) {
  result.has_gradient.push_back(t.grad().defined());
  if (t.grad().defined()) append(result.numbers, t.grad());
}

Result passes(const std::function<Tensor(Batch&)>& train, const std::vector<nn::Parameter>& parameters) {
  Result result;
  for (int step = 0; step < 3; ++step) {
    Batch batch(step);
    append(result.numbers, train(batch));
    note(result, batch.x);
  }
  for (const nn::Parameter& p : parameters) note(result, p);
  return result;
}

}  // namespace

TEST_CASE(
    "ranks exchange several tensors: integers, undefined and unused ones, and shapes that depend on values") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
    INFO(schedule_name(schedule));
    const PipelineOptions options{.schedule = schedule, .micro_batches = 4};
    Front front;
    Back back;
    Pipeline together({{front, kCPU}, {back, kCPU}}, options);
    const auto one = [&](Batch& b) {
      return together.forward_backward(std::tie(b.x, b.ids), b.targets, squares);
    };
    const Result expected_front = passes(one, front.parameters());
    front.zero_grad();
    back.zero_grad();
    const Result expected_back = passes(one, back.parameters());
    CHECK(expected_front.has_gradient == std::vector<bool>{true, true, true, true, true, false});

    Result found_front, found_back;
    run_local_ranks(
        2,
        [&](const Group& group) {
          const auto train = [&](Pipeline& p) {
            return [&](Batch& b) { return p.forward_backward(std::tie(b.x, b.ids), b.targets, squares); };
          };
          if (group->rank() == 0) {
            Front mine;
            Pipeline pipeline(group, {mine, kCPU}, options);
            found_front = passes(train(pipeline), mine.parameters());
          } else {
            Back mine;
            Pipeline pipeline(group, {mine, kCPU}, options);
            found_back = passes(train(pipeline), mine.parameters());
          }
        },
        kBounded);
    CHECK(found_front == expected_front);
    // Only the first rank's inputs get gradients.
    Result without_inputs = expected_back;
    for (int step = 0; step < 3; ++step) without_inputs.has_gradient[static_cast<std::size_t>(step)] = false;
    CHECK(found_back.has_gradient == without_inputs.has_gradient);
    CHECK(found_back.numbers.back() == expected_back.numbers.back());
  }
}

namespace {

struct Dropping : nn::Module {
  explicit Dropping(double p) : drop(add<nn::Dropout>("drop", {.p = p})) {}
  nn::Parameter& w = param("w", full({6}, 0.9, {DType::f64}));
  nn::Dropout& drop;
  Tensor forward(const Tensor& x) override { return drop(x * w); }
};
Tensor mean_of(const Tensor& y, const Tensor&) { return (y * y).mean(); }

// The results of a run with dropout: the outputs and gradients of two passes and two evaluations in training
// mode, and the generator's position after them.
struct Drawn {
  Numbers numbers;
  std::uint64_t position = 0;
};
Drawn draw(Pipeline& pipeline, Generator& generator) {
  const auto [x, labels] = chain_batch(0, 8);
  Drawn drawn;
  for (int pass = 0; pass < 2; ++pass) {
    pipeline.forward_backward(x, labels, mean_of);
    const Tensor y = pipeline(x);
    if (y.defined()) append(drawn.numbers, y);
  }
  drawn.position = generator.state()[1];
  for (const double g : gradients_of(pipeline.parameters())) drawn.numbers.push_back(g);
  return drawn;
}

}  // namespace

TEST_CASE("dropout over ranks draws the same masks as in one process, under every schedule") {
  for (const auto& [p, q] : {std::pair(0.4, 0.5), std::pair(0.0, 0.5), std::pair(0.4, 0.0)}) {
    std::vector<Numbers> all;
    std::vector<std::uint64_t> positions;
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
      const PipelineOptions options{.schedule = schedule, .micro_batches = 4};
      const auto with_generator = [](std::uint64_t seed, const auto& f) {
        Generator own(seed);  // ranks are threads here and would share the device's generator
        Context context = current_context();
        context.generator = &own;
        const ContextGuard guard(context);
        return f(own);
      };
      Dropping first(p), second(q);
      const Drawn one = with_generator(5, [&](Generator& own) {
        Pipeline pipeline({{first, kCPU}, {second, kCPU}}, options);
        return draw(pipeline, own);
      });
      std::vector<Drawn> ranks(2);
      run_local_ranks(
          2,
          [&, p = p, q = q](const Group& group) {
            const int rank = group->rank();
            // The seed of the second rank's generator must not matter.
            ranks[static_cast<std::size_t>(rank)] = with_generator(rank == 0 ? 5 : 17, [&](Generator& own) {
              Dropping mine(rank == 0 ? p : q);
              Pipeline pipeline(group, {mine, kCPU}, options);
              return draw(pipeline, own);
            });
          },
          kBounded);
      // The numbers of the run in one process are the outputs followed by all gradients. Over ranks, only
      // rank 1 has outputs, so rank 0's gradients are inserted before rank 1's, which are the last 6 numbers.
      Numbers found = ranks[1].numbers;
      found.insert(found.end() - 6, ranks[0].numbers.begin(), ranks[0].numbers.end());
      CHECK(found == one.numbers);
      CHECK(ranks[0].position == one.position);
      CHECK(ranks[1].position == 0);
      CHECK(one.position > 0);
      all.push_back(found);
    }
    CHECK(all[0] == all[1]);
    const std::size_t outputs = 8 * 6;
    CHECK_FALSE(std::equal(all[0].begin(), all[0].begin() + outputs,
                           all[0].begin() + outputs));  // each pass draws new masks
  }
}

TEST_CASE("a frozen first stage gets no gradients, and the other stages train") {
  Chain whole;
  for (int k = 0; k < 2; ++k) whole.parameters()[static_cast<std::size_t>(k)]->set_requires_grad(false);
  const auto [x, labels] = chain_batch(0, 8);
  chain_loss(whole(x), labels).backward();
  std::vector<Numbers> ranks(4);
  run_local_ranks(
      4,
      [&, x = x, labels = labels](const Group& group) {
        Chain chain = Chain::stage(group->rank(), 4);
        if (group->rank() == 0)
          for (const nn::Parameter& p : chain.parameters()) p->set_requires_grad(false);
        Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 4});
        for (int pass = 0; pass < 2; ++pass) {
          for (const nn::Parameter& p : chain.parameters()) p->zero_grad();
          pipeline.forward_backward(x, labels, chain_loss);
        }
        if (group->rank() == 0 && chain.parameters()[0]->grad().defined())
          fail("a gradient of a frozen parameter");
        ranks[static_cast<std::size_t>(group->rank())] = gradients_of(chain.parameters());
      },
      kBounded);
  CHECK(apart(joined(ranks), gradients_of(whole.parameters())) < 1e-12);
}

TEST_CASE("every rank's report has all stages, and the timeline has one row per rank") {
  constexpr int kStages = 3, kMicroBatches = 4;
  const Timeline timeline;
  std::vector<PipelineReport> reports(kStages);
  run_local_ranks(
      kStages,
      [&](const Group& group) {
        Chain chain = Chain::stage(group->rank(), kStages);
        Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = kMicroBatches});
        if (pipeline.report().micro_batches != 0) fail("a report of nothing");
        const auto [x, labels] = chain_batch(0, 8);
        pipeline.forward_backward(x, labels, chain_loss);
        reports[static_cast<std::size_t>(group->rank())] = pipeline.report();
      },
      kBounded);
  for (const PipelineReport& report : reports) {
    CHECK(report.str() == reports[0].str());
    CHECK(report.micro_batches == kMicroBatches);
    REQUIRE(report.stages.size() == kStages);
    CHECK(report.bubble > 0);
    CHECK(report.bubble < 1);
    for (int s = 0; s < kStages; ++s) {
      const StageReport& stage = report.stages[static_cast<std::size_t>(s)];
      CHECK(stage.name == "Part");
      CHECK(stage.device == kCPU);
      CHECK(stage.forward_s > 0);
      CHECK(stage.backward_s > 0);
      CHECK(stage.forward_s + stage.backward_s + stage.idle_s <= report.wall_s * 1.001);
      CHECK(stage.peak_micro_batches == kStages - s);
    }
    // Each of 8 samples has 9 values of f64 from part 0 and 5 from part 1. Their gradients are sent back, and
    // the loss with them.
    CHECK(report.stages[0].bytes_received == 8 * 9 * 8 + 8);
    CHECK(report.stages[1].bytes_received == 8 * 9 * 8 + 8 * 5 * 8 + 8);
    CHECK(report.stages[2].bytes_received == 8 * 5 * 8);
  }
  std::map<std::string, std::multiset<std::string>> rows;
  for (const Span& span : timeline.spans()) rows[span.row].insert(span.name);
  CHECK(rows.size() == kStages);
  for (int r = 0; r < kStages; ++r) {
    const auto& names = rows["rank " + std::to_string(r)];
    CHECK(names.size() == 2 * kMicroBatches);
    for (int m = 0; m < kMicroBatches; ++m)
      for (const char* what : {"forward ", "backward "}) CHECK(names.count(what + std::to_string(m)) == 1);
  }
}
