#include "tapestry/autograd/ops/creation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/internal/part_memory.h"
#include "tapestry/kernels/ops/copy.h"
#include "tapestry/kernels/ops/random.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kFull{"full", Grad::none, kStoredDTypes};
const Op kArange{"arange", Grad::none, kNumbers};
const Op kLinspace{"linspace", Grad::none, kFloats};
const Op kLogspace{"logspace", Grad::none, kFloats};
const Op kEye{"eye", Grad::none, kAllDTypes};
const Op kRand{"rand", Grad::none, kFloats};
const Op kRandn{"randn", Grad::none, kFloats};
const Op kRandint{"randint", Grad::none, kNumbers};
const Op kBernoulli{"bernoulli", Grad::none, kFloats};
const Op kRandperm{"randperm", Grad::none, bit(DType::i64)};

TensorOptions with_dtype(const TensorOptions& options, DType fallback) {
  TensorOptions o = options;
  o.dtype = options.dtype.value_or(fallback);
  return o;
}

// Returns the new tensor, as a leaf that requires gradients if the options ask for that.
Tensor finished(Tensor t, const TensorOptions& options) {
  if (options.requires_grad) t.set_requires_grad();
  return t;
}

Tensor filled(Tensor t, const Scalar& value, const TensorOptions& options) {
  fill_or_defer("full", t, [element = as_element(kFull.name, value, t.dtype())](const Tensor& t) {
    kernels::fill(t.device(), t.dtype(), {planned(t), element});
  });
  return finished(std::move(t), options);
}

// The options of a function such as zeros_like: missing options are taken from `t`.
TensorOptions like(const char* op, const Tensor& t, const TensorOptions& options) {
  tapestry::detail::check_defined(op, t);
  TensorOptions o = with_dtype(options, t.dtype());
  o.device = options.device.value_or(t.device());
  return o;
}

Tensor new_like(const Tensor& t, const TensorOptions& o) {
  Tensor y = result_like(t.sizes(), *o.dtype, {&t});
  if (*o.device == t.device()) return y;
  StorageRef storage = Storage::allocate(*o.device, y.nbytes());
  return tapestry::detail::make_tensor(std::move(storage), *o.dtype, y.sizes(), y.strides(), 0);
}

PhiloxRange take_words(Device device, std::int64_t n, int words_each) {
  const auto words = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(words_each);
  return current_generator(device).take((words + 3) / 4);
}
int words_of(DType t) { return t == DType::f64 ? 2 : 1; }

// Reserves random words for n normal numbers. The Box-Muller method makes them in pairs, so an odd n is
// rounded up.
PhiloxRange take_normal(Device device, std::int64_t n, DType t) {
  return take_words(device, n + n % 2, words_of(t));
}

// Random kernels write dense row-major memory.
template <class Fill>
void fill_in_order(const char* op, const Tensor& t, const Fill& fill) {
  fill_or_defer(op, t, [fill](const Tensor& t) {
    if (t.is_contiguous()) return fill(t);
    const Tensor dense = empty(t.sizes(), {t.dtype(), t.device()});
    fill(dense);
    kernels::copy(t.device(), t.dtype(), planned(t, dense));
  });
}

void fill_uniform(const Tensor& t, double low, double high) {
  const PhiloxRange range = take_words(t.device(), t.numel(), words_of(t.dtype()));
  fill_in_order("uniform_", t, [=](const Tensor& t) {
    kernels::uniform(t.device(), t.dtype(),
                     {.out = t, .n = t.numel(), .range = range, .low = low, .high = high});
  });
}
void fill_normal(const Tensor& t, double mean, double std) {
  const PhiloxRange range = take_normal(t.device(), t.numel(), t.dtype());
  fill_in_order("normal_", t, [=](const Tensor& t) {
    kernels::normal(t.device(), t.dtype(),
                    {.out = t, .n = t.numel(), .range = range, .mean = mean, .std = std});
  });
}

