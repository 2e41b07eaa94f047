// Products of divided layers, cut along the sequence into chunks.
//
// Chunk c has the c-th part of each rank's rows. Each chunk has a conversion of its own, which gathers it, or
// reduces and scatters it. Together they do what one conversion of the whole stream would do. In backward,
// the product of a chunk computes the gradient of its input only. The gradient of the weight is one product
// of all rows, so that it does not depend on the number of chunks.
#include <algorithm>
#include <memory>
#include <utility>

#include "tapestry/autograd/autocast.h"
#include "tapestry/autograd/internal/delay.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/matmul.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/tensor/internal/stream.h"

namespace tapestry::distributed {
namespace {

using autograd::Backward;
using Rows = std::vector<std::int64_t>;

// A sequence of `length` rows in dimension `dim`, of which each rank has nn::Region::part(). The parts are
// cut every `rows` rows.
struct Chunking {
  int dim, ranks;
  std::int64_t length, part, rows;

  Chunking(int dim, std::int64_t length, int ranks, int chunks)
      : dim(dim),
        ranks(ranks),
        length(length),
        part((length + ranks - 1) / ranks),
        rows(std::max<std::int64_t>((part + chunks - 1) / chunks, 1)) {}
  int count() const { return static_cast<int>((part + rows - 1) / rows); }
  std::int64_t rows_of(int rank, int chunk) const {
    const std::int64_t own = std::clamp<std::int64_t>(length - rank * part, 0, part);
    return std::clamp<std::int64_t>(own - chunk * rows, 0, rows);
  }
  std::int64_t rows_of(int chunk) const {
    std::int64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += rows_of(r, chunk);
    return sum;
  }
  Rows of_rank(int rank) const {
    Rows all;
    for (int c = 0; c < count(); ++c) all.push_back(rows_of(rank, c));
    return all;
  }
  Rows of_chunk(int chunk) const {
    Rows all;
    for (int r = 0; r < ranks; ++r) all.push_back(rows_of(r, chunk));
    return all;
  }
};

// The chunks of a whole tensor.
std::vector<Tensor> in_chunks(const Tensor& whole, const Chunking& how) {
  Rows sizes;
  for (int r = 0; r < how.ranks; ++r)
    for (int c = 0; c < how.count(); ++c) sizes.push_back(how.rows_of(r, c));
  const std::vector<Tensor> pieces = whole.split(sizes, how.dim);
  std::vector<Tensor> chunks;
  for (int c = 0; c < how.count(); ++c) {
    std::vector<Tensor> of_ranks;
    for (int r = 0; r < how.ranks; ++r)
      of_ranks.push_back(pieces[static_cast<std::size_t>(r * how.count() + c)]);
    chunks.push_back(cat(of_ranks, how.dim));
  }
  return chunks;
}

// The whole tensor of these chunks.
Tensor joined(const std::vector<Tensor>& chunks, const Chunking& how) {
  std::vector<std::vector<Tensor>> pieces;
  for (int c = 0; c < how.count(); ++c)
    pieces.push_back(chunks[static_cast<std::size_t>(c)].split(how.of_chunk(c), how.dim));
  std::vector<Tensor> in_order;
  for (int r = 0; r < how.ranks; ++r)
    for (const std::vector<Tensor>& of_chunk : pieces)
      in_order.push_back(of_chunk[static_cast<std::size_t>(r)]);
  return cat(in_order, how.dim);
}

Tensor rows_by_operations(const Tensor& t) {
  return t.reshape({Shape(t.sizes().begin(), t.dim() - 1).numel(), t.size(-1)});
}

// Sets the gradients of a layer's weight and bias, inputs 0 and 1, from that of its result.
void set_weights(Backward& b, const Tensor& dy, const autograd::SavedTensor& x, bool has_bias) {
  if (b.create_graph()) {
    const Tensor g = rows_by_operations(dy);
    if (b.needs(0)) b.set(0, matmul(g.transpose(0, 1), rows_by_operations(b.saved(x))));
    if (has_bias && b.needs(1)) b.set(1, sum(g, 0));
    return;
  }
  const Tensor g = autograd::as_rows(dy);
  if (has_bias) return autograd::set_weight_and_bias(b, 0, 1, g, [&] { return b.saved(x); });
  if (b.needs(0)) autograd::set_product(b, 0, autograd::transposed(g), autograd::as_rows(b.saved(x)));
}

// The gradients of the chunks' results. In backward, the products of a row layer leave them here for the node
// that computes the gradient of its weight.
using ChunkGradients = std::shared_ptr<std::vector<Tensor>>;

// linear(x, weight, bias) of one chunk, without gradients of weight and bias. If `weight_gradient` is
// defined, backward leaves this chunk's gradient in `gradients`, for the node that has computed
// `weight_gradient`.
Tensor chunk_product(const Tensor& x, const LayerWeights& layer, const Tensor& weight_gradient = {},
                     const ChunkGradients& gradients = {}, std::size_t chunk = 0) {
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return linear(x, layer.weight, layer.bias);
  }();
  if (!autograd::recording(x, weight_gradient)) return y;
  const Tensor *const output = &y, *const inputs[] = {&x, &weight_gradient};
  autograd::record(
      "chunk_linear", {&output, 1}, inputs,
      [weight = autograd::save(layer.weight), gradients, chunk](Backward& b) {
        if (b.needs(0)) b.set(0, matmul(b.grad(), b.saved(weight)));
        if (!b.needs(1)) return;
        (*gradients)[chunk] = b.grad();
        b.set(1, zeros({}, {b.grad().dtype(), b.grad().device()}));
      },
      /*twice=*/true);
  return y;
}

// The whole result of a column layer from those of its chunks, with the gradients of weight and bias.
Tensor joined_products(const Tensor& x, const LayerWeights& layer, const std::vector<Tensor>& results,
                       const Chunking& how) {
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return joined(results, how);
  }();
  std::vector<const Tensor*> inputs{&layer.weight, &layer.bias};
  for (const Tensor& result : results) inputs.push_back(&result);
  if (!autograd::recording(layer.weight, layer.bias, results[0])) return y;
  const Tensor* const output = &y;
  const bool trains = autograd::recording(layer.weight);
  autograd::record(
      "join_chunks", {&output, 1}, inputs,
      [x = trains ? autograd::save(x) : autograd::SavedTensor(), how](Backward& b) {
        if (b.needs(2)) {
          const std::vector<Tensor> grads = in_chunks(b.grad(), how);
          for (std::size_t c = 0; c < grads.size(); ++c) b.set(static_cast<std::uint32_t>(2 + c), grads[c]);
        }
        set_weights(b, b.grad(), x, /*has_bias=*/true);
      },
      /*twice=*/true);
  autograd::delay_leaf_gradients(y);
  return y;
}

