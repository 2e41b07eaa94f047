// Tests of PNG and JPEG files. The golden files were encoded and decoded by PIL.
#include "tapestry/data/formats/image.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tapestry/core/allocator.h"
#include "tapestry/core/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::TempDir;
using tests::write_file;

namespace {

const std::string kGolden = tests::source_path("tests/golden/data_images.safetensors");

std::span<const std::uint8_t> bytes_of(const Tensor& t) {
  return {t.data<std::uint8_t>(), static_cast<std::size_t>(t.numel())};
}
std::span<const std::uint8_t> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}
std::string text_of(std::span<const std::uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

/// The largest difference of two images.
int difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  int most = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    most = (std::max)(most, std::abs(a.data<std::uint8_t>()[i] - b.data<std::uint8_t>()[i]));
  return most;
}

Tensor picture(std::int64_t channels, std::int64_t height, std::int64_t width) {
  const Tensor t = empty({channels, height, width}, DType::u8);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(128 + 90 * std::sin(static_cast<double>(i) * 0.05));
  return t;
}

/// Replaces 4 bytes of a PNG file's header chunk and makes its checksum right again.
std::string with_header(std::string png, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) png[at + i] = static_cast<char>(value >> (24 - 8 * i));
  std::uint32_t crc = ~0u;
  for (std::size_t i = 12; i < 29; ++i) {
    crc ^= static_cast<std::uint8_t>(png[i]);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  for (std::size_t i = 0; i < 4; ++i) png[29 + i] = static_cast<char>(~crc >> (24 - 8 * i));
  return png;
}

bool supported(const std::string& format) {
  return format.starts_with("png") ? supports_png() : supports_jpeg();
}

}  // namespace

TEST_CASE("a format that was left out of the build is named with its package") {
  const std::string png = "\x89PNG\r\n\x1a\n", jpeg = "\xff\xd8\xff\xe0";
  if (supports_png()) CHECK_THROWS_AS(decode_image(bytes_of(png)), IoError);
  else CHECK_THROWS_WITH(decode_image(bytes_of(png)), ContainsSubstring("libpng-dev"));
  if (supports_jpeg()) CHECK_THROWS_AS(decode_image(bytes_of(jpeg)), IoError);
  else CHECK_THROWS_WITH(decode_image(bytes_of(jpeg)), ContainsSubstring("libjpeg-dev"));
  if (!supports_png() || !supports_jpeg()) WARN("some tests of images are skipped: a library is missing");
}

TEST_CASE("PNG files are decoded as by PIL, bit for bit, and JPEG files almost") {
  const auto golden = load_safetensors(kGolden).tensors;
  int files = 0;
  for (const auto& [name, file] : golden) {
    if (!name.ends_with("/file") || !supported(name)) continue;
    CAPTURE(name);
    ++files;
    const Tensor& pixels = golden.at(name.substr(0, name.size() - 5) + "/pixels");
    const Tensor image = decode_image(bytes_of(file));
    REQUIRE(image.dtype() == DType::u8);
    // JPEG decoders may round in other ways; CMYK is converted by a formula.
    const int tolerance = name == "jpeg/cmyk/file" ? 2 : name.starts_with("jpeg") ? 1 : 0;
    CHECK(difference(image, pixels) <= tolerance);
  }
  CHECK(files == 7 * supports_png() + 5 * supports_jpeg());
}

