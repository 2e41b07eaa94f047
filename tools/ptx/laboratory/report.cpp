#include "tapestry/tools/ptx/laboratory/report.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <vector>

namespace tapestry::ptx {
namespace {

// The errors by words of their messages; the first row with a word that occurs decides.
struct Row {
  const char* words;
  const char* name;
  const char* advice;
};
constexpr Row kRows[] = {
    // kernels
    {": race: ", "racecheck: race", ""},  // the message ends with the remedy
    {"which a cp.async is still writing", "racecheck: asynchronous copy",
     "wait with cp.async.wait_group (or __pipeline_wait_prior) for the group of this copy, then let the "
     "threads that "
     "read it meet at a barrier"},
    {"no wait for its mbarrier", "racecheck: asynchronous copy",
     "wait for the phase of the mbarrier that the copy ends"},
    {"is still reading", "racecheck: asynchronous copy",
     "wait with cp.async.bulk.wait_group.read before the memory is written again"},
    {"through the async proxy", "racecheck: asynchronous copy",
     "the threads that wrote the memory must execute fence.proxy.async before a barrier"},
    {"wgmma", "racecheck: asynchronous product", ""},
    {"is no multiple of", "memcheck: misaligned", "choose a size and addresses that are multiples"},
    {"waits for the mbarrier", "synccheck: mbarrier",
     "the arrivals and bytes that the mbarrier expects must be those that come"},
    {"were never written", "initcheck: memory that no one has written",
     "compute all elements, or copy only those that were computed"},
    {"reads a register", "initcheck: register",
     "in inline PTX, an operand that an instruction reads and writes needs \"+\" instead of \"=\""},
    {"was never written", "initcheck: memory that no one has written",
     "write the bytes before: clear shared memory at the start, copy or memset all bytes of an allocation (a "
     "size is "
     "in bytes), and let threads meet at a barrier before they read what others write"},
    {"is not aligned", "memcheck: misaligned",
     "a vector of N bytes needs an address that is a multiple of N: check the offset and the pitch of rows, "
     "or use "
     "narrower accesses where they do not fit"},
    {"after its free", "streamcheck: use after free",
     "free the memory when all streams that use it have ended, or let the stream of the free wait for an "
     "event of the "
     "others"},
    {"already free", "memcheck: freed twice or wrongly", "free each allocation once"},
    {"freed twice", "memcheck: freed twice or wrongly", "free each allocation once"},
    {"that was freed", "memcheck: use after free",
     "free the memory after the last launch that uses it has ended"},
    {"was released", "memcheck: use after free",
     "free the memory after the last work that uses it has ended"},
    {"nothing orders the two", "streamcheck: streams without an order", ""},
    {"races with", "racecheck: race",
     "order the two accesses: __syncthreads() or __syncwarp() between threads of a block; atomics, or a "
     "fence and a "
     "flag, between blocks"},
    {"which is read-only", "memcheck: write to read-only memory",
     "constants and parameters cannot be written"},
    {"beyond the end", "memcheck: out of bounds",
     "compare the index with the number of elements before the access, and ask for as much memory as is "
     "used"},
    {"over the end", "memcheck: out of bounds",
     "compare the index with the number of elements before the access, and ask for as much memory as is "
     "used"},
    {"before the beginning", "memcheck: out of bounds",
     "the index is negative: subtract less, or compute it in 64 bits if it overflows"},
    {"no such memory", "memcheck: out of bounds", "the kernel was launched without dynamic shared memory"},
    {"outside of all memory", "memcheck: out of bounds", "pass memory that cudaMalloc returned"},
    {"lanes that never come", "synccheck: lanes that never come",
     "name in the mask exactly the lanes that execute the call, and call it outside of code that lanes skip"},
    {"which the mask", "synccheck: wrong mask", "read only lanes that the mask names"},
    {"does not name the lane itself", "synccheck: wrong mask", "a lane that calls must be in its own mask"},
    {"which has ended or does not exist", "synccheck: shuffle from an absent lane",
     "let all lanes whose values are read execute the shuffle, or exclude the absent ones by the width"},
    {"all 32 lanes of the warp must execute it", "synccheck: lanes that never come",
     "no lane may return before the instruction, and the threads of the block must be a multiple of 32"},
    {"must wait at the same barrier", "synccheck: barrier in divergent code",
     "call the barrier outside of code that only some threads execute"},
    {"waits for all threads", "synccheck: barrier in divergent code",
     "call the barrier outside of code that only some threads execute"},
    {"the barrier is for", "synccheck: barrier of the wrong number of threads",
     "pass the number of threads that come to the barrier"},
    {"threads: their number must be", "synccheck: barrier of the wrong number of threads",
     "pass the number of threads that come to the barrier, a multiple of 32"},
    {"waits for", "synccheck: barrier of the wrong number of threads",
     "pass the number of threads that come to the barrier"},
    {"did not end within", "limit: a loop without end",
     "look for a condition that never becomes true, such as a flag that is not volatile; --limit allows more "
     "instructions"},
    {"mbarrier", "synccheck: mbarrier",
     "the arrivals and bytes that the mbarrier expects must be those that come"},
    {"the assertion ", "assert: a device-side assertion failed", "the kernel found an error itself"},
    {"the kernel stopped itself", "trap: the kernel stopped itself", "the kernel found an error itself"},
    // calls
    {"leaked", "leakcheck: not released", "release it before the program ends"},
    {"direction", "apicheck: copy in the wrong direction",
     "swap the arguments or the kind; cudaMemcpyDefault finds the kind from the addresses"},
    {"is not inside live memory", "memcheck: copy out of bounds",
     "the size of a copy is in bytes, and both sides must have as many"},
    {"was not allocated", "memcheck: freed twice or wrongly",
     "pass the pointer that the allocation returned"},
    {"of the other kind", "memcheck: freed twice or wrongly",
     "cudaFree releases device memory, and cudaFreeHost pinned memory"},
    {"launch", "apicheck: launch",
     "ask cudaGetLastError() after each launch: the launch itself returns nothing"},
};

constexpr std::size_t kWidth = 110;
const std::string kMargin = "========= ";

/// Appends a paragraph with lines of a limited width.
void append(std::string& to, const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      to += kMargin + "   " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  if (!line.empty()) to += kMargin + "   " + line + "\n";
}

/// Demangles the C++ symbols between quotation marks.
std::string readable(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = text.find("'_Z", at),
                      end = begin == text.npos ? begin : text.find('\'', begin + 1);
    if (end == text.npos) return result + text.substr(at);
    const std::string symbol = text.substr(begin + 1, end - begin - 1);
    int status = 0;
    char* const name = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
    result += text.substr(at, begin + 1 - at) + (status == 0 && name ? name : symbol);
    std::free(name);
    at = end;
  }
  return result;
}

/// "f() at k.cu:12" for each address of "PROGRAM+0x1234 ...", as far as addr2line knows it.
std::vector<std::string> places(const std::string& frames) {
  std::vector<std::string> found;
  std::istringstream stream(frames);
  for (std::string frame; stream >> frame && found.size() < 12;) {
    const std::size_t plus = frame.rfind('+');
    if (plus == frame.npos || frame.find('\'') != frame.npos) continue;
    const std::string command =
        "addr2line -Cfpi -e '" + frame.substr(0, plus) + "' " + frame.substr(plus + 1) + " 2>/dev/null";
    FILE* const pipe = popen(command.c_str(), "r");
    if (!pipe) continue;
    std::string output;
    char buffer[1024];
    while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
    pclose(pipe);
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      // Stubs of launches are in a file that nvcc has deleted, or in its headers.
      if (line.find("??") != line.npos || line.find(":?") != line.npos || line.find("cudafe1.stub") != line.npos ||
          line.find("/include/crt/") != line.npos)
        continue;
      line = line.substr(0, line.find(" (discriminator"));
      // nvcc keeps the lines of k.cu, and names its own file /tmp/tmpxft_1234_5678-9_k.cudafe1.cpp.
      if (const std::size_t temporary = line.find("/tmp/tmpxft_"), end = line.find(".cudafe1.cpp");
          temporary != line.npos && end != line.npos) {
        std::string file = line.substr(temporary, end - temporary);
        if (const std::size_t number = file.find('_', file.find('-')); number != file.npos)
          file.erase(0, number + 1);
        line = line.substr(0, temporary) + file + ".cu" + line.substr(end + 12);
      }
      found.push_back(line);
    }
    if (output.find("main at") == 0 || output.find("\nmain at") != output.npos) break;
  }
  return found;
}

}  // namespace

