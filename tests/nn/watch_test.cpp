// Reads event files and PNG files back with parsers of their own.
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using watch::SummaryWriter;

namespace {

// CRC-32C, bit by bit.
std::uint32_t crc32c(const std::string& bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

template <class T>
T number(const std::string& bytes) {
  T value;
  REQUIRE(bytes.size() == sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// The records of a TFRecord file, whose checksums are checked.
std::vector<std::string> records(const std::string& file) {
  const auto unmasked = [](std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8u;
    return rotated >> 17 | rotated << 15;
  };
  std::vector<std::string> all;
  for (std::size_t at = 0; at < file.size();) {
    const std::string length = file.substr(at, 8);
    const auto size = number<std::uint64_t>(length);
    REQUIRE(at + size + 16 <= file.size());
    CHECK(unmasked(number<std::uint32_t>(file.substr(at + 8, 4))) == crc32c(length));
    all.push_back(file.substr(at + 12, size));
    CHECK(unmasked(number<std::uint32_t>(file.substr(at + 12 + size, 4))) == crc32c(all.back()));
    at += size + 16;
  }
  return all;
}

// The fields of a message: varints as decimal text, others as their bytes.
using Fields = std::multimap<int, std::string>;
Fields fields(const std::string& message) {
  Fields all;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(at < message.size());
      const auto byte = static_cast<unsigned char>(message[at++]);
      value |= std::uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    const int field = static_cast<int>(key >> 3);
    if ((key & 7) == 0) {
      all.emplace(field, std::to_string(static_cast<std::int64_t>(varint())));
      continue;
    }
    const std::size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
    REQUIRE(((key & 7) == 1 || (key & 7) == 2 || (key & 7) == 5));
    REQUIRE(at + size <= message.size());
    all.emplace(field, message.substr(at, size));
    at += size;
  }
  return all;
}
std::string only(const Fields& all, int field) {
  REQUIRE(all.count(field) == 1);
  return all.find(field)->second;
}
std::vector<double> reals(const std::string& packed) {
  std::vector<double> all;
  for (std::size_t at = 0; at < packed.size(); at += 8) all.push_back(number<double>(packed.substr(at, 8)));
  return all;
}

struct Logged {
  std::int64_t step;
  Fields value;
};
// The values of an event file, after its first event, which names the version.
std::vector<Logged> values(const std::string& path) {
  std::vector<Logged> all;
  for (const std::string& record : records(tests::read_file(path))) {
    const Fields event = fields(record);
    CHECK(number<double>(only(event, 1)) > 1.7e9);
    if (event.contains(3)) {
      CHECK(all.empty());
      CHECK(only(event, 3) == "brain.Event:2");
    } else if (event.contains(5)) {
      all.push_back({std::stoll(only(event, 2)), fields(only(fields(only(event, 5)), 1))});
    }
  }
  return all;
}

// The pixels (H, W, C) of a PNG file of our kind.
struct Png {
  std::uint32_t width = 0, height = 0;
  int colour = -1;
  std::vector<int> pixels;
};
Png decode(const std::string& file) {
  Png png;
  REQUIRE(file.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  const auto big = [&](std::size_t at) {
    std::uint32_t v = 0;
    for (std::size_t i = 0; i < 4; ++i) v = v << 8 | static_cast<unsigned char>(file.at(at + i));
    return v;
  };
  std::string data;
  for (std::size_t at = 8; at < file.size();) {
    const std::size_t size = big(at);
    const std::string type = file.substr(at + 4, 4), body = file.substr(at + 4, size + 4);
    CHECK(big(at + 8 + size) ==
          crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
    if (type == "IHDR") png.width = big(at + 8), png.height = big(at + 12), png.colour = file[at + 17];
    if (type == "IDAT") data += file.substr(at + 8, size);
    at += size + 12;
  }
  const std::size_t channels = std::map<int, std::size_t>{{0, 1}, {4, 2}, {2, 3}, {6, 4}}.at(png.colour);
  const std::size_t row = png.width * channels + 1;
  std::vector<Bytef> raw(row * png.height);
  uLongf size = raw.size();
  REQUIRE(uncompress(raw.data(), &size, reinterpret_cast<const Bytef*>(data.data()), data.size()) == Z_OK);
  REQUIRE(size == raw.size());
  for (std::size_t i = 0; i < raw.size(); ++i)
    if (i % row == 0) CHECK(raw[i] == 0);
    else png.pixels.push_back(raw[i]);
  return png;
}

}  // namespace

TEST_CASE("SummaryWriter writes scalars with their steps, tags and times") {
  const tests::TempDir folder;
  std::string path;
  {
    SummaryWriter writer(folder / "deep/run", {.filename_suffix = ".suffix"});
    path = writer.path();
    CHECK(path.starts_with(folder / "deep/run/events.out.tfevents."));
    CHECK(path.ends_with(".suffix"));
    writer.add_scalar("loss", 0.1, 0);
    writer.add_scalar("loss", -1.5, 300);
    writer.add_scalar("loss", std::numeric_limits<double>::quiet_NaN(), -1);
    writer.flush();
    CHECK(values(path).size() == 3);
    writer.add_scalar("deep/\xc3\xa4", 4, std::int64_t(1) << 40);
  }
  const std::vector<Logged> all = values(path);
  REQUIRE(all.size() == 4);
  CHECK(only(all[0].value, 1) == "loss");
  CHECK(number<float>(only(all[0].value, 2)) == 0.1f);
  CHECK(all[0].step == 0);
  CHECK(number<float>(only(all[1].value, 2)) == -1.5f);
  CHECK(all[1].step == 300);
  CHECK(std::isnan(number<float>(only(all[2].value, 2))));
  CHECK(all[2].step == -1);
  CHECK(only(all[3].value, 1) == "deep/\xc3\xa4");
  CHECK(all[3].step == std::int64_t(1) << 40);
}

TEST_CASE("SummaryWriter: histograms have the counts of all finite elements") {
  const tests::TempDir folder;
  SummaryWriter writer(folder / "run");
  const double inf = std::numeric_limits<double>::infinity();
  writer.add_histogram("w", tensor({0.0, 0.0, -1e-13, 0.5, 0.5, -3.0, inf, 1e25}, kFloat64), 2);
  writer.add_histogram("bf16", full({3, 4}, 2.0, kBFloat16), 3);
  CHECK_THROWS_AS(writer.add_histogram("w", full({2}, inf), 3), ValueError);
  writer.flush();
  const std::vector<Logged> all = values(writer.path());
  REQUIRE(all.size() == 2);
  const Fields h = fields(only(all[0].value, 5));
  CHECK(number<double>(only(h, 1)) == -3);
  CHECK(number<double>(only(h, 2)) == 1e25);
  CHECK(number<double>(only(h, 3)) == 7);
  CHECK(number<double>(only(h, 4)) == 1e25 - 2);
  CHECK(number<double>(only(h, 5)) == Approx(1e50));
  const std::vector<double> limits = reals(only(h, 6)), counts = reals(only(h, 7));
  REQUIRE(limits.size() == counts.size());
  // Each value is in the bucket whose limits enclose it.
  const auto count_of = [&](double v) {
    for (std::size_t i = 1; i < limits.size(); ++i)
      if (limits[i - 1] <= v && v < limits[i]) return counts[i];
    return counts.back();
  };
  CHECK(counts.front() == 0);
  CHECK(count_of(-3) == 1);
  CHECK(count_of(-1e-13) == 1);
  CHECK(count_of(0) == 2);
  CHECK(count_of(0.5) == 2);
  CHECK(counts.back() == 1);
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    sum += counts[i];
    if (i > 0) CHECK(limits[i] > limits[i - 1]);
  }
  CHECK(sum == 7);
  const Fields same = fields(only(all[1].value, 5));
  CHECK(reals(only(same, 7)) == std::vector<double>{0, 12});
  CHECK(reals(only(same, 6))[0] <= 2);
  CHECK(reals(only(same, 6))[1] > 2);
}

TEST_CASE("SummaryWriter: texts, images, several scalars, and the step from which a run was resumed") {
  const tests::TempDir folder;
  SummaryWriter writer(folder / "run", {.purge_step = 7});
  writer.add_text("note", "*first*", 7);
  writer.add_image("picture", full({3, 2, 5}, 255, kUInt8), 8);
  writer.add_images("grid", ones({3, 1, 4, 4}), 9);
  writer.add_scalars("loss/all", {{"train", 1.0}, {"test", 2.0}}, 10);
  writer.add_scalars("loss/all", {{"train", 0.5}}, 11);
  writer.flush();
  CHECK(std::stoll(only(fields(only(fields(records(tests::read_file(writer.path()))[1]), 7)), 1)) == 1);
  CHECK(only(fields(records(tests::read_file(writer.path()))[1]), 2) == "7");
  const std::vector<Logged> all = values(writer.path());
  REQUIRE(all.size() == 3);
  CHECK(only(all[0].value, 1) == "note/text_summary");
  CHECK(only(fields(only(fields(only(all[0].value, 9)), 1)), 1) == "text");
  const Fields text = fields(only(all[0].value, 8));
  CHECK(only(text, 1) == "7");
  CHECK(only(text, 8) == "*first*");
  CHECK(only(fields(only(fields(only(text, 2)), 2)), 1) == "1");
  const Fields image = fields(only(all[1].value, 4));
  CHECK(only(image, 1) == "2");
  CHECK(only(image, 2) == "5");
  CHECK(only(image, 3) == "3");
  CHECK(decode(only(image, 4)).pixels == std::vector<int>(30, 255));
  // Two images in the first row and one in the second, with two black pixels between.
  const Png grid = decode(only(fields(only(all[2].value, 4)), 4));
  CHECK(grid.width == 10);
  CHECK(grid.height == 10);
  CHECK(grid.pixels[3] == 255);
  CHECK(grid.pixels[4] == 0);
  CHECK(grid.pixels[6] == 255);
  CHECK(grid.pixels[60 + 3] == 255);
  CHECK(grid.pixels[60 + 6] == 0);
  int files = 0;
  for (const auto& [name, count] : std::map<std::string, std::size_t>{{"train", 2}, {"test", 1}})
    for (const auto& file : std::filesystem::directory_iterator(folder / ("run/loss_all_" + name))) {
      ++files;
      const std::vector<Logged> lines = values(file.path());
      REQUIRE(lines.size() == count);
      CHECK(only(lines[0].value, 1) == "loss/all");
    }
  CHECK(files == 2);
}

TEST_CASE("SummaryWriter: hyperparameters and results of a run") {
  const tests::TempDir folder;
  SummaryWriter writer(folder / "run");
  writer.add_hparams({{"lr", 0.5}, {"layers", 3}, {"model", "cnn"}, {"amp", true}}, {{"accuracy", 0.75}}, 4);
  writer.flush();
  const std::vector<Logged> all = values(writer.path());
  REQUIRE(all.size() == 4);
  const auto plugin = [&](std::size_t i) {
    const Fields data = fields(only(fields(only(all[i].value, 9)), 1));
    CHECK(only(data, 1) == "hparams");
    return fields(only(data, 2));
  };
  CHECK(only(all[0].value, 1) == "_hparams_/experiment");
  const Fields experiment = fields(only(plugin(0), 2));
  CHECK(experiment.count(4) == 4);
  CHECK(only(fields(only(fields(only(experiment, 5)), 1)), 2) == "accuracy");
  std::map<std::string, Fields> params;
  const Fields session = fields(only(plugin(1), 3));
  for (auto [it, end] = session.equal_range(1); it != end; ++it)
    params[only(fields(it->second), 1)] = fields(only(fields(it->second), 2));
  CHECK(number<double>(only(params.at("lr"), 2)) == 0.5);
  CHECK(number<double>(only(params.at("layers"), 2)) == 3);
  CHECK(only(params.at("model"), 3) == "cnn");
  CHECK(only(params.at("amp"), 4) == "1");
  CHECK(only(fields(only(plugin(2), 4)), 1) == "1");
  CHECK(number<float>(only(all[3].value, 2)) == 0.75f);
}

TEST_CASE("SummaryWriter names a folder or file that cannot be written") {
  const tests::TempDir folder;
  tests::write_file(folder / "file", "");
  CHECK_THROWS_WITH(SummaryWriter(folder / "file"), ContainsSubstring(folder / "file"));
  SummaryWriter writer(folder / "run", {.flush_seconds = 0});
  const tests::FileSizeLimit full_disk(64);
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 100; ++i) writer.add_scalar("loss", 1, i);
      }(),
      IoError);
}

