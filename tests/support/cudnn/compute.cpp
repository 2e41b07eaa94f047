// The arithmetic of the stand-in cuDNN. It is written from the documentation of the operations, with plain
// loops over sizes and strides, and shares no code with the kernels that it is compared with.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tapestry/core/half.h"
#include "tests/support/cudnn/tensors.h"

namespace standin_cudnn {
namespace {

using Index = std::vector<std::int64_t>;

double load(const void* data, std::int64_t at, DataType type) {
  switch (type) {
    case DataType::float_:
      return static_cast<const float*>(data)[at];
    case DataType::half:
      return static_cast<float>(static_cast<const tapestry::Half*>(data)[at]);
    case DataType::bfloat16:
      return static_cast<float>(static_cast<const tapestry::BFloat16*>(data)[at]);
    case DataType::int32:
      return static_cast<const std::int32_t*>(data)[at];
    case DataType::boolean:
      return static_cast<const unsigned char*>(data)[at] != 0;
  }
  throw std::logic_error("a data type that the stand-in cuDNN does not know");
}

void store(void* data, std::int64_t at, DataType type, double value) {
  switch (type) {
    case DataType::float_:
      static_cast<float*>(data)[at] = static_cast<float>(value);
      return;
    case DataType::half:
      static_cast<tapestry::Half*>(data)[at] = tapestry::Half(static_cast<float>(value));
      return;
    case DataType::bfloat16:
      static_cast<tapestry::BFloat16*>(data)[at] = tapestry::BFloat16(static_cast<float>(value));
      return;
    case DataType::int32:
      static_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(value);
      return;
    case DataType::boolean:
      static_cast<unsigned char*>(data)[at] = value != 0;
      return;
  }
}

/// A tensor with memory of its own or of the caller's.
class Value {
 public:
  Value(const TensorInfo& info, void* address) : info_(info), data_(address) {
    if (data_) return;
    // A virtual tensor exists only inside the plan, so its strides do not matter. It is stored densely.
    info_.strides.assign(info_.sizes.size(), 1);
    for (std::size_t i = info_.sizes.size() - 1; i > 0; --i)
      info_.strides[i - 1] = info_.strides[i] * info_.sizes[i];
    memory_.resize(static_cast<std::size_t>(info_.numel()));
  }
  const Index& sizes() const { return info_.sizes; }

  /// An index beyond a size of 1 is broadcast. An index beyond another size is scaled down, as cuDNN lets
  /// several heads share one: index i of n is index i / (n / size).
  double get(const Index& index, const Index& of) const {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < info_.sizes.size(); ++d) {
      const std::int64_t size = info_.sizes[d];
      at += (size == of[d] ? index[d] : size == 1 ? 0 : index[d] / (of[d] / size)) * info_.strides[d];
    }
    return data_ ? load(data_, at, info_.type) : memory_[static_cast<std::size_t>(at)];
  }
  double get(const Index& index) const { return get(index, info_.sizes); }
  void set(const Index& index, double value) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < info_.sizes.size(); ++d) at += index[d] * info_.strides[d];
    if (data_) return store(data_, at, info_.type, value);
    unsigned char rounded[8] = {};
    store(rounded, 0, info_.type, value);
    memory_[static_cast<std::size_t>(at)] = load(rounded, 0, info_.type);
  }

 private:
  TensorInfo info_;
  void* data_;
  std::vector<double> memory_;
};

