#include "tapestry/data/text/documents.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "tapestry/core/error.h"
#include "tapestry/data/formats/text.h"
#include "tapestry/data/tokenizer/internal/utf8.h"

namespace tapestry::data {

namespace {

using Json = nlohmann::json;

/// A line of a file, for errors.
struct Place {
  const char* op;
  const std::string& path;
  std::int64_t line;
  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    check<IoError>(ok, "[", op, "] ", path, ":", line, ": ", parts...);
  }
};

// Text from a file in an error message: the first characters, and none that control a terminal.
std::string shown(const std::string& text) {
  std::string out = text.substr(0, 40);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  return "\"" + out + (text.size() > 40 ? "...\"" : "\"");
}

const std::string& text_of(const Place& place, const Json& object, const char* name) {
  const auto found = object.find(name);
  place.require(found != object.end() && found->is_string(), "\"", name, "\" is missing, or no text");
  return found->get_ref<const std::string&>();
}

std::vector<ChatMessage> messages_of(const Place& place, std::string_view line) {
  const std::size_t invalid = find_invalid_utf8(line);
  place.require(invalid == std::string_view::npos, "is not UTF-8 at byte ", invalid);
  const Json object = Json::parse(line, nullptr, false);
  place.require(!object.is_discarded(), "is no JSON");
  place.require(object.is_object(), "is no JSON object");
  const bool chat = object.contains("messages"),
             pair = object.contains("prompt") || object.contains("completion");
  place.require(chat != pair, "has ", chat ? "both" : "neither", " \"messages\" ", chat ? "and" : "nor",
                " \"prompt\" with \"completion\"; give one of them");
  if (pair)
    return {{"user", text_of(place, object, "prompt")}, {"assistant", text_of(place, object, "completion")}};
  const Json& list = object["messages"];
  place.require(list.is_array() && !list.empty(), "\"messages\" is no list, or empty");
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    place.require(entry.is_object(), "message ", messages.size(), " is no JSON object");
    const std::string& role = text_of(place, entry, "role");
    place.require(role == "system" || role == "user" || role == "assistant", "message ", messages.size(),
                  " has the unknown role ", shown(role), "; use system, user or assistant");
    messages.push_back({role, text_of(place, entry, "content")});
  }
  return messages;
}

using Encode = std::function<EncodedChat(const Place&, const std::vector<ChatMessage>&, bool has_messages)>;

void limit(const Place& place, EncodedChat& chat, const InstructionOptions& options) {
  const auto answers = [&] {
    return std::find(chat.answer.begin(), chat.answer.end(), true) != chat.answer.end();
  };
  place.require(answers(), "has no answer; the assistant must write something");
  const auto most = static_cast<std::size_t>(options.max_tokens);
  if (options.max_tokens > 0 && chat.ids.size() > most) {
    place.require(options.too_long == TooLong::truncate, "has ", chat.ids.size(),
                  " tokens, and the context has ", most, "; shorten it, or truncate conversations");
    const std::size_t tokens = chat.ids.size();
    chat.ids.resize(most);
    chat.answer.resize(most);
    place.require(answers(), "has ", tokens, " tokens, and none of the first ", most,
                  " belongs to an answer; shorten the prompt");
  }
  if (options.whole_text) chat.answer.assign(chat.answer.size(), true);
}

std::vector<EncodedChat> read_lines(const char* op, const std::string& path,
                                    const InstructionOptions& options, const Encode& encode) {
  check(options.max_tokens >= 0, "[", op, "] max_tokens is ", options.max_tokens, "; it cannot be negative");
  const TextDataset lines(path);
  std::vector<EncodedChat> chats;
  for (std::int64_t i = 0; i < lines.size(); ++i) {
    std::string_view line = lines.line(i);
    if (i == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // a byte-order mark
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const Place place{op, path, i + 1};
    const std::vector<ChatMessage> messages = messages_of(place, line);
    const bool pair = messages.size() == 2 && messages[0].role == "user" && messages[1].role == "assistant";
    EncodedChat chat = encode(place, messages, !pair);
    limit(place, chat, options);
    chats.push_back(std::move(chat));
  }
  check<IoError>(!chats.empty(), "[", op, "] ", path, ": has no conversation");
  return chats;
}

void append(EncodedChat& to, const std::vector<std::int64_t>& ids, bool answer) {
  to.ids.insert(to.ids.end(), ids.begin(), ids.end());
  to.answer.insert(to.answer.end(), ids.size(), answer);
}

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};

}  // namespace

