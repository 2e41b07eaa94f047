// Tests default_collate() and the batches of loaders whose samples are pairs, tuples, containers and structs.
#include "tapestry/data/batch.h"

#include <memory>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/data/dataloader.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

/// A tensor of these sizes with the elements first, first + 1, ...
Tensor counting(const Shape& sizes, float first) {
  const Tensor t = empty(sizes);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = first + static_cast<float>(i);
  return t;
}

template <class T>
std::vector<T> values(const Tensor& t) {
  return std::vector<T>(t.data<T>(), t.data<T>() + t.numel());
}

struct Boxes {
  Tensor corners;
  std::vector<Tensor> masks;
};
struct Scene {
  Tensor image;
  Boxes boxes;
  std::pair<Tensor, Tensor> eyes;
  std::map<std::string, Tensor> extras;
  std::optional<Tensor> depth;
};
struct Labelled {
  Tensor image;
  int label;
};
struct Opaque {
  std::shared_ptr<Tensor> hidden;
};

Scene scene(float at) {
  return {counting({2}, at),
          {counting({3}, at + 10), {counting({1}, at + 20), counting({2}, at + 30)}},
          {counting({1}, at + 40), counting({1, 2}, at + 50)},
          {{"a", counting({1}, at + 60)}, {"b", counting({1}, at + 70)}},
          counting({1}, at + 80)};
}

template <class E>
class Made : public Dataset<E> {
 public:
  Made(std::int64_t size, std::function<E(std::int64_t)> make) : size_(size), make_(std::move(make)) {}
  std::int64_t size() const override { return size_; }
  E get(std::int64_t index) const override { return make_(index); }

 private:
  std::int64_t size_;
  std::function<E(std::int64_t)> make_;
};

static_assert(std::is_same_v<batch_of<std::pair<Tensor, int>>, std::pair<Tensor, Tensor>>);
static_assert(std::is_same_v<batch_of<Scene>, Scene>);
static_assert(std::is_same_v<batch_of<std::vector<std::string>>, std::vector<std::vector<std::string>>>);
static_assert(!Collatable<Labelled> && !Collatable<Opaque> && !Collatable<std::pair<Tensor, Opaque>>);
static_assert(!Collatable<std::vector<bool>> && !Collatable<void*>);
static_assert(has_tensors<Scene> && has_tensors<Labelled> && !has_tensors<Opaque> && !has_tensors<int>);
static_assert(has_tensors<std::vector<std::vector<Tensor>>> && !has_tensors<std::vector<int>>);
static_assert(has_tensors<std::tuple<int, std::array<Tensor, 2>>> && !has_tensors<std::tuple<>>);

}  // namespace

TEST_CASE("default_collate stacks numbers into the dtypes of PyTorch") {
  const Tensor i = default_collate(std::vector<std::int16_t>{3, -4});
  CHECK(i.dtype() == DType::i64);
  CHECK(values<std::int64_t>(i) == std::vector<std::int64_t>{3, -4});
  CHECK(values<float>(default_collate(std::vector<float>{0.1f})) == std::vector<float>{0.1f});
  CHECK(values<double>(default_collate(std::vector<double>{0.1, 2})) == std::vector<double>{0.1, 2});
  CHECK(values<bool>(default_collate(std::vector<bool>{true, false, true})) ==
        std::vector<bool>{true, false, true});
  CHECK_THROWS_WITH(default_collate(std::vector<std::uint64_t>{1, ~std::uint64_t{0}}),
                    ContainsSubstring("18446744073709551615 does not fit in int64"));
}

TEST_CASE("default_collate stacks pairs, tuples, arrays, lists, maps and structs") {
  const auto [images, labels] = default_collate(
      std::vector<std::pair<Tensor, int>>{{counting({2, 2}, 0), 7}, {counting({2, 2}, 4), 9}});
  CHECK(images.sizes() == Shape{2, 2, 2});
  CHECK(values<float>(images) == values<float>(counting({8}, 0)));
  CHECK(values<std::int64_t>(labels) == std::vector<std::int64_t>{7, 9});

  using Triple = std::tuple<Tensor, std::string, std::array<double, 2>>;
  const auto [t, names, numbers] =
      default_collate(std::vector<Triple>{{counting({1}, 5), "a", {1, 2}}, {counting({1}, 6), "b", {3, 4}}});
  CHECK(t.sizes() == Shape{2, 1});
  CHECK(names == std::vector<std::string>{"a", "b"});
  CHECK(values<double>(numbers[1]) == std::vector<double>{2, 4});

  const auto lists = default_collate(std::vector<std::vector<float>>{{1, 2, 3}, {4, 5, 6}});
  REQUIRE(lists.size() == 3);
  CHECK(values<float>(lists[2]) == std::vector<float>{3, 6});

  const Scene both = default_collate(std::vector<Scene>{scene(0), scene(100)});
  CHECK(values<float>(both.image) == std::vector<float>{0, 1, 100, 101});
  CHECK(both.boxes.corners.sizes() == Shape{2, 3});
  CHECK(values<float>(both.boxes.masks[1]) == std::vector<float>{30, 31, 130, 131});
  CHECK(values<float>(both.eyes.first) == std::vector<float>{40, 140});
  CHECK(both.eyes.second.sizes() == Shape{2, 1, 2});
  CHECK(values<float>(both.extras.at("b")) == std::vector<float>{70, 170});
  CHECK(values<float>(both.depth.value()) == std::vector<float>{80, 180});
  CHECK_FALSE(default_collate(std::vector<std::optional<int>>{{}, {}}).has_value());
}

