#include "tapestry/data/collate.h"

#include <cstring>
#include <vector>

namespace tapestry::data {
namespace {

/// Copies the elements of a strided block to `out` in row-major order. Returns the end of the written range.
char* copy_strided(const char* in, char* out, const Shape& sizes, const Shape& strides, std::int64_t item,
                   int dim) {
  if (dim == sizes.size()) {
    std::memcpy(out, in, static_cast<std::size_t>(item));
    return out + item;
  }
  if (dim == sizes.size() - 1 && strides[dim] == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(sizes[dim] * item));
    return out + sizes[dim] * item;
  }
  for (std::int64_t i = 0; i < sizes[dim]; ++i)
    out = copy_strided(in + i * strides[dim] * item, out, sizes, strides, item, dim + 1);
  return out;
}

/// Copies all elements of `t` to `out` in row-major order.
void copy_elements(const Tensor& t, char* out) {
  if (t.numel() == 0) return;
  if (t.is_contiguous()) std::memcpy(out, t.raw_data(), t.nbytes());
  else
    copy_strided(static_cast<const char*>(t.raw_data()), out, t.sizes(), t.strides(),
                 static_cast<std::int64_t>(dtype_size(t.dtype())), 0);
}

}  // namespace

void check_cpu(const char* op, const Tensor& t, const char* what) {
  tapestry::detail::check_defined(op, t, what);
  check<DeviceError>(t.device().is_cpu(), "[", op, "] ", what, " is on ", t.device(),
                     "; datasets and transforms work on the CPU: move batches to the device after loading");
}

Tensor dense(const Tensor& t) {
  check_cpu("dense", t, "input");
  if (t.is_contiguous()) return t;
  Tensor out = empty(t.sizes(), {t.dtype(), kCPU});
  copy_elements(t, static_cast<char*>(out.raw_data()));
  return out;
}

Tensor row(const Tensor& t, std::int64_t index) {
  check<IndexError>(t.dim() > 0 && index >= 0 && index < t.size(0), "[row] index ", index,
                    " is out of range for a tensor of shape ", t.sizes());
  Shape sizes = t.sizes(), strides = t.strides();
  const std::int64_t offset = t.storage_offset() + index * strides[0];
  sizes.erase(0);
  strides.erase(0);
  return tapestry::detail::raw_view(t, sizes, strides, offset);
}

Tensor gather_rows(const Tensor& t, std::span<const std::int64_t> indices) {
  check_cpu("gather_rows", t, "input");
  check(t.dim() > 0, "[gather_rows] a tensor without dimensions has no rows");
  Shape sizes = t.sizes();
  const std::int64_t rows = sizes[0];
  sizes[0] = static_cast<std::int64_t>(indices.size());
  Tensor out = empty(sizes, {t.dtype(), kCPU});
  if (!t.is_contiguous()) {
    char* to = static_cast<char*>(out.raw_data());
    const std::size_t bytes = indices.empty() ? 0 : out.nbytes() / indices.size();
    for (std::size_t i = 0; i < indices.size(); ++i) copy_elements(row(t, indices[i]), to + i * bytes);
    return out;
  }
  const std::size_t bytes = rows == 0 ? 0 : t.nbytes() / static_cast<std::size_t>(rows);
  const char* from = static_cast<const char*>(t.raw_data());
  char* to = static_cast<char*>(out.raw_data());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check<IndexError>(indices[i] >= 0 && indices[i] < rows, "[gather_rows] index ", indices[i],
                      " is out of range for ", rows, " rows");
    if (bytes > 0) std::memcpy(to + i * bytes, from + static_cast<std::size_t>(indices[i]) * bytes, bytes);
  }
  return out;
}

Tensor stack_samples(std::span<const Tensor> samples) {
  check(!samples.empty(), "[stack_samples] there is no sample to stack");
  check_cpu("stack_samples", samples[0], "sample 0");
  const Tensor& first = samples[0];
  for (std::size_t i = 1; i < samples.size(); ++i) {
    check_cpu("stack_samples", samples[i], "a sample");
    check(samples[i].sizes() == first.sizes() && samples[i].dtype() == first.dtype(),
          "[stack_samples] sample ", i, " of the batch is ", samples[i].dtype(), " ", samples[i].sizes(),
          " and sample 0 is ", first.dtype(), " ", first.sizes(),
          "; make them alike or pass a collate of your own");
  }
  Shape sizes = first.sizes();
  sizes.insert(0, static_cast<std::int64_t>(samples.size()));
  Tensor out = empty(sizes, {first.dtype(), kCPU});
  char* to = static_cast<char*>(out.raw_data());
  for (const Tensor& sample : samples) {
    copy_elements(sample, to);
    to += sample.nbytes();
  }
  return out;
}

Example collate(std::span<const Example> samples) {
  check(!samples.empty(), "[collate] there is no sample in the batch");
  std::vector<Tensor> inputs, targets;
  inputs.reserve(samples.size());
  targets.reserve(samples.size());
  for (const Example& sample : samples) {
    inputs.push_back(sample.input);
    if (sample.target.defined()) targets.push_back(sample.target);
  }
  check(targets.empty() || targets.size() == samples.size(), "[collate] ", targets.size(), " of ",
        samples.size(), " samples have a target; give all of them one, or none");
  return {stack_samples(inputs), targets.empty() ? Tensor() : stack_samples(targets)};
}

}  // namespace tapestry::data
