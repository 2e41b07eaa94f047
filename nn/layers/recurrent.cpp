#include "tapestry/nn/layers/recurrent.h"

#include <algorithm>
#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {

// A weight whose elements are uniform in [-k, k] with k = 1 / sqrt(hidden).
Tensor weight_of(const Shape& sizes, std::int64_t hidden) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  return init::uniform_(empty(sizes), -bound, bound);
}

void check_sizes(const char* name, std::int64_t input, std::int64_t hidden) {
  check(input > 0 && hidden > 0, "[", name, "] input_size and hidden_size must be positive but are ", input,
        " and ", hidden, "; set both");
}

Tensor cell_weight(const RNNCellOptions& o, const Shape& sizes) {
  check_sizes("recurrent cell", o.input_size, o.hidden_size);
  return weight_of(sizes, o.hidden_size);
}

bool is_relu(const char* name, const std::string& nonlinearity) {
  check(nonlinearity == "tanh" || nonlinearity == "relu", "[", name,
        "] nonlinearity must be \"tanh\" or \"relu\" but is \"", nonlinearity, "\"");
  return nonlinearity == "relu";
}

template <class O>
LSTMOptions common(const O& o) {
  return {.input_size = o.input_size,
          .hidden_size = o.hidden_size,
          .num_layers = o.num_layers,
          .bias = o.bias,
          .batch_first = o.batch_first,
          .dropout = o.dropout,
          .bidirectional = o.bidirectional};
}

// lstm() whose state h is multiplied by hr after each step, made of operations.
std::tuple<Tensor, Tensor, Tensor> projected_lstm(const Tensor& x, const Tensor& h0, const Tensor& c0,
                                                  const RecurrentWeights& w, const Tensor& hr,
                                                  std::vector<std::int64_t> sizes, bool reverse) {
  check(x.size(0) > 0, "[LSTM] the input has shape ", x.sizes(), "; pass at least one step");
  std::int64_t rows = 0;
  for (std::size_t t = 0; t < sizes.size(); rows += sizes[t++])
    check(sizes[t] > 0 && sizes[t] <= sizes[t > 0 ? t - 1 : 0], "[LSTM] batch size ", sizes[t], " of step ",
          t, " after ", sizes[t > 0 ? t - 1 : 0], "; batch sizes must be positive and must not increase");
  check(sizes.empty() || rows == x.size(0), "[LSTM] the batch sizes add up to ", rows, ", but x has shape ",
        x.sizes());
  if (sizes.empty()) sizes.assign(static_cast<std::size_t>(x.size(0)), x.size(1));
  const TensorOptions like(x.dtype(), x.device());
  const Tensor h_first = h0.defined() ? h0 : zeros({sizes[0], hr.size(0)}, like);
  const Tensor c_first = c0.defined() ? c0 : zeros({sizes[0], hr.size(1)}, like);
  const std::vector<Tensor> inputs =
      split(linear(x.reshape({-1, x.size(-1)}), w.ih, w.bias_ih), sizes);  // (n, 4 H) for each step
  std::vector<Tensor> outputs(sizes.size()), h_ends, c_ends;
  std::int64_t running = reverse ? sizes.back() : sizes.front();
  Tensor h = h_first.narrow(0, 0, running), c = c_first.narrow(0, 0, running);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t t = reverse ? sizes.size() - 1 - i : i;
    const std::int64_t n = sizes[t];
    if (n < running) {  // the last sequences have ended
      h_ends.push_back(h.narrow(0, n, running - n)), c_ends.push_back(c.narrow(0, n, running - n));
      h = h.narrow(0, 0, n), c = c.narrow(0, 0, n);
    } else if (n > running) {  // in reverse, more sequences begin
      h = cat({h, h_first.narrow(0, running, n - running)});
      c = cat({c, c_first.narrow(0, running, n - running)});
    }
    running = n;
    const std::vector<Tensor> gates = chunk(inputs[t] + linear(h, w.hh, w.bias_hh), 4, 1);
    c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
    h = linear(gates[3].sigmoid() * c.tanh(), hr);
    outputs[t] = h;
  }
  h_ends.push_back(h), c_ends.push_back(c);
  std::reverse(h_ends.begin(), h_ends.end()), std::reverse(c_ends.begin(), c_ends.end());
  Tensor y = cat(outputs);
  if (x.dim() == 3) y = y.reshape({x.size(0), x.size(1), hr.size(0)});
  return {y, cat(h_ends), cat(c_ends)};
}

}  // namespace

