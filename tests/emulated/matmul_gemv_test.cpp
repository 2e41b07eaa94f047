// Tests that the gemv kernel, for products with few rows, matches the CPU's kernel in f64.
#include "tests/emulated/matmul.h"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

namespace {

void check_both(Product p) {
  p.b_along_k = true;
  for_float_dtypes([&]<class T>() { check_product<T>(p); });
}

template <class T>
std::string launched(const Product& p) {
  const Operands o(p);
  const Block<T> a(o.a.values, p.offset), b(o.b.values, p.offset), c(o.c.values);
  GemmArgs g = gemm_of(p, o);
  g.a = a.data(), g.b = b.data(), g.c = c.data();
  return kernels_of([&] { gpu::launch_gemm<T>({}, g); });
}

}  // namespace

TEST_CASE("gemv: every number of rows and columns gives the CPU's values") {
  for (const std::int64_t m : {1, 2, 4, 5, 15, 16})
    for (const std::int64_t n : {1, 3, 4, 9}) check_both({.m = m, .n = n, .k = 264});
  for (const std::int64_t k : {8, 256, 520, 2056, 4104}) check_both({.m = 3, .n = 5, .k = k});
}

TEST_CASE("gemv: epilogues, accumulation and gaps between rows give the CPU's values") {
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

TEST_CASE("gemv: with k = 0 only C and the bias remain") {
  for (const bool bias : {false, true})
    check_both({.m = 3, .n = 8, .k = 0, .bias = bias, .accumulate = true});
}

TEST_CASE("gemv: it is used only for few rows with aligned operands along k") {
  const Product p{.m = 16, .n = 8, .k = 64, .b_along_k = true};
  CHECK_THAT(launched<float>(p), ContainsSubstring("gemvIfLi16E"));
  CHECK_THAT(launched<BFloat16>(p), ContainsSubstring("gemm_16_bit"));
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
