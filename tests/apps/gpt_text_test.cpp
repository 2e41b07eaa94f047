// `gpt generate`, `chat` and `evaluate`, and the parts that they consist of.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tapestry/apps/gpt/corpus.h"
#include "tapestry/apps/gpt/evaluation.h"
#include "tapestry/apps/gpt/sampling.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/data/tokenizer/bpe_trainer.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/models/generate.h"
#include "tapestry/nn/models/lora.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/apps/gpt_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tests;
using namespace tapestry;
namespace fs = std::filesystem;

TEST_CASE("gpt generate writes the words of nn::generate") {
  const TempDir folder;
  for (const std::string family : {"llama", "gpt2"}) {
    const std::string path = write_model_folder(folder / family, family);
    const auto model = nn::load_language_model(path);
    const data::Tokenizer tokenizer = data::Tokenizer::from_file(path + "/tokenizer.json");
    const std::vector<std::int64_t> prompt = tokenizer.encode("the cat");
    const auto expected = [&](const nn::SamplerOptions& options) {
      nn::Sampler sampler(options);
      return tokenizer.decode(nn::generate(*model, prompt, {.max_new_tokens = 12, .stop = {0}}, sampler),
                              {.skip_special = true}) +
             "\n";
    };
    const auto text = [&](std::vector<std::string> more, const std::string& input = {}) {
      more.insert(more.begin(), {"generate", "--model", path});
      if (more.back() != "1") more.insert(more.end(), {"--max-tokens", "12"});
      const Ended ended = gpt(more, input);
      INFO(ended.err);
      CHECK(ended.status == 0);
      return ended.out;
    };
    const std::string greedy = expected({});
    CHECK(text({"--prompt", "the cat"}) == greedy);
    write_file(folder / "prompt", "the cat");
    CHECK(text({}, folder / "prompt") == greedy);
    CHECK(text({"--prompt", "the cat", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.95", "--min-p",
                "0.001", "--repetition-penalty", "1.1", "--seed", "5"}) ==
          expected({.temperature = 0.9,
                    .top_k = 50,
                    .top_p = 0.95,
                    .min_p = 0.001,
                    .repetition_penalty = 1.1,
                    .seed = 5}));
    CHECK(text({"--prompt", "", "--max-tokens", "1"}).size() > 0);  // begins with <|endoftext|>
    CHECK_THAT(gpt({"generate", "--model", path, "--prompt", std::string(400, 'q')}).err,
               ContainsSubstring("the context of the model has 96; shorten the prompt"));
    write_file(folder / "latin1", "caf\xe9");
    CHECK_THAT(gpt({"generate", "--model", path}, folder / "latin1").err,
               ContainsSubstring("UTF-8 at byte 3"));
  }
}

TEST_CASE("gpt uses packed weights and adapters as the library does") {
  const TempDir folder;
  const std::string base = write_model_folder(folder / "model"), q8 = folder / "q8.gguf",
                    adapter = folder / "adapter";
  REQUIRE(gpt({"convert", "--model", base, "--out", q8, "--type", "q8_0"}).status == 0);
  {
    const auto model = nn::load_language_model(base);
    manual_seed(5);
    nn::add_lora(*model, {.r = 2, .lora_alpha = 8});
    for (const auto& [path, layer] : nn::lora_adapters(*model)) nn::init::normal_(layer->B, 0, 0.5);
    nn::save_lora(adapter, *model);
  }
  write_file(folder / "text", "the cat sees a bird. a dog eats the bone!");
  write_file(folder / "lines", "the cat\n");
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(base + "/tokenizer.json");
  const auto library = [&](bool packed, bool adapted) {
    const auto model = nn::load_language_model(q8, {.packed = packed});
    if (adapted) nn::load_lora(*model, adapter);
    return tokenizer.decode(
               nn::generate(*model, tokenizer.encode("the cat"), {.max_new_tokens = 10, .stop = {0}}),
               {.skip_special = true}) +
           "\n";
  };
  const auto program = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", q8, "--prompt", "the cat", "--max-tokens", "10"});
    const Ended ended = gpt(more);
    INFO(ended.err);
    CHECK(ended.status == 0);
    return ended.out;
  };
  CHECK(program({}) == library(true, false));
  CHECK(program({"--weights", "f32"}) == library(false, false));
  CHECK(program({"--adapter", adapter}) == library(true, true));
  CHECK(library(true, true) != library(true, false));
  CHECK(gpt({"generate", "--model", q8, "--prompt", "a", "--weights", "f16"}).status == 2);
  CHECK_THAT(gpt({"generate", "--model", q8, "--prompt", "a", "--adapter", folder / "none"}).err,
             ContainsSubstring("none"));

  // chat and evaluate read the same model.
  const auto measured = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"evaluate", "--text", folder / "text"});
    const std::string out = gpt(more).out;
    const std::size_t at = out.find("loss ");
    REQUIRE(at != std::string::npos);
    return std::stod(out.substr(at + 5));
  };
  const double packed = measured({"--model", q8}), f32 = measured({"--model", q8, "--weights", "f32"}),
               adapted = measured({"--model", q8, "--weights", "f32", "--adapter", adapter});
  CHECK(std::abs(packed - f32) < 0.02);
  CHECK(std::abs(adapted - f32) > 2e-4);
  for (const char* weights : {"packed", "f32"}) {
    const Ended chat = gpt({"chat", "--model", q8, "--weights", weights, "--system", "x", "--adapter",
                            adapter, "--template", "smollm2", "--max-tokens", "4", "--temperature", "0"},
                           folder / "lines");
    INFO(chat.err);
    CHECK(chat.status == 0);
    CHECK(chat.err == "");
  }

  // A merged adapter gives the loss of the adapter beside its base.
  REQUIRE(gpt({"convert", "--model", q8, "--adapter", adapter, "--out", folder / "merged"}).status == 0);
  CHECK(std::abs(measured({"--model", folder / "merged"}) - adapted) < 1e-4);
  CHECK(gpt({"convert", "--model", q8, "--adapter", folder / "none", "--out", folder / "bad"}).status == 1);
  CHECK_FALSE(fs::exists(folder / "bad"));
}

