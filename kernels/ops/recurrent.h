#pragma once
// Contracts of one time step of the recurrent cells, without the matrix products. For all slots in this file:
//   Dtypes: all arrays have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64. Each array is rounded once per step.
//   Layout: all arrays are dense. `rows` is the number of sequences that have this step, `hidden` the number
//   of elements of a state. An array of k gates is (rows, k hidden): k blocks of `hidden` columns.
//
// With s = sigmoid, the state h before the step and the sums a of both matrix products and biases:
//
//   lstm          (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000). Gates i, f, g,
//   o:
//                 c' = s(a_f) c + s(a_i) tanh(a_g), h' = s(a_o) tanh(c')
//   gru           (Cho et al. 2014, in the form of cuDNN). Gates r, z, n; a_n is the input's part alone:
//                 n = tanh(a_n + s(a_r) b_n) with b_n = (W_hn h + bias_hn), h' = (1 - s(a_z)) n + s(a_z) h
//   tanh, relu    (Elman 1990). One gate: h' = tanh(a) or relu(a)
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

enum class RecurrentCell : std::uint8_t { lstm, gru, tanh, relu };

/// The number of gates: 4, 3 or 1.
inline constexpr int gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

/// One step forward.
struct RecurrentStepArgs {
  RecurrentCell cell;
  std::int64_t rows, hidden;
  /// On entry the sums a; on return the values of the gates after their functions. For a GRU, the entry is
  /// the part of the input alone, and `hidden_part` is added.
  MutableArray gates;
  ConstArray hidden_part;  // GRU: (rows, 3 hidden), the product of h and W_hh with its bias; else null
  MutableArray h;          // (rows, hidden): h on entry, h' on return
  MutableArray c;          // LSTM: c on entry, c' on return; else null
  MutableArray y;          // receives h'; null for tanh and relu, whose only gate is h'
  // What backward reads. All of them may be null.
  MutableArray h_before, c_before;  // receive h and c of the entry
  MutableArray candidate;           // GRU: receives b_n
};
inline constinit Slot<RecurrentStepArgs> recurrent_step{"recurrent_step"};

/// The same step backward. On entry, dh + dy is the gradient of h', and dc that of c'.
struct RecurrentStepBackwardArgs {
  RecurrentCell cell;
  std::int64_t rows, hidden;
  ConstArray gates;      // the values that the forward step returned
  ConstArray before;     // LSTM: c of the entry; GRU: h of the entry; else null
  ConstArray candidate;  // GRU: b_n; else null
  ConstArray dy;         // (rows, hidden), or null for 0
  /// For a GRU, returns the part of the gradient of h that does not pass W_hh. Other cells only read it.
  MutableArray dh;
  MutableArray dc;            // LSTM: returns the gradient of c; else null
  MutableArray dgates;        // returns the gradient of a
  MutableArray dhidden_part;  // GRU: returns the gradient of hidden_part; else null
};
inline constinit Slot<RecurrentStepBackwardArgs> recurrent_step_backward{"recurrent_step_backward"};

}  // namespace tapestry::kernels
