// State dicts of pipelines over ranks must have the names and values of the unsplit model, in both
// directions, and tied weights must stay equal on all their ranks.
#include <cmath>

#include "tapestry/tapestry.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::kBounded, distributed_test::require;
constexpr int kRanks = 3, kWords = 7, kWidth = 5;

// Predicts the next word from the last one. Embedding and head share a weight if `tied`.
struct Language : nn::Module {
  nn::Embedding& embedding =
      add<nn::Embedding>("embedding", {.num_embeddings = kWords, .embedding_dim = kWidth});
  nn::Sequential& blocks =
      add<nn::Sequential>("blocks", nn::Linear::Options{.in_features = kWidth, .out_features = kWidth},
                          nn::Tanh::Options{}, nn::BatchNorm1d::Options{.num_features = kWidth});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = kWidth, .out_features = kWords, .bias = false});
  explicit Language(bool tied = true, double seed = 0) {
    if (tied) head.weight = embedding.weight;
    to(DType::f64);
    int number = 0;
    for (auto& [name, slot] : named_parameters()) {
      ++number;
      for (std::int64_t i = 0; i < slot->numel(); ++i)
        slot->detach().view({-1})[i].fill_(std::sin(0.7 * static_cast<double>(i) + number + seed) / 2);
    }
  }
  Tensor forward(const Tensor& words) override { return head(blocks(embedding(words))); }
  Stage stage(int rank) {
    if (rank == 0) return {embedding, kCPU};
    if (rank == 1) return {blocks, kCPU};
    return {head, kCPU};
  }
};

std::pair<Tensor, Tensor> words_of(int step, int n) {
  const Tensor x = empty({n}, {DType::i64, kCPU}), y = empty({n}, {DType::i64, kCPU});
  for (int i = 0; i < n; ++i) {
    x.data<std::int64_t>()[i] = (3 * i + step) % kWords;
    y.data<std::int64_t>()[i] = (5 * i + 2 * step + 1) % kWords;
  }
  return {x, y};
}

Tensor loss_of(const Tensor& scores, const Tensor& next) { return cross_entropy(scores, next); }

const PipelineOptions kTied{.micro_batches = 1, .tied = {{"embedding.weight", "head.weight"}}};

template <class F>
void over_ranks(const F& fn,
                const distributed_test::Transport& transport = distributed_test::transports()[0]) {
  distributed_test::run_ranks_well(transport, kRanks, fn, kBounded);
}

// Returns null for a stage without parameters.
std::unique_ptr<optim::Optimizer> optimizer_of(bool adam, std::vector<nn::Parameter> parameters) {
  if (parameters.empty()) return nullptr;
  if (adam) return std::make_unique<optim::AdamW>(std::move(parameters));
  return std::make_unique<optim::SGD>(std::move(parameters), optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
}

// The losses of all passes, the gradient norm of each step, and the final state. Every fifth step has two
// passes.
struct Trained {
  Numbers losses, norms;
  nn::StateDict state;
};

Trained train_single(bool adam, Language& model, int first_step, int end) {
  const auto optimizer = optimizer_of(adam, model.parameters());
  Trained result;
  for (int step = first_step; step < end; ++step) {
    optimizer->zero_grad();
    for (int pass = 0; pass < (step % 5 == 0 ? 2 : 1); ++pass) {
      const auto [x, next] = words_of(step + pass, 12);
      const Tensor loss = loss_of(model(x), next);
      loss.backward();
      result.losses.push_back(loss.item());
    }
    result.norms.push_back(nn::clip_grad_norm_(model.parameters(), 0.2).item());
    optimizer->step();
  }
  result.state = model.state_dict();
  return result;
}

Trained train_pipeline(bool adam, Pipeline& pipeline, int first_step, int end) {
  const auto optimizer = optimizer_of(adam, pipeline.parameters());
  Trained result;
  for (int step = first_step; step < end; ++step) {
    if (optimizer) optimizer->zero_grad();
    for (int pass = 0; pass < (step % 5 == 0 ? 2 : 1); ++pass) {
      const auto [x, next] = words_of(step + pass, 12);
      result.losses.push_back(pipeline.forward_backward(x, next, loss_of).item());
    }
    result.norms.push_back(pipeline.clip_grad_norm_(0.2).item());
    if (optimizer) optimizer->step();
  }
  result.state = pipeline.whole_state_dict();
  return result;
}

double apart(const nn::StateDict& a, const nn::StateDict& b) {
  Numbers of_a, of_b;
  for (const auto& [name, tensor] : b) {
    const Tensor* const same = nn::find(a, name);
    if (!same) return INFINITY;
    if (!is_floating(tensor.dtype())) continue;
    append(of_a, *same);
    append(of_b, tensor);
  }
  return a.size() == b.size() ? test::apart(of_a, of_b) : INFINITY;
}

std::vector<std::string> names_of(const nn::StateDict& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  return names;
}

// Throws unless fn() throws an E whose text contains all `parts`. The ranks' threads call it instead of
// CHECK_THROWS, because Catch2's checks are not thread-safe.
template <class E, class F>
void expect(const F& fn, const std::vector<std::string>& parts) {
  try {
    fn();
  } catch (const E& e) {
    for (const std::string& part : parts)
      if (std::string(e.what()).find(part) == std::string::npos) throw;
    return;
  }
  throw std::runtime_error("nobody noticed: " + parts.at(0));
}

}  // namespace

