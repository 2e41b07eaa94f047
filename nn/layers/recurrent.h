#pragma once
// Recurrent layers and cells.
#include <string>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/recurrent.h"
#include "tapestry/nn/module.h"
#include "tapestry/nn/utils/rnn.h"

namespace tapestry::nn {

using utils::rnn::PackedSequence;

/// The states h and c of an LSTM. Undefined tensors stand for zeros.
using LSTMState = std::pair<Tensor, Tensor>;

struct RNNOptions {
  using Layer = class RNN;
  std::int64_t input_size = 0, hidden_size = 0, num_layers = 1;
  std::string nonlinearity = "tanh";  ///< or "relu"
  bool bias = true;
  bool batch_first = false;  ///< inputs and outputs are (N, T, ...); states remain (layers, N, H)
  double dropout = 0;        ///< probability of dropping an element of the output of each layer but the last
  bool bidirectional = false;  ///< adds a second pass from the last step to the first
};
struct GRUOptions {
  using Layer = class GRU;
  std::int64_t input_size = 0, hidden_size = 0, num_layers = 1;
  bool bias = true, batch_first = false;
  double dropout = 0;
  bool bidirectional = false;
};
struct LSTMOptions {
  using Layer = class LSTM;
  std::int64_t input_size = 0, hidden_size = 0, num_layers = 1;
  bool bias = true, batch_first = false;
  double dropout = 0;
  bool bidirectional = false;
  std::int64_t proj_size = 0;  ///< above 0: the size of the state h, less than hidden_size
};

/// The common base of RNN, GRU and LSTM. Parameters of layer k: weight_ih_lk (G H, inputs), weight_hh_lk
/// (G H, H), bias_ih_lk (G H) and bias_hh_lk (G H), with G = 1, 3 or 4 gates. The parameters of the second
/// direction have the suffix _reverse. All start uniform in [-k, k] with k = 1 / sqrt(H). Later layers have
/// H inputs, or 2 H if the layer is bidirectional. An LSTM with proj_size = P has weight_hr_lk (P, H), and P
/// takes the place of H in the shapes of weight_hh_lk and of the later layers' inputs.
class RecurrentLayer : public Module {
 public:
  std::string options_text() const override;
  /// The weights of a layer, counted from 0, and direction, without weight_hr. Throws IndexError if there is
  /// no such layer.
  RecurrentWeights weights(std::int64_t layer, bool reverse = false) const;

 protected:
  enum class Kind { rnn_tanh, rnn_relu, gru, lstm };
  RecurrentLayer(Kind kind, const LSTMOptions& options);

  struct Result {
    Tensor output, h, c;
  };
  Result run(const Tensor& x, const Tensor& h0, const Tensor& c0 = {});
  std::pair<PackedSequence, LSTMState> run(const PackedSequence& x, const Tensor& h0, const Tensor& c0 = {});

 private:
  const char* name() const;
  Tensor checked_state(const Tensor& state, const char* what, std::int64_t batch, bool batched) const;
  Result run_layers(Tensor x, const std::vector<std::int64_t>& batch_sizes, const Tensor& h0,
                    const Tensor& c0);
  std::int64_t state_size() const {
    return options_.proj_size > 0 ? options_.proj_size : options_.hidden_size;
  }

  struct Weights {
    Parameter ih, hh, bias_ih, bias_hh, hr;
  };
  const Kind kind_;
  const LSTMOptions options_;
  std::vector<Weights> weights_;  // of layer 0 forward, layer 0 reverse, layer 1 forward, ...
};

/// Elman network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu (Elman 1990). Shapes, for D = 2 if
/// bidirectional and else 1: x is (T, N, I), or (N, T, I) with batch_first, or (T, I) without a batch. The
/// output has D H elements instead of I. States are (D num_layers, N, H), or (D num_layers, H) without a
/// batch. h0 may be omitted for zeros. Returns the output of the last layer and the last state of every
/// layer. For sequences of different lengths, pass a PackedSequence: each direction then begins and ends at
/// the sequences' own ends, and the output is packed.
class RNN : public RecurrentLayer {
 public:
  using Options = RNNOptions;
  explicit RNN(const Options& options);
  using Module::forward;
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& h0);
  std::pair<PackedSequence, Tensor> forward(const PackedSequence& x, const Tensor& h0);
  template <class Input>
  auto operator()(const Input& x, const Tensor& h0 = {}) const {
    return call(*this, x, h0);
  }
  const Options options;
};

