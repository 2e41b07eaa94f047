// Recurrent layers and cells against PyTorch (tests/golden/nn_sequences.py), and packed sequences.
#include <cmath>

#include "tests/nn/recorded_layer.h"

using namespace tapestry;
using namespace tapestry::test;
namespace rnn = nn::utils::rnn;

namespace {

RecordedLayers& recorded() {
  static RecordedLayers layers("recurrent");
  return layers;
}

// (T, N, I) = (4, 3, 4), and H = 3
Tensor input() { return formula({4, 3, 4}, 50, 4.0); }
Tensor state(std::int64_t layers, int k) { return formula({layers, 3, 3}, 51 + k, 2.0); }

// The three layers have the same tests. These functions hide that an LSTM has two states.
Tensor given(const nn::RNN&, const std::vector<Tensor>& in) { return in.size() > 1 ? in[1] : Tensor(); }
Tensor given(const nn::GRU&, const std::vector<Tensor>& in) { return in.size() > 1 ? in[1] : Tensor(); }
nn::LSTMState given(const nn::LSTM&, const std::vector<Tensor>& in) {
  return in.size() > 1 ? nn::LSTMState{in[1], in[2]} : nn::LSTMState();
}
std::vector<Tensor> listed(const Tensor& y, const Tensor& h) { return {y, h}; }
std::vector<Tensor> listed(const Tensor& y, const nn::LSTMState& s) { return {y, s.first, s.second}; }

// `projection` is the proj_size of an LSTM.
template <class T>
void check_recurrent(const std::string& name, std::int64_t projection = 0) {
  const bool lstm = name.starts_with("lstm");
  const std::int64_t size = projection > 0 ? projection : 3;  // of the state h
  const auto projected = [projection](typename T::Options o) {
    if constexpr (requires { o.proj_size; }) o.proj_size = projection;
    return o;
  };
  const auto plain = [](T& m) {
    return [&m](const std::vector<Tensor>& in) {
      const auto [y, end] = m(in[0], given(m, in));
      return listed(y, end);
    };
  };
  const auto ragged = [](T& m, const std::vector<std::int64_t>& lengths, bool batch_first, bool sorted) {
    return [&m, lengths, batch_first, sorted](const std::vector<Tensor>& in) {
      const auto packed =
          rnn::pack_padded_sequence(in[0], lengths, {.batch_first = batch_first, .enforce_sorted = sorted});
      const auto [y, end] = m(packed, given(m, in));
      return listed(rnn::pad_packed_sequence(y, {.batch_first = batch_first, .padding_value = 0.25}).first,
                    end);
    };
  };
  const auto with_states = [&](Tensor x, std::int64_t layers) {
    std::vector<Tensor> in{std::move(x), formula({layers, 3, size}, 51, 2.0)};
    if (lstm) in.push_back(state(layers, 1));
    return in;
  };
  const Tensor x = input(), swapped = x.transpose(0, 1).contiguous();
  const auto check = [&](const std::string& label, const typename T::Options& options,
                         const std::vector<Tensor>& inputs) {
    T m(projected(options));
    recorded().check_layer(name + label, m, inputs, plain(m));
  };
  check("", {.input_size = 4, .hidden_size = 3}, {x});
  check("_states", {.input_size = 4, .hidden_size = 3}, with_states(x, 1));
  const typename T::Options deep{
      .input_size = 4, .hidden_size = 3, .num_layers = 2, .batch_first = true, .bidirectional = true};
  check("_deep", deep, with_states(swapped, 4));
  check("_unbatched", {.input_size = 4, .hidden_size = 3, .num_layers = 2}, {x.select(1, 1)});
  check("_no_bias", {.input_size = 4, .hidden_size = 3, .bias = false, .bidirectional = true}, {x});
  T both(projected({.input_size = 4, .hidden_size = 3, .bidirectional = true}));
  recorded().check_layer(name + "_sorted", both, {x}, ragged(both, {4, 2, 1}, false, true));
  T stacked(projected(deep));
  recorded().check_layer(name + "_ragged", stacked, with_states(swapped, 4),
                         ragged(stacked, {2, 3, 1}, true, false));
}

}  // namespace

