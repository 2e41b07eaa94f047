// Products of few rows against the CPU's in f64.
#include "tests/emulated/gemm.h"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

namespace {

void check_both(Product p) {
  p.b_along_k = true;
  check_product<float>(p);
  check_product<BFloat16>(p);
}

template <class T>
std::string launched(const Product& p) {
  const Operands o(p);
  const Block<T> a(Rounded<T>{o.a.values}, p.offset), b(Rounded<T>{o.b.values}, p.offset),
      c(Rounded<T>{o.c.values});
  Gemm g = gemm_of(p, o);
  g.a = a.data(), g.b = b.data(), g.c = c.data();
  cuda_emulator::take_launches();
  gpu::launch_gemm<T>(g, nullptr);
  std::string names;
  for (const auto& launch : cuda_emulator::take_launches()) names += launch.kernel + "\n";
  return names;
}

}  // namespace

TEST_CASE("few rows: all sizes") {
  for (const std::int64_t m : {1, 2, 4, 5, 15, 16})
    for (const std::int64_t n : {1, 3, 4, 9}) check_both({.m = m, .n = n, .k = 264});
  for (const std::int64_t k : {8, 256, 520, 2056, 4104}) check_both({.m = 3, .n = 5, .k = k});
}

TEST_CASE("few rows: epilogues, old elements, rows apart") {
  for (const std::int64_t m : {1, 3, 16})
    for (const std::int64_t n : {8, 7}) {
      for (const auto epilogue : {Epilogue::none, Epilogue::relu, Epilogue::gelu, Epilogue::gelu_tanh})
        for (const bool aux : {false, epilogue != Epilogue::none})
          check_both(
              {.m = m, .n = n, .k = 40, .bias = aux, .accumulate = !aux, .aux = aux, .epilogue = epilogue});
      for (const auto epilogue :
           {Epilogue::relu_backward, Epilogue::gelu_backward, Epilogue::gelu_tanh_backward})
        check_both({.m = m, .n = n, .k = 40, .gap = 8, .offset = 8, .aux = true, .epilogue = epilogue});
    }
}

TEST_CASE("few rows: no terms") {
  for (const bool bias : {false, true})
    check_both({.m = 3, .n = 8, .k = 0, .bias = bias, .accumulate = true});
}

TEST_CASE("few rows: which products they are") {
  const Product p{.m = 16, .n = 8, .k = 64, .b_along_k = true};
  CHECK_THAT(launched<float>(p), ContainsSubstring("gemvIfLi16E"));
  CHECK_THAT(launched<BFloat16>(p), ContainsSubstring("gemm_bf16"));
  CHECK_THAT(launched<BFloat16>({.m = 4, .n = 8, .k = 64, .b_along_k = true}), ContainsSubstring("gemv"));
  const auto with = [&](auto change) {
    Product other = p;
    change(other);
    return launched<float>(other);
  };
  CHECK_THAT(with([](Product& q) { q.m = 1; }), ContainsSubstring("gemvIfLi1E"));
  CHECK_THAT(with([](Product& q) { q.m = 4; }), ContainsSubstring("gemvIfLi4E"));
  CHECK_THAT(with([](Product& q) { q.batch = {1}; }), ContainsSubstring("gemv"));
  for (const std::string& names :
       {with([](Product& q) { q.m = 17; }), with([](Product& q) { q.b_along_k = false; }),
        with([](Product& q) { q.a_along_k = false; }), with([](Product& q) { q.k = 65; }),
        with([](Product& q) { q.offset = 1; }), with([](Product& q) { q.batch = {2}; })})
    CHECK_THAT(names, ContainsSubstring("gemm_f32"));
}
