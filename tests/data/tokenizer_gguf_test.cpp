// Tokenizers in the metadata of GGUF files.
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "tapestry/core/gguf.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/data/tokenizer/chat.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

std::map<std::string, Tensor> recorded() {
  return load_safetensors(tests::source_path("tests/golden/data_tokenizer.safetensors")).tensors;
}

std::string text_of(const Tensor& t) { return {static_cast<const char*>(t.raw_data()), t.nbytes()}; }

/// What llama.cpp's converter makes of a tokenizer.json.
GgufMetadata converted(const std::string& json, const std::string& pre) {
  const Json root = Json::parse(json);
  std::vector<std::string> tokens, merges;
  std::vector<std::int32_t> types;
  const auto put = [&](const std::string& token, std::size_t id, std::int32_t type) {
    if (id >= tokens.size()) {
      tokens.resize(id + 1);
      types.resize(id + 1, 1);
    }
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : root["model"]["vocab"].items()) put(token, id.get<std::size_t>(), 1);
  for (const Json& added : root["added_tokens"])
    put(added["content"].get<std::string>(), added["id"].get<std::size_t>(),
        added["special"].get<bool>() ? 3 : 4);
  for (const Json& merge : root["model"]["merges"])
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  GgufMetadata metadata("f.gguf");
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", pre);
  metadata.set("tokenizer.ggml.tokens", GgufArray(tokens));
  metadata.set("tokenizer.ggml.token_type", GgufArray(types));
  metadata.set("tokenizer.ggml.merges", GgufArray(merges));
  return metadata;
}

}  // namespace

