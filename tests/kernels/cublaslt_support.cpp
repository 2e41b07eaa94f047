#include "tests/kernels/cublaslt_support.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/stream.h"
#include "tapestry/kernels/cuda/vendor/cublaslt.h"
#include "tapestry/kernels/cuda/vendor/matmul.h"
#include "tapestry/kernels/policy.h"
#include "tests/support/catch.h"

namespace cublaslt_test {
namespace {

testing::FakeGpus* current_gpus = nullptr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kUntouched = 1024;

std::vector<std::string> lines(const char* text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

/// An operand in f64: `lines` of `length` elements for each matrix of the batch.
struct Operand {
  std::int64_t pitch, matrix;
  std::vector<std::int64_t> batch;
  std::vector<double> values;

  Operand(const Product& p, std::int64_t count, std::int64_t length, bool shared, bool swapped, unsigned seed,
          double between)
      : pitch(length + p.gap), matrix(count * pitch), batch(p.batch.size(), 0) {
    std::vector<std::size_t> order;  // of storage, innermost first
    for (std::size_t d = p.batch.size(); d-- > 0;) order.push_back(d);
    if (swapped) std::swap(order[order.size() - 1], order[order.size() - 2]);
    std::int64_t matrices = 1;
    for (const std::size_t d : order) {
      if (shared && d == 0) continue;
      batch[d] = matrices * matrix;
      matrices *= p.batch[d];
    }
    values.assign(static_cast<std::size_t>(p.offset + matrices * matrix), between);
    std::uint32_t state = seed * 2654435761U + 1;
    for (std::int64_t line = 0; line < matrices * count; ++line)
      for (std::int64_t i = 0; i < length; ++i) {
        state = state * 1664525U + 1013904223U;
        const double x = static_cast<double>(state >> 8) / double(1 << 23) - 1;
        // Exact in bf16, so that every dtype has the same operands.
        values[static_cast<std::size_t>(p.offset + line * pitch + i)] =
            static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
      }
  }
};

Tensor tensor_of(const std::vector<double>& values, DType dtype) {
  const Tensor t = empty({static_cast<std::int64_t>(values.size())}, DType::f64);
  std::copy(values.begin(), values.end(), t.data<double>());
  return t.to(dtype);
}

kernels::MutableArray at(const Tensor& t, std::int64_t offset) {
  char* const data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(t.raw_data()))) +
                     offset * static_cast<std::int64_t>(dtype_size(t.dtype()));
  switch (t.dtype()) {
    case DType::f64:
      return reinterpret_cast<double*>(data);
    case DType::f16:
      return reinterpret_cast<Half*>(data);
    case DType::bf16:
      return reinterpret_cast<BFloat16*>(data);
    default:
      return reinterpret_cast<float*>(data);
  }
}
kernels::ConstArray const_at(const Tensor& t, std::int64_t offset) {
  const kernels::MutableArray array = at(t, offset);
  switch (t.dtype()) {
    case DType::f64:
      return array.as<double>();
    case DType::f16:
      return array.as<Half>();
    case DType::bf16:
      return array.as<BFloat16>();
    default:
      return array.as<float>();
  }
}

void set_addresses(const Product& p, GemmArgs& g, const Tensor& a, const Tensor& b, const Tensor& c,
                   const Tensor& aux, const Tensor& bias, const Tensor& row_sums) {
  g.a = const_at(a, p.offset), g.b = const_at(b, p.offset), g.c = at(c, p.offset);
  if (p.aux) g.aux = at(aux, p.offset);
  if (p.bias) g.bias = const_at(bias, p.offset);
  if (p.row_sums) g.row_sums = at(row_sums, p.offset);
}

}  // namespace

bool no_cublaslt() {
  if (kernels::cuda::built_with_cublaslt()) return false;
  std::printf("skipped: cublasLt.h was not found when this library was built\n");
  return true;
}

#ifdef TAPESTRY_STANDIN_CUBLASLT
World::World(int gpus) {
  setenv("TAPESTRY_CUBLASLT_LIBRARY", TAPESTRY_STANDIN_CUBLASLT, 1);
  library_ = cuda::open_library(cuda::cublaslt_spec(), {.loaded = false, .loader = false});
  unsetenv("TAPESTRY_CUBLASLT_LIBRARY");
  controls_ = library_.function<const StandInCublasLt*()>("tapestry_standin_cublaslt")();
  controls_->reset();
  gpus_ = std::make_unique<testing::FakeGpus>(gpus);
  current_gpus = gpus_.get();
  controls_->set_device([](void* stream, void (*work)(void*),
                           void* argument) { current_gpus->launch(stream, [=] { work(argument); }); },
                        [] { return testing::FakeGpus::chosen_gpu(); });
  kernels::cuda::use_cublaslt_library(&library_);
  setenv("TAPESTRY_CACHE_DIR", "", 1);
  kernels::reset_policy();
  set_kernel_policy(KernelPolicy::vendor);
  own_calls = 0;
}
#else
World::World(int) { throw std::logic_error("World in a build without cuBLASLt"); }
#endif

World::~World() {
  gpus_.reset();  // runs the work that streams still have
  kernels::cuda::use_cublaslt_library(nullptr);
  kernels::reset_policy();
  CHECK(std::string(controls_->violations()).empty() != expects_violation_);
  if (!expects_violation_) CHECK(std::string(controls_->violations()) == "");
  CHECK(controls_->live() == 0);
}

