// Tests of the test harness: it must pass a correct operation, and must detect every planted bug.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/autograd/tape.h"
#include "tests/support/files.h"
#include "tests/support/op_check.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

// Hand-written results for the function a^2 + 3 b, in the format of PyTorch recordings.
const char* const kCases = R"({"torch": "none", "cases": [
{"op": "f", "params": {"p": 2},
 "inputs": [{"dtype": "f64", "shape": [2, 3], "values": [1, 2, -1, 0.5, -2, 3]},
            {"dtype": "f64", "shape": [2, 3], "values": [2, 0, 1, 1, -1, 4]}],
 "outputs": [{"dtype": "f64", "shape": [2, 3], "values": [7, 4, 4, 3.25, 1, 21],
              "scale": [15, 12, 9, 7, 16, 51]}],
 "grads": [{"dtype": "f64", "shape": [2, 3], "values": [-1, 5, 0.5, 1.5, 0, -9]},
           {"dtype": "f64", "shape": [2, 3], "values": [-1.5, 3.75, -0.75, 4.5, 0, -4.5]}]},
{"op": "f", "tags": ["extreme", "no_gradcheck"],
 "inputs": [{"dtype": "f64", "shape": [3], "values": ["inf", "nan", 1e30]},
            {"dtype": "f64", "shape": [3], "values": ["-inf", 1, 0]}],
 "outputs": [{"dtype": "f64", "shape": [3], "values": ["nan", "nan", 1e60]}]},
{"op": "f", "tags": ["empty"],
 "inputs": [{"dtype": "f64", "shape": [0, 2], "values": []}, {"dtype": "f64", "shape": [0, 2], "values": []}],
 "outputs": [{"dtype": "f64", "shape": [0, 2], "values": []}],
 "grads": [{"dtype": "f64", "shape": [0, 2], "values": []}, {"dtype": "f64", "shape": [0, 2], "values": []}]}
]})";

enum class Bug {
  none,
  value,           // one element is off by 1e-4
  single,          // f64 is computed in f32
  sloppy_half,     // f16 and bf16 are truncated instead of rounded
  eats_nan,        // NaN becomes 0
  shape,           // the result is flattened
  dtype,           // the result is always f64
  count,           // returns two outputs
  throws,          // throws in f32
  writes_input,    // writes to an input in forward
  gradient,        // the gradient of b is off by 1%
  needs,           // omits the gradient of a unless that of b is needed too
  not_recorded,    // records no gradient
  clears,          // discards the existing gradient
  late_write,      // writes to an input in backward
  writes_grad,     // writes to the gradient of the output
  strides,         // reads inputs as if they were dense
  offset,          // ignores the storage offset
  stride_zero,     // treats stride 0 as 1
  dense_gradient,  // reads the gradient of the output as if it were dense
  takes_all,       // accepts integers
  first_only,      // says that its backward is recorded, but computes the gradients from numbers
};

