// Communication of divided layers beside products: delayed weight gradients, and chunks of the sequence.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;
using Style = TensorStyle;

namespace {

constexpr int kRanks = 2;

// Two layers that share an input, as gate and up, and one behind them. Two ranks have 3 and 2 of the 5 hidden
// features.
struct Mlp : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 5});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 3, .out_features = 5, .bias = false});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = 5, .out_features = 3});
  Tensor forward(const Tensor& x) override { return c(tanh(a(x)) * b(x)); }
};
// A block with a norm and a residual, twice.
struct Net : nn::Module {
  nn::LayerNorm& norm1 = add<nn::LayerNorm>("norm1", {.normalized_shape = {3}});
  Mlp& mlp1 = add<Mlp>("mlp1");
  nn::LayerNorm& norm2 = add<nn::LayerNorm>("norm2", {.normalized_shape = {3}});
  Mlp& mlp2 = add<Mlp>("mlp2");
  Net() {
    to(DType::f64);
    test::fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = x + mlp1(norm1(x));
    return h + mlp2(norm2(h));
  }
};
const TensorPlan kPlan{{{"norm*", Style::residual},
                        {"mlp*", Style::input},
                        {"mlp*.a", Style::column},
                        {"mlp*.b", Style::column},
                        {"mlp*.c", Style::row}}};

// This rank's part of a sequence in dimension 1.
Tensor part_of(const Tensor& x, const Axis& axis) {
  return nn::Region::whole(x.sizes()).part(1, axis.coordinate(), axis.size()).of(x).clone();
}

struct Divided {
  Mesh mesh;
  Axis tensor;
  Net net;
  Tensor x;  // this rank's part, a leaf
  Divided(const Group& world, const Tensor& whole, const TensorParallelOptions& options)
      : mesh(mesh_of(world, kRanks)), tensor(mesh["tensor"]) {
    tensor_parallel(net, tensor, kPlan, options);
    x = (options.sequence ? part_of(whole, tensor) : whole.clone()).set_requires_grad(true);
    set_placement(x, tensor, options.sequence ? Placement::sharded(1) : Placement::invariant());
  }
  Tensor expected(const Tensor& whole) const {
    return x.size(1) == whole.size(1) ? whole : part_of(whole, tensor);
  }
};

const std::vector<TensorParallelOptions> kForms{
    {}, {.sequence = true}, {.sequence = true, .chunks = 2}, {.sequence = true, .chunks = 16}};

std::string name_of_form(const TensorParallelOptions& o) {
  return concat({"sequence ", o.sequence, ", chunks ", o.chunks});
}

}  // namespace

TEST_CASE("a graph that is kept gives the gradients of divided layers again") {
  const Tensor whole = wave({2, 6, 3}, 0.7);
  Net one;
  const Tensor leaf = whole.clone().set_requires_grad(true);
  one(leaf).square().sum().backward();
  const Gradients expected = gradients_of(one);
  for (const TensorParallelOptions& form : kForms)
    on_ranks<int>(kRanks, [&](const Group& world) {
      Divided d(world, whole, form);
      const Tensor y = d.net(d.x).square().sum();
      autograd::backward({y}, autograd::BackwardOptions{.retain_graph = true});
      for (int again = 0; again < 2; ++again) {  // with and without the gradient of an earlier pass
        d.net.zero_grad(), d.x.zero_grad();
        autograd::backward({y}, autograd::BackwardOptions{.retain_graph = again == 0});
        require_gradients(d.net, expected, name_of_form(form));
        require(distance(d.x.grad(), d.expected(leaf.grad())) < 1e-10, name_of_form(form), ": the input");
      }
      for (const auto& [name, p] : d.net.named_parameters()) p.grad().mul_(0.5);
      d.net(d.x).square().sum().backward();  // adds to what is there
      for (const auto& [name, p] : d.net.named_parameters()) p.grad().div_(1.5);
      require_gradients(d.net, expected, name_of_form(form) + ", added");
      return 0;
    });
}