TEST_CASE("the mode chooses the channels") {
  if (!supports_png() || !supports_jpeg()) return;
  const Tensor color = picture(3, 5, 6), alpha = picture(4, 5, 6), gray = picture(1, 5, 6);
  const auto read = [](const Tensor& image, ImageMode mode) {
    return decode_image(encode_png(image), {.mode = mode});
  };
  const auto plane = [](const Tensor& t, std::int64_t c) {
    return tapestry::detail::raw_view(t, {1, 5, 6}, {30, 6, 1}, 30 * c);
  };
  const Tensor luma = read(color, ImageMode::gray);
  REQUIRE(luma.sizes() == Shape{1, 5, 6});
  for (std::int64_t i = 0; i < 30; ++i) {
    const std::uint8_t* p = color.data<std::uint8_t>() + i;
    CHECK(std::abs(luma.data<std::uint8_t>()[i] - (0.299 * p[0] + 0.587 * p[30] + 0.114 * p[60])) <= 0.51);
  }
  CHECK(difference(read(alpha, ImageMode::rgb),
                   tapestry::detail::raw_view(alpha, {3, 5, 6}, {30, 6, 1}, 0)) == 0);
  CHECK(difference(plane(read(alpha, ImageMode::gray_alpha), 1), plane(alpha, 3)) == 0);
  const Tensor full = read(gray, ImageMode::rgb_alpha);
  REQUIRE(full.sizes() == Shape{4, 5, 6});
  for (int c = 0; c < 3; ++c) CHECK(difference(plane(full, c), gray) == 0);
  CHECK(full.data<std::uint8_t>()[3 * 30] == 255);
  const Tensor from_jpeg = decode_image(encode_jpeg(color, 100), {.mode = ImageMode::gray});
  CHECK(difference(from_jpeg, luma) <= 3);
  CHECK(decode_image(encode_jpeg(gray), {.mode = ImageMode::rgb}).sizes() == Shape{3, 5, 6});
}

TEST_CASE("images are written and read back") {
  if (!supports_png() || !supports_jpeg()) return;
  const TempDir dir;
  for (const std::int64_t channels : {1, 2, 3, 4}) {
    const Tensor image = picture(channels, 13, 70);
    write_png(dir / "a.png", image, static_cast<int>(channels * 2));
    CHECK(difference(read_image(dir / "a.png"), image) == 0);
  }
  const Tensor wide = picture(3, 64, 9);
  const Tensor turned = tapestry::detail::raw_view(wide, {3, 9, 64}, {64 * 9, 1, 9}, 0);
  CHECK(read_image((write_png(dir / "b.png", turned), dir / "b.png")).data<std::uint8_t>()[1] ==
        wide.data<std::uint8_t>()[9]);
  write_jpeg(dir / "a.jpg", wide, 95);
  CHECK(difference(read_image(dir / "a.jpg"), wide) < 40);
  CHECK(encode_jpeg(wide, 10).size() < encode_jpeg(wide, 95).size());
  CHECK_THROWS_WITH(encode_png(empty({5, 3, 3}, DType::u8)),
                    ContainsSubstring("1 to 4 channels, got [5, 3, 3]"));
  CHECK_THROWS_WITH(encode_jpeg(empty({4, 3, 3}, DType::u8)), ContainsSubstring("1 or 3 channels"));
  CHECK_THROWS_AS(encode_png(empty({3, 3, 3})), TypeError);
  CHECK_THROWS_AS(encode_png(empty({3, 0, 3}, DType::u8)), ValueError);
  CHECK_THROWS_AS(encode_png(wide, 10), ValueError);
  CHECK_THROWS_AS(encode_jpeg(wide, 0), ValueError);
  CHECK_THROWS_AS(encode_png(Tensor()), ValueError);
}

