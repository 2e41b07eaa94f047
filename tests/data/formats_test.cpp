#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/data/formats/cifar10.h"
#include "tapestry/data/formats/fashion_mnist.h"
#include "tapestry/data/formats/idx.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::TempDir;
using tests::write_file;

namespace {

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string idx_header(unsigned char type, const std::vector<std::uint32_t>& sizes) {
  std::string out = {0, 0, static_cast<char>(type), static_cast<char>(sizes.size())};
  for (std::uint32_t n : sizes)
    for (int shift : {24, 16, 8, 0}) out += static_cast<char>(n >> shift);
  return out;
}

std::string counting(std::size_t bytes) {
  std::string out(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 31 + i / 251);
  return out;
}

Tensor read(const TempDir& dir, const std::string& bytes) {
  write_file(dir / "f", bytes);
  return read_idx(dir / "f");
}

/// Returns the peak of CPU memory while `f` runs, above the memory allocated before.
template <class F>
std::int64_t peak_of(F&& f) {
  const std::int64_t before = memory_stats(kCPU).allocated;
  reset_peak_memory(kCPU);
  f();
  return memory_stats(kCPU).peak_allocated - before;
}

/// The folder of Debian's package. Tests that need it print a message if it is missing.
bool have_fashion_mnist() {
  return std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz");
}

}  // namespace

TEST_CASE("IDX files of every element type are read, plain and gzipped") {
  const TempDir dir;
  const std::string bytes = counting(24);
  for (bool zipped : {false, true}) {
    auto load = [&](unsigned char type, const std::vector<std::uint32_t>& sizes, const std::string& data) {
      const std::string file = idx_header(type, sizes) + data;
      return read(dir, zipped ? gzip(file) : file);
    };
    const Tensor u8 = load(0x08, {2, 3, 4}, bytes);
    CHECK(u8.dtype() == DType::u8);
    CHECK(u8.sizes() == Shape{2, 3, 4});
    CHECK(std::memcmp(u8.raw_data(), bytes.data(), 24) == 0);
    const Tensor i8 = load(0x09, {3}, "\x01\x80\xff");
    CHECK(i8.dtype() == DType::i32);
    CHECK(i8.data<std::int32_t>()[1] == -128);
    CHECK(i8.data<std::int32_t>()[2] == -1);
    const Tensor i16 = load(0x0B, {2}, std::string("\x01\x02\xff\xfe", 4));
    CHECK(i16.data<std::int32_t>()[0] == 258);
    CHECK(i16.data<std::int32_t>()[1] == -2);
    const Tensor i32 = load(0x0C, {1, 2}, std::string("\x00\x00\x01\x02\xff\xff\xff\xfe", 8));
    CHECK(i32.data<std::int32_t>()[0] == 258);
    CHECK(i32.data<std::int32_t>()[1] == -2);
    CHECK(load(0x0D, {1}, std::string("\x3f\xc0\x00\x00", 4)).data<float>()[0] == 1.5f);
    CHECK(load(0x0E, {1}, std::string("\xc0\x04\x00\x00\x00\x00\x00\x00", 8)).data<double>()[0] == -2.5);
    CHECK(load(0x08, {0, 28, 28}, "").sizes() == Shape{0, 28, 28});
  }
  // Two concatenated gzip members are one gzip file.
  const std::string whole = idx_header(0x08, {24}) + bytes;
  CHECK(read(dir, gzip(whole.substr(0, 13)) + gzip(whole.substr(13))).data<std::uint8_t>()[23] ==
        static_cast<std::uint8_t>(bytes[23]));
}