template <class Fill>
Tensor random_like(const Op& op, const Tensor& t, const TensorOptions& options, Fill fill) {
  const TensorOptions o = like(op.name, t, options);
  op.check_dtype(*o.dtype);
  Tensor y = new_like(t, o);
  fill(y);
  return finished(std::move(y), options);
}

}  // namespace

Tensor full(const Shape& sizes, const Scalar& value, const TensorOptions& options) {
  const DType follows = value.is_real() ? DType::f32 : value.is_bool() ? DType::boolean : DType::i64;
  return filled(empty(sizes, with_dtype(options, follows)), value, options);
}
Tensor zeros(const Shape& sizes, const TensorOptions& options) {
  return filled(empty(sizes, options), 0, options);
}
Tensor ones(const Shape& sizes, const TensorOptions& options) {
  return filled(empty(sizes, options), 1, options);
}
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options) { return full({}, value, options); }

Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options) {
  const bool real = start.is_real() || end.is_real() || step.is_real();
  const TensorOptions o = with_dtype(options, real ? DType::f32 : DType::i64);
  kArange.check_dtype(*o.dtype);
  std::int64_t n = 0;
  if (real) {
    const double a = start.to_double(), b = end.to_double(), s = step.to_double();
    check(std::isfinite(a) && std::isfinite(b) && std::isfinite(s), "[arange] start ", a, ", end ", b,
          " and step ", s, " must be finite");
    check(s != 0, "[arange] step is 0; give one that leads from start to end");
    check(s > 0 ? b >= a : b <= a, "[arange] step ", s, " leads away from end ", b, " (start ", a,
          "); change its sign");
    const double count = std::ceil((b - a) / s);
    check(count < 0x1p62, "[arange] ", count, " elements are too many; give a larger step");
    n = static_cast<std::int64_t>(count);
  } else {
    const std::int64_t a = start.to_int(), b = end.to_int(), s = step.to_int();
    check(s != 0, "[arange] step is 0; give one that leads from start to end");
    check(s > 0 ? b >= a : b <= a, "[arange] step ", s, " leads away from end ", b, " (start ", a,
          "); change its sign");
    // Unsigned arithmetic is used, because the distance of two i64 numbers may exceed i64 but always fits
    // into u64.
    const auto ua = static_cast<std::uint64_t>(a), ub = static_cast<std::uint64_t>(b),
               us = static_cast<std::uint64_t>(s);
    const std::uint64_t distance = s > 0 ? ub - ua : ua - ub, stride = s > 0 ? us : 0 - us;
    const std::uint64_t count = distance / stride + (distance % stride != 0);
    check(count <= std::uint64_t{1} << 62, "[arange] there are too many elements between ", a, " and ", b,
          "; give a larger step");
    n = static_cast<std::int64_t>(count);
  }
  Tensor t = empty(n, o);
  fill_or_defer("arange", t, [=](const Tensor& t) {
    kernels::arange(t.device(), t.dtype(), {.out = t, .n = n, .start = start, .step = step});
  });
  return finished(std::move(t), options);
}
Tensor arange(const Scalar& end, const TensorOptions& options) { return arange(0, end, 1, options); }

Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options) {
  check(steps >= 0, "[linspace] ", steps, " steps; give 0 or more");
  Tensor t = empty(steps, options);
  kLinspace.check_dtype(t.dtype());
  // Each value is computed from the nearer end. So both ends are exact and the values are symmetric.
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  const std::int64_t half = (steps + 1) / 2;
  // By std::fma, so that a processor without FMA gives the same bits.
  const double second = std::fma(-step, static_cast<double>(steps - 1 - half), end);
  fill_or_defer("linspace", t, [=](const Tensor& t) {
    const Tensor rest = tapestry::detail::raw_view(t, steps - half, 1, t.storage_offset() + half);
    kernels::arange(t.device(), t.dtype(), {.out = t, .n = half, .start = start, .step = step});
    kernels::arange(t.device(), t.dtype(), {.out = rest, .n = steps - half, .start = second, .step = step});
  });
  return finished(std::move(t), options);
}

