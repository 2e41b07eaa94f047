#include "tests/support/golden.h"
#include "tests/support/source.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "tapestry/core/cuda/internal/copy.h"
#include "tests/support/dtypes.h"

namespace tapestry::test {
namespace {

using tests::for_dtype;
using tests::from_double;
using tests::to_double;

using Json = nlohmann::json;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double parse_number(const Json& j) {
  if (j.is_boolean()) return j.get<bool>() ? 1 : 0;
  if (j == "nan") return kNaN;
  if (j == "inf") return kInf;
  if (j == "-inf") return -kInf;
  return j.get<double>();
}

std::vector<double> parse_numbers(const Json& j) {
  std::vector<double> out;
  out.reserve(j.size());
  for (const Json& v : j) out.push_back(parse_number(v));
  return out;
}

Values parse_values(const Json& j) {
  Values v{parse_dtype(j.at("dtype")),
           Shape(j.at("shape").get<std::vector<std::int64_t>>()),
           parse_numbers(j.at("values")),
           {}};
  if (j.contains("scale")) {
    v.scale = parse_numbers(j.at("scale"));
  } else {
    for (double x : v.values) v.scale.push_back(std::isfinite(x) ? std::abs(x) : 0);
  }
  const auto count = static_cast<std::size_t>(v.sizes.numel());
  if (v.values.size() != count || v.scale.size() != count)
    throw std::runtime_error("shape " + v.sizes.str() + " with " + std::to_string(v.values.size()) +
                             " values");
  return v;
}

Param parse_param(const Json& j) {
  if (j.is_null()) return {};
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_integer()) return j.get<std::int64_t>();
  if (j.is_number()) return j.get<double>();
  if (j.is_string()) return j.get<std::string>();
  if (std::all_of(j.begin(), j.end(), [](const Json& v) { return v.is_number_integer(); }))
    return j.get<std::vector<std::int64_t>>();
  return parse_numbers(j);
}

std::optional<Values> parse_optional(const Json& j) {
  if (j.is_null()) return std::nullopt;
  return parse_values(j);
}

std::shared_ptr<const Golden> parse_case(const Json& j, std::size_t index) {
  auto g = std::make_shared<Golden>();
  g->op = j.at("op");
  if (j.contains("tags")) g->tags = j["tags"].get<std::set<std::string>>();
  if (j.contains("constant")) g->constant = j["constant"].get<std::set<std::size_t>>();
  if (j.contains("slack")) g->slack = j["slack"];
  if (j.contains("params"))
    for (const auto& [name, value] : j["params"].items()) g->params[name] = parse_param(value);
  for (const Json& v : j.at("inputs")) g->inputs.push_back(parse_optional(v));
  for (const Json& v : j.at("outputs")) g->outputs.push_back(parse_values(v));
  g->has_grads = j.contains("grads");
  if (g->has_grads)
    for (const Json& v : j["grads"]) g->grads.push_back(parse_optional(v));
  g->grads.resize(g->inputs.size());

  g->label = g->op + " #" + std::to_string(index);
  for (const auto& input : g->inputs) g->label.append(" ").append(input ? input->sizes.str() : "None");
  if (j.contains("params")) g->label.append(" ").append(j["params"].dump());
  return g;
}

// Calls f(i, offset) for every element in row-major order. `offset` is the element's distance from the first
// element in memory.
template <class F>
void for_each_element(const Shape& sizes, const Shape& strides, F&& f) {
  const std::int64_t n = sizes.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t offset = 0, rest = i;
    for (int d = sizes.size() - 1; d >= 0; --d) {
      offset += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    f(i, offset);
  }
}

Shape reversed_strides(const Shape& sizes) {
  Shape strides = sizes;
  std::int64_t stride = 1;
  for (int d = 0; d < sizes.size(); ++d) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

}  // namespace

bool Golden::generic() const {
  bool any = false;
  for (const auto& input : inputs) {
    if (!input || !is_floating(input->dtype)) continue;
    if (input->dtype != DType::f64) return false;
    any = true;
  }
  return any;
}

std::vector<DType> Golden::run_dtypes(DTypeSet takes) const {
  if (!generic()) return {DType::f64};
  std::vector<DType> out;
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    if (!contains(takes, dtype)) continue;
    bool exact = true;
    for (const auto& input : inputs)
      if (input && input->dtype == DType::f64)
        for (double v : input->values) exact = exact && holds(dtype, v);
    if (exact) out.push_back(dtype);
  }
  return out;
}

GoldenCases parse_golden(const std::string& text) {
  const Json file = Json::parse(text);
  GoldenCases cases;
  for (const Json& j : file.at("cases")) {
    try {
      cases.push_back(parse_case(j, cases.size()));
    } catch (const std::exception& e) {
      throw std::runtime_error("case " + std::to_string(cases.size()) + ": " + e.what());
    }
  }
  return cases;
}

std::string golden_folder() {
  const char* other = std::getenv("TAPESTRY_GOLDEN_OPS");
  return other ? other : tests::source_path("tests/golden/ops");
}

const GoldenCases& golden_family(const std::string& family) {
  static std::map<std::string, GoldenCases> read;
  const auto found = read.find(family);
  if (found != read.end()) return found->second;
  const std::string path = golden_folder() + "/" + family + ".json";
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error("cannot read " + path + "; record it with tests/golden/make_all.py " + family);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    return read[family] = parse_golden(text);
  } catch (const std::exception& e) {
    read.erase(family);
    throw std::runtime_error(path + ": " + e.what());
  }
}

