// A program that uses the library's templates after other libraries have defined macros. compilers.cmake
// turns warnings into errors, so the instantiated templates must cause none.
// clang-format off
#define check(x) (x)
#define fail(x) "another library's macro"
#define slots
#define emit
#define signals public
#define foreach for
#define min 1
#define max 2
// clang-format on
#include "tapestry/tapestry.h"
static_assert(min + max == 3 && check(true), "the macros must survive the inclusion");

#undef min
#undef max

using namespace tapestry;

struct Scale : autograd::Function<Scale> {
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x, double factor) {
    ctx.save_for_backward({x});
    ctx.data = factor;
    return x * factor;
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    return {grads[0] * std::any_cast<double>(ctx.data), Tensor()};
  }
};

struct Net : nn::Module {
  nn::Sequential& body = add<nn::Sequential>("body", nn::Linear::Options{.in_features = 4, .out_features = 8},
                                             nn::ReLU::Options{});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 8, .out_features = 3});
  nn::Parameter& scale = param("scale", ones({1}));
  Tensor forward(const Tensor& x) override { return Scale::apply(head(checkpoint(body, x)), 2.0) * scale; }
};

int main() {
  Net net;
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-3});
  data::TensorDataset samples(randn({100, 4}), randint(0, 3, {100}));
  data::DataLoader loader(samples, {.batch_size = 32, .shuffle = true, .num_workers = 2});
  distributed::DataParallel dp(net, {"cpu:0"});
  for (auto& [inputs, labels] : loader) {
    const Tensor loss = dp.loss(std::tie(inputs, labels),
                                [&](const Tensor& x, const Tensor& y) { return cross_entropy(net(x), y); });
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  distributed::Pipeline pipeline({{net.body, "cpu:0"}, {net.head, "cpu:0"}}, {.micro_batches = 2});
  parallel_for(100, 10, [](std::int64_t, std::int64_t) {});
  return (net(randn({3, 4})).max)().item<int>();
}
