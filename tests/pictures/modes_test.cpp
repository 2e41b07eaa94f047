// What modes send and hold, from a step of a small model in each of them on four ranks.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/pictures/picture.h"
#include "tests/support/catch.h"

using namespace tapestry;
using distributed::TensorStyle;
using pictures::colour, pictures::Picture;
using Tensors = std::vector<Tensor>;

namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kWidth = 64, kSamples = 32;

struct Net : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = kWidth, .out_features = kWidth, .bias = false});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = kWidth, .out_features = kWidth, .bias = false});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = kWidth, .out_features = kWidth, .bias = false});
  nn::Linear& d = add<nn::Linear>("d", {.in_features = kWidth, .out_features = kWidth, .bias = false});
  Tensor forward(const Tensor& x) override { return d(c(b(a(x).tanh()).tanh()).tanh()); }
};

// What a rank has of each parameter after a step.
struct Held {
  std::vector<nn::Region> parameters, gradients, states;
};

struct Step {
  std::array<Held, kRanks> held;
  std::vector<distributed::Transfer> sent;  // by all ranks
};

bool is_none(const nn::Region& region) { return region.sizes.numel() == 0; }

Held held_by(const Net& net, const optim::Optimizer& optimizer) {
  Held held;
  const nn::Region none = nn::Region::whole({0, 0});
  const auto* const zero = dynamic_cast<const distributed::ZeroBase*>(&optimizer);
  std::size_t i = 0;
  for (const nn::Parameter& p : net.parameters()) {
    const nn::Region own = p.layout() ? p.layout()->region(0) : nn::Region::whole(p.sizes());
    const Tensor stored = p.layout() ? p.layout()->stored(0) : p.tensor();
    held.parameters.push_back(own);
    nn::Region updated = own;
    if (zero != nullptr) {
      const std::int64_t elements = zero->local_elements()[i];
      if (elements != 0 && elements != p.numel())
        throw std::logic_error("a rank updates a part of a parameter");
      if (elements == 0) updated = none;
    } else if (!is_none(own)) {
      bool found = false;
      for (const optim::StateTensor& s : optimizer.state_tensors())
        found |= s.like_param && s.tensor.numel() == own.sizes.numel();
      if (!found) throw std::logic_error("the optimizer's state is not that of the stored part");
    }
    held.states.push_back(updated);
    if (zero != nullptr && zero->stage() == 2) held.gradients.push_back(updated);
    else if (is_none(own)) held.gradients.push_back(none);
    else if (stored.grad().numel() == own.sizes.numel()) held.gradients.push_back(own);
    else throw std::logic_error("a gradient is not that of the stored part");
    ++i;
  }
  return held;
}

Step step_of(const std::string& mode) {
  Step all;
  std::mutex mutex;
  distributed::run_local_ranks(kRanks, [&](const auto& world) {
    const bool stages = mode.starts_with("pipeline");
    distributed::Strategy strategy(mode, {.world = world, .parts = stages ? 4 : 1});
    Generator generator(1);  // the ranks are threads: each gets a generator of its own
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    Net net;
    distributed::ModelParts parts;
    parts.units = net.children();
    parts.forward = [&](const Tensors& in) { return Tensors{net(in[0])}; };
    parts.loss = [](const Tensors& out, const Tensors& targets) -> distributed::Loss {
      return {mse_loss(out[0], targets[0]), static_cast<double>(targets[0].numel())};
    };
    parts.stages = [&](const std::vector<Device>& devices) {
      std::vector<distributed::Stage> list;
      list.emplace_back([&](const Tensor& x) { return net.a(x).tanh(); }, devices[0],
                        distributed::Stage::Modules{net.a});
      list.emplace_back([&](const Tensor& x) { return net.b(x).tanh(); }, devices[1],
                        distributed::Stage::Modules{net.b});
      list.emplace_back([&](const Tensor& x) { return net.c(x).tanh(); }, devices[2],
                        distributed::Stage::Modules{net.c});
      list.emplace_back([&](const Tensor& x) { return net.d(x); }, devices[3],
                        distributed::Stage::Modules{net.d});
      return list;
    };
    parts.tensor_plan = {{{"a", TensorStyle::column},
                          {"b", TensorStyle::row},
                          {"c", TensorStyle::column},
                          {"d", TensorStyle::row}}};
    strategy.wrap(net, parts);
    const auto optimizer =
        distributed::make_optimizer<optim::AdamW>(strategy, net.parameters(), {.lr = 1e-3});
    const auto read = [&](const distributed::Part& part) {
      const distributed::Samples s = strategy.share(kSamples, part);
      const Tensor x =
          (arange(kSamples * kWidth) * 0.01).sin().reshape({kSamples, kWidth}).narrow(0, s.first, s.count);
      return distributed::Batch{{x}, {x}};
    };
    strategy.gradients(read, static_cast<double>(kSamples * kWidth));
    optimizer->step();
    const Held held = held_by(net, *optimizer);
    const std::lock_guard lock(mutex);
    all.held[static_cast<std::size_t>(world->rank())] = held;
    for (const distributed::Transfer& t : strategy.transfers()) all.sent.push_back(t);
  });
  return all;
}

