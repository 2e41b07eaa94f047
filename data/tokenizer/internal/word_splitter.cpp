#include "tapestry/data/tokenizer/internal/word_splitter.h"

#include <cstddef>
#include <string>

#include "tapestry/core/error.h"

#ifdef TAPESTRY_HAS_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace tapestry::data {

const char* word_rule_name(WordRule rule) {
  switch (rule) {
    case WordRule::gpt2:
      return "gpt2";
    case WordRule::smollm:
      return "smollm";
    case WordRule::llama3:
      return "llama3";
    case WordRule::qwen2:
      break;
  }
  return "qwen2";
}

#ifdef TAPESTRY_HAS_PCRE2

namespace {

// White space of Unicode. PCRE2's own \s also has U+180E, which is none since Unicode 6.3.
#define SPACE "\\t-\\r\\x{85}\\p{Z}"

// Letters and numbers. PCRE2 10.42 has the tables of Unicode 14; the ranges are those that Unicode 15 and 16
// have added (DerivedGeneralCategory.txt). Hugging Face's tokenizers 0.23 knows them.
#define LETTER                                                                           \
  "\\p{L}"                                                                               \
  "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"       \
  "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}" \
  "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"   \
  "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}"  \
  "\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"            \
  "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"             \
  "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"  \
  "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define NUMBER                                                                           \
  "\\p{N}"                                                                               \
  "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
  "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
  "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"

// The pattern of the model files, with these classes spelled out. smollm splits digits first.
std::string pattern_of(WordRule rule) {
  constexpr const char* kGpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]+| ?[" NUMBER
                                "]+| ?[^" SPACE LETTER NUMBER "]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";
  // The two patterns differ in the number of digits alone.
  constexpr const char* kBefore =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|[" NUMBER "]";
  constexpr const char* kBehind = "| ?[^" SPACE LETTER NUMBER "]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|[" SPACE
                                  "]+(?![^" SPACE "])|[" SPACE "]+";
  if (rule == WordRule::llama3) return std::string(kBefore) + "{1,3}" + kBehind;
  if (rule == WordRule::qwen2) return std::string(kBefore) + kBehind;
  return kGpt2;
}

constexpr const char* kDigit = "[" NUMBER "]";

#undef SPACE
#undef LETTER
#undef NUMBER

class Regex {
 public:
  explicit Regex(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
    check(code_ != nullptr, "[Tokenizer] PCRE2 does not compile the word rule: error ", error, " at ", at,
          "; use PCRE2 10.32 or newer");
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // without JIT, matching is slower but the same
  }
  ~Regex() { pcre2_code_free(code_); }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Calls fn(begin, end) for the matches in `text`.
  template <class F>
  void for_each(std::string_view text, const F& fn) const {
    struct MatchData {
      pcre2_match_data* data;
      ~MatchData() { pcre2_match_data_free(data); }
    };
    const MatchData match{pcre2_match_data_create(1, nullptr)};
    check(match.data != nullptr, "[Tokenizer] out of memory");
    const PCRE2_SIZE* const at = pcre2_get_ovector_pointer(match.data);
    for (std::size_t from = 0; from < text.size(); from = at[1]) {
      const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                    PCRE2_NO_UTF_CHECK, match.data, nullptr);
      if (found == PCRE2_ERROR_NOMATCH) return;
      check(found > 0, "[Tokenizer] PCRE2 failed with error ", found, " at byte ", from,
            " of the text; pass the text in smaller parts");
      fn(at[0], at[1]);
    }
  }

 private:
  pcre2_code* code_;
};

}  // namespace

struct WordSplitter::Impl {
  explicit Impl(WordRule rule) : words(pattern_of(rule)) {
    if (rule == WordRule::smollm) digits = std::make_unique<Regex>(kDigit);
  }
  // The parts between matches are words too. The rules match every character, so there are none.
  void split_words(std::string_view text, const std::function<void(std::string_view)>& fn) const {
    std::size_t done = 0;
    words.for_each(text, [&](std::size_t begin, std::size_t end) {
      if (begin > done) fn(text.substr(done, begin - done));
      fn(text.substr(begin, end - begin));
      done = end;
    });
    if (done < text.size()) fn(text.substr(done));
  }
  Regex words;
  std::unique_ptr<Regex> digits;
};

WordSplitter::WordSplitter(WordRule rule) : impl_(std::make_unique<Impl>(rule)) {}
WordSplitter::~WordSplitter() = default;

void WordSplitter::split(std::string_view text, const std::function<void(std::string_view)>& fn) const {
  if (!impl_->digits) return impl_->split_words(text, fn);
  std::size_t done = 0;
  impl_->digits->for_each(text, [&](std::size_t begin, std::size_t end) {
    if (begin > done) impl_->split_words(text.substr(done, begin - done), fn);
    fn(text.substr(begin, end - begin));
    done = end;
  });
  if (done < text.size()) impl_->split_words(text.substr(done), fn);
}

#else

struct WordSplitter::Impl {};
WordSplitter::WordSplitter(WordRule) {
  fail<Error>(
      "[Tokenizer] this build has no PCRE2, which splits text into words; install libpcre2-dev and build "
      "Tapestry again");
}
WordSplitter::~WordSplitter() = default;
void WordSplitter::split(std::string_view, const std::function<void(std::string_view)>&) const {}

#endif

}  // namespace tapestry::data