TEST_CASE("a tokenizer from GGUF gives the ids of Hugging Face's tokenizers") {
  const auto golden = recorded();
  const std::string all = text_of(golden.at("text"));
  const std::pair<const char*, const char*> rules[] = {
      {"gpt2", "gpt-2"},
      {"smollm", "smollm"},
      {"llama3", "llama-bpe"},
      {"qwen2", "deepseek-r1-qwen"}};  // the recorded one does not normalize
  for (const auto& [rule, pre] : rules) {
    CAPTURE(rule);
    GgufMetadata metadata = converted(text_of(golden.at(rule + std::string("/file"))), pre);
    if (std::string(rule) == "llama3") {
      const auto& tokens = metadata.strings("tokenizer.ggml.tokens");
      const auto begin = std::find(tokens.begin(), tokens.end(), "<|begin|>") - tokens.begin();
      metadata.set("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(begin));
    }
    const Tokenizer tokenizer = Tokenizer::from_gguf(metadata);
    CHECK(word_rule_name(tokenizer.rule()) == std::string(rule));
    const Tensor &lengths = golden.at("text/lengths"), &ids = golden.at(rule + std::string("/ids")),
                 &counts = golden.at(rule + std::string("/ids/lengths"));
    const std::int32_t* id = ids.data<std::int32_t>();
    std::size_t at = 0;
    for (std::int64_t i = 0; i < lengths.numel(); ++i) {
      const auto length = static_cast<std::size_t>(lengths.data<std::int32_t>()[i]);
      const std::int32_t count = counts.data<std::int32_t>()[i];
      CHECK(tokenizer.encode(all.substr(at, length)) == Ids(id, id + count));
      at += length;
      id += count;
    }
  }
}

TEST_CASE("tokens around the text") {
  GgufMetadata metadata = converted(text_of(recorded().at("gpt2/file")), "gpt-2");
  const Ids plain = Tokenizer::from_gguf(metadata).encode("ab");
  metadata.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  metadata.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  CHECK(Tokenizer::from_gguf(metadata).encode("ab") == plain);
  metadata.set("tokenizer.ggml.add_bos_token", true);
  metadata.set("tokenizer.ggml.add_eos_token", true);
  Ids around = plain;
  around.insert(around.begin(), 1);
  around.push_back(2);
  CHECK(Tokenizer::from_gguf(metadata).encode("ab") == around);
  CHECK(Tokenizer::from_gguf(metadata).is_special(1));
  metadata.set("tokenizer.ggml.pre", std::string("llama-bpe"));
  metadata.set("tokenizer.ggml.add_bos_token", false);
  metadata.set("tokenizer.ggml.add_eos_token", false);
  CHECK(Tokenizer::from_gguf(metadata).encode("ab") == plain);
}

TEST_CASE("tokenizers of GGUF files that are broken or of another kind are refused by name") {
  const GgufMetadata good = converted(text_of(recorded().at("gpt2/file")), "gpt-2");
  const auto refused = [&](const std::string& key, const GgufValue& value, const std::string& why) {
    CAPTURE(why);
    GgufMetadata bad = good;
    bad.set(key, value);
    CHECK_THROWS_AS(Tokenizer::from_gguf(bad), IoError);
    CHECK_THROWS_WITH(Tokenizer::from_gguf(bad), ContainsSubstring("f.gguf: ") && ContainsSubstring(why));
  };
  const auto types = [&](std::int32_t last) {
    std::vector<std::int32_t> list(good.strings("tokenizer.ggml.tokens").size(), 1);
    list.back() = last;
    return GgufArray(list);
  };
  using Strings = std::vector<std::string>;
  CHECK_NOTHROW(Tokenizer::from_gguf(good));
  refused("tokenizer.ggml.model", std::string("llama"), "is of type \"llama\"");
  refused("tokenizer.ggml.pre", std::string("deepseek-llm"), "\"deepseek-llm\" is not supported");
  refused("tokenizer.ggml.pre", std::uint32_t{1}, "a string is expected");
  refused("tokenizer.ggml.tokens", GgufArray(Strings{"a", "b"}), "there are 2 tokens, but");
  refused("tokenizer.ggml.tokens", GgufArray(std::vector<float>{1}), "an array of strings is expected");
  refused("tokenizer.ggml.token_type", GgufArray(std::vector<std::int32_t>{1}), "but 1 types of tokens");
  refused("tokenizer.ggml.token_type", types(7), "has the type 7");
  refused("tokenizer.ggml.token_type", types(6), "stands for a byte");
  refused("tokenizer.ggml.merges", GgufArray(Strings{"ab"}), "merge 0 is not two tokens");
  refused("tokenizer.ggml.merges", GgufArray(Strings{"a b c"}), "merge 0 is not two tokens");
  refused("tokenizer.ggml.merges", GgufArray(Strings{"a b", "zq zq zq"}), "merge 1 is not two tokens");
  refused("tokenizer.ggml.merges", GgufArray(Strings{"zqzq a"}), "merge 0");
  refused("tokenizer.ggml.add_bos_token", true, "has no metadata \"tokenizer.ggml.bos_token_id\"");
  GgufMetadata outside = good;
  outside.set("tokenizer.ggml.add_bos_token", true);
  outside.set("tokenizer.ggml.bos_token_id", std::uint32_t{1} << 30);
  CHECK_THROWS_WITH(Tokenizer::from_gguf(outside), ContainsSubstring("is 1073741824, but there are"));
  CHECK_THROWS_AS(Tokenizer::from_gguf(GgufMetadata()), IoError);
  refused("tokenizer.ggml.add_sep_token", true, "add_sep_token");
  refused("tokenizer.ggml.a_made_up_setting", true, "a_made_up_setting");
  GgufMetadata more = good;
  more.set("tokenizer.ggml.eot_token_id", std::uint32_t{1});
  more.set("tokenizer.ggml.add_space_prefix", false);
  CHECK_NOTHROW(Tokenizer::from_gguf(more));
  // Qwen2's vocabulary normalizes text.
  more.set("tokenizer.ggml.pre", std::string("qwen2"));
  CHECK(Tokenizer::from_gguf(more).encode("e\xcc\x81") == Tokenizer::from_gguf(good).encode("\xc3\xa9"));
  TokenizerParts parts = read_tokenizer_parts(more);
  for (const bool nfc : {true, false}) {
    GgufMetadata written;
    parts.nfc = nfc;
    put_gguf(parts, written);
    CHECK(read_tokenizer_parts(written).nfc == nfc);
    CHECK(read_tokenizer_parts(written).rule == WordRule::qwen2);
  }
  parts.nfc = true, parts.rule = WordRule::gpt2;
  GgufMetadata none;
  CHECK_THROWS_WITH(put_gguf(parts, none), ContainsSubstring("NFC"));
}

namespace {
constexpr const char* kSmolTemplate =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif "
    "%}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if "
    "add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr const char* kLlama3Template =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 "
    "== 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";
// The system block of Llama 3.1, with branches for tools that no conversation here takes.
const std::string kLlama31Template = R"({{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- The system message goes into the block. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'x') | join(", ") + "\n\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- for name, value in message.tool_calls[0].arguments | items %}{{ value | tojson }}{%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";
std::string with_part(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}
}  // namespace

TEST_CASE("a chat template has the format whose text it writes") {
  CHECK(chat_format_of(kSmolTemplate) == ChatFormat::smollm2);
  CHECK(chat_format_of(kLlama3Template) == ChatFormat::llama3);
  CHECK(chat_format_of(kLlama31Template) == ChatFormat::llama3_1);
  CHECK(chat_format_of(with_part(
            kLlama31Template, "{%- set date_string = \"26 Jul 2024\" %}",
            "{%- if strftime_now is defined %}{%- set date_string = strftime_now(\"%d %b %Y\") "
            "%}{%- else %}{%- set date_string = \"26 Jul 2024\" %}{%- endif %}")) == ChatFormat::llama3_2);
  // Other ways to write the same.
  CHECK(chat_format_of(
            "{{ bos_token }}{% for m in messages %}{% generation %}<|start_header_id|>{{ m.role ~ "
            "\"<|end_header_id|>\" }}\n\n{{ m.content.strip() }}<|eot_id|>{% endgeneration %}{% endfor %}{{ "
            "'<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' }}") ==
        ChatFormat::llama3);
  CHECK(chat_format_of(with_part(
            kSmolTemplate, "{% for message in messages %}",
            "{% set ns = namespace(n=0) %}{% for message in messages %}{% set ns.n = ns.n + 1 %}")) ==
        ChatFormat::smollm2);

  const auto unknown = [](const std::string& jinja) {
    std::string why = "none";
    CHECK_FALSE(chat_format_of(jinja, &why).has_value());
    return why;
  };
  CHECK(unknown("") == "");
  CHECK(unknown(" \n") == "");
  // The tokens of a format do not make it one.
  CHECK_THAT(unknown("{{ '<|start_header_id|>' + role + '<|end_header_id|>' + '<|eot_id|>' }}"),
             ContainsSubstring("{{ '<|start_header_id|>' + role"));
  CHECK_THAT(unknown(with_part(kLlama3Template, " | trim", "")),
             ContainsSubstring("writes \" \xe3\x80\x80one"));
  CHECK_THAT(unknown(with_part(kLlama31Template, "December 2023", "June 2024")),
             ContainsSubstring("\"June 2024") && ContainsSubstring("llama3.1 has \"December 2023"));
  CHECK_THAT(unknown(with_part(kLlama31Template, "26 Jul 2024", "1 Jan 2025")),
             ContainsSubstring("\"1 Jan 2025"));
  CHECK_THAT(unknown(with_part(kSmolTemplate, "SmolLM, trained by Hugging Face", "Qwen")),
             ContainsSubstring("writes \"Qwen"));
  CHECK_THAT(unknown("{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1) }}"),
             ContainsSubstring("{% macro f(x) %} is unknown"));
  CHECK_THAT(unknown("{{ messages | tojson }}"), ContainsSubstring("{{ messages | tojson }} is unknown"));
  CHECK_THAT(unknown("{{ raise_exception('Only tools') }}"), ContainsSubstring("Only tools"));
  // Hostile templates end, too.
  for (const std::string& jinja :
       {std::string("{% if"), std::string("{{ "), std::string("{% endfor %}"),
        std::string("{% for m in messages %}"), std::string("{{ -9223372036854775807 - 9 }}"),
        std::string("{{ messages[9223372036854775807] }}"), "{{ " + std::string(10'000, '(') + "1",
        "{{ " + std::string(10'000, '-') + "1 }}", "{{ " + std::string(10'000, '[') + "1 }}",
        std::string("{% set a = 'x' %}") +
            [] {
              std::string text;
              for (int i = 0; i < 64; ++i) text += "{% set a = a + a %}";
              return text;
            }(),
        [] {
          std::string text;
          for (int i = 0; i < 40; ++i) text += "{% for m in messages %}{% for m in messages %}";
          return text + "x";
        }()})
    CHECK(unknown(jinja) != "");
}

TEST_CASE("a hostile chat template is refused before it takes much time or memory") {
  const auto repeated = [](int times, const std::string& text) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  const auto refused = [](const std::string& jinja) {
    CAPTURE(jinja.substr(0, 200));
    std::string why;
    const auto begin = std::chrono::steady_clock::now();
    CHECK_FALSE(chat_format_of(jinja, &why).has_value());
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // and usually of one second
    CHECK_THAT(why, ContainsSubstring(" is unknown"));
    CHECK(why.size() < 250);
  };
  const std::string half = "{% set x = '" + std::string(500'000, 'x') + "' %}";
  refused(half + "{{ x" + repeated(250'000, "~x") + " }}");
  refused(half + "{{ x" + repeated(250'000, "+x") + " if false }}{{ x" + repeated(10'000, "~x") + " }}");
  refused(half + "{% set y = [" + repeated(200'000, "x,") + "] %}");
  refused(half + "{% set y = [" + repeated(9'000, "x,") + "] %}");
  refused(half + "{{ x" + repeated(20'000, "|default('')") + " }}");
  refused(half + "{{ x" + repeated(20'000, ".strip()") + " }}");
  refused(half + "{% for m in messages %}{{ '" + std::string(250'000, 'x') + "y' in x }}{% endfor %}");
  refused("{% set y = [" + repeated(5'000, "1,") + "] %}{% set z = [" + repeated(3'000, "y[:],") + "] %}");
  refused("{% set y = [" + repeated(5'000, "1,") + "] %}{{ 2" + repeated(100'000, " in y") + " }}");
  refused("{% set y = [" + repeated(5'000, "1,") + "] %}" + repeated(5, "{% for a in y %}") +
          repeated(5, "{% endfor %}"));
  refused("{{ " + repeated(30, "(") + "'" + std::string(900'000, 'x') + "'" + repeated(30, ")") +
          repeated(10, "~''") + "[0] }}");
  refused("{% set ns = namespace() %}{% set ns.a = ns %}");
  refused("{% set ns = namespace(a=0) %}{% for m in messages %}{% set ns.a = [ns.a] %}{% endfor %}");
  refused("{% set a = 0 %}" + repeated(50'000, "{% set a = [a] %}"));
  refused("{% set a = 0 %}" + repeated(35'000, "{% set a = namespace(a=a) %}"));
}

TEST_CASE("the text of a chat template is shown without control characters") {
  const auto why = [](const std::string& jinja) {
    std::string text;
    CHECK_FALSE(chat_format_of(jinja, &text).has_value());
    return text;
  };
  CHECK(why("{{ \x1b[2J\xff\xc2\x9b\xc3\xa9 }}") == "the part {{ ?[2J??\xc3\xa9 }} is unknown");
  CHECK(why("{{ raise_exception('a\x1b]0;\x07z\n') }}") ==
        "the part {{ raise_exception('a?]0;?z\\n') }} raises the exception: a?]0;?z\\n");
  CHECK_THAT(why("\x1b[31m\x7f"), ContainsSubstring("the template writes \"?[31m?\" where"));
  std::string long_text = "{{ a";
  for (int i = 0; i < 100; ++i) long_text += "\xe2\x82\xac";
  CHECK(why(long_text + " }}") == "the part " + long_text.substr(0, 4 + 52 * 3) + "... is unknown");
}
