#include "tapestry/data/tokenizer/internal/nfc.h"

#include <algorithm>

#if TAPESTRY_HAS_ICU
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#endif

#include "tapestry/core/error.h"

namespace tapestry::data {

std::string to_nfc(std::string_view text) {
  // Characters below U+0300 neither change nor compose with each other.
  constexpr unsigned char kFirst = 0xcc;  // the first byte of U+0300
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < kFirst; }))
    return std::string(text);
#if TAPESTRY_HAS_ICU
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const form = icu::Normalizer2::getNFCInstance(status);
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  // ICU takes lengths of 32 bits. No character composes with a newline.
  constexpr std::size_t kMost = 1 << 30;
  while (U_SUCCESS(status) && !text.empty()) {
    std::size_t part = text.size();
    if (part > kMost) part = text.rfind('\n', kMost) + 1;  // 0 if there is none
    check(part > 0 && part <= kMost + 1, "[Tokenizer] a line of the text has over ", kMost,
          " bytes; divide it");
    form->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(part)), sink, nullptr,
                        status);
    text.remove_prefix(part);
  }
  check(U_SUCCESS(status), "[Tokenizer] ICU cannot normalize the text: ", u_errorName(status));
  return out;
#else
  fail<Error>(
      "[Tokenizer] this build has no ICU, which normalizes text to NFC for this tokenizer; install "
      "libicu-dev and build again");
#endif
}

}  // namespace tapestry::data