std::vector<EncodedChat> read_conversations(const std::string& path, const ChatTemplate& chat,
                                            const InstructionOptions& options) {
  return read_lines("read_conversations", path, options,
                    [&](const Place&, const std::vector<ChatMessage>& messages, bool) {
                      return chat.encode(messages, {.add_generation_prompt = false});
                    });
}

std::vector<EncodedChat> read_completions(const std::string& path, const Tokenizer& tokenizer,
                                          std::int64_t end, const InstructionOptions& options) {
  const char* const op = "read_completions";
  check(end >= 0 && end < tokenizer.vocab_size(), "[", op, "] the token ", end,
        " is not in the vocabulary of ", tokenizer.vocab_size());
  return read_lines(op, path, options,
                    [&](const Place& place, const std::vector<ChatMessage>& messages, bool has_messages) {
                      place.require(!has_messages, "has messages, and the model has no chat template; use ",
                                    "\"prompt\" and \"completion\"");
                      EncodedChat text;
                      append(text, tokenizer.prefix(), false);
                      append(text, tokenizer.encode(messages[0].content, kPlain), false);
                      append(text, tokenizer.encode(messages[1].content, kPlain), true);
                      append(text, {end}, true);
                      return text;
                    });
}

std::vector<EncodedChat> text_documents(std::string_view text, const std::string& name,
                                        const Tokenizer& tokenizer, const TextDocumentOptions& options) {
  const char* const op = "read_documents";
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(invalid), '\n');
    const std::size_t begin = invalid == 0 ? 0 : text.rfind('\n', invalid - 1) + 1;
    fail<IoError>("[", op, "] ", name, ":", line, ": is not UTF-8 at byte ", invalid - begin, " of the line");
  }
  for (const std::int64_t id : {options.begin, options.end})
    check(id >= -1 && id < tokenizer.vocab_size(), "[", op, "] the token ", id,
          " is not in the vocabulary of ", tokenizer.vocab_size());
  std::vector<EncodedChat> documents;
  while (!text.empty()) {
    const std::size_t at = options.separator.empty() ? text.npos : text.find(options.separator);
    const std::string_view part = text.substr(0, at);
    text = at == text.npos ? std::string_view() : text.substr(at + options.separator.size());
    if (part.find_first_not_of(" \t\r\n") == part.npos) continue;
    EncodedChat document;
    if (options.begin >= 0) append(document, {options.begin}, true);
    append(document, tokenizer.encode(part, kPlain), true);
    if (options.end >= 0) append(document, {options.end}, true);
    documents.push_back(std::move(document));
  }
  check<IoError>(!documents.empty(), "[", op, "] ", name, ": has no text");
  return documents;
}

std::vector<EncodedChat> read_documents(const std::string& path, const Tokenizer& tokenizer,
                                        const TextDocumentOptions& options) {
  const MappedFile file("read_documents", path);
  return text_documents({file.data(), file.size()}, path, tokenizer, options);
}

std::vector<EncodedChat> read_token_file(const std::string& path, std::int64_t separator,
                                         std::int64_t vocab_size) {
  const char* const op = "read_token_file";
  constexpr std::int64_t kHeader = 256 * 4;
  const MappedFile file(op, path);
  const auto require = [&](bool ok, const auto&... parts) {
    check<IoError>(ok, "[", op, "] ", path, ": ", parts...);
  };
  const auto bytes = static_cast<std::int64_t>(file.size());
  require(bytes >= kHeader, "has ", bytes, " bytes, and the header of a file of llm.c has ", kHeader);
  std::int32_t header[3];
  std::memcpy(header, file.data(), sizeof header);
  const bool narrow = header[0] == 20240520 && header[1] == 1, wide = header[0] == 20240801 && header[1] == 7;
  require(narrow || wide, "begins with ", header[0], " and version ", header[1],
          "; llm.c's files begin with 20240520 and version 1, or 20240801 and version 7");
  const std::int64_t each = narrow ? 2 : 4, tokens = header[2];
  require(tokens >= 1 && bytes == kHeader + tokens * each, "has ", bytes, " bytes, and its header says ",
          tokens, " tokens of ", each, " bytes");
  std::vector<EncodedChat> documents;
  for (std::int64_t i = 0; i < tokens; ++i) {
    std::uint32_t id = 0;
    std::memcpy(&id, file.data() + kHeader + i * each, static_cast<std::size_t>(each));
    require(vocab_size == 0 || id < static_cast<std::uint64_t>(vocab_size), "token ", i, " is ", id,
            ", and the vocabulary has ", vocab_size, " tokens");
    if (documents.empty() || id == separator) documents.emplace_back();
    documents.back().ids.push_back(id);
  }
  for (EncodedChat& d : documents) d.answer.assign(d.ids.size(), true);
  return documents;
}

}  // namespace tapestry::data
