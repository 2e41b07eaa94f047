#pragma once
// Macros that test an operation in one line each, in tests/autograd/<family>_test.cpp:
//
//   GOLDEN_OP("conv2d", "conv", [](const OpCase& c) {
//     return conv2d(c[0], c[1], c[2], {.stride = c.pair("stride", 1), .groups = c.integer("groups", 1)});
//   });
//   BAD_INPUT("conv2d", "expected 4-d", [] { return conv2d(zeros({3}), zeros({1, 1, 2, 2})); });
//   NOT_APPLICABLE("arange", strided, "takes no tensor");
//   OP_TEST("dropout", golden, "keeps elements with probability 1 - p") { ... }    // no PyTorch reference
//
// GOLDEN_OP runs the function on every case that tests/golden/<family>.py has recorded from PyTorch
// (tests/golden/ops/<family>.json). It checks values, gradients, finite differences, layouts, and that inputs
// are not written to. The programs of tests/device repeat this on a CUDA device (support/op_check.h).
// tests/autograd/matrix_test.cpp fails if a kind of test is missing for an operation. tests/README.md
// explains how to record cases.
#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

namespace tapestry::test {

/// The kinds of test that every operation needs. `empty` and `extreme` are golden cases with that tag.
/// `dtypes` requires a run in every dtype that the operation supports.
enum class Kind { golden, gradcheck, gradgradcheck, strided, empty, extreme, bad_input, dtypes };
inline constexpr int kNumKinds = 8;
const char* kind_name(Kind kind);

struct Golden;  // a recorded case

/// The argument of a function under test. It has the inputs of one recorded case, in the layout and dtype of
/// the current check, and the parameters. If a parameter was not recorded or is None, accessors return the
/// fallback, or throw if there is none.
class OpCase {
 public:
  OpCase(std::shared_ptr<const Golden> golden, std::vector<Tensor> inputs);

  /// The i-th input. Undefined if None was recorded, or past the last input.
  const Tensor& operator[](std::size_t i) const;
  std::size_t size() const { return inputs_.size(); }
  const std::vector<Tensor>& inputs() const { return inputs_; }

  bool has(std::string_view param) const;
  bool flag(std::string_view param, std::optional<bool> fallback = {}) const;
  std::int64_t integer(std::string_view param, std::optional<std::int64_t> fallback = {}) const;
  double real(std::string_view param, std::optional<double> fallback = {}) const;
  Scalar scalar(std::string_view param, std::optional<Scalar> fallback = {}) const;
  std::string text(std::string_view param, std::optional<std::string> fallback = {}) const;
  /// Accepts a list of integers or one integer.
  Shape dims(std::string_view param, std::optional<Shape> fallback = {}) const;
  std::vector<std::int64_t> integers(std::string_view param) const;
  std::vector<double> reals(std::string_view param) const;
  /// Accepts one or two integers.
  Pair pair(std::string_view param, std::optional<Pair> fallback = {}) const;
  /// Accepts a dtype's name such as "f32" or "i64", as recorded for a torch.dtype.
  DType dtype(std::string_view param, std::optional<DType> fallback = {}) const;
  std::optional<std::int64_t> maybe_integer(std::string_view param) const;
  std::optional<double> maybe_real(std::string_view param) const;
  std::optional<Scalar> maybe_scalar(std::string_view param) const;

 private:
  std::shared_ptr<const Golden> golden_;
  std::vector<Tensor> inputs_;
};

/// The return value of a function under test.
struct Outputs {
  std::vector<Tensor> tensors;
  Outputs(Tensor t) : tensors{std::move(t)} {}                                                // NOLINT
  Outputs(std::pair<Tensor, Tensor> p) : tensors{std::move(p.first), std::move(p.second)} {}  // NOLINT
  Outputs(std::vector<Tensor> t) : tensors(std::move(t)) {}                                   // NOLINT
  Outputs(std::initializer_list<Tensor> t) : tensors(t) {}
  template <std::same_as<bool> B>
  Outputs(B value) : tensors{empty({}, {DType::boolean, kCPU})} {  // NOLINT
    *tensors[0].data<bool>() = value;
  }
};
using OpFunction = std::function<Outputs(const OpCase&)>;
/// One line per failure.
using Failures = std::vector<std::string>;

/// The cases of one operation and the function under test. `op` is the registered name. A suffix after a
/// slash distinguishes variants: "add/in_place" counts for "add".
class GoldenOp {
 public:
  GoldenOp(std::string op, std::string family, OpFunction fn);
  GoldenOp(const GoldenOp&) = delete;
  GoldenOp& operator=(const GoldenOp&) = delete;
  Failures run() const;
  /// Runs the same cases with tensors on a CUDA device. Prints the kernels that are missing there.
  Failures run_on(Device device) const;

  const std::string op, family;
  const OpFunction fn;

 private:
  /// Calls check(cases, operation, kinds to skip).
  template <class F>
  Failures for_cases(const F& check) const;
};

/// Registers that an operation has a kind of test, or (with a reason) that the kind does not apply.
struct Row {
  Row(std::string op, Kind kind, std::string reason = "");
};

/// Fails unless `fn` throws a tapestry::Error whose message starts with `[` and contains `text`.
Failures check_throws(std::string_view text, const std::function<void()>& fn);

inline void report(const Failures& failures) {
  for (const std::string& failure : failures) FAIL_CHECK(failure);
  if (failures.empty()) SUCCEED();
}

}  // namespace tapestry::test

#define TAPESTRY_TEST_JOIN2(a, b) a##b
#define TAPESTRY_TEST_JOIN(a, b) TAPESTRY_TEST_JOIN2(a, b)
#define TAPESTRY_TEST_TEXT2(a) #a
#define TAPESTRY_TEST_TEXT(a) TAPESTRY_TEST_TEXT2(a)
#define TAPESTRY_TEST_ID(name) TAPESTRY_TEST_JOIN(name, __LINE__)

#define GOLDEN_OP(op, family, ...)                                                                 \
  static const ::tapestry::test::GoldenOp TAPESTRY_TEST_ID(golden_op_)(op, family, __VA_ARGS__);   \
  TEST_CASE(op ": golden cases") { ::tapestry::test::report(TAPESTRY_TEST_ID(golden_op_).run()); } \
  TEST_CASE(op ": golden cases on a device", "[.device]") {                                        \
    if (!no_gpu()) ::tapestry::test::report(TAPESTRY_TEST_ID(golden_op_).run_on("cuda:0"));        \
  }                                                                                                \
  static_assert(true)

#define BAD_INPUT(op, text, ...)                                                                    \
  static const ::tapestry::test::Row TAPESTRY_TEST_ID(row_)(op, ::tapestry::test::Kind::bad_input); \
  TEST_CASE(op ": bad input, line " TAPESTRY_TEST_TEXT(__LINE__)) {                                 \
    ::tapestry::test::report(::tapestry::test::check_throws(text, __VA_ARGS__));                    \
  }                                                                                                 \
  static_assert(true)

#define NOT_APPLICABLE(op, kind, reason) \
  static const ::tapestry::test::Row TAPESTRY_TEST_ID(row_)(op, ::tapestry::test::Kind::kind, reason)

/// Defines a hand-written test case that counts as `kind` for the operation.
#define OP_TEST(op, kind, text)                                                                \
  static const ::tapestry::test::Row TAPESTRY_TEST_ID(row_)(op, ::tapestry::test::Kind::kind); \
  TEST_CASE(op ": " #kind ", " text)