TEST_CASE("backward gathers a recomputed unit once, whether weight gradients are delayed or not") {
  struct Deep : nn::Module {
    std::vector<Mlp*> blocks;
    nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = {3}});
    Deep() {
      for (int i = 0; i < 4; ++i) blocks.push_back(&add<Mlp>("mlp" + std::to_string(i)));
      to(DType::f64);
      test::fill_by_formula(*this);
    }
    Tensor forward(const Tensor& x) override {
      Tensor h = x;
      for (Mlp* const block : blocks) h = h + checkpoint([block](const Tensor& t) { return (*block)(t); }, h);
      return norm(h);
    }
  };
  const Tensor whole = wave({2, 6, 3}, 0.7);
  const auto gathers = [&](int tensors, bool sequence) {
    return on_ranks<std::vector<std::int64_t>>(2 * tensors, [&](const Group& world) {
      const PlacementCheck off(false);
      Mesh mesh = mesh_of(world, tensors);
      const Axis tensor = mesh["tensor"];
      Deep net;
      if (tensors > 1) tensor_parallel(net, tensor, kPlan, {.sequence = sequence});
      const FsdpOptions options{.group = mesh["shard"].group()};
      for (Mlp* const block : net.blocks) fully_shard(*block, options);
      const FullyShard handle = fully_shard(net, options);
      const Tensor x = (sequence ? part_of(whole, tensor) : whole.clone()).set_requires_grad(true);
      for (int step = 0; step < 2; ++step) net(x).square().sum().backward();
      std::vector<std::int64_t> counts;
      for (const FsdpUnitReport& unit : handle.report().units) counts.push_back(unit.backward_gathers);
      return counts;
    });
  };
  // The model's own unit stays full from forward on.
  const std::vector<std::int64_t> expected{2, 2, 2, 2, 0};
  for (const int tensors : {1, 2})
    for (const bool sequence : {false, true})
      for (const auto& counts : gathers(tensors, sequence)) {
        INFO(tensors << " tensor ranks, sequence " << sequence);
        CHECK(counts == expected);
      }
}

TEST_CASE("an evaluation before changes nothing in the order of gradients") {
  const Tensor whole = wave({2, 6, 3}, 0.7);
  const auto order_after = [&](bool evaluation) {
    return on_ranks<std::vector<std::string>>(kRanks, [&](const Group& world) {
      Divided d(world, whole, {.sequence = true});
      if (evaluation) {
        const NoGradGuard no_grad;  // conversions return their inputs, whose nodes must not be marked
        d.net(d.x);
      }
      std::vector<std::string> order;
      for (const auto& [name, p] : d.net.named_parameters())
        p->register_hook([&order, n = name](const Tensor&) {
          order.push_back(n);
          return Tensor();
        });
      d.net(d.x).square().sum().backward();
      return order;
    })[0];
  };
  const std::vector<std::string> order = order_after(false);
  CHECK(order.size() == Net().named_parameters().size());
  CHECK(order_after(true) == order);
}

TEST_CASE("gradients of gradients go through chunks") {
  const Tensor whole = wave({2, 5, 3}, 0.7);
  // The gradient of the squared gradients of the input.
  const auto penalty = [](Net& net, const Tensor& x) {
    const Tensor dx =
        autograd::grad({net(x).square().sum()}, {x}, autograd::GradOptions{.create_graph = true})[0];
    dx.square().sum().backward();
  };
  Net one;
  const Tensor leaf = whole.clone().set_requires_grad(true);
  penalty(one, leaf);
  const Gradients expected = gradients_of(one);
  for (const int chunks : {0, 3})
    on_ranks<int>(kRanks, [&](const Group& world) {
      Divided d(world, whole, {.sequence = true, .chunks = chunks});
      const PlacementCheck off(false);
      penalty(d.net, d.x);
      const std::string what = concat({"chunks ", chunks});
      for (const auto& [name, p] : d.net.named_parameters()) {
        const Tensor& g = expected.at(name);
        require(p.grad().defined() == g.defined(), what, ": ", name, " has a gradient, or has none");
        if (g.defined()) require(distance(p.grad(), p.layout()->boxes(0).of(g)) < 1e-10, what, ": ", name);
      }
      require(distance(d.x.grad(), part_of(leaf.grad(), d.tensor)) < 1e-10, what, ": the input");
      return 0;
    });
}

