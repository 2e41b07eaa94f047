#pragma once
// The part of Jinja that chat templates are written in.
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::data {

struct ChatMessage;

struct JinjaContext {
  const std::vector<ChatMessage>& messages;
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
};

/// Returns what transformers' apply_chat_template() writes, with trim_blocks and lstrip_blocks.
/// strftime_now(f) gives "<f>". Throws ValueError with the first part that is unknown, wrong, or raises an
/// exception. It is an error to set a member of a namespace to a list or dict. Time and memory are bounded,
/// whatever the template says.
std::string render_jinja(std::string_view jinja, const JinjaContext& context);

/// Text of a file for an error message: at most about `most` bytes, without control characters and bytes that
/// are not UTF-8.
std::string printable_jinja(std::string_view text, std::size_t most = 160);

/// Without the white space at both ends, as by str.strip() of Python, which knows that of Unicode.
std::string strip_unicode_space(std::string_view text);

}  // namespace tapestry::data
