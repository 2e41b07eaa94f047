// The stand-in cuBLASLt; standin.h describes it.
#include "tests/support/cublaslt/standin.h"

#include <cublasLt.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "tapestry/core/half.h"

namespace {

// ---- the contents of descriptors

struct Operation {
  std::uint32_t magic;
  std::int32_t compute, scale, transa, transb;
  std::uint32_t epilogue;
  const void* bias;
  void* aux;
  std::int64_t aux_ld, aux_stride;
};
struct Layout {
  std::uint32_t magic;
  std::int32_t type, batch;
  std::int64_t rows, cols, ld, stride;
};
struct Preference {
  std::uint32_t magic, schemes;
  std::uint64_t workspace;
  std::uint32_t align[4];
};
/// What an algorithm was proposed for.
struct Algorithm {
  std::uint64_t problem, workspace;
  std::uint32_t number, align[4];
};
constexpr std::uint32_t kOperation = 0x11110001, kLayout = 0x11110002, kPreference = 0x11110003;
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// ---- state

std::recursive_mutex mutex;
std::map<std::string, int> call_counts;
std::map<std::pair<std::string, int>, cublasStatus_t> faults;
std::map<cublasLtHandle_t, int> handles;  // the GPU of each
std::uintptr_t next_handle = 0x2000;
std::string products, preferences, violations;
void* last_stream = nullptr;
int algorithm_count = 2;
std::size_t algorithm_workspace = 1000;
void (*launch_work)(void*, void (*)(void*), void*) = nullptr;
int (*chosen_gpu)() = nullptr;

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
template <class... Parts>
cublasStatus_t violated(const Parts&... parts) {
  violations += text(parts..., "\n");
  return CUBLAS_STATUS_INVALID_VALUE;
}

/// Counts a call and runs f(), unless a test has asked the call to fail.
template <class F>
cublasStatus_t call(const char* name, F f) {
  const std::lock_guard lock(mutex);
  const auto fault = faults.find({name, call_counts[name]++});
  return fault == faults.end() ? f() : fault->second;
}

// ---- names

const char* name_of_type(int type) {
  switch (type) {
    case CUDA_R_64F:
      return "f64";
    case CUDA_R_16F:
      return "f16";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_32F:
      return "f32";
  }
  return "unknown";
}
const char* name_of_compute(int compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_64F:
      return "64F";
    case CUBLAS_COMPUTE_32F:
      return "32F";
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return "TF32";
  }
  return "unknown";
}
std::string name_of_epilogue(std::uint32_t e) {
  switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return "";
    case CUBLASLT_EPILOGUE_BIAS:
      return " BIAS";
    case CUBLASLT_EPILOGUE_RELU:
      return " RELU";
    case CUBLASLT_EPILOGUE_RELU_BIAS:
      return " RELU_BIAS";
    case CUBLASLT_EPILOGUE_GELU:
      return " GELU";
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      return " GELU_BIAS";
    case CUBLASLT_EPILOGUE_GELU_AUX:
      return " GELU_AUX";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      return " GELU_AUX_BIAS";
    case CUBLASLT_EPILOGUE_DGELU:
      return " DGELU";
    case CUBLASLT_EPILOGUE_BGRADB:
      return " BGRADB";
  }
  return "";
}
bool adds_bias(std::uint32_t e) { return e & CUBLASLT_EPILOGUE_BIAS; }
bool sums_columns(std::uint32_t e) { return e == CUBLASLT_EPILOGUE_BGRADB; }
bool has_aux(std::uint32_t e) { return e & 128; }
bool is_known(std::uint32_t e) { return e == CUBLASLT_EPILOGUE_DEFAULT || !name_of_epilogue(e).empty(); }

// ---- a product

struct Product {
  Operation op;
  Layout a, b, c;
  double alpha, beta;
  const void *left, *right;
  void* out;
};

double get(const void* data, int type, std::int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[i];
    case CUDA_R_32F:
      return static_cast<double>(static_cast<const float*>(data)[i]);
    case CUDA_R_16F:
      return static_cast<double>(static_cast<float>(static_cast<const tapestry::Half*>(data)[i]));
    default:
      return static_cast<double>(static_cast<float>(static_cast<const tapestry::BFloat16*>(data)[i]));
  }
}
void put(void* data, int type, std::int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[i] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case CUDA_R_16F:
      static_cast<tapestry::Half*>(data)[i] = tapestry::Half(static_cast<float>(value));
      break;
    default:
      static_cast<tapestry::BFloat16*>(data)[i] = tapestry::BFloat16(static_cast<float>(value));
  }
}

