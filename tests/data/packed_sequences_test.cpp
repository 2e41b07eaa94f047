// Conversations, text and files of tokens as documents, and the sequences that they are packed into.
#include "tapestry/data/text/packed_sequences.h"

#include <cstring>

#include "tapestry/data/dataloader.h"
#include "tapestry/data/text/documents.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::data;
using tests::TempDir;
using tests::write_file;
using Ids = std::vector<std::int64_t>;

namespace {

// A token for each byte, and control tokens from 256 on.
TokenizerParts chat_parts() {
  TokenizerParts parts;
  for (int b = 0, next = 0x100; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int code = printable ? b : next++;
    std::string token;
    if (code < 0x80) token += static_cast<char>(code);
    else token += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    parts.tokens.push_back(token);
  }
  for (const char* const name : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) {
    parts.added.push_back({static_cast<std::int64_t>(parts.tokens.size()), name, true});
    parts.tokens.push_back(name);
  }
  return parts;
}
const Tokenizer& chat_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer(chat_parts());
  return tokenizer;
}
std::string answers(const EncodedChat& chat) {
  Ids ids;
  for (std::size_t i = 0; i < chat.ids.size(); ++i)
    if (chat.answer[i]) ids.push_back(chat.ids[i]);
  return chat_tokenizer().decode(ids);
}
Ids values(const Tensor& t) { return t.to_vector<std::int64_t>(); }
EncodedChat document(Ids ids, std::vector<bool> answer = {}) {
  if (answer.empty()) answer.assign(ids.size(), true);
  return {std::move(ids), std::move(answer)};
}

}  // namespace

TEST_CASE("conversations in JSON lines become tokens, and the loss counts the answers") {
  const TempDir dir;
  const ChatTemplate chat(chat_tokenizer(), ChatFormat::smollm2);
  write_file(dir / "c.jsonl",
             "\xEF\xBB\xBF{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
             "\"content\": \"U\"}, {\"role\": \"assistant\", \"content\": \"one\"}, {\"role\": \"user\", "
             "\"content\": \"V\"}, {\"role\": \"assistant\", \"content\": \"tw\\u00f6\"}], \"id\": 7}\r\n"
             "\n"
             "  \t\n"
             "{\"prompt\": \"P<|im_end|>\", \"completion\": \"C\"}");
  const std::vector<EncodedChat> chats = read_conversations(dir / "c.jsonl", chat);
  REQUIRE(chats.size() == 2);
  CHECK(answers(chats[0]) == "one<|im_end|>tw\u00f6<|im_end|>");
  CHECK(answers(chats[1]) == "C<|im_end|>");
  CHECK(chats[1].ids ==
        chat.encode({{"user", "P<|im_end|>"}, {"assistant", "C"}}, {.add_generation_prompt = false}).ids);
  const auto whole = read_conversations(dir / "c.jsonl", chat, {.whole_text = true});
  CHECK(answers(whole[0]) == chat_tokenizer().decode(whole[0].ids));

  write_file(dir / "p.jsonl", "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n");
  const std::vector<EncodedChat> plain = read_completions(dir / "p.jsonl", chat_tokenizer(), 258);
  CHECK(chat_tokenizer().decode(plain[0].ids) == "2+2=4<|endoftext|>");
  CHECK(answers(plain[0]) == "4<|endoftext|>");
  // The tokens that the tokenizer puts before a text stand before a prompt, too, and no answer counts them.
  TokenizerParts begins = chat_parts();
  begins.prefix = {258};
  const std::vector<EncodedChat> begun = read_completions(dir / "p.jsonl", Tokenizer(begins), 258);
  CHECK(chat_tokenizer().decode(begun[0].ids) == "<|endoftext|>2+2=4<|endoftext|>");
  CHECK(answers(begun[0]) == "4<|endoftext|>");
  CHECK_THROWS_WITH(read_completions(dir / "c.jsonl", chat_tokenizer(), 258),
                    ContainsSubstring("c.jsonl:1: has messages, and the model has no chat template"));
  CHECK_THROWS_WITH(read_completions(dir / "p.jsonl", chat_tokenizer(), 259), ContainsSubstring("token 259"));
}

