#include "tapestry/autograd/ops/recurrent.h"

#include <algorithm>
#include <numeric>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/matmul.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/matmul_packed.h"
#include "tapestry/kernels/ops/recurrent.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using kernels::RecurrentCell;

const Op kLstm("lstm", Grad::differentiable, kFloats);
const Op kGru("gru", Grad::differentiable, kFloats);
const Op kRnnTanh("rnn_tanh", Grad::differentiable, kFloats);
const Op kRnnRelu("rnn_relu", Grad::differentiable, kFloats);

// The rows of a batch of sequences: step t has the rows starts[t] to starts[t] + sizes[t] - 1, one for each
// of the first sizes[t] sequences.
struct Steps {
  std::int64_t batch = 0, rows = 0;
  bool reverse = false;
  std::vector<std::int64_t> sizes, starts;

  // The step that forward computes as its i-th. Backward goes through the steps in the opposite order.
  std::size_t at(std::size_t i) const { return reverse ? sizes.size() - 1 - i : i; }
};

Steps steps_of(const Op& op, const Tensor& x, const RecurrentParams& params) {
  Steps s;
  s.reverse = params.reverse;
  s.sizes = params.batch_sizes;
  if (s.sizes.empty()) {
    check(x.dim() == 3, "[", op.name, "] x has shape ", x.sizes(), ", expected (T, N, I)");
    check(x.size(0) > 0, "[", op.name, "] x has shape ", x.sizes(), "; pass at least one step");
    s.sizes.assign(static_cast<std::size_t>(x.size(0)), x.size(1));
  } else {
    check(x.dim() == 2, "[", op.name, "] x has shape ", x.sizes(), ", expected (rows, I) with batch sizes");
  }
  s.batch = s.sizes.front();
  for (std::size_t t = 0; t < s.sizes.size(); ++t) {
    const std::int64_t before = s.sizes[t > 0 ? t - 1 : 0];
    check(x.dim() == 3 || (s.sizes[t] > 0 && s.sizes[t] <= before), "[", op.name, "] batch size ", s.sizes[t],
          " of step ", t, " after ", before, "; batch sizes must be positive and must not increase");
    s.starts.push_back(s.rows);
    s.rows += s.sizes[t];
  }
  check(x.dim() == 3 || x.size(0) == s.rows, "[", op.name, "] x has ", x.size(0),
        " rows, but the batch sizes add up to ", s.rows, "; they must be equal");
  return s;
}

// Throws unless all operands fit.
void check_operands(const Op& op, RecurrentCell cell, const Tensor& x, const Tensor& h0, const Tensor& c0,
                    const RecurrentWeights& w, const Steps& steps) {
  const char* const name = op.name;
  detail::check_defined(name, w.ih, "weights.ih");
  detail::check_defined(name, w.hh, "weights.hh");
  check(w.bias_ih.defined() == w.bias_hh.defined(), "[", name, "] only one of bias_ih and bias_hh is defined",
        "; pass both or none");
  const std::pair<const Tensor*, const char*> others[] = {{&h0, "h0"},
                                                          {&c0, "c0"},
                                                          {&w.ih, "weights.ih"},
                                                          {&w.hh, "weights.hh"},
                                                          {&w.bias_ih, "bias_ih"},
                                                          {&w.bias_hh, "bias_hh"}};
  for (const auto& [t, what] : others) autograd::check_matches(name, x, *t, what);
  const std::int64_t k = kernels::gates_of(cell);
  check(w.hh.dim() == 2 && w.hh.size(0) == k * w.hh.size(1), "[", name, "] weights.hh has shape ",
        w.hh.sizes(), ", expected (", k, " H, H)");
  const std::int64_t hidden = w.hh.size(1), width = k * hidden;
  check(w.ih.dim() == 2 && w.ih.size(0) == width && w.ih.size(1) == x.size(-1), "[", name,
        "] weights.ih has shape ", w.ih.sizes(), ", expected ", Shape{width, x.size(-1)}, " for x ",
        x.sizes(), " and weights.hh ", w.hh.sizes());
  autograd::check_vector(name, w.bias_ih, "bias_ih", width);
  autograd::check_vector(name, w.bias_hh, "bias_hh", width);
  for (const auto& [t, what] : {others[0], others[1]})
    check(!t->defined() || t->sizes() == Shape{steps.batch, hidden}, "[", name, "] ", what, " has shape ",
          t->defined() ? t->sizes() : Shape(), ", expected ", Shape{steps.batch, hidden});
}

