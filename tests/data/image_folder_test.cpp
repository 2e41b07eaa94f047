#include "tapestry/data/formats/image_folder.h"

#include <unistd.h>

#include <filesystem>

#include "tapestry/core/philox.h"
#include "tapestry/data/transforms.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::TempDir;
using tests::write_file;

namespace {

/// An image of one value.
Tensor flat(std::uint8_t value, std::int64_t h = 6, std::int64_t w = 8) {
  const Tensor t = empty({3, h, w}, DType::u8);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<std::uint8_t>()[i] = value;
  return t;
}

/// A folder with the classes "ant", "bee" and "cat".
void fill(const TempDir& dir) {
  for (const char* folder : {"cat", "ant", "bee/b", "bee/a.d", "bee/.hidden"})
    std::filesystem::create_directories(dir / folder);
  write_png(dir / "cat/10.png", flat(10));
  write_png(dir / "cat/9.PNG", flat(9));
  write_jpeg(dir / "ant/x.jpg", flat(50), 100);
  write_jpeg(dir / "ant/W.JPEG", flat(60), 100);
  write_png(dir / "bee/z.png", flat(70));
  write_png(dir / "bee/b/a.png", flat(71));
  write_png(dir / "bee/a.d/b.png", flat(72));
  write_png(dir / "bee/.hidden/c.png", flat(73));
  write_file(dir / "bee/notes.txt", "no image");
  write_file(dir / "labels.csv", "not in a class");
}

bool skipped() {
  if (supports_png() && supports_jpeg()) return false;
  WARN("skipped: libpng or libjpeg is missing");
  return true;
}

}  // namespace

TEST_CASE("ImageFolder numbers the classes and lists the images in torchvision's order") {
  if (skipped()) return;
  const TempDir dir;
  fill(dir);
  const ImageFolder folder(dir.path().string());
  CHECK(folder.classes() == std::vector<std::string>{"ant", "bee", "cat"});
  CHECK(folder.class_to_idx().at("bee") == 1);
  std::vector<std::pair<std::string, std::int64_t>> expected = {
      {"ant/W.JPEG", 0},  {"ant/x.jpg", 0},  {"bee/z.png", 1}, {"bee/a.d/b.png", 1},
      {"bee/b/a.png", 1}, {"cat/10.png", 2}, {"cat/9.PNG", 2}};
  for (auto& [path, label] : expected) path = dir / path;
  CHECK(folder.samples() == expected);
  const Example sample = folder.get(6);
  CHECK(sample.input.sizes() == Shape{3, 6, 8});
  CHECK(sample.input.data<std::uint8_t>()[0] == 9);
  CHECK(sample.target.sizes() == Shape{});
  CHECK(sample.target.data<std::int64_t>()[0] == 2);
  CHECK_THROWS_AS(folder.get(7), IndexError);

  const ImageFolder some(dir.path().string(),
                         {.mode = ImageMode::gray, .extensions = {".JPG"}, .allow_empty = true});
  REQUIRE(some.size() == 1);
  CHECK(some.classes().size() == 3);
  CHECK(some.get(0).input.sizes() == Shape{1, 6, 8});
}

TEST_CASE("ImageFolder names the folder or the file that is wrong") {
  if (skipped()) return;
  const TempDir dir;
  const auto fails = [&](const std::string& why) {
    CHECK_THROWS_AS(ImageFolder(dir.path().string()), IoError);
    CHECK_THROWS_WITH(ImageFolder(dir.path().string()), ContainsSubstring(why));
  };
  fails("contains no folders");
  CHECK_THROWS_WITH(ImageFolder(dir / "absent"), ContainsSubstring("absent: cannot be read: No such file"));
  fill(dir);
  std::filesystem::create_directory(dir / "dog");
  fails("these classes have no images: dog");
  CHECK(ImageFolder(dir.path().string(), {.allow_empty = true}).classes().size() == 4);
  write_file(dir / "dog/a.webp", "x");
  fails("dog/a.webp: images in this format are not supported");
  std::filesystem::remove(dir / "dog/a.webp");
  REQUIRE(symlink(".", (dir / "dog/loop").c_str()) == 0);
  fails("does a symbolic link point to a folder above it?");
  std::filesystem::remove(dir / "dog/loop");

  write_file(dir / "dog/broken.png", "\x89PNG\r\n\x1a\nrubbish");
  const ImageFolder folder(dir.path().string());
  CHECK_THROWS_WITH(folder.get(7), ContainsSubstring("dog/broken.png: the PNG image cannot be decoded"));
  DataLoader loader(folder, {.num_workers = 2});
  try {
    for ([[maybe_unused]] auto& batch : loader) continue;
    FAIL("nothing was thrown");
  } catch (const SampleError& e) {
    CHECK(e.index() == 7);
    CHECK_THAT(e.what(), ContainsSubstring("sample 7") && ContainsSubstring("dog/broken.png"));
  }
  const ImageFolder cropped(dir.path().string(), {.transform = random_crop(7, 7)});
  CHECK_THROWS_WITH(cropped.get(0), ContainsSubstring("does not fit") && ContainsSubstring("ant/W.JPEG"));
}

TEST_CASE("the transforms of an ImageFolder draw the same numbers for any number of workers") {
  if (skipped()) return;
  const TempDir dir;
  for (int i = 0; i < 9; ++i) {
    std::filesystem::create_directories(dir / concat({"class", i % 3}));
    const Tensor image = flat(0, 20 + i, 30);
    for (std::int64_t k = 0; k < image.numel(); ++k)
      image.data<std::uint8_t>()[k] =
          static_cast<std::uint8_t>(philox(1, static_cast<std::uint64_t>(k)).v[0]);
    write_png(dir / concat({"class", i % 3, "/", i, ".png"}), image);
  }
  const ImageFolder folder(dir.path().string(),
                           {.transform = compose({random_resized_crop(12), random_horizontal_flip(),
                                                  color_jitter({.brightness = 0.4, .saturation = 0.4}),
                                                  normalize({0.5f}, {0.25f})})});
  const auto run = [&](int workers) {
    DataLoader loader(folder, {.batch_size = 4, .shuffle = true, .seed = 2, .num_workers = workers});
    std::vector<std::vector<float>> epochs(2);
    for (auto& epoch : epochs)
      for (auto& [input, target] : loader) {
        CHECK(input.sizes() == Shape{target.size(0), 3, 12, 12});
        epoch.insert(epoch.end(), input.data<float>(), input.data<float>() + input.numel());
      }
    return epochs;
  };
  const auto expected = run(0);
  CHECK(expected[0] != expected[1]);
  CHECK(run(1) == expected);
  CHECK(run(3) == expected);
}
