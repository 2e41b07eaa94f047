// A child process that fork() makes has none of the library's threads. Every operation in it must end, with
// the right values or with an error that says what to do.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "tapestry/core/internal/fork.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/tapestry.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/fork.h"

using namespace tapestry;
using tests::Forked;
using tests::in_fork;

// LeakSanitizer calls this before it looks for leaks. In a child of fork() it would report what only the
// stacks of the parent's threads point to.
static const pid_t kParent = getpid();
extern "C" int __lsan_is_turned_off() { return getpid() != kParent; }

namespace {

// Sets the number of threads until the end of the scope. With one core, the default of one thread would open
// no parallel region.
struct Threads {
  const int saved = get_num_threads();
  explicit Threads(int n) { set_num_threads(n); }
  ~Threads() { set_num_threads(saved); }
};

// The results of the operations that the issue is about: large enough for several threads each.
struct Results {
  Tensor product, gradient, random, image_gradient;
};

Results compute() {
  manual_seed(7);
  const Tensor random = randn({1 << 19});
  const Tensor a = random.narrow(0, 0, 1 << 18).view({512, 512}).clone().set_requires_grad();
  const Tensor product = matmul(a, a);
  product.sum().backward();
  const Tensor images = random.narrow(0, 0, 8 * 3 * 64 * 64).view({8, 3, 64, 64}).clone().set_requires_grad();
  const Tensor weight = random.narrow(0, 0, 16 * 3 * 9).view({16, 3, 3, 3});
  conv2d(images, weight).relu().mean().backward();
  return {product.detach(), a.grad(), random, images.grad()};
}

}  // namespace

TEST_CASE(
    "after parallel regions of the parent, matmul, conv2d, backward and randn work in a child of fork()") {
  const Threads four(4);
  const Results expected = compute();
  const Forked child = in_fork([&]() -> std::string {
    const Results got = compute();
    if (!equal(got.random, expected.random)) return "other random numbers";
    if (!got.product.allclose(expected.product, 1e-4, 1e-3)) return "another product";
    if (!got.gradient.allclose(expected.gradient, 1e-4, 1e-3)) return "another gradient";
    if (!got.image_gradient.allclose(expected.image_gradient, 1e-4, 1e-6))
      return "another gradient of images";
    return "equal, " + std::to_string(get_num_threads()) + " thread";
  });
  CHECK(child.ended);
  CHECK(child.message == "equal, 1 thread");
  CHECK(get_num_threads() == 4);
  CHECK(equal(compute().random, expected.random));  // the parent keeps its threads
}

// `#pragma omp parallel num_threads(4)` as g++ translates it. The tests are not compiled with -fopenmp.
using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
GompParallel gomp_parallel() { return reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel")); }

// In a process of its own, because the library must not have computed with several threads before the fork.
TEST_CASE("child: forks after an OpenMP region of the program", "[.]") {
  std::atomic<int> ran{0};
  gomp_parallel()([](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &ran, 4, 0);
  REQUIRE(ran == 4);
  const Forked child = in_fork([]() -> std::string {
    const Results got = compute();
    return std::to_string(got.product.numel()) + " numbers, " + std::to_string(get_num_threads()) + " thread";
  });
  CHECK(child.ended);
  CHECK(child.message == "262144 numbers, 1 thread");
}
TEST_CASE("child: forks before it has any thread", "[.]") {
  const Forked child = in_fork([]() -> std::string {
    const Results got = compute();
    return std::to_string(got.product.numel()) + " numbers, " + std::to_string(get_num_threads()) +
           " threads";
  });
  CHECK(child.ended);
  CHECK(child.message == "262144 numbers, 4 threads");
}

TEST_CASE("after an OpenMP region of the program itself, a child of fork() computes on one thread") {
  if (!gomp_parallel()) return;  // built without OpenMP
  const ChildResult result =
      run_child("child: forks after an OpenMP region of the program", "OMP_NUM_THREADS=4");
  INFO(result.output);
  CHECK(result.status == 0);
}

TEST_CASE("a child of a process that forks before it has any other thread computes on all threads") {
  const ChildResult result = run_child("child: forks before it has any thread", "OMP_NUM_THREADS=4");
  INFO(result.output);
  CHECK(result.status == 0);
}

TEST_CASE("a child of a child of fork() computes too") {
  const Threads four(4);
  const Results expected = compute();
  const Forked child = in_fork([&]() -> std::string {
    const Forked grandchild = in_fork(
        [&]() -> std::string { return equal(compute().random, expected.random) ? "equal" : "other"; });
    return grandchild.message;
  });
  CHECK(child.message == "equal");
}

#ifndef __SANITIZE_THREAD__  // TSan ends a child of a process with several threads that starts a thread
TEST_CASE("a child of fork() gets device workers of its own, and refuses tasks for those of its parent") {
  DeviceWorker& of_parent = device_worker(kCPU);
  of_parent.run([] {}).get();
  const Forked child = in_fork([&]() -> std::string {
    int ran = 0;
    device_worker(kCPU).run([&] { ++ran; }).get();
    const Device devices[] = {kCPU};
    on_workers(devices, [&](int) { ++ran; });
    if (ran != 2) return "not run";
    of_parent.run([] {});
    return "accepted";
  });
  CHECK(child.ended);
  CHECK_THAT(child.message,
             ContainsSubstring("[device_worker] a task for cpu:0 in a child process of fork()") &&
                 ContainsSubstring("fork before the first operation"));
  CHECK(child.exit_code == 1);
  of_parent.run([] {}).get();
}
#endif

TEST_CASE("a child of fork() that calls exit() does not wait for the threads of its parent") {
  device_worker(kCPU).run([] {}).get();
  const auto began = std::chrono::steady_clock::now();
  const Forked child = in_fork([]() -> std::string { std::exit(0); });
  CHECK(child.ended);
  CHECK(child.exit_code == 0);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(1500));  // a worker is given 2 s
}

#ifndef __SANITIZE_ADDRESS__  // fork() does not wait for the mutexes of AddressSanitizer's own malloc
TEST_CASE("fork() waits for threads that hold a mutex of the allocators, so the child can allocate") {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      const ThreadShare one(1);
      while (!stop) {
        std::vector<Tensor> kept;
        for (int k = 0; k < 200; ++k) kept.push_back(empty({40 * 1024}).set_requires_grad() * 2);
      }
    });
  int ended = 0;
  for (int i = 0; i < 50; ++i)
    ended += in_fork([]() -> std::string {
               for (int k = 0; k < 100; ++k) (empty({40 * 1024}).set_requires_grad() * 2).sum().backward();
               return "";
             }).exit_code == 0;
  stop = true;
  for (std::thread& t : others) t.join();
  CHECK(ended == 50);
}
#endif
