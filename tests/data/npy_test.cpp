// Tests of NPY and NPZ files. The golden files were written by NumPy.
#include "tapestry/data/formats/npy.h"

#include <zlib.h>

#include <cstring>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

using Golden = std::map<std::string, Tensor>;
const Golden& golden() {
  static const Golden all = load_safetensors(tests::source_path("tests/golden/data_npy.safetensors")).tensors;
  return all;
}
std::string golden_file(const std::string& name) {
  const Tensor& t = golden().at(name + "/file");
  return {static_cast<const char*>(t.raw_data()), t.nbytes()};
}

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         (a.numel() == 0 || std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0);
}

Tensor read(const TempDir& dir, const std::string& bytes) {
  write_file(dir / "f", bytes);
  return load_npy(dir / "f");
}
std::map<std::string, Tensor> unzip(const TempDir& dir, const std::string& bytes) {
  write_file(dir / "z", bytes);
  return load_npz(dir / "z");
}

/// An NPY file with this header.
std::string npy(std::string header, const std::string& data = "") {
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  const char length[] = {static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  return std::string("\x93NUMPY\x01\x00", 8) + std::string(length, 2) + header + data;
}
std::string npy_of(const std::string& descr, const std::string& shape, const std::string& data) {
  return npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }", data);
}

void set_number(std::string& bytes, std::size_t at, std::uint32_t value, int count = 4) {
  for (int i = 0; i < count; ++i)
    bytes[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
}

}  // namespace

TEST_CASE("NPY files of every type and order are read, and written with NumPy's bytes") {
  const TempDir dir;
  int files = 0;
  for (const auto& [name, value] : golden()) {
    if (!name.ends_with("/value")) continue;
    const std::string stem = name.substr(0, name.size() - 6), bytes = golden_file(stem);
    CAPTURE(stem);
    ++files;
    CHECK(same(read(dir, bytes), value));
    if (stem.ends_with("/c") || stem.ends_with("/f")) {
      save_npy(dir / "out", value, {.fortran_order = stem.ends_with("/f")});
      CHECK(read_file(dir / "out") == bytes);
    }
  }
  CHECK(files == 10 * 3 + 2 + 3);
  // A strided tensor is written in its logical order.
  const Tensor x = arange(24).reshape({2, 3, 4}).to(DType::f32).transpose(0, 2);
  for (const bool fortran : {false, true}) {
    save_npy(dir / "out", x, {.fortran_order = fortran});
    CHECK(same(load_npy(dir / "out"), x.contiguous()));
  }
  const Tensor brain = tensor({1.5f, -2.0f}).to(DType::bf16);
  save_npy(dir / "out", brain);
  CHECK(same(load_npy(dir / "out"), brain));
  CHECK(read_file(dir / "out").find("'<V2'") != std::string::npos);
  CHECK_THROWS_AS(save_npy(dir / "out", Tensor()), ValueError);
  CHECK_THROWS_AS(save_npy(dir / "absent/out", brain), IoError);
}