TEST_CASE("some layers need no gradient, and others take other inputs than their module's") {
  struct Two : nn::Module {
    nn::Linear& q = add<nn::Linear>("q", {.in_features = 3, .out_features = 4});
    nn::Linear& k = add<nn::Linear>("k", {.in_features = 3, .out_features = 4});
    nn::Linear& o = add<nn::Linear>("o", {.in_features = 4, .out_features = 3});
    Two() {
      to(DType::f64);
      test::fill_by_formula(*this);
    }
    // The module reads its input, and a layer takes what is computed from it.
    Tensor forward(const Tensor& x) override { return o(q(x) * k(x * x + 1)); }
  };
  const TensorPlan plan{{{"", Style::input}, {"q", Style::column}, {"k", Style::column}, {"o", Style::row}}};
  const Tensor whole = wave({2, 7, 3}, 0.3);
  for (const std::string frozen : {"", "q", "o", "k", "x"}) {
    const auto freeze = [&](Two& net, const Tensor& x) {
      for (const auto& [name, p] : net.named_parameters())
        if (!frozen.empty() && name.starts_with(frozen)) p.requires_grad_(false);
      return x.set_requires_grad(frozen != "x");
    };
    Two one;
    const Tensor leaf = freeze(one, whole.clone());
    const Tensor y = one(leaf);
    for (int i = 0; i < 2; ++i) one(leaf).square().sum().backward();
    on_ranks<int>(kRanks, [&](const Group& world) {
      Mesh mesh = mesh_of(world, kRanks);
      const Axis tensor = mesh["tensor"];
      Two net;
      tensor_parallel(net, tensor, plan, {.sequence = true, .chunks = 2});
      const Tensor x = freeze(net, part_of(whole, tensor));
      set_placement(x, tensor, Placement::sharded(1));
      const std::string what = "frozen: " + frozen;
      for (int i = 0; i < 2; ++i) {  // the second call knows that k takes another input
        const Tensor own = net(x);
        require(distance(own, part_of(y, tensor)) < 1e-12, what, ": the result");
        own.square().sum().backward();
      }
      std::size_t i = 0;
      for (const auto& [name, p] : net.named_parameters()) {
        const Tensor g = one.named_parameters().at(i++).second.grad();
        require(p.grad().defined() == g.defined(), what, ": ", name);
        if (g.defined()) require(distance(p.grad(), p.layout()->boxes(0).of(g)) < 1e-10, what, ": ", name);
      }
      if (frozen != "x") require(distance(x.grad(), part_of(leaf.grad(), tensor)) < 1e-10, what, ": x");
      const NoGradGuard no_grad;
      require(distance(net(x), part_of(y, tensor)) < 1e-12, what, ": an evaluation");
      return 0;
    });
  }
}

TEST_CASE("chunks have the values of whole products under autocast") {
  const Tensor whole = wave({2, 8, 3}, 0.7).to(DType::f32);
  const auto run = [&](int chunks) {
    return on_ranks<std::vector<Tensor>>(kRanks, [&](const Group& world) {
      Divided d(world, whole, {.sequence = true, .chunks = chunks});
      d.net.to(DType::f32);
      Tensor y;
      {
        const AutocastGuard autocast(DType::bf16);
        y = d.net(d.x);
      }
      y.to(DType::f32).square().sum().backward();
      std::vector<Tensor> all{y.detach(), d.x.grad()};
      for (const nn::Parameter& p : d.net.parameters()) all.push_back(p.grad());
      return all;
    });
  };
  const auto plain = run(0), cut = run(4);
  for (int r = 0; r < kRanks; ++r)
    for (std::size_t i = 0; i < plain[0].size(); ++i) {
      INFO("rank " << r << ", tensor " << i);
      CHECK(cut[r][i].dtype() == plain[r][i].dtype());
      // A sum in another order may round to the other side, which is 2^-8 of an element: once in each of the
      // two blocks, and once in what is compared.
      CHECK(distance(cut[r][i].to(DType::f64), plain[r][i].to(DType::f64)) < 3 * 0x1p-8);
    }
}

