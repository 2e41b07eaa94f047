#include "tapestry/apps/gpt/tune_data.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "tapestry/data/collate.h"
#include "tapestry/data/formats/text.h"
#include "tapestry/nn/models/language_model.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

using Documents = std::vector<data::EncodedChat>;

void append(Documents& to, Documents&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

Documents read_chats(const std::vector<std::string>& files, const TuneDataOptions& o, const Pretrained& p) {
  const data::InstructionOptions how{.max_tokens = o.length + 1,
                                     .too_long = o.truncate ? data::TooLong::truncate : data::TooLong::refuse,
                                     .whole_text = o.whole_text};
  check(p.unknown_chat.empty(),
        "[gpt tune] the chat template of the model is of no known format: ", p.unknown_chat,
        "; use --text, with the conversations as the template writes them");
  Documents all;
  for (const std::string& file : files) {
    if (p.chat) {
      append(all, data::read_conversations(file, data::ChatTemplate(p.tokenizer, *p.chat, o.date), how));
    } else {
      check(!p.stop.empty(), "[gpt tune] the model has neither a chat template nor a token that ends a text");
      append(all, data::read_completions(file, p.tokenizer, p.stop.front(), how));
    }
  }
  return all;
}

// Documents of text begin and end as those that the model was trained on.
data::TextDocumentOptions text_options(const Pretrained& p) {
  if (!p.tokenizer.prefix().empty()) return {.begin = p.tokenizer.prefix().back()};
  return {.begin = p.tokenizer.id_of("<|endoftext|>").value_or(p.first)};
}

}  // namespace

TuneData read_tune_data(const TuneDataOptions& o, const Pretrained& p) {
  const bool is_text = !o.text.empty();
  Documents train, held_out;
  const double part = o.held_out.empty() ? o.held_out_part : 0;
  if (is_text) {
    for (const std::string& file : o.text) {
      const data::MappedFile mapped("gpt tune", file);
      const std::string_view all(mapped.data(), mapped.size());
      // The end of each file is held out, from the beginning of a line on.
      const auto at = static_cast<std::size_t>(std::llround(static_cast<double>(all.size()) * (1 - part)));
      const std::size_t line = part > 0 ? all.find('\n', at) : std::string_view::npos;
      const std::size_t end = line == std::string_view::npos ? all.size() : line + 1;
      append(train, data::text_documents(all.substr(0, end), file, p.tokenizer, text_options(p)));
      if (all.substr(end).find_first_not_of(" \n\r\t") != std::string_view::npos)
        append(held_out,
               data::text_documents(all.substr(end), file + " (its end)", p.tokenizer, text_options(p)));
    }
    for (const std::string& file : o.held_out)
      append(held_out, data::read_documents(file, p.tokenizer, text_options(p)));
  } else {
    train = read_chats(o.chats, o, p);
    if (!o.held_out.empty()) held_out = read_chats(o.held_out, o, p);
    const auto count = static_cast<std::ptrdiff_t>(std::llround(static_cast<double>(train.size()) * part));
    if (count > 0 && count < static_cast<std::ptrdiff_t>(train.size())) {
      held_out.assign(train.end() - count, train.end());
      train.erase(train.end() - count, train.end());
    }
  }
  const data::PackOptions pack{.length = o.length, .split = is_text};
  TuneData out{data::PackedSequences(train, pack), {}, train.size()};
  if (!held_out.empty()) out.held_out.emplace(held_out, pack);
  return out;
}

TuneBatch tune_batch(const data::PackedSequences& data, const std::vector<std::int64_t>& indices) {
  std::vector<Tensor> ids, targets, documents;
  for (const std::int64_t i : indices) {
    const data::PackedSequence s = data.get(i);
    ids.push_back(s.ids), targets.push_back(s.targets), documents.push_back(s.documents);
  }
  return tune_batch_of(data::stack_samples(ids), data::stack_samples(targets),
                       data::stack_samples(documents));
}

TuneBatch tune_batch_of(const Tensor& ids, const Tensor& targets, const Tensor& documents) {
  TuneBatch batch{{ids, targets, documents}, 0};
  const auto* const t = batch.sequences.targets.data<std::int64_t>();
  batch.targets = batch.sequences.targets.numel() - std::count(t, t + batch.sequences.targets.numel(), -100);
  return batch;
}

nn::TokenContext TuneBatch::context(bool divided) const {
  nn::TokenContext how{.targets = sequences.targets};
  const auto *const t = sequences.targets.data<std::int64_t>(), *const d =
                                                                    sequences.documents.data<std::int64_t>();
  bool several = divided;
  for (std::int64_t i = 0; i < sequences.targets.numel(); ++i)
    several = several || (d[i] > 0 && t[i] != -100);
  if (several) how.documents = sequences.documents;
  return how;
}

}  // namespace apps::gpt