TEST_CASE("inconsistent and broken IDX files are refused") {
  const TempDir dir;
  const std::string good = idx_header(0x08, {4, 6}) + counting(24), zipped = gzip(good);
  auto fails = [&](const std::string& bytes, const std::string& why) {
    CHECK_THROWS_AS(read(dir, bytes), IoError);
    CHECK_THROWS_WITH(read(dir, bytes), ContainsSubstring(why) && ContainsSubstring(dir / "f"));
  };
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK_THROWS_AS(read(dir, good.substr(0, cut)), IoError);
  for (std::size_t cut = 0; cut < zipped.size(); ++cut)
    CHECK_THROWS_AS(read(dir, zipped.substr(0, cut)), IoError);
  fails(good.substr(0, 30), "claims 24 bytes of data, but a file of 30 bytes cannot hold them");
  fails(zipped.substr(0, zipped.size() - 9), "cut off");
  fails(good + "x", "goes on after the end");
  fails(gzip(good + "x"), "goes on after the end");
  fails(zipped + "rubbish", "damaged");
  fails("PK" + good, "does not begin with two zero bytes");
  fails(idx_header(0x0A, {1}) + "x", "element type 10");
  fails(idx_header(0x08, {}), "0 dimensions");
  fails(idx_header(0x08, std::vector<std::uint32_t>(9, 1)) + "x", "9 dimensions");
  std::string corrupt = zipped;
  corrupt[corrupt.size() - 6] = static_cast<char>(corrupt[corrupt.size() - 6] ^ 1);  // the checksum
  fails(corrupt, "damaged");
  CHECK_THROWS_WITH(read_idx(dir / "absent"), ContainsSubstring("cannot be opened: No such file"));
  CHECK_THROWS_WITH(read_idx(dir.path().string()), ContainsSubstring("is a directory"));
}

TEST_CASE("IDX headers that claim terabytes allocate nothing") {
  const TempDir dir;
  const std::int64_t peak = peak_of([&] {
    const std::string terabytes = idx_header(0x08, {1u << 20, 1u << 20}),
                      beyond = idx_header(0x0E, {~0u, ~0u, ~0u, ~0u});
    CHECK_THROWS_WITH(read(dir, terabytes + counting(100)), ContainsSubstring("claims 1099511627776 bytes"));
    CHECK_THROWS_WITH(read(dir, gzip(terabytes + counting(100))),
                      ContainsSubstring("claims 1099511627776 bytes"));
    CHECK_THROWS_WITH(read(dir, beyond), ContainsSubstring("beyond any memory"));
    CHECK_THROWS_WITH(read(dir, idx_header(0x08, {0, ~0u, ~0u, ~0u})),
                      ContainsSubstring("beyond any memory"));
    // A gzip bomb: a small header and 64 MiB of zeros in 64 KiB. It must not be decompressed beyond the size
    // in the header.
    CHECK_THROWS_WITH(read(dir, gzip(idx_header(0x08, {10}) + std::string(64 << 20, '\0'))),
                      ContainsSubstring("goes on after the end"));
  });
  CHECK(peak < 1 << 20);
}

TEST_CASE("a FIFO or a device is refused without blocking") {
  const TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  alarm(20);  // ends the program if open() blocks
  CHECK_THROWS_WITH(read_idx(dir / "pipe"), ContainsSubstring("is not a regular file"));
  CHECK_THROWS_WITH(read_cifar10(dir / "pipe", 1), ContainsSubstring("is not a regular file"));
  CHECK_THROWS_WITH(read_idx("/dev/zero"), ContainsSubstring("is not a regular file"));
  CHECK_THROWS_WITH(load_safetensors(dir / "pipe"), ContainsSubstring("is not a file"));
  alarm(0);
}

TEST_CASE("mutated IDX files give a tensor or an IoError, never a crash") {
  const TempDir dir;
  const std::string good = idx_header(0x0C, {3, 5}) + counting(60);
  for (const std::string& bytes : {good, gzip(good)}) {
    const int calls = tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
      const Tensor t = read(dir, mutated);
      CHECK(t.nbytes() <= 4 * 1032 * (mutated.size() + (1 << 16)));
    });
    CHECK(calls > 100);
  }
}