const Step& step_in(const std::string& mode) {  // two pictures show the same steps
  static std::map<std::string, Step> steps;
  if (!steps.contains(mode)) steps[mode] = step_of(mode);
  return steps[mode];
}

// The stages of a pipeline also pass the loss to the first one: a few bytes.
std::string kib(std::int64_t bytes) {
  CHECK(bytes % 1024 <= 8);
  return std::to_string(bytes / 1024) + " KiB";
}

// Where the ranks are drawn: at the corners of a square, clockwise.
constexpr double kX[] = {34, 206, 206, 34}, kY[] = {56, 56, 156, 156};

void draw_traffic(Picture& p, const Step& step, const std::string& name, double left, double top) {
  p.middle(left + 120, top + 22, name, "b");
  std::map<std::string, std::map<std::pair<int, int>, std::int64_t>> sent;  // by what, from and to
  std::map<std::pair<int, int>, bool> ways;
  for (const distributed::Transfer& t : step.sent) {
    sent[t.what][{t.from, t.to}] += t.bytes;
    ways[{t.from, t.to}] = true;
  }
  for (const auto& [way, used] : ways) {
    const auto from = static_cast<std::size_t>(way.first), to = static_cast<std::size_t>(way.second);
    const double dx = kX[to] - kX[from], dy = kY[to] - kY[from], length = std::hypot(dx, dy);
    const double side = ways.contains({way.second, way.first}) ? 6 : 0;  // two arrows lie side by side
    const double x = left + kX[from] - dy / length * side, y = top + kY[from] + dx / length * side;
    p.arrow(x + dx * 18 / length, y + dy * 18 / length, x + dx * (1 - 18 / length),
            y + dy * (1 - 18 / length));
  }
  for (std::size_t r = 0; r < kRanks; ++r)
    p.box(left + kX[r] - 15, top + kY[r] - 15, 30, 30, colour(r), std::to_string(r));
  double y = top + 111 - 20 * static_cast<double>(sent.size());
  for (const auto& [what, by_way] : sent) {
    for (const auto& [way, bytes] : by_way) CHECK(bytes == by_way.begin()->second);
    p.middle(left + 120, y + 12, what, "s");
    p.middle(left + 120, y + 31, kib(by_way.begin()->second));
    y += 40;
  }
}

// Draws the part of a parameter that a rank has. The whole parameter is a square with this side.
void draw_part(Picture& p, const nn::Region& part, double x, double y, double side,
               const std::string& classes) {
  const auto at = [&](std::int64_t elements) { return side * static_cast<double>(elements) / kWidth; };
  if (!is_none(part))
    p.box(x + at(part.first[1]), y + at(part.first[0]), at(part.sizes[1]), at(part.sizes[0]), classes);
}

}  // namespace

TEST_CASE("picture: what four ranks send in a step") {
  Picture p;
  double left = 0, top = 0;
  for (const char* const mode : {"replicate=4", "shard=4", "tensor=4", "pipeline=4"}) {
    draw_traffic(p, step_in(mode), mode, left, top);
    if (left > 0) top += 190;
    left = 240 - left;
  }
  p.text(4, 394, "Bytes along each arrow, of a model of 64 KiB.", "s");
  p.compare(
      "traffic", 406,
      "What each of four ranks sends in a step: under replicate gradients to the next one, under shard "
      "parameters and gradients, under tensor activations, under pipeline activations to the next stage "
      "and gradients back");
}