/// Gated recurrent unit (Cho et al. 2014), with gates in the order r, z, n:
///   r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z likewise, n = tanh(W_in x + b_in + r (W_hn h + b_hn)),
///   h' = (1 - z) n + z h.
/// Shapes and results are those of RNN.
class GRU : public RecurrentLayer {
 public:
  using Options = GRUOptions;
  explicit GRU(const Options& options);
  using Module::forward;
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& h0);
  std::pair<PackedSequence, Tensor> forward(const PackedSequence& x, const Tensor& h0);
  template <class Input>
  auto operator()(const Input& x, const Tensor& h0 = {}) const {
    return call(*this, x, h0);
  }
  const Options options;
};

/// Long short-term memory (Hochreiter and Schmidhuber 1997), with gates in the order i, f, g, o:
///   c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
/// Shapes are those of RNN. The state is the pair (h, c): `auto [y, state] = lstm(x, state)`. With proj_size
/// = P, h' is multiplied by weight_hr (Sak, Senior and Beaufays, "Long short-term memory recurrent neural
/// network architectures for large scale acoustic modeling", 2014): outputs and h have P elements instead of
/// H, and c has H. No kernel computes that; it takes about ten operations per step.
class LSTM : public RecurrentLayer {
 public:
  using Options = LSTMOptions;
  explicit LSTM(const Options& options);
  using Module::forward;
  std::pair<Tensor, LSTMState> forward(const Tensor& x, const LSTMState& state);
  std::pair<PackedSequence, LSTMState> forward(const PackedSequence& x, const LSTMState& state);
  template <class Input>
  auto operator()(const Input& x, const LSTMState& state = {}) const {
    return call(*this, x, state);
  }
  const Options options;
};

struct RNNCellOptions {
  using Layer = class RNNCell;
  std::int64_t input_size = 0, hidden_size = 0;
  bool bias = true;
  std::string nonlinearity = "tanh";  ///< or "relu"
};
struct GRUCellOptions {
  using Layer = class GRUCell;
  std::int64_t input_size = 0, hidden_size = 0;
  bool bias = true;
};
struct LSTMCellOptions {
  using Layer = class LSTMCell;
  std::int64_t input_size = 0, hidden_size = 0;
  bool bias = true;
};

/// The common base of the cells. Parameters: weight_ih (G H, I), weight_hh (G H, H), bias_ih and bias_hh
/// (G H), which start uniform in [-k, k] with k = 1 / sqrt(H).
class RecurrentCellLayer : public Module {
 public:
  std::string options_text() const override;

  Parameter& weight_ih;
  Parameter& weight_hh;
  Parameter& bias_ih;
  Parameter& bias_hh;

 protected:
  RecurrentCellLayer(std::int64_t gates, const RNNCellOptions& options);
  RecurrentWeights weights() const { return {weight_ih, weight_hh, bias_ih, bias_hh}; }
  /// x and a state as batches of one step: (1, N, I) and (N, H).
  Tensor one_step(const Tensor& x) const;
  Tensor batch_of(const Tensor& state, const Tensor& x, const char* what) const;

 private:
  const std::int64_t input_size_, hidden_size_;
  const bool biased_;
  const std::string nonlinearity_;
};

/// One step of an RNN of one layer. Shapes: x is (N, I) or (I), h and the result are (N, H) or (H). An
/// undefined h stands for zeros.
class RNNCell : public RecurrentCellLayer {
 public:
  using Options = RNNCellOptions;
  explicit RNNCell(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& h);
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;
  const Options options;
};
/// One step of a GRU, with the shapes of RNNCell.
class GRUCell : public RecurrentCellLayer {
 public:
  using Options = GRUCellOptions;
  explicit GRUCell(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& h);
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;
  const Options options;
};
/// One step of an LSTM. Takes and returns the pair (h, c).
class LSTMCell : public RecurrentCellLayer {
 public:
  using Options = LSTMCellOptions;
  explicit LSTMCell(const Options& options);
  using Module::forward;
  LSTMState forward(const Tensor& x, const LSTMState& state);
  LSTMState operator()(const Tensor& x, const LSTMState& state = {}) const;
  const Options options;
};

}  // namespace tapestry::nn
