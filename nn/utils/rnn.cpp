#include "tapestry/nn/utils/rnn.h"

#include <algorithm>
#include <numeric>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/dtype.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry::nn::utils::rnn {

namespace {

// (T N, ...) of (T, N, ...)
Tensor rows_of(const Tensor& x) { return x.flatten(0, 1); }

Tensor index_tensor(const std::vector<std::int64_t>& values, Device device) {
  return tensor(values, TensorOptions(DType::i64, kCPU)).to(device);
}

// The lengths of the sorted sequences.
std::vector<std::int64_t> lengths_of(const std::vector<std::int64_t>& batch_sizes) {
  std::vector<std::int64_t> lengths;
  for (std::size_t t = batch_sizes.size(); t-- > 0;)
    while (static_cast<std::int64_t>(lengths.size()) < batch_sizes[t])
      lengths.push_back(static_cast<std::int64_t>(t) + 1);
  return lengths;
}

// The row of (T N, ...) of each row of the packed data.
std::vector<std::int64_t> positions(const std::vector<std::int64_t>& batch_sizes) {
  std::vector<std::int64_t> rows;
  const std::int64_t batch = batch_sizes.front();
  for (std::size_t t = 0; t < batch_sizes.size(); ++t)
    for (std::int64_t n = 0; n < batch_sizes[t]; ++n)
      rows.push_back(static_cast<std::int64_t>(t) * batch + n);
  return rows;
}

}  // namespace

PackedSequence pack_padded_sequence(const Tensor& x, const std::vector<std::int64_t>& lengths,
                                    const PackOptions& options) {
  tapestry::detail::check_defined("pack_padded_sequence", x);
  check(x.dim() >= 2, "[pack_padded_sequence] x has shape ", x.sizes(), ", expected ",
        options.batch_first ? "(N, T, ...)" : "(T, N, ...)");
  const Tensor by_step = options.batch_first ? x.transpose(0, 1) : x;
  const std::int64_t steps = by_step.size(0), batch = by_step.size(1);
  const auto count = static_cast<std::int64_t>(lengths.size());
  check(count == batch && batch > 0, "[pack_padded_sequence] got ", count, " lengths for a batch of ", batch,
        "; pass one per sequence, and at least one");
  for (std::int64_t n = 0; n < batch; ++n) {
    const std::int64_t length = lengths[static_cast<std::size_t>(n)];
    check(length > 0 && length <= steps, "[pack_padded_sequence] length ", length, " of sequence ", n,
          " is outside [1, ", steps, "]");
  }

  PackedSequence packed;
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](std::int64_t n) { return lengths[static_cast<std::size_t>(n)]; };
  if (!std::is_sorted(lengths.rbegin(), lengths.rend())) {
    check(!options.enforce_sorted,
          "[pack_padded_sequence] the lengths increase; sort the sequences, longest first, or set "
          "enforce_sorted = false");
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
  }
  if (!options.enforce_sorted) {
    std::vector<std::int64_t> inverse(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    packed.sorted_indices = index_tensor(order, x.device());
    packed.unsorted_indices = index_tensor(inverse, x.device());
  }

  // One copy both sorts the sequences and drops the padding.
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < length(order[0]); ++t) {
    std::int64_t size = 0;
    for (; size < batch && length(order[static_cast<std::size_t>(size)]) > t; ++size)
      rows.push_back(t * batch + order[static_cast<std::size_t>(size)]);
    packed.batch_sizes.push_back(size);
  }
  packed.data = index_select(rows_of(by_step), 0, index_tensor(rows, x.device()));
  return packed;
}

PackedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths, const PackOptions& options) {
  tapestry::detail::check_defined("pack_padded_sequence", lengths, "lengths");
  check<TypeError>(!is_floating(lengths.dtype()) && lengths.dtype() != DType::boolean,
                   "[pack_padded_sequence] lengths are ", lengths.dtype(), "; pass integers");
  check(lengths.dim() == 1, "[pack_padded_sequence] lengths have shape ", lengths.sizes(), ", expected (N)");
  tapestry::detail::check_host_reads("pack_padded_sequence", lengths);
  const Tensor host = lengths.detach().to(kCPU, DType::i64).contiguous();
  const auto* const first = host.data<std::int64_t>();
  return pack_padded_sequence(x, std::vector<std::int64_t>(first, first + host.numel()), options);
}

PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted) {
  const Tensor padded = pad_sequence(sequences);
  std::vector<std::int64_t> lengths;
  for (const Tensor& t : sequences) lengths.push_back(t.size(0));
  return pack_padded_sequence(padded, lengths, {.enforce_sorted = enforce_sorted});
}

std::pair<Tensor, Tensor> pad_packed_sequence(const PackedSequence& packed, const PadPackedOptions& options) {
  tapestry::detail::check_defined("pad_packed_sequence", packed.data, "data");
  check(!packed.batch_sizes.empty(), "[pad_packed_sequence] the sequence has no batch sizes");
  const std::int64_t rows =
      std::accumulate(packed.batch_sizes.begin(), packed.batch_sizes.end(), std::int64_t{0});
  check(packed.data.dim() > 0 && packed.data.size(0) == rows, "[pad_packed_sequence] data has shape ",
        packed.data.sizes(), ", but the batch sizes add up to ", rows);
  const auto longest = static_cast<std::int64_t>(packed.batch_sizes.size());
  const std::int64_t batch = packed.batch_sizes.front();
  const std::int64_t steps = options.total_length > 0 ? options.total_length : longest;
  check(steps >= longest, "[pad_packed_sequence] total_length ", steps,
        " is less than the longest sequence, which has ", longest, " steps");

  Shape sizes = packed.data.sizes();
  sizes[0] = steps * batch;
  const Device device = packed.data.device();
  Tensor padded = index_copy(full(sizes, options.padding_value, {packed.data.dtype(), device}), 0,
                             index_tensor(positions(packed.batch_sizes), device), packed.data)
                      .unflatten(0, {steps, batch});
  Tensor lengths = index_tensor(lengths_of(packed.batch_sizes), kCPU);
  if (packed.unsorted_indices.defined()) {
    padded = index_select(padded, 1, packed.unsorted_indices);
    lengths = index_select(lengths, 0, packed.unsorted_indices.to(kCPU));
  }
  return {options.batch_first ? padded.transpose(0, 1) : padded, lengths};
}

Tensor pad_sequence(const std::vector<Tensor>& sequences, const PadOptions& options) {
  check(!sequences.empty(), "[pad_sequence] got no sequences; pass at least one");
  std::int64_t steps = 0;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Tensor& t = sequences[n];
    tapestry::detail::check_defined("pad_sequence", t, "a sequence");
    check(t.dim() > 0 && t.dim() == sequences[0].dim() &&
              std::equal(t.sizes().begin() + 1, t.sizes().end(), sequences[0].sizes().begin() + 1),
          "[pad_sequence] sequences 0 and ", n, " have shapes ", sequences[0].sizes(), " and ", t.sizes(),
          "; all sizes but the first must be equal");
    check<TypeError>(t.dtype() == sequences[0].dtype(), "[pad_sequence] sequences 0 and ", n, " are ",
                     sequences[0].dtype(), " and ", t.dtype(), "; convert one with to(dtype)");
    steps = std::max(steps, t.size(0));
  }
  std::vector<Tensor> padded;
  for (const Tensor& t : sequences) {
    Shape sizes = t.sizes();
    sizes[0] = steps - t.size(0);
    const Tensor gap = full(sizes, options.padding_value, {t.dtype(), t.device()});
    padded.push_back(options.padding_left ? cat({gap, t}) : cat({t, gap}));
  }
  return stack(padded, options.batch_first ? 0 : 1);
}

std::vector<Tensor> unpad_sequence(const Tensor& padded, const std::vector<std::int64_t>& lengths,
                                   bool batch_first) {
  tapestry::detail::check_defined("unpad_sequence", padded);
  check(padded.dim() >= 2, "[unpad_sequence] the tensor has shape ", padded.sizes(), ", expected ",
        batch_first ? "(N, T, ...)" : "(T, N, ...)");
  const Tensor by_sequence = batch_first ? padded : padded.transpose(0, 1);
  const auto count = static_cast<std::int64_t>(lengths.size());
  check(count == by_sequence.size(0), "[unpad_sequence] got ", count, " lengths for a batch of ",
        by_sequence.size(0), "; pass one per sequence");
  std::vector<Tensor> sequences;
  for (std::int64_t n = 0; n < count; ++n)
    sequences.push_back(by_sequence.select(0, n).narrow(0, 0, lengths[static_cast<std::size_t>(n)]));
  return sequences;
}

}  // namespace tapestry::nn::utils::rnn
