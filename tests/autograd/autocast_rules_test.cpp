// Compares the list of autocast with PyTorch's, which tests/golden/autocast.py has recorded.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/kernels/ops/functions.h"
#include "tapestry/nn/functional.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

using namespace tapestry;
using autograd::CastPolicy;

namespace {

using Run = std::function<DType(DType first, DType others)>;

Tensor t(DType dtype, const Shape& sizes) { return (rand(sizes) * 0.5 + 0.25).to(dtype); }
Tensor square(DType dtype) { return (eye(4) * 2 + 0.1).to(dtype); }

Run one(Tensor (*f)(const Tensor&)) {
  return [f](DType a, DType) { return f(t(a, {4, 4})).dtype(); };
}
Run two(Tensor (*f)(const Tensor&, const Tensor&)) {
  return [f](DType a, DType b) { return f(t(a, {4, 4}), t(b, {4, 4})).dtype(); };
}
template <class F>
Run of(F f) {
  return [f](DType a, DType b) { return f(a, b).dtype(); };
}

RecurrentWeights weights(DType b, std::int64_t gates) {
  return {t(b, {gates * 4, 3}), t(b, {gates * 4, 4}), t(b, {gates * 4}), t(b, {gates * 4})};
}

// The functions of one tensor that have a row.
std::map<std::string, Run> functions_with_rows() {
  std::map<std::string, Run> ops;
  kernels::for_rows_of(kernels::Functions(), [&]<class Row>() {
    ops[Row::kSlotName.text] = one([](const Tensor& x) {
      return autograd::call_function<Row::kSlotName>(x, {1, 20, 1});
    });
  });
  return ops;
}
// The other operations as tests/golden/autocast.py calls them.
std::map<std::string, Run> operations() {
  std::map<std::string, Run> ops;
  using F1 = Tensor (*)(const Tensor&);
  for (const auto& [name, f] : std::initializer_list<std::pair<const char*, F1>>{
           {"acos", [](const Tensor& x) { return acos(x); }},
           {"asin", [](const Tensor& x) { return asin(x); }},
           {"cosh", [](const Tensor& x) { return cosh(x); }},
           {"erfinv", [](const Tensor& x) { return erfinv(x); }},
           {"expm1", [](const Tensor& x) { return expm1(x); }},
           {"log10", [](const Tensor& x) { return log10(x); }},
           {"log1p", [](const Tensor& x) { return log1p(x); }},
           {"log2", [](const Tensor& x) { return log2(x); }},
           {"reciprocal", [](const Tensor& x) { return reciprocal(x); }},
           {"sinh", [](const Tensor& x) { return sinh(x); }},
           {"tan", [](const Tensor& x) { return tan(x); }},
           {"sin", [](const Tensor& x) { return sin(x); }},
           {"cos", [](const Tensor& x) { return cos(x); }},
           {"prod", [](const Tensor& x) { return prod(x); }},
           {"sum", [](const Tensor& x) { return x.sum(); }},
           {"mean", [](const Tensor& x) { return x.mean(); }},
           {"std", [](const Tensor& x) { return x.std(); }},
           {"var", [](const Tensor& x) { return x.var(); }},
           {"cumsum", [](const Tensor& x) { return cumsum(x, 0); }},
           {"cumprod", [](const Tensor& x) { return cumprod(x, 0); }},
           {"softmax", [](const Tensor& x) { return softmax(x, 1); }},
           {"log_softmax", [](const Tensor& x) { return log_softmax(x, 1); }},
           {"logsumexp", [](const Tensor& x) { return logsumexp(x, 1); }},
           {"norm", [](const Tensor& x) { return norm(x, 2, 1); }},
           {"normalize", [](const Tensor& x) { return normalize(x); }},
           {"linalg.vector_norm", [](const Tensor& x) { return linalg::vector_norm(x, 2, 1); }},
           {"linalg.matrix_norm", [](const Tensor& x) { return linalg::matrix_norm(x); }},
           {"pow/number", [](const Tensor& x) { return pow(x, 2); }},
           {"quantile", [](const Tensor& x) { return quantile(x, 0.5); }},
           {"dropout", [](const Tensor& x) { return dropout(x, 0.5, true); }},
           {"embedding", [](const Tensor& x) { return embedding(x, zeros({4}, kInt64)); }},
           {"hinge_embedding_loss",
            [](const Tensor& x) { return nn::functional::hinge_embedding_loss(x, ones({4, 4})); }},
           {"nll_loss", [](const Tensor& x) { return nll_loss(x, zeros({4}, kInt64)); }},
           {"cross_entropy", [](const Tensor& x) { return cross_entropy(x, zeros({4}, kInt64)); }}})
    ops[name] = one(f);
  for (const char* name : {"avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "interpolate"})
    ops[name] = of([name = std::string(name)](DType a, DType) {
      const Tensor x = t(a, {1, 1, 4, 4});
      if (name == "avg_pool2d") return avg_pool2d(x, {.kernel_size = 2});
      if (name == "max_pool2d") return max_pool2d(x, {.kernel_size = 2});
      if (name == "interpolate")
        return interpolate(x, {.scale_factor = 2, .mode = InterpolateMode::bilinear});
      return adaptive_avg_pool2d(x, 2);
    });
  for (const char* name : {"avg_pool3d", "max_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d"})
    ops[name] = of([name = std::string(name)](DType a, DType) {
      const Tensor x = t(a, {1, 1, 4, 4, 4});
      if (name == "avg_pool3d") return avg_pool3d(x, {.kernel_size = {2, 2, 2}});
      if (name == "max_pool3d") return max_pool3d(x, {.kernel_size = {2, 2, 2}});
      if (name == "adaptive_avg_pool3d") return adaptive_avg_pool3d(x, {2, 2, 2});
      return adaptive_max_pool3d(x, {2, 2, 2});
    });
  using F2 = Tensor (*)(const Tensor&, const Tensor&);
  for (const auto& [name, f] : std::initializer_list<std::pair<const char*, F2>>{
           {"add", [](const Tensor&x, const Tensor&y) { return add(x, y); }},
           {"sub", [](const Tensor&x, const Tensor&y) { return sub(x, y); }},
           {"mul", [](const Tensor&x, const Tensor&y) { return mul(x, y); }},
           {"div", [](const Tensor&x, const Tensor&y) { return div(x, y); }},
           {"maximum", [](const Tensor&x, const Tensor&y) { return maximum(x, y); }},
           {"minimum", [](const Tensor&x, const Tensor&y) { return minimum(x, y); }},
           {"atan2", [](const Tensor&x, const Tensor&y) { return atan2(x, y); }},
           {"pow", [](const Tensor&x, const Tensor&y) { return pow(x, y); }},
           {"matmul", [](const Tensor&x, const Tensor&y) { return matmul(x, y); }},
           {"mm", [](const Tensor&x, const Tensor&y) { return mm(x, y); }},
           {"addmm", [](const Tensor&x, const Tensor&y) { return addmm(x, y, y); }},
           {"einsum", [](const Tensor&x, const Tensor&y) { return einsum("ij,jk->ik", {x, y}); }},
           {"tensordot", [](const Tensor&x, const Tensor&y) { return tensordot(x, y, 1); }},
           {"linear", [](const Tensor&x, const Tensor&y) { return linear(x, y, y[0]); }},
           {"mv", [](const Tensor&x, const Tensor&y) { return mv(x, y[0]); }},
           {"dot", [](const Tensor&x, const Tensor&y) { return dot(x[0], y[0]); }},
           {"outer", [](const Tensor&x, const Tensor&y) { return outer(x[0], y[0]); }},
           {"prelu", [](const Tensor&x, const Tensor&y) { return prelu(x, y[0].narrow(0, 0, 1)); }},
           {"layer_norm", [](const Tensor&x, const Tensor&y) { return layer_norm(x, {4}, y[0], y[0]); }},
           {"rms_norm", [](const Tensor&x, const Tensor&y) { return rms_norm(x, {4}, y[0]); }},
           {"batch_norm",
            [](const Tensor&x,
               const Tensor&y) { return batch_norm(x, zeros({4}), ones({4}), y[0], y[0], true); }},
           {"mse_loss", [](const Tensor&x, const Tensor&y) { return mse_loss(x, y); }},
           {"l1_loss", [](const Tensor&x, const Tensor&y) { return nn::functional::l1_loss(x, y); }},
           {"smooth_l1_loss",
            [](const Tensor&x, const Tensor&y) { return nn::functional::smooth_l1_loss(x, y); }},
           {"huber_loss", [](const Tensor&x, const Tensor&y) { return nn::functional::huber_loss(x, y); }},
           {"kl_div", [](const Tensor&x, const Tensor&y) { return nn::functional::kl_div(x, y); }},
           {"soft_margin_loss",
            [](const Tensor&x, const Tensor&y) { return nn::functional::soft_margin_loss(x, y); }},
           {"poisson_nll_loss",
            [](const Tensor&x, const Tensor&y) { return nn::functional::poisson_nll_loss(x, y); }},
           {"cosine_embedding_loss",
            [](const Tensor&x,
               const Tensor&y) { return nn::functional::cosine_embedding_loss(x, y, ones({4})); }},
           {"triplet_margin_loss",
            [](const Tensor&x, const Tensor&y) { return nn::functional::triplet_margin_loss(x, y, y); }},
           {"margin_ranking_loss",
            [](const Tensor&x,
               const Tensor&y) { return nn::functional::margin_ranking_loss(x[0], y[0], ones({4})); }},
           {"binary_cross_entropy",
            [](const Tensor&x, const Tensor&y) { return binary_cross_entropy(x, y); }},
           {"binary_cross_entropy_with_logits",
            [](const Tensor&x, const Tensor&y) { return binary_cross_entropy_with_logits(x, y); }},
           {"cosine_similarity", [](const Tensor&x, const Tensor&y) { return cosine_similarity(x, y); }},
           {"cdist", [](const Tensor&x, const Tensor&y) { return cdist(x, y); }},
           {"cat", [](const Tensor&x, const Tensor&y) { return cat({x, y}); }},
           {"stack", [](const Tensor&x, const Tensor&y) { return stack({x, y}); }},
           {"addcmul", [](const Tensor&x, const Tensor&y) { return addcmul(x, y, y); }},
           {"addcdiv", [](const Tensor&x, const Tensor&y) { return addcdiv(x, y, y); }},
           {"cross",
            [](const Tensor&x, const Tensor&y) { return cross(x.narrow(1, 0, 3), y.narrow(1, 0, 3), 1); }},
           {"index_copy",
            [](const Tensor&x, const Tensor&y) { return index_copy(x, 0, zeros({4}, kInt64), y); }},
           {"scatter_add",
            [](const Tensor&x, const Tensor&y) { return scatter_add(x, 0, zeros({4, 4}, kInt64), y); }},
           {"linalg.solve",
            [](const Tensor&x, const Tensor&y) { return linalg::solve(square(x.dtype()), y); }},
           {"linalg.inv", [](const Tensor&x, const Tensor&) { return linalg::inv(square(x.dtype())); }},
           {"linalg.cholesky",
            [](const Tensor&x, const Tensor&) { return linalg::cholesky(square(x.dtype())); }},
           {"linalg.svdvals",
            [](const Tensor&x, const Tensor&) { return linalg::svdvals(square(x.dtype())); }},
           {"linalg.eigvalsh",
            [](const Tensor&x, const Tensor&) { return linalg::eigvalsh(square(x.dtype())); }},
           {"linalg.matrix_rank",
            [](const Tensor&x, const Tensor&) { return linalg::matrix_rank(square(x.dtype())); }},
           {"linalg.qr", [](const Tensor&x, const Tensor&) { return linalg::qr(square(x.dtype())).first; }}})
    ops[name] = two(f);
  ops["bmm"] = of([](DType a, DType b) { return bmm(t(a, {2, 4, 4}), t(b, {2, 4, 4})); });
  ops["baddbmm"] = of([](DType a, DType b) {
    return baddbmm(t(a, {2, 4, 4}), t(b, {2, 4, 4}), t(b, {2, 4, 4}));
  });
  ops["conv1d"] = of([](DType a, DType b) { return conv1d(t(a, {1, 2, 5}), t(b, {2, 2, 3})); });
  ops["conv2d"] = of([](DType a, DType b) {
    return conv2d(t(a, {1, 2, 5, 5}), t(b, {2, 2, 3, 3}), t(b, {2}));
  });
  ops["conv3d"] = of([](DType a, DType b) { return conv3d(t(a, {1, 2, 3, 3, 3}), t(b, {2, 2, 3, 3, 3})); });
  ops["conv_transpose1d"] = of([](DType a, DType b) {
    return conv_transpose1d(t(a, {1, 2, 5}), t(b, {2, 2, 3}));
  });
  ops["conv_transpose2d"] = of([](DType a, DType b) {
    return conv_transpose2d(t(a, {1, 2, 5, 5}), t(b, {2, 2, 3, 3}));
  });
  ops["conv_transpose3d"] = of([](DType a, DType b) {
    return conv_transpose3d(t(a, {1, 2, 3, 3, 3}), t(b, {2, 2, 3, 3, 3}));
  });
  ops["scaled_dot_product_attention"] = of([](DType a, DType b) {
    return scaled_dot_product_attention(t(a, {1, 2, 4, 4}), t(b, {1, 2, 4, 4}), t(b, {1, 2, 4, 4}));
  });
  ops["group_norm"] = of([](DType a, DType b) {
    return group_norm(t(a, {2, 4, 3}), 2, t(b, {4}), t(b, {4}));
  });
  ops["instance_norm"] = of([](DType a, DType b) {
    return instance_norm(t(a, {2, 4, 3}), {}, {}, t(b, {4}), t(b, {4}));
  });
  ops["grid_sample"] = of([](DType a, DType b) {
    return grid_sample(t(a, {1, 1, 4, 4}), t(b, {1, 4, 4, 2}));
  });
  ops["lstm"] = of([](DType a, DType b) {
    return std::get<0>(lstm(t(a, {5, 2, 3}), {}, {}, weights(b, 4)));
  });
  ops["gru"] = of([](DType a, DType b) { return gru(t(a, {5, 2, 3}), {}, weights(b, 3)).first; });
  ops["rnn_tanh"] = of([](DType a, DType b) { return rnn_tanh(t(a, {5, 2, 3}), {}, weights(b, 1)).first; });
  return ops;
}

DType dtype_of_name(const std::string& name) {
  return name == "f32" ? DType::f32 : name == "bf16" ? DType::bf16 : DType::i64;
}

std::ifstream golden() {
  std::ifstream file(tests::source_path("tests/golden/autocast.txt"));
  REQUIRE(file);
  return file;
}

}  // namespace

TEST_CASE("autocast list: each operation on the CPU returns PyTorch's dtype") {
  const std::map<std::string, Run> ops = operations(), rows = functions_with_rows();
  std::set<std::string> compared;
  std::ifstream file = golden();
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, op, first, others, result;
    words >> kind >> op >> first >> others >> result;
    if (kind != "cpu") continue;
    if (!rows.contains(op)) compared.insert(op);
    // PyTorch has errors where operands of two dtypes meet; the rule for one dtype is compared.
    if (result == "error") continue;
    // torch.nn.GRU on the CPU returns the dtype of the initial state, though its products are bf16. Here it
    // returns bf16, as PyTorch's does on GPUs.
    if (op == "gru") result = "bf16";
    const auto row = rows.find(op), run = row != rows.end() ? row : ops.find(op);
    INFO(line);
    REQUIRE((row != rows.end() || run != ops.end()));
    const AutocastGuard guard(DType::bf16);
    CHECK(run->second(dtype_of_name(first), dtype_of_name(others)) == dtype_of_name(result));
  }
  CHECK(compared.size() == ops.size());
}

TEST_CASE("autocast list: the rules for GPUs are PyTorch's") {
  // PyTorch's name, and ours if it differs. Missing here are operations that Tapestry does not have.
  const std::map<std::string, std::string> renamed = {{"linalg_vector_norm", "linalg.vector_norm"},
                                                      {"linalg_matrix_norm", "linalg.matrix_norm"},
                                                      {"frobenius_norm", "norm"},
                                                      {"grid_sampler", "grid_sample"},
                                                      {"lstm_cell", "lstm"},
                                                      {"gru_cell", "gru"},
                                                      {"rnn_tanh_cell", "rnn_tanh"},
                                                      {"rnn_relu_cell", "rnn_relu"},
                                                      {"upsample_bilinear2d", "interpolate"}};
  std::set<std::string> ours;
  for (const autograd::CastRule& r : autograd::cast_rules()) ours.insert(r.op);
  for (const autograd::Op* op = autograd::Op::first(); op; op = op->next()) ours.insert(op->name);
  std::map<std::string, std::string> theirs;
  std::ifstream file = golden();
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, policy, op;
    words >> kind >> policy >> op;
    if (kind != "cuda") continue;
    const auto name = renamed.find(op);
    const std::string& mine = name == renamed.end() ? op : name->second;
    if (!ours.contains(mine)) continue;
    theirs[mine] = policy;
    INFO(line);
    CHECK(autograd::policy_name(autograd::cast_policy(mine.c_str(), DeviceType::cuda)) == policy);
  }
  CHECK(theirs.size() > 60);
  // Each rule of ours is PyTorch's, or is one of these.
  const std::set<std::string> own = {"batch_norm",
                                     "instance_norm",  // PyTorch's kernels take bf16 inputs with f32 weights
                                     "binary_cross_entropy",  // PyTorch throws on GPUs
                                     "cross_entropy",
                                     "ctc_loss",  // made of operations that PyTorch lists
                                     "cat",
                                     "stack",       // listed in autocast_mode.cpp
                                     "grouped_mm",  // PyTorch's refuses operands of two dtypes
                                     "linear_cross_entropy", "lstm", "gru", "rnn_tanh", "rnn_relu",
                                     // PyTorch does not have these; their parts have these rules
                                     "linear_relu", "linear_gelu", "feed_forward", "conv2d_relu",
                                     "add_layer_norm", "add_rms_norm", "batch_norm_relu", "cross_entropy_"};
  for (const autograd::CastRule& r : autograd::cast_rules()) {
    INFO(r.op);
    if (r.cuda != CastPolicy::none) CHECK((theirs.contains(r.op) || own.contains(r.op)));
  }
}