TEST_CASE("default_collate names the sample and the part that differ") {
  CHECK_THROWS_WITH(default_collate(std::vector<std::pair<int, Tensor>>{{1, zeros({2})}, {1, zeros({3})}}),
                    ContainsSubstring("sample 1 of the batch is float32 [3]") &&
                        ContainsSubstring("(in part 1 of the samples)"));
  CHECK_THROWS_WITH(default_collate(std::vector<std::vector<int>>{{1}, {1, 2}}),
                    ContainsSubstring("a list of 2 elements and sample 0 has 1"));
  using Map = std::map<std::string, int>;
  for (const Map& other : {Map{{"a", 1}}, Map{{"a", 1}, {"c", 1}}, Map{{"a", 1}, {"b", 1}, {"c", 1}}})
    CHECK_THROWS_WITH(default_collate(std::vector<Map>{{{"a", 1}, {"b", 1}}, other}),
                      ContainsSubstring("sample 1 of the batch has other keys"));
  CHECK_THROWS_WITH(default_collate(std::vector<std::optional<int>>{1, {}}),
                    ContainsSubstring("sample 1 has no value and sample 0 has one") ||
                        ContainsSubstring("has no value and sample 0 has one"));
  CHECK_THROWS_AS(default_collate(std::vector<Tensor>()), ValueError);
}

TEST_CASE("a loader makes batches of pairs and structs with any number of workers") {
  for (const int workers : {0, 2}) {
    DataLoader pairs(
        Made<std::pair<Tensor, std::int64_t>>(5, [](std::int64_t i) { return std::pair(zeros({2}), i); }),
        {.batch_size = 2, .num_workers = workers});
    std::vector<std::int64_t> labels;
    for (auto& [input, label] : pairs) {
      CHECK(input.sizes() == Shape{label.size(0), 2});
      for (const std::int64_t value : values<std::int64_t>(label)) labels.push_back(value);
    }
    CHECK(labels == std::vector<std::int64_t>{0, 1, 2, 3, 4});

    DataLoader scenes(Made<Scene>(3, [](std::int64_t i) { return scene(static_cast<float>(i)); }),
                      {.batch_size = 3,
                       .num_workers = workers,
                       .transforms = {[](Scene& batch, const BatchContext& context) {
                         CHECK(context.indices.size() == 3);
                         batch.depth = std::nullopt;
                       }}});
    for (Scene& batch : scenes) {
      CHECK(batch.boxes.corners.sizes() == Shape{3, 3});
      CHECK_FALSE(batch.depth.has_value());
    }
  }
  DataLoader<Labelled, std::vector<Labelled>> kept(
      Made<Labelled>(2,
                     [](std::int64_t i) {
                       return Labelled{zeros({1}), static_cast<int>(i)};
                     }),
      {.batch_size = 2});
  for (const std::vector<Labelled>& batch : kept) CHECK(batch.at(1).label == 1);
}

TEST_CASE("a loader copies every tensor of a struct to the device ahead of its use") {
  tapestry::testing::FakeGpus gpus;
  const Device device{DeviceType::cuda, 1};
  DataLoader scenes(Made<Scene>(6, [](std::int64_t i) { return scene(static_cast<float>(i)); }),
                    {.batch_size = 2, .num_workers = 1, .prefetch = 2, .device = device});
  std::int64_t at = 0;
  for (Scene& batch : scenes) {
    std::vector<float> seen(10);
    const Stream stream = current_stream(device);
    const Tensor parts[] = {batch.image, batch.boxes.masks[1], batch.eyes.second, batch.extras.at("a"),
                            *batch.depth};
    for (const Tensor& part : parts) CHECK(part.device() == device);
    gpus.launch(stream, [&] {
      for (std::size_t i = 0; i < 5; ++i) seen[i] = parts[i].data<float>()[0];
    });
    stream.synchronize();
    const float first = static_cast<float>(at);
    CHECK(std::vector<float>(seen.begin(), seen.begin() + 5) ==
          std::vector<float>{first, first + 30, first + 50, first + 60, first + 80});
    at += 2;
  }
  CHECK(at == 6);
}