TEST_CASE("encode_png keeps the pixels of each number of channels, and clamps floating elements") {
  for (const std::int64_t channels : {1, 2, 3, 4}) {
    const Tensor image = arange(channels * 6).to(kUInt8).reshape({channels, 3, 2});
    const Png png = decode(watch::encode_png(image));
    CHECK(png.width == 2);
    CHECK(png.height == 3);
    CHECK(png.colour == std::map<std::int64_t, int>{{1, 0}, {2, 4}, {3, 2}, {4, 6}}.at(channels));
    const Tensor expected = image.permute({1, 2, 0}).contiguous();
    CHECK(std::equal(png.pixels.begin(), png.pixels.end(), expected.data<std::uint8_t>()));
    CHECK(png.pixels.size() == static_cast<std::size_t>(expected.numel()));
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(decode(watch::encode_png(tensor({{-1.0, 0.5}, {nan, 7.0}}))).pixels ==
        std::vector<int>{0, 128, 0, 255});
  CHECK_THROWS_AS(watch::encode_png(zeros({5, 2, 2})), ValueError);
  CHECK_THROWS_AS(watch::encode_png(zeros({2, 0})), ValueError);
  CHECK_THROWS_AS(watch::encode_png(zeros({2})), ValueError);
  CHECK_THROWS_AS(watch::encode_png(zeros({2, 2}, kInt64)), TypeError);
  CHECK_THROWS_AS(watch::image_grid(zeros({2, 2})), ValueError);
  CHECK_THROWS_AS(watch::image_grid(zeros({1, 1, 2, 2}), -1), ValueError);
}

TEST_CASE("find_lr finds the range of a quadratic, and restores the model and the optimizer") {
  manual_seed(7);
  struct Net : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 3, .out_features = 4});
    nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 4});
    Tensor forward(const Tensor& x) override { return bn(fc(x)).sum(1, true); }
  } net;
  const Tensor x = randn({64, 3}), y = x.sum(1, true) * 3 + 1;
  optim::SGD optimizer(net.parameters(), {.lr = 0.123, .momentum = 0.9});
  const auto loss = [&] { return mse_loss(net(x), y); };
  loss().backward();
  optimizer.step();
  const auto copies = [&] {
    std::vector<Tensor> all;
    for (const auto& [name, value] : net.state_dict()) all.push_back(value.clone());
    for (const auto& [name, value] : optimizer.state_dict()) all.push_back(value.clone());
    return all;
  };
  const std::vector<Tensor> before = copies();
  const auto unchanged = [&] {
    const std::vector<Tensor> after = copies();
    if (before.size() != after.size()) return false;
    for (std::size_t i = 0; i < before.size(); ++i)
      if (!equal(before[i], after[i])) return false;
    for (const nn::Parameter& p : net.parameters())
      if (p->grad().defined()) return false;
    return optimizer.lr() == 0.123;
  };
  const optim::LRFinderResult found = optim::find_lr(net, optimizer, loss, {.start_lr = 1e-5, .end_lr = 100});
  CHECK(unchanged());
  REQUIRE(found.lrs.size() == found.losses.size());
  CHECK(found.lrs.size() > 30);
  CHECK(found.lrs.size() < 100);  // it stops when the loss diverges
  CHECK(found.lrs[0] == Approx(1e-5));
  CHECK(found.lrs[1] / found.lrs[0] == Approx(std::pow(1e7, 1.0 / 99)));
  CHECK(found.suggestion > 1e-4);
  CHECK(found.suggestion < 1);
  const double lowest = *std::min_element(found.losses.begin(), found.losses.end());
  CHECK(found.losses.back() > lowest);
  CHECK(lowest < found.losses[0]);

  // An exception in the middle restores everything, too.
  int calls = 0;
  CHECK_THROWS_WITH(optim::find_lr(net, optimizer,
                                   [&] {
                                     if (++calls == 5) throw ValueError("no more batches");
                                     return loss();
                                   }),
                    "no more batches");
  CHECK(unchanged());
  const auto nan = [&] { return loss() * std::numeric_limits<double>::quiet_NaN(); };
  CHECK_THROWS_WITH(optim::find_lr(net, optimizer, nan), ContainsSubstring("the loss is nan at step 0"));
  CHECK(unchanged());
  CHECK_THROWS_AS(optim::find_lr(net, optimizer, loss, {.start_lr = 0}), ValueError);
  CHECK_THROWS_AS(optim::find_lr(net, optimizer, loss, {.end_lr = 1e-9}), ValueError);
  CHECK_THROWS_AS(optim::find_lr(net, optimizer, loss, {.num_iter = 2}), ValueError);
  CHECK_THROWS_AS(optim::find_lr(net, optimizer, loss, {.smoothing = 0}), ValueError);
  CHECK_THROWS_AS(optim::find_lr(net, optimizer, loss, {.diverge_threshold = 1}), ValueError);
}
