#include <cstdio>

#include "tapestry/apps/gpt/commands.h"

namespace apps::gpt {

int train(int, char**) {
  std::fputs("error: [gpt train] this command is not there yet\n", stderr);
  return 1;
}

}  // namespace apps::gpt