TEST_CASE("bad lines of conversations are named by file and line") {
  const TempDir dir;
  const ChatTemplate chat(chat_tokenizer(), ChatFormat::smollm2);
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  const auto refuses = [&](const std::string& line, const std::string& message,
                           InstructionOptions options = {}) {
    write_file(dir / "c.jsonl", good + "\n" + line + "\n" + good);
    INFO(line);
    CHECK_THROWS_AS(read_conversations(dir / "c.jsonl", chat, options), IoError);
    CHECK_THROWS_WITH(read_conversations(dir / "c.jsonl", chat, options),
                      ContainsSubstring("c.jsonl:3: ") && ContainsSubstring(message));
  };
  refuses("{\"prompt\": \"a\xFF\", \"completion\": \"b\"}", "is not UTF-8 at byte 13");
  refuses("{\"prompt\": \"a\"", "is no JSON");
  refuses("[]", "is no JSON object");
  refuses(std::string(100'000, '['), "is no JSON");
  refuses("{\"text\": \"a\"}", "has neither \"messages\" nor \"prompt\"");
  refuses("{\"prompt\": \"a\", \"completion\": \"b\", \"messages\": []}", "has both \"messages\" and");
  refuses("{\"prompt\": \"a\"}", "\"completion\" is missing");
  refuses("{\"prompt\": \"a\", \"completion\": 4}", "\"completion\" is missing, or no text");
  refuses("{\"messages\": []}", "\"messages\" is no list, or empty");
  refuses("{\"messages\": [3]}", "message 0 is no JSON object");
  refuses("{\"messages\": [{\"role\": \"user\"}]}", "\"content\" is missing");
  refuses("{\"messages\": [{\"role\": \"ro\\u001bbot\", \"content\": \"a\"}]}",
          "message 0 has the unknown role \"ro?bot\"");
  refuses("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "has no answer");
  // The default system message and the headers have about a hundred bytes.
  const std::string longer = "{\"prompt\": \"a\", \"completion\": \"" + std::string(300, 'b') + "\"}";
  refuses(longer, "tokens, and the context has 200; shorten it", {.max_tokens = 200});
  write_file(dir / "c.jsonl", longer);
  const auto cut =
      read_conversations(dir / "c.jsonl", chat, {.max_tokens = 200, .too_long = TooLong::truncate});
  CHECK(cut[0].ids.size() == 200);
  CHECK(cut[0].answer.size() == 200);
  CHECK(answers(cut[0]).find("<|im_end|>") == std::string::npos);
  refuses("{\"prompt\": \"" + std::string(300, 'a') + "\", \"completion\": \"b\"}",
          "none of the first 200 belongs to an answer", {.max_tokens = 200, .too_long = TooLong::truncate});
  write_file(dir / "c.jsonl", " \n\n");
  CHECK_THROWS_WITH(read_conversations(dir / "c.jsonl", chat),
                    ContainsSubstring("c.jsonl: has no conversation"));
  CHECK_THROWS_AS(read_conversations(dir / "absent", chat), IoError);
  tests::for_mutations<IoError>(good + good, [&](const std::string& text) {
    write_file(dir / "c.jsonl", text);
    read_conversations(dir / "c.jsonl", chat);
  });
}

TEST_CASE("text files are cut into documents at their separator") {
  const Tokenizer& tokenizer = chat_tokenizer();
  const auto texts = [&](std::string_view text, const TextDocumentOptions& options = {}) {
    std::vector<std::string> out;
    for (const EncodedChat& d : text_documents(text, "t", tokenizer, options)) {
      CHECK(d.ids.size() == d.answer.size());
      out.push_back(tokenizer.decode(d.ids));
    }
    return out;
  };
  using Texts = std::vector<std::string>;
  CHECK(texts("one<|endoftext|>two\n<|endoftext|>\n<|endoftext|>") == Texts{"one", "two\n"});
  CHECK(texts("one\n\ntwo", {.separator = "\n\n", .begin = 258, .end = 257}) ==
        Texts{"<|endoftext|>one<|im_end|>", "<|endoftext|>two<|im_end|>"});
  CHECK(texts("a<|endoftext|>b", {.separator = ""}) == Texts{"a<|endoftext|>b"});
  CHECK(text_documents("<|im_end|>", "t", tokenizer)[0].ids.size() == 10);  // plain text
  CHECK_THROWS_WITH(texts("ab\ncd\xC3\x28"), ContainsSubstring("t:2: is not UTF-8 at byte 2 of the line"));
  CHECK_THROWS_WITH(texts("\xFF"), ContainsSubstring("t:1: is not UTF-8 at byte 0"));
  CHECK_THROWS_WITH(texts(" \n"), ContainsSubstring("t: has no text"));
  CHECK_THROWS_WITH(texts("a", {.end = 259}), ContainsSubstring("the token 259"));
  const TempDir dir;
  write_file(dir / "t", "xyz");
  CHECK(read_documents(dir / "t", tokenizer)[0].ids == Ids{'x', 'y', 'z'});
}

TEST_CASE("files of tokens of llm.c are read in both versions") {
  const TempDir dir;
  const auto file = [](std::int32_t magic, std::int32_t version, std::int32_t tokens, const Ids& ids,
                       int bytes) {
    std::string out(1024, '\0');
    const std::int32_t header[] = {magic, version, tokens};
    std::memcpy(out.data(), header, sizeof header);
    for (const std::int64_t id : ids)
      out.append(reinterpret_cast<const char*>(&id), static_cast<std::size_t>(bytes));
    return out;
  };
  const auto read = [&](const std::string& bytes, std::int64_t vocab_size = 0) {
    write_file(dir / "t.bin", bytes);
    return read_token_file(dir / "t.bin", 50256, vocab_size);
  };
  const Ids ids = {50256, 1, 2, 50256, 65535};
  const auto narrow = read(file(20240520, 1, 5, ids, 2));
  REQUIRE(narrow.size() == 2);
  CHECK(narrow[0].ids == Ids{50256, 1, 2});
  CHECK(narrow[1].ids == Ids{50256, 65535});
  CHECK(narrow[1].answer.size() == 2);
  const auto wide = read(file(20240801, 7, 3, {9, 128000, 50256}, 4));
  REQUIRE(wide.size() == 2);
  CHECK(wide[0].ids == Ids{9, 128000});
  CHECK_THROWS_WITH(read(file(20240520, 2, 5, ids, 2)),
                    ContainsSubstring("begins with 20240520 and version 2"));
  CHECK_THROWS_WITH(read(file(7, 1, 5, ids, 2)), ContainsSubstring("begins with 7"));
  CHECK_THROWS_WITH(read(file(20240520, 1, 6, ids, 2)), ContainsSubstring("says 6 tokens of 2 bytes"));
  CHECK_THROWS_WITH(read(file(20240520, 1, -5, ids, 2)), ContainsSubstring("says -5 tokens"));
  CHECK_THROWS_WITH(read("short"), ContainsSubstring("has 5 bytes"));
  CHECK_THROWS_WITH(read(file(20240520, 1, 5, ids, 2), 60000), ContainsSubstring("token 4 is 65535"));
}

TEST_CASE("whole documents are packed by best fit, and the rest of a sequence is padded") {
  // Documents of 4, 3, 0, 1, 2, 2 and 1 places in sequences of 6. The third of these goes to the sequence
  // with room for 2, and not to the one with room for 3.
  const std::vector<EncodedChat> documents = {document({1, 2, 3, 4, 5}),
                                              document({6, 7, 8, 9}, {false, false, true, false}),
                                              document({50}),
                                              document({10, 11}),
                                              document({12, 13, 14}),
                                              document({15, 16, 17}),
                                              document({20, 21})};
  const PackedSequences packed(documents, {.length = 6, .padding = 99});
  REQUIRE(packed.size() == 3);
  CHECK(packed.targets() == 4 + 1 + 1 + 2 + 2 + 1);
  const PackedSequence a = packed.get(0), b = packed.get(1), c = packed.get(2);
  CHECK(values(a.ids) == Ids{1, 2, 3, 4, 10, 20});
  CHECK(values(a.targets) == Ids{2, 3, 4, 5, 11, 21});
  CHECK(values(a.documents) == Ids{0, 0, 0, 0, 1, 2});
  CHECK(values(b.ids) == Ids{6, 7, 8, 12, 13, 99});
  CHECK(values(b.targets) == Ids{-100, 8, -100, 13, 14, -100});
  CHECK(values(b.documents) == Ids{0, 0, 0, 1, 1, 2});
  CHECK(values(c.ids) == Ids{15, 16, 99, 99, 99, 99});
  CHECK(values(c.targets) == Ids{16, 17, -100, -100, -100, -100});
  CHECK(values(c.documents) == Ids{0, 0, 1, 1, 1, 1});
  CHECK_THROWS_WITH(PackedSequences(documents, {.length = 3}), ContainsSubstring("document 0 has 5 tokens"));
  CHECK_THROWS_WITH(PackedSequences({}, {.length = 3}), ContainsSubstring("no token of the 0 documents"));
  CHECK_THROWS_WITH(PackedSequences({document({1, 2}, {true, false})}), ContainsSubstring("is a target"));
  CHECK_THROWS_WITH(PackedSequences({document({1, 2, 3}, {true})}),
                    ContainsSubstring("3 tokens and 1 marks"));
  CHECK_THROWS_WITH(PackedSequences({document({1, -2})}), ContainsSubstring("the id -2"));
  CHECK_THROWS_WITH(PackedSequences({document({1, 2})}, {.length = 0}), ContainsSubstring("length is 0"));
  CHECK_THROWS_AS(packed.get(3), IndexError);
}

TEST_CASE("split documents fill sequences without gaps") {
  const PackedSequences packed({document({1, 2, 3, 4, 5, 6, 7, 8}), document({11, 12, 13})},
                               {.length = 3, .split = true, .padding = 0});
  REQUIRE(packed.size() == 3);
  CHECK(values(packed.get(0).ids) == Ids{1, 2, 3});
  CHECK(values(packed.get(1).ids) == Ids{4, 5, 6});
  CHECK(values(packed.get(1).targets) == Ids{5, 6, 7});
  CHECK(values(packed.get(2).ids) == Ids{7, 11, 12});
  CHECK(values(packed.get(2).targets) == Ids{8, 12, 13});
  CHECK(values(packed.get(2).documents) == Ids{0, 1, 1});
}

TEST_CASE("a loader of packed sequences resumes at its position") {
  std::vector<EncodedChat> documents;
  for (std::int64_t i = 0; i < 40; ++i) documents.push_back(document({i, i + 1, i + 2}));
  const PackedSequences packed(documents, {.length = 4});
  const auto loader = [&] { return DataLoader(packed, {.batch_size = 3, .shuffle = true, .seed = 5}); };
  auto whole = loader(), first = loader(), second = loader();
  std::vector<Ids> expected, got;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (PackedSequence& batch : whole) {
      CHECK(batch.ids.dim() == 2);
      expected.push_back(values(batch.ids));
    }
  for (PackedSequence& batch : first) {
    got.push_back(values(batch.ids));
    if (got.size() == 4) break;
  }
  second.load_state(LoaderState::parse(first.state().str()));
  for (int epoch = 0; epoch < 2; ++epoch)
    for (PackedSequence& batch : second) got.push_back(values(batch.ids));
  CHECK(got == expected);
}