TEST_CASE(
    "a weight tied over ranks trains as in the unsplit model, and either continues from the state of the "
    "other") {
  for (const bool adam : {false, true}) {
    INFO((adam ? "AdamW" : "SGD"));
    Language whole;
    const Trained expected = train_single(adam, whole, 0, kSteps);
    Trained found, resumed;
    double copies_apart = 0;
    over_ranks([&](const Group& group) {
      // Each rank starts with other values. The constructor must broadcast the first rank's value of the tied
      // weight.
      Language model(/*tied=*/false, 0.3 * group->rank());
      if (group->rank() == 1) model.load_state_dict(Language().state_dict());
      Pipeline pipeline(group, model.stage(group->rank()), kTied);
      const Trained mine = train_pipeline(adam, pipeline, 0, kSteps);
      require(mine.state.empty() == (group->rank() != 0), "only the first rank has the whole state");
      // All ranks load the state of the unsplit model into stages that have other values. They must continue
      // the unsplit model's training.
      Language other(false, 1);
      Pipeline again(group, other.stage(group->rank()), kTied);
      again.load_state_dict(whole.state_dict());
      const Trained more = train_pipeline(adam, again, kSteps, kSteps + 5);
      if (group->rank() != 0) return;
      found = mine;
      resumed = more;
      copies_apart = (*nn::find(mine.state, "embedding.weight") - *nn::find(mine.state, "head.weight"))
                         .abs()
                         .max()
                         .item();
    });
    CHECK(test::apart(found.losses, expected.losses) < 1e-10);
    CHECK(test::apart(found.norms, expected.norms) < 1e-10);
    CHECK(apart(found.state, expected.state) < 1e-10);
    CHECK(copies_apart == 0);
    CHECK(found.losses.back() < found.losses.front());

    Language loaded(true, 1);
    loaded.load_state_dict(found.state);
    CHECK(apart(loaded.state_dict(), found.state) == 0);
    const Trained more = train_single(adam, whole, kSteps, kSteps + 5);
    CHECK(test::apart(resumed.losses, more.losses) < 1e-10);
    CHECK(apart(resumed.state, more.state) < 1e-10);
  }
}

TEST_CASE("a tied weight may have the same name on its ranks, under all schedules and transports") {
  // The last stage uses the embedding's weight itself, so the tied weight has one name on both ranks.
  const auto train = [](const Group& group, Schedule schedule) {
    Language model(/*tied=*/true, group->rank());
    const int rank = group->rank();
    const Stage last([&](const Tensor& h) { return linear(h, model.embedding.weight); }, kCPU,
                     {model.embedding});
    Pipeline pipeline(
        group,
        rank == 2   ? last
        : rank == 1 ? Stage([](const Tensor& h) { return h.tanh(); }, kCPU)
                    : model.stage(0),
        {.schedule = schedule, .micro_batches = 4, .checkpoint = true, .tied = {{"embedding.weight"}}});
    return train_pipeline(false, pipeline, 0, 6);
  };
  Language whole;
  Numbers losses;
  optim::SGD optimizer(whole.embedding.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < (step % 5 == 0 ? 2 : 1); ++pass) {
      const auto [x, next] = words_of(step + pass, 12);
      const Tensor loss = loss_of(linear(whole.embedding(x).tanh(), whole.embedding.weight), next);
      loss.backward();
      losses.push_back(loss.item());
    }
    nn::clip_grad_norm_(whole.embedding.parameters(), 0.2);
    optimizer.step();
  }
  for (const auto& transport : distributed_test::transports())
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
      INFO(transport.name << ", " << schedule_name(schedule));
      Trained found;
      over_ranks(
          [&](const Group& group) {
            const Trained mine = train(group, schedule);
            if (group->rank() == 0) found = mine;
          },
          transport);
      CHECK(test::apart(found.losses, losses) < 1e-10);
      CHECK(names_of(found.state) == std::vector<std::string>{"embedding.weight"});
      Numbers weights, expected;
      append(weights, found.state.at(0).second);
      append(expected, whole.embedding.weight);
      CHECK(test::apart(weights, expected) < 1e-10);
    }
}

