#include "tapestry/distributed/common/batch.h"

#include <algorithm>
#include <numeric>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

bool is_split(const TensorList& batch, std::size_t i) {
  return !batch.whole[i] && batch.tensors[i].defined() && batch.tensors[i].dim() > 0;
}

}  // namespace

std::vector<std::int64_t> chunk_sizes(std::int64_t samples, std::size_t chunks) {
  check(samples >= 0 && chunks > 0, "[chunk_sizes] ", samples, " samples cannot be split into ", chunks,
        " chunks; give 0 samples or more, and 1 chunk or more");
  const auto n = std::clamp<std::int64_t>(samples, 1, static_cast<std::int64_t>(chunks));
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(n), samples / n);
  for (std::int64_t c = 0; c < samples % n; ++c) ++sizes[static_cast<std::size_t>(c)];
  return sizes;
}

double chunk_weight(std::span<const std::int64_t> sizes, std::size_t i) {
  const std::int64_t samples = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  return samples ? static_cast<double>(sizes[i]) / static_cast<double>(samples) : 1;
}

std::int64_t samples_in(const char* op, const TensorList& batch) {
  const Tensor* first = nullptr;
  for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
    if (!is_split(batch, i)) continue;
    const Tensor& t = batch.tensors[i];
    if (!first) first = &t;
    check(t.size(0) == first->size(0), "[", op, "] the batch has tensors of ", first->size(0), " and ",
          t.size(0), " samples, of shapes ", first->sizes(), " and ", t.sizes(),
          "; make their first dimensions equal, or pass Whole{tensor} for a tensor that is not split");
  }
  check(first != nullptr, "[", op,
        "] the batch has no tensor to split; pass one whose first dimension counts the samples");
  return first->size(0);
}

std::vector<std::vector<Tensor>> split_tensors(const TensorList& batch, std::span<const std::int64_t> sizes) {
  std::vector<std::vector<Tensor>> chunks(sizes.size());
  std::int64_t begin = 0;
  for (std::size_t c = 0; c < sizes.size(); begin += sizes[c++])
    for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
      const Tensor& t = batch.tensors[i];
      chunks[c].push_back(is_split(batch, i) ? t.narrow(0, begin, sizes[c]) : t);
    }
  return chunks;
}

std::vector<Tensor> gather_tensors(const std::vector<std::vector<Tensor>>& chunks, Device device) {
  check(!chunks.empty(), "[gather] there is nothing to gather; pass one chunk or more");
  for (const auto& chunk : chunks)
    check(chunk.size() == chunks[0].size(), "[gather] chunks have ", chunks[0].size(), " and ", chunk.size(),
          " tensors; return the same number for each");
  std::vector<Tensor> joined;
  for (std::size_t i = 0; i < chunks[0].size(); ++i) {
    std::vector<Tensor> rows;
    for (const auto& chunk : chunks) {
      check(chunk[i].defined() == chunks[0][i].defined(), "[gather] output ", i,
            " is a tensor in one chunk and undefined in another; return the same for each");
      if (!chunk[i].defined()) continue;
      check(chunk[i].dim() == chunks[0][i].dim() && chunk[i].dtype() == chunks[0][i].dtype(),
            "[gather] output ", i, " is ", chunks[0][i].dtype(), " ", chunks[0][i].sizes(),
            " in one chunk and ", chunk[i].dtype(), " ", chunk[i].sizes(),
            " in another; return the same dtype and number of dimensions for each");
      rows.push_back(chunk[i].to(device));
    }
    joined.push_back(rows.empty() ? Tensor() : rows[0].dim() == 0 ? stack(rows) : cat(rows));
  }
  return joined;
}

Tensor join_gradients(const std::vector<Tensor>& gradients, const std::vector<Tensor>& chunks, bool whole,
                      Device device) {
  if (std::none_of(gradients.begin(), gradients.end(), [](const Tensor& t) { return t.defined(); }))
    return {};
  std::vector<Tensor> rows;
  for (std::size_t c = 0; c < chunks.size(); ++c)
    rows.push_back((gradients[c].defined() ? gradients[c] : zeros_like(chunks[c].detach())).to(device));
  if (!whole) return cat(rows);
  Tensor sum = rows[0];
  for (std::size_t c = 1; c < rows.size(); ++c) sum = sum + rows[c];
  return sum;
}

}  // namespace tapestry::distributed
