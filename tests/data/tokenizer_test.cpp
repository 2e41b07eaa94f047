// Tests of tokenizers and chat templates. Ids and texts were recorded from Hugging Face's tokenizers
// (tests/golden/data_tokenizer.py).
#include "tapestry/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <thread>

#include "tapestry/core/safetensors.h"
#include "tapestry/data/tokenizer/chat.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::TempDir;
using tests::write_file;
using Ids = std::vector<std::int64_t>;

namespace {

const std::vector<std::string> kRules = {"gpt2", "smollm", "llama3", "qwen2"};

std::string text_of(const Tensor& t) {
  return {reinterpret_cast<const char*>(t.data<std::uint8_t>()), static_cast<std::size_t>(t.numel())};
}

class Recorded {
 public:
  Recorded()
      : tensors_(load_safetensors(tests::source_path("tests/golden/data_tokenizer.safetensors")).tensors) {}
  std::string file(const std::string& rule) const { return text_of(tensors_.at(rule + "/file")); }
  std::vector<std::string> texts(const std::string& name) const {
    const std::string all = text_of(tensors_.at(name));
    std::vector<std::string> list;
    for (const auto& [at, length] : parts(name)) list.push_back(all.substr(at, length));
    return list;
  }
  std::vector<Ids> ids(const std::string& name) const {
    const std::int32_t* const all = tensors_.at(name).data<std::int32_t>();
    std::vector<Ids> list;
    for (const auto& [at, length] : parts(name)) list.emplace_back(all + at, all + at + length);
    return list;
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> parts(const std::string& name) const {
    const Tensor& lengths = tensors_.at(name + "/lengths");
    std::vector<std::pair<std::size_t, std::size_t>> list;
    std::size_t at = 0;
    for (std::int64_t i = 0; i < lengths.numel(); ++i) {
      const auto length = static_cast<std::size_t>(lengths.data<std::int32_t>()[i]);
      list.emplace_back(at, length);
      at += length;
    }
    return list;
  }
  std::map<std::string, Tensor> tensors_;
};

Tokenizer load(const std::string& json) {
  const TempDir dir;
  write_file(dir / "tokenizer.json", json);
  return Tokenizer::from_file(dir / "tokenizer.json");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// A vocabulary of the 256 bytes and a few words.
TokenizerParts small_parts() {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    static int next = 0;
    if (b == 0) next = 0x100;
    const int code = printable ? b : next++;
    std::string token;
    if (code < 0x80) token += static_cast<char>(code);
    else token += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    parts.tokens.push_back(token);
  }
  for (const char* const word : {"ab", "abc", "bc"}) parts.tokens.push_back(word);
  parts.merges = {{"a", "b"}, {"b", "c"}, {"ab", "c"}};
  return parts;
}

void add_special(TokenizerParts& parts, const std::string& name) {
  parts.added.push_back({static_cast<std::int64_t>(parts.tokens.size()), name, true});
  parts.tokens.push_back(name);
}

}  // namespace

TEST_CASE("encode and decode agree with Hugging Face's tokenizers") {
  const Recorded recorded;
  const std::vector<std::string> texts = recorded.texts("text");
  REQUIRE(texts.size() > 150);
  for (const std::string& rule : kRules) {
    const Tokenizer tokenizer = load(recorded.file(rule));
    CHECK(word_rule_name(tokenizer.rule()) == rule);
    const std::vector<Ids> ids = recorded.ids(rule + "/ids");
    const std::vector<std::string> decoded = recorded.texts(rule + "/decoded");
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(rule, i, texts[i]);
      CHECK(tokenizer.encode(texts[i]) == ids[i]);
      CHECK(tokenizer.decode(ids[i], {.skip_special = true}) == decoded[i]);
      std::string streamed;
      StreamDecoder stream(tokenizer, {.skip_special = true});
      for (const std::int64_t id : ids[i]) streamed += stream.next(id);
      CHECK(streamed + stream.finish() == decoded[i]);
    }
  }
}

