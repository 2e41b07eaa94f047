// Hooks may be registered and removed while another thread runs forward or backward.
#include <atomic>
#include <thread>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("hooks of a module may be registered and removed while another thread runs forward") {
  nn::Linear layer({.in_features = 2, .out_features = 2});
  const Tensor x = ones({1, 2});
  std::atomic<int> before{0}, after{0};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    const NoGradGuard no_grad;
    while (!stop) layer(x);
  });
  for (int i = 0; i < 2000; ++i) {
    HookHandle pre = layer.register_forward_pre_hook([&](nn::Module&, std::vector<Tensor>&) { ++before; });
    HookHandle post = layer.register_forward_hook(
        [&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { ++after; });
    while (i % 200 == 0 && (before == 0 || after == 0)) std::this_thread::yield();
    pre.remove();
    post.remove();
  }
  stop = true;
  other.join();
  CHECK(before > 0);
  CHECK(after > 0);
  CHECK_FALSE(layer.has_hooks());
}

TEST_CASE("hooks of a parameter may be registered and removed while another thread runs backward") {
  const Tensor weight = ones({4}).set_requires_grad();
  std::atomic<int> ran{0}, accumulated{0};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) (weight * 2).sum().backward();
  });
  for (int i = 0; i < 2000; ++i) {
    HookHandle hook = weight.register_hook([&](const Tensor&) {
      ++ran;
      return Tensor();
    });
    HookHandle post = weight.register_post_accumulate_grad_hook([&](const Tensor&) { ++accumulated; });
    while (i % 200 == 0 && (ran == 0 || accumulated == 0)) std::this_thread::yield();
    hook.remove();
    post.remove();
  }
  stop = true;
  other.join();
  CHECK(ran > 0);
  CHECK(accumulated > 0);
}