TEST_CASE("CIFAR-10 files are read, plain and gzipped, and damaged files are refused with the reason") {
  const TempDir dir;
  std::string rows;
  for (int i = 0; i < 7; ++i)
    rows += static_cast<char>(i) + counting(3072).replace(0, 1, 1, static_cast<char>(100 + i));
  write_file(dir / "f.bin", rows);
  const Example all = read_cifar10(dir / "f.bin", 7);
  CHECK(all.input.sizes() == Shape{7, 3, 32, 32});
  CHECK(all.input.dtype() == DType::u8);
  for (int i = 0; i < 7; ++i) {
    CHECK(all.target.data<std::int64_t>()[i] == i);
    CHECK(all.input.data<std::uint8_t>()[3072 * i] == 100 + i);
  }
  CHECK(std::memcmp(all.input.raw_data(), rows.data() + 1, 3072) == 0);
  write_file(dir / "f.bin.gz", gzip(rows));
  CHECK(read_cifar10(dir / "f.bin.gz", 7).target.data<std::int64_t>()[6] == 6);

  auto fails = [&](const std::string& bytes, std::int64_t count, const std::string& why) {
    write_file(dir / "bad.bin", bytes);
    CHECK_THROWS_AS(read_cifar10(dir / "bad.bin", count), IoError);
    CHECK_THROWS_WITH(read_cifar10(dir / "bad.bin", count), ContainsSubstring(why));
  };
  fails(rows.substr(0, 3073 * 6), 7, "has 18438 bytes, and 7 rows");
  fails(rows.substr(0, rows.size() - 1), 7, "has 21510 bytes");
  fails(rows + "x", 7, "has 21512 bytes");
  fails("", 7, "has 0 bytes");
  fails(rows, kCifar10RowsPerFile, "10000 rows of CIFAR-10's binary version have 30730000");
  fails(gzip(rows).substr(0, 40), 7, "cut off");
  fails(gzip(rows + "x"), 7, "goes on after the end");
  std::string bad_label = rows;
  bad_label[3073 * 2] = 10;
  fails(bad_label, 7, "label 10 of row 2 is not in 0 to 9");
  CHECK_THROWS_AS(read_cifar10(dir / "f.bin", 0), ValueError);

  CHECK_THROWS_WITH(cifar10(true, dir.path().string(), 7), ContainsSubstring("data_batch_1.bin is not in") &&
                                                               ContainsSubstring("cifar-10-binary.tar.gz") &&
                                                               ContainsSubstring("--data-dir"));
  CHECK_THROWS_WITH(cifar10(false, ""), ContainsSubstring("no --data-dir was given"));
  std::filesystem::create_directory(dir / "cifar-10-batches-bin");
  for (int i = 1; i <= 5; ++i) {
    std::string file = rows;
    file[1] = static_cast<char>(i);
    write_file(dir / concat({"cifar-10-batches-bin/data_batch_", i, ".bin"}), file);
  }
  const TensorDataset train = cifar10(true, dir.path().string(), 7);
  CHECK(train.size() == 35);
  CHECK(train.get(28).input.data<std::uint8_t>()[0] == 5);
  CHECK(train.get(34).target.data<std::int64_t>()[0] == 6);
  CHECK_THROWS_WITH(cifar10(false, dir.path().string(), 7), ContainsSubstring("test_batch.bin is not in"));

  const int calls = tests::for_mutations<IoError>(rows, [&](const std::string& mutated) {
    write_file(dir / "mutated.bin", mutated);
    const Example read = read_cifar10(dir / "mutated.bin", 7);
    CHECK(read.target.size(0) == 7);
  });
  CHECK(calls > 100);
}

