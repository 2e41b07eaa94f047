#pragma once
// Text for language models as documents of tokens: conversations in JSON lines, text files, and llm.c's files
// of tokens. data/text/packed_sequences.h makes sequences of them.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/data/tokenizer/chat.h"

namespace tapestry::data {

/// What to do with a document of more tokens than the model's context has.
enum class TooLong : std::uint8_t {
  refuse,    ///< throw
  truncate,  ///< leave out the tokens behind the limit; throw if no answer is left
};

struct InstructionOptions {
  std::int64_t max_tokens = 0;  ///< of a conversation; 0 means any number
  TooLong too_long = TooLong::refuse;
  bool whole_text = false;  ///< the loss counts all tokens, not only those of answers
};

/// Reads conversations, one JSON object a line: {"messages": [{"role": "user", "content": "..."}, ...]}, or
/// {"prompt": "...", "completion": "..."}, which is a user's message and the assistant's answer. Other
/// members are ignored, and so are empty lines. The result has the tokens of the chat template, and `answer`
/// says which of them the loss counts. Throws IoError with the file and the line if the file cannot be read,
/// a line is not UTF-8, no JSON object, has neither kind of members or both, a role is unknown, there is no
/// answer, or a conversation has more than max_tokens tokens (see TooLong); IoError if there is no
/// conversation.
std::vector<EncodedChat> read_conversations(const std::string& path, const ChatTemplate& chat,
                                            const InstructionOptions& options = {});
/// The same for a model without a chat template: prompt and completion are encoded one after the other,
/// behind the tokens that the tokenizer puts before a text, and `end`, such as <|endoftext|>, follows. Lines
/// with messages are refused.
std::vector<EncodedChat> read_completions(const std::string& path, const Tokenizer& tokenizer,
                                          std::int64_t end, const InstructionOptions& options = {});

struct TextDocumentOptions {
  /// What stands between the documents of a file. It belongs to none of them. Empty: the file is one
  /// document.
  std::string separator = "<|endoftext|>";
  std::int64_t begin = -1;  ///< a token before each document, or -1
  std::int64_t end = -1;    ///< a token after each document, or -1
};
/// Reads the documents of a text file. Names of control tokens in the text are plain text. Empty documents
/// are left out. Throws IoError with the file, the line and the byte if the file is not UTF-8, and IoError if
/// it cannot be read or is empty.
std::vector<EncodedChat> read_documents(const std::string& path, const Tokenizer& tokenizer,
                                        const TextDocumentOptions& options = {});
/// The same for a text in memory; `name` stands for the file in errors.
std::vector<EncodedChat> text_documents(std::string_view text, const std::string& name,
                                        const Tokenizer& tokenizer, const TextDocumentOptions& options = {});

/// Reads a file of tokens of llm.c: 256 integers (magic, version, number of tokens, zeros), then the ids, of
/// 2 bytes (magic 20240520, version 1) or 4 bytes (magic 20240801, version 7), all little-endian. Documents
/// begin with the token `separator`, as those of llm.c's scripts do; -1 makes one document of the file.
/// Throws IoError if the file cannot be read, has another header, is shorter or longer than the header says,
/// or has an id outside of [0, vocab_size), unless that is 0.
std::vector<EncodedChat> read_token_file(const std::string& path, std::int64_t separator,
                                         std::int64_t vocab_size = 0);

}  // namespace tapestry::data
