#pragma once
// One layer of a recurrent network in one direction. nn::LSTM, nn::GRU and nn::RNN stack them.
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// The weights of a layer with I inputs, H state elements and k gates: 4 for an LSTM (i, f, g, o), 3 for a
/// GRU (r, z, n), 1 for an RNN. Both biases are defined, or neither.
struct RecurrentWeights {
  Tensor ih;            ///< (k H, I)
  Tensor hh;            ///< (k H, H)
  Tensor bias_ih = {};  ///< (k H)
  Tensor bias_hh = {};  ///< (k H)
};

struct RecurrentParams {
  /// The number of sequences that have each step, for sequences of different lengths. They are sorted by
  /// length, longest first, so the numbers never increase. x has then only the steps that exist. Empty if all
  /// sequences have the same length.
  std::vector<std::int64_t> batch_sizes = {};
  bool reverse = false;  ///< begins with the last step of each sequence
};

/// Runs a recurrent cell over all steps of N sequences. Shapes: x is (T, N, I) and the output (T, N, H); with
/// `batch_sizes`, x is (rows, I) and the output (rows, H), where the rows of step 0 come first. h0 and c0 are
/// (N, H), or undefined for zeros. The output has the state h after each step at the step's own position,
/// also if `reverse` is set. h and c are the states after the last step that each sequence has.
///
/// One matrix product computes the inputs' part of all steps. Each step then takes one product with
/// weights.hh and one pointwise kernel. The whole layer is one node of the tape, which computes the gradient
/// of each weight by one product over all steps. Throws TypeError unless all tensors have one floating dtype,
/// and ValueError if the shapes do not fit.
///
/// lstm() returns the output, h and c (Hochreiter and Schmidhuber 1997). The others return the output and h.
/// In a gru() (Cho et al. 2014), the reset gate multiplies the state's product with its bias, as in PyTorch
/// and cuDNN.
std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& x, const Tensor& h0, const Tensor& c0,
                                        const RecurrentWeights& weights, const RecurrentParams& params = {});
std::pair<Tensor, Tensor> gru(const Tensor& x, const Tensor& h0, const RecurrentWeights& weights,
                              const RecurrentParams& params = {});
std::pair<Tensor, Tensor> rnn_tanh(const Tensor& x, const Tensor& h0, const RecurrentWeights& weights,
                                   const RecurrentParams& params = {});
std::pair<Tensor, Tensor> rnn_relu(const Tensor& x, const Tensor& h0, const RecurrentWeights& weights,
                                   const RecurrentParams& params = {});

}  // namespace tapestry