// ---- layers
RecurrentLayer::RecurrentLayer(Kind kind, const LSTMOptions& o) : kind_(kind), options_(o) {
  check_sizes(name(), o.input_size, o.hidden_size);
  check(o.num_layers > 0, "[", name(), "] num_layers must be positive but is ", o.num_layers);
  check(o.dropout >= 0 && o.dropout <= 1, "[", name(), "] dropout must lie in [0, 1] but is ", o.dropout);
  check(o.proj_size >= 0 && o.proj_size < o.hidden_size, "[", name(), "] proj_size is ", o.proj_size,
        "; give a number below hidden_size ", o.hidden_size, ", or 0 for no projection");
  const std::int64_t width = (kind == Kind::lstm ? 4 : kind == Kind::gru ? 3 : 1) * o.hidden_size;
  for (std::int64_t layer = 0; layer < o.num_layers; ++layer)
    for (const bool reverse : {false, true}) {
      if (reverse && !o.bidirectional) continue;
      const std::string suffix = "_l" + std::to_string(layer) + (reverse ? "_reverse" : "");
      const std::int64_t inputs = layer == 0 ? o.input_size : (o.bidirectional ? 2 : 1) * state_size();
      const auto add_weight = [&](const char* what, const Shape& sizes) -> Parameter {
        return param(what + suffix, weight_of(sizes, o.hidden_size));
      };
      Weights w;
      w.ih = add_weight("weight_ih", {width, inputs});
      w.hh = add_weight("weight_hh", {width, state_size()});
      if (o.bias) w.bias_ih = add_weight("bias_ih", {width}), w.bias_hh = add_weight("bias_hh", {width});
      if (o.proj_size > 0) w.hr = add_weight("weight_hr", {o.proj_size, o.hidden_size});
      weights_.push_back(std::move(w));
    }
}

const char* RecurrentLayer::name() const {
  return kind_ == Kind::lstm ? "LSTM" : kind_ == Kind::gru ? "GRU" : "RNN";
}

RecurrentWeights RecurrentLayer::weights(std::int64_t layer, bool reverse) const {
  check<IndexError>(layer >= 0 && layer < options_.num_layers && (!reverse || options_.bidirectional), "[",
                    name(), "] there is no layer ", layer, reverse ? " in reverse" : "", "; it has ",
                    options_.num_layers, " layers and ", options_.bidirectional ? 2 : 1, " directions");
  const Weights& w = weights_[static_cast<std::size_t>(options_.bidirectional ? 2 * layer + reverse : layer)];
  return {w.ih, w.hh, w.bias_ih, w.bias_hh};
}

// The state as (D layers, N, H), or undefined.
Tensor RecurrentLayer::checked_state(const Tensor& state, const char* what, std::int64_t batch,
                                     bool batched) const {
  if (!state.defined()) return {};
  const auto count = static_cast<std::int64_t>(weights_.size());
  const std::int64_t size = *what == 'h' ? state_size() : options_.hidden_size;
  const Shape wanted = batched ? Shape{count, batch, size} : Shape{count, size};
  check(state.sizes() == wanted, "[", name(), "] the state ", what, " has shape ", state.sizes(),
        ", expected ", wanted);
  return batched ? state : state.unsqueeze(1);
}

RecurrentLayer::Result RecurrentLayer::run_layers(Tensor x, const std::vector<std::int64_t>& batch_sizes,
                                                  const Tensor& h0, const Tensor& c0) {
  std::vector<Tensor> h, c;
  const int directions = options_.bidirectional ? 2 : 1;
  for (std::int64_t layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int d = 0; d < directions; ++d) {
      const std::int64_t index = layer * directions + d;
      const RecurrentWeights w = weights(layer, d == 1);
      const RecurrentParams params{.batch_sizes = batch_sizes, .reverse = d == 1};
      const Tensor h_start = h0.defined() ? h0.select(0, index) : Tensor();
      if (kind_ == Kind::lstm) {
        const Tensor c_start = c0.defined() ? c0.select(0, index) : Tensor();
        const Parameter& hr = weights_[static_cast<std::size_t>(index)].hr;
        auto [y, h_end, c_end] = options_.proj_size > 0
                                     ? projected_lstm(x, h_start, c_start, w, hr, batch_sizes, d == 1)
                                     : lstm(x, h_start, c_start, w, params);
        outputs.push_back(std::move(y)), h.push_back(std::move(h_end)), c.push_back(std::move(c_end));
      } else {
        auto [y, h_end] = kind_ == Kind::gru        ? gru(x, h_start, w, params)
                          : kind_ == Kind::rnn_tanh ? rnn_tanh(x, h_start, w, params)
                                                    : rnn_relu(x, h_start, w, params);
        outputs.push_back(std::move(y)), h.push_back(std::move(h_end));
      }
    }
    x = directions == 1 ? outputs[0] : cat(outputs, -1);
    if (layer + 1 < options_.num_layers) x = dropout(x, options_.dropout, is_training());
  }
  return {x, stack(h), c.empty() ? Tensor() : stack(c)};
}