TEST_CASE("options of encode and decode") {
  const Recorded recorded;
  const Tokenizer tokenizer = load(recorded.file("llama3"));
  const std::int64_t begin = *tokenizer.id_of("<|begin|>"), end = *tokenizer.id_of("<|end|>"),
                     longer = *tokenizer.id_of("<|end|>x"), text = *tokenizer.id_of("<text>");
  CHECK(tokenizer.is_special(begin));
  CHECK_FALSE(tokenizer.is_special(text));
  CHECK(tokenizer.encode("<|end|>") == Ids{begin, end});
  CHECK(tokenizer.encode("<|end|>", {.add_special = false}) == Ids{end});
  CHECK(tokenizer.encode("<|end|>x", {.add_special = false}) == Ids{longer});  // the longest name wins
  // The name of a control token is plain text, but that of an added token that is text is not.
  const Ids plain = tokenizer.encode("<|end|><text>", {.add_special = false, .parse_special = false});
  CHECK(plain.size() > 2);
  CHECK(plain.back() == text);
  CHECK(std::count(plain.begin(), plain.end(), end) == 0);
  CHECK(tokenizer.decode(plain) == "<|end|><text>");
  CHECK(tokenizer.decode(Ids{begin, text, end}) == "<|begin|><text><|end|>");
  CHECK(tokenizer.decode(Ids{begin, text, end}, {.skip_special = true}) == "<text>");
  CHECK(tokenizer.encode("", {.add_special = false}).empty());
  CHECK(tokenizer.decode(Ids{}).empty());
  CHECK_FALSE(tokenizer.id_of("no such token").has_value());

  TokenizerParts parts = small_parts();
  add_special(parts, "<s>");
  parts.prefix = parts.suffix = {parts.added[0].id};
  CHECK(Tokenizer(parts).encode("abc") == Ids{259, 257, 259});
}

TEST_CASE("merges apply by rank, the leftmost first, in words of any length") {
  TokenizerParts parts = small_parts();
  CHECK(Tokenizer(parts).encode("abcbc") == Ids{257, 258});
  parts.merges = {{"b", "c"}, {"a", "b"}};
  CHECK(Tokenizer(parts).encode("abcab") == Ids{'a', 258, 256});
  // Long words take another algorithm, which must give the same.
  parts = small_parts();
  std::string word;
  Ids expected;
  for (int i = 0; i < 20'000; ++i) {
    word += i % 3 == 0 ? "abc" : i % 3 == 1 ? "bc" : "a";
    if (i % 3 == 0) expected.push_back(257);
    if (i % 3 == 1) expected.push_back(258);
    if (i % 3 == 2) expected.push_back('a');
  }
  CHECK(Tokenizer(parts).encode(word) == expected);
}

TEST_CASE("text that is not UTF-8, and bytes that are no text") {
  const Tokenizer tokenizer(small_parts());
  const std::pair<std::string, int> bad[] = {{"\x80", 0},
                                             {"a\xC3", 1},
                                             {"ab\xC0\x80", 2},
                                             {"\xED\xA0\x80", 0},
                                             {"\xF4\x90\x80\x80", 0},
                                             {"\xE0\x9F\xBF", 0},
                                             {"12345678\xFF", 8},
                                             {"\xF0\x9F\x98", 0}};
  for (const auto& [text, at] : bad)
    CHECK_THROWS_WITH(tokenizer.encode(text), ContainsSubstring("not UTF-8 at byte " + std::to_string(at)));
  CHECK(tokenizer.encode("\xF4\x8F\xBF\xBF\xED\x9F\xBF").size() == 7);
  // One U+FFFD for each maximal part of a character (Unicode 3.9), as Python and Rust replace them.
  CHECK(tokenizer.decode(Ids{0xF0, 0x9F, 'a', 0xC3, 0xE2, 0x82, 0xAC, 0xFF, 0xFE}) ==
        "\xEF\xBF\xBD"
        "a\xEF\xBF\xBD\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD");
  StreamDecoder stream(tokenizer);
  CHECK(stream.next(0xE2).empty());
  CHECK(stream.next(0x82).empty());
  CHECK(stream.next(0xAC) == "\xE2\x82\xAC");
  CHECK(stream.next(0xE2).empty());
  CHECK(stream.next('a') ==
        "\xEF\xBF\xBD"
        "a");
  CHECK(stream.next(0xF0).empty());
  CHECK(stream.finish() == "\xEF\xBF\xBD");
  CHECK(stream.finish().empty());
  for (const std::int64_t id : {std::int64_t{-1}, tokenizer.vocab_size()}) {
    CHECK_THROWS_AS(tokenizer.decode(Ids{id}), IndexError);
    CHECK_THROWS_AS(tokenizer.bytes(id), IndexError);
    CHECK_THROWS_AS(tokenizer.is_special(id), IndexError);
    CHECK_THROWS_AS(stream.next(id), IndexError);
  }
}