// Reads `t` with other strides and offset. If that would leave the storage, returns 1e30 everywhere: the
// planted bug must give wrong values without being stopped by a sanitizer.
std::vector<double> dense_read(const Tensor& t, const Shape& strides, std::int64_t offset) {
  const auto elements = static_cast<std::int64_t>(t.storage()->bytes() / dtype_size(t.dtype()));
  std::int64_t last = offset;
  for (int d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * strides[d];
  if (last >= elements) return std::vector<double>(static_cast<std::size_t>(t.numel()), 1e30);
  return numbers(detail::raw_view(t, t.sizes(), strides, offset));
}

std::vector<double> read(const Tensor& t, Bug bug) {
  if (t.numel() == 0) return {};
  if (bug == Bug::strides) return dense_read(t, contiguous_strides(t.sizes()), t.storage_offset());
  if (bug == Bug::offset) return dense_read(t, t.strides(), 0);
  if (bug == Bug::stride_zero && t.stride(0) == 0 && t.dim() > 1) {
    Shape strides = t.strides();
    strides[0] = 1;
    return dense_read(t, strides, t.storage_offset());
  }
  return numbers(t);
}

void write(const Tensor& t) {
  if (t.numel() && t.dtype() == DType::f64) *t.data<double>() += 1;
}

double truncated(double v, DType dtype) {
  if (v == 0 || !std::isfinite(v)) return v;
  const double unit = std::exp2(std::floor(std::log2(std::abs(v)))) * epsilon(dtype);
  return std::trunc(v / unit - 9) * unit;
}

// Computes a^2 + 3 b, with one planted bug.
Outputs f(const OpCase& c, Bug bug) {
  const Tensor& a = c[0];
  const Tensor& b = c[1];
  const DType dtype = a.dtype();
  if (bug != Bug::takes_all) check<TypeError>(is_floating(dtype), "[f] does not take ", dtype);
  if (bug == Bug::throws) check<TypeError>(dtype != DType::f32, "[f] not today");
  const std::vector<double> x = read(a, bug), z = read(b, bug);
  Values y{DType::f64, a.sizes(), {}, {}};
  for (std::size_t i = 0; i < x.size(); ++i) {
    double v = x[i] * x[i] + 3 * z[i];
    if (bug == Bug::value && i == 4) v += 1e-4;
    if (bug == Bug::single) v = static_cast<float>(v) + 1e-7 * v;
    if (bug == Bug::sloppy_half && epsilon(dtype) > 1e-4) v = truncated(v, dtype);
    if (bug == Bug::eats_nan && std::isnan(v)) v = 0;
    y.values.push_back(v);
  }
  if (bug == Bug::shape) y.sizes = Shape(y.sizes.numel());
  const Tensor out = make(y, bug == Bug::dtype ? DType::f64 : dtype);
  if (bug == Bug::writes_input) write(b);
  if (bug == Bug::clears && grad_enabled() && a.requires_grad()) a.set_grad({});

  if (bug != Bug::not_recorded && autograd::recording(a, b)) {
    static const char* const name = "f";
    const Tensor* outputs[] = {&out};
    const Tensor* inputs[] = {&a, &b};
    const Tensor detached = detail::raw_view(b, b.sizes(), b.strides(), b.storage_offset());
    const auto backward = [=](autograd::Backward& back) {
      const Tensor& grad = back.grad();
      const std::vector<double> g =
          bug == Bug::dense_gradient && grad.numel()
              ? dense_read(grad, contiguous_strides(grad.sizes()), grad.storage_offset())
              : numbers(grad);
      Values da{DType::f64, y.sizes, {}, {}}, db = da;
      for (std::size_t i = 0; i < g.size(); ++i) {
        da.values.push_back(2 * x[i] * g[i]);
        db.values.push_back(3 * g[i] * (bug == Bug::gradient ? 1.01 : 1));
      }
      if (back.needs(0) && !(bug == Bug::needs && !back.needs(1))) back.set(0, make(da, dtype));
      if (back.needs(1)) back.set(1, make(db, dtype));
      if (bug == Bug::late_write) write(detached);
      if (bug == Bug::writes_grad) write(grad);
    };
    autograd::record(name, outputs, inputs, backward, /*twice=*/bug == Bug::first_only);
  }
  if (bug == Bug::count) return {out, out};
  return out;
}

const OpInfo kInfo{"f", true, kFloats};

Failures failures_of(Bug bug, const std::set<Kind>& skip = {}) {
  Failures all;
  const GoldenCases cases = parse_golden(kCases);
  const auto fn = [bug](const OpCase& c) { return f(c, bug); };
  for (const auto& g : cases)
    for (std::string& failure : run_case(g, kInfo, fn, skip)) all.push_back(std::move(failure));
  if (!skip.count(Kind::dtypes))
    for (std::string& failure : run_refusals(cases, kInfo, fn)) all.push_back(std::move(failure));
  return all;
}

// Whether some failure contains all these parts.
bool mentions(const Failures& failures, std::initializer_list<const char*> parts) {
  return std::any_of(failures.begin(), failures.end(), [&](const std::string& failure) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const char* part) { return failure.find(part) != failure.npos; });
  });
}

const std::set<Kind> kOnlyGolden{Kind::gradcheck, Kind::strided, Kind::dtypes};
const std::set<Kind> kOnlyGradcheck{Kind::golden, Kind::strided, Kind::dtypes};
const std::set<Kind> kOnlyStrided{Kind::golden, Kind::gradcheck, Kind::dtypes};

