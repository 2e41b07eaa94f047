#include "tapestry/apps/compare/page/page.h"

#include "tapestry/apps/common/svg_text.h"
#include "tapestry/apps/compare/document.h"

namespace apps::compare {
namespace {

std::string base64_of_hex(const std::string& hex) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char c : hex) {
    bits = bits << 4 | static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    for (count += 4; count >= 6; count -= 6) out += kDigits[bits >> (count - 6) & 63];
  }
  if (count > 0) out += kDigits[bits << (6 - count) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

}  // namespace

std::string page(const Report& report, const Judgement& judgement) {
  // In one pass, so that no value is taken for a placeholder.
  const std::string html = kPageHtml;
  std::string out;
  std::size_t at = 0;
  for (std::size_t open; (open = html.find("{{", at)) != std::string::npos;) {
    const std::size_t close = html.find("}}", open);
    const std::string name = html.substr(open + 2, close - open - 2);
    out += html.substr(at, open - at);
    if (name == "title") out += escaped(text_of(judgement.main().headline));
    else if (name == "hash") out += base64_of_hex(kPageScriptSha256);
    else if (name == "css") out += kPageCss;
    else if (name == "data") out += page_json(report, judgement);
    else if (name == "script") out += kPageScript;
    at = close + 2;
  }
  return out + html.substr(at);
}

}  // namespace apps::compare