TEST_CASE("Fashion-MNIST folders that are missing or mismatched are refused, a small valid one is read") {
  const TempDir dir;
  CHECK_THROWS_WITH(fashion_mnist(true, dir.path().string()),
                    ContainsSubstring("apt-get install dataset-fashion-mnist") &&
                        ContainsSubstring("train-images-idx3-ubyte.gz is not in"));
  const std::string images = idx_header(0x08, {3, 28, 28}) + counting(3 * 784),
                    labels = idx_header(0x08, {3}) + std::string("\x09\x00\x05", 3);
  write_file(dir / "t10k-images-idx3-ubyte.gz", gzip(images));
  write_file(dir / "t10k-labels-idx1-ubyte", labels);
  const TensorDataset test = fashion_mnist(false, dir.path().string());
  CHECK(test.size() == 3);
  CHECK(test.input().sizes() == Shape{3, 1, 28, 28});
  CHECK(test.target().data<std::int64_t>()[0] == 9);
  CHECK(test.get(2).input.data<std::uint8_t>()[783] == static_cast<std::uint8_t>(images.back()));
  CHECK(mnist(false, dir.path().string()).target().data<std::int64_t>()[2] == 5);
  CHECK_THROWS_WITH(mnist(true, dir.path().string()),
                    ContainsSubstring("[mnist] train-images-idx3-ubyte.gz is not in"));
  write_file(dir / "t10k-labels-idx1-ubyte", idx_header(0x08, {3}) + std::string("\x09\x0a\x05", 3));
  CHECK_THROWS_WITH(fashion_mnist(false, dir.path().string()), ContainsSubstring("label 10 of image 1"));
  write_file(dir / "t10k-labels-idx1-ubyte", idx_header(0x08, {2}) + std::string("\x09\x01", 2));
  CHECK_THROWS_WITH(fashion_mnist(false, dir.path().string()),
                    ContainsSubstring("not a byte for each of 3 images"));
  write_file(dir / "t10k-images-idx3-ubyte.gz", gzip(idx_header(0x08, {3, 27, 28}) + counting(3 * 27 * 28)));
  CHECK_THROWS_WITH(fashion_mnist(false, dir.path().string()), ContainsSubstring("not images of 28x28"));
  CHECK(fashion_mnist_classes().size() == 10);
  CHECK(cifar10_classes().size() == 10);
}

TEST_CASE("the real Fashion-MNIST has the published sizes, class counts, mean and standard deviation") {
  if (!have_fashion_mnist()) {
    WARN("skipped: dataset-fashion-mnist is not installed");
    return;
  }
  const TensorDataset test = fashion_mnist(false);
  CHECK(test.size() == 10000);
  std::vector<int> count(10);
  for (std::int64_t i = 0; i < test.size(); ++i)
    ++count[static_cast<std::size_t>(test.target().data<std::int64_t>()[i])];
  for (int n : count) CHECK(n == 1000);
  // The published mean and standard deviation of the training images are 0.2860 and 0.3530.
  double sum = 0, squares = 0;
  const TensorDataset train = fashion_mnist(true);
  CHECK(train.size() == 60000);
  const std::int64_t n = train.input().numel();
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = train.input().data<std::uint8_t>()[i] / 255.0;
    sum += x;
    squares += x * x;
  }
  const double mean = sum / static_cast<double>(n);
  CHECK(std::abs(mean - 0.2860) < 5e-5);
  CHECK(std::abs(std::sqrt(squares / static_cast<double>(n) - mean * mean) - 0.3530) < 5e-5);
}

TEST_CASE("readers close their files, also after an error") {
  const auto open_files = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const TempDir dir;
  const std::string good = idx_header(0x08, {3}) + "abc";
  write_file(dir / "good", good);
  write_file(dir / "good.gz", gzip(good));
  write_file(dir / "short", idx_header(0x08, {4}) + "abc");
  write_file(dir / "short.gz", gzip(idx_header(0x08, {4}) + "abc"));
  write_file(dir / "broken.gz", gzip(good).substr(0, 12));
  write_file(dir / "numbers", counting(20));
  save_safetensors(dir / "tensors", {{"x", ones({3})}});
  const auto before = open_files();
  for (int i = 0; i < 3; ++i) {
    read_idx(dir / "good"), read_idx(dir / "good.gz");
    load_safetensors(dir / "tensors");
    for (const char* name : {"short", "short.gz", "broken.gz", "numbers"})
      CHECK_THROWS_AS(read_idx(dir / name), IoError);
    CHECK_THROWS_AS(read_cifar10(dir / "short", 1), IoError);
    CHECK_THROWS_AS(load_safetensors(dir / "numbers"), Error);
  }
  CHECK(open_files() == before);
}
