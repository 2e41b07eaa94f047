#include "tapestry/data/tokenizer/chat.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/data/tokenizer/internal/jinja.h"

namespace tapestry::data {
namespace {

constexpr const char* kSmolLmSystem = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

struct KnownFormat {
  ChatFormat format;
  const char *name, *begin_of_text, *end_of_text;
  /// The date in the system block, as it is or as the argument of strftime_now(); null without such a block.
  const char* date;
};
constexpr KnownFormat kFormats[] = {
    {ChatFormat::smollm2, "smollm2", "<|im_start|>", "<|im_end|>", nullptr},
    {ChatFormat::llama3, "llama3", "<|begin_of_text|>", "<|eot_id|>", nullptr},
    {ChatFormat::llama3_1, "llama3.1", "<|begin_of_text|>", "<|eot_id|>", "26 Jul 2024"},
    {ChatFormat::llama3_2, "llama3.2", "<|begin_of_text|>", "<|eot_id|>", "<%d %b %Y>"},
};
const KnownFormat& known(ChatFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

std::int64_t control_token(const Tokenizer& tokenizer, const std::string& name) {
  const auto id = tokenizer.id_of(name);
  check(id && tokenizer.is_special(*id), "[ChatTemplate] the tokenizer has no control token ", name,
        "; use the format of the model that it belongs to");
  return *id;
}

/// A control token, or the text between two of them, which is encoded as a whole, because words may cross
/// from the header to the content. If they do, the token belongs to the header.
struct Piece {
  static constexpr std::size_t kNone = std::string::npos;
  std::string text;
  bool control = false;
  std::size_t answer = kNone;  ///< the byte from which the assistant writes it
};

std::vector<Piece> pieces_of(ChatFormat format, const std::vector<ChatMessage>& messages, bool prompt,
                             const std::string& date) {
  std::vector<Piece> all;
  const auto control = [&](const char* name, bool answer = false) {
    all.push_back({name, true, answer ? 0 : Piece::kNone});
  };
  if (format == ChatFormat::smollm2) {
    const auto put = [&](const std::string& role, const std::string& content) {
      const bool answer = role == "assistant";
      control("<|im_start|>");
      all.push_back({role + "\n" + content, false, answer ? role.size() + 1 : Piece::kNone});
      control("<|im_end|>", answer);
      all.push_back({"\n"});
    };
    if (messages[0].role != "system") put("system", kSmolLmSystem);
    for (const ChatMessage& m : messages) put(m.role, m.content);
    if (prompt) {
      control("<|im_start|>");
      all.push_back({"assistant\n"});
    }
    return all;
  }
  const auto header = [&](const std::string& role) {
    control("<|start_header_id|>");
    all.push_back({role});
    control("<|end_header_id|>");
  };
  const auto put = [&](const std::string& role, const std::string& content) {
    const bool answer = role == "assistant";
    header(role);
    all.push_back({"\n\n" + content, false, answer ? 2 : Piece::kNone});
    control("<|eot_id|>", answer);
  };
  control("<|begin_of_text|>");
  auto message = messages.begin();
  if (known(format).date) {
    const bool given = message->role == "system";
    put("system", "Cutting Knowledge Date: December 2023\nToday Date: " + date + "\n\n" +
                      (given ? strip_unicode_space(message->content) : ""));
    message += given;
  }
  for (; message != messages.end(); ++message) put(message->role, strip_unicode_space(message->content));
  if (prompt) {
    header("assistant");
    all.push_back({"\n\n"});
  }
  return all;
}

std::string text_of(ChatFormat format, const std::vector<ChatMessage>& messages, bool prompt) {
  std::string text;
  const char* const date = known(format).date;
  for (const Piece& piece : pieces_of(format, messages, prompt, date ? date : "")) text += piece.text;
  return text;
}

std::string excerpt(const std::string& text, std::size_t at) {
  // Not from the middle of a character, whose beginning both texts have.
  for (int i = 0; i < 3 && at > 0 && at < text.size() && (text[at] & 0xc0) == 0x80; ++i) --at;
  return at == text.size() ? "the end" : "\"" + printable_jinja(std::string_view(text).substr(at), 60) + "\"";
}

}  // namespace

const char* chat_format_name(ChatFormat format) { return known(format).name; }

std::optional<ChatFormat> chat_format_of(std::string_view jinja, std::string* unknown) {
  if (unknown) unknown->clear();
  if (jinja.find_first_not_of(" \t\r\n") == std::string_view::npos) return std::nullopt;
  // Contents with white space of each kind, with and without a system message and an answer.
  const std::vector<std::vector<ChatMessage>> conversations = {
      {{"user", " \xe3\x80\x80one\n"}},
      {{"system", "\ttwo \xc2\xa0"}, {"user", "three"}},
      {{"user", "four"}, {"assistant", "\n five\xe2\x80\xa8"}, {"user", " six "}},
      {{"system", "seven"}, {"user", "eight\n\n"}, {"assistant", "nine"}}};
  std::string why;
  std::size_t best = 0;
  for (const KnownFormat& format : kFormats) {
    bool same = true;
    std::size_t matched = 0;
    for (std::size_t i = 0; same && i < conversations.size(); ++i) {
      const bool prompt = conversations[i].back().role == "user";
      std::string text;
      try {
        text = render_jinja(jinja, {.messages = conversations[i],
                                    .add_generation_prompt = prompt,
                                    .bos_token = format.begin_of_text,
                                    .eos_token = format.end_of_text});
      } catch (const ValueError& error) {
        if (unknown) *unknown = error.what();
        return std::nullopt;
      }
      const std::string expected = text_of(format.format, conversations[i], prompt);
      // The first files of Llama 3 begin an answer whether they are asked to or not.
      if (text == expected || (!prompt && text == text_of(format.format, conversations[i], true))) {
        matched += text.size();
        continue;
      }
      same = false;
      const auto differ = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end());
      const auto at = static_cast<std::size_t>(differ.first - text.begin());
      if (!why.empty() && matched + at <= best) continue;
      best = matched + at;
      why = concat({"the template writes ", excerpt(text, at), " where that of ", format.name, " has ",
                    excerpt(expected, at)});
    }
    if (same) return format.format;
  }
  if (unknown) *unknown = why;
  return std::nullopt;
}

std::string chat_date() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::string day = std::to_string(local.tm_mday);
  return (day.size() < 2 ? "0" : "") + day + " " + kMonths[local.tm_mon] + " " +
         std::to_string(1900 + local.tm_year);
}