// Returns a zero that is an input of each chunk's product of a row layer. So its backward runs after theirs,
// and computes the gradient of the weight from what they have left. Undefined if the weight needs none.
Tensor weight_gradient_of(const Tensor& x, const Tensor& weight, const ChunkGradients& gradients,
                          const Chunking& how) {
  if (!autograd::recording(weight)) return {};
  const Tensor number = zeros({}, {x.dtype(), x.device()});
  const Tensor *const output = &number, *const input = &weight;
  autograd::record(
      "chunk_weight", {&output, 1}, {&input, 1},
      [x = autograd::save(x), gradients, how](Backward& b) {
        const std::vector<Tensor> all = std::exchange(*gradients, std::vector<Tensor>(gradients->size()));
        set_weights(b, joined(all, how), x, /*has_bias=*/false);
      },
      /*twice=*/true);
  autograd::delay_leaf_gradients(number);
  return number;
}

// The operands as linear() would get them.
Tensor cast_for_product(const Tensor& t) {
  const auto low = t.defined() ? autocast_dtype(t.device().type) : std::nullopt;
  return low ? autograd::impl::autocast_input(t, *low) : t;
}
LayerWeights cast_for_product(const LayerWeights& layer) {
  return {cast_for_product(layer.weight), cast_for_product(layer.bias)};
}

}  // namespace

Tensor whole_product(const Tensor& x, const LayerWeights& layer) {
  const Tensor y = linear(x, layer.weight, layer.bias);
  autograd::delay_leaf_gradients(y);
  return y;
}

PendingConversion ResidualStream::begun(const Tensor& chunk, Placement from, Placement to,
                                        std::int64_t whole_size, bool fills_wait) const {
  return begin_convert(chunk, axis, from, to,
                       {.whole_size = whole_size, .fills_wait = fills_wait, .traffic = traffic});
}

