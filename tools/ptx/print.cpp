// printf and assert in kernels. nvcc makes them calls of vprintf(format, arguments) and of __assertfail(message, file,
// line, function, size of a character), which the runtime provides.
#include <cstdio>

#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

std::string read_text(Warp& w, const Code& c, int lane, u64 address) {
  std::string text;
  for (; text.size() < 1 << 16; ++address) {
    const auto letter = static_cast<char>(*w.locate(c, lane, Space::kGeneric, address, 1, Warp::Access::kRead));
    if (letter == 0) break;
    text += letter;
  }
  return text;
}
u64 argument(Warp& w, const Code& c, int lane, std::size_t index, u32 bytes) {
  const Program::Copy& place = w.program().copies[static_cast<std::size_t>(c.offset[0])][index];
  u64 value = 0;
  std::memcpy(&value, w.locate(c, lane, Space::kLocal, place.from, bytes, Warp::Access::kRead), bytes);
  return value;
}
template <class T>
std::string formatted(const std::string& format, T value) {
  char text[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(text, sizeof text, format.c_str(), value);
#pragma GCC diagnostic pop
  return text;
}

// Arguments lie behind one another, each aligned to its size: 8 bytes for double, long, long long and pointers,
// otherwise 4.
std::string print(Warp& w, const Code& c, int lane, const std::string& format, u64 buffer) {
  std::string text;
  u64 at = buffer;
  const auto next = [&](u32 bytes) {
    at = (at + bytes - 1) / bytes * bytes;
    u64 value = 0;
    std::memcpy(&value, w.locate(c, lane, Space::kGeneric, at, bytes, Warp::Access::kRead), bytes);
    at += bytes;
    return value;
  };
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    std::string one = "%";
    bool is_long = false;
    while (++i < format.size()) {
      const char letter = format[i];
      if (letter == '*') {
        one += std::to_string(static_cast<i32>(next(4)));
      } else if (letter == 'l' || letter == 'z' || letter == 'j' || letter == 't') {
        is_long = true;
      } else if (letter != 'h') {
        one += letter;
        if (std::strchr("diouxXcsfFeEgGaAp%", letter)) break;
      }
    }
    const char kind = one.back();
    if (kind == '%') {
      text += '%';
    } else if (kind == 's') {
      const u64 address = next(8);
      text += formatted(one, address == 0 ? "(null)" : read_text(w, c, lane, address).c_str());
    } else if (kind == 'p') {
      text += hex(next(8));
    } else if (kind == 'c') {
      text += formatted(one, static_cast<int>(next(4)));
    } else if (std::strchr("fFeEgGaA", kind)) {
      text += formatted(one, std::bit_cast<double>(next(8)));
    } else if (std::strchr("diouxX", kind)) {
      const bool is_signed = kind == 'd' || kind == 'i';
      const u64 bits = next(is_long ? 8 : 4);
      one.insert(one.size() - 1, "ll");
      if (is_signed) text += formatted(one, static_cast<long long>(is_long ? static_cast<i64>(bits) : i64{static_cast<i32>(bits)}));
      else text += formatted(one, static_cast<unsigned long long>(bits));
    } else {
      text += one;  // an unfinished conversion
    }
  }
  return text;
}

}  // namespace

void run_print(Warp& w, const Code& c, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const std::string text =
        print(w, c, lane, read_text(w, c, lane, argument(w, c, lane, 1, 8)), argument(w, c, lane, 2, 8));
    if (const auto& sink = w.launch().options->print) sink(text);
    else std::fwrite(text.data(), 1, text.size(), stdout);
    const auto result = static_cast<u32>(text.size());
    const Program::Copy& place = w.program().copies[static_cast<std::size_t>(c.offset[0])][0];
    std::memcpy(w.locate(c, lane, Space::kLocal, place.from, 4, Warp::Access::kWrite), &result, 4);
  }
}
void run_assert(Warp& w, const Code& c, u32 mask) {
  const int lane = std::countr_zero(mask);
  w.fail(c, lane, "the assertion '" + read_text(w, c, lane, argument(w, c, lane, 0, 8)) + "' of " +
                      read_text(w, c, lane, argument(w, c, lane, 1, 8)) + ":" +
                      std::to_string(argument(w, c, lane, 2, 4)) + " failed");
}

}  // namespace tapestry::ptx