TEST_CASE("NPY files with other types, wrong headers or wrong lengths are refused with the reason") {
  const TempDir dir;
  const auto fails = [&](const std::string& bytes, const std::string& why) {
    CAPTURE(bytes);
    CHECK_THROWS_AS(read(dir, bytes), IoError);
    CHECK_THROWS_WITH(read(dir, bytes), ContainsSubstring(why) && ContainsSubstring(dir / "f"));
  };
  fails(golden_file("bad/complex"), "NumPy's type '<c8'");
  fails(golden_file("bad/text"), "'<U2', which is not supported");
  fails(golden_file("bad/u8"), "'<u8'");
  fails(golden_file("bad/date"), "'<M8[s]'");
  fails(golden_file("bad/record"), "records with several fields");
  fails(npy_of("|O", "(1,)", "x"), "'|O'");
  const std::string good = npy_of("<f4", "(2,)", "12345678");
  CHECK(read(dir, good).numel() == 2);
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    CHECK_THROWS_AS(read(dir, good.substr(0, cut)), IoError);
  fails(good + "x", "goes on after the end");
  fails("PK\x03\x04 this is a zip", "does not begin like an NPY file");
  fails(std::string("\x93NUMPY\x04\x00", 8) + good.substr(8), "NPY version 4.0");
  fails(std::string("\x93NUMPY\x02\x00\xff\xff\xff\x7f", 12), "claims 2147483647 bytes");
  fails(npy_of("<f4", "(1099511627776,)", "1234"), "claims 4398046511104 bytes of data");
  fails(npy_of("<f4", "(4611686018427387904, 4)", ""), "beyond any memory");
  fails(npy_of("<f4", "(0, 4611686018427387904, 4)", ""), "beyond any memory");
  fails(npy_of("<f4", "(1,1,1,1,1,1,1,1,1)", "1234"), "more than 8 dimensions");
  fails(npy_of("|b1", "(2,)", std::string("\x01\x02")), "neither 0 nor 1");
  for (const char* shape :
       {"(-1,)", "(2", "2", "(2 3)", "(2,,)", "(a,)", "(99999999999999999999,)", "(True,)"})
    fails(npy_of("<f4", shape, "12345678"), "its header has no");
  fails(npy("{'descr': '<f4', 'shape': (2,)}", "12345678"), "no 'descr', 'fortran_order' or 'shape'");
  fails(npy("{'descr': '<f4', 'descr': '<f4'}", ""), "'descr' twice");
  fails(npy("{'descr': '<f4', 'fortran_order': 1, 'shape': (2,)}", ""), "neither True nor False");
  fails(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", "12345678"), "text after its end");
  fails(npy("{'descr': '<f4', 'more': 1}", ""), "unknown field 'more'");
  fails(npy("{'descr': '<f4"), "an open quote");
  fails(npy(""), "no '{'");
  // Spaces, double quotes and another order of the fields are Python, too.
  CHECK(
      read(dir, npy("{ \"shape\":( 2 , ) ,'fortran_order' :True,\t'descr':\"=f4\" }", "12345678")).numel() ==
      2);
}

TEST_CASE("NPZ files are read, stored and deflated, and written for NumPy") {
  const TempDir dir;
  for (const char* kind : {"npz/stored", "npz/deflated"}) {
    CAPTURE(kind);
    const auto arrays = unzip(dir, golden_file(kind));
    REQUIRE(arrays.size() == 4);
    CHECK(same(arrays.at("x"), golden().at("f4/c/value")));
    CHECK(same(arrays.at("deep/y"), arange(3)));
    CHECK(arrays.at("\u00e9").item<bool>());
    CHECK(arrays.at("none").sizes() == Shape{0, 2});
  }
  const NamedTensors tensors = {{"w", randn({300, 40})},
                                {"view", arange(12).reshape({3, 4}).t()},
                                {"\u00fc", tensor({true, false})},
                                {"nothing", empty({0})},
                                {"one", empty(Shape{}, DType::i8).fill_(-3)}};
  for (const bool compressed : {false, true}) {
    save_npz(dir / "out", tensors, {.compressed = compressed});
    const auto back = load_npz(dir / "out");
    REQUIRE(back.size() == tensors.size());
    for (const auto& [name, tensor] : tensors) CHECK(same(back.at(name), tensor.contiguous()));
  }
  save_npz(dir / "zeros", {{"z", zeros({1000, 1000})}}, {.compressed = true});
  CHECK(read_file(dir / "zeros").size() < 10000);
  save_npz(dir / "out", {});
  CHECK(load_npz(dir / "out").empty());
  const Tensor x = ones({1});
  CHECK_THROWS_WITH(save_npz(dir / "out", {{"a", x}, {"a", x}}), ContainsSubstring("\"a\" occurs twice"));
  CHECK_THROWS_AS(save_npz(dir / "out", {{"", x}}), ValueError);
  CHECK_THROWS_AS(save_npz(dir / "out", {{std::string("a\0b", 3), x}}), ValueError);
}

TEST_CASE("damaged, encrypted and overlapping NPZ files are refused with the reason") {
  const TempDir dir;
  const auto fails = [&](const std::string& bytes, const std::string& why) {
    CHECK_THROWS_AS(unzip(dir, bytes), IoError);
    CHECK_THROWS_WITH(unzip(dir, bytes), ContainsSubstring(why) && ContainsSubstring(dir / "z"));
  };
  const std::string data(8, 'd'), entry = npy_of("<f4", "(2,)", data);
  save_npz(dir / "good", {{"a", tensor({1.0f, 2.0f})}, {"b", tensor({3.0f, 4.0f})}});
  const std::string good = read_file(dir / "good");
  const std::size_t directory = good.find("PK\x01\x02"), second = good.find("PK\x01\x02", directory + 1);
  for (std::size_t cut = 0; cut < good.size(); cut += 3)
    CHECK_THROWS_AS(unzip(dir, good.substr(0, cut)), IoError);
  fails("", "has no directory of a zip archive");
  const auto changed = [&](std::size_t at, std::uint32_t value, int count) {
    std::string bytes = good;
    set_number(bytes, at, value, count);
    return bytes;
  };
  fails(changed(directory + 8, 1, 2), "\"a.npy\" in it is encrypted");
  fails(changed(directory + 10, 12, 2), "compressed by method 12");
  fails(changed(directory + 16, 1, 4), "its checksum is wrong");
  fails(changed(directory + 24, 1 << 20, 4), "has two sizes");
  fails(changed(second + 42, 0, 4), "files in it overlap");
  fails(changed(second + 42, 7, 4), "is damaged");
  fails(changed(directory + 20, 0xfffff0, 4), "is cut off");
  fails(changed(directory, 0, 4), "its directory is damaged");
  std::string renamed = good;
  renamed[second + 46] = 'a';
  fails(renamed, "\"a\" occurs twice");
  std::string flipped = good;
  flipped[directory - 1] = static_cast<char>(flipped[directory - 1] ^ 1);
  fails(flipped, "its checksum is wrong");
  // A member that claims more than deflate can produce is refused before memory is allocated for it.
  save_npz(dir / "packed", {{"a", zeros({100})}}, {.compressed = true});
  std::string bomb = read_file(dir / "packed");
  set_number(bomb, bomb.find("PK\x01\x02") + 24, 0x7fffffff);
  const std::int64_t before = memory_stats(kCPU).allocated;
  reset_peak_memory(kCPU);
  fails(bomb, "claims more bytes than its compressed data can hold");
  CHECK(memory_stats(kCPU).peak_allocated - before < 1 << 16);
  CHECK_THROWS_WITH(load_npz(dir / "absent"), ContainsSubstring("cannot be opened"));
  CHECK_THROWS_WITH(load_npz(dir.path().string()), ContainsSubstring("is not a regular file"));
}

TEST_CASE("mutated NPY and NPZ files give tensors or an IoError, never a crash") {
  const TempDir dir;
  const std::string files[] = {golden_file("f4/f"), golden_file("npz/stored"), golden_file("npz/deflated")};
  for (const std::string& bytes : files) {
    const bool zip = bytes.starts_with("PK");
    const int calls = tests::for_mutations<IoError>(bytes, [&](const std::string& mutated) {
      if (zip) {
        unzip(dir, mutated);
      } else {
        const Tensor t = read(dir, mutated);
        CHECK(t.nbytes() <= mutated.size());
      }
    });
    CHECK(calls > 100);
  }
}
