#include "tapestry/data/tokenizer/chat.h"

#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::data {
namespace {

constexpr const char* kSmolLmSystem = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

std::int64_t control_token(const Tokenizer& tokenizer, const char* name) {
  const auto id = tokenizer.id_of(name);
  check(id && tokenizer.is_special(*id), "[ChatTemplate] the tokenizer has no control token ", name,
        "; use the format of the model that it belongs to");
  return *id;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

std::optional<ChatFormat> chat_format_of(std::string_view jinja) {
  const auto has = [&](std::string_view text) { return jinja.find(text) != std::string_view::npos; };
  // Other families use <|im_start|> with another default system message.
  if (has("<|im_start|>") && has(kSmolLmSystem)) return ChatFormat::smollm2;
  if (has("<|start_header_id|>") && has("<|eot_id|>")) return ChatFormat::llama3;
  return std::nullopt;
}

ChatTemplate::ChatTemplate(Tokenizer tokenizer, ChatFormat format)
    : tokenizer_(std::move(tokenizer)), format_(format) {
  if (format == ChatFormat::smollm2) {
    begin_ = control_token(tokenizer_, "<|im_start|>");
    end_ = control_token(tokenizer_, "<|im_end|>");
  } else {
    begin_ = control_token(tokenizer_, "<|start_header_id|>");
    header_end_ = control_token(tokenizer_, "<|end_header_id|>");
    end_ = control_token(tokenizer_, "<|eot_id|>");
    text_begin_ = control_token(tokenizer_, "<|begin_of_text|>");
  }
}

EncodedChat ChatTemplate::encode(const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
  check(!messages.empty(), "[ChatTemplate::encode] there is no message; pass at least one");
  for (const ChatMessage& m : messages)
    check(m.role == "system" || m.role == "user" || m.role == "assistant",
          "[ChatTemplate::encode] the role \"", m.role, "\" is unknown; use system, user or assistant");
  EncodedChat chat;
  const auto put_token = [&](std::int64_t id, bool answer) {
    chat.ids.push_back(id);
    chat.answer.push_back(answer);
  };
  const auto put_text = [&](const std::string& text, bool answer) {
    const auto ids = tokenizer_.encode(text, {.add_special = false, .parse_special = false});
    chat.ids.insert(chat.ids.end(), ids.begin(), ids.end());
    chat.answer.insert(chat.answer.end(), ids.size(), answer);
  };
  // What stands between two control tokens is encoded as one text, because words may cross from the header to
  // the content. If they do, the token belongs to the header.
  const auto put_message = [&](const std::string& role, const std::string& content) {
    const bool answer = role == "assistant";
    put_token(begin_, false);
    const std::string header = role + "\n";
    const auto ids = tokenizer_.encode(header + content, {.add_special = false, .parse_special = false});
    std::size_t bytes = 0;
    for (const std::int64_t id : ids) {
      put_token(id, answer && bytes >= header.size());
      bytes += tokenizer_.bytes(id).size();
    }
    put_token(end_, answer);
    put_text("\n", false);
  };
  if (format_ == ChatFormat::smollm2) {
    if (messages[0].role != "system") put_message("system", kSmolLmSystem);
    for (const ChatMessage& m : messages) put_message(m.role, m.content);
    if (options.add_generation_prompt) {
      put_token(begin_, false);
      put_text("assistant\n", false);
    }
    return chat;
  }
  put_token(text_begin_, false);
  const auto put_header = [&](const std::string& role) {
    put_token(begin_, false);
    put_text(role, false);
    put_token(header_end_, false);
  };
  for (const ChatMessage& m : messages) {
    put_header(m.role);
    const std::string text = "\n\n" + trimmed(m.content);
    const auto ids = tokenizer_.encode(text, {.add_special = false, .parse_special = false});
    std::size_t bytes = 0;
    for (const std::int64_t id : ids) {
      put_token(id, m.role == "assistant" && bytes >= 2);
      bytes += tokenizer_.bytes(id).size();
    }
    put_token(end_, m.role == "assistant");
  }
  if (options.add_generation_prompt) {
    put_header("assistant");
    put_text("\n\n", false);
  }
  return chat;
}

}  // namespace tapestry::data
