// Tests scatter, replicate, apply and gather, each alone and all together.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tapestry/core/internal/worker.h"
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {
const std::vector<Device> kTwo{"cpu:0", "cpu:1"}, kFour{"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
using Sizes = std::vector<std::int64_t>;
}  // namespace

TEST_CASE("chunk sizes differ by at most one, the larger ones first") {
  CHECK(chunk_sizes(8, 4) == Sizes{2, 2, 2, 2});
  CHECK(chunk_sizes(7, 4) == Sizes{2, 2, 2, 1});
  CHECK(chunk_sizes(9, 4) == Sizes{3, 2, 2, 2});
  CHECK(chunk_sizes(2, 4) == Sizes{1, 1});
  CHECK(chunk_sizes(1, 1) == Sizes{1});
  CHECK(chunk_sizes(0, 4) == Sizes{0});
  CHECK_THROWS_AS(chunk_sizes(3, 0), ValueError);
}

TEST_CASE("scatter and gather do not write to the tensors behind references") {
  Tensor x = wave({5, 2}, 0), y = wave({5}, 1);
  const auto before = std::pair(to_vector(x), to_vector(y));
  const auto parts = scatter(std::tie(x, y), kTwo);
  CHECK(to_vector(std::get<1>(parts[1])) == to_vector(y.narrow(0, 3, 2)));
  const auto joined = gather(std::vector{std::tie(x, y), std::tie(x, y)}, kTwo[0]);
  CHECK(std::get<0>(joined).sizes() == Shape{10, 2});
  using List = std::vector<std::tuple<Tensor&>>;
  CHECK_THROWS_WITH(scatter(List{x, y}, kTwo), ContainsSubstring("[scatter] a batch has references"));
  CHECK_THROWS_WITH(gather(std::vector<List>(1, List{x, y}), kTwo[0]),
                    ContainsSubstring("[gather] a batch has references"));
  CHECK(std::pair(to_vector(x), to_vector(y)) == before);
}

TEST_CASE("scatter splits the tensors in structs, containers and tuples") {
  struct Inner {
    std::optional<Tensor> maybe;
    std::string name;
  };
  struct Batch {
    Tensor x;
    std::vector<Tensor> list;
    std::map<std::string, Tensor> map;
    std::pair<Tensor, int> pair;
    std::tuple<Inner, std::array<Tensor, 1>> more;
    Whole table;
    Tensor scalar, absent;
  };
  const Tensor x = wave({5, 2}, 0), table = wave({7}, 1);
  const Batch batch{x, {x * 2}, {{"y", x.select(1, 0)}}, {x, 3}, {{x, "n"}, {x}}, {table}, wave({}, 2), {}};
  const std::vector<Batch> parts = scatter(batch, kTwo);
  REQUIRE(parts.size() == 2);
  for (std::size_t r = 0; r < 2; ++r) {
    const Batch& p = parts[r];
    const std::int64_t begin = r == 0 ? 0 : 3, count = r == 0 ? 3 : 2;
    const std::vector<double> rows = to_vector(x.narrow(0, begin, count));
    CHECK(p.x.device() == kTwo[r]);
    CHECK(to_vector(p.x) == rows);
    CHECK(to_vector(p.list[0]) == to_vector(x.narrow(0, begin, count) * 2));
    CHECK(p.map.at("y").sizes() == Shape{count});
    CHECK(to_vector(p.pair.first) == rows);
    CHECK(p.pair.second == 3);
    CHECK(to_vector(*std::get<0>(p.more).maybe) == rows);
    CHECK(std::get<0>(p.more).name == "n");
    CHECK(to_vector(std::get<1>(p.more)[0]) == rows);
    CHECK(p.table.tensor.device() == kTwo[r]);
    CHECK(to_vector(p.table.tensor) == to_vector(table));
    CHECK(p.scalar.device() == kTwo[r]);
    CHECK_FALSE(p.absent.defined());
  }
  CHECK(scatter(x, kFour).size() == 4);
  CHECK(scatter(wave({3, 1}, 0), kFour).size() == 3);
  CHECK(scatter(wave({0, 1}, 0), kFour).size() == 1);
}

TEST_CASE("scatter refuses batches without samples or with different numbers of them") {
  CHECK_THROWS_WITH(scatter(std::pair(wave({3, 2}, 0), wave({4}, 0)), kTwo),
                    ContainsSubstring("[scatter] the batch has tensors of 3 and 4 samples"));
  CHECK_THROWS_WITH(scatter(std::pair(wave({3, 2}, 0), wave({4}, 0)), kTwo), ContainsSubstring("Whole{"));
  CHECK_THROWS_WITH(scatter(wave({}, 0), kTwo), ContainsSubstring("no tensor to split"));
  CHECK_THROWS_WITH(scatter(3, kTwo), ContainsSubstring("no tensor to split"));
  CHECK_THROWS_WITH(scatter(wave({3}, 0), std::vector<Device>{}), ContainsSubstring("no devices"));
  CHECK_THROWS_WITH(scatter(wave({3}, 0), std::vector<Device>{"cpu:1", "cpu:1"}),
                    ContainsSubstring("cpu:1 is named twice"));
  CHECK_THROWS_AS(scatter(wave({3}, 0), std::vector<Device>{"cpu:9"}), DeviceError);
}

TEST_CASE("gather concatenates along the first dimension and stacks numbers into a vector") {
  struct Output {
    Tensor y, loss, absent;
    std::string note;
  };
  const std::vector<Output> parts{{wave({3, 2}, 0), wave({}, 1), {}, "first"},
                                  {wave({2, 2}, 5).to("cpu:1"), wave({}, 2).to("cpu:1"), {}, "second"}};
  const Output joined = gather(parts, "cpu:2");
  CHECK(joined.y.device() == Device("cpu:2"));
  CHECK(joined.y.sizes() == Shape{5, 2});
  CHECK(to_vector(joined.y.narrow(0, 3, 2)) == to_vector(wave({2, 2}, 5)));
  CHECK(to_vector(joined.loss) == std::vector{to_vector(wave({}, 1))[0], to_vector(wave({}, 2))[0]});
  CHECK_FALSE(joined.absent.defined());
  CHECK(joined.note == "first");
  const std::vector<std::vector<Tensor>> uneven{{wave({2}, 0)}, {}}, kinds{{wave({2}, 0)}, {wave({}, 0)}},
      absent{{wave({2}, 0)}, {Tensor()}};
  CHECK_THROWS_WITH(gather(uneven, kCPU), ContainsSubstring("chunks have 1 and 0 tensors"));
  CHECK_THROWS_WITH(gather(kinds, kCPU), ContainsSubstring("return the same dtype and number of dimensions"));
  CHECK_THROWS_WITH(gather(absent, kCPU), ContainsSubstring("undefined in another"));
  CHECK_THROWS_WITH(gather(std::vector<Tensor>{}, kCPU), ContainsSubstring("nothing to gather"));
}

TEST_CASE("gather joins map entries with equal keys and refuses different keys") {
  struct Scores {
    int note;
    std::optional<std::tuple<std::map<std::string, Tensor>, std::vector<bool>>> more;
  };
  using Part = std::vector<std::pair<Scores, Whole>>;
  const Tensor x = wave({2}, 0);
  const auto part = [&](const std::string& key) {
    return Part{{Scores{1, {{{{"a", x}, {key, x * 2}}, {true}}}}, Whole{x}}};
  };
  const Part joined = gather(std::vector<Part>{part("b"), part("b")}, kCPU);
  CHECK(std::get<0>(*joined[0].first.more).at("b").sizes() == Shape{4});
  CHECK_THROWS_WITH(gather(std::vector<Part>{part("b"), part("c")}, kCPU),
                    ContainsSubstring("[gather] replicas returned maps with different keys"));
  struct Named : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 2, .out_features = 2});
    using nn::Module::forward;
    std::map<std::string, Tensor> forward(const Tensor& y, bool same) {
      return {{same || current_context().replica == 0 ? "a" : "b", fc(y)}};
    }
  } net;
  DataParallel dp(net, {0, 1});
  CHECK(dp(ones({3, 2}), true).at("a").sizes() == Shape{3, 2});
  CHECK_THROWS_WITH(dp(ones({3, 2}), false), ContainsSubstring("maps with different keys"));
  dp(ones({3, 2}), true).at("a").sum().backward();
  CHECK(net.fc.bias->grad().sum().item() == 6);
}