TEST_CASE("recurrent layers and cells give PyTorch's outputs, states and gradients") {
  check_recurrent<nn::LSTM>("lstm");
  check_recurrent<nn::LSTM>("lstm_proj", 2);
  check_recurrent<nn::GRU>("gru");
  check_recurrent<nn::RNN>("rnn");
  const Tensor x = input(), h = formula({3, 3}, 53, 2.0), c = formula({3, 3}, 54, 2.0), one = x[0];
  nn::RNN relu({.input_size = 4, .hidden_size = 3, .num_layers = 2, .nonlinearity = "relu"});
  recorded().check_layer("rnn_relu", relu, {x}, [&](const std::vector<Tensor>& in) {
    const auto [y, end] = relu(in[0]);
    return listed(y, end);
  });

  nn::LSTMCell lstm({.input_size = 4, .hidden_size = 3});
  recorded().check_layer("lstm_cell", lstm, {one, h, c}, [&](const std::vector<Tensor>& in) {
    const auto [next, cell] = lstm(in[0], {in[1], in[2]});
    return std::vector<Tensor>{next, cell};
  });
  recorded().check_layer("lstm_cell_unbatched", lstm, {one[0]}, [&](const std::vector<Tensor>& in) {
    const auto [next, cell] = lstm(in[0]);
    return std::vector<Tensor>{next, cell};
  });
  const auto check = [&](const std::string& label, auto&& cell, const std::vector<Tensor>& inputs) {
    recorded().check_layer(label, cell, inputs, [&](const std::vector<Tensor>& in) {
      return std::vector<Tensor>{cell(in[0], in.size() > 1 ? in[1] : Tensor())};
    });
  };
  check("gru_cell", nn::GRUCell({.input_size = 4, .hidden_size = 3}), {one, h});
  check("gru_cell_no_bias", nn::GRUCell({.input_size = 4, .hidden_size = 3, .bias = false}), {one});
  check("rnn_cell", nn::RNNCell({.input_size = 4, .hidden_size = 3}), {one, h});
  check("rnn_cell_relu", nn::RNNCell({.input_size = 4, .hidden_size = 3, .nonlinearity = "relu"}),
        {one[0], h[0]});
  CHECK(recorded().untested() == "");
}

TEST_CASE("each sequence of a packed batch gives what it gives alone, in both directions") {
  manual_seed(3);
  nn::LSTM lstm({.input_size = 3, .hidden_size = 4, .num_layers = 2, .bidirectional = true});
  const std::vector<std::int64_t> lengths{2, 5, 1, 5, 3};
  std::vector<Tensor> alone;
  for (const std::int64_t length : lengths) alone.push_back(randn({length, 3}));
  const auto [packed, state] = lstm(rnn::pack_sequence(alone, false));
  const auto [padded, found] = rnn::pad_packed_sequence(packed, {.batch_first = true, .total_length = 7});
  CHECK(padded.sizes() == Shape{5, 7, 8});
  CHECK(equal(found, tensor(lengths)));
  for (std::size_t n = 0; n < alone.size(); ++n) {
    const auto i = static_cast<std::int64_t>(n);
    const auto [y, end] = lstm(alone[n]);
    CHECK(allclose(padded[i].narrow(0, 0, lengths[n]).detach(), y.detach(), 1e-5, 1e-6));
    CHECK(allclose(state.first.select(1, i).detach(), end.first.detach(), 1e-5, 1e-6));
    CHECK(allclose(state.second.select(1, i).detach(), end.second.detach(), 1e-5, 1e-6));
    CHECK(equal(padded[i].narrow(0, lengths[n], 7 - lengths[n]).detach(), zeros({7 - lengths[n], 8})));
  }
}

TEST_CASE("an LSTM that continues from its state gives what one long call gives") {
  manual_seed(4);
  nn::LSTM lstm({.input_size = 3, .hidden_size = 4, .num_layers = 2, .batch_first = true});
  const Tensor x = randn({2, 6, 3});
  const NoGradGuard no_grad;
  const auto [whole, last] = lstm(x);
  nn::LSTMState state;
  for (std::int64_t t = 0; t < 6; t += 2) {
    auto [y, next] = lstm(x.narrow(1, t, 2), state);
    CHECK(allclose(y, whole.narrow(1, t, 2), 1e-5, 1e-6));
    state = next;
  }
  CHECK(allclose(state.first, last.first, 1e-5, 1e-6));
  CHECK(allclose(state.second, last.second, 1e-5, 1e-6));
}

