// The stages of a Pipeline compute on threads of their own, in the autocast state of the caller. So do the
// replicas of DataParallel.
#include <mutex>

#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tests/pipeline/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct Low : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 4, .out_features = 6});
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 6, .out_features = 2});
  Low() { fill_by_formula(*this); }
  Tensor forward(const Tensor& x) override {
    const Tensor h = first(x);
    {
      const std::lock_guard lock(mutex);
      seen.push_back(h.dtype());
    }
    return second(h.tanh());
  }
  std::mutex mutex;
  std::vector<DType> seen;
};

std::vector<std::vector<double>> gradients(const nn::Module& net) {
  std::vector<std::vector<double>> all;
  for (const nn::Parameter& p : net.parameters()) {
    CHECK(p->grad().dtype() == DType::f32);
    all.push_back(to_vector(p->grad()));
  }
  return all;
}
void check_close(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t p = 0; p < a.size(); ++p)
    for (std::size_t i = 0; i < a[p].size(); ++i)
      CHECK(a[p][i] == Approx(b[p][i]).epsilon(0.03).margin(0.01));
}
Tensor loss_of(const Tensor& y, const Tensor& target) { return mse_loss(y, target); }

}  // namespace

TEST_CASE("autocast: stages and replicas compute in the dtype of their caller's guard") {
  const Tensor x = sin(arange(32, DType::f32) * 0.7).reshape({8, 4}),
               target = cos(arange(16, DType::f32)).reshape({8, 2});
  Low single, piped, copied;
  {
    const AutocastGuard guard(DType::bf16);
    loss_of(single(x), target).backward();
  }
  const auto expected = gradients(single);

  DType of_stage = DType::i8, of_last = DType::i8;
  Pipeline pipeline({{[&](const Tensor& t) {
                        const Tensor h = piped.first(t);
                        of_stage = h.dtype();
                        return h;
                      },
                      "cpu:0",
                      {piped.first}},
                     {[&](const Tensor& h) {
                        const Tensor y = piped.second(h.tanh());
                        of_last = y.dtype();
                        return y;
                      },
                      "cpu:1",
                      {piped.second}}},
                    {.micro_batches = 2});
  {
    const AutocastGuard guard(DType::bf16);
    pipeline.forward_backward(x, target, loss_of);
  }
  CHECK(of_stage == DType::bf16);
  CHECK(of_last == DType::bf16);
  check_close(gradients(piped), expected);

  DataParallel replicated(copied, std::vector<Device>{"cpu:0", "cpu:1"});
  {
    const AutocastGuard guard(DType::bf16);
    loss_of(replicated(x), target).backward();
  }
  CHECK(copied.seen == std::vector<DType>{DType::bf16, DType::bf16});
  check_close(gradients(copied), expected);
  pipeline.forward_backward(x, target, loss_of);
  CHECK(of_stage == DType::f32);
}
