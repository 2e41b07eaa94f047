// Tapestry's side of tools/bench_tokenizer.
//   bench_tokenizer TOKENIZER STRINGS IDS ROUNDS
// Encodes the strings of a file ROUNDS times on one thread, writes their ids, and prints the seconds of each
// round. TOKENIZER is a GGUF file or a tokenizer.json. In both other files, a string or a list of ids is a
// u32 with its length, followed by its bytes or its u32 ids.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/core/gguf.h"
#include "tapestry/data/tokenizer/tokenizer.h"

using namespace tapestry;

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string path = argv[1];
  const data::Tokenizer tokenizer = path.ends_with(".gguf")
                                        ? data::Tokenizer::from_gguf(GgufFile(path).metadata())
                                        : data::Tokenizer::from_file(path);
  std::ifstream in(argv[2], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string_view> strings;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto* const size = reinterpret_cast<const unsigned char*>(bytes.data() + at);
    const std::size_t length = size[0] | size[1] << 8 | size[2] << 16 | std::size_t{size[3]} << 24;
    strings.emplace_back(bytes.data() + at + 4, length);
    at += 4 + length;
  }
  std::vector<std::vector<std::int64_t>> ids(strings.size());
  for (int round = 0; round < std::atoi(argv[4]); ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < strings.size(); ++i) ids[i] = tokenizer.encode(strings[i]);
    std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  }
  std::vector<std::uint32_t> out;
  for (const auto& list : ids) {
    out.push_back(static_cast<std::uint32_t>(list.size()));
    for (const std::int64_t id : list) out.push_back(static_cast<std::uint32_t>(id));
  }
  std::ofstream file(argv[3], std::ios::binary);
  file.write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size() * 4));
  return file.flush() ? 0 : 1;
}
