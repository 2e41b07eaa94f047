#pragma once
// Helpers for writing SVG as text.
#include <cstdarg>
#include <cstdio>
#include <string>

namespace apps {

/// Appends printf output to `out`, at most 511 characters.
[[gnu::format(printf, 2, 3)]] inline void put(std::string& out, const char* format, ...) {
  char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  out += text;
}

/// Escapes a string for text and attributes of XML and HTML.
inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// A distance between ticks that is 1, 2 or 5 times a power of ten, for about `count` ticks in `range`.
double tick_distance(double range, double count = 5);

}  // namespace apps