// ---- unrecorded arithmetic on dense matrices ----
struct Operand {
  const Tensor& matrix;
  bool transposed = false;
  std::int64_t rows() const { return matrix.sizes()[transposed ? 1 : 0]; }
  std::int64_t cols() const { return matrix.sizes()[transposed ? 0 : 1]; }
  kernels::MatrixStrides strides() const {
    const std::int64_t pitch = std::max<std::int64_t>(matrix.sizes()[1], 1);
    return transposed ? kernels::MatrixStrides{1, pitch} : kernels::MatrixStrides{pitch, 1};
  }
};
Operand transposed_operand(const Tensor& matrix) { return {matrix, true}; }

// c = a b + bias, or c += a b.
void product(const Tensor& c, const Operand& a, const Operand& b, bool accumulate = false,
             const Tensor& bias = {}) {
  kernels::GemmArgs g;
  g.m = a.rows(), g.n = b.cols(), g.k = a.cols();
  g.a = a.matrix, g.b = b.matrix, g.c = c;
  g.a_strides = a.strides(), g.b_strides = b.strides();
  g.c_row = std::max<std::int64_t>(g.n, 1);
  g.bias = bias;
  g.accumulate = accumulate;
  kernels::gemm(c.device(), c.dtype(), g);
}

// The second factor of the products of all steps. Where the device has kernels for it, it is packed once.
class SharedFactor {
 public:
  SharedFactor(const Operand& b, std::size_t products) : b_(b) {
    const Tensor& m = b.matrix;
    // Packing costs about as much as a product.
    if (products < 4 || !kernels::packed_gemm.has(m.device().type, m.dtype())) return;
    packed_ = empty({kernels::packed_size(b.rows(), b.cols())}, {DType::f32, m.device()});
    kernels::pack_matrix(m.device(), m.dtype(),
                         {.k = b.rows(), .n = b.cols(), .b = m, .b_strides = b.strides(), .packed = packed_});
  }
  // c = a b + bias, or c += a b + bias.
  void product(const Tensor& c, const Tensor& a, bool accumulate, const Tensor& bias = {}) const {
    if (!packed_.defined()) return tapestry::product(c, {a}, b_, accumulate, bias);
    const std::int64_t k = b_.rows(), n = b_.cols();
    kernels::packed_gemm(c.device(), c.dtype(),
                         {.m = a.sizes()[0],
                          .n = n,
                          .k = k,
                          .a = a,
                          .a_row = k,
                          .packed = packed_,
                          .c = c,
                          .c_row = n,
                          .bias = bias,
                          .accumulate = accumulate});
  }

 private:
  Operand b_;
  Tensor packed_;
};

Tensor column_sum(const Tensor& x) {
  const Tensor y = empty({x.sizes()[1]}, {x.dtype(), x.device()});
  kernels::column_sum(y.device(), y.dtype(), {.rows = x.sizes()[0], .cols = x.sizes()[1], .x = x, .y = y});
  return y;
}

// Rows `start` to `start + count - 1` of a dense array whose last size is `width`.
Tensor rows_of(const Tensor& t, std::int64_t start, std::int64_t count, std::int64_t width) {
  if (!t.defined()) return {};
  return detail::raw_view(t, {count, width}, {width, 1}, t.storage_offset() + start * width);
}
// A new dense array with the elements of t, or zeros.
Tensor state_from(const Tensor& t, const Shape& sizes, const TensorOptions& options) {
  if (!t.defined()) return zeros(sizes, options);
  const Tensor state = empty(sizes, options);
  state.copy_(t.detach());
  return state;
}

// What backward reads, beside the weights and x. Arrays that the cell does not need are undefined.
struct Saved {
  Tensor gates, h_before, c_before, candidate;
};

struct RecurrentResult {
  Tensor output, h, c;
};