#define CHECK_FOUND(bug, skip, ...)                         \
  do {                                                      \
    const Failures found_ = failures_of(bug, skip);         \
    for (const std::string& f_ : found_) UNSCOPED_INFO(f_); \
    CHECK(mentions(found_, __VA_ARGS__));                   \
  } while (false)

}  // namespace

TEST_CASE("the harness reports no failure for a correct operation") {
  for (const std::string& failure : failures_of(Bug::none)) FAIL_CHECK(failure);
}

TEST_CASE("the harness reports wrong results") {
  CHECK_FOUND(Bug::value, kOnlyGolden,
              {"f #0 [2, 3] [2, 3] {\"p\":2}, float32, values", "at [1, 1]", "expected 1"});
  CHECK_FOUND(Bug::single, kOnlyGolden, {"float64, values", "6 of 6"});
  CHECK_FOUND(Bug::sloppy_half, kOnlyGolden, {"float16, values"});
  CHECK_FOUND(Bug::sloppy_half, kOnlyGolden, {"bfloat16, values"});
  CHECK_FOUND(Bug::eats_nan, kOnlyGolden, {"f #1", "expected nan"});
  CHECK_FOUND(Bug::shape, kOnlyGolden, {"shape [6], expected [2, 3]"});
  CHECK_FOUND(Bug::dtype, kOnlyGolden, {"dtype float64, expected float16"});
  CHECK_FOUND(Bug::count, kOnlyGolden, {"2 outputs, expected 1"});
  CHECK_FOUND(Bug::throws, kOnlyGolden, {"float32, values: throws [f] not today"});
  CHECK_FOUND(Bug::writes_input, kOnlyGolden, {"values: input 1 was written to"});
  CHECK_FOUND(Bug::takes_all, {}, {"int64", "was accepted"});
}

TEST_CASE("the harness reports wrong gradients") {
  CHECK_FOUND(Bug::gradient, kOnlyGolden, {"float32, gradients: gradient of input 1"});
  CHECK_FOUND(Bug::gradient, kOnlyGradcheck, {"gradcheck: throws"});
  CHECK_FOUND(Bug::needs, kOnlyGolden, {"gradients of input 0 alone: gradient of input 0: is missing"});
  CHECK_FOUND(Bug::not_recorded, kOnlyGolden, {"no output requires a gradient"});
  CHECK_FOUND(Bug::clears, kOnlyGolden, {"added to earlier ones: gradient of input 0"});
  CHECK_FOUND(Bug::late_write, kOnlyGolden, {"gradients: input 1 was written to"});
  CHECK_FOUND(Bug::writes_grad, kOnlyGolden, {"gradient of output 0 was written to"});
  const OpInfo none{"f", false, kFloats};
  const auto fn = [](const OpCase& c) { return f(c, Bug::none); };
  CHECK(mentions(run_case(parse_golden(kCases)[0], none, fn), {"it has none"}));
}

TEST_CASE("the harness reports missing gradients of gradients") {
  const auto failures = [](Bug bug, bool twice) {
    const OpInfo info{"f", true, kFloats, twice};
    return run_case(
        parse_golden(kCases)[0], info, [bug](const OpCase& c) { return f(c, bug); }, kOnlyGradcheck);
  };
  CHECK(failures(Bug::none, false).empty());
  CHECK(mentions(failures(Bug::none, true), {"gradgradcheck: throws [f] gradients of gradients"}));
  CHECK(mentions(failures(Bug::first_only, true), {"gradgradcheck: throws", "finite differences give"}));
  CHECK(mentions(failures(Bug::first_only, false), {"create_graph: is recorded, but"}));
  OpInfo other{"g", true, kFloats, false};
  CHECK(mentions(run_case(parse_golden(kCases)[0], other, [](const OpCase& c) { return f(c, Bug::none); }),
                 {"create_graph: expected a refusal that names the operation, got: [f]"}));
}

TEST_CASE("the harness reports wrong handling of strides") {
  CHECK_FOUND(Bug::strides, kOnlyStrided, {"transposed, gradients: output 0"});
  CHECK_FOUND(Bug::strides, kOnlyStrided, {"stepped, gradients: output 0", "got nan"});
  CHECK_FOUND(Bug::offset, kOnlyStrided, {"stepped, gradients: output 0"});
  CHECK_FOUND(Bug::stride_zero, kOnlyStrided, {"expanded: result 0"});
  CHECK_FOUND(Bug::dense_gradient, kOnlyStrided, {"transposed, gradients: gradient of input 0"});
}

