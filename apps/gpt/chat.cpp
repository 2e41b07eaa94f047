// gpt chat: a conversation on the terminal.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/decoder.h"
#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/apps/gpt/sampling.h"
#include "tapestry/core/parallel.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

struct Options {
  ModelOptions model;
  std::string format, system;
  std::int64_t max_tokens = 512, context = 0;
  nn::SamplerOptions sampler{.temperature = 0.7, .top_p = 0.9};
  bool stats = false;
  int threads = 0;
};

// Lines of standard input, read without a library's buffer, so that poll() knows whether there is more, and a
// signal is noticed while the user thinks.
class Lines {
 public:
  explicit Lines(StopRequest& signals) : signals_(signals), terminal_(isatty(STDIN_FILENO) != 0) {}
  bool terminal() const { return terminal_; }
  // Nothing at the end of the input, or if the program must end.
  std::optional<std::string> next() {
    if (terminal_) write_now("\n> ");
    bool asked = false;  // whether the user was told that a second Ctrl-C ends the program
    while (true) {
      if (signals_.signal() != 0 && signals_.signal() != SIGINT) return std::nullopt;
      if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        signals_.clear(SIGINT);
        return line;
      }
      if (signals_.signal() == SIGINT && !asked) {
        asked = true;
        write_now("\n(Ctrl-C again ends the program, and so does /quit)\n> ");
      }
      pollfd in{STDIN_FILENO, POLLIN, 0};
      if (const int ready = poll(&in, 1, 50); ready == 0 || (ready < 0 && errno == EINTR)) continue;
      char part[4096];
      const ssize_t n = read(STDIN_FILENO, part, sizeof part);
      const int error = errno;
      if (n < 0 && (error == EINTR || error == EAGAIN)) continue;
      check<IoError>(n >= 0, "[gpt chat] cannot read standard input: ", std::strerror(error));
      if (n == 0) {
        if (buffer_.empty()) return std::nullopt;
        buffer_ += '\n';
      }
      buffer_.append(part, static_cast<std::size_t>(n));
    }
  }

 private:
  StopRequest& signals_;
  const bool terminal_;
  std::string buffer_;
};

std::optional<data::ChatFormat> format_of(const std::string& name) {
  using enum data::ChatFormat;
  for (const data::ChatFormat format : {smollm2, llama3, llama3_1, llama3_2})
    if (name == data::chat_format_name(format)) return format;
  return std::nullopt;
}

int run(const Options& o) {
  StopRequest signals;
  if (o.threads > 0) set_num_threads(o.threads);
  const Pretrained p = load_pretrained(o.model);
  const std::optional<data::ChatFormat> format = o.format.empty() ? p.chat : format_of(o.format);
  check(format || p.unknown_chat.empty(), "[gpt chat] the chat template of ", o.model.model,
        " is none of smollm2, llama3, llama3.1 and llama3.2: ", p.unknown_chat,
        "; name the --template that the model was tuned with");
  check(
      format.has_value(), "[gpt chat] ", o.model.model,
      " has no chat template, so it was not tuned for conversations; use gpt generate, or name a --template");
  const data::ChatTemplate chat(p.tokenizer, *format);
  const std::int64_t context = o.context > 0 ? o.context : p.model->context_length();
  check(context <= p.model->context_length(), "[gpt chat] --context is ", context,
        ", but the context of the model has ", p.model->context_length(), " tokens");
  // The longest conversation that leaves room for an answer.
  const std::int64_t most = context - std::min(o.max_tokens, context / 4) - 1;

  std::vector<data::ChatMessage> messages;
  const auto reset = [&] {
    messages.clear();
    if (!o.system.empty()) messages.push_back({"system", o.system});
  };
  reset();
  Decoder decoder(*p.model, context);
  nn::Sampler sampler(o.sampler);
  Lines lines(signals);
  if (lines.terminal()) write_now("/reset begins a new conversation, /quit ends. Ctrl-C stops an answer.\n");
  while (const std::optional<std::string> line = lines.next()) {
    if (*line == "/quit") return 0;
    if (*line == "/reset") {
      reset();
      write_now("(a new conversation)\n");
      continue;
    }
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    messages.push_back({"user", *line});
    std::vector<std::int64_t> ids;
    try {
      const auto tokens = [&] {
        return ids = chat.encode(messages).ids, static_cast<std::int64_t>(ids.size());
      };
      std::size_t dropped = 0;
      const auto first = [&] { return messages[0].role == "system" ? std::ptrdiff_t{1} : std::ptrdiff_t{0}; };
      while (tokens() > most && static_cast<std::ptrdiff_t>(messages.size()) > first() + 2) {
        messages.erase(messages.begin() + first(),
                       messages.begin() + first() + 2);  // a question and its answer
        ++dropped;
      }
      if (dropped > 0)
        write_now("(the conversation is longer than the context of " + std::to_string(context) +
                  " tokens: the oldest " + std::to_string(dropped) +
                  (dropped == 1 ? " turn was" : " turns were") + " forgotten)\n");
      check(static_cast<std::int64_t>(ids.size()) <= most, "[gpt chat] the message has ", ids.size(),
            " tokens with its frame, but there is room for ", most, "; shorten it");
    } catch (const Error& e) {
      // A message that cannot be encoded is not part of the conversation.
      messages.pop_back();
      std::fprintf(stderr, "error: %s\n", e.what());
      continue;
    }
    TextStream out(p.tokenizer, {}, write_now);
    nn::GenerateOptions options{.max_new_tokens = o.max_tokens, .stop = p.stop};
    const std::int64_t end = chat.end_of_message();
    if (std::find(options.stop.begin(), options.stop.end(), end) == options.stop.end())
      options.stop.push_back(end);
    options.on_token = [&](std::int64_t token) { return out.next(token) && signals.signal() == 0; };
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t count = decoder.generate(ids, options, sampler).size();
    out.finish();
    messages.push_back({"assistant", out.text()});
    write_now("\n");
    if (o.stats) {
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      std::fprintf(stderr, "%zu tokens, %lld of them from the cache, and an answer of %zu in %.2f s\n",
                   ids.size(), static_cast<long long>(decoder.reused()), count, s);
    }
    if (signals.signal() == SIGINT) {
      write_now("(stopped)\n");
      signals.clear(SIGINT);
    } else if (signals.signal() != 0) {
      break;
    }
  }
  return signals.signal() ? 128 + signals.signal() : 0;
}

}  // namespace

int chat(int argc, char** argv) {
  Options o;
  CommandLine line("gpt chat", "Talks with a model. Each line of standard input is a message.");
  add_model_options(line, o.model);
  line.add("--template", o.format, "The format of conversations, if the model's files do not name it",
           {.check = one_of({"smollm2", "llama3", "llama3.1", "llama3.2"})});
  line.add("--system", o.system, "A message that tells the model how to behave");
  line.add("--max-tokens", o.max_tokens, "The most tokens of an answer",
           {.check = between<std::int64_t>(1, 1'000'000'000)});
  line.add(
      "--context", o.context,
      "The most tokens of a conversation, whose oldest turns are then forgotten; 0 takes the model's context",
      {.check = between<std::int64_t>(0, 1'000'000'000)});
  add_sampler_options(line, o.sampler);
  line.add("--stats", o.stats, "Print times to standard error");
  line.add("--threads", o.threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
           {.check = between(0, 1024)});
  line.footer(
      "/reset begins a new conversation, /quit ends. Ctrl-C stops an answer; a second one ends the program.\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 128 + N ended by signal N.");
  return line.run(argc, argv, [&] { return run(o); });
}

}  // namespace apps::gpt
