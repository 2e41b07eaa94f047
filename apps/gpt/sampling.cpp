#include "tapestry/apps/gpt/sampling.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tapestry/core/error.h"

namespace apps::gpt {

void add_sampler_options(CommandLine& line, tapestry::nn::SamplerOptions& o) {
  constexpr std::int64_t kMany = 1'000'000'000;
  line.add("--temperature", o.temperature,
           "Below 1, likely words become more likely; 0 takes the most likely one",
           {.check = between(0.0, 100.0)});
  line.add("--top-k", o.top_k, "Draw from the k most likely tokens; 0 draws from all",
           {.check = between<std::int64_t>(0, kMany)});
  line.add("--top-p", o.top_p, "Draw from the most likely tokens whose probabilities reach this sum",
           {.check = between(1e-9, 1.0)});
  line.add("--min-p", o.min_p, "Draw from tokens with at least this part of the largest probability",
           {.check = between(0.0, 1.0)});
  line.add("--repetition-penalty", o.repetition_penalty,
           "Above 1, tokens that have occurred become less likely", {.check = between(1e-3, 1e3)});
  line.add("--seed", o.seed, "The same seed gives the same text",
           {.check = between<std::uint64_t>(0, UINT64_MAX)});
}

TextStream::TextStream(const tapestry::data::Tokenizer& tokenizer, std::vector<std::string> stop, Write write)
    : decoder_(tokenizer, {.skip_special = true}), stop_(std::move(stop)), write_(std::move(write)) {
  for (const std::string& text : stop_)
    tapestry::check<UsageError>(!text.empty(),
                                "[gpt] a stop string is empty, and would end every text at once");
}

bool TextStream::take(const std::string& more) {
  held_ += more;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stop_) end = std::min(end, held_.find(stop));
  std::size_t ready = held_.size();
  if (end != std::string::npos) {
    stopped_ = true;
    ready = end;
  } else {
    for (const std::string& stop : stop_)
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > 0; --n)
        if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) {
          ready = std::min(ready, held_.size() - n);
          break;
        }
  }
  if (ready > 0) {
    write_(held_.substr(0, ready));
    text_ += held_.substr(0, ready);
  }
  held_.erase(0, stopped_ ? std::string::npos : ready);
  return !stopped_;
}

bool TextStream::next(std::int64_t token) { return !stopped_ && take(decoder_.next(token)); }

void TextStream::finish() {
  if (stopped_) return;
  if (!take(decoder_.finish())) return;
  if (!held_.empty()) write_(held_);
  text_ += held_;
  held_.clear();
}

void write_now(const std::string& text) {
  // A text that nobody gets need not be computed to its end.
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  const int error = errno;
  tapestry::check<tapestry::IoError>(written,
                                     "[gpt] standard output cannot be written: ", std::strerror(error));
}

}  // namespace apps::gpt