Tensor logspace(double start, double end, std::int64_t steps, double base, const TensorOptions& options) {
  check(base > 0, "[logspace] base ", base, " is not positive");
  check(steps >= 0, "[logspace] ", steps, " steps; give 0 or more");
  const TensorOptions o = with_dtype(options, DType::f32);
  kLogspace.check_dtype(*o.dtype);
  const Device device = empty(0, TensorOptions(o).with_grad(false)).device();
  const NoGradGuard no_grad;
  // In f64, so that the rounding of an exponent does not become an error of its power. GPUs have no kernels
  // of linspace and pow for f64.
  const TensorOptions exact(DType::f64, device.is_cuda() ? Device(kCPU) : device);
  const Tensor exponents = linspace(start, end, steps, exact);
  const Tensor powers = pow(full({}, base, exact), exponents).to(*o.dtype);
  return finished(device.is_cuda() ? autograd::uploaded(powers, device) : powers, options);
}

Tensor eye(std::int64_t n, const TensorOptions& options) { return eye(n, n, options); }
Tensor eye(std::int64_t n, std::int64_t m, const TensorOptions& options) {
  check(n >= 0 && m >= 0, "[eye] n is ", n, " and m is ", m, "; give 0 or more");
  Tensor t = zeros({n, m}, TensorOptions(options).with_grad(false));
  if (n > 0 && m > 0) {
    const Tensor diagonal = tapestry::detail::raw_view(t, std::min(n, m), m + 1, 0);
    fill_or_defer("eye", diagonal, [](const Tensor& t) {
      kernels::fill(t.device(), t.dtype(), {planned(t), 1});
    });
  }
  return finished(std::move(t), options);
}

Tensor rand(const Shape& sizes, const TensorOptions& options) {
  kRand.check_dtype(options.dtype.value_or(DType::f32));
  Tensor t = empty(sizes, options);
  fill_uniform(t, 0, 1);
  return finished(std::move(t), options);
}
Tensor randn(const Shape& sizes, const TensorOptions& options) {
  kRandn.check_dtype(options.dtype.value_or(DType::f32));
  Tensor t = empty(sizes, options);
  fill_normal(t, 0, 1);
  return finished(std::move(t), options);
}
Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, const TensorOptions& options) {
  const TensorOptions o = with_dtype(options, DType::i64);
  kRandint.check_dtype(*o.dtype);
  check(low < high, "[randint] low ", low, " is not below high ", high, "; give low < high");
  const IntegerRange range = integer_range(*o.dtype);
  check(low >= range.lowest && high - 1 <= range.highest, "[randint] ", *o.dtype,
        " cannot hold all integers from ", low, " to ", high - 1, "; give another range or dtype");
  Tensor t = empty(sizes, o);
  const PhiloxRange words = take_words(t.device(), t.numel(), 2);
  fill_or_defer("randint", t, [=](const Tensor& t) {
    kernels::randint(t.device(), t.dtype(),
                     {.out = t,
                      .n = t.numel(),
                      .range = words,
                      .low = low,
                      .span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low)});
  });
  return finished(std::move(t), options);
}
Tensor randperm(std::int64_t n, const TensorOptions& options) {
  const TensorOptions o = with_dtype(options, DType::i64);
  kRandperm.check_dtype(*o.dtype);
  check(n >= 0, "[randperm] n is ", n, "; give 0 or more");
  Tensor t = empty(n, o);
  const PhiloxRange words = take_words(t.device(), n, 2);
  fill_or_defer("randperm", t, [=](const Tensor& t) {
    kernels::randperm(t.device(), t.dtype(), {.out = t, .n = n, .range = words});
  });
  return finished(std::move(t), options);
}