TEST_CASE("picture: what four ranks hold") {
  Picture p;
  for (int r = 0; r < kRanks; ++r) p.middle(153 + 93 * r, 20, "rank " + std::to_string(r), "b");
  double y = 32;
  const std::pair<const char*, const char*> modes[] = {
      {"replicate=4", "replicate"}, {"replicate=4:zero=1", "zero=1"}, {"replicate=4:zero=2", "zero=2"},
      {"shard=4", "shard"},         {"tensor=4", "tensor"},           {"pipeline=4", "pipeline"}};
  constexpr double kSide = 17;
  for (const auto& [mode, name] : modes) {
    p.text(4, y + 36, name);
    const Step& step = step_in(mode);
    for (std::size_t kind = 0; kind < 3; ++kind)
      for (std::size_t r = 0; r < kRanks; ++r) {
        const Held& held = step.held[r];
        const auto& parts = kind == 0 ? held.parameters : kind == 1 ? held.gradients : held.states;
        REQUIRE(parts.size() == 4);
        const double left = 112 + 93 * static_cast<double>(r), top = y + 20 * static_cast<double>(kind);
        for (std::size_t i = 0; i < parts.size(); ++i)
          draw_part(p, parts[i], left + 20 * static_cast<double>(i), top, kSide, colour(kind));
      }
    for (int r = 0; r < kRanks; ++r)
      for (int square = 0; square < 12; ++square)
        p.box(112 + 93 * r + 20 * (square % 4), y + 20 * (square / 4), kSide, kSide, "none");
    y += 72;
  }
  p.box(4, y, 106, 26, "c0", "parameters");
  p.box(118, y, 96, 26, "c1", "gradients");
  p.box(222, y, 144, 26, "c2", "optimizer's state");
  p.compare(
      "holdings", y + 36,
      "Which part of four square parameters, their gradients and the optimizer's state each of four ranks "
      "holds in each mode");
}

TEST_CASE("picture: a column layer and a row layer fit together") {
  constexpr std::int64_t kIn = 8, kHidden = 32;
  struct Mlp : nn::Module {
    nn::Linear& up = add<nn::Linear>("up", {.in_features = kIn, .out_features = kHidden, .bias = false});
    nn::Linear& down = add<nn::Linear>("down", {.in_features = kHidden, .out_features = kIn, .bias = false});
    Tensor forward(const Tensor& x) override { return down(up(x).gelu()); }
  };
  std::array<nn::Region, kRanks> up, down;
  std::array<std::int64_t, kRanks> hidden{}, out{};
  distributed::run_local_ranks(kRanks, [&](const auto& world) {
    const auto r = static_cast<std::size_t>(world->rank());
    distributed::Mesh mesh(world, {{"tensor", kRanks}});
    Generator generator(1);
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    Mlp net;
    distributed::tensor_parallel(net, mesh["tensor"],
                                 {{{"up", TensorStyle::column}, {"down", TensorStyle::row}}});
    const HookHandle hooks[] = {
        net.up.register_forward_hook([&](auto&, auto&, Tensors& o) { hidden[r] = o[0].size(-1); }),
        net.down.register_forward_hook([&](auto&, auto&, Tensors& o) { out[r] = o[0].size(-1); })};
    net(ones({4, kIn}));
    up[r] = net.up.weight.layout()->region(0);
    down[r] = net.down.weight.layout()->region(0);
  });
  Picture p;
  constexpr double kLeft = 4, kScale = 9;  // of a hidden feature
  const auto across = [](std::int64_t feature) { return kLeft + kScale * static_cast<double>(feature); };
  for (std::size_t r = 0; r < kRanks; ++r) {
    const nn::Region &u = up[r], &d = down[r];
    REQUIRE(u.sizes[1] == kIn);  // some of the outputs, and all inputs
    REQUIRE(d.sizes[0] == kIn);  // all outputs, and some of the inputs
    REQUIRE(hidden[r] == u.sizes[0]);
    const double x = across(u.first[0]), width = kScale * static_cast<double>(u.sizes[0]);
    const double xd = across(d.first[1]), dwidth = kScale * static_cast<double>(d.sizes[1]);
    p.middle(x + width / 2, 20, std::to_string(r), "b");
    p.box(x, 32, width - 4, 26, "grey", "x");
    p.arrow(x + width / 2, 60, x + width / 2, 76);
    p.box(x, 78, width - 4, 60, colour(r), "up");
    p.arrow(x + width / 2, 140, x + width / 2, 156);
    p.box(x, 158, width - 4, 26, colour(r), "h");
    p.arrow(xd + dwidth / 2, 186, xd + dwidth / 2, 202);
    p.box(xd, 204, dwidth - 4, 60, colour(r), "down");
    p.arrow(xd + dwidth / 2, 266, xd + dwidth / 2, 282);
    p.box(xd, 284, dwidth - 4, 26, "none", "part");
    p.arrow(xd + dwidth / 2, 312, xd + dwidth / 2, 346);
    p.box(xd, 348, dwidth - 4, 26, "grey", "y");
    CHECK(out[r] == kIn);
  }
  const std::string features = std::to_string(hidden[0]) + " of " + std::to_string(kHidden);
  p.line(kLeft, 328, across(kHidden) - 4, 328);
  const std::pair<double, const char*> notes[] = {{20, "rank"},
                                                  {50, "equal on all ranks"},
                                                  {332, "all-reduce: the sum"},
                                                  {302, "a part of each sum"},
                                                  {366, "equal on all ranks"}};
  for (const auto& [y, note] : notes) p.text(302, y, note, "s");
  p.text(302, 104, "column: " + features, "s");
  p.text(302, 124, "outputs", "s");
  p.text(302, 176, "hidden features", "s");
  p.text(302, 230, "row: the inputs", "s");
  p.text(302, 250, "that are here", "s");
  p.compare("column-row", 386,
            "A perceptron divided over four ranks: each has some outputs of up and the same inputs of down, "
            "and one "
            "all-reduce adds the parts of the result");
}