TEST_CASE("recurrent layers: initial weights, names, dropout and printed options") {
  manual_seed(5);
  nn::LSTM lstm({.input_size = 3, .hidden_size = 16, .num_layers = 2, .dropout = 0.5, .bidirectional = true});
  std::vector<std::string> names;
  for (const auto& [name, p] : lstm.named_parameters()) {
    names.push_back(name);
    const Tensor a = p->detach().abs();
    CHECK(a.max().item() <= 0.25);  // 1 / sqrt(16)
    CHECK(a.max().item() > 0.2);
    CHECK(std::abs(p->detach().mean().item()) < 0.06);
  }
  CHECK(names.size() == 16);
  CHECK(names[4] == "weight_ih_l0_reverse");
  CHECK(names[15] == "bias_hh_l1_reverse");
  CHECK(equal(lstm.weights(1, true).hh.detach(), lstm.named_parameters()[13].second->detach()));
  CHECK(lstm.str() == "LSTM(input_size=3, hidden_size=16, num_layers=2, dropout=0.5, bidirectional=true)");
  CHECK(nn::RNN({.input_size = 3, .hidden_size = 2, .nonlinearity = "relu"}).str() ==
        "RNN(input_size=3, hidden_size=2, nonlinearity=relu)");
  CHECK(nn::GRUCell({.input_size = 3, .hidden_size = 2}).str() == "GRUCell(input_size=3, hidden_size=2)");

  // Dropout acts between the layers and only in training. The states of layer 0 are those without dropout.
  const Tensor x = randn({5, 2, 3});
  const auto [a, end_a] = lstm(x);
  const auto [b, end_b] = lstm(x);
  CHECK(!equal(a.detach(), b.detach()));
  CHECK(equal(end_a.first.detach().narrow(0, 0, 2), end_b.first.detach().narrow(0, 0, 2)));
  lstm.eval();
  CHECK(equal(lstm(x).first.detach(), lstm(x).first.detach()));
}

TEST_CASE("pad_sequence and its inverses") {
  const Tensor a = tensor({1.0, 2.0, 3.0}), b = tensor({4.0});
  CHECK(equal(rnn::pad_sequence({a, b}), tensor({{1.0, 4.0}, {2.0, 0.0}, {3.0, 0.0}})));
  CHECK(equal(rnn::pad_sequence({b, a}, {.batch_first = true, .padding_value = -1, .padding_left = true}),
              tensor({{-1.0, -1.0, 4.0}, {1.0, 2.0, 3.0}})));
  const auto parts = rnn::unpad_sequence(rnn::pad_sequence({a, b}), {3, 1});
  CHECK(equal(parts[0], a));
  CHECK(equal(parts[1], b));
  const rnn::PackedSequence packed = rnn::pack_sequence({b, a}, false);
  CHECK(equal(packed.data, tensor({1.0, 4.0, 2.0, 3.0})));
  CHECK(packed.batch_sizes == std::vector<std::int64_t>{2, 1, 1});
  CHECK(equal(packed.sorted_indices, tensor({1, 0})));
  const auto [padded, lengths] = rnn::pad_packed_sequence(packed, {.batch_first = true, .padding_value = 9});
  CHECK(equal(padded, tensor({{4.0, 9.0, 9.0}, {1.0, 2.0, 3.0}})));
  CHECK(equal(lengths, tensor({1, 3})));
}

