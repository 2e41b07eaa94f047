#include "tapestry/apps/common/page_files.h"

#include "tapestry/apps/common/svg_text.h"

namespace apps {
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

std::string page_of(const PageFiles& files, const std::string& title, const std::string& data) {
  // Replaces all placeholders in one pass, so that a value that contains "{{" is not replaced in turn.
  const std::string html = files.html;
  std::string out;
  std::size_t at = 0;
  for (std::size_t open; (open = html.find("{{", at)) != std::string::npos;) {
    const std::size_t close = html.find("}}", open);
    const std::string name = html.substr(open + 2, close - open - 2);
    out += html.substr(at, open - at);
    if (name == "title") out += escaped(title);
    else if (name == "hash") out += base64_of_hex(files.script_sha256);
    else if (name == "css") out += files.css;
    else if (name == "data") out += data;
    else if (name == "script") out += files.script;
    at = close + 2;
  }
  return out + html.substr(at);
}

std::string json_in_html(const std::string& json) {
  // These characters occur in strings only, where JSON takes \u for any character. U+2028 and U+2029 are
  // E2 80 A8 and E2 80 A9 in UTF-8.
  std::string out;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '<') out += "\\u003c";
    else if (json[i] == '>') out += "\\u003e";
    else if (json[i] == '&') out += "\\u0026";
    else if (json.compare(i, 3, "\xE2\x80\xA8") == 0) out += "\\u2028", i += 2;
    else if (json.compare(i, 3, "\xE2\x80\xA9") == 0) out += "\\u2029", i += 2;
    else out += json[i];
  }
  return out;
}

}  // namespace apps