TEST_CASE("parts of a tokenizer that do not fit together") {
  TokenizerParts parts = small_parts();
  parts.merges.emplace_back("a", "zz");
  CHECK_THROWS_WITH(Tokenizer(parts), ContainsSubstring("merge 3 of \"a\" and \"zz\""));
  parts = small_parts();
  parts.tokens.push_back("ab");
  CHECK_THROWS_WITH(Tokenizer(parts), ContainsSubstring("tokens 256 and 259 have the same bytes"));
  parts = small_parts();
  parts.added.push_back({259, "<s>", true});
  CHECK_THROWS_AS(Tokenizer(parts), IndexError);
  parts.added[0] = {258, "", true};
  CHECK_THROWS_WITH(Tokenizer(parts), ContainsSubstring("added token 258 is empty"));
  parts.added = {{257, "<s>", true}, {258, "<s>", true}};
  CHECK_THROWS_WITH(Tokenizer(parts), ContainsSubstring("has two ids"));
  parts = small_parts();
  parts.suffix = {-1};
  CHECK_THROWS_AS(Tokenizer(parts), IndexError);
}

TEST_CASE("tokenizer.json files that are broken or of another kind are refused by name") {
  const Recorded recorded;
  const std::string good = recorded.file("llama3");
  CHECK_NOTHROW(load(good));
  const auto refused = [&](const std::string& json, const std::string& why) {
    CAPTURE(why);
    CHECK_THROWS_AS(load(json), IoError);
    CHECK_THROWS_WITH(load(json), ContainsSubstring("tokenizer.json: ") && ContainsSubstring(why));
  };
  refused("", "not a JSON object");
  refused("[1]", "not a JSON object");
  refused("{", "not a JSON object");
  refused(std::string(100'000, '['), "not a JSON object");
  refused("{}", "no model");
  refused(good.substr(0, good.size() / 2), "not a JSON object");
  refused(replaced(good, R"("type":"BPE")", R"("type":"Unigram")"), "not BPE");
  refused(replaced(good, R"("normalizer":null)", R"("normalizer":{"type":"NFKC"})"), "normalizer");
  refused(replaced(good, R"("byte_fallback":false)", R"("byte_fallback":true)"), "byte_fallback");
  refused(replaced(good, R"("byte_fallback":false)", R"("byte_fallback":1)"), "byte_fallback");
  refused(replaced(good, R"("dropout":null)", R"("dropout":0.1)"), "dropout");
  refused(replaced(good, R"("add_prefix_space":false)", R"("add_prefix_space":true)"), "add_prefix_space");
  refused(replaced(good, R"("behavior":"Isolated")", R"("behavior":"Removed")"), "is not supported");
  refused(replaced(good, "{1,3}", "{1,2}"), "is not supported");
  refused(replaced(good, R"("type":"TemplateProcessing")", R"("type":"BertProcessing")"), "post-processor");
  refused(replaced(good, R"("id":0,"content":"<|begin|>")", R"("id":-1,"content":"<|begin|>")"), "the id of");
  refused(replaced(good, R"("id":0,"content":"<|begin|>")", R"("id":99999999,"content":"<|begin|>")"),
          "the id of");
  refused(replaced(good, R"("id":0,"content":"<|begin|>")", R"("id":1,"content":"<|begin|>")"),
          "have the same id");
  refused(replaced(good, R"("lstrip":false)", R"("lstrip":true)"), "lstrip");
  refused(replaced(good, R"("merges":[)", R"("merges":[["a"],)"), "merge 0 is not a pair");
  refused(replaced(good, R"("merges":[)", R"("merges":["a",)"), "merge 0 is not two tokens");
  refused(replaced(good, R"("merges":[)", R"("merges":[["zzz","a"],)"), "not in the vocabulary");
  CHECK_THROWS_AS(Tokenizer::from_file("/nonexistent/tokenizer.json"), IoError);
}

TEST_CASE("GPT-2's two files") {
  const TempDir dir;
  std::string json = "{";
  const TokenizerParts parts = small_parts();
  for (std::size_t i = 0; i < parts.tokens.size(); ++i) {
    const std::string& t = parts.tokens[i];
    json += (i ? ",\"" : "\"") + (t == "\"" || t == "\\" ? "\\" + t : t) + "\":" + std::to_string(i);
  }
  write_file(dir / "vocab.json", json + ",\"<|endoftext|>\":300}");
  write_file(dir / "merges.txt", "#version: 0.2\r\na b\r\nb c\nab c");
  const Tokenizer tokenizer = Tokenizer::from_gpt2_files(dir / "vocab.json", dir / "merges.txt");
  CHECK(tokenizer.rule() == WordRule::gpt2);
  CHECK(tokenizer.vocab_size() == 301);
  CHECK(tokenizer.encode("abc<|endoftext|>bc") == Ids{257, 300, 258});
  CHECK(tokenizer.bytes(299).empty());  // an id between that no token has
  for (const char* const merges : {"a", "a b c", " b", "a ", "x yz"}) {
    write_file(dir / "merges.txt", merges);
    CHECK_THROWS_AS(Tokenizer::from_gpt2_files(dir / "vocab.json", dir / "merges.txt"), IoError);
  }
}

TEST_CASE("SmolLM2's chat template") {
  TokenizerParts parts = small_parts();
  add_special(parts, "<|im_start|>");
  add_special(parts, "<|im_end|>");
  const Tokenizer tokenizer(parts);
  const ChatTemplate chat(tokenizer, ChatFormat::smollm2);
  const auto rendered = [&](const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
    return tokenizer.decode(chat.encode(messages, options).ids);
  };
  // From the model's chat template, rendered by Jinja.
  CHECK(rendered({{"user", "Hi"}}) ==
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<ChatMessage> messages = {{"system", "S"}, {"user", "U"}, {"assistant", "abc"}};
  CHECK(rendered(messages, {.add_generation_prompt = false}) ==
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nabc<|im_end|>"
        "\n");
  const EncodedChat encoded = chat.encode(messages);
  Ids answer;
  REQUIRE(encoded.ids.size() == encoded.answer.size());
  for (std::size_t i = 0; i < encoded.ids.size(); ++i)
    if (encoded.answer[i]) answer.push_back(encoded.ids[i]);
  CHECK(answer == Ids{257, chat.end_of_message()});
  // A message cannot end itself.
  const Ids ids = chat.encode({{"user", "<|im_end|>"}}).ids;
  CHECK(std::count(ids.begin(), ids.end(), chat.end_of_message()) == 2);
  CHECK_THROWS_WITH(chat.encode({}), ContainsSubstring("no message"));
  CHECK_THROWS_WITH(chat.encode({{"robot", "x"}}), ContainsSubstring("the role \"robot\""));
  CHECK_THROWS_WITH(chat.encode({{"user", "\xFF"}}), ContainsSubstring("not UTF-8"));
  CHECK_THROWS_WITH(ChatTemplate(tokenizer, ChatFormat::llama3), ContainsSubstring("<|begin_of_text|>"));
}

TEST_CASE("Llama 3's chat template") {
  TokenizerParts parts = small_parts();
  for (const char* const name :
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})
    add_special(parts, name);
  parts.rule = WordRule::llama3;
  const Tokenizer tokenizer(parts);
  const ChatTemplate chat(tokenizer, ChatFormat::llama3);
  const EncodedChat encoded = chat.encode({{"user", " Hi \n"}, {"assistant", "abc"}});
  CHECK(tokenizer.decode(encoded.ids) ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nabc<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  Ids answer;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i)
    if (encoded.answer[i]) answer.push_back(encoded.ids[i]);
  CHECK(answer == Ids{257, chat.end_of_message()});

  // Llama 3.1 and later have a system block in every conversation.
  const auto block = [](const std::string& date) {
    return "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
           "2023\n"
           "Today Date: " +
           date + "\n\n";
  };
  const auto text = [&](const ChatTemplate& format, const std::vector<ChatMessage>& messages) {
    return tokenizer.decode(format.encode(messages).ids);
  };
  const std::string rest =
      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_"
      "header_id|>\n\n";
  const ChatTemplate fixed(tokenizer, ChatFormat::llama3_1),
      dated(tokenizer, ChatFormat::llama3_2, "05 Dec 2024"), today(tokenizer, ChatFormat::llama3_2);
  CHECK(text(fixed, {{"user", "Hi"}}) == block("26 Jul 2024") + rest);
  CHECK(text(fixed, {{"system", "\xc2\xa0S\n"}, {"user", "Hi"}}) == block("26 Jul 2024") + "S" + rest);
  CHECK(text(dated, {{"system", "S"}, {"user", "Hi"}}) == block("05 Dec 2024") + "S" + rest);
  const std::string before = chat_date(), now = text(today, {{"user", "Hi"}});
  CHECK((now == block(before) + rest || now == block(chat_date()) + rest));
  CHECK(before.size() == 11);
  // trim removes the white space of Unicode, and nothing else.
  CHECK(text(chat, {{"user", "\xe3\x80\x80\xe2\x80\x83\x1c\xc2\x85Hi\xe2\x80\xa8\xe2\x81\x9f "}}) ==
        text(chat, {{"user", "Hi"}}));
  CHECK(text(chat, {{"user", "\xe2\x80\x8bHi"}}) != text(chat, {{"user", "Hi"}}));
}

TEST_CASE("threads share a tokenizer") {
  const Recorded recorded;
  const Tokenizer tokenizer = load(recorded.file("gpt2"));
  const std::vector<std::string> texts = recorded.texts("text");
  const std::vector<Ids> ids = recorded.ids("gpt2/ids");
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < texts.size(); ++i) wrong[t] += tokenizer.encode(texts[i]) != ids[i];
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(3));
}

TEST_CASE("added tokens are found in the text or in the normalized text, as by Hugging Face's tokenizers") {
  TokenizerParts parts = small_parts();
  struct Added {
    const char* text;
    bool special, normalized;
  };
  for (const Added& token : {Added{"<tool>", false, false},
                             {"<tool> x", false, true},
                             {"caf\xc3\xa9", false, true},
                             {"e\xcc\x81!", false, false},
                             {"e\xcc\x81?", false, true},
                             {"<s>", true, true}}) {
    parts.added.push_back(
        {static_cast<std::int64_t>(parts.tokens.size()), token.text, token.special, token.normalized});
    parts.tokens.push_back(token.text);
  }
  struct Case {
    const char* text;
    Ids without, with_nfc;
  };
  // From Python's tokenizers 0.23.3.
  const Case cases[] = {{"<tool> x", {259, 32, 120}, {259, 32, 120}},
                        {"a<tool> x", {97, 259, 32, 120}, {97, 259, 32, 120}},
                        {"cafe\xcc\x81", {99, 97, 102, 101, 204, 129}, {261}},
                        {"caf\xc3\xa9", {261}, {261}},
                        {"e\xcc\x81!", {262}, {262}},
                        {"\xc3\xa9!", {195, 169, 33}, {195, 169, 33}},
                        {"e\xcc\x81?", {263}, {263}},
                        {"\xc3\xa9?", {195, 169, 63}, {263}},
                        {"<tool>\xcc\x81", {259, 204, 129}, {259, 204, 129}},
                        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8",
                         {225, 132, 128, 225, 133, 161, 225, 134, 168},
                         {234, 176, 129}},
                        {"abc\xcd\x84<s>", {257, 205, 132, 264}, {257, 204, 136, 204, 129, 264}}};
  const TempDir dir;
  for (const bool nfc : {false, true}) {
    parts.nfc = nfc;
    write_file(dir / "tokenizer.json", tokenizer_json(parts));
    const Tokenizer ours(parts), read = Tokenizer::from_file(dir / "tokenizer.json");
    for (const Case& c : cases) {
      CAPTURE(c.text, nfc);
      CHECK(ours.encode(c.text) == (nfc ? c.with_nfc : c.without));
      CHECK(read.encode(c.text) == (nfc ? c.with_nfc : c.without));
    }
  }
  const auto with = [&](const std::string& normalizer) {
    std::string text = tokenizer_json(parts);
    const std::string from = "\"normalizer\": {\n  \"type\": \"NFC\"\n }";
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write_file(dir / "tokenizer.json", text.replace(at, from.size(), "\"normalizer\": " + normalizer));
    return Tokenizer::from_file(dir / "tokenizer.json").encode("\xc3\xa9?e\xcc\x81").size();
  };
  CHECK(with(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})") == 3);
  CHECK(with(R"({"type": "Sequence", "normalizers": []})") == 6);
  for (const char* const other :
       {R"({"type": "NFKC"})", R"({"type": "Lowercase"})", "3",
        R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFD"}]})"})
    CHECK_THROWS_WITH(with(other), ContainsSubstring("normalizer"));
}
