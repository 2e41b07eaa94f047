#include "tapestry/apps/char_lstm/model.h"

#include <algorithm>
#include <numbers>

#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;

CharLstm::CharLstm(const Tensor& codes_, const CharLstmOptions& o)
    : codes(buffer("codes", codes_)),
      embedding(add<nn::Embedding>("embedding", {.num_embeddings = codes_.numel(), .embedding_dim = 64})),
      lstm(add<nn::LSTM>(
          "lstm", {.input_size = 64, .hidden_size = o.hidden, .num_layers = o.layers, .dropout = o.dropout})),
      dropout(add<nn::Dropout>("dropout", {.p = o.dropout})),
      head(add<nn::Linear>("head", {.in_features = o.hidden, .out_features = codes_.numel()})) {}

std::pair<Tensor, CharLstm::State> CharLstm::forward(const Tensor& tokens, const State& state) {
  auto [y, next] = lstm(embedding(tokens), state);
  return {head(dropout(y)), next};
}

std::unique_ptr<CharLstm> load(const std::string& path) {
  const nn::StateDict saved = nn::load_tensors(path);
  CharLstmOptions o;
  Tensor codes;
  o.layers = 0;
  for (const auto& [name, t] : saved) {
    if (name == "codes") codes = t;
    if (name == "head.weight" && t.dim() == 2) o.hidden = t.size(1);
    if (name.starts_with("lstm.weight_hh")) ++o.layers;
  }
  check(codes.defined() && o.layers > 0, "[char_lstm] ", path, " is not a model of this program");
  auto model = std::make_unique<CharLstm>(codes, o);
  model->load_state_dict(saved);
  return model;
}

double bits_per_character(CharLstm& model, const Streams& text) {
  const NoGradGuard no_grad;
  model.eval();
  CharLstm::State state;
  double sum = 0;
  for (std::int64_t i = 0; i < text.pieces(); ++i) {
    const auto [tokens, next] = text.piece(i);
    const auto [logits, after] = nn::call(model, tokens, state);
    sum += cross_entropy(logits.flatten(0, 1), next.flatten()).item();
    state = after;
  }
  model.train();
  return sum / static_cast<double>(text.pieces()) / std::numbers::ln2;
}

std::string sample(CharLstm& model, const std::string& prompt, const SampleOptions& o) {
  const NoGradGuard no_grad;
  const Vocabulary vocabulary(model.codes.tensor());
  model.eval();
  std::string text = prompt;
  Tensor tokens = vocabulary.tokens(prompt).unsqueeze(1);
  CharLstm::State state;
  for (std::int64_t i = 0; i < o.length; ++i) {
    const auto [logits, after] = nn::call(model, tokens, state);
    state = after;
    const Tensor last = logits[-1][0];
    const std::int64_t kept =
        o.temperature == 0 ? 1 : std::min(o.top_k > 0 ? o.top_k : vocabulary.size(), vocabulary.size());
    const auto [scores, candidates] = last.topk(kept);
    Tensor next = candidates;
    if (kept > 1) next = candidates.index_select(0, multinomial((scores / o.temperature).softmax(0), 1));
    text += vocabulary.character(next.item<std::int64_t>());
    tokens = next.unsqueeze(1);
  }
  model.train();
  return text;
}

}  // namespace apps