TEST_CASE("files that are no images, or that lack their end, are refused with the reason") {
  const TempDir dir;
  const auto fails = [&](const std::string& bytes, const std::string& why) {
    write_file(dir / "f", bytes);
    CHECK_THROWS_AS(read_image(dir / "f"), IoError);
    CHECK_THROWS_WITH(read_image(dir / "f"), ContainsSubstring(why) && ContainsSubstring(dir / "f"));
  };
  fails("", "is empty");
  fails("GIF89a....", "is a GIF file; PNG and JPEG");
  fails("BM......", "is a BMP file");
  fails(std::string("RIFF\0\0\0\0WEBPVP8 ", 16), "is a WebP file");
  fails("hello", "does not begin like a PNG or JPEG file");
  CHECK_THROWS_WITH(read_image(dir / "absent"), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(read_image(dir.path().string()), ContainsSubstring("is a directory"));
  const auto golden = load_safetensors(kGolden).tensors;
  for (const std::string name : {"png/rgb", "png/palette", "jpeg/rgb", "jpeg/progressive"}) {
    if (!supported(name)) continue;
    CAPTURE(name);
    const std::string good = text_of(bytes_of(golden.at(name + "/file")));
    for (std::size_t cut = 0; cut < good.size(); cut += cut < 60 || cut + 60 > good.size() ? 1 : 29)
      CHECK_THROWS_AS(decode_image(bytes_of(good.substr(0, cut))), IoError);
  }
}

TEST_CASE("headers that claim huge images allocate nothing") {
  if (!supports_png() || !supports_jpeg()) return;
  const std::string png = text_of(encode_png(picture(1, 30, 30)));
  std::string jpeg = text_of(encode_jpeg(picture(1, 30, 30)));
  const std::size_t frame = jpeg.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  for (std::size_t i = 5; i < 9; ++i) jpeg[frame + i] = '\xff';
  const std::int64_t before = memory_stats(kCPU).allocated;
  reset_peak_memory(kCPU);
  CHECK_THROWS_WITH(decode_image(bytes_of(with_header(png, 16, 0x7fffffff))),
                    ContainsSubstring("2147483647"));
  CHECK_THROWS_WITH(decode_image(bytes_of(with_header(png, 16, 3'000'000))),
                    ContainsSubstring("a PNG file of") && ContainsSubstring("cannot hold them"));
  CHECK_THROWS_WITH(decode_image(bytes_of(with_header(png, 16, 0))), ContainsSubstring("cannot be decoded"));
  CHECK_THROWS_WITH(decode_image(bytes_of(jpeg)),
                    ContainsSubstring("pixels, and 100000000 are allowed") || ContainsSubstring("image"));
  CHECK(memory_stats(kCPU).peak_allocated - before < 1 << 20);
  CHECK_NOTHROW(decode_image(bytes_of(png), {.max_pixels = 900}));
  CHECK_THROWS_WITH(decode_image(bytes_of(png), {.max_pixels = 899}),
                    ContainsSubstring("30 x 30 pixels, and 899 are allowed"));
  CHECK_THROWS_AS(decode_image(bytes_of(png), {.max_pixels = 0}), ValueError);
}

TEST_CASE("a progressive JPEG with thousands of scans is refused soon") {
  if (!supports_jpeg()) return;
  const auto golden = load_safetensors(kGolden).tensors;
  std::string file = text_of(bytes_of(golden.at("jpeg/progressive/file")));
  // The last scan is repeated: each copy costs a pass over the image.
  const std::size_t scan = file.rfind(std::string("\xff\xda", 2));
  REQUIRE(scan != std::string::npos);
  const std::string copy = file.substr(scan, file.size() - 2 - scan);
  file.resize(file.size() - 2);
  for (int i = 0; i < 3000; ++i) file += copy;
  file += "\xff\xd9";
  CHECK_THROWS_WITH(decode_image(bytes_of(file)), ContainsSubstring("more than 500 scans"));
}

TEST_CASE("mutated PNG and JPEG files give an image or an IoError, never a crash") {
  const auto golden = load_safetensors(kGolden).tensors;
  for (const std::string name : {"png/transparent", "jpeg/progressive", "jpeg/cmyk"}) {
    if (!supported(name)) continue;
    CAPTURE(name);
    const std::string good = text_of(bytes_of(golden.at(name + "/file")));
    const int calls = tests::for_mutations<IoError>(good, [&](const std::string& mutated) {
      const Tensor image = decode_image(bytes_of(mutated), {.max_pixels = 1 << 20});
      CHECK((image.dim() == 3 && image.size(0) <= 4 && image.size(1) * image.size(2) <= 1 << 20));
    });
    CHECK(calls > 100);
  }
}