Tensor empty_like(const Tensor& t, const TensorOptions& options) {
  return finished(new_like(t, like("empty_like", t, options)), options);
}
Tensor full_like(const Tensor& t, const Scalar& value, const TensorOptions& options) {
  return filled(new_like(t, like("full_like", t, options)), value, options);
}
Tensor zeros_like(const Tensor& t, const TensorOptions& options) { return full_like(t, 0, options); }
Tensor ones_like(const Tensor& t, const TensorOptions& options) { return full_like(t, 1, options); }
Tensor rand_like(const Tensor& t, const TensorOptions& options) {
  return random_like(kRand, t, options, [](const Tensor& y) { fill_uniform(y, 0, 1); });
}
Tensor randn_like(const Tensor& t, const TensorOptions& options) {
  return random_like(kRandn, t, options, [](const Tensor& y) { fill_normal(y, 0, 1); });
}
Tensor randint_like(const Tensor& t, std::int64_t low, std::int64_t high, const TensorOptions& options) {
  const TensorOptions o = like("randint_like", t, options);
  const Tensor y = new_like(t, o);
  const Tensor dense = randint(low, high, t.sizes(), TensorOptions(*o.dtype, *o.device));
  const NoGradGuard no_grad;
  y.copy_(dense);
  return finished(y, options);
}
Tensor randint_like(const Tensor& t, std::int64_t high, const TensorOptions& options) {
  return randint_like(t, 0, high, options);
}

Tensor Tensor::new_empty(const Shape& sizes, const TensorOptions& options) const {
  return finished(empty(sizes, like("new_empty", *this, options)), options);
}
Tensor Tensor::new_full(const Shape& sizes, const Scalar& value, const TensorOptions& options) const {
  return full(sizes, value, like("new_full", *this, options));
}
Tensor Tensor::new_zeros(const Shape& sizes, const TensorOptions& options) const {
  return new_full(sizes, 0, options);
}
Tensor Tensor::new_ones(const Shape& sizes, const TensorOptions& options) const {
  return new_full(sizes, 1, options);
}

namespace {

// A tensor on the device of `options` from values in host memory.
Tensor from_host(const void* values, DType dtype, const Shape& sizes, const TensorOptions& options,
                 DType fallback) {
  const TensorOptions o = with_dtype(options, fallback);
  Tensor t = empty(sizes, o);
  const Tensor host = t.device().is_cpu() ? t : empty(sizes, {t.dtype(), kCPU});
  kernels::Elementwise<2> e;
  e.ndim = 1;
  e.numel = e.sizes[0] = host.numel();
  e.strides[0][0] = e.strides[1][0] = 1;
  e.out = host.raw_data(), e.in[0] = values;
  e.dtypes[0] = host.dtype(), e.dtypes[1] = dtype;
  kernels::copy(kCPU, host.dtype(), e);
  if (t.device().is_meta()) {
    defer_values("tensor", t, {host}, [](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(v[0]); });
  } else if (!t.device().is_cpu()) {
    NoGradGuard no_grad;
    t = to(host, t.device(), t.dtype());
  }
  return finished(std::move(t), options);
}

// Throws ValueError if an integer dtype cannot hold a value.
template <class T>
void check_elements(const std::vector<T>& values, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(DType::boolean);
  if (is_floating(dtype) || dtype == DType::boolean || dtype == dtype_of<T>) return;
  for (const T value : values) as_element("tensor", value, dtype);
}

void check_count(std::size_t values, const Shape& sizes) {
  check(static_cast<std::int64_t>(values) == sizes.numel(), "[tensor] ", values, " values for shape ", sizes,
        ", which has ", sizes.numel(), " elements; give as many values as elements");
}

}  // namespace