TEST_CASE("a frozen tied weight gets no gradient") {
  over_ranks([](const Group& group) {
    Language model;
    model.embedding.requires_grad_(false);
    Pipeline pipeline(group, model.stage(group->rank()), kTied);
    const auto [x, next] = words_of(0, 4);
    pipeline.forward_backward(x, next, loss_of);
    require(!model.embedding.weight->grad().defined(), "a frozen weight got a gradient");
    pipeline.clip_grad_norm_(1);
  });
}

TEST_CASE("if only some ranks freeze a tied weight, all ranks throw, and the next call works") {
  over_ranks([](const Group& group) {
    Language model(/*tied=*/false);
    Pipeline pipeline(group, model.stage(group->rank()), kTied);
    const auto [x, next] = words_of(0, 4);
    if (group->rank() == 2) model.head.requires_grad_(false);
    expect<ValueError>([&, x = x, next = next] { pipeline.forward_backward(x, next, loss_of); },
                       {"embedding.weight = head.weight is frozen on some ranks but not on all",
                        "rank 0  trained\n  rank 2  frozen\nfreeze it on all"});
    model.head.requires_grad_(true);
    pipeline.forward_backward(x, next, loss_of);
  });
}

TEST_CASE("the gradient of a tied weight that no rank used does not change") {
  over_ranks([](const Group& group) {
    const int rank = group->rank();
    Language model;
    bool use = false;
    const Tensor& table = model.embedding.weight;
    const Stage first([](const Tensor& x) { return x.tanh(); }, kCPU, {model.embedding});
    const Stage last([&](const Tensor& h) { return use ? linear(h, table) : h; }, kCPU, {model.embedding});
    Pipeline pipeline(group,
                      rank == 0   ? first
                      : rank == 1 ? model.stage(1)
                                  : last,
                      {.micro_batches = 1, .tied = {{"embedding.weight"}}});
    const Tensor x = linspace(-1, 1, 4 * kWidth, DType::f64).view({4, kWidth}), next = tensor({0, 1, 2, 3});
    const auto gradient = [&](bool used) {
      use = used;
      pipeline.forward_backward(x, next, loss_of);
      return table.grad();
    };
    if (rank == 1) {
      for (const bool used : {false, true, false}) gradient(used);
      return;
    }
    require(!gradient(false).defined(), "an unused weight got a gradient");
    const Tensor before = gradient(true);
    require(before.defined() && before.abs().sum().item() > 0, "a used weight got no gradient");
    const Tensor copy = before.clone();
    require((gradient(false) - copy).abs().max().item() == 0, "an unused weight's gradient changed");
  });
}

TEST_CASE("weights that cannot be tied are an error on all ranks, with a table of what each rank has") {
  over_ranks([](const Group& group) {
    const int rank = group->rank();
    Language model(false);
    const auto make = [&](std::vector<std::vector<std::string>> tied) {
      return [&, tied] { Pipeline(group, model.stage(rank), {.tied = tied}); };
    };
    expect<ValueError>(
        make({{"embedding.weight", "nobody"}}),
        {"fewer than two ranks have a tied weight", "rank 0  embedding.weight = nobody: float64 [7, 5]",
         "rank 1  embedding.weight = nobody: -"});
    expect<ValueError>(make({{"embedding.weight", "blocks.0.weight"}}),
                       {"not the same on all ranks", "float64 [7, 5]", "float64 [5, 5]"});
    expect<ValueError>(
        make({{rank == 2 ? "x" : "embedding.weight", "head.weight"}}),
        {"not the same on all ranks", "rank 2  x = head.weight", "rank 0  embedding.weight = head.weight"});
    expect<ValueError>(make({{"blocks.0.weight", "blocks.0.bias"}}), {"rank 1", "two parameters"});
    expect<ValueError>(
        make(rank == 1 ? std::vector<std::vector<std::string>>{} : kTied.tied),
        {"different options", "rank 0  1f1b, 1 micro-batches, all of one size, 1 tied weights"});
    if (rank == 0) model.embedding.requires_grad_(false);
    expect<ValueError>(make(kTied.tied), {"float64 [7, 5], frozen"});
    model.embedding.requires_grad_(true);
    make(kTied.tied)();
  });
  Language model;
  CHECK_THROWS_WITH(Pipeline({model.stage(0), model.stage(1), model.stage(2)}, kTied),
                    ContainsSubstring("in one process assign one parameter to both"));
}