std::vector<std::string> golden_families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder()))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

DType parse_dtype(const std::string& name) {
  static const std::map<std::string, DType> names = {
      {"f64", DType::f64}, {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16},
      {"i64", DType::i64}, {"i32", DType::i32}, {"u8", DType::u8},   {"bool", DType::boolean},
      {"i16", DType::i16}, {"i8", DType::i8},   {"u16", DType::u16}};
  const auto found = names.find(name);
  if (found == names.end()) throw std::runtime_error("no dtype is called '" + name + "'");
  return found->second;
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return 0x1p-23;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0;
  }
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return std::numeric_limits<double>::max();
    case DType::f32:
      return std::numeric_limits<float>::max();
    case DType::f16:
      return 65504;
    case DType::bf16:
      return 0x1.fep127;
    case DType::i32:
      return std::numeric_limits<std::int32_t>::max();
    case DType::i16:
      return 32767;
    case DType::i8:
      return 127;
    case DType::u16:
      return 65535;
    case DType::u8:
      return 255;
    case DType::boolean:
      return 1;
    default:
      return 0x1p62;  // for i64: the largest power of two in range, which is exact as a double
  }
}

double smallest(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-1074;
    case DType::f32:
      return 0x1p-149;
    case DType::f16:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-133;
    default:
      return 0;
  }
}

bool holds(DType dtype, double value) {
  if (std::isnan(value)) return is_floating(dtype);
  if (is_floating(dtype) && std::isinf(value)) return true;
  if (std::abs(value) > largest(dtype)) return false;
  if (value < 0 && (dtype == DType::u8 || dtype == DType::u16 || dtype == DType::boolean)) return false;
  return for_dtype(dtype, [&]<class T>() { return to_double(from_double<T>(value)) == value; });
}

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::dense:
      return "dense";
    case Layout::transposed:
      return "transposed";
    case Layout::stepped:
      return "stepped";
    case Layout::channels_last:
      return "channels-last";
  }
  return "";
}

Tensor make(const Values& values, DType dtype, Layout layout) {
  const Shape& sizes = values.sizes;
  const std::int64_t n = sizes.numel();
  const TensorOptions host(dtype, kCPU);
  Tensor t;
  if (layout == Layout::transposed && sizes.size() >= 2) {
    t = detail::raw_view(empty({n}, host), sizes, reversed_strides(sizes), 0);
  } else if (layout == Layout::channels_last && sizes.size() == 4) {
    t = empty(sizes, host, MemoryFormat::channels_last);
  } else if (layout == Layout::stepped) {
    const Tensor base = empty({3 + 2 * n}, host);
    for_dtype(dtype, [&]<class T>() {
      T* p = base.data<T>();
      std::fill(p, p + base.numel(), from_double<T>(is_floating(dtype) ? kNaN : largest(dtype)));
    });
    Shape strides = contiguous_strides(sizes);
    for (std::int64_t& s : strides) s *= 2;
    t = detail::raw_view(base, sizes, strides, 3);
  } else {
    t = empty(sizes, host);
  }
  for_dtype(dtype, [&]<class T>() {
    T* p = t.data<T>();
    for_each_element(sizes, t.strides(), [&](std::int64_t i, std::int64_t offset) {
      p[offset] = from_double<T>(values.values[static_cast<std::size_t>(i)]);
    });
  });
  return t;
}

Tensor moved(const Tensor& t, Device device) {
  if (!t.defined() || t.device() == device) return t;
  const StorageRef& from = t.storage();
  StorageRef to = Storage::allocate(device, from->bytes());
  cuda::copy_bytes(device, to->data(), t.device(), from->data(), from->bytes());
  return detail::make_tensor(std::move(to), t.dtype(), t.sizes(), t.strides(), t.storage_offset());
}

std::vector<double> numbers(const Tensor& t) {
  if (!t.device().is_cpu()) return numbers(moved(t, kCPU));
  std::vector<double> out(static_cast<std::size_t>(t.numel()));
  for_dtype(t.dtype(), [&]<class T>() {
    const T* p = t.data<T>();
    for_each_element(t.sizes(), t.strides(), [&](std::int64_t i, std::int64_t offset) {
      out[static_cast<std::size_t>(i)] = to_double(p[offset]);
    });
  });
  return out;
}

namespace {
// The bytes of the whole storage, including gaps between elements.
std::vector<char> bytes_of(const Tensor& t) {
  const Tensor here = moved(t, kCPU);
  const char* const p = static_cast<const char*>(here.storage()->data());
  return {p, p + here.storage()->bytes()};
}
}  // namespace

Snapshot::Snapshot(const std::vector<Tensor>& tensors) : tensors_(tensors) {
  for (const Tensor& t : tensors_) {
    if (!t.defined()) {
      bytes_.emplace_back(), sizes_.emplace_back(), strides_.emplace_back();
      continue;
    }
    bytes_.push_back(bytes_of(t));
    sizes_.push_back(t.sizes());
    strides_.push_back(t.strides());
  }
}

std::vector<std::string> Snapshot::changes() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    if (!t.defined()) continue;
    if (!(t.sizes() == sizes_[i] && t.strides() == strides_[i]))
      out.push_back(std::to_string(i) + " changed its shape or strides");
    else if (bytes_of(t) != bytes_[i]) out.push_back(std::to_string(i) + " was written to");
  }
  return out;
}

}  // namespace tapestry::test