template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& sizes, const TensorOptions& options) {
  check_count(values.size(), sizes);
  if constexpr (std::is_same_v<T, bool>) {
    const std::vector<std::uint8_t> bytes(values.begin(), values.end());
    return from_host(bytes.data(), DType::boolean, sizes, options, DType::boolean);
  } else {
    check_elements(values, options);
    return from_host(values.data(), dtype_of<T>, sizes, options,
                     is_floating(dtype_of<T>) ? DType::f32 : DType::i64);
  }
}

template Tensor tensor(const std::vector<float>&, const Shape&, const TensorOptions&);
template Tensor tensor(const std::vector<double>&, const Shape&, const TensorOptions&);
template Tensor tensor(const std::vector<std::int64_t>&, const Shape&, const TensorOptions&);
template Tensor tensor(const std::vector<std::int32_t>&, const Shape&, const TensorOptions&);
template Tensor tensor(const std::vector<std::uint8_t>&, const Shape&, const TensorOptions&);
template Tensor tensor(const std::vector<bool>&, const Shape&, const TensorOptions&);

namespace {

// Appends the numbers of nested lists to `numbers` in row-major order. Throws ValueError unless each list at
// depth d has sizes[d] entries.
void flatten(const NumberOrList& list, const Shape& sizes, int depth, std::vector<Scalar>& numbers) {
  check(static_cast<std::int64_t>(list.size()) == sizes[depth], "[tensor] a list of ", list.size(),
        " beside one of ", sizes[depth], "; give lists of one length");
  const bool of_lists = depth + 1 < sizes.size();
  for (const NumberOrList& one : list) {
    check(one.is_list() == of_lists, "[tensor] a number beside a list; give numbers alone, or lists alone");
    if (of_lists) flatten(one, sizes, depth + 1, numbers);
    else numbers.push_back(one.number());
  }
}

}  // namespace

Tensor tensor(std::initializer_list<NumberOrList> values, const TensorOptions& options) {
  const NumberOrList all(values);
  Shape sizes;
  for (const NumberOrList* list = &all; list && list->is_list();
       list = list->size() > 0 ? list->begin() : nullptr)
    sizes.push_back(static_cast<std::int64_t>(list->size()));
  std::vector<Scalar> numbers;
  flatten(all, sizes, 0, numbers);

  const auto list_of = [&]<class T>(T (*value)(const Scalar&)) {
    std::vector<T> list(numbers.size());
    std::transform(numbers.begin(), numbers.end(), list.begin(), value);
    return tensor(list, sizes, options);
  };
  const auto is_bool = [](const Scalar& n) { return n.is_bool(); };
  const auto is_real = [](const Scalar& n) { return n.is_real(); };
  if (numbers.empty() || std::any_of(numbers.begin(), numbers.end(), is_real))
    return list_of(+[](const Scalar& n) { return n.to_double(); });
  if (std::all_of(numbers.begin(), numbers.end(), is_bool))
    return list_of(+[](const Scalar& n) { return n.to_int() != 0; });
  return list_of(+[](const Scalar& n) { return n.to_int(); });
}

const Tensor& Tensor::uniform_(double low, double high) const {
  tapestry::detail::check_defined("uniform_", *this);
  tapestry::detail::check_all_rows("uniform_", *this);
  kRand.check_dtype(dtype());
  check(low <= high && std::isfinite(high - low), "[uniform_] low ", low, " and high ", high,
        ": give finite limits, low <= high");
  overwrite(kRand, *this, [&](const Tensor& t) { fill_uniform(t, low, high); });
  return *this;
}
const Tensor& Tensor::normal_(double mean, double std) const {
  tapestry::detail::check_defined("normal_", *this);
  tapestry::detail::check_all_rows("normal_", *this);
  kRandn.check_dtype(dtype());
  check(std >= 0, "[normal_] std ", std, " is negative; give 0 or more");
  overwrite(kRandn, *this, [&](const Tensor& t) { fill_normal(t, mean, std); });
  return *this;
}

