// What ranks hold before and after collectives, and how they divide sequences, meshes and time.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tapestry/distributed/context/sequence.h"
#include "tapestry/tapestry.h"
#include "tests/pictures/picture.h"
#include "tests/support/catch.h"

using namespace tapestry;
using pictures::colour, pictures::Picture;
using Values = std::vector<double>;

namespace {

std::string digits(double value) { return std::to_string(static_cast<int>(value)); }

}  // namespace

TEST_CASE("picture: an all-reduce is a reduce-scatter and an all-gather") {
  constexpr std::size_t kRanks = 4;
  std::array<std::array<Values, kRanks>, 3> held;
  std::array<Values, kRanks> at_once;
  distributed::run_local_ranks(kRanks, [&](const auto& world) {
    const auto rank = static_cast<std::size_t>(world->rank());
    const Tensor mine = arange(kRanks, DType::f64) + world->rank(), reduced = mine.clone();
    const Tensor part = empty({1}, DType::f64), all = empty({kRanks}, DType::f64);
    world->reduce_scatter(part, mine).wait();
    world->all_gather(all, part).wait();
    world->all_reduce(reduced).wait();
    held[0][rank] = mine.template to_vector<double>();
    held[1][rank] = part.template to_vector<double>();
    held[2][rank] = all.template to_vector<double>();
    at_once[rank] = reduced.template to_vector<double>();
  });
  CHECK(held[2] == at_once);

  Picture p;
  const char* const names[] = {"before", "reduce_scatter", "all_gather"};
  for (std::size_t m = 0; m < 3; ++m) {
    const double left = 64 + 140 * static_cast<double>(m);
    p.middle(left + 60, 20, names[m], "b");
    for (std::size_t r = 0; r < kRanks; ++r) {
      const double top = 32 + 34 * static_cast<double>(r);
      if (m == 0) p.text(4, top + 20, "rank " + std::to_string(r));
      for (std::size_t c = 0; c < kRanks; ++c) {
        const double x = left + 30 * static_cast<double>(c);
        const Values& v = held[m][r];
        if (v.size() == 1) p.box(x, top, 30, 28, c == r ? colour(r) : "none", c == r ? digits(v[0]) : "");
        else p.box(x, top, 30, 28, m == 0 ? colour(r) : colour(c), digits(v[c]));
      }
    }
  }
  p.text(4, 186, "A colour is the rank that made the number.", "s");
  p.compare(
      "all-reduce", 196,
      "Four ranks with four numbers each: after a reduce_scatter each has one sum, and after an all_gather "
      "each has all four");
}

TEST_CASE("picture: ranks exchange tokens, and sort them by expert") {
  struct Token {
    int letter, expert;
  };
  constexpr int kRanks = 2, kOwn = 2;  // ranks, and experts of each
  const std::vector<std::vector<std::int64_t>> counts{{1, 2, 0, 1}, {2, 1, 3, 0}};
  std::array<std::array<std::vector<Token>, kRanks>, 3> held;
  distributed::run_local_ranks(kRanks, [&](const auto& world) {
    const auto rank = static_cast<std::size_t>(world->rank());
    Values rows;  // letter * 4 + expert
    int letter = rank == 0 ? 0 : 4;
    for (std::size_t e = 0; e < counts[rank].size(); ++e)
      for (std::int64_t i = 0; i < counts[rank][e]; ++i)
        rows.push_back(4.0 * letter++ + static_cast<double>(e));
    const Tensor mine = tensor(counts[rank], {kRanks, kOwn}), theirs = empty({kRanks, kOwn}, DType::i64);
    world->all_to_all(theirs, mine).wait();
    const auto sent = mine.sum({1}).template to_vector<std::int64_t>(),
               received = theirs.sum({1}).template to_vector<std::int64_t>();
    const Tensor from = tensor(rows), to = empty({received[0] + received[1]});
    world
        ->all_to_all({to.narrow(0, 0, received[0]), to.narrow(0, received[0], received[1])},
                     {from.narrow(0, 0, sent[0]), from.narrow(0, sent[0], sent[1])})
        .wait();
    const auto tokens = [](const Tensor& t) {
      std::vector<Token> all;
      for (const double v : t.to_vector<double>())
        all.push_back({static_cast<int>(v) / 4, static_cast<int>(v) % 4});
      return all;
    };
    held[0][rank] = tokens(from);
    held[1][rank] = held[2][rank] = tokens(to);
    std::stable_sort(held[2][rank].begin(), held[2][rank].end(),
                     [](const Token& a, const Token& b) { return a.expert < b.expert; });
  });

  Picture p;
  const char* const names[] = {"routed: each token has an expert",
                               "exchanged: tokens are where their expert is",
                               "sorted: each expert has its tokens together"};
  double y = 20;
  for (std::size_t m = 0; m < 3; ++m) {
    p.text(4, y, names[m], "b");
    for (std::size_t r = 0; r < kRanks; ++r) {
      p.text(4, y + 36, "rank " + std::to_string(r));
      double x = 70;
      for (const Token& t : held[m][r]) {
        p.box(x, y + 16, 62, 30, t.letter < 4 ? "c0" : "c3",
              std::string(1, static_cast<char>('a' + t.letter)) + " to " + std::to_string(t.expert));
        x += 66;
      }
      y += 36;
    }
    y += 38;
  }
  p.text(4, y - 4, "Rank 0 has the experts 0 and 1, rank 1 has 2 and 3.", "s");
  p.compare("exchange", y + 8,
            "Ten tokens of two ranks: routed to four experts, exchanged, and sorted by expert");
}