TEST_CASE("a skipped kind of test reports nothing") {
  for (Bug bug : {Bug::strides, Bug::offset, Bug::stride_zero, Bug::dense_gradient})
    CHECK(failures_of(bug, {Kind::strided}).empty());
  for (Bug bug : {Bug::value, Bug::eats_nan}) CHECK(failures_of(bug, {Kind::golden, Kind::strided}).empty());
  CHECK(failures_of(Bug::takes_all, {Kind::dtypes}).empty());
}

TEST_CASE("compare accepts rounding errors and rejects everything else") {
  const auto failures = [](double got, double expected, double scale, DType dtype) {
    Failures out;
    compare("x", make({dtype, {}, {got}, {}}, dtype), {dtype, {}, {expected}, {scale}}, dtype, 2, out);
    return out.size();
  };
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(failures(1 + 0x1p-51, 1, 1, DType::f64) == 0);
  CHECK(failures(1 + 0x1p-50, 1, 1, DType::f64) == 1);
  CHECK(failures(1 + 0x1p-50, 1, 4, DType::f64) == 0);  // ill-conditioned
  CHECK(failures(0x1p-149, 0, 0, DType::f32) == 0);
  CHECK(failures(0x1p-140, 0, 0, DType::f32) == 1);
  CHECK(failures(inf, 1e39, 1e39, DType::f32) == 0);  // out of range
  CHECK(failures(-inf, 1e39, 1e39, DType::f32) == 1);
  CHECK(failures(inf, 1e37, 1e37, DType::f32) == 1);
  CHECK(failures(inf, inf, 0, DType::f32) == 0);
  CHECK(failures(1e38, inf, 0, DType::f32) == 1);
  CHECK(failures(nan, nan, 0, DType::f32) == 0);
  CHECK(failures(nan, 1, 1, DType::f32) == 1);
  CHECK(failures(1, nan, 0, DType::f32) == 1);
  CHECK(failures(3, 3, 3, DType::i64) == 0);
  CHECK(failures(4, 3, 3, DType::i64) == 1);
}

TEST_CASE("every layout holds the same numbers") {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    Values v{dtype, {2, 3, 2, 2}, {}, {}};
    for (int i = 0; i < 24; ++i) v.values.push_back(i);
    for (Layout layout : kLayouts) {
      const Tensor t = make(v, dtype, layout);
      CHECK(t.dtype() == dtype);
      CHECK(numbers(t) == v.values);
      CHECK(t.is_contiguous() == (layout == Layout::dense));
      CHECK(t.is_contiguous(MemoryFormat::channels_last) == (layout == Layout::channels_last));
    }
  }
  CHECK(numbers(make({DType::boolean, {3}, {1, 0, 1}, {}}, DType::boolean, Layout::stepped)) ==
        std::vector<double>{1, 0, 1});
}

TEST_CASE("OpCase reads recorded parameters and rejects missing or malformed ones") {
  const auto g = parse_golden(R"({"cases": [{"op": "f", "inputs": [null], "outputs": [], "params": {
    "i": 3, "r": 2.0, "t": true, "s": "sum", "none": null, "l": [1, 2], "rl": [1, 2.5], "inf": "-inf", "d": "i32"}}]})");
  const OpCase c(g[0], {Tensor()});
  CHECK(c.size() == 1);
  CHECK(!c[0].defined());
  CHECK(!c[7].defined());
  CHECK(c.integer("i") == 3);
  CHECK(c.integer("absent", 5) == 5);
  CHECK(c.integer("none", 5) == 5);
  CHECK(!c.has("none"));
  CHECK(c.real("r") == 2);
  CHECK(c.real("i") == 3);
  CHECK(c.scalar("r").is_real());
  CHECK(!c.scalar("i").is_real());
  CHECK(c.scalar("t").is_bool());
  CHECK(c.real("inf") == -std::numeric_limits<double>::infinity());
  CHECK(c.text("s") == "sum");
  CHECK(c.dims("l") == Shape{1, 2});
  CHECK(c.dims("i") == Shape{3});
  CHECK(c.dims("absent", Dims{}) == Shape{});
  CHECK(c.pair("l") == Pair(1, 2));
  CHECK(c.pair("i") == Pair(3));
  CHECK(c.reals("rl") == std::vector<double>{1, 2.5});
  CHECK(c.dtype("d") == DType::i32);
  CHECK(!c.maybe_integer("none"));
  CHECK(c.maybe_scalar("i")->to_int() == 3);
  CHECK_THROWS_WITH(c.integer("absent"), ContainsSubstring("'absent' was not recorded"));
  CHECK_THROWS_WITH(c.integer("s"), ContainsSubstring("'s' has another type"));
  CHECK_THROWS_WITH(parse_golden(R"({"cases": [{"op": "f", "inputs": [
    {"dtype": "f64", "shape": [2], "values": [1]}], "outputs": []}]})"),
                    ContainsSubstring("case 0: shape [2] with 1 values"));
}