TEST_CASE("picture: which part of the activations a rank has under tensor and sequence parallelism") {
  struct Block : nn::Module {
    nn::Linear& in = add<nn::Linear>("in", {.in_features = 4, .out_features = 8});
    nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = {8}});
    nn::Linear& up = add<nn::Linear>("up", {.in_features = 8, .out_features = 16});
    nn::Linear& down = add<nn::Linear>("down", {.in_features = 16, .out_features = 8});
    Tensor forward(const Tensor& x) override {
      const Tensor h = in(x);
      return h + down(up(norm(h)).gelu());
    }
  };
  constexpr std::int64_t kTokens = 8;
  const char* const modules[] = {"in", "norm", "up", "down"};
  std::array<std::array<std::array<Shape, kRanks>, 4>, 2> shapes;  // by sequence, module and rank
  for (const bool sequence : {false, true})
    distributed::run_local_ranks(kRanks, [&](const auto& world) {
      distributed::Mesh mesh(world, {{"tensor", kRanks}});
      Generator generator(1);
      Context context = current_context();
      context.generator = &generator;
      const ContextGuard guard(context);
      Block net;
      distributed::tensor_parallel(net, mesh["tensor"],
                                   {{{"in", TensorStyle::enter},
                                     {"norm", TensorStyle::residual},
                                     {"up", TensorStyle::column},
                                     {"down", TensorStyle::row}}},
                                   {.sequence = sequence});
      std::vector<HookHandle> hooks;
      nn::Module* const list[] = {&net.in, &net.norm, &net.up, &net.down};
      for (std::size_t m = 0; m < 4; ++m)
        hooks.push_back(list[m]->register_forward_hook([&, m](auto&, auto&, Tensors& o) {
          shapes[sequence ? 1 : 0][m][static_cast<std::size_t>(world->rank())] = o[0].sizes();
        }));
      net(ones({1, kTokens, 4}));
    });
  Picture p;
  p.middle(164, 20, "tensor", "b");
  p.middle(377, 20, "tensor and sequence", "b");
  for (std::size_t m = 0; m < 4; ++m) {
    const double top = 34 + 76 * static_cast<double>(m);
    p.text(4, top + 25, modules[m]);
    for (std::size_t s = 0; s < 2; ++s)
      for (std::size_t r = 0; r < kRanks; ++r) {
        const Shape& shape = shapes[s][m][r];
        const double whole = m == 2 ? 16 : 8, left = (s == 0 ? 66 : 279) + 50 * static_cast<double>(r);
        const double down = 40 * static_cast<double>(shape[1]) / kTokens,
                     right = 46 * static_cast<double>(shape[2]) / whole;
        p.box(left, top, 46, 40, "none");
        p.box(left + (right < 46 ? static_cast<double>(r) * right : 0),
              top + (down < 40 ? static_cast<double>(r) * down : 0), right, down, colour(r));
      }
  }
  const std::pair<double, const char*> forward[] = {{92 + 76, "all-gather"}, {92 + 152, "reduce-scatter"}};
  for (const auto& [y, name] : forward) p.middle(377, y, name, "s");
  p.middle(164, 92 + 152, "all-reduce", "s");
  p.text(4, 334, "Down: the tokens. Across: the features. Filled: held.", "s");
  p.compare(
      "sequence", 346,
      "The part of the activations behind each module that each of four ranks has: with sequence parallelism "
      "some tokens outside of the divided layers, instead of all");
}
