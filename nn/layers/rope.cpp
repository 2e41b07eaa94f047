#include "tapestry/nn/layers/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

RotaryEmbedding::RotaryEmbedding(const Options& o) : options(o), frequencies_(o.frequencies) {
  check(o.dim > 0 && o.dim % 2 == 0, "[RotaryEmbedding] dim must be even and positive but is ", o.dim);
  check(o.max_seq_len > 0, "[RotaryEmbedding] max_seq_len must be positive but is ", o.max_seq_len);
  if (frequencies_.empty()) {
    check(o.base > 0, "[RotaryEmbedding] base must be positive but is ", o.base);
    for (std::int64_t i = 0; i < o.dim; i += 2)
      frequencies_.push_back(std::pow(o.base, -static_cast<double>(i) / static_cast<double>(o.dim)));
  }
  check(static_cast<std::int64_t>(frequencies_.size()) == o.dim / 2, "[RotaryEmbedding] ",
        frequencies_.size(), " frequencies for dim ", o.dim, "; give one for each of the ", o.dim / 2,
        " pairs");
}

RotaryEmbedding::Angles RotaryEmbedding::table(std::int64_t rows, DType dtype, Device device) {
  if (dtype != DType::f64) dtype = DType::f32;
  const std::lock_guard lock(mutex_);
  Angles& kept = tables_[{device.str(), dtype}];
  if (kept.cos.defined() && kept.cos.size(0) >= rows) return kept;
  // A power of 2, so that decoding does not compute a table for each token.
  const auto wanted = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  const std::int64_t count = std::min(std::max<std::int64_t>(wanted, 64), options.max_seq_len);
  const auto pairs = static_cast<std::int64_t>(frequencies_.size());
  std::vector<double> cosines, sines;
  cosines.reserve(static_cast<std::size_t>(count * pairs));
  sines.reserve(static_cast<std::size_t>(count * pairs));
  for (std::int64_t position = 0; position < count; ++position)
    for (const double frequency : frequencies_) {
      cosines.push_back(std::cos(static_cast<double>(position) * frequency));
      sines.push_back(std::sin(static_cast<double>(position) * frequency));
    }
  const NoGradGuard no_grad;
  const auto made = [&](const std::vector<double>& values) {
    return tensor(values, {count, pairs}, TensorOptions(dtype, kCPU)).to(device);
  };
  return kept = {made(cosines), made(sines)};
}

RotaryEmbedding::Angles RotaryEmbedding::angles(std::int64_t first, std::int64_t count, DType dtype,
                                                Device device) {
  check(first >= 0 && count >= 0, "[RotaryEmbedding] positions ", first, " to ", first + count - 1,
        " are negative");
  check(first + count <= options.max_seq_len, "[RotaryEmbedding] position ", first + count - 1,
        " is past the last of max_seq_len ", options.max_seq_len, "; shorten the sequence");
  const Angles all = table(std::max<std::int64_t>(first + count, 1), dtype, device);
  return {all.cos.narrow(0, first, count), all.sin.narrow(0, first, count)};
}

RotaryEmbedding::Angles RotaryEmbedding::angles(const Tensor& positions, DType dtype) {
  tapestry::detail::check_defined("RotaryEmbedding", positions, "positions");
  check<TypeError>(!is_floating(positions.dtype()) && positions.dtype() != DType::boolean,
                   "[RotaryEmbedding] positions are ", positions.dtype(), "; they must be integers");
  std::int64_t rows = options.max_seq_len;
  if (positions.device().is_cpu() && positions.numel() > 0) {
    const NoGradGuard no_grad;
    rows = max(positions).item<std::int64_t>() + 1;
    check(min(positions).item<std::int64_t>() >= 0 && rows <= options.max_seq_len,
          "[RotaryEmbedding] positions ", min(positions).item<std::int64_t>(), " to ", rows - 1,
          " are not in [0, ", options.max_seq_len, ") of max_seq_len; shorten the sequence");
  }
  const Angles all = table(rows, dtype, positions.device());
  return {embedding(all.cos, positions), embedding(all.sin, positions)};
}

Tensor RotaryEmbedding::forward(const Tensor& x, std::int64_t first) {
  tapestry::detail::check_defined("RotaryEmbedding", x);
  check(x.dim() >= 2, "[RotaryEmbedding] the input has shape ", x.sizes(), "; expected (..., L, ",
        options.dim, ")");
  const Angles a = angles(first, x.size(-2), x.dtype(), x.device());
  return rotary_embedding(x, a.cos, a.sin, options.interleaved);
}

Tensor RotaryEmbedding::forward(const Tensor& x, const Tensor& positions) {
  tapestry::detail::check_defined("RotaryEmbedding", x);
  const Angles a = angles(positions, x.dtype());
  return rotary_embedding(x, a.cos, a.sin, options.interleaved);
}

std::string RotaryEmbedding::options_text() const {
  detail::OptionsText text;
  text.add("dim", options.dim).add("max_seq_len", options.max_seq_len);
  if (options.frequencies.empty()) text.add("base", options.base);
  text.add("interleaved", options.interleaved, false);
  return text.str();
}

}  // namespace tapestry::nn