TEST_CASE("recurrent layers and packed sequences report bad input") {
  const auto fails = [](const std::string& text, const auto& call) {
    CHECK_THROWS_WITH(call(), ContainsSubstring(text));
  };
  fails("input_size and hidden_size must be positive but are 0 and 3",
        [] { nn::LSTM({.input_size = 0, .hidden_size = 3}); });
  fails("proj_size is 3; give a number below hidden_size 3",
        [] { nn::LSTM({.input_size = 2, .hidden_size = 3, .proj_size = 3}); });
  fails("proj_size is -1", [] { nn::LSTM({.input_size = 2, .hidden_size = 3, .proj_size = -1}); });
  fails("num_layers must be positive", [] { nn::GRU({.input_size = 2, .hidden_size = 3, .num_layers = 0}); });
  fails("dropout must lie in [0, 1] but is 2",
        [] { nn::GRU({.input_size = 2, .hidden_size = 3, .dropout = 2}); });
  fails("must be \"tanh\" or \"relu\" but is \"selu\"",
        [] { nn::RNN({.input_size = 2, .hidden_size = 3, .nonlinearity = "selu"}); });
  fails("must be \"tanh\" or \"relu\"",
        [] { nn::RNNCell({.input_size = 2, .hidden_size = 3, .nonlinearity = ""}); });
  fails("must be positive", [] { nn::LSTMCell({.input_size = 2}); });

  nn::LSTM projected({.input_size = 2, .hidden_size = 3, .proj_size = 1});
  fails("the state h has shape [1, 4, 3], expected [1, 4, 1]", [&] {
    projected(zeros({5, 4, 2}), {zeros({1, 4, 3}), {}});
  });
  fails("the state c has shape [1, 4, 1], expected [1, 4, 3]", [&] {
    projected(zeros({5, 4, 2}), {{}, zeros({1, 4, 1})});
  });
  fails("pass at least one step", [&] { projected(zeros({0, 4, 2})); });
  fails("the batch sizes add up to 3", [&] { projected(rnn::PackedSequence{zeros({4, 2}), {2, 1}}); });
  fails("batch size 2 of step 1 after 1", [&] { projected(rnn::PackedSequence{zeros({3, 2}), {1, 2}}); });
  nn::LSTM lstm({.input_size = 2, .hidden_size = 3, .batch_first = true});
  fails("expected an input of shape (N, T, 2) or (T, 2) but got [4, 5, 3]", [&] { lstm(zeros({4, 5, 3})); });
  fails("pass at least one step", [&] { lstm(zeros({4, 0, 2})); });
  fails("the state h has shape [4, 3], expected [1, 4, 3]", [&] {
    lstm(zeros({4, 5, 2}), {zeros({4, 3}), {}});
  });
  fails("the state c has shape [1, 4, 3], expected [1, 3]", [&] {
    lstm(zeros({5, 2}), {zeros({1, 3}), zeros({1, 4, 3})});
  });
  fails("weights.ih has dtype float32 but the input has float64", [&] {
    lstm(zeros({4, 5, 2}, DType::f64));
  });
  fails("there is no layer 1", [&] { lstm.weights(1); });
  fails("there is no layer 0 in reverse", [&] { lstm.weights(0, true); });
  nn::GRUCell cell({.input_size = 2, .hidden_size = 3});
  fails("expected an input of shape (N, 2) or (2)", [&] { cell(zeros({1, 1, 2})); });
  fails("the state h has shape [3], expected [4, 3]", [&] { cell(zeros({4, 2}), zeros({3})); });

  const Tensor x = zeros({4, 2, 2});
  fails("got 1 lengths for a batch of 2", [&] { rnn::pack_padded_sequence(x, {4}); });
  fails("length 5 of sequence 1 is outside [1, 4]", [&] { rnn::pack_padded_sequence(x, {4, 5}); });
  fails("length 0 of sequence 0", [&] { rnn::pack_padded_sequence(x, {0, 2}); });
  fails("the lengths increase", [&] { rnn::pack_padded_sequence(x, {2, 4}); });
  fails("expected (T, N, ...)", [&] { rnn::pack_padded_sequence(zeros({3}), {2}); });
  fails("lengths are float32", [&] { rnn::pack_padded_sequence(x, zeros({2})); });
  for (const DType dtype : {DType::i32, DType::u8, DType::i16, DType::i8, DType::u16})
    CHECK(rnn::pack_padded_sequence(x, tensor({3, 1}, dtype)).batch_sizes ==
          std::vector<std::int64_t>{2, 1, 1});
  fails("has no batch sizes", [&] { lstm(rnn::PackedSequence{x, {}}); });
  fails("expected packed data of shape (rows, 2)", [&] { lstm(rnn::PackedSequence{x, {4}}); });
  fails("the batch sizes add up to 3", [&] { lstm(rnn::PackedSequence{zeros({4, 2}), {2, 1}}); });
  fails("batch size 2 of step 1 after 1", [&] { lstm(rnn::PackedSequence{zeros({3, 2}), {1, 2}}); });
  const auto packed = rnn::pack_padded_sequence(x, {3, 1});
  fails("total_length 2 is less than the longest",
        [&] { rnn::pad_packed_sequence(packed, {.total_length = 2}); });
  fails("got no sequences", [] { rnn::pad_sequence({}); });
  fails("sequences 0 and 1 have shapes [2, 2] and [3]", [] {
    rnn::pad_sequence({zeros({2, 2}), zeros({3})});
  });
}
