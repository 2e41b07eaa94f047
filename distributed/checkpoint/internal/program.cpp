#include "tapestry/distributed/checkpoint/internal/program.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "tapestry/core/version.h"
#include "tapestry/distributed/checkpoint/internal/reader.h"

namespace tapestry::distributed::checkpoint {
namespace {

constexpr int kMaxRanks = 4096;

std::string bytes_text(std::uint64_t bytes) {
  char text[32];
  if (bytes < 1024) std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(bytes));
  else if (bytes < (1u << 20))
    std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024);
  else if (bytes < (1u << 30))
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  else std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::string row(const std::string& a, std::size_t width, const std::string& b) {
  return a + std::string(width > a.size() ? width - a.size() : 0, ' ') + "  " + b + '\n';
}

std::string show(const std::string& folder, bool verify) {
  ShardReader reader(folder);
  reader.check_shards();
  const Index& index = reader.index();
  std::uint64_t bytes = 0;
  std::size_t width = 6;
  std::vector<std::size_t> tensors(index.shards.size());
  for (const auto& [name, tensor] : index.tensors) {
    if (verify) reader.verify(name);
    bytes += tensor.bytes(tensor.whole());
    width = std::max(width, name.size());
    for (const Piece& piece : tensor.pieces) ++tensors[static_cast<std::size_t>(piece.shard)];
  }
  std::string out = folder + '\n';
  if (index.progress) {
    out +=
        "step " + std::to_string(index.progress->step) + ", epoch " + std::to_string(index.progress->epoch);
    if (index.progress->metric) out += concat({", metric ", *index.progress->metric});
  } else {
    out += "no training run: split from a model file";
  }
  if (!index.optimizer.empty())
    out += ", optimizer " + index.optimizer + " (" + std::to_string(index.groups.size()) +
           (index.groups.size() == 1 ? " group)" : " groups)");
  if (index.scheduler) out += ", schedule";
  out += "\n" + std::to_string(index.shards.size()) + " shards, " + std::to_string(index.tensors.size()) +
         " tensors, " + bytes_text(bytes) + (verify ? ", all checksums are right" : "") + "\n";
  for (const auto& [name, value] : index.choices) out += name + ": " + value + '\n';
  out += '\n';
  for (std::size_t i = 0; i < index.shards.size(); ++i)
    out += row(index.shards[i].file, 34,
               std::to_string(tensors[i]) + " tensors, " + bytes_text(index.shards[i].bytes));
  out += '\n' + row("tensor", width, "dtype, shape, bytes, shard: part");
  for (const auto& [name, tensor] : index.tensors) {
    std::string text =
        concat({dtype_name(tensor.dtype), " ", tensor.sizes, ", ", bytes_text(tensor.bytes(tensor.whole()))});
    for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
      const Piece& p = tensor.pieces[i];
      text += concat({", ", p.shard, ": ", p.box.str()});
    }
    out += row(name, width, text);
  }
  for (const auto& [alias, target] : index.aliases) out += row(alias, width, "is tied to " + target);
  return out;
}

}  // namespace

std::string program_help() {
  return "usage: tapestry-checkpoint show CHECKPOINT [--verify]\n"
         "       tapestry-checkpoint merge CHECKPOINT FILE [--force]\n"
         "       tapestry-checkpoint split FILE CHECKPOINT --ranks N\n"
         "\n"
         "CHECKPOINT is the folder of a sharded checkpoint, such as runs/a/checkpoints/step-00000500.\n"
         "\n"
         "show   prints the step, the shards and the tensors. With --verify, it reads all data and compares\n"
         "       the checksums.\n"
         "merge  writes one safetensors file, which nn::load_checkpoint, nn::load_model and PyTorch read. "
         "An\n"
         "       existing file is replaced only with --force.\n"
         "split  divides such a file, or any safetensors file of a model, into the shards of N ranks (1 to "
         "4096).\n"
         "--version prints the version, the libraries of this build and those of this machine.\n"
         "\n"
         "A checkpoint loads at any number of ranks, so split is needed only for files.\n"
         "Exit status: 0, 1 if a file cannot be read or written or is damaged, 2 for wrong arguments.\n";
}

std::string run_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  bool verify = false, force = false;
  int ranks = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") return program_help();
    if (argument == "--version") return version_text("tapestry-checkpoint");
    if (argument == "--verify") verify = true;
    else if (argument == "--force") force = true;
    else if (argument == "--ranks" || argument.starts_with("--ranks=")) {
      const bool joined = argument.size() > 7;
      check(joined || i + 1 < arguments.size(), "[tapestry-checkpoint] --ranks needs a value");
      const std::string value = joined ? argument.substr(8) : arguments[++i];
      const char* const end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, ranks);
      check(error == std::errc() && stop == end && ranks >= 1 && ranks <= kMaxRanks,
            "[tapestry-checkpoint] --ranks takes a number from 1 to ", kMaxRanks, ", not '", value, "'");
    } else {
      check(!argument.starts_with("-"), "[tapestry-checkpoint] unknown option '", argument,
            "'; tapestry-checkpoint --help lists the options");
      words.push_back(argument);
    }
  }
  const std::string command = words.empty() ? "" : words[0];
  check(command == "show" || command == "merge" || command == "split", "[tapestry-checkpoint] ",
        words.empty() ? "a command is missing" : "unknown command '" + command + "'",
        "; use show, merge or split (tapestry-checkpoint --help)");
  const std::size_t expected = command == "show" ? 2 : 3;
  check(words.size() == expected, "[tapestry-checkpoint] ", command, " takes ", expected - 1,
        " path(s), but got ", words.size() - 1, "; see tapestry-checkpoint --help");
  check(!verify || command == "show", "[tapestry-checkpoint] --verify is an option of show");
  check(!force || command == "merge", "[tapestry-checkpoint] --force is an option of merge");
  check((ranks > 0) == (command == "split"), "[tapestry-checkpoint] --ranks ",
        ranks > 0 ? "is an option of split" : "is missing; split needs the number of ranks");
  if (command == "show") return show(words[1], verify);
  std::error_code error;
  if (command == "merge") {
    check(force || !std::filesystem::exists(words[2], error), "[tapestry-checkpoint] ", words[2],
          " exists; choose another name, or replace it with --force");
    merge_checkpoint(words[1], words[2]);
    return "wrote " + words[2] + '\n';
  }
  split_checkpoint(words[1], words[2], ranks);
  return "wrote " + words[2] + '\n';
}

}  // namespace tapestry::distributed::checkpoint