TEST_CASE("picture: the zigzag order gives each rank as much of a causal attention") {
  using distributed::SequenceOrder;
  constexpr int kRanks = 4, kChunks = 2 * kRanks;
  Picture p;
  for (const SequenceOrder order : {SequenceOrder::contiguous, SequenceOrder::zigzag}) {
    std::array<int, kChunks> owner{};
    for (int r = 0; r < kRanks; ++r)
      for (const std::int64_t chunk :
           distributed::sequence_positions(kChunks, r, kRanks, order).to_vector<std::int64_t>())
        owner[static_cast<std::size_t>(chunk)] = r;
    const double left = order == SequenceOrder::contiguous ? 30 : 272, top = 50;
    p.middle(left + 96, 18, order == SequenceOrder::contiguous ? "contiguous" : "zigzag", "b");
    p.middle(left + 96, 40, "keys", "s");
    std::array<int, kRanks> work{};
    p.grid(left, top, kChunks, kChunks, 24, 24);
    for (int q = 0; q < kChunks; ++q) {
      const int rank = owner[static_cast<std::size_t>(q)];
      for (int k = 0; k <= q; ++k) {
        const int step = (rank - owner[static_cast<std::size_t>(k)] + kRanks) % kRanks;
        p.box(left + 24 * k, top + 24 * q, 24, 24, colour(static_cast<std::size_t>(rank)),
              std::to_string(step));
      }
      work[static_cast<std::size_t>(rank)] += q + 1;
    }
    std::string text;
    for (const int w : work) text += (text.empty() ? "work " : ", ") + std::to_string(w);
    p.middle(left + 96, 264, text);
  }
  p.svg(
      "<text x='18' y='146' class='s' transform='rotate(-90 18 146)' text-anchor='middle'>queries</text>\n");
  for (int r = 0; r < kRanks; ++r)
    p.box(30 + 112 * r, 280, 96, 26, colour(static_cast<std::size_t>(r)), "rank " + std::to_string(r));
  p.text(30, 330, "A number is the step at which the keys arrive.", "s");
  p.compare(
      "ring", 342,
      "Which rank computes which chunk of a causal attention, and at which step of the ring: in contiguous "
      "order the ranks have 3, 7, 11 and 15 chunks of work, in zigzag order 9 each");
}