namespace {

// Uniform random numbers in [0, 1) of t's shape and device, with more digits than f16 and bf16 have.
Tensor uniform_for(const Tensor& t) {
  const DType dtype = t.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return rand(t.sizes(), TensorOptions(dtype, t.device()));
}
void check_probabilities(const char* op, const Tensor& p) {
  if (!p.device().is_cpu() || p.numel() == 0) return;
  const NoGradGuard no_grad;
  const double least = amin(p.detach()).item(), largest = amax(p.detach()).item();
  check(least >= 0 && largest <= 1, "[", op, "] probabilities from ", least, " to ", largest,
        "; they must lie in [0, 1]");
}

}  // namespace

Tensor bernoulli(const Tensor& x) {
  tapestry::detail::check_defined(kBernoulli.name, x);
  kBernoulli.check_dtype(x.dtype());
  check_probabilities(kBernoulli.name, x);
  const NoGradGuard no_grad;
  return lt(uniform_for(x), x.detach()).to(x.dtype());
}
Tensor Tensor::bernoulli() const { return tapestry::bernoulli(*this); }

const Tensor& Tensor::bernoulli_(double p) const {
  tapestry::detail::check_defined("bernoulli_", *this);
  tapestry::detail::check_all_rows("bernoulli_", *this);
  check(p >= 0 && p <= 1, "[bernoulli_] probability ", p, " is outside [0, 1]");
  overwrite(kBernoulli, *this, [&](const Tensor& t) {
    const NoGradGuard no_grad;
    t.copy_(tapestry::lt(uniform_for(t), p));
  });
  return *this;
}
const Tensor& Tensor::bernoulli_(const Tensor& p) const {
  tapestry::detail::check_defined("bernoulli_", *this);
  tapestry::detail::check_all_rows("bernoulli_", *this);
  check_operands(kBernoulli, *this, p);
  kBernoulli.check_dtype(p.dtype());
  check_broadcasts_to(kBernoulli, *this, p);
  check_probabilities("bernoulli_", p);
  overwrite(kBernoulli, *this, [&](const Tensor& t) {
    const NoGradGuard no_grad;
    t.copy_(tapestry::lt(uniform_for(t), p.detach()));
  });
  return *this;
}
const Tensor& Tensor::exponential_(double lambd) const {
  tapestry::detail::check_defined("exponential_", *this);
  tapestry::detail::check_all_rows("exponential_", *this);
  kRand.check_dtype(dtype());
  check(lambd > 0, "[exponential_] lambd ", lambd, " is not positive");
  overwrite(kRand, *this, [&](const Tensor& t) {
    const NoGradGuard no_grad;
    t.copy_(tapestry::log1p(-uniform_for(t)) * (-1 / lambd));
  });
  return *this;
}
const Tensor& Tensor::random_(std::int64_t from, std::int64_t to) const {
  tapestry::detail::check_defined("random_", *this);
  tapestry::detail::check_all_rows("random_", *this);
  const IntegerRange range = integer_range(dtype());
  check(from < to, "[random_] from ", from, " is not below to ", to, "; give from < to");
  check(from >= range.lowest && to - 1 <= range.highest, "[random_] ", dtype(),
        " cannot hold all integers from ", from, " to ", to - 1, "; give another range or dtype");
  overwrite(kRandint, *this, [&](const Tensor& t) {
    const NoGradGuard no_grad;
    t.copy_(randint(from, to, t.sizes(), TensorOptions(DType::i64, t.device())));
  });
  return *this;
}
const Tensor& Tensor::random_(std::int64_t to) const { return random_(0, to); }
const Tensor& Tensor::random_() const {
  tapestry::detail::check_defined("random_", *this);
  const std::int64_t highest = integer_range(dtype()).highest;
  return random_(0, highest == std::numeric_limits<std::int64_t>::max() ? highest : highest + 1);
}

}  // namespace tapestry