TEST_CASE("replicate gives each device its own leaves, and unreplicate removes them") {
  SharedAndUnused net;
  replicate(net, kFour);
  CHECK(net.first.weight.replicas() == 4);
  CHECK(net.second.weight.is_same(net.first.weight));
  for (int r = 0; r < 4; ++r) {
    const Tensor& t = net.first.weight.replica(r);
    CHECK(t.device() == kFour[static_cast<std::size_t>(r)]);
    CHECK(t.is_leaf());
    CHECK(t.requires_grad());
    CHECK_FALSE(net.frozen.weight.replica(r).requires_grad());
    CHECK(to_vector(t) == to_vector(net.first.weight.replica(0)));
  }
  // If replicate() is called again with the same devices, it must keep the replicas and copy only the values.
  const Tensor second = net.first.weight.replica(1);
  net.first.weight->detach().fill_(7);
  replicate(net, kFour);
  CHECK(net.first.weight.replica(1).is_same(second));
  CHECK(second.max().item() == 7);
  CHECK(second.min().item() == 7);
  // If replicate() runs in inference mode with other devices, the new replicas must still be trainable.
  {
    const InferenceMode inference;
    replicate(net, std::vector<Device>{"cpu:2", "cpu:3"});
  }
  on_replicas(std::vector<Device>{"cpu:2", "cpu:3"}, [&](int) { net(ones({2, 5})).sum().backward(); });
  CHECK(net.first.weight.replica(1).grad().defined());
  CHECK(net.first.weight.replicas() == 2);
  CHECK(net.first.weight->device() == Device("cpu:2"));
  CHECK(net.first.weight->requires_grad());
  unreplicate(net);
  CHECK(net.first.weight.replicas() == 1);
  CHECK_THROWS_AS(replicate(net, std::vector<Device>{"cpu:0", "cpu:7"}), DeviceError);
  CHECK(net.first.weight.replicas() == 1);
}