TEST_CASE("a text stream writes whole characters, and ends before a stop string") {
  const data::Tokenizer bytes(data::train_bpe("", {.vocab_size = 256, .special = {}}));
  const auto stream = [&](const std::string& text, std::vector<std::string> stop) {
    std::string all, calls;
    bool more = true;
    apps::gpt::TextStream out(bytes, std::move(stop),
                              [&](const std::string& part) { all += part, calls += part + "|"; });
    for (std::size_t i = 0; i < text.size() && more; ++i) more = out.next(*bytes.id_of(text.substr(i, 1)));
    out.finish();
    CHECK(out.text() == all);
    return calls;
  };
  CHECK(stream("a\xc3\xa9z", {}) == "a|\xc3\xa9|z|");
  CHECK(stream("a\xc3", {}) == "a|\xef\xbf\xbd|");
  CHECK(stream("one END two", {"END"}) == "o|n|e| |");
  CHECK(stream("one EN", {"END"}) == "o|n|e| |EN|");
  CHECK(stream("EEND", {"END"}) == "E|");
  CHECK(stream("ab\ncd", {"xyz", "\n"}) == "a|b|");
}

TEST_CASE("gpt chat keeps a conversation, and forgets its oldest turns") {
  const TempDir folder;
  const std::string path = write_model_folder(folder / "model", "llama", 160);
  const auto chat = [&](const std::string& lines, std::vector<std::string> more = {}) {
    write_file(folder / "lines", lines);
    more.insert(more.begin(), {"chat", "--model", path, "--max-tokens", "6", "--temperature", "0", "--system",
                               "x", "--stats"});
    return gpt(more, folder / "lines");
  };
  const Ended two = chat("the cat\na dog\n");
  INFO(two.err << two.out);
  CHECK(two.status == 0);
  CHECK_THAT(two.err, ContainsSubstring(" 0 of them from the cache"));
  // The second turn computes what is new alone.
  const std::size_t second = two.err.find('\n') + 1;
  CHECK(std::stoi(two.err.substr(two.err.find(", ", second) + 2)) > 10);
  const Ended again = chat("the cat\n/reset\nthe cat\n/quit\nnever read\n");
  CHECK(again.status == 0);
  const std::size_t answer_end = again.out.find("(a new conversation)");
  REQUIRE(answer_end != std::string::npos);
  CHECK(again.out.substr(answer_end + 21) ==
        again.out.substr(0, answer_end));  // the same question, the same answer
  CHECK_THAT(chat("the cat sees a bird. the cat sees a bird.\nthe cat sees a bird. the cat sees a dog.\n"
                  "a dog eats the bone! a dog eats the bone!\na dog eats the bone! the cat sees a dog.\n")
                 .out,
             ContainsSubstring("forgotten)"));
  const Ended large = chat(std::string(400, 'q') + "\nthe cat\n");
  CHECK(large.status == 0);
  CHECK_THAT(large.err, ContainsSubstring("there is room for") && ContainsSubstring("from the cache"));
  CHECK_THAT(chat("caf\xe9\n").err, ContainsSubstring("UTF-8"));

  // A smaller context forgets earlier.
  CHECK_THAT(chat("the cat\na dog\na bird\n", {"--context", "60"}).out, ContainsSubstring("forgotten)"));
  CHECK_THAT(chat("the cat\n", {"--context", "161"}).err,
             ContainsSubstring("the context of the model has 160"));

  write_file(path + "/tokenizer_config.json",
             R"({"chat_template": "{{ '<|im_start|>' + messages[0].role }}"})");
  CHECK_THAT(chat("the cat\n").err, ContainsSubstring("where that of smollm2 has"));
  fs::remove(path + "/tokenizer_config.json");
  const Ended plain = chat("the cat\n");
  CHECK(plain.status == 1);
  CHECK_THAT(plain.err, ContainsSubstring("no chat template"));
  CHECK(chat("the cat\n", {"--template", "smollm2"}).status == 0);
  CHECK_THAT(chat("the cat\n", {"--template", "llama3"}).err,
             ContainsSubstring("<|begin_of_text|>") || ContainsSubstring("no control token"));
}