TEST_CASE("picture: the axes of a mesh") {
  constexpr int kRanks = 8;
  const distributed::Mesh mesh(distributed::fake_process_group(0, kRanks),
                               {{"pipeline", 2}, {"replicate", 2}, {"tensor", 2}});
  Picture p;
  p.text(4, 24, "rank", "s");
  for (int r = 0; r < kRanks; ++r) p.middle(118 + 47 * r, 24, std::to_string(r), "b");
  for (std::size_t a = 0; a < mesh.axes().size(); ++a) {
    const double top = 36 + 46 * static_cast<double>(a);
    p.text(4, top + 22, mesh.axes()[a].name);
    std::vector<std::vector<int>> groups;  // the coordinates along the other axes
    for (int r = 0; r < kRanks; ++r) {
      std::vector<int> others = mesh.coordinates(r);
      const int own = others[a];
      others[a] = -1;
      auto found = std::find(groups.begin(), groups.end(), others);
      if (found == groups.end()) found = groups.insert(groups.end(), others);
      p.box(97 + 47 * r, top, 43, 32, colour(static_cast<std::size_t>(found - groups.begin())),
            std::to_string(own));
    }
  }
  p.text(4, 194, "In a row, a colour is a group, a number a place.", "s");
  p.compare("mesh", 206,
            "The groups of eight ranks along the axes pipeline=2, replicate=2, tensor=2: ranks 0 and 4 are a "
            "pipeline, 0 and 2 replicas, and 0 and 1 divide tensors");
}

TEST_CASE("picture: schedules of a pipeline") {
  using distributed::Action, distributed::Schedule;
  constexpr int kStages = 4, kMicroBatches = 4;
  Picture p;
  double y = 18;
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
    const bool split = schedule == Schedule::zero_bubble;
    const auto actions = distributed::schedule_actions(schedule, kStages, kMicroBatches);
    const distributed::Simulation run =
        distributed::simulate(actions, {.costs = std::vector<distributed::StageCost>(
                                            kStages, {.forward = 1, .backward = split ? 1.0 : 2.0})});
    const std::vector<int> peak = distributed::peak_activations(actions);
    p.text(4, y,
           std::string(distributed::schedule_name(schedule)) + ": " +
               std::to_string(static_cast<int>(100 * run.bubble() + 0.5)) + "% idle, stage 0 holds " +
               std::to_string(peak[0]),
           "b");
    for (std::size_t d = 0; d < run.devices.size(); ++d) {
      const double top = y + 8 + 25 * static_cast<double>(d);
      p.text(4, top + 17, std::to_string(d), "s");
      for (const distributed::TimedAction& t : run.devices[d]) {
        const char* const kind = t.action.kind == Action::Kind::forward    ? "c0"
                                 : t.action.kind == Action::Kind::backward ? "c1"
                                                                           : "c3";
        p.box(22 + 21.5 * t.begin, top, 21.5 * (t.end - t.begin), 23, kind,
              std::to_string(t.action.micro_batch));
      }
    }
    y += 138;
  }
  p.box(4, y - 16, 86, 26, "c0", "forward");
  p.box(98, y - 16, 96, 26, "c1", "backward");
  p.box(202, y - 16, 182, 26, "c3", "gradients of weights");
  p.compare(
      "schedules", y + 20,
      "Four stages and four micro-batches under three schedules, if backward takes twice as long as forward: "
      "1f1b is idle as long as gpipe but holds no more than it needs, zero-bubble fills idle time with the "
      "gradients of weights");
}

TEST_CASE("picture: a factory") {
  Picture p;
  const char* const steps[] = {"cut", "sew", "dye"};
  const auto line = [&](double y, const std::string& name, bool one_hall, std::size_t hall) {
    p.text(4, y + 20, name);
    p.arrow(66, y + 15, 88, y + 15);
    for (std::size_t s = 0; s < 3; ++s) {
      const double x = 90 + 122 * static_cast<double>(s);
      p.box(x, y, 96, 30, colour(one_hall ? hall : s), steps[s]);
      p.arrow(x + 98, y + 15, x + 120, y + 15);
    }
  };
  p.text(4, 20, "data parallel: a whole line in every hall", "b");
  line(34, "shirts", true, 0);
  line(76, "shirts", true, 1);
  line(118, "shirts", true, 2);
  p.text(4, 172, "Three times the shirts; every day the halls agree.", "s");
  p.text(4, 214, "model parallel: one line through all halls", "b");
  line(228, "shirts", false, 0);
  p.text(4, 282, "One line, in halls too small for all of it.", "s");
  for (std::size_t h = 0; h < 3; ++h)
    p.box(90 + 122 * static_cast<double>(h), 300, 96, 26, colour(h), "hall " + std::to_string(h));
  p.compare(
      "factory", 338,
      "Data parallelism as a factory with a whole production line in each of three halls; model parallelism "
      "as one line whose three steps are in three halls");
}