std::vector<std::string> World::products() const { return lines(controls_->products()); }
std::vector<std::string> World::preferences() const { return lines(controls_->preferences()); }

Operands::Operands(const Product& p, Device device) {
  Operand left(p, p.a_along_k ? p.m : p.k, p.a_along_k ? p.k : p.m, p.a_shared, p.a_swapped, 1, kNaN);
  Operand right(p, p.b_along_k ? p.n : p.k, p.b_along_k ? p.k : p.n, p.b_shared, false, 2, kNaN);
  Operand out(p, p.m, p.n, false, false, 3, kUntouched), extra(p, p.m, p.n, false, false, 4, kUntouched);
  Operand row({.n = p.n, .offset = p.offset}, 1, p.n, false, false, 5, kNaN);
  const std::vector<double> sums(static_cast<std::size_t>(p.m + p.offset), kUntouched);
  GemmArgs g;
  g.m = p.m, g.n = p.n, g.k = p.k;
  g.a_strides = p.a_along_k ? kernels::MatrixStrides{left.pitch, 1} : kernels::MatrixStrides{1, left.pitch};
  g.b_strides = p.b_along_k ? kernels::MatrixStrides{1, right.pitch} : kernels::MatrixStrides{right.pitch, 1};
  g.c_row = out.pitch;
  g.accumulate = p.accumulate;
  g.epilogue = p.epilogue;
  g.batch_ndim = static_cast<int>(p.batch.size());
  for (std::size_t d = 0; d < p.batch.size(); ++d) {
    g.batch_sizes[d] = p.batch[d];
    g.a_batch[d] = left.batch[d], g.b_batch[d] = right.batch[d], g.c_batch[d] = out.batch[d];
  }
  args = g;
  a = tensor_of(left.values, p.dtype).to(device), b = tensor_of(right.values, p.dtype).to(device);
  c = tensor_of(out.values, p.dtype).to(device), aux = tensor_of(extra.values, p.dtype).to(device);
  bias = tensor_of(row.values, p.dtype).to(device);
  row_sums = tensor_of(sums, p.dtype).to(device);
  set_addresses(p, args, a, b, c, aux, bias, row_sums);

  const auto reference = [&](bool absolute) {
    std::vector<Tensor> t;
    for (const std::vector<double>* v : std::initializer_list<const std::vector<double>*>{
             &left.values, &right.values, &out.values, &extra.values, &row.values, &sums}) {
      t.push_back(tensor_of(*v, DType::f64));
      if (absolute) t.back() = t.back().abs();
    }
    GemmArgs h = g;
    if (absolute) h.epilogue = Epilogue::none;
    set_addresses(p, h, t[0], t[1], t[2], t[3], t[4], t[5]);
    if (absolute) h.aux = nullptr;
    kernels::gemm(kCPU, DType::f64, h);
    return std::tuple(values(t[2]), values(t[3]), values(t[5]));
  };
  std::tie(want_c, want_aux, want_row_sums) = reference(false);
  size = std::get<0>(reference(true));
}

std::vector<double> values(const Tensor& t) {
  const Tensor host = t.to(kCPU).to(DType::f64);
  return {host.data<double>(), host.data<double>() + host.numel()};
}

void check_result(const Product& p, const Operands& o) {
  const double storing = p.dtype == DType::f64   ? 0x1p-50
                         : p.dtype == DType::f32 ? 0x1p-22
                         : p.dtype == DType::f16 ? 0x1p-10
                                                 : 0x1p-7;
  const auto check_values = [&](const char* what, const std::vector<double>& got,
                                const std::vector<double>& want, const std::vector<double>& size) {
    REQUIRE(got.size() == want.size());
    std::size_t bad = 0, first = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!(std::abs(got[i] - want[i]) <= storing * (size[i] + std::abs(want[i])) || got[i] == want[i]))
        first = bad++ ? first : i;
    CAPTURE(what, first, got[first], want[first]);
    CHECK(bad == 0);
  };
  CAPTURE(dtype_name(p.dtype), p.m, p.n, p.k, p.a_along_k, p.b_along_k, p.gap, p.bias, p.accumulate, p.aux,
          static_cast<int>(p.epilogue), p.batch.size());
  check_values("C", values(o.c), o.want_c, o.size);
  check_values("aux", values(o.aux), o.want_aux, o.size);
  // Every term is at most 1.
  check_values("row sums", values(o.row_sums), o.want_row_sums,
               std::vector<double>(o.want_row_sums.size(), static_cast<double>(p.k)));
}

void own_gemm(const kernels::LaunchContext& context, const GemmArgs& g) {
  ++own_calls;
  const DType dtype = g.c.dtype();
  current_gpus->launch(context.stream, [g, dtype] { kernels::gemm(kCPU, dtype, g); });
}

void multiply(const Product& p, const Operands& o, Device device, bool own) {
  const Stream stream = current_stream(device);
  kernels::cuda::choose_gemm({device, stream.native()}, p.dtype, o.args, own ? &own_gemm : nullptr);
}

void check_product(const Product& p, Device device) {
  const Operands o(p, device);
  multiply(p, o, device);
  check_result(p, o);
}

}  // namespace cublaslt_test