TEST_CASE("autocast list: it is sorted, and names operations that exist") {
  const auto& rules = autograd::cast_rules();
  for (std::size_t i = 1; i < rules.size(); ++i) CHECK(std::string(rules[i - 1].op) < rules[i].op);
  std::set<std::string> names = {"l1_loss",
                                 "kl_div",
                                 "soft_margin_loss",
                                 "poisson_nll_loss",
                                 "cosine_embedding_loss",
                                 "triplet_margin_loss",
                                 "margin_ranking_loss",
                                 "hinge_embedding_loss"};
  for (const autograd::Op* op = autograd::Op::first(); op; op = op->next()) names.insert(op->name);
  for (const autograd::CastRule& r : rules) {
    INFO(r.op);
    CHECK(names.contains(r.op));
  }
}

TEST_CASE("autocast list: docs/reference/autocast.md is up to date") {
  std::string page =
      "# What autocast casts\n\n"
      "tests/autograd/autocast_rules_test.cpp writes this page from the list in autograd/autocast_rules.cpp, "
      "and compares the "
      "list with PyTorch's. To update it, run `TAPESTRY_WRITE_DOCS=1 build/ci/bin/tests_autograd \"autocast "
      "list*\"`. [Mixed "
      "precision](../tutorials/mixed-precision.md) explains autocast.\n\n"
      "- low: converts the operands to the dtype of the guard.\n"
      "- f32: converts bf16 and f16 operands to f32.\n"
      "- promote: converts the operands to the widest dtype among them.\n"
      "- through: if the operands have several dtypes, computes in f32 and returns the dtype of the first "
      "one.\n"
      "- An empty field: the operation takes its operands as they are, as all operations that are not listed "
      "do.\n\n"
      "f64 and integers are never converted. PyTorch has a list for CPUs and another one for GPUs, and so "
      "has Tapestry.\n\n"
      "| operation | CPU | GPU |\n|---|---|---|\n";
  const auto field = [](CastPolicy p) {
    return p == CastPolicy::none ? std::string() : std::string(autograd::policy_name(p));
  };
  for (const autograd::CastRule& r : autograd::cast_rules())
    page += "| `" + std::string(r.op) + "` | " + field(r.cpu) + " | " + field(r.cuda) + " |\n";
  const std::string path = tests::source_path("docs/reference/autocast.md");
  if (std::getenv("TAPESTRY_WRITE_DOCS")) {
    std::ofstream file(path);
    file << page;
    REQUIRE(file.flush());
  }
  std::ifstream file(path);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  CHECK((written == page));
}