ChatTemplate::ChatTemplate(Tokenizer tokenizer, ChatFormat format, std::string date)
    : tokenizer_(std::move(tokenizer)), format_(format), date_(std::move(date)) {
  if (format == ChatFormat::llama3_1) date_ = known(format).date;
  if (date_.empty()) date_ = chat_date();
  for (const Piece& piece : pieces_of(format, {{"user", ""}}, true, ""))
    if (piece.control) control_token(tokenizer_, piece.text);
  end_ = control_token(tokenizer_, known(format).end_of_text);
}

EncodedChat ChatTemplate::encode(const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
  check(!messages.empty(), "[ChatTemplate::encode] there is no message; pass at least one");
  for (const ChatMessage& m : messages)
    check(m.role == "system" || m.role == "user" || m.role == "assistant",
          "[ChatTemplate::encode] the role \"", m.role, "\" is unknown; use system, user or assistant");
  EncodedChat chat;
  for (const Piece& piece : pieces_of(format_, messages, options.add_generation_prompt, date_)) {
    const std::vector<std::int64_t> ids =
        piece.control ? std::vector<std::int64_t>{control_token(tokenizer_, piece.text)}
                      : tokenizer_.encode(piece.text, {.add_special = false, .parse_special = false});
    std::size_t bytes = 0;
    for (const std::int64_t id : ids) {
      chat.ids.push_back(id);
      chat.answer.push_back(bytes >= piece.answer);
      bytes += tokenizer_.bytes(id).size();
    }
  }
  return chat;
}

}  // namespace tapestry::data