TEST_CASE("the four steps are recorded and give the gradients of one device") {
  ManyInAndOut net;
  net.to(DType::f64);
  fill_by_formula(net);
  const Tensor a = wave({7, 3}, 1).set_requires_grad(), b = wave({7, 6}, 2),
               shift = wave({2}, 1).set_requires_grad();
  const auto loss_of = [](const ManyInAndOut::Output& out) {
    return (std::get<0>(out) * wave({7, 2}, 9)).sum() + std::get<1>(out).at("hidden")[1].sum();
  };
  loss_of(net.forward({a, b}, shift, 3)).backward();
  const Tensor weight = net.left.weight->grad(), ga = a.grad(), gs = shift.grad();
  net.zero_grad();
  a.zero_grad();
  shift.zero_grad();

  const auto parts = scatter(std::tuple(std::pair(a, b), Whole{shift}, 3), kFour);
  replicate(net, kFour);
  const auto outputs = apply(net, parts, kFour);
  REQUIRE(outputs.size() == 4);
  CHECK(std::get<0>(outputs[3]).device() == Device("cpu:3"));
  loss_of(gather(outputs, kFour[0])).backward();
  Tensor sum = net.left.weight.replica(0).grad();
  for (int r = 1; r < 4; ++r) sum = sum + net.left.weight.replica(r).grad().to(kCPU);
  CHECK(allclose(sum, weight, 1e-12, 1e-14));
  CHECK(allclose(a.grad(), ga, 1e-12, 1e-14));
  CHECK(allclose(shift.grad(), gs, 1e-12, 1e-14));
  CHECK_THROWS_WITH(apply(net, parts, std::span(kFour).first(2)), ContainsSubstring("4 parts for 2 devices"));
}

TEST_CASE("replicas run on their devices' workers, and an error names its device") {
  std::vector<std::string> seen(4);
  on_replicas(kFour, [&](int r) {
    const Context& context = current_context();
    check(context.replica == r && device_worker(kFour[static_cast<std::size_t>(r)]).is_current(),
          "elsewhere");
    seen[static_cast<std::size_t>(r)] = zeros({1}).device().str();
  });
  CHECK(seen == std::vector<std::string>{"cpu:0", "cpu:1", "cpu:2", "cpu:3"});
  CHECK(current_context().replica == 0);

  int ended = 0;
  const auto fail_on = [&](int bad, auto error) {
    std::atomic<int> count{0};
    try {
      on_replicas(kFour, [&](int r) {
        ++count;
        if (r == bad) throw error;
      });
    } catch (...) {
      ended = count;
      throw;
    }
  };
  CHECK_THROWS_WITH(fail_on(2, IndexError("[op] out of range")), "[op] out of range (on cpu:2)");
  CHECK(ended == 4);
  CHECK_THROWS_AS(fail_on(1, IndexError("x")), IndexError);
  CHECK_THROWS_WITH(fail_on(3, std::logic_error("a user's own")), "a user's own (on cpu:3)");
  CHECK_THROWS_AS(fail_on(3, std::logic_error("x")), Error);
  CHECK_THROWS_AS(fail_on(0, 5), int);
  CHECK_THROWS_WITH(on_replicas(kTwo, [&](int) { on_replicas(kTwo, [](int) {}); }),
                    ContainsSubstring("replicas cannot be nested"));
}

TEST_CASE(
    "a replica uses the caller's stream if it belongs to its device, else its device's default stream") {
  const tapestry::testing::FakeGpus gpus(2);
  const std::vector<Device> devices{"cuda:0", "cuda:1"};
  const Stream side = new_stream(devices[1]);
  const StreamGuard guard(side);
  std::vector<Stream> seen(2);
  on_replicas(devices, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    seen[i] = current_stream(devices[i]);
  });
  CHECK(seen[0] == default_stream(devices[0]));
  CHECK(seen[1] == side);
}

TEST_CASE("calls from two threads reach all workers in one order, so that replicas may wait for each other") {
  std::atomic<int> missed{0};
  const auto call_often = [&] {
    for (int i = 0; i < 300 && missed == 0; ++i) {
      std::mutex mutex;
      std::condition_variable all_here;
      int here = 0;
      on_replicas(kFour, [&](int) {
        std::unique_lock lock(mutex);
        if (++here == 4) all_here.notify_all();
        else if (!all_here.wait_for(lock, std::chrono::seconds(10), [&] { return here == 4; })) ++missed;
      });
    }
  };
  std::thread other(call_often);
  call_often();
  other.join();
  CHECK(missed == 0);
}