// Runs all steps. Writes `saved` unless it is null.
RecurrentResult forward(RecurrentCell cell, const Tensor& x, const Tensor& h0, const Tensor& c0,
                        const RecurrentWeights& w, const Steps& steps, const Shape& out_sizes, Saved* saved) {
  const NoGradGuard no_grad;
  const TensorOptions options(x.dtype(), x.device());
  const std::int64_t hidden = w.hh.size(1), width = kernels::gates_of(cell) * hidden;
  const bool lstm = cell == RecurrentCell::lstm, gru = cell == RecurrentCell::gru, plain = !lstm && !gru;
  const auto array = [&](bool wanted) { return wanted ? empty({steps.rows, hidden}, options) : Tensor(); };

  RecurrentResult r;
  r.h = state_from(h0, {steps.batch, hidden}, options);
  if (lstm) r.c = state_from(c0, {steps.batch, hidden}, options);
  r.output = empty(out_sizes, options);
  // The only gate of a plain cell is its output.
  const Tensor gates = plain ? r.output : empty({steps.rows, width}, options);
  Saved keep;
  if (saved) *saved = keep = {gates, array(true), array(lstm), array(gru)};
  const Tensor hidden_part = gru ? empty({steps.batch, width}, options) : Tensor();
  const bool biased = w.bias_ih.defined();
  product(rows_of(gates, 0, steps.rows, width), {rows_of(x, 0, steps.rows, w.ih.size(1))},
          transposed_operand(w.ih), false,
          !biased ? Tensor()
          : gru   ? w.bias_ih
                  : w.bias_ih + w.bias_hh);

  const SharedFactor recurrent(transposed_operand(w.hh), steps.sizes.size());
  for (std::size_t i = 0; i < steps.sizes.size(); ++i) {
    const std::size_t t = steps.at(i);
    const std::int64_t n = steps.sizes[t], first = steps.starts[t];
    if (n == 0) continue;
    const Tensor now = rows_of(gates, first, n, width), h = rows_of(r.h, 0, n, hidden);
    const Tensor part = rows_of(hidden_part, 0, n, width);
    if (gru) recurrent.product(part, h, false, w.bias_hh);
    else recurrent.product(now, h, true);
    kernels::recurrent_step(x.device(), x.dtype(),
                            {.cell = cell,
                             .rows = n,
                             .hidden = hidden,
                             .gates = now,
                             .hidden_part = part,
                             .h = h,
                             .c = r.c,
                             .y = plain ? Tensor() : rows_of(r.output, first, n, hidden),
                             .h_before = rows_of(keep.h_before, first, n, hidden),
                             .c_before = rows_of(keep.c_before, first, n, hidden),
                             .candidate = rows_of(keep.candidate, first, n, hidden)});
  }
  return r;
}

// The inputs of a node, in this order. Cells without c have an undefined c0.
enum Input : std::uint32_t { kX, kH0, kC0, kIh, kHh, kBiasIh, kBiasHh };

void backward(Backward& b, RecurrentCell cell, const Steps& steps, const Tensor& x, const Tensor& ih,
              const Tensor& hh, const Saved& saved) {
  const TensorOptions options(x.dtype(), x.device());
  const std::int64_t hidden = hh.size(1), width = hh.size(0), inputs = ih.size(1);
  const bool lstm = cell == RecurrentCell::lstm, gru = cell == RecurrentCell::gru;
  const Tensor dy = autograd::contiguous_or_undefined(b.grad(0));
  const Tensor dh = state_from(b.grad(1), {steps.batch, hidden}, options);
  const Tensor dc = lstm ? state_from(b.grad(2), {steps.batch, hidden}, options) : Tensor();
  const Tensor dgates = empty({steps.rows, width}, options);
  // The gradient of the products with hh. Only a GRU has two.
  const Tensor dhidden = gru ? empty({steps.rows, width}, options) : dgates;

  const SharedFactor recurrent({hh}, steps.sizes.size());
  for (std::size_t i = steps.sizes.size(); i-- > 0;) {
    const std::size_t t = steps.at(i);
    const std::int64_t n = steps.sizes[t], first = steps.starts[t];
    if (n == 0) continue;
    const Tensor dnow = rows_of(dhidden, first, n, width), dstate = rows_of(dh, 0, n, hidden);
    kernels::recurrent_step_backward(x.device(), x.dtype(),
                                     {.cell = cell,
                                      .rows = n,
                                      .hidden = hidden,
                                      .gates = rows_of(saved.gates, first, n, width),
                                      .before = rows_of(lstm  ? saved.c_before
                                                        : gru ? saved.h_before
                                                              : Tensor(),
                                                        first, n, hidden),
                                      .candidate = rows_of(saved.candidate, first, n, hidden),
                                      .dy = rows_of(dy, first, n, hidden),
                                      .dh = dstate,
                                      .dc = dc,
                                      .dgates = rows_of(dgates, first, n, width),
                                      .dhidden_part = gru ? dnow : Tensor()});
    recurrent.product(dstate, dnow, gru);
  }

  if (b.needs(kX)) {
    const Tensor dx = empty(x.sizes(), options);
    product(rows_of(dx, 0, steps.rows, inputs), {dgates}, {ih});
    b.set(kX, dx);
  }
  if (b.needs(kH0)) b.set(kH0, dh);
  if (b.needs(kC0)) b.set(kC0, dc);
  if (b.needs(kIh))
    autograd::set_product(b, kIh, autograd::transposed(dgates), rows_of(x, 0, steps.rows, inputs));
  if (b.needs(kHh)) autograd::set_product(b, kHh, autograd::transposed(dhidden), saved.h_before);
  Tensor dbias;
  if (b.needs(kBiasIh)) b.set(kBiasIh, dbias = column_sum(dgates));
  if (b.needs(kBiasHh)) b.set(kBiasHh, dbias.defined() && !gru ? dbias.clone() : column_sum(dhidden));
}

