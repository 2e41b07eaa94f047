#include "tests/support/op_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "tests/support/golden.h"
#include "tests/support/op_check.h"

namespace tapestry::test {
namespace {

struct Registry {
  std::vector<GoldenRow> golden;
  std::vector<const GoldenOp*> ops;
  std::vector<KindRow> kinds;
};
Registry& registry() {
  static Registry r;
  return r;
}

// Returns null if the parameter was not recorded or is None.
const Param* find(const Golden& g, std::string_view name) {
  const auto found = g.params.find(name);
  return found == g.params.end() || std::holds_alternative<std::monostate>(found->second) ? nullptr
                                                                                          : &found->second;
}

// Converts the parameter to T by `get`. Returns `fallback` if there is no parameter.
template <class T, class Get>
T value(const Golden& g, std::string_view name, const std::optional<T>& fallback, Get&& get) {
  const Param* p = find(g, name);
  if (!p) {
    if (fallback) return *fallback;
    throw std::runtime_error(g.label + ": parameter '" + std::string(name) + "' was not recorded");
  }
  const std::optional<T> v = get(*p);
  if (!v) throw std::runtime_error(g.label + ": parameter '" + std::string(name) + "' has another type");
  return *v;
}

template <class T>
std::optional<T> exactly(const Param& p) {
  const T* v = std::get_if<T>(&p);
  return v ? std::optional<T>(*v) : std::nullopt;
}

std::optional<double> to_real(const Param& p) {
  if (const auto* i = std::get_if<std::int64_t>(&p)) return static_cast<double>(*i);
  if (const auto* text = std::get_if<std::string>(&p)) {
    if (*text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (*text == "inf") return std::numeric_limits<double>::infinity();
    if (*text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  return exactly<double>(p);
}

std::optional<Scalar> to_scalar(const Param& p) {
  if (const auto* b = std::get_if<bool>(&p)) return Scalar(*b);
  if (const auto* i = std::get_if<std::int64_t>(&p)) return Scalar(*i);
  const std::optional<double> real = to_real(p);
  return real ? std::optional<Scalar>(*real) : std::nullopt;
}

std::optional<Shape> to_dims(const Param& p) {
  if (const auto* i = std::get_if<std::int64_t>(&p)) return Shape(*i);
  const auto* list = std::get_if<std::vector<std::int64_t>>(&p);
  return list ? std::optional<Shape>(*list) : std::nullopt;
}

}  // namespace

const char* kind_name(Kind kind) {
  constexpr const char* names[kNumKinds] = {"golden", "gradcheck", "gradgradcheck", "strided",
                                            "empty",  "extreme",   "bad_input",     "dtypes"};
  return names[static_cast<int>(kind)];
}

OpCase::OpCase(std::shared_ptr<const Golden> golden, std::vector<Tensor> inputs)
    : golden_(std::move(golden)), inputs_(std::move(inputs)) {}

const Tensor& OpCase::operator[](std::size_t i) const {
  static const Tensor undefined;
  return i < inputs_.size() ? inputs_[i] : undefined;
}

bool OpCase::has(std::string_view param) const { return find(*golden_, param) != nullptr; }

bool OpCase::flag(std::string_view param, std::optional<bool> fallback) const {
  return value(*golden_, param, fallback, exactly<bool>);
}
std::int64_t OpCase::integer(std::string_view param, std::optional<std::int64_t> fallback) const {
  return value(*golden_, param, fallback, exactly<std::int64_t>);
}
double OpCase::real(std::string_view param, std::optional<double> fallback) const {
  return value(*golden_, param, fallback, to_real);
}
Scalar OpCase::scalar(std::string_view param, std::optional<Scalar> fallback) const {
  return value(*golden_, param, fallback, to_scalar);
}
std::string OpCase::text(std::string_view param, std::optional<std::string> fallback) const {
  return value(*golden_, param, fallback, exactly<std::string>);
}
Shape OpCase::dims(std::string_view param, std::optional<Shape> fallback) const {
  return value(*golden_, param, fallback, to_dims);
}
std::vector<std::int64_t> OpCase::integers(std::string_view param) const {
  return value<std::vector<std::int64_t>>(*golden_, param, {}, exactly<std::vector<std::int64_t>>);
}
std::vector<double> OpCase::reals(std::string_view param) const {
  return value<std::vector<double>>(*golden_, param, {}, [](const Param& p) {
    if (const auto* ints = std::get_if<std::vector<std::int64_t>>(&p))
      return std::optional(std::vector<double>(ints->begin(), ints->end()));
    return exactly<std::vector<double>>(p);
  });
}
Pair OpCase::pair(std::string_view param, std::optional<Pair> fallback) const {
  return value(*golden_, param, fallback, [](const Param& p) -> std::optional<Pair> {
    const std::optional<Shape> s = to_dims(p);
    if (!s || s->empty() || s->size() > 2) return std::nullopt;
    return Pair((*s)[0], s->back());
  });
}
DType OpCase::dtype(std::string_view param, std::optional<DType> fallback) const {
  return value(*golden_, param, fallback, [](const Param& p) -> std::optional<DType> {
    const auto* name = std::get_if<std::string>(&p);
    return name ? std::optional<DType>(parse_dtype(*name)) : std::nullopt;
  });
}
std::optional<std::int64_t> OpCase::maybe_integer(std::string_view param) const {
  return has(param) ? std::optional(integer(param)) : std::nullopt;
}
std::optional<double> OpCase::maybe_real(std::string_view param) const {
  return has(param) ? std::optional(real(param)) : std::nullopt;
}
std::optional<Scalar> OpCase::maybe_scalar(std::string_view param) const {
  return has(param) ? std::optional(scalar(param)) : std::nullopt;
}

GoldenOp::GoldenOp(std::string name, std::string golden_family, OpFunction function)
    : op(std::move(name)), family(std::move(golden_family)), fn(std::move(function)) {
  registry().golden.push_back({op, family});
  registry().ops.push_back(this);
}

template <class F>
Failures GoldenOp::for_cases(const F& check) const {
  const std::vector<OpInfo> ops = registered_ops();
  const auto info =
      std::find_if(ops.begin(), ops.end(), [&](const OpInfo& o) { return o.name == base_name(op); });
  if (info == ops.end()) return {"no operation is registered as '" + base_name(op) + "'"};
  GoldenCases cases;
  try {
    for (const auto& g : golden_family(family))
      if (g->op == op) cases.push_back(g);
  } catch (const std::exception& e) {
    return {e.what()};
  }
  if (cases.empty() && std::getenv("TAPESTRY_GOLDEN_OPS")) return {};
  if (cases.empty()) return {"no case of '" + op + "' in tests/golden/ops/" + family + ".json"};
  std::set<Kind> skip;
  for (const KindRow& row : kind_rows())
    if (row.op == info->name && !row.reason.empty()) skip.insert(row.kind);
  return check(cases, *info, skip);
}

Failures GoldenOp::run() const {
  return for_cases([&](const GoldenCases& cases, const OpInfo& info, const std::set<Kind>& skip) {
    Failures failures;
    for (const auto& g : cases)
      for (std::string& failure : run_case(g, info, fn, skip)) failures.push_back(std::move(failure));
    if (!skip.count(Kind::dtypes))
      for (std::string& failure : run_refusals(cases, info, fn)) failures.push_back(std::move(failure));
    return failures;
  });
}

Failures GoldenOp::run_on(Device device) const {
  return for_cases([&](const GoldenCases& cases, const OpInfo& info, const std::set<Kind>& skip) {
    Failures failures;
    MissingRuns missing;
    for (const auto& g : cases)
      for (std::string& failure : run_case_on(device, g, info, fn, skip, missing))
        failures.push_back(std::move(failure));
    for (const auto& [kernel, runs] : missing)
      std::printf("%s: %d runs lack a kernel: %s\n", op.c_str(), runs, kernel.c_str());
    return failures;
  });
}

Row::Row(std::string op, Kind kind, std::string reason) {
  registry().kinds.push_back({std::move(op), kind, std::move(reason)});
}

const std::vector<const GoldenOp*>& golden_ops() { return registry().ops; }
const std::vector<GoldenRow>& golden_rows() { return registry().golden; }
const std::vector<KindRow>& kind_rows() { return registry().kinds; }

Failures check_throws(std::string_view text, const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    const std::string_view what = e.what();
    if (what.substr(0, 1) != "[") return {"the message does not begin with [op]: " + std::string(what)};
    if (what.find(text) == what.npos)
      return {"the message lacks '" + std::string(text) + "': " + std::string(what)};
    return {};
  } catch (const std::exception& e) {
    return {std::string("expected a tapestry::Error, got: ") + e.what()};
  }
  return {"was accepted; expected an error with '" + std::string(text) + "'"};
}

}  // namespace tapestry::test
