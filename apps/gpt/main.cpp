// A language model in one program: trained here from scratch, tuned, or loaded from a GGUF file or a folder
// of Hugging Face. `gpt --help` lists the commands.
#include <cstdio>
#include <string>

#include "tapestry/apps/common/bounded_spin.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/core/version.h"

namespace {

struct Command {
  const char* name;
  int (*run)(int argc, char** argv);
  const char* about;
};
constexpr Command kCommands[] = {
    {"train", apps::gpt::train, "trains a model from scratch on text files or on llm.c's token files"},
    {"tune", apps::gpt::tune, "goes on training a model, all of its weights or LoRA adapters"},
    {"generate", apps::gpt::generate, "continues a text"},
    {"chat", apps::gpt::chat, "talks with a model that was tuned for conversations"},
    {"evaluate", apps::gpt::evaluate, "measures the perplexity of a text"},
    {"convert", apps::gpt::convert, "GGUF to a folder of Hugging Face and back, with or without adapters"},
};

void print_help(std::FILE* out) {
  std::fputs(
      "gpt: trains language models, and writes and talks with them.\n\n"
      "  gpt train --text FILE --run-dir runs/mine       a small model from scratch\n"
      "  gpt generate --model runs/mine/model --prompt \"In the beginning\"\n"
      "  gpt chat --model SmolLM2-135M-Instruct.Q4_1.gguf\n\n"
      "Commands:\n",
      out);
  for (const Command& c : kCommands) std::fprintf(out, "  %-10s%s\n", c.name, c.about);
  std::fputs("\ngpt COMMAND --help lists the options of a command. gpt --version says what this build is made of.\n", out);
}

}  // namespace

int main(int argc, char** argv) {
  apps::bound_spin(argv);
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    print_help(stdout);
    return apps::end_of_output("gpt", 0);
  }
  if (name == "--version") {
    std::fputs(tapestry::version_text("gpt").c_str(), stdout);
    return apps::end_of_output("gpt", 0);
  }
  for (const Command& c : kCommands)
    if (name == c.name) return c.run(argc - 1, argv + 1);
  if (name.empty()) print_help(stderr);
  else
    std::fprintf(stderr, "error: [gpt] there is no command %s; gpt --help lists the commands\n",
                 name.c_str());
  return 2;
}