Check check_of(const std::string& message) {
  // Names of the program, its files, kernels and variables say nothing about the error, and neither does the
  // instruction in parentheses.
  std::string text = message.substr(0, message.find("\nhost: "));
  if (const std::size_t last = text.rfind("[ptx] "); last != text.npos) text.erase(0, last + 6);
  static const std::regex names(R"('[^']*'|[^\s']+:\d+( \([a-z0-9_.:]+\))?)");
  text = std::regex_replace(text, names, "");
  for (const Row& row : kRows)
    if (text.find(row.words) != text.npos) return {row.name, row.advice};
  return {"apicheck: invalid call", ""};
}

std::string Reports::add(const std::string& message) {
  if (message.find_first_not_of(" \n") == message.npos) return "";
  ++count_;
  const Check check = check_of(message);
  ++by_tool_[check.name.substr(0, check.name.find(':'))];
  if (seen_[message]++ > 0) return "";
  std::string text = kMargin + check.name + "\n";
  // "[ptx] " at the start only says where the message comes from.
  const std::size_t last = message.rfind("[ptx] ");
  std::istringstream lines(readable(last == message.npos ? message : message.substr(last + 6)));
  std::string host;
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 6, "host: ") == 0) host = line.substr(6);
    else append(text, line);
  }
  for (const std::string& place : places(host)) append(text, "Host: " + place);
  if (!check.advice.empty()) append(text, "What to do: " + check.advice + ".");
  return text + kMargin + "\n";
}

std::string Reports::summary() const {
  if (count_ == 0) return "no errors";
  std::string text = std::to_string(count_) + (count_ == 1 ? " error" : " errors"), separator = ": ";
  for (const auto& [tool, count] : by_tool_) {
    text += separator + tool + " " + std::to_string(count);
    separator = ", ";
  }
  return text;
}

}  // namespace tapestry::ptx