RecurrentResult run(const Op& op, RecurrentCell cell, const Tensor& x, const Tensor& h0, const Tensor& c0,
                    const RecurrentWeights& weights, const RecurrentParams& params) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  const Steps steps = steps_of(op, x, params);
  check_operands(op, cell, x, h0, c0, weights, steps);
  const Tensor input = autograd::raw_contiguous(x);
  const RecurrentWeights w{autograd::raw_contiguous(weights.ih), autograd::raw_contiguous(weights.hh),
                           autograd::contiguous_or_undefined(weights.bias_ih),
                           autograd::contiguous_or_undefined(weights.bias_hh)};
  Shape out_sizes = x.sizes();
  out_sizes.back() = w.hh.size(1);

  const bool recording =
      autograd::recording(x, h0, c0, weights.ih, weights.hh, weights.bias_ih, weights.bias_hh);
  Saved saved;
  RecurrentResult r = forward(cell, input, h0, c0, w, steps, out_sizes, recording ? &saved : nullptr);
  if (!recording) return r;

  const bool plain = !r.c.defined() && cell != RecurrentCell::gru;
  const Tensor* const outputs[] = {&r.output, &r.h, &r.c};
  const Tensor* const inputs[] = {&x, &h0, &c0, &weights.ih, &weights.hh, &weights.bias_ih, &weights.bias_hh};
  autograd::record(
      op.name, std::span(outputs, r.c.defined() ? 3 : 2), inputs,
      [cell, steps, x = autograd::save(input), ih = autograd::save(w.ih), hh = autograd::save(w.hh),
       gates = plain ? autograd::save_output(r.output) : autograd::save(saved.gates),
       h_before = autograd::save(saved.h_before),
       c_before = saved.c_before.defined() ? autograd::save(saved.c_before) : autograd::SavedTensor(),
       candidate = saved.candidate.defined() ? autograd::save(saved.candidate)
                                             : autograd::SavedTensor()](Backward& b) {
        const bool lstm = cell == RecurrentCell::lstm, gru = cell == RecurrentCell::gru;
        backward(b, cell, steps, b.saved(x), b.saved(ih), b.saved(hh),
                 {b.saved(gates), b.saved(h_before), lstm ? b.saved(c_before) : Tensor(),
                  gru ? b.saved(candidate) : Tensor()});
      });
  return r;
}

}  // namespace

namespace {
RecurrentWeights casted(const autograd::Autocast& cast, const RecurrentWeights& w) {
  return {cast(w.ih), cast(w.hh), cast(w.bias_ih), cast(w.bias_hh)};
}
}  // namespace

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& x, const Tensor& h0, const Tensor& c0,
                                        const RecurrentWeights& weights, const RecurrentParams& params) {
  if (const autograd::Autocast cast(kLstm, x, h0, c0, weights.ih); cast)
    return lstm(cast(x), cast(h0), cast(c0), casted(cast, weights), params);
  RecurrentResult r = run(kLstm, RecurrentCell::lstm, x, h0, c0, weights, params);
  return {std::move(r.output), std::move(r.h), std::move(r.c)};
}
std::pair<Tensor, Tensor> gru(const Tensor& x, const Tensor& h0, const RecurrentWeights& weights,
                              const RecurrentParams& params) {
  if (const autograd::Autocast cast(kGru, x, h0, weights.ih); cast)
    return gru(cast(x), cast(h0), casted(cast, weights), params);
  RecurrentResult r = run(kGru, RecurrentCell::gru, x, h0, {}, weights, params);
  return {std::move(r.output), std::move(r.h)};
}
std::pair<Tensor, Tensor> rnn_tanh(const Tensor& x, const Tensor& h0, const RecurrentWeights& weights,
                                   const RecurrentParams& params) {
  if (const autograd::Autocast cast(kRnnTanh, x, h0, weights.ih); cast)
    return rnn_tanh(cast(x), cast(h0), casted(cast, weights), params);
  RecurrentResult r = run(kRnnTanh, RecurrentCell::tanh, x, h0, {}, weights, params);
  return {std::move(r.output), std::move(r.h)};
}
std::pair<Tensor, Tensor> rnn_relu(const Tensor& x, const Tensor& h0, const RecurrentWeights& weights,
                                   const RecurrentParams& params) {
  if (const autograd::Autocast cast(kRnnRelu, x, h0, weights.ih); cast)
    return rnn_relu(cast(x), cast(h0), casted(cast, weights), params);
  RecurrentResult r = run(kRnnRelu, RecurrentCell::relu, x, h0, {}, weights, params);
  return {std::move(r.output), std::move(r.h)};
}

}  // namespace tapestry