TEST_CASE("backward posts the gradient of an input before the gradients of weights are computed") {
  const Tensor whole = wave({2, 8, 3}, 0.7);
  for (const TensorParallelOptions& form : kForms) {
    const auto orders = on_ranks<std::vector<std::string>>(kRanks, [&](const Group& world) {
      Divided d(world, whole, form);
      // What has happened in backward: gradients of weights, and collectives.
      std::vector<std::string> order;
      std::size_t seen = 0;
      const auto note_posts = [&] {
        const std::size_t posts = d.tensor.group()->recorder().records().size();
        for (; seen < posts; ++seen) order.push_back("post");
      };
      const Tensor y = d.net(d.x);
      std::vector<HookHandle> hooks;
      for (const auto& [name, p] : d.net.named_parameters())
        if (name.find("weight") != name.npos && name.starts_with("mlp"))
          hooks.push_back(p->register_hook([&, n = name](const Tensor&) {
            note_posts();
            order.push_back(n);
            return Tensor();
          }));
      note_posts();
      order.clear();
      y.square().sum().backward();
      note_posts();
      return order;
    });
    INFO(name_of_form(form));
    CHECK(orders[0] == orders[1]);  // hooks may post on other groups
    const std::vector<std::string>& order = orders[0];
    const auto at = [&](const char* name) {
      return std::find(order.begin(), order.end(), name) - order.begin();
    };
    const auto posts_before = [&](const char* name) {
      return std::count(order.begin(), order.begin() + at(name), "post");
    };
    // The gradient of the input of mlp2's a and b is posted before the gradients of all three weights are
    // computed.
    const int chunks = form.chunks == 0 ? 1 : std::min<int>(form.chunks, 4);
    const int before = form.sequence ? chunks + 1 : 0;  // of the row layer's gradient, and of its bias
    CHECK(posts_before("mlp2.c.weight") == before + chunks);
    CHECK(posts_before("mlp2.b.weight") >= before + chunks);
    CHECK(at("mlp2.c.weight") < at("mlp2.b.weight"));
    // mlp1 posts after mlp2, and before its own weights too.
    REQUIRE(std::count(order.begin(), order.end(), "mlp1.a.weight") == 1);
    CHECK(posts_before("mlp1.a.weight") >= 2 * (before + chunks));
  }
}

TEST_CASE("chunks move the bytes of whole products, in more calls") {
  const Tensor whole = wave({2, 8, 3}, 0.7);
  const auto sent = [&](int chunks) {
    return on_ranks<ConversionTraffic::Counts>(kRanks, [&](const Group& world) {
      Mesh mesh = mesh_of(world, kRanks);
      Net net;
      const TensorParallel divided =
          tensor_parallel(net, mesh["tensor"], kPlan, {.sequence = true, .chunks = chunks});
      const Tensor x = part_of(whole, mesh["tensor"]).set_requires_grad(true);
      set_placement(x, mesh["tensor"], Placement::sharded(1));
      net(x).sum().backward();
      return divided.sent();
    })[0];
  };
  const ConversionTraffic::Counts plain = sent(0), cut = sent(2);
  using Kind = ConversionTraffic::Kind;
  for (const Kind kind : {Kind::all_gather, Kind::reduce_scatter}) {
    CHECK(plain.of(kind).calls == 4);
    CHECK(cut.of(kind).calls == 8);
    CHECK(cut.of(kind).bytes == plain.of(kind).bytes);
  }
  CHECK(cut.of(Kind::all_reduce).bytes == plain.of(Kind::all_reduce).bytes);
}

TEST_CASE("chunks without a divided sequence are refused on all ranks") {
  on_ranks<int>(kRanks, [&](const Group& world) {
    Mesh mesh = mesh_of(world, kRanks);
    for (const TensorParallelOptions& wrong :
         {TensorParallelOptions{.chunks = 2}, TensorParallelOptions{.sequence = true, .chunks = -1}}) {
      Net net;
      std::string error;
      try {
        tensor_parallel(net, mesh["tensor"], kPlan, wrong);
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find(wrong.chunks < 0 ? "chunks is -1" : "set sequence") != std::string::npos, error);
    }
    return 0;
  });
}
