#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace tapestry;

namespace {

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (name == dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
  FAIL("no dtype " << name);
  return kFloat32;
}

template <class T>
void put(const Tensor& t, const std::vector<std::string>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      t.data<T>()[i] = static_cast<T>(std::strtoll(values[i].c_str(), nullptr, 10));
    else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      t.data<T>()[i] = T(std::strtof(values[i].c_str(), nullptr));
    else t.data<T>()[i] = static_cast<T>(std::strtod(values[i].c_str(), nullptr));
  }
}

void fill(const Tensor& t, const std::vector<std::string>& values) {
  switch (t.dtype()) {
    case DType::f32:
      return put<float>(t, values);
    case DType::f64:
      return put<double>(t, values);
    case DType::f16:
      return put<Half>(t, values);
    case DType::bf16:
      return put<BFloat16>(t, values);
    case DType::i64:
      return put<std::int64_t>(t, values);
    case DType::i32:
      return put<std::int32_t>(t, values);
    case DType::u8:
      return put<std::uint8_t>(t, values);
    case DType::i16:
      return put<std::int16_t>(t, values);
    case DType::i8:
      return put<std::int8_t>(t, values);
    case DType::u16:
      return put<std::uint16_t>(t, values);
    case DType::boolean:
      return put<bool>(t, values);
  }
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string w; in >> w;) out.push_back(w);
  return out;
}

}  // namespace

TEST_CASE("str gives PyTorch's text for the recorded cases") {
  std::ifstream file(tests::source_path("tests/golden/core_print.txt"));
  REQUIRE(file);
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const auto head = words(line);
    REQUIRE(head.at(0) == "case");
    Shape sizes;
    for (std::size_t i = 2; i < head.size(); ++i) sizes.push_back(std::stoll(head[i]));
    const Tensor t = empty(sizes, dtype_named(head.at(1)));
    std::getline(file, line);
    const auto values = words(line);
    REQUIRE(static_cast<std::int64_t>(values.size()) == t.numel());
    fill(t, values);
    std::string expected;
    while (std::getline(file, line) && line != "end") expected += (expected.empty() ? "" : "\n") + line;
    INFO(head.at(1) << " " << sizes.str());
    CHECK(t.str() == expected);
  }
  CHECK(cases > 50);
}

TEST_CASE("str of a view prints the elements of the view") {
  const Tensor t = empty({3, 4}, kInt64);
  for (int i = 0; i < 12; ++i) t.data<std::int64_t>()[i] = i;
  CHECK(detail::raw_view(t, {4, 3}, {1, 4}, 0).str() ==
        "tensor([[ 0,  4,  8],\n        [ 1,  5,  9],\n        [ 2,  6, 10],\n        [ 3,  7, 11]])");
  CHECK(detail::raw_view(t, {2}, {5}, 1).str() == "tensor([1, 6])");
  CHECK(detail::raw_view(t, {3}, {0}, 7).str() == "tensor([7, 7, 7])");
  CHECK(detail::raw_view(t, {}, {}, 11).str() == "tensor(11)");
  // Printing must read only the elements that it shows, because this view has 2^60 elements.
  CHECK_THAT(detail::raw_view(t, {1 << 30, 1 << 30}, {0, 0}, 5).str(),
             ContainsSubstring("[5, 5, 5,  ..., 5, 5, 5]"));
}

TEST_CASE("str of an undefined tensor says so, and operator<< prints str") {
  CHECK(Tensor().str() == "tensor(undefined)");
  const Tensor t = empty({2}, kUInt8);
  t.data<std::uint8_t>()[0] = 1, t.data<std::uint8_t>()[1] = 20;
  std::ostringstream out;
  out << t;
  CHECK(out.str() == "tensor([ 1, 20], dtype=uint8)");
  out.str("");
  out << t.sizes() << ' ' << t.dtype() << ' ' << t.device();
  CHECK(out.str() == "[2] uint8 cpu:0");
}

TEST_CASE("child: print elsewhere", "[.]") {
  const Tensor t = empty({2}, {kFloat64, Device("cpu:1")});
  t.data<double>()[0] = 1, t.data<double>()[1] = 2;
  std::printf("%s|", t.str().c_str());
}

TEST_CASE("str names a device other than cpu:0") {
  CHECK_THAT(run_child("child: print elsewhere", "TAPESTRY_LOGICAL_DEVICES=2").output,
             ContainsSubstring("tensor([1., 2.], device='cpu:1', dtype=float64)|"));
}