RecurrentLayer::Result RecurrentLayer::run(const Tensor& x, const Tensor& h0, const Tensor& c0) {
  tapestry::detail::check_defined(name(), x);
  const bool batched = x.dim() == 3;
  const char* const expected = options_.batch_first ? "(N, T, " : "(T, N, ";
  check((batched || x.dim() == 2) && x.size(-1) == options_.input_size, "[", name(),
        "] expected an input of shape ", expected, options_.input_size, ") or (T, ", options_.input_size,
        ") but got ", x.sizes());
  const bool transposed = batched && options_.batch_first;
  const Tensor by_step = !batched ? x.unsqueeze(1) : transposed ? x.transpose(0, 1) : x;
  const std::int64_t batch = by_step.size(1);
  Result r =
      run_layers(by_step, {}, checked_state(h0, "h", batch, batched), checked_state(c0, "c", batch, batched));
  if (transposed) r.output = r.output.transpose(0, 1);
  if (batched) return r;
  return {r.output.squeeze(1), r.h.squeeze(1), r.c.defined() ? r.c.squeeze(1) : Tensor()};
}

std::pair<PackedSequence, LSTMState> RecurrentLayer::run(const PackedSequence& x, const Tensor& h0,
                                                         const Tensor& c0) {
  tapestry::detail::check_defined(name(), x.data);
  check(!x.batch_sizes.empty(), "[", name(), "] the packed sequence has no batch sizes");
  check(x.data.dim() == 2 && x.data.size(1) == options_.input_size, "[", name(),
        "] expected packed data of shape (rows, ", options_.input_size, ") but got ", x.data.sizes());
  // States are in the order of the original batch.
  const auto ordered = [](const Tensor& state, const Tensor& order) {
    return state.defined() && order.defined() ? index_select(state, 1, order) : state;
  };
  const std::int64_t batch = x.batch_sizes.front();
  Result r = run_layers(x.data, x.batch_sizes, ordered(checked_state(h0, "h", batch, true), x.sorted_indices),
                        ordered(checked_state(c0, "c", batch, true), x.sorted_indices));
  return {{r.output, x.batch_sizes, x.sorted_indices, x.unsorted_indices},
          {ordered(r.h, x.unsorted_indices), ordered(r.c, x.unsorted_indices)}};
}

std::string RecurrentLayer::options_text() const {
  const LSTMOptions& o = options_;
  detail::OptionsText text;
  text.add("input_size", o.input_size).add("hidden_size", o.hidden_size);
  if (kind_ == Kind::rnn_relu) text.add("nonlinearity", "relu");
  return text.add("num_layers", o.num_layers, std::int64_t{1})
      .add("bias", o.bias, true)
      .add("batch_first", o.batch_first, false)
      .add("dropout", o.dropout, 0.0)
      .add("bidirectional", o.bidirectional, false)
      .add("proj_size", o.proj_size, std::int64_t{0})
      .str();
}

RNN::RNN(const Options& o)
    : RecurrentLayer(is_relu("RNN", o.nonlinearity) ? Kind::rnn_relu : Kind::rnn_tanh, common(o)),
      options(o) {}
std::pair<Tensor, Tensor> RNN::forward(const Tensor& x, const Tensor& h0) {
  Result r = run(x, h0);
  return {std::move(r.output), std::move(r.h)};
}
std::pair<PackedSequence, Tensor> RNN::forward(const PackedSequence& x, const Tensor& h0) {
  auto [output, state] = run(x, h0);
  return {std::move(output), std::move(state.first)};
}

GRU::GRU(const Options& o) : RecurrentLayer(Kind::gru, common(o)), options(o) {}
std::pair<Tensor, Tensor> GRU::forward(const Tensor& x, const Tensor& h0) {
  Result r = run(x, h0);
  return {std::move(r.output), std::move(r.h)};
}
std::pair<PackedSequence, Tensor> GRU::forward(const PackedSequence& x, const Tensor& h0) {
  auto [output, state] = run(x, h0);
  return {std::move(output), std::move(state.first)};
}