constexpr double kRoot = 0.7978845608028654, kCube = 0.044715;  // sqrt(2 / pi)
double gelu(double x) { return 0.5 * x * (1 + std::tanh(kRoot * (x + kCube * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(kRoot * (x + kCube * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * kCube * x * x);
}

void compute(const Product& p) {
  const bool ta = p.op.transa == CUBLAS_OP_T, tb = p.op.transb == CUBLAS_OP_T;
  const std::int64_t k = ta ? p.a.rows : p.a.cols;
  for (std::int64_t batch = 0; batch < p.c.batch; ++batch)
    for (std::int64_t j = 0; j < p.c.cols; ++j)
      for (std::int64_t i = 0; i < p.c.rows; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += get(p.left, p.a.type, batch * p.a.stride + (ta ? i * p.a.ld + l : l * p.a.ld + i)) *
                 get(p.right, p.b.type, batch * p.b.stride + (tb ? l * p.b.ld + j : j * p.b.ld + l));
        const std::int64_t at = batch * p.c.stride + j * p.c.ld + i;
        double v = p.alpha * sum;
        if (p.beta != 0) v += p.beta * get(p.out, p.c.type, at);
        if (adds_bias(p.op.epilogue)) v += get(p.op.bias, p.c.type, i);
        const std::int64_t aux_at = batch * p.op.aux_stride + j * p.op.aux_ld + i;
        switch (p.op.epilogue & ~static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS)) {
          case CUBLASLT_EPILOGUE_RELU:
            v = v < 0 ? 0 : v;
            break;
          case CUBLASLT_EPILOGUE_GELU_AUX:
            put(p.op.aux, p.c.type, aux_at, v);
            v = gelu(v);
            break;
          case CUBLASLT_EPILOGUE_GELU:
            v = gelu(v);
            break;
          case CUBLASLT_EPILOGUE_DGELU:
            v *= gelu_slope(get(p.op.aux, p.c.type, aux_at));
            break;
        }
        put(p.out, p.c.type, at, v);
      }
  if (sums_columns(p.op.epilogue))
    for (std::int64_t j = 0; j < p.c.cols; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += get(p.right, p.b.type, tb ? l * p.b.ld + j : j * p.b.ld + l);
      put(const_cast<void*>(p.op.bias), p.c.type, j, sum);
    }
}

/// A number that differs between problems: of all fields of the descriptors but addresses.
std::uint64_t problem_of(Operation op, const Layout& a, const Layout& b, const Layout& c) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int64_t x : {std::int64_t{op.compute},
                               std::int64_t{op.scale},
                               std::int64_t{op.transa},
                               std::int64_t{op.transb},
                               std::int64_t{op.epilogue},
                               op.aux_ld,
                               op.aux_stride,
                               std::int64_t{a.type},
                               std::int64_t{a.batch},
                               a.rows,
                               a.cols,
                               a.ld,
                               a.stride,
                               b.rows,
                               b.cols,
                               b.ld,
                               b.stride,
                               c.rows,
                               c.cols,
                               c.ld,
                               c.stride})
    hash = (hash ^ static_cast<std::uint64_t>(x)) * 0x100000001b3;
  return hash;
}

std::string layout_text(const Layout& l, bool transposed, bool batched) {
  return text(transposed ? "T(" : "", l.rows, "x", l.cols, " ld ", l.ld,
              batched ? text(" every ", l.stride) : "", transposed ? ")" : "");
}
std::string product_text(const Operation& op, const Layout& a, const Layout& b, const Layout& c) {
  const bool batched = c.batch > 1;
  return text(
      name_of_type(c.type), " ", name_of_compute(op.compute), " ", layout_text(c, false, batched), " = ",
      layout_text(a, op.transa == CUBLAS_OP_T, batched), " * ",
      layout_text(b, op.transb == CUBLAS_OP_T, batched), batched ? text(" x ", c.batch) : "",
      name_of_epilogue(op.epilogue),
      has_aux(op.epilogue) ? text(" aux ld ", op.aux_ld, batched ? text(" every ", op.aux_stride) : "") : "");
}

/// Checks what the heuristics and the product have in common. Returns false after a violation.
bool is_valid(const Operation& op, const Layout& a, const Layout& b, const Layout& c) {
  const std::size_t before = violations.size();
  const bool ta = op.transa == CUBLAS_OP_T, tb = op.transb == CUBLAS_OP_T;
  if (op.magic != kOperation || a.magic != kLayout || b.magic != kLayout || c.magic != kLayout)
    violated("a descriptor was not initialised");
  for (const Layout* l : {&a, &b, &c}) {
    if (l->ld < l->rows) violated("leading dimension ", l->ld, " of ", l->rows, " rows");
    if (l->rows <= 0 || l->cols <= 0) violated("an empty matrix");
    if (l->type != c.type || l->batch != c.batch) violated("matrices of different types or batches");
  }
  if (c.batch > 1 && c.stride == 0) violated("all matrices of a batch are written to one place");
  if ((ta ? a.cols : a.rows) != c.rows || (tb ? b.rows : b.cols) != c.cols ||
      (ta ? a.rows : a.cols) != (tb ? b.cols : b.rows))
    violated("sizes that do not fit: ", product_text(op, a, b, c));
  if (!is_known(op.epilogue)) violated("epilogue ", op.epilogue, " is unknown here");
  if ((adds_bias(op.epilogue) || sums_columns(op.epilogue)) != (op.bias != nullptr))
    violated("the bias does not fit the epilogue");
  if (sums_columns(op.epilogue) && c.batch > 1) violated("sums of columns in a batch");
  if (has_aux(op.epilogue) != (op.aux != nullptr)) violated("aux does not fit the epilogue");
  if (op.aux && (op.aux_ld < c.rows || op.aux_ld % 8 != 0 || op.aux_stride % 8 != 0 ||
                 (c.batch > 1 && op.aux_stride == 0)))
    violated("leading dimension or stride of aux");
  const int scale = c.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
  if (op.scale != scale || (op.compute == CUBLAS_COMPUTE_64F) != (c.type == CUDA_R_64F))
    violated("types of computation and scale");
  return violations.size() == before;
}

bool is_aligned(const void* data, std::uint32_t bytes) {
  return bytes && reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

template <class Opaque, class T>
void write(Opaque* to, const T& value) {
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &value, sizeof value);
}

template <class T>
bool set(T& field, const void* from, std::size_t bytes) {
  if (bytes != sizeof field) return false;
  std::memcpy(&field, from, bytes);
  return true;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130001; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    default:
      return "CUBLAS_STATUS_OTHER";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "the test asked for it"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return call("cublasLtCreate", [&] {
    *handle = reinterpret_cast<cublasLtHandle_t>(next_handle++);
    handles[*handle] = chosen_gpu ? chosen_gpu() : -1;
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return call("cublasLtDestroy", [&] {
    return handles.erase(handle) ? CUBLAS_STATUS_SUCCESS : violated("cublasLtDestroy of no handle");
  });
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  return call("cublasLtMatmulDescInit_internal", [&] {
    if (size != sizeof *d) return violated("size of a descriptor");
    write(d, Operation{kOperation, compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                       nullptr, nullptr, 0, 0});
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute, const void* from,
                                              size_t bytes) {
  return call("cublasLtMatmulDescSetAttribute", [&] {
    Operation op = read<Operation>(d);
    bool ok = op.magic == kOperation;
    switch (attribute) {
      case CUBLASLT_MATMUL_DESC_TRANSA:
        ok = ok && set(op.transa, from, bytes);
        break;
      case CUBLASLT_MATMUL_DESC_TRANSB:
        ok = ok && set(op.transb, from, bytes);
        break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE:
        ok = ok && set(op.epilogue, from, bytes);
        break;
      case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        ok = ok && set(op.bias, from, bytes);
        break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        ok = ok && set(op.aux, from, bytes);
        break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        ok = ok && set(op.aux_ld, from, bytes);
        break;
      case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        ok = ok && set(op.aux_stride, from, bytes);
        break;
      default:
        ok = false;
    }
    if (!ok) return violated("attribute ", static_cast<int>(attribute), " of an operation");
    write(d, op);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t d, size_t size, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
  return call("cublasLtMatrixLayoutInit_internal", [&] {
    if (size != sizeof *d) return violated("size of a layout");
    write(d,
          Layout{kLayout, type, 1, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), ld, 0});
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t d,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* from,
                                                size_t bytes) {
  return call("cublasLtMatrixLayoutSetAttribute", [&] {
    Layout l = read<Layout>(d);
    const bool ok = l.magic == kLayout &&
                    (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT            ? set(l.batch, from, bytes)
                     : attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET ? set(l.stride, from, bytes)
                                                                                : false);
    if (!ok) return violated("attribute ", static_cast<int>(attribute), " of a layout");
    write(d, l);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t d, size_t size) {
  return call("cublasLtMatmulPreferenceInit_internal", [&] {
    if (size != sizeof *d) return violated("size of a preference");
    write(d, Preference{kPreference, CUBLASLT_REDUCTION_SCHEME_MASK, 0, {256, 256, 256, 256}});
    return CUBLAS_STATUS_SUCCESS;
  });
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t d,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t bytes) {
  return call("cublasLtMatmulPreferenceSetAttribute", [&] {
    Preference p = read<Preference>(d);
    bool ok = p.magic == kPreference;
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        ok = ok && set(p.workspace, from, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        ok = ok && set(p.schemes, from, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        ok = ok && set(p.align[0], from, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        ok = ok && set(p.align[1], from, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        ok = ok && set(p.align[2], from, bytes);
        break;
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        ok = ok && set(p.align[3], from, bytes);
        break;
      default:
        ok = false;
    }
    if (!ok) return violated("attribute ", static_cast<int>(attribute), " of a preference");
    write(d, p);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t left, cublasLtMatrixLayout_t right,
                                              cublasLtMatrixLayout_t in, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  return call("cublasLtMatmulAlgoGetHeuristic", [&] {
    const Operation op = read<Operation>(operation);
    const Layout a = read<Layout>(left), b = read<Layout>(right), c = read<Layout>(out);
    const Preference p = read<Preference>(preference);
    if (!handles.contains(handle) || handles[handle] != chosen_gpu())
      return violated("a handle of another GPU");
    if (p.magic != kPreference || std::memcmp(in, out, sizeof *in) != 0 || !is_valid(op, a, b, c))
      return violated("arguments of the heuristics");
    preferences += text("workspace ", p.workspace, " schemes ", p.schemes, " align ", p.align[0], " ",
                        p.align[1], " ", p.align[2], " ", p.align[3], "\n");
    *returned = 0;
    if (algorithm_count == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < algorithm_count && i < requested; ++i) {
      Algorithm algorithm{problem_of(op, a, b, c), algorithm_workspace, static_cast<std::uint32_t>(i), {}};
      std::memcpy(algorithm.align, p.align, sizeof p.align);
      cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
      write(&result.algo, algorithm);
      result.workspaceSize = algorithm_workspace;
      result.state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* left, cublasLtMatrixLayout_t left_layout, const void* right,
                              cublasLtMatrixLayout_t right_layout, const void* beta, const void* in,
                              cublasLtMatrixLayout_t in_layout, void* out, cublasLtMatrixLayout_t out_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  return call("cublasLtMatmul", [&] {
    const Operation op = read<Operation>(operation);
    const Layout a = read<Layout>(left_layout), b = read<Layout>(right_layout), c = read<Layout>(out_layout);
    const Algorithm chosen = read<Algorithm>(algo);
    if (!handles.contains(handle) || handles[handle] != chosen_gpu())
      return violated("a handle of another GPU");
    if (!is_valid(op, a, b, c)) return CUBLAS_STATUS_INVALID_VALUE;
    if (in != out || std::memcmp(in_layout, out_layout, sizeof *in_layout) != 0)
      return violated("C is not D");
    if (chosen.problem != problem_of(op, a, b, c)) return violated("an algorithm for another problem");
    if (!is_aligned(left, chosen.align[0]) || !is_aligned(right, chosen.align[1]) ||
        !is_aligned(out, chosen.align[2]) || chosen.align[3] != chosen.align[2])
      return violated("an operand is less aligned than the heuristics were told");
    if (workspace_bytes < chosen.workspace || (chosen.workspace > 0 && !is_aligned(workspace, 16)) ||
        (chosen.workspace > 0 && !workspace))
      return violated("workspace of ", workspace_bytes, " bytes");
    const bool f64 = c.type == CUDA_R_64F;
    auto* const product = new Product{op,
                                      a,
                                      b,
                                      c,
                                      f64 ? read<double>(alpha) : static_cast<double>(read<float>(alpha)),
                                      f64 ? read<double>(beta) : static_cast<double>(read<float>(beta)),
                                      left,
                                      right,
                                      out};
    products +=
        text(product_text(op, a, b, c), product->beta != 0 ? " + D" : "", " algorithm ", chosen.number, "\n");
    last_stream = stream;
    launch_work(
        stream,
        [](void* argument) {
          const auto* const work = static_cast<Product*>(argument);
          compute(*work);
          delete work;
        },
        product);
    return CUBLAS_STATUS_SUCCESS;
  });
}

const StandInCublasLt* tapestry_standin_cublaslt() {
  static std::string shown;
  static const StandInCublasLt controls{
      .set_device = [](auto launch, auto gpu) { launch_work = launch, chosen_gpu = gpu; },
      .fail =
          [](const char* name, int nth, int status) {
            faults[{name, nth}] = static_cast<cublasStatus_t>(status);
          },
      .set_algorithms =
          [](int count, std::size_t workspace) { algorithm_count = count, algorithm_workspace = workspace; },
      .calls = [](const char* name) { return call_counts[name]; },
      .live = [] { return static_cast<int>(handles.size()); },
      .products = [] { return (shown = products).c_str(); },
      .last_stream = [] { return last_stream; },
      .preferences = [] { return (shown = preferences).c_str(); },
      .violations = [] { return (shown = violations).c_str(); },
      .reset =
          [] {
            call_counts.clear(), faults.clear(), products.clear(), preferences.clear(), violations.clear();
            algorithm_count = 2, algorithm_workspace = 1000;
          }};
  return &controls;
}
}