TEST_CASE("check_throws accepts only a tapestry::Error with the expected text") {
  CHECK(check_throws("many", [] { fail("[f] too many"); }).empty());
  CHECK(mentions(check_throws("few", [] { fail("[f] too many"); }), {"lacks 'few'"}));
  CHECK(mentions(check_throws("many", [] { fail("too many"); }), {"does not begin with [op]"}));
  CHECK(mentions(check_throws("many", [] { throw std::runtime_error("[f] many"); }),
                 {"expected a tapestry::Error"}));
  CHECK(mentions(check_throws("many", [] {}), {"was accepted"}));
}

TEST_CASE("build_matrix reports every missing test and every contradiction") {
  const GoldenCases cases = parse_golden(kCases);
  const auto family = [&](const std::string&) -> const GoldenCases& { return cases; };
  const std::vector<GoldenRow> golden{{"f", "g"}};
  const std::vector<KindRow> bad_input{{"f", Kind::bad_input, ""},
                                       {"f", Kind::gradgradcheck, "its backward is not recorded"}};
  const auto failures = [&](const OpInfo& op, const std::vector<KindRow>& rows) {
    return build_matrix({op}, golden, rows, {"g"}, family).failures;
  };
  const Matrix full = build_matrix({kInfo}, golden, bad_input, {"g"}, family);
  for (const std::string& failure : full.failures) FAIL_CHECK(failure);
  CHECK_THAT(
      full.markdown,
      ContainsSubstring(
          "| `f` | yes | yes | n/a (1) | yes | yes | yes | yes | float32, float64, float16, bfloat16 |"));

  CHECK(mentions(failures(kInfo, {}), {"f x bad_input: is blank"}));
  CHECK(mentions(failures(kInfo, {}), {"f x gradgradcheck: is blank"}));
  CHECK(mentions(failures({"f", true, kFloats, true}, bad_input),
                 {"f x gradgradcheck: is tested, and said not"}));
  CHECK(mentions(failures({"f", true, kNumbers}, bad_input),
                 {"f x dtypes: takes int64, int32, uint8, which no case runs"}));
  CHECK(mentions(build_matrix({kInfo}, golden, bad_input, {}, family).failures, {"f x golden: is blank"}));
  CHECK(mentions(build_matrix({kInfo}, {}, bad_input, {"g"}, family).failures, {"no GOLDEN_OP runs 'f #0"}));
  CHECK(mentions(build_matrix({kInfo, {"h", false, kFloats}}, golden, bad_input, {"g"}, family).failures,
                 {"h x strided: is blank"}));
  CHECK(!mentions(build_matrix({kInfo, {"h", false, kFloats}}, golden, bad_input, {"g"}, family).failures,
                  {"h x gradcheck"}));
  CHECK(
      mentions(failures(kInfo, {{"f", Kind::bad_input, ""}, {"h", Kind::empty, ""}}), {"empty test of 'h'"}));
  CHECK(mentions(failures({"e", true, kFloats}, bad_input), {"GOLDEN_OP of 'f': no operation"}));
  CHECK(mentions(failures(kInfo, {{"f", Kind::bad_input, ""}, {"f", Kind::empty, "has always elements"}}),
                 {"f x empty: is tested, and said not to be applicable"}));
  CHECK(failures({"f", true, kFloats, true}, {{"f", Kind::bad_input, "takes everything"}}).empty());
}