TEST_CASE("if a dict does not fit the stage of one rank, all ranks throw and nothing is loaded") {
  over_ranks([](const Group& group) {
    const int rank = group->rank();
    Language model(false, 2);
    Pipeline pipeline(group, model.stage(rank), {});
    const nn::StateDict before = model.state_dict();
    nn::StateDict dict = Language(false).state_dict();
    const auto load = [&](bool strict = true) {
      return [&, strict] { pipeline.load_state_dict(dict, strict); };
    };
    const auto on_rank_2 = [&](const std::vector<std::string>& parts) {
      if (rank == 2) expect<ValueError>(load(), parts);
      else
        expect<DistributedError>(load(),
                                 {"rank 2 could not take part in the call: [load_state_dict] ", parts[0]});
    };
    const Tensor head = dict.back().second;
    require(dict.back().first == "head.weight", "another order");
    dict.pop_back();
    on_rank_2({"missing: head.weight"});
    require(pipeline.load_state_dict(dict, false).missing.size() == (rank == 2), "missing names");
    dict = before;
    for (auto& [name, tensor] : dict) tensor = tensor.clone();
    pipeline.load_state_dict(dict);

    dict.back().second = head.narrow(0, 0, 3);
    on_rank_2({"wrong shape: head.weight expected [7, 5] but got [3, 5]"});
    dict.back().second = head;
    dict.emplace_back("nobody.weight", head);
    expect<ValueError>(load(), {"unexpected: nobody.weight"});
    require(apart(model.state_dict(), before) == 0, "something was loaded");
    require(pipeline.load_state_dict(dict, false).unexpected == std::vector<std::string>{"nobody.weight"},
            "unexpected names");
    dict.pop_back();
    // Each rank must be able to load the state of its own stage only.
    const nn::StateDict mine = pipeline.state_dict();
    require(
        names_of(mine) == std::vector<std::string>(rank == 0   ? std::vector<std::string>{"embedding.weight"}
                                                   : rank == 2 ? std::vector<std::string>{"head.weight"}
                                                               : names_of(mine)) &&
            mine[0].first.starts_with(rank == 1 ? "blocks.0." : ""),
        "names of the unsplit model");
    pipeline.load_state_dict(mine);
  });
}

TEST_CASE("Stage::named() gives parts that were constructed alone their names in the whole model") {
  over_ranks([](const Group& group) {
    const int rank = group->rank();
    Chain chain = Chain::stage(rank, kRanks);
    std::vector<std::string> paths;
    for (int k = rank * kParts / kRanks; k < (rank + 1) * kParts / kRanks; ++k)
      paths.push_back("parts." + std::to_string(k));
    const Stage alone(chain.modules(), kCPU);
    Pipeline unnamed(group, alone);
    const std::vector<std::string> told{"'fc.weight'", "Stage::named()"};
    // On rank 2, two parts have tensors of the same name, which is a ValueError there. The other ranks must
    // throw a DistributedError with the same text.
    if (rank == 2) expect<ValueError>([&] { unnamed.whole_state_dict(); }, told);
    else expect<DistributedError>([&] { unnamed.whole_state_dict(); }, told);
    Pipeline collide(group, Stage({chain.modules()[0]}, kCPU));
    expect<ValueError>([&] { collide.whole_state_dict(); }, {"ranks 0 and 1 both have", "'fc.weight'"});

    Pipeline pipeline(group, alone.named(paths));
    const nn::StateDict whole = pipeline.whole_state_dict();
    if (rank == 0)
      require(names_of(whole) == std::vector<std::string>{"parts.0.fc.weight", "parts.0.fc.bias",
                                                          "parts.1.fc.weight", "parts.1.fc.bias",
                                                          "parts.2.fc.weight", "parts.2.fc.bias",
                                                          "parts.3.fc.weight", "parts.3.fc.bias"},
              "names of the whole");
    expect<ValueError>([&] { alone.named({"a", "b", "c"}); }, {"3 paths for the"});
  });
}

TEST_CASE("a pipeline in one process has the names of the unsplit model") {
  Language model(true, 1), other(true, 2);
  Pipeline pipeline({model.stage(0), model.stage(1), model.stage(2)});
  CHECK(names_of(pipeline.state_dict()) == names_of(model.state_dict()));
  CHECK(names_of(pipeline.whole_state_dict()) == names_of(model.state_dict()));
  CHECK(pipeline.stages()[1].named_parameters()[0].first == "blocks.0.weight");
  pipeline.load_state_dict(other.state_dict());
  CHECK(apart(model.state_dict(), other.state_dict()) == 0);
  nn::StateDict wrong = other.state_dict();
  wrong.pop_back();
  CHECK_THROWS_WITH(pipeline.load_state_dict(wrong), ContainsSubstring("missing: head.weight"));
  CHECK(pipeline.load_state_dict(wrong, false).missing == std::vector<std::string>{"head.weight"});
}