TEST_CASE("gpt evaluate measures each token once") {
  const TempDir folder;
  const std::string path = write_model_folder(folder / "model", "llama", 32);
  const std::string text = "the cat sees a bird. a dog eats the bone! the cat sees a dog. the end.";
  write_file(folder / "text", text);
  const data::Tokenizer tokenizer = data::Tokenizer::from_file(path + "/tokenizer.json");
  const std::vector<std::int64_t> ids = tokenizer.encode(text);
  REQUIRE(ids.size() > 20);
  const auto model = nn::load_language_model(path);
  const NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(ids.size());
  // Token i is predicted from the tokens from `begin` on, in the first window that ends behind it.
  const auto expected_loss = [&](std::int64_t context, std::int64_t stride) {
    double nats = 0;
    for (std::int64_t i = 1; i < size; ++i) {
      const std::int64_t window = std::max<std::int64_t>(0, (i - context) / stride + (i >= context));
      // Without an overlap, one more token stands before the first.
      const std::int64_t begin = window * stride - (window > 0 && stride == context);
      const std::vector<std::int64_t> before(ids.begin() + begin, ids.begin() + i);
      const Tensor logits = (*model)(tensor(before, {1, i - begin}), {.last = true});
      nats -= log_softmax(logits.flatten(), 0)[ids[static_cast<std::size_t>(i)]].item();
    }
    return nats / static_cast<double>(size - 1);
  };
  for (const auto& [context, stride] :
       {std::pair{12, 5}, {12, 1}, {12, 11}, {12, 12}, {4, 4}, {1, 1}, {32, 32}}) {
    const Ended ended = gpt({"evaluate", "--model", path, "--text", folder / "text", "--context",
                             std::to_string(context), "--stride", std::to_string(stride)});
    CAPTURE(context, stride, ended.err, ended.out);
    REQUIRE(ended.status == 0);
    CHECK_THAT(ended.out, ContainsSubstring("tokens " + std::to_string(size - 1) + "  loss ") &&
                              ContainsSubstring("perplexity") && ContainsSubstring("bits per byte"));
    // The program prints six digits of a sum of f32.
    const double loss = std::stod(ended.out.substr(ended.out.find("loss ") + 5));
    CHECK(std::abs(loss - expected_loss(context, stride)) < 5e-6);
  }
  CHECK_THAT(gpt({"evaluate", "--model", path, "--text", folder / "text", "--context", "33"}).err,
             ContainsSubstring("the context of the model has 32 tokens"));
  CHECK_THAT(
      gpt({"evaluate", "--model", path, "--text", folder / "text", "--context", "8", "--stride", "9"}).err,
      ContainsSubstring("leave tokens out"));
  write_file(folder / "one", "a");
  CHECK_THAT(gpt({"evaluate", "--model", path, "--text", folder / "one"}).err,
             ContainsSubstring("two are needed"));
  for (const std::string none : {"none", "model"})
    CHECK_THAT(gpt({"evaluate", "--model", path, "--text", folder / none}).err,
               ContainsSubstring("[gpt evaluate] " + (folder / none)));
  write_file(folder / "latin1", "caf\xe9 cats");
  CHECK_THAT(gpt({"evaluate", "--model", path, "--text", folder / "latin1"}).err,
             ContainsSubstring("UTF-8 at byte 3"));
}

TEST_CASE("windows of a text cover it once in a pass, and keep documents apart") {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 103; ++i) tokens.push_back(i);
  apps::gpt::Windows windows(tokens, 10, -1, 7), same(tokens, 10, -1, 7), other(tokens, 10, -1, 8);
  CHECK(windows.size() == 9);
  for (const std::int64_t pass : {0, 1, 5}) {
    const apps::gpt::Batch batch = windows.batch(pass * 9, 9);
    CHECK(equal(batch.targets, batch.ids + 1));
    CHECK_FALSE(batch.documents.defined());
    std::vector<std::int64_t> ids(batch.ids.data<std::int64_t>(), batch.ids.data<std::int64_t>() + 90);
    std::sort(ids.begin(), ids.end());
    for (std::size_t i = 1; i < ids.size(); ++i) CHECK(ids[i] == ids[i - 1] + 1);
  }
  CHECK(equal(windows.batch(20, 4).ids, same.batch(20, 4).ids));
  CHECK_FALSE(equal(windows.batch(0, 9).ids, other.batch(0, 9).ids));
  CHECK(equal(windows.in_order(2, 1).ids, arange(20, 30).reshape({1, 10}).to(DType::i64)));
  CHECK_THROWS_WITH(apps::gpt::Windows(tokens, 103, -1, 1), ContainsSubstring("smaller --context"));

  const std::vector<std::int32_t> documents = {9, 1, 2, 9, 9, 3, 4, 5, 6};
  const apps::gpt::Windows apart(documents, 7, 9, 1);
  const apps::gpt::Batch batch = apart.in_order(0, 1);
  CHECK(equal(batch.documents, tensor({0, 0, 0, 1, 2, 2, 2}).reshape({1, 7}).to(DType::i64)));
}
