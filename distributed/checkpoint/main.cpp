// tapestry-checkpoint shows and converts sharded checkpoints. `tapestry-checkpoint --help` describes its
// commands.
#include <cstdio>
#include <exception>

#include "tapestry/core/error.h"
#include "tapestry/distributed/checkpoint/internal/program.h"

int main(int argc, char** argv) {
  try {
    const std::string text = tapestry::distributed::checkpoint::run_program({argv + 1, argv + argc});
    return std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0;
  } catch (const tapestry::ValueError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