EnteredRegion ResidualStream::gathered_products(const Tensor& x, const std::vector<LayerWeights>& layers) {
  if (chunks < 2 || layers.empty()) return {into_region(x), {}};
  const int dim = dim_of(x);
  const Chunking how(dim, length_of(x, dim), axis.size(), chunks);
  if (how.count() < 2)
    return {converted(x, Placement::sharded(dim), Placement::replicated(), how.length), {}};
  EnteredRegion region;
  {
    const PlacementCheck off(false);  // the results are placed below
    const auto count = static_cast<std::size_t>(how.count());
    std::vector<LayerWeights> operands;
    for (const LayerWeights& layer : layers) operands.push_back(cast_for_product(layer));
    const std::vector<Tensor> own = x.split(how.of_rank(axis.coordinate()), dim);
    std::vector<PendingConversion> arriving;
    for (std::size_t c = 0; c < count; ++c)
      arriving.push_back(begun(own[c], Placement::sharded(dim), Placement::replicated(),
                               how.rows_of(static_cast<int>(c)), /*fills_wait=*/c + 1 == count));
    std::vector<Tensor> gathered;
    std::vector<std::vector<Tensor>> results(layers.size());
    for (PendingConversion& chunk : arriving) {
      gathered.push_back(chunk.finish());
      for (std::size_t i = 0; i < layers.size(); ++i)  // each casts for itself: gradients are added uncast
        results[i].push_back(chunk_product(cast_for_product(gathered.back()), operands[i]));
    }
    region.x = joined(gathered, how);
    const Tensor operand = cast_for_product(region.x);
    for (std::size_t i = 0; i < layers.size(); ++i)
      region.results.push_back(joined_products(operand, operands[i], results[i], how));
  }
  const auto placed = [&](const Tensor& y, Placement to) {
    return impl::CheckedConversion(x, axis, Placement::sharded(dim), to).result(y);
  };
  region.x = placed(region.x, Placement::replicated());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Tensor& y = region.results[i];
    const bool in_blocks = placement_of(layers[i].weight, axis) == Placement::varying();
    y = placed(y, in_blocks ? Placement::varying() : Placement::sharded(y.dim() - 1));
  }
  return region;
}

Tensor ResidualStream::scattered_product(const Tensor& x, const Tensor& weight,
                                         const std::function<Tensor(DType)>& addend) {
  const int dim = chunks > 1 ? dim_of(x) : 0;
  const Chunking how(dim, chunks > 1 ? x.size(dim) : 1, axis.size(), std::max(chunks, 1));
  if (how.count() < 2) {
    const Tensor y = whole_product(x, {weight, {}}), more = addend(y.dtype());
    return from_parts(more.defined() ? y + more : y);
  }
  see(how.length);
  Tensor y;
  {
    const PlacementCheck off(false);  // the result is placed below
    const auto count = static_cast<std::size_t>(how.count());
    const Tensor operand = cast_for_product(x), w = cast_for_product(weight);
    const Tensor more = addend(operand.dtype());
    const auto gradients = std::make_shared<std::vector<Tensor>>(count);
    const Tensor weight_gradient = weight_gradient_of(operand, w, gradients, how);
    const std::vector<Tensor> parts = in_chunks(operand, how);
    const std::vector<Tensor> others = more.defined() ? in_chunks(more, how) : std::vector<Tensor>();
    std::vector<PendingConversion> leaving;
    for (std::size_t c = 0; c < count; ++c) {
      Tensor part = chunk_product(parts[c], {w, {}}, weight_gradient, gradients, c);
      if (more.defined()) part = part + others[c];
      leaving.push_back(begun(part, Placement::partial(), Placement::sharded(dim),
                              how.rows_of(static_cast<int>(c)), /*fills_wait=*/c + 1 == count));
    }
    std::vector<Tensor> own;
    for (PendingConversion& chunk : leaving) own.push_back(chunk.finish());
    y = cat(own, dim);
  }
  return impl::CheckedConversion(x, axis, Placement::sharded(x.dim() - 1), Placement::sharded(dim)).result(y);
}

}  // namespace tapestry::distributed
