// Printing of tensors, in PyTorch's format: one width for all elements, four decimals, scientific notation if
// the range of the values needs it, and three items at each end of a long dimension.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/tensor.h"

namespace tapestry {
namespace {

constexpr std::int64_t kSummarizeBeyond = 1000;
constexpr std::int64_t kEdgeItems = 3;
constexpr std::size_t kLineWidth = 80;

template <class T>
T load(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

Scalar element(DType dtype, const void* p) {
  switch (dtype) {
    case DType::f32:
      return load<float>(p);
    case DType::f64:
      return load<double>(p);
    case DType::f16:
      return static_cast<float>(load<Half>(p));
    case DType::bf16:
      return static_cast<float>(load<BFloat16>(p));
    case DType::i64:
      return load<std::int64_t>(p);
    case DType::i32:
      return load<std::int32_t>(p);
    case DType::u8:
      return load<std::uint8_t>(p);
    case DType::i16:
      return load<std::int16_t>(p);
    case DType::i8:
      return load<std::int8_t>(p);
    case DType::u16:
      return load<std::uint16_t>(p);
    case DType::boolean:
      return load<std::uint8_t>(p) != 0;
  }
  return 0;
}

std::string number(const char* format, double value) {
  char text[512];  // the longest double has 309 digits before the point
  const int n = std::snprintf(text, sizeof text, format, value);
  return {text, static_cast<std::size_t>(n)};
}

class Printer {
 public:
  explicit Printer(const Tensor& t) : t_(t), summarize_(t.numel() > kSummarizeBeyond) {
    collect(0, t.storage_offset());
    choose_format();
  }

  // Returns the elements in brackets. `indent` is the column at which the text begins.
  std::string body(std::size_t indent) {
    next_ = 0;
    return t_.dim() == 0 ? item() : brackets(0, indent);
  }

 private:
  bool cut(int dim) const { return summarize_ && t_.sizes()[dim] > 2 * kEdgeItems; }

  // Collects the values that are printed, in the order of printing.
  void collect(int dim, std::int64_t offset) {
    if (dim == t_.dim()) {
      values_.push_back(read(offset));
      return;
    }
    const std::int64_t n = t_.sizes()[dim], stride = t_.strides()[dim];
    for (std::int64_t i = 0; i < n; ++i) {
      if (cut(dim) && i == kEdgeItems) i = n - kEdgeItems;
      collect(dim + 1, offset + i * stride);
    }
  }

  Scalar read(std::int64_t offset) const {
    const auto size = static_cast<std::int64_t>(dtype_size(t_.dtype()));
    const char* p = static_cast<const char*>(t_.storage()->data()) + offset * size;
    char host[8];
    if (!t_.device().is_cpu()) {
      allocator(t_.device().type).copy(t_.device(), host, p, static_cast<std::size_t>(size));
      p = host;
    }
    return element(t_.dtype(), p);
  }

  void choose_format() {
    if (!is_floating(t_.dtype())) {
      for (const Scalar& v : values_) width_ = std::max(width_, text(v).size());
      return;
    }
    // As in PyTorch, zeros, infinities and NaNs do not influence the format and the width.
    double smallest = INFINITY, largest = 0;
    bool integers = true;
    for (const Scalar& scalar : values_) {
      const double v = std::abs(scalar.to_double());
      if (v == 0 || !std::isfinite(v)) continue;
      smallest = std::min(smallest, v);
      largest = std::max(largest, v);
      integers = integers && v == std::ceil(v);
    }
    if (largest == 0) return;
    const bool scientific = largest / smallest > 1000 || largest > 1e8 || (!integers && smallest < 1e-4);
    format_ = scientific ? "%.4e" : integers ? "%.0f" : "%.4f";
    point_ = integers && !scientific;
    for (const Scalar& v : values_)
      if (v.to_double() != 0 && std::isfinite(v.to_double())) width_ = std::max(width_, text(v).size());
  }

  std::string text(const Scalar& v) const {
    if (v.is_bool()) return v.to_int() ? "True" : "False";
    if (!v.is_real()) return std::to_string(v.to_int());
    const double x = v.to_double();
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
    return number(format_, x) + (point_ ? "." : "");
  }

  std::string item() {
    const std::string s = text(values_[next_++]);
    return s.size() < width_ ? std::string(width_ - s.size(), ' ') + s : s;
  }

  std::string brackets(int dim, std::size_t indent) {
    const std::int64_t n = t_.sizes()[dim];
    const bool last = dim + 1 == t_.dim();
    std::vector<std::string> parts;
    for (std::int64_t i = 0; i < n; ++i) {
      if (cut(dim) && i == kEdgeItems) {
        parts.push_back(last ? " ..." : "...");
        i = n - kEdgeItems;
      }
      parts.push_back(last ? item() : brackets(dim + 1, indent + 1));
    }
    const std::string line = "\n" + std::string(indent + 1, ' ');
    const std::string between =
        last ? ", " : "," + std::string(static_cast<std::size_t>(t_.dim() - dim - 2), '\n') + line;
    const std::size_t room = kLineWidth > indent ? kLineWidth - indent : 0;
    const std::size_t a_line = last ? std::max<std::size_t>(1, room / (width_ + 2)) : parts.size();
    std::string out = "[";
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) out += i % a_line == 0 ? "," + line : between;
      out += parts[i];
    }
    return out + "]";
  }

  const Tensor& t_;
  const bool summarize_;
  std::vector<Scalar> values_;
  std::size_t next_ = 0;
  const char* format_ = "%.0f";
  bool point_ = true;  // print "1." if all values are whole numbers of a floating dtype
  std::size_t width_ = 1;
};

}  // namespace

std::string Tensor::str() const {
  if (!defined()) return "tensor(undefined)";
  const std::string prefix = "tensor(";
  const bool meta = device().is_meta() || storage()->is_released();  // has no elements to print
  std::string out = prefix + (meta ? "..." : numel() == 0 ? "[]" : Printer(*this).body(prefix.size()));
  std::vector<std::string> notes;
  if (device() != kCPU) notes.push_back("device='" + device().str() + "'");
  if (meta || (numel() == 0 && dim() != 1)) notes.push_back("size=" + sizes().str());
  const bool shows =
      dtype() == DType::f32 || (numel() > 0 && !meta && (dtype() == DType::i64 || dtype() == DType::boolean));
  if (!shows) notes.push_back(std::string("dtype=") + dtype_name(dtype()));
  if (impl_->grad_record)
    if (std::string note = impl_->grad_record->note(); !note.empty()) notes.push_back(std::move(note));
  const std::size_t newline = out.rfind('\n');
  std::size_t column = newline == std::string::npos ? out.size() + 2 : out.size() - newline + 1;
  for (const std::string& note : notes) {
    const bool fits = column + note.size() + 2 <= kLineWidth;
    out += (fits ? ", " : ",\n" + std::string(prefix.size(), ' ')) + note;
    column = fits ? column + note.size() + 2 : prefix.size() + note.size();
  }
  return out + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << t.str(); }
std::ostream& operator<<(std::ostream& out, const Shape& sizes) { return out << sizes.str(); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << dtype_name(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << device.str(); }

}  // namespace tapestry
