// Tapestry's side of tools/bench_generate and tools/compare_logits. The first argument is the number of
// threads; TAPESTRY_BENCH_MODEL is a GGUF file.
//
// `bench_generate THREADS` takes turns (turns.h). Work is `prefill` (a prompt of TAPESTRY_BENCH_PROMPT
// tokens, 512 unless set) and `decode` (32 words after a prompt of 32 tokens), from packed weights; with the
// suffix `_f32`, from the same weights as f32.
//
// `bench_generate THREADS compare f32|packed` reads lines from standard input and answers each:
//   logits FILE ID...       writes the logits of all tokens to FILE as f32, and answers with their number
//   greedy N ID...          the next N most likely words
//   perplexity FILE N       exp of the mean loss of the first N tokens of a text, in windows of 512
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;

namespace {

using Ids = std::vector<std::int64_t>;

std::unique_ptr<nn::Llama> load(const nn::ModelWeights& weights, bool packed) {
  check(weights.gguf() != nullptr, "[bench_generate] TAPESTRY_BENCH_MODEL is no GGUF file");
  auto model = [&] {
    const DeviceGuard guard("meta");
    return std::make_unique<nn::Llama>(nn::LlamaConfig::from_gguf(*weights.gguf()));
  }();
  if (packed) {
    nn::load_packed_weights(*model, weights);
  } else {
    model->to_empty(kCPU);
    nn::load_weights(*model, weights);
  }
  model->eval();
  return model;
}

// Tokens that the other sides use too.
Tensor tokens(std::int64_t count, std::int64_t words) {
  Ids ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back((i * 7919 + 13) % words);
  return tensor(ids, {1, count});
}

int take_turns(const nn::ModelWeights& weights) {
  const auto packed = load(weights, true), dense = load(weights, false);
  const char* const asked = std::getenv("TAPESTRY_BENCH_PROMPT");
  const std::int64_t length = asked ? std::atoll(asked) : 512;
  std::map<std::string, std::function<void()>> work;
  for (nn::Llama* model : {packed.get(), dense.get()}) {
    const std::string suffix = model == packed.get() ? "" : "_f32";
    const Tensor prompt = tokens(length, model->vocab_size()), start = tokens(32, model->vocab_size());
    const auto cache = std::make_shared<nn::KvCache>(model->make_cache(std::max<std::int64_t>(length, 96)));
    work["prefill" + suffix] = [=] {
      cache->truncate(0);
      (*model)(prompt, {.cache = cache.get(), .last = true});
    };
    const auto chat = std::make_shared<nn::KvCache>(model->make_cache(96));
    (*model)(start, {.cache = chat.get(), .last = true});
    work["decode" + suffix] = [=] {
      chat->truncate(32);
      nn::Sampler sampler;
      std::int64_t word = 42;
      for (int i = 0; i < 32; ++i)
        word = sampler((*model)(tensor(Ids{word}, {1, 1}), {.cache = chat.get(), .last = true}).flatten());
    };
  }
  return bench::take_turns(work);
}

// The mean loss of windows of 512 tokens, each without the ones before.
double perplexity(nn::Llama& model, const nn::ModelWeights& weights, const std::string& path,
                  std::int64_t count) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Ids ids = Tokenizer::from_gguf(weights.gguf()->metadata()).encode(text);
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(count)));
  constexpr std::int64_t kWindow = 512;
  double sum = 0;
  std::int64_t scored = 0;
  for (std::int64_t at = 0; at + kWindow < static_cast<std::int64_t>(ids.size()); at += kWindow) {
    const Tensor window = tensor(Ids(ids.begin() + at, ids.begin() + at + kWindow + 1), {1, kWindow + 1});
    const Tensor logits = model(window.narrow(1, 0, kWindow));
    const Tensor loss =
        cross_entropy(logits.reshape({kWindow, -1}), window.narrow(1, 1, kWindow).reshape({-1}));
    sum += loss.item<double>() * kWindow;
    scored += kWindow;
  }
  check(scored > 0, "[bench_generate] the text has fewer than 513 tokens");
  return std::exp(sum / static_cast<double>(scored));
}

int compare(const nn::ModelWeights& weights, bool packed) {
  const auto model = load(weights, packed);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command, file;
    in >> command;
    const auto rest = [&] { return Ids(std::istream_iterator<std::int64_t>(in), {}); };
    if (command == "logits") {
      in >> file;
      const Ids ids = rest();
      const Tensor y = (*model)(tensor(ids, {1, static_cast<std::int64_t>(ids.size())})).contiguous();
      std::ofstream(file, std::ios::binary)
          .write(static_cast<const char*>(y.raw_data()), static_cast<std::streamsize>(y.nbytes()));
      std::cout << y.numel() << std::endl;
    } else if (command == "greedy") {
      std::int64_t count = 0;
      in >> count;
      for (const std::int64_t id : nn::generate(*model, rest(), {.max_new_tokens = count}))
        std::cout << id << ' ';
      std::cout << std::endl;
    } else if (command == "perplexity") {
      std::int64_t count = 0;
      in >> file >> count;
      std::cout << perplexity(*model, weights, file, count) << std::endl;
    } else {
      std::cerr << "unknown command " << command << '\n';
      return 2;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const path = std::getenv("TAPESTRY_BENCH_MODEL");
  if (argc < 2 || !path) {
    std::cerr << "usage: TAPESTRY_BENCH_MODEL=FILE.gguf bench_generate THREADS [compare f32|packed]\n";
    return 2;
  }
  set_num_threads(std::atoi(argv[1]));
  const NoGradGuard no_grad;
  std::cout.precision(10);
  try {
    const nn::ModelWeights weights(path);
    if (argc == 4 && std::string(argv[2]) == "compare")
      return compare(weights, std::string(argv[3]) == "packed");
    return take_turns(weights);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