/// Calls f(index) for each element of a tensor of these sizes.
template <class F>
void each(const Index& sizes, F&& f) {
  for (const std::int64_t size : sizes)
    if (size == 0) return;
  Index index(sizes.size(), 0);
  for (;;) {
    f(index);
    std::size_t d = sizes.size();
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

void convolve(const Operation& o, Value& x, Value& w, Value& y) {
  const Index &xs = x.sizes(), &ws = w.sizes(), &ys = y.sizes();
  const std::int64_t groups = xs[1] / ws[1], k_each = ws[0] / groups;
  // Calls f(indices) for each product in the definition of the convolution.
  const auto products = [&](auto&& f) {
    each(ys, [&](const Index& at_y) {
      each({ws[1], ws[2], ws[3]}, [&](const Index& t) {
        const std::int64_t h = at_y[2] * o.stride[0] - o.padding[0] + t[1] * o.dilation[0];
        const std::int64_t v = at_y[3] * o.stride[1] - o.padding[1] + t[2] * o.dilation[1];
        if (h < 0 || h >= xs[2] || v < 0 || v >= xs[3]) return;
        f(Index{at_y[0], at_y[1] / k_each * ws[1] + t[0], h, v}, Index{at_y[1], t[0], t[1], t[2]}, at_y);
      });
    });
  };
  Value& result = o.kind == Kind::operation_convolution_forward         ? y
                  : o.kind == Kind::operation_convolution_backward_data ? x
                                                                        : w;
  std::map<Index, double> sums;
  each(result.sizes(), [&](const Index& i) { sums[i] = 0; });
  products([&](const Index& at_x, const Index& at_w, const Index& at_y) {
    if (&result == &y) sums[at_y] += x.get(at_x) * w.get(at_w);
    else if (&result == &x) sums[at_x] += y.get(at_y) * w.get(at_w);
    else sums[at_w] += x.get(at_x) * y.get(at_y);
  });
  for (const auto& [i, sum] : sums) result.set(i, sum);
}

double apply(const Operation& o, double x, double b, bool t) {
  switch (o.pointwise) {
    case PointwiseMode::add:
      return x + b;
    case PointwiseMode::mul:
      return x * b;
    case PointwiseMode::div:
      return x / b;
    case PointwiseMode::sub:
      return x - b;
    case PointwiseMode::exp:
      return std::exp(x);
    case PointwiseMode::log:
      return std::log(x);
    case PointwiseMode::identity:
      return x;
    case PointwiseMode::relu_fwd:
      return std::isnan(x) ? (o.keeps_nan ? x : 0) : std::max(x, 0.0);
    case PointwiseMode::cmp_eq:
      return x == b;
    case PointwiseMode::cmp_ge:
      return x >= b;
    case PointwiseMode::binary_select:
      return t ? x : b;
    case PointwiseMode::gen_index:
      break;
  }
  throw std::logic_error("a pointwise mode that the stand-in cuDNN does not know");
}

}  // namespace

std::int64_t TensorInfo::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes) n *= size;
  return n;
}

void compute(const GraphInfo& graph, const std::map<std::int64_t, void*>& addresses) {
  std::map<std::int64_t, Value> values;
  for (const auto& [id, info] : graph.tensors)
    values.emplace(id, Value(info, info.is_virtual ? nullptr : addresses.at(id)));
  for (const Operation& o : graph.operations) {
    const auto value = [&](const char* role) -> Value& { return values.at(o.tensors.at(role)); };
    const auto maybe = [&](const char* role) -> Value* {
      const auto found = o.tensors.find(role);
      return found == o.tensors.end() ? nullptr : &values.at(found->second);
    };
    switch (o.kind) {
      case Kind::operation_convolution_forward:
      case Kind::operation_convolution_backward_data:
      case Kind::operation_convolution_backward_filter:
        convolve(o, value("x"), value("w"), value("y"));
        break;
      case Kind::operation_pointwise: {
        Value &x = value("x"), &y = value("y"), *const b = maybe("b"), *const t = maybe("t");
        const Index of = y.sizes();
        each(of, [&](const Index& i) {
          if (o.pointwise == PointwiseMode::gen_index)
            return y.set(i, static_cast<double>(i[static_cast<std::size_t>(o.axis)]));
          y.set(i, apply(o, x.get(i, of), b ? b->get(i, of) : 0, t && t->get(i, of) != 0));
        });
        break;
      }
      case Kind::operation_matmul: {
        Value &a = value("a"), &b = value("b"), &c = value("c");
        const Index of = c.sizes();
        const std::size_t rows = of.size() - 2, columns = of.size() - 1;
        const std::int64_t depth = a.sizes()[columns];
        Index of_a = of, of_b = of;
        of_a[columns] = depth, of_b[rows] = depth;
        each(of, [&](const Index& i) {
          Index at_a = i, at_b = i;
          double sum = 0;
          for (std::int64_t k = 0; k < depth; ++k) {
            at_a[columns] = k, at_b[rows] = k;
            sum += a.get(at_a, of_a) * b.get(at_b, of_b);
          }
          c.set(i, sum);
        });
        break;
      }
      case Kind::operation_reduction: {
        Value &x = value("x"), &y = value("y");
        const bool adds = o.reduction == ReductionOperator::add;
        const Index from = x.sizes(), to = y.sizes();
        std::map<Index, double> results;
        each(to, [&](const Index& i) { results[i] = adds ? 0 : -std::numeric_limits<double>::infinity(); });
        each(from, [&](const Index& i) {
          Index at = i;
          for (std::size_t d = 0; d < to.size(); ++d) at[d] = i[d] / (from[d] / to[d]);
          double& result = results[at];
          result = adds ? result + x.get(i) : std::max(result, x.get(i));
        });
        for (const auto& [i, result] : results) y.set(i, result);
        break;
      }
      case Kind::operation_reshape: {
        // This library reshapes only to transpose the last two dimensions.
        Value &x = value("x"), &y = value("y");
        each(y.sizes(), [&](const Index& i) {
          Index at = i;
          std::swap(at[at.size() - 2], at[at.size() - 1]);
          y.set(i, x.get(at));
        });
        break;
      }
      default:
        throw std::logic_error("an operation that the stand-in cuDNN does not know");
    }
  }
}

}  // namespace standin_cudnn