LSTM::LSTM(const Options& o) : RecurrentLayer(Kind::lstm, o), options(o) {}
std::pair<Tensor, LSTMState> LSTM::forward(const Tensor& x, const LSTMState& state) {
  Result r = run(x, state.first, state.second);
  return {std::move(r.output), {std::move(r.h), std::move(r.c)}};
}
std::pair<PackedSequence, LSTMState> LSTM::forward(const PackedSequence& x, const LSTMState& state) {
  return run(x, state.first, state.second);
}

// ---- cells
RecurrentCellLayer::RecurrentCellLayer(std::int64_t gates, const RNNCellOptions& o)
    : weight_ih(param("weight_ih", cell_weight(o, {gates * o.hidden_size, o.input_size}))),
      weight_hh(param("weight_hh", cell_weight(o, {gates * o.hidden_size, o.hidden_size}))),
      bias_ih(param("bias_ih", o.bias ? cell_weight(o, {gates * o.hidden_size}) : Tensor())),
      bias_hh(param("bias_hh", o.bias ? cell_weight(o, {gates * o.hidden_size}) : Tensor())),
      input_size_(o.input_size),
      hidden_size_(o.hidden_size),
      biased_(o.bias),
      nonlinearity_(o.nonlinearity) {}

std::string RecurrentCellLayer::options_text() const {
  return detail::OptionsText()
      .add("input_size", input_size_)
      .add("hidden_size", hidden_size_)
      .add("bias", biased_, true)
      .add("nonlinearity", nonlinearity_, std::string("tanh"))
      .str();
}

Tensor RecurrentCellLayer::one_step(const Tensor& x) const {
  tapestry::detail::check_defined("recurrent cell", x);
  check((x.dim() == 1 || x.dim() == 2) && x.size(-1) == input_size_,
        "[recurrent cell] expected an input of shape (N, ", input_size_, ") or (", input_size_, ") but got ",
        x.sizes());
  return x.dim() == 1 ? x.reshape({1, 1, input_size_}) : x.unsqueeze(0);
}
Tensor RecurrentCellLayer::batch_of(const Tensor& state, const Tensor& x, const char* what) const {
  if (!state.defined()) return {};
  const Shape wanted = x.dim() == 1 ? Shape{hidden_size_} : Shape{x.size(0), hidden_size_};
  check(state.sizes() == wanted, "[recurrent cell] the state ", what, " has shape ", state.sizes(),
        ", expected ", wanted, " for an input of shape ", x.sizes());
  return x.dim() == 1 ? state.unsqueeze(0) : state;
}

RNNCell::RNNCell(const Options& o) : RecurrentCellLayer(1, o), options(o) {
  is_relu("RNNCell", o.nonlinearity);
}
Tensor RNNCell::forward(const Tensor& x, const Tensor& h) {
  const Tensor step = one_step(x), state = batch_of(h, x, "h");
  const Tensor next = is_relu("RNNCell", options.nonlinearity) ? rnn_relu(step, state, weights()).second
                                                               : rnn_tanh(step, state, weights()).second;
  return x.dim() == 1 ? next.squeeze(0) : next;
}
Tensor RNNCell::operator()(const Tensor& x, const Tensor& h) const { return call(*this, x, h); }

GRUCell::GRUCell(const Options& o)
    : RecurrentCellLayer(3, {o.input_size, o.hidden_size, o.bias}), options(o) {}
Tensor GRUCell::forward(const Tensor& x, const Tensor& h) {
  const Tensor next = gru(one_step(x), batch_of(h, x, "h"), weights()).second;
  return x.dim() == 1 ? next.squeeze(0) : next;
}
Tensor GRUCell::operator()(const Tensor& x, const Tensor& h) const { return call(*this, x, h); }

LSTMCell::LSTMCell(const Options& o)
    : RecurrentCellLayer(4, {o.input_size, o.hidden_size, o.bias}), options(o) {}
LSTMState LSTMCell::forward(const Tensor& x, const LSTMState& state) {
  const auto [y, h, c] =
      lstm(one_step(x), batch_of(state.first, x, "h"), batch_of(state.second, x, "c"), weights());
  if (x.dim() == 1) return {h.squeeze(0), c.squeeze(0)};
  return {h, c};
}
LSTMState LSTMCell::operator()(const Tensor& x, const LSTMState& state) const {
  return call(*this, x, state);
}

}  // namespace tapestry::nn
