// DistributedDataParallel must detect parameters that one rank alone changed or froze.
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

using distributed_test::Group, distributed_test::on_ranks;

TEST_CASE("every rank names the weights that one rank changed alone") {
  struct Case {
    const char* what;
    int at_pass;
    DdpOptions options = {};
    bool hook = false;
  };
  const std::vector<Case> cases = {{"before the first pass", 0},
                                   {"before the first pass, with static_graph", 0, {.static_graph = true}},
                                   {"later", 3},
                                   {"later, with one bucket per parameter", 3, {.first_bucket_mb = 1e-6}},
                                   {"later, with a hook", 3, {}, true}};
  for (const Case& one : cases) {
    INFO(one.what);
    const auto errors = on_ranks<std::string>(3, [&](const Group& group) -> std::string {
      SmallCnn net;
      net.to(DType::f64);
      fill_by_formula(net);
      const auto [images, labels] = formula_batch(0, group->rank(), 2);
      DdpOptions options = one.options;
      options.process_group = group;
      DistributedDataParallel ddp(net, options);
      if (one.hook) ddp.set_comm_hook(bf16_compress);
      optim::SGD optimizer(net.parameters(), {.lr = 0.05});
      for (int pass = 0; pass <= one.at_pass; ++pass) {
        if (pass == one.at_pass && group->rank() == 1) net.fc.bias->detach().add_(1e-3);
        optimizer.zero_grad();
        try {
          cross_entropy(ddp(images), labels).backward();
        } catch (const ValueError& e) {
          return std::to_string(pass) + " " + e.what();
        }
        optimizer.step();
      }
      return "nothing";
    });
    for (const std::string& error : errors)
      CHECK_THAT(error,
                 ContainsSubstring(std::to_string(one.at_pass) +
                                   " [DistributedDataParallel] the ranks train different weights:"
                                   "\n  fc.bias of rank 1 differs from rank 0's\n  make the same changes"));
  }
}

TEST_CASE("a change that one rank restores before the next pass is not an error") {
  on_ranks<int>(2, [](const Group& group) {
    SmallCnn net;
    net.to(DType::f64);
    fill_by_formula(net);
    const auto [images, labels] = formula_batch(0, group->rank(), 2);
    DistributedDataParallel ddp(net, {.process_group = group});
    optim::SGD optimizer(net.parameters(), {.lr = 0.05});
    for (int pass = 0; pass < 4; ++pass) {
      if (group->rank() == 0) {
        const NoGradGuard no_grad;
        const Tensor before = net.fc.weight->clone();
        net.fc.weight->fill_(1);
        net.fc.weight->copy_(before);
      }
      optimizer.zero_grad();
      cross_entropy(ddp(images), labels).backward();
      optimizer.step();
    }
    return 0;
  });
}

TEST_CASE(
    "the rank that alone froze a parameter names it, and the other ranks throw an error with that rank") {
  const auto errors = on_ranks<std::string>(2, [](const Group& group) -> std::string {
    nn::Linear net({.in_features = 2, .out_features = 1});
    DistributedDataParallel ddp(net, {.process_group = group});
    if (group->rank() == 1) net.weight->set_requires_grad(false);
    try {
      ddp(ones({1, 2})).sum().backward();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  });
  CHECK_THAT(errors[0], ContainsSubstring("rank 1"));
  CHECK_THAT(errors[1], ContainsSubstring("weight is frozen on this rank and trained on another"));
}

namespace {

// Computes x * first + x * second. A pass may leave the second term out.
struct TwoTerms : nn::Module {
  nn::Parameter& first = param("first", full({3}, 2.0, DType::f64));
  nn::Parameter& second = param("second", full({3}, 5.0, DType::f64));
  bool use_second = true;
  Tensor forward(const Tensor& x) override { return use_second ? x * first + x * second : x * first; }
};

}  // namespace

TEST_CASE(
    "a parameter that a pass does not use, after passes that used it, gets no gradient of those passes") {
  struct Case {
    const char* what;
    DdpOptions options;
  };
  const std::vector<Case> cases = {
      {"one bucket", {}},
      {"one bucket per parameter", {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6}},
      {"order kept", {.relearn_order = false}},
      {"unused found late", {.find_unused_parameters = false}}};
  // The ranks that use `second` in each pass: bit r is rank r.
  const std::vector<unsigned> passes{3, 3, 0, 1, 2, 0, 3};
  // Each pass and each rank has another gradient, so that an old one shows.
  const auto value = [](std::size_t pass, int rank) { return 1.0 + static_cast<double>(pass) * 10 + rank; };
  for (const Case& one : cases)
    for (const bool to_none : {true, false}) {
      struct Gradients {
        double first, second;  // 0 if there is no gradient
      };
      const auto results = on_ranks<std::vector<Gradients>>(2, [&](const Group& group) {
        TwoTerms net;
        DdpOptions options = one.options;
        options.process_group = group;
        DistributedDataParallel ddp(net, options);
        std::vector<Gradients> found;
        for (std::size_t pass = 0; pass < passes.size(); ++pass) {
          net.zero_grad(to_none);
          net.use_second = (passes[pass] >> group->rank() & 1) != 0;
          ddp(full({3}, value(pass, group->rank()), DType::f64)).sum().backward();
          const auto element = [](const Tensor& g) { return g.defined() ? g.select(0, 2).item() : 0; };
          found.push_back({element(net.first->grad()), element(net.second->grad())});
        }
        return found;
      });
      for (int rank = 0; rank < 2; ++rank)
        for (std::size_t pass = 0; pass < passes.size(); ++pass) {
          INFO(one.what << (to_none ? ", gradients set to none" : ", gradients set to zero") << ", rank "
                        << rank << ", pass " << pass);
          double wanted = 0;
          for (int r = 0; r < 2; ++r)
            if (passes[pass] >> r & 1) wanted += value(pass, r) / 2;
          const Gradients& got = results[static_cast<std::size_t>(rank)][pass];
          CHECK(got.first == (value(pass, 0) + value(pass, 1)) / 2);
          CHECK(got.second == wanted);
        }
    }
}
