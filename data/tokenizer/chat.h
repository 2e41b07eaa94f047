#pragma once
// Chat templates: how a conversation becomes the tokens that a language model was trained on.
//
//   const data::ChatTemplate chat(tokenizer, data::ChatFormat::smollm2);
//   std::vector<std::int64_t> prompt = chat.encode({{"user", "Why is the sky blue?"}}).ids;
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/data/tokenizer/tokenizer.h"

namespace tapestry::data {

/// The formats of model families. Their text is that of the chat template in the family's files.
enum class ChatFormat : std::uint8_t {
  smollm2,  ///< <|im_start|>user\n...<|im_end|>\n; a default system message, unless there is one
  llama3,   ///< <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>, with white space trimmed
  /// as llama3, after a system message that begins with "Cutting Knowledge Date: December 2023" and "Today
  /// Date: 26 Jul 2024"; the text of the caller's system message follows in it
  llama3_1,
  llama3_2,  ///< as llama3_1 with the date of today; also Llama 3.3
};
/// "smollm2", "llama3", "llama3.1" or "llama3.2"
const char* chat_format_name(ChatFormat format);

/// Returns the format of a chat template in Jinja, which GGUF files have as "tokenizer.chat_template" and
/// Hugging Face as chat_template in tokenizer_config.json. A template has the format whose text it writes for
/// several conversations, in whatever way it writes them. Returns nothing for an empty template and for one
/// of another family; `unknown` then says which part is the first that no format has, and is empty for an
/// empty template.
std::optional<ChatFormat> chat_format_of(std::string_view jinja, std::string* unknown = nullptr);
/// Today, as in Llama 3.2's templates: "05 Dec 2024".
std::string chat_date();

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  /// End with the beginning of the assistant's message, which the model then writes.
  bool add_generation_prompt = true;
};

struct EncodedChat {
  std::vector<std::int64_t> ids;
  /// For each token, whether the assistant writes it: the content of its messages and the token that ends
  /// them. A loss on answers alone counts these tokens.
  std::vector<bool> answer;
};

class ChatTemplate {
 public:
  /// `date` is that of llama3_2; without it, it is chat_date(). Throws ValueError if the tokenizer lacks a
  /// control token of the format.
  ChatTemplate(Tokenizer tokenizer, ChatFormat format, std::string date = {});
  /// Names of control tokens in a message are plain text: a message cannot end itself or begin another.
  /// Throws ValueError if there is no message, a role is unknown, or a content is not UTF-8.
  EncodedChat encode(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) const;
  /// The token with which the assistant ends its message.
  std::int64_t end_of_message() const { return end_; }

 private:
  Tokenizer tokenizer_;
  ChatFormat format_;
  std::string date_;
  std::int64_t end_ = 0;
};

}  // namespace tapestry::data
